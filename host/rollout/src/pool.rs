//! The streaming pool: keeps prompt groups in flight while the trainer trains.
//!
//! One task owns the admission ledger and every rollout task; the trainer holds its handle. Nothing is
//! detached: with the handle goes the pool, and with the pool go its rollouts.

use crate::batches::{Batch, Book, Feed, Plan, Stream, play};
use crate::episode::Driver;
use crate::error::RolloutError;
use molt_core::ids::GroupId;
use molt_core::ledger::{Ledger, State};
use molt_core::outcome::{Dropped, Group};
use molt_generator::Generator;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// What a pool leaves that is gone: rollouts that are in no batch, and why it failed.
type Ended = (Vec<Dropped>, Result<(), RolloutError>);

/// What the trainer tells the pool.
enum Command {
    /// Weights trained on the oldest batch that was not published yet are in the generator.
    Published,
    /// Say where the pool is.
    Position,
}

/// What the pool tells the trainer, in its order.
enum Told {
    Batch(Batch),
    /// The data has ended; these rollouts are in no batch.
    End(Vec<Dropped>),
    /// Where the pool is, without the batches that it told of before.
    Position(Box<Stream>),
}

/// The trainer's end of a pool.
pub(crate) struct Handle {
    told: UnboundedReceiver<Told>,
    /// What came before a position that was asked for.
    ready: VecDeque<Batch>,
    end: Option<Vec<Dropped>>,
    commands: UnboundedSender<Command>,
    /// None once the pool has failed and its error was taken.
    pool: Option<AbortOnDropHandle<Ended>>,
}

impl Handle {
    /// The next batch, or None or an error at the end, with the dropped rollouts that are in no batch added to
    /// `unshipped`.
    pub(crate) async fn next(&mut self, unshipped: &mut Vec<Dropped>) -> Result<Option<Batch>, RolloutError> {
        if let Some(batch) = self.ready.pop_front() {
            return Ok(Some(batch));
        }
        while self.end.is_none() {
            match self.told.recv().await {
                Some(Told::Batch(batch)) => return Ok(Some(batch)),
                Some(Told::End(dropped)) => self.end = Some(dropped),
                Some(Told::Position(_)) => {}
                None => return self.gone(unshipped).await.map(|()| None),
            }
        }
        unshipped.extend(self.end.iter_mut().flat_map(std::mem::take));
        Ok(None)
    }

    pub(crate) fn published(&self) {
        // A pool that has failed has nothing to do with it.
        let _ = self.commands.send(Command::Published);
    }

    /// Where the pool is, with all batches that the trainer has not taken.
    pub(crate) async fn position(&mut self, unshipped: &mut Vec<Dropped>) -> Result<Stream, RolloutError> {
        let _ = self.commands.send(Command::Position);
        loop {
            match self.told.recv().await {
                Some(Told::Batch(batch)) => self.ready.push_back(batch),
                Some(Told::End(dropped)) => self.end = Some(dropped),
                Some(Told::Position(stream)) => return Ok(Stream { ready: self.ready.clone(), ..*stream }),
                None => {
                    self.gone(unshipped).await?;
                    return Err(RolloutError::Ended);
                }
            }
        }
    }

    /// Takes the error of a pool that is gone.
    async fn gone(&mut self, unshipped: &mut Vec<Dropped>) -> Result<(), RolloutError> {
        let Some(pool) = self.pool.take() else { return Ok(()) };
        let (mut dropped, ended) = pool.await?;
        unshipped.append(&mut dropped);
        ended
    }
}

/// Starts a pool on the current runtime, from where another one was.
pub(crate) fn start<G: Generator>(driver: Arc<Driver<G>>, plan: Plan, mut from: Stream) -> Handle {
    // The ledger bounds it: no more than `queue_size + 1` batches are shipped and not published.
    let (teller, told) = mpsc::unbounded_channel();
    let (commands, orders) = mpsc::unbounded_channel();
    let ready = std::mem::take(&mut from.ready);
    let pool = tokio::spawn(run(driver, plan, from, teller, orders));
    Handle { told, ready, end: None, commands, pool: Some(AbortOnDropHandle::new(pool)) }
}

async fn run<G: Generator>(
    driver: Arc<Driver<G>>,
    plan: Plan,
    from: Stream,
    teller: UnboundedSender<Told>,
    orders: UnboundedReceiver<Command>,
) -> Ended {
    let Stream { ledger, waiting, dropped, census, errors, .. } = from;
    let mut book = Book::new(&plan);
    (book.dropped, book.census, book.guard.window) = (dropped, census, errors);
    let ended = stream(driver, plan, (ledger, waiting), teller, orders, &mut book).await;
    (book.dropped, ended)
}

/// Until the trainer has let go of the handle.
async fn stream<G: Generator>(
    driver: Arc<Driver<G>>,
    plan: Plan,
    (mut ledger, mut waiting): (Ledger, BTreeMap<GroupId, Group>),
    teller: UnboundedSender<Told>,
    mut orders: UnboundedReceiver<Command>,
    book: &mut Book,
) -> Result<(), RolloutError> {
    let mut feed = Feed::new(plan);
    let mut tasks = JoinSet::new();
    for id in ledger.running() {
        tasks.spawn(play(driver.clone(), &mut feed, id));
    }
    let mut ended = false;
    loop {
        while let Some(id) = ledger.admit() {
            tasks.spawn(play(driver.clone(), &mut feed, id));
        }
        if let Some(ids) = ledger.ship() {
            let groups = ids.iter().filter_map(|id| waiting.remove(id)).collect();
            if teller.send(Told::Batch(book.batch(groups))).is_err() {
                return Ok(());
            }
            continue;
        }
        if ledger.state() == State::Done && !ended {
            ended = true;
            if teller.send(Told::End(book.dropped.clone())).is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            Some(group) = tasks.join_next() => {
                let (id, usable) = {
                    let group = group??;
                    (group.id, book.enter(group)?)
                };
                ledger.finish(id, usable.is_some());
                waiting.extend(usable.map(|group| (id, group)));
            }
            order = orders.recv() => match order {
                Some(Command::Published) => ledger.publish(),
                Some(Command::Position) => {
                    let stream = Stream {
                        ledger: ledger.clone(),
                        ready: VecDeque::new(),
                        waiting: waiting.clone(),
                        dropped: book.dropped.clone(),
                        census: book.census.clone(),
                        errors: book.guard.window.clone(),
                    };
                    if teller.send(Told::Position(Box::new(stream))).is_err() {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            }
        }
    }
}
