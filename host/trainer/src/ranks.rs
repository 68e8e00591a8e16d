//! How ranks find each other, and how the leader, rank 0, tells the others what to do.
//!
//! The leader runs the loop: rollouts, metrics, files. The others know the model and the optimiser only; before
//! every collective part of its work the leader sends an [`Order`] that has all they need for it. Orders go through
//! the ranks' store, in which a rank may wait for hours.

use crate::error::TrainError;
use crate::heartbeat;
use crate::loss::{Given, PolicyLoss};
use crate::mesh::{Groups, Mesh};
use crate::step::PolicyRow;
use molt_core::ids::Token;
use molt_core::rank_env::RankEnv;
use molt_core::settings::Fsdp;
use molt_core::trajectory::Segment;
use molt_model::{Config, Weights};
use molt_torch::{Group, Store};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// This process as a rank, connected to the others.
#[derive(Debug)]
pub struct Ranks {
    pub(crate) groups: Groups,
    pub(crate) orders: Orders,
}

/// What the leader has every rank do. All take part in the collectives of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// First of all: where the learning-rate schedule ends.
    Begin { total_steps: u64 },
    /// One step of the policy gradient.
    Policy { rows: Vec<OwnedRow>, loss: PolicyLoss },
    /// The log-probabilities of the action tokens.
    Logprobs(Vec<Segment>),
    /// One step of maximum likelihood: tokens, and the positions of those that are learnt.
    Supervised(Vec<(Vec<Token>, Vec<usize>)>),
    /// The loss of rows that are not learnt, as those of a supervised step.
    Loss(Vec<(Vec<Token>, Vec<usize>)>),
    /// From now on the load-balancing loss has this weight.
    Balance { coefficient: f64 },
    /// Gather all parameters.
    Parameters,
    /// Write this rank's part of a checkpoint.
    Save { dir: PathBuf },
    /// Go on from the parts of a checkpoint, which ranks so laid out wrote after so many updates.
    Restore { dir: PathBuf, mesh: Mesh, steps: u64 },
    /// The run is over.
    End,
}

/// A [`PolicyRow`] of an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OwnedRow {
    segment: Segment,
    advantages: Vec<f32>,
    old: Option<Vec<f32>>,
    reference: Option<Vec<f32>>,
    given: Option<Vec<Given>>,
}

impl From<&PolicyRow<'_>> for OwnedRow {
    fn from(row: &PolicyRow<'_>) -> Self {
        let PolicyRow { segment, advantages, old, reference, given } = row.clone();
        Self { segment: segment.clone(), advantages, old, reference, given }
    }
}

impl OwnedRow {
    pub(crate) fn borrow(&self) -> PolicyRow<'_> {
        let Self { segment, advantages, old, reference, given } = self;
        PolicyRow {
            segment,
            advantages: advantages.clone(),
            old: old.clone(),
            reference: reference.clone(),
            given: given.clone(),
        }
    }
}

/// The orders of one run, each under its number.
#[derive(Debug)]
pub(crate) struct Orders {
    store: Store,
    next: u64,
    /// In how many pieces each of the last orders was sent.
    sent: VecDeque<usize>,
    rank: usize,
    size: usize,
}

/// Bytes of an order under one key: c10d's store closes a connection that sends more than 8 MiB at once.
const PIECE: usize = 4 << 20;

/// An order may be a day away, when the leader waits for slow rollouts.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

impl Ranks {
    /// Whether so many ranks can divide the work of this model as the settings say.
    ///
    /// # Errors
    /// If something does not divide.
    pub fn divide(ranks: usize, fsdp: &Fsdp, model: &Config) -> Result<(), TrainError> {
        Mesh::new(ranks, fsdp, model).map(drop)
    }

