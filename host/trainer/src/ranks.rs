//! How ranks find each other, and how the leader, rank 0, tells the others what to do.
//!
//! The leader runs the loop: rollouts, metrics, files. The others know the model and the optimiser only; before
//! every collective part of its work the leader sends an [`Order`] that has all they need for it. Orders go through
//! the ranks' store, in which a rank may wait for hours.

use crate::error::TrainError;
use crate::heartbeat::{self, Missing, Pulse};
use crate::loss::{Given, PolicyLoss};
use crate::mesh::{Groups, Mesh};
use crate::step::{PolicyRow, ValueRow};
use molt_core::ids::Token;
use molt_core::rank_env::RankEnv;
use molt_core::settings::Fsdp;
use molt_core::trajectory::Segment;
use molt_model::{Config, Weights};
use molt_torch::{Group, Store, TorchError};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// This process as a rank, connected to the others. Clones are handles to the same.
#[derive(Debug, Clone)]
pub struct Ranks {
    meeting: Rc<Meeting>,
    pub(crate) orders: Rc<RefCell<Orders>>,
}

/// How the ranks find each other for every model, which has groups of its own.
#[derive(Debug)]
struct Meeting {
    store: Store,
    prefix: String,
    place: (usize, usize),
    mesh: Mesh,
    interface: Option<String>,
    is_local: bool,
    timeout: Duration,
    /// Those who agreed. A rank that left it early would disturb those who are not done with it.
    _agreed: Option<Group>,
}

/// What ranks must have alike, by what people call it, in the order in which it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alike(Vec<(String, String)>);

/// Which of the models of a run an order is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Role {
    Policy,
    Reference,
    Critic,
}

/// What the leader has every rank do. All take part in the collectives of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// First of all for each model: where its learning-rate schedule ends.
    Begin { total_steps: u64 },
    /// One step of the policy gradient.
    Policy { rows: Vec<OwnedRow>, loss: PolicyLoss },
    /// The log-probabilities of the action tokens.
    Logprobs(Vec<Segment>),
    /// The values of the action tokens.
    Values(Vec<Segment>),
    /// One step of the critic, whose values are clipped at this.
    Value { rows: Vec<OwnedValueRow>, clip: f64 },
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

/// A [`ValueRow`] of an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OwnedValueRow {
    segment: Segment,
    values: Vec<f32>,
    returns: Vec<f32>,
}

impl From<&ValueRow<'_>> for OwnedValueRow {
    fn from(row: &ValueRow<'_>) -> Self {
        let ValueRow { segment, values, returns } = row.clone();
        Self { segment: segment.clone(), values, returns }
    }
}

impl OwnedValueRow {
    pub(crate) fn borrow(&self) -> ValueRow<'_> {
        let Self { segment, values, returns } = self;
        ValueRow { segment, values: values.clone(), returns: returns.clone() }
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
    pulse: Pulse,
}

/// Bytes of an order under one key: c10d's store closes a connection that sends more than 8 MiB at once.
const PIECE: usize = 4 << 20;

/// An order may be a day away, when the leader waits for slow rollouts.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

impl Meeting {
    fn join(&self, name: &str, place: (usize, usize)) -> Result<Group, TorchError> {
        let device = (self.interface.as_deref(), self.is_local);
        Group::gloo(&self.store, &format!("{}{name}", self.prefix), place, device, self.timeout)
    }
}

impl Ranks {
    /// The groups of a model. All ranks join them together, so by then all have read the order to begin.
    pub(crate) fn groups(&self, role: Role) -> Result<Groups, TrainError> {
        let join = |name: &str, place| self.meeting.join(&format!("{role:?} {name}"), place);
        let all = join("all", self.meeting.place)?;
        Ok(Groups::join(self.meeting.mesh, all, join)?)
    }

