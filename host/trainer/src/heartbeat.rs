//! Ranks that hang: every rank says now and then that it lives.

use molt_torch::Store;
use std::time::{Duration, Instant};

/// How often a rank says so.
const BEAT: Duration = Duration::from_secs(1);

/// After so long without a beat a rank is silent.
const SILENCE: Duration = Duration::from_secs(5);

/// Beats as long as the process lives and the store is there, on a thread and a connection of its own. A follower
/// also listens to the leader, and is `lost` when it has not heard of it for `patience`: it waits for orders however
/// long they take, and not for a leader that hangs.
pub(crate) fn start(store: Store, rank: usize, patience: Duration, lost: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let mut heard = Heard::default();
        for beat in 0_u64.. {
            if store.set(&key(rank), &beat.to_le_bytes()).is_err() {
                return; // The launcher has gone, which the rank itself will notice.
            }
            if rank > 0 && heard.silence(&store).is_some_and(|silent| silent > patience) {
                return lost();
            }
            std::thread::sleep(BEAT);
        }
    });
}

/// The ranks, of `size`, that do not beat any more. Takes some seconds. With the store lost, nobody does.
pub(crate) fn silent(store: &Store, own: usize, size: usize) -> Vec<usize> {
    store.set_timeout(SILENCE);
    let beats = || -> Vec<Option<Vec<u8>>> { (0..size).map(|rank| store.get(&key(rank)).ok()).collect() };
    let before = beats();
    std::thread::sleep(SILENCE);
    let after = beats();
    (0..size).filter(|&rank| rank != own && before[rank] == after[rank]).collect()
}

/// The last beat of the leader, and when it came.
#[derive(Default)]
struct Heard(Option<(Vec<u8>, Instant)>);

impl Heard {
    /// How long the leader has been silent. None before its first beat.
    fn silence(&mut self, store: &Store) -> Option<Duration> {
        let beat = store.get(&key(0)).ok()?;
        if self.0.as_ref().is_none_or(|(last, _)| *last != beat) {
            self.0 = Some((beat, Instant::now()));
        }
        self.0.as_ref().map(|(_, when)| when.elapsed())
    }
}

fn key(rank: usize) -> String {
    format!("beat/{rank}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_silent_rank_is_told_from_one_that_beats() {
        let wait = Duration::from_secs(20);
        let store = Store::serve("127.0.0.1", 0, wait).expect("a port");
        let connect = || Store::connect("127.0.0.1", store.port(), wait).expect("a store");
        start(connect(), 0, wait, || {});
        start(connect(), 1, wait, || {});
        store.set(&key(2), &[1]).expect("it is set");
        assert_eq!(silent(&connect(), 0, 3), [2]);
    }

    #[test]
    fn a_follower_gives_up_on_a_leader_that_hangs() {
        let wait = Duration::from_secs(20);
        let store = Store::serve("127.0.0.1", 0, wait).expect("a port");
        store.set(&key(0), &[1]).expect("it is set");
        let (tell, told) = channel();
        let own = Store::connect("127.0.0.1", store.port(), wait).expect("a store");
        start(own, 1, Duration::from_millis(1), move || tell.send(()).expect("somebody listens"));
        told.recv_timeout(wait).expect("it gives up");
    }
}