    /// Connects to the other ranks and makes sure that they train the same: `settings`, as text, and `weights`.
    ///
    /// # Errors
    /// If a rank does not come within `fsdp.timeout_s`, or its settings or weights are others.
    pub fn join(env: &RankEnv, fsdp: &Fsdp, settings: &str, weights: &Weights) -> Result<Self, TrainError> {
        let (addr, port) = (env.master_addr.as_str(), env.master_port);
        let timeout = Duration::from_secs(fsdp.timeout_s);
        let serve = env.rank == 0 && !env.store_is_served;
        let store =
            if serve { Store::serve(addr, port, timeout) } else { Store::connect(addr, port, timeout) }?;
        // What ranks that were lost have left in the store is not for those that take their place.
        let prefix = format!("molt/{}/", env.restarts);
        let store = store.within(&prefix);
        let device = (fsdp.interface.as_deref(), env.is_local());
        let mesh = Mesh::new(env.size, fsdp, weights.network().config())?;
        let place = (env.rank, env.size);
        let group = Group::gloo(&store, &prefix, place, device, timeout)?;
        let own = [settings.to_owned(), weights.fingerprint()?];
        for (what, own) in ["settings", "weights"].into_iter().zip(own) {
            if env.rank == 0 {
                store.set(what, own.as_bytes())?;
            } else if store.get(what)? != own.as_bytes() {
                return Err(TrainError::RanksDiffer { rank: env.rank, what });
            }
        }
        // Only when all agree does any go on.
        let agreed = tch::Tensor::from(1_i64);
        let _ = group.all_reduce(&agreed, molt_torch::Reduce::Sum)?.wait()?;
        let groups = Groups::join(mesh, group, |name, place| {
            Group::gloo(&store, &format!("{prefix}{name}"), place, device, timeout)
        })?;
        store.set_timeout(PATIENCE);
        let (rank, size) = (env.rank, env.size);
        heartbeat::start(
            Store::connect(addr, store.port(), timeout)?.within(&prefix),
            rank,
            timeout,
            move || {
                // Where the launcher has gone nobody reads it, which must not keep the rank alive.
                let mut said = std::io::stderr().lock();
                let _ = writeln!(said, "error: rank 0 of {size} does not answer any more: rank {rank} ends");
                std::process::exit(1);
            },
        );
        Ok(Self { groups, orders: Orders::new(store, (rank, size)) })
    }
}

impl Orders {
    pub(crate) fn new(store: Store, (rank, size): (usize, usize)) -> Self {
        Self { store, next: 0, sent: VecDeque::new(), rank, size }
    }

    /// Sends an order to all other ranks.
    pub(crate) fn send(&mut self, order: &Order) -> Result<(), TrainError> {
        let text = postcard::to_allocvec(order).map_err(|error| TrainError::Order(error.to_string()))?;
        let pieces: Vec<&[u8]> = text.chunks(PIECE).collect();
        for (nth, piece) in pieces.iter().enumerate() {
            self.store.set(&piece_key(self.next, nth), piece)?;
        }
        self.store.set(&key(self.next), &(pieces.len() as u64).to_le_bytes())?;
        self.sent.push_back(pieces.len());
        // A collective of one of the two orders before shows that every rank has read the one before those: no more
        // than two in a row, `Begin` and `Balance`, are without.
        if let Some(done) = self.next.checked_sub(3) {
            self.store.delete(&key(done))?;
            for nth in 0..self.sent.pop_front().unwrap_or(0) {
                self.store.delete(&piece_key(done, nth))?;
            }
        }
        self.next += 1;
        Ok(())
    }

    /// An error of a collective, with the ranks that do not answer if there are any.
    pub(crate) fn explained(&self, error: TrainError) -> TrainError {
        let TrainError::Torch(source) = error else { return error };
        let ranks = heartbeat::silent(&self.store, self.rank, self.size);
        match ranks.is_empty() {
            true => TrainError::Torch(source),
            false => TrainError::RanksSilent { ranks, size: self.size, source },
        }
    }

    /// Waits for the next order.
    pub(crate) fn receive(&mut self) -> Result<Order, TrainError> {
        let count = self.store.get(&key(self.next))?;
        let count = count.try_into().map(u64::from_le_bytes);
        let count = count.map_err(|_| TrainError::Order("it has no number of pieces".to_owned()))?;
        let mut text = Vec::new();
        for nth in 0..count {
            text.extend(self.store.get(&piece_key(self.next, nth as usize))?);
        }
        self.next += 1;
        postcard::from_bytes(&text).map_err(|error| TrainError::Order(error.to_string()))
    }
}

fn key(number: u64) -> String {
    format!("order/{number}")
}

fn piece_key(number: u64, nth: usize) -> String {
    format!("order/{number}/{nth}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_any_size_arrive_and_are_forgotten() {
        let wait = Duration::from_secs(20);
        let store = Store::serve("127.0.0.1", 0, wait).expect("a port");
        let port = store.port();
        let other = Store::connect("127.0.0.1", port, wait).expect("a store");
        let mut leader = Orders::new(store, (0, 2));
        let mut follower = Orders::new(other, (1, 2));
        // Eleven megabytes, more than the store takes at once.
        let row: Vec<Token> = (0..4_000_000).map(|n| n % 100_000).collect();
        for passes in 0..4 {
            leader.send(&Order::Supervised(vec![(row.clone(), vec![passes])])).expect("it is sent");
            let Order::Supervised(rows) = follower.receive().expect("it arrives") else {
                panic!("another order")
            };
            assert!(rows == [(row.clone(), vec![passes])]);
        }
        leader.store.set_timeout(Duration::from_millis(100));
        for key in [key(0), piece_key(0, 0), piece_key(0, 2)] {
            leader.store.get(&key).expect_err("it is forgotten");
        }
    }
}