    /// Ranks that divide the rows and nothing else, at a store that both they and their orders go through.
    #[cfg(test)]
    pub(crate) fn at(port: u16, place: (usize, usize)) -> Self {
        let timeout = Duration::from_secs(120);
        let store = || Store::connect("127.0.0.1", port, timeout).expect("a store");
        let (prefix, mesh) = ("models/".to_owned(), Mesh::of(place.1));
        let meeting = Meeting {
            store: store(),
            prefix,
            place,
            mesh,
            interface: None,
            is_local: true,
            timeout,
            _agreed: None,
        };
        let orders = Orders::new(store().within("orders/"), place);
        Self { meeting: Rc::new(meeting), orders: Rc::new(RefCell::new(orders)) }
    }

    /// Whether so many ranks can divide the work of this model as the settings say.
    ///
    /// # Errors
    /// If something does not divide.
    pub fn divide(ranks: usize, fsdp: &Fsdp, model: &Config) -> Result<(), TrainError> {
        Mesh::new(ranks, fsdp, model).map(drop)
    }

    /// Connects to the other ranks and makes sure that they train the same: what is `alike`, the `weights` of the policy,
    /// and those of the `others` that it learns from, by their [`Weights::fingerprint`].
    ///
    /// # Errors
    /// If a rank does not come within `fsdp.timeout_s`, or something of it differs.
    pub fn join(
        env: &RankEnv,
        fsdp: &Fsdp,
        mut alike: Alike,
        (weights, others): (&Weights, &[&Weights]),
    ) -> Result<Self, TrainError> {
        let (addr, port) = (env.master_addr.as_str(), env.master_port);
        let timeout = Duration::from_secs(fsdp.timeout_s);
        let serve = env.rank == 0 && !env.store_is_served;
        let store =
            if serve { Store::serve(addr, port, timeout) } else { Store::connect(addr, port, timeout) }?;
        // What ranks that were lost have left in the store is not for those that take their place.
        let prefix = format!("molt/{}/", env.restarts);
        let store = store.within(&prefix);
        let (rank, size) = (env.rank, env.size);
        let connect = || Ok::<_, TorchError>(Store::connect(addr, store.port(), timeout)?.within(&prefix));
        let mut meeting = Meeting {
            store: connect()?,
            prefix: prefix.clone(),
            place: (rank, size),
            mesh: Mesh::new(size, fsdp, weights.network().config())?,
            interface: fsdp.interface.clone(),
            is_local: env.is_local(),
            timeout,
            _agreed: None,
        };
        let group = meeting.join("", meeting.place)?;
        let all = std::iter::once(&weights).chain(others);
        let all: Vec<String> = all.map(|weights| weights.fingerprint()).collect::<Result<_, _>>()?;
        alike.push(("weights".to_owned(), all.join("\n")));
        alike.agree(&store, rank)?;
        // Only when all agree does any go on.
        let agreed = tch::Tensor::from(1_i64);
        let _ = group.all_reduce(&agreed, molt_torch::Reduce::Sum)?.wait()?;
        meeting._agreed = Some(group);
        let beating = connect()?;
        store.set_timeout(PATIENCE);
        let pulse = Pulse::own();
        heartbeat::start(beating, rank, timeout, pulse.clone(), move || {
            // Where the launcher has gone nobody reads it, which must not keep the rank alive.
            let mut said = std::io::stderr().lock();
            let _ = writeln!(said, "error: rank 0 of {size} does not answer any more: rank {rank} ends");
            std::process::exit(1);
        });
        let orders = Rc::new(RefCell::new(Orders { pulse, ..Orders::new(store, (rank, size)) }));
        Ok(Self { meeting: Rc::new(meeting), orders })
    }
}

impl Alike {
    /// So far these settings, as text.
    pub fn new(settings: String) -> Self {
        Self(vec![("settings".to_owned(), settings)])
    }

    /// This too, by a text that says what it is, such as a digest. The leader has all that another rank can see; one that
    /// cannot see a file, since it needs none, leaves it out.
    pub fn push(&mut self, (what, is): (String, String)) {
        self.0.push((what, is));
    }

