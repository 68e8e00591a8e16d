//! Ranks that hang: every rank says now and then that it lives, and how far it has come.

use molt_torch::{Progress, Store};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a rank says so.
const BEAT: Duration = Duration::from_secs(1);

/// After so long without a beat a rank is silent.
const SILENCE: Duration = Duration::from_secs(5);

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Beat {
    nth: u64,
    /// Collectives that it has begun, and the last of them.
    collectives: u64,
    last: String,
    /// It has failed and is about to end, so the others need not look for it.
    fails: bool,
}

/// What the beats of a rank tell of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse {
    progress: Progress,
    fails: Arc<AtomicBool>,
}

/// The ranks that another one waits for in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// They do not beat any more.
    Silent(Vec<usize>),
    /// They beat, and have not come to the collective: the last one that the first of them began is `last`.
    Hang { ranks: Vec<usize>, last: String },
}

impl Pulse {
    /// Of the thread that calls, which is the one that trains.
    pub(crate) fn own() -> Self {
        Self { progress: Progress::own(), fails: Arc::default() }
    }

    fn beat(&self, nth: u64) -> Vec<u8> {
        let (collectives, last) = self.progress.begun();
        let beat = Beat { nth, collectives, last, fails: self.fails.load(Ordering::Relaxed) };
        postcard::to_allocvec(&beat).unwrap_or_default()
    }

    /// A collective of rank `own` of `size` has failed. Finds out which ranks it is waiting for, which takes some seconds,
    /// and lets the others know by its own beats that this is not one of them. None if they cannot be told, or the
    /// store is lost.
    pub(crate) fn missing(&self, store: &Store, own: usize, size: usize) -> Option<Missing> {
        self.fails.store(true, Ordering::Relaxed);
        store.set_timeout(SILENCE);
        let read = |rank| -> Option<Beat> { postcard::from_bytes(&store.get(&key(rank)).ok()?).ok() };
        let beats = || -> Vec<Option<Beat>> { (0..size).map(read).collect() };
        let before = beats();
        std::thread::sleep(SILENCE);
        let after = beats();
        after[own].as_ref()?;
        let begun = self.progress.begun().0;
        let fails = |rank: usize| after[rank].as_ref().is_some_and(|beat| beat.fails);
        let others: Vec<usize> = (0..size).filter(|&rank| rank != own && !fails(rank)).collect();
        let silent = |rank: &usize| before[*rank] == after[*rank];
        let behind = |rank: &usize| after[*rank].as_ref().is_some_and(|beat| beat.collectives < begun);
        let pick = |which: &dyn Fn(&usize) -> bool| others.iter().copied().filter(which).collect::<Vec<_>>();
        let silent = pick(&silent);
        if !silent.is_empty() {
            return Some(Missing::Silent(silent));
        }
        let ranks = pick(&behind);
        let last = after[*ranks.first()?].as_ref()?.last.clone();
        Some(Missing::Hang { ranks, last })
    }
}

/// Beats as long as the process lives and the store is there, on a thread and a connection of its own. A follower
/// also listens to the leader, and is `lost` when it has not heard of it, or not reached the store, for `patience`: it
/// waits for orders however long they take, and not for a leader that is gone.
pub(crate) fn start(
    store: Store,
    rank: usize,
    patience: Duration,
    pulse: Pulse,
    lost: impl FnOnce() + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut heard = Heard::default();
        for nth in 0_u64.. {
            if store.set(&key(rank), &pulse.beat(nth)).is_err() {
                // A rank that waits for others or for orders notices by itself.
                std::thread::sleep(patience);
                break;
            }
            if rank > 0 && heard.silence(&store).is_some_and(|silent| silent > patience) {
                break;
            }
            std::thread::sleep(BEAT);
        }
        if rank > 0 {
            lost();
        }
    });
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
    use crate::step::ranks::with_store;
    use std::sync::mpsc::channel;
    use tch::Tensor;

    #[test]
    fn a_silent_rank_is_told_from_one_that_beats() {
        let wait = Duration::from_secs(20);
        let store = Store::serve("127.0.0.1", 0, wait).expect("a port");
        let connect = || Store::connect("127.0.0.1", store.port(), wait).expect("a store");
        let own = Pulse::default();
        start(connect(), 0, wait, own.clone(), || {});
        start(connect(), 1, wait, Pulse::default(), || {});
        let last = Pulse::default().beat(7);
        store.set(&key(2), &last).expect("it is set");
        assert_eq!(own.missing(&connect(), 0, 3), Some(Missing::Silent(vec![2])));
    }

    /// Its process is well, and its thread does not come. The ranks that wait for it name it, and not each other.
    #[test]
    fn a_rank_that_hangs_is_told_from_those_that_wait_for_it() {
        for hangs in [0, 2] {
            let (tell, told) = channel::<()>();
            let (tell, told) = (std::sync::Mutex::new(tell), std::sync::Mutex::new(told));
            let found = with_store(3, |store, group| {
                let rank = group.rank();
                let soon = Duration::from_secs(6);
                let connect = || Store::connect("127.0.0.1", store.port(), soon).expect("a store");
                let hasty = molt_torch::Group::gloo(&connect(), "hasty", (rank, 3), (None, true), soon);
                let hasty = hasty.expect("a group");
                let pulse = Pulse::own();
                start(connect(), rank, Duration::from_secs(60), pulse.clone(), || {});
                let one =
                    || hasty.all_gather(&Tensor::from_slice(&[1_i64])).and_then(molt_torch::Pending::wait);
                let _ = one().expect("all come");
                if rank == hangs {
                    let told = told.lock().expect("no panic");
                    (0..2).for_each(|_| told.recv_timeout(Duration::from_secs(60)).expect("they gave up"));
                    return None;
                }
                one().expect_err("one does not come");
                let missing = pulse.missing(&connect(), rank, 3);
                tell.lock().expect("no panic").send(()).expect("the rank waits");
                Some(missing)
            });
            let last = "all-gather of [3] Int64 of group `hasty`".to_owned();
            let expected = Some(Missing::Hang { ranks: vec![hangs], last });
            let found: Vec<_> = found.into_iter().flatten().collect();
            assert_eq!(found, [expected.clone(), expected]);
        }
    }

    #[test]
    fn a_follower_gives_up_on_a_leader_that_hangs() {
        let wait = Duration::from_secs(20);
        let store = Store::serve("127.0.0.1", 0, wait).expect("a port");
        store.set(&key(0), &[1]).expect("it is set");
        let (tell, told) = channel();
        let own = Store::connect("127.0.0.1", store.port(), wait).expect("a store");
        let tells = move || tell.send(()).expect("somebody listens");
        start(own, 1, Duration::from_millis(1), Pulse::default(), tells);
        told.recv_timeout(wait).expect("it gives up");
    }

    #[test]
    fn a_follower_whose_store_is_gone_ends() {
        let wait = Duration::from_secs(20);
        let store = Store::serve("127.0.0.1", 0, wait).expect("a port");
        let (tell, told) = channel();
        let own = Store::connect("127.0.0.1", store.port(), wait).expect("a store");
        drop(store);
        let tells = move || tell.send(()).expect("somebody listens");
        start(own, 1, Duration::from_millis(1), Pulse::default(), tells);
        told.recv_timeout(wait).expect("it gives up");
    }
}
