//! How ranks find each other, and how the leader, rank 0, tells the others what to do.
//!
//! The leader runs the loop: rollouts, metrics, files. The others know the model and the optimiser only; before
//! every collective part of its work the leader sends an [`Order`] that has all they need for it. Orders go through
//! the ranks' store, in which a rank may wait for hours.

use crate::error::TrainError;
use crate::heartbeat;
use molt_core::ids::Token;
use molt_core::rank_env::RankEnv;
use molt_core::settings::Fsdp;
use molt_core::trajectory::Segment;
use molt_model::Weights;
use molt_torch::{Group, Store};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// This process as a rank, connected to the others.
#[derive(Debug)]
pub struct Ranks {
    pub(crate) group: Group,
    pub(crate) orders: Orders,
}

/// What the leader has every rank do. All take part in the collectives of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// First of all: where the learning-rate schedule ends.
    Begin { total_steps: u64 },
    /// One step of the policy gradient: segments, and the advantages of their action tokens.
    Policy(Vec<(Segment, Vec<f32>)>),
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
    /// Go on from the parts of a checkpoint, which so many ranks wrote after so many updates.
    Restore { dir: PathBuf, ranks: usize, steps: u64 },
    /// The run is over.
    End,
}

/// The orders of one run, each under its number.
#[derive(Debug)]
pub(crate) struct Orders {
    store: Store,
    next: u64,
    rank: usize,
    size: usize,
}

/// An order may be a day away, when the leader waits for slow rollouts.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

impl Ranks {
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
        let group = Group::gloo(&store, &prefix, (env.rank, env.size), device, timeout)?;
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
        store.set_timeout(PATIENCE);
        let (rank, size) = (env.rank, env.size);
        heartbeat::start(
            Store::connect(addr, store.port(), timeout)?.within(&prefix),
            rank,
            timeout,
            move || {
                eprintln!("error: rank 0 of {size} does not answer any more: rank {rank} ends");
                std::process::exit(1);
            },
        );
        Ok(Self { group, orders: Orders { store, next: 0, rank, size } })
    }
}

impl Orders {
    /// Sends an order to all other ranks.
    pub(crate) fn send(&mut self, order: &Order) -> Result<(), TrainError> {
        let text = postcard::to_allocvec(order).map_err(|error| TrainError::Order(error.to_string()))?;
        self.store.set(&key(self.next), &text)?;
        // Every rank has taken part in what the order before the last one was for.
        if let Some(done) = self.next.checked_sub(2) {
            self.store.delete(&key(done))?;
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
        let text = self.store.get(&key(self.next))?;
        self.next += 1;
        postcard::from_bytes(&text).map_err(|error| TrainError::Order(error.to_string()))
    }
}

fn key(number: u64) -> String {
    format!("order/{number}")
}