    /// Compares with what the leader has.
    fn agree(&self, store: &Store, rank: usize) -> Result<(), TrainError> {
        let unreadable = |error: postcard::Error| TrainError::Order(error.to_string());
        if rank == 0 {
            return Ok(store.set("alike", &postcard::to_allocvec(&self.0).map_err(unreadable)?)?);
        }
        let text = store.get("alike")?;
        let leader: BTreeMap<&str, &str> =
            postcard::from_bytes::<Vec<_>>(&text).map_err(unreadable)?.into_iter().collect();
        let other =
            |(what, is): &&(String, String)| leader.get(&**what).is_some_and(|leader| *leader != is.as_str());
        self.0
            .iter()
            .find(other)
            .map_or(Ok(()), |(what, _)| Err(TrainError::RanksDiffer { rank, what: what.clone() }))
    }
}

impl Orders {
    fn new(store: Store, (rank, size): (usize, usize)) -> Self {
        Self { store, next: 0, sent: VecDeque::new(), rank, size, pulse: Pulse::default() }
    }

    /// Sends an order for one of the models to all other ranks.
    pub(crate) fn send(&mut self, role: Role, order: &Order) -> Result<(), TrainError> {
        let text =
            postcard::to_allocvec(&(role, order)).map_err(|error| TrainError::Order(error.to_string()))?;
        let pieces: Vec<&[u8]> = text.chunks(PIECE).collect();
        for (nth, piece) in pieces.iter().enumerate() {
            self.store.set(&piece_key(self.next, nth), piece)?;
        }
        self.store.set(&key(self.next), &(pieces.len() as u64).to_le_bytes())?;
        self.sent.push_back(pieces.len());
        // A collective of one of the two orders before, or groups that all have joined, show that every rank has read the
        // one before those: of all only `Balance` is without.
        if let Some(done) = self.next.checked_sub(3) {
            self.store.delete(&key(done))?;
            for nth in 0..self.sent.pop_front().unwrap_or(0) {
                self.store.delete(&piece_key(done, nth))?;
            }
        }
        self.next += 1;
        Ok(())
    }

    /// An error of a collective, with the ranks that it waited for if they can be told.
    pub(crate) fn explained(&self, error: TrainError) -> TrainError {
        let TrainError::Torch(source) = error else { return error };
        let size = self.size;
        match self.pulse.missing(&self.store, self.rank, size) {
            None => TrainError::Torch(source),
            Some(Missing::Silent(ranks)) => TrainError::RanksSilent { ranks, size, source },
            Some(Missing::Hang { ranks, last }) => {
                TrainError::RanksHang { ranks, size, last, source: Box::new(source) }
            }
        }
    }

    /// Waits for the next order.
    pub(crate) fn receive(&mut self) -> Result<(Role, Order), TrainError> {
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
    fn what_both_can_see_must_be_alike() {
        let wait = Duration::from_secs(20);
        let store = Store::serve("127.0.0.1", 0, wait).expect("a port");
        let alike = |seen: &[(&str, &str)]| {
            let mut alike = Alike::new("a = 1".to_owned());
            seen.iter().for_each(|(what, is)| alike.push(((*what).to_owned(), (*is).to_owned())));
            alike
        };
        alike(&[("data", "d1"), ("reward length", "r1")]).agree(&store, 0).expect("it leads");
        for (seen, differs) in [
            (&[("data", "d1"), ("reward length", "r1")][..], None),
            (&[("reward length", "r1")], None),
            (&[("interpreter python", "p1")], None),
            (&[("data", "d2"), ("reward length", "r2")], Some("data")),
            (&[("data", "d1"), ("reward length", "r2")], Some("reward length")),
        ] {
            let found = match alike(seen).agree(&store, 3) {
                Err(TrainError::RanksDiffer { rank: 3, what }) => Some(what),
                found => found.map(|()| None).expect("nothing else goes wrong"),
            };
            assert_eq!(found.as_deref(), differs);
        }
    }

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
            leader
                .send(Role::Policy, &Order::Supervised(vec![(row.clone(), vec![passes])]))
                .expect("it is sent");
            let (Role::Policy, Order::Supervised(rows)) = follower.receive().expect("it arrives") else {
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
