//! The streaming pool: keeps prompt groups in flight while the trainer trains.
//!
//! One task owns the admission ledger and every rollout task; the trainer holds its handle. Nothing is
//! detached: with the handle goes the pool, and with the pool go its rollouts.

use crate::batches::{Batch, Book, Feed, Plan, play};
use crate::episode::Driver;
use crate::error::RolloutError;
use molt_core::ids::GroupId;
use molt_core::ledger::{Ledger, State};
use molt_core::outcome::{Dropped, Group};
use molt_generator::Generator;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// The end of a pool: the rollouts that are in no batch, and whether the data ended.
type Ended = (Vec<Dropped>, Result<(), RolloutError>);

/// The trainer's end of a pool.
pub(crate) struct Handle {
    batches: mpsc::UnboundedReceiver<Batch>,
    /// Batches published so far.
    published: watch::Sender<u64>,
    /// None once the pool has ended and its result was taken.
    pool: Option<AbortOnDropHandle<Ended>>,
}

impl Handle {
    /// The next batch, or None or an error at the end, with the dropped rollouts that are in no batch added to
    /// `unshipped`.
    pub(crate) async fn next(&mut self, unshipped: &mut Vec<Dropped>) -> Result<Option<Batch>, RolloutError> {
        if let Some(batch) = self.batches.recv().await {
            return Ok(Some(batch));
        }
        if let Some(pool) = self.pool.take() {
            let (mut dropped, ended) = pool.await?;
            unshipped.append(&mut dropped);
            ended?;
        }
        Ok(None)
    }

    pub(crate) fn published(&self) {
        self.published.send_modify(|count| *count += 1);
    }
}

/// Starts a pool on the current runtime.
pub(crate) fn start<G: Generator>(driver: Arc<Driver<G>>, plan: Plan, queue_size: usize) -> Handle {
    // The ledger bounds it: no more than `queue_size + 1` batches are shipped and not published.
    let (sender, batches) = mpsc::unbounded_channel();
    let (published, updates) = watch::channel(0);
    let pool = tokio::spawn(run(driver, plan, queue_size, sender, updates));
    Handle { batches, published, pool: Some(AbortOnDropHandle::new(pool)) }
}

async fn run<G: Generator>(
    driver: Arc<Driver<G>>,
    plan: Plan,
    queue_size: usize,
    batches: mpsc::UnboundedSender<Batch>,
    updates: watch::Receiver<u64>,
) -> Ended {
    let mut book = Book::new(&plan);
    let ended = stream(driver, plan, queue_size, batches, updates, &mut book).await;
    (book.dropped, ended)
}

async fn stream<G: Generator>(
    driver: Arc<Driver<G>>,
    plan: Plan,
    queue_size: usize,
    batches: mpsc::UnboundedSender<Batch>,
    mut updates: watch::Receiver<u64>,
    book: &mut Book,
) -> Result<(), RolloutError> {
    let mut ledger = Ledger::new(plan.groups(), plan.batch_size, queue_size);
    let mut feed = Feed::new(plan);
    let mut tasks = JoinSet::new();
    let mut waiting: BTreeMap<GroupId, Group> = BTreeMap::new();
    let mut seen = 0;
    loop {
        while let Some(id) = ledger.admit() {
            tasks.spawn(play(driver.clone(), &mut feed, id));
        }
        if let Some(ids) = ledger.ship() {
            let groups = ids.iter().filter_map(|id| waiting.remove(id)).collect();
            if batches.send(book.batch(groups)).is_err() {
                break;
            }
            continue;
        }
        if ledger.state() == State::Done {
            break;
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
            changed = updates.changed() => {
                if changed.is_err() {
                    break;
                }
                let count = *updates.borrow_and_update();
                for _ in seen..count {
                    ledger.publish();
                }
                seen = count;
            }
        }
    }
    Ok(())
}
