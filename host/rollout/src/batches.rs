//! Training batches, made synchronously or by the streaming pool.

use crate::episode::Driver;
use crate::error::{ErrorGuard, RolloutError};
use crate::feed::{Buckets, Course, Feed};
use crate::filter::{Census, GroupFilter};
use crate::pool;
use crate::prompts::Prompts;
use molt_core::ids::{GroupId, WeightVersion};
use molt_core::ledger::Ledger;
use molt_core::outcome::{DropReason, Dropped, Group, Outcome, by_reason};
use molt_core::settings::Curriculum;
use molt_core::window::{ErrorLimit, ErrorWindow};
use molt_generator::Generator;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Which prompts to roll out, and what to make of them.
#[derive(Debug, Clone)]
pub struct Plan {
    pub prompts: Arc<Prompts>,
    /// Passes over the prompts.
    pub passes: u64,
    /// Shuffle the prompts anew in every pass.
    pub shuffle: bool,
    /// Which prompts a pass has, by what became of them before.
    pub curriculum: Option<Curriculum>,
    /// The run's seed.
    pub seed: u64,
    /// Groups per batch, at least 1.
    pub batch_size: usize,
    /// Rollouts per group.
    pub samples: u32,
    /// A group with fewer finished rollouts is given up: dropped whole, counted, and replaced by a fresh prompt.
    /// 2 for an estimator that compares the rollouts of a group, else 1.
    pub min_finished: u32,
    /// Which of the other groups are given up too.
    pub filter: Option<GroupFilter>,
    /// When failing rollouts end the run.
    pub errors: ErrorLimit,
}

impl Plan {
    /// Groups of the whole run.
    pub fn groups(&self) -> u64 {
        self.passes.saturating_mul(self.prompts.rows.len() as u64)
    }
}

/// One batch to train on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Usable groups by ascending id: `batch_size` of them, fewer only in the last batch, never none.
    pub groups: Vec<Group>,
    /// Every rollout dropped since the last batch, those of groups given up included, by ascending id.
    pub dropped: Vec<Dropped>,
    /// What the groups that could be trained were like, before some were filtered.
    pub census: Census,
    /// How many prompts are easy and hard when the batch is closed, if there is a curriculum.
    pub buckets: Option<Buckets>,
}

/// Where a source of batches is between two steps of the trainer: all that another one needs to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Position {
    Sync {
        /// The next group to dispatch.
        next: u64,
        errors: ErrorWindow,
        course: Option<Course>,
    },
    Streaming(Box<Stream>),
}

/// Where a streaming source is. Groups in flight are rolled out again from their beginning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    pub(crate) ledger: Ledger,
    /// Batches that the trainer has not taken yet.
    pub(crate) ready: VecDeque<Batch>,
    /// Usable groups that are in no batch yet.
    pub(crate) waiting: BTreeMap<GroupId, Group>,
    /// Rollouts dropped since the last batch.
    pub(crate) dropped: Vec<Dropped>,
    pub(crate) census: Census,
    pub(crate) errors: ErrorWindow,
    pub(crate) course: Option<Course>,
}

/// Where the trainer gets its batches from. Dropping it cancels every rollout in flight.
pub struct Batches<G: Generator> {
    source: Source<G>,
    unshipped: Vec<Dropped>,
}

enum Source<G: Generator> {
    Sync(Box<Sync<G>>),
    Streaming(pool::Handle),
}

impl<G: Generator> Batches<G> {
    /// Strictly on-policy: a batch is generated when the trainer asks for it, and nothing meanwhile.
    pub fn sync(driver: Arc<Driver<G>>, plan: Plan) -> Self {
        let book = Book::new(&plan);
        Self::from(Source::Sync(Box::new(Sync::new(driver, Feed::new(plan), 0, book))))
    }

    /// Generation runs ahead of the trainer by at most `queue_size` batches. With 0, batches equal those of
    /// [`Batches::sync`]. Must be called within a tokio runtime, which the rollouts run on.
    pub fn streaming(driver: Arc<Driver<G>>, plan: Plan, queue_size: usize) -> Self {
        let stream = Stream {
            ledger: Ledger::new(plan.groups(), plan.batch_size, queue_size),
            ready: VecDeque::new(),
            waiting: BTreeMap::new(),
            dropped: Vec::new(),
            census: Census::default(),
            errors: Book::new(&plan).guard.window,
            course: None,
        };
        Self::from(Source::Streaming(pool::start(driver, plan, stream)))
    }

    /// Goes on from a [`Position`] of a source with the same prompts, order and batch size: every group that was in
    /// no batch is in one to come, and no other. Must be called within a tokio runtime.
    pub fn resume(driver: Arc<Driver<G>>, plan: Plan, queue_size: usize, position: Position) -> Self {
        Self::from(match position {
            Position::Sync { next, errors, course } => {
                let mut book = Book::new(&plan);
                book.guard.window = errors;
                Source::Sync(Box::new(Sync::new(driver, Feed::resume(plan, course, next), next, book)))
            }
            Position::Streaming(stream) => {
                let ledger = stream.ledger.resumed(plan.groups(), queue_size);
                Source::Streaming(pool::start(driver, plan, Stream { ledger, ..*stream }))
            }
        })
    }

    fn from(source: Source<G>) -> Self {
        Self { source, unshipped: Vec::new() }
    }

    /// Where the source is. To be asked between [`Batches::published`] of a batch and the next one.
    ///
    /// # Errors
    /// If the source has ended by an error, which [`Batches::next`] would give.
    pub async fn position(&mut self) -> Result<Position, RolloutError> {
        match &mut self.source {
            Source::Sync(source) => Ok(source.position.clone()),
            Source::Streaming(handle) => {
                Ok(Position::Streaming(Box::new(handle.position(&mut self.unshipped).await?)))
            }
        }
    }

    /// The next batch; None when the data has ended. A streaming source waits as long as `queue_size + 1`
    /// batches were given out and [`Batches::published`] was called for none of them.
    ///
    /// # Errors
    /// If the generator stopped, too many rollouts failed in plugins, or too many groups were filtered.
    pub async fn next(&mut self) -> Result<Option<Batch>, RolloutError> {
        match &mut self.source {
            Source::Sync(source) => {
                let batch = source.next().await;
                if !matches!(batch, Ok(Some(_))) {
                    self.unshipped.append(&mut source.book.dropped);
                }
                batch
            }
            Source::Streaming(handle) => handle.next(&mut self.unshipped).await,
        }
    }

    /// Weights trained on the oldest batch that was not published yet are in the generator: frees its slots.
    pub fn published(&self, version: WeightVersion) {
        tracing::debug!(%version, "weights published");
        if let Source::Streaming(handle) = &self.source {
            handle.published();
        }
    }

    /// Rollouts that were dropped after the last batch, so that they are in none. Complete once
    /// [`Batches::next`] has returned None or an error.
    pub fn take_dropped(&mut self) -> Vec<Dropped> {
        std::mem::take(&mut self.unshipped)
    }
}

/// The plain loop.
struct Sync<G: Generator> {
    driver: Arc<Driver<G>>,
    feed: Feed,
    next: u64,
    book: Book,
    /// Where it was after the last batch: one that was not finished is generated again.
    position: Position,
}

impl<G: Generator> Sync<G> {
    fn new(driver: Arc<Driver<G>>, feed: Feed, next: u64, book: Book) -> Self {
        let position = Position::Sync { next, errors: book.guard.window.clone(), course: feed.course() };
        Self { driver, feed, next, book, position }
    }

    async fn next(&mut self) -> Result<Option<Batch>, RolloutError> {
        let mut usable = Vec::new();
        while usable.len() < self.feed.plan.batch_size && self.next < self.feed.plan.groups() {
            let missing = (self.feed.plan.batch_size - usable.len()) as u64;
            let until = self.next.saturating_add(missing).min(self.feed.plan.groups());
            let mut tasks = JoinSet::new();
            for id in self.next..until {
                tasks.spawn(play(self.driver.clone(), &mut self.feed, GroupId(id)));
            }
            self.next = until;
            let mut groups = Vec::new();
            while let Some(group) = tasks.join_next().await {
                groups.push(group??);
            }
            groups.sort_by_key(|group| group.id);
            for group in groups {
                self.feed.ended(&group);
                usable.extend(self.book.enter(group)?);
            }
        }
        let errors = self.book.guard.window.clone();
        self.position = Position::Sync { next: self.next, errors, course: self.feed.course() };
        Ok((!usable.is_empty()).then(|| self.book.batch(usable, self.feed.buckets())))
    }
}

/// One group on its own: a future that holds what it needs.
pub(crate) fn play<G: Generator>(
    driver: Arc<Driver<G>>,
    feed: &mut Feed,
    id: GroupId,
) -> impl Future<Output = Result<Group, RolloutError>> + Send + use<G> {
    let (task, samples) = (feed.task(id), feed.plan.samples);
    async move { driver.group(id, &task, 0..samples).await }
}

/// Keeps account of every group that ended.
pub(crate) struct Book {
    min_finished: usize,
    filter: Option<GroupFilter>,
    pub(crate) guard: ErrorGuard,
    /// Rollouts dropped since the last batch.
    pub(crate) dropped: Vec<Dropped>,
    /// Groups since the last batch.
    pub(crate) census: Census,
    /// Groups in a row that were unusable.
    unusable: usize,
    /// So many of them may be: all prompts once. Of a few prompts, as many as failures are counted over, so that no single bad
    /// moment ends the run.
    most_unusable: usize,
}

impl Book {
    pub(crate) fn new(plan: &Plan) -> Self {
        let planned = plan.groups().saturating_mul(u64::from(plan.samples));
        Self {
            min_finished: plan.min_finished.max(1) as usize,
            filter: plan.filter,
            guard: ErrorGuard::new(plan.errors, planned),
            dropped: Vec::new(),
            census: Census::default(),
            unusable: 0,
            most_unusable: plan.prompts.rows.len().max(plan.errors.window),
        }
    }

    /// Takes in a group that ended, and gives it back if it is usable.
    pub(crate) fn enter(&mut self, group: Group) -> Result<Option<Group>, RolloutError> {
        self.dropped.extend(group.outcomes.iter().filter_map(dropped).cloned());
        for outcome in &group.outcomes {
            self.guard.enter(outcome)?;
        }
        let finished = group.finished().count();
        if finished < self.min_finished {
            let detail = format!("{finished} finished rollouts, and {} are needed", self.min_finished);
            self.give_up(&group, &DropReason::GroupUnusable, &detail);
            return self.barren();
        }
        self.unusable = 0;
        self.census.enter(&group);
        if let Some(filter) = self.filter
            && let Some(detail) = filter.refuses(&group)
        {
            self.give_up(&group, &DropReason::Filtered, &detail);
            self.census.filtered += 1;
            filter.bound(self.census.filtered)?;
            return Ok(None);
        }
        Ok(Some(group))
    }

    /// One more group that was unusable. More of them in a row than there are prompts end the run: one whose prompts are all
    /// too long would go on to its last pass.
    fn barren(&mut self) -> Result<Option<Group>, RolloutError> {
        self.unusable += 1;
        if self.unusable <= self.most_unusable {
            return Ok(None);
        }
        Err(RolloutError::Barren { groups: self.unusable, dropped: by_reason(&self.dropped) })
    }

    /// Drops what is left of a group.
    fn give_up(&mut self, group: &Group, reason: &DropReason, detail: &str) {
        self.dropped.extend(group.finished().map(|trajectory| Dropped {
            rollout: trajectory.rollout,
            reason: reason.clone(),
            detail: detail.to_owned(),
        }));
    }

    /// Closes the account of a batch of usable groups, which come by ascending id.
    pub(crate) fn batch(&mut self, groups: Vec<Group>, buckets: Option<Buckets>) -> Batch {
        let mut dropped = std::mem::take(&mut self.dropped);
        dropped.sort_by_key(|dropped| dropped.rollout);
        let census = std::mem::take(&mut self.census);
        Batch { groups, dropped, census, buckets }
    }
}

fn dropped(outcome: &Outcome) -> Option<&Dropped> {
    match outcome {
        Outcome::Dropped(dropped) => Some(dropped),
        Outcome::Finished(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::tests::finished;
    use molt_core::chat::Task;
    use molt_core::ids::RolloutId;
    use molt_core::settings::FilterBy;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// Members that are solved, not solved, or dropped.
    fn group(id: u64, members: &[Option<bool>]) -> Group {
        let task = Task { id: id.to_string(), messages: Vec::new(), label: None, fields: Vec::new() };
        let outcome = |(member, solved): (u32, &Option<bool>)| {
            let rollout = RolloutId { group: GroupId(id), member };
            let Some(solved) = *solved else {
                return Outcome::Dropped(Dropped {
                    rollout,
                    reason: DropReason::NoActionTokens,
                    detail: String::new(),
                });
            };
            finished(rollout, &task, solved)
        };
        let outcomes = (0..).zip(members).map(outcome).collect();
        Group { id: GroupId(id), task: task.clone(), outcomes }
    }

    /// A usable group among them, or one that is filtered, begins the count anew.
    #[test]
    fn unusable_groups_are_counted_in_a_row() {
        let filter = GroupFilter { by: FilterBy::PassRate, low: 0.0, high: 1.0, lowest: 0.0, max_refills: 9 };
        for between in [[Some(true), Some(false)], [Some(true), Some(true)]] {
            let mut book = Book {
                min_finished: 1,
                filter: Some(filter),
                guard: ErrorGuard::new(ErrorLimit { max_rate: 1.0, window: 16 }, 60),
                dropped: Vec::new(),
                census: Census::default(),
                unusable: 0,
                most_unusable: 2,
            };
            let unusable = [None, None];
            for members in [unusable, unusable, between, unusable, unusable] {
                book.enter(group(1, &members)).expect("there are two in a row at most");
            }
            let error = book.enter(group(6, &unusable)).expect_err("the third in a row");
            assert!(matches!(error, RolloutError::Barren { groups: 3, .. }), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(20), failure_persistence: None, ..ProptestConfig::default()
        })]

        /// Whatever becomes of groups, each of their rollouts is finished in a batch, or dropped, and never both: so many as
        /// there are groups, times the rollouts of each.
        #[test]
        fn every_rollout_is_finished_or_dropped_once(
            groups in prop::collection::vec(prop::collection::vec(prop::option::of(any::<bool>()), 5), 0..12),
            min_finished in 1_usize..4, is_filtered: bool, at in 0_usize..12,
        ) {
            let filter = GroupFilter {
                by: FilterBy::PassRate, low: 0.0, high: 1.0, lowest: 0.0, max_refills: usize::MAX,
            };
            let limit = ErrorLimit { max_rate: 1.0, window: 16 };
            let mut book = Book {
                min_finished,
                filter: is_filtered.then_some(filter),
                guard: ErrorGuard::new(limit, 60),
                dropped: Vec::new(),
                census: Census::default(),
                unusable: 0,
                most_unusable: usize::MAX,
            };
            // In two batches, whichever groups are in each.
            let mut batches = Vec::new();
            let mut usable = Vec::new();
            for (id, members) in (0..).zip(&groups) {
                if id == at as u64 {
                    batches.push(book.batch(std::mem::take(&mut usable), None));
                }
                usable.extend(book.enter(group(id, members)).expect("no share of failures is too large"));
            }
            batches.push(book.batch(usable, None));
            let finished = batches.iter().flat_map(|batch| &batch.groups).flat_map(Group::finished);
            let finished = finished.map(|trajectory| trajectory.rollout);
            let dropped = batches.iter().flat_map(|batch| &batch.dropped).map(|dropped| dropped.rollout);
            let mut all: Vec<RolloutId> = finished.chain(dropped).collect();
            all.sort_unstable();
            let member = |nth: u64| RolloutId { group: GroupId(nth / 5), member: (nth % 5) as u32 };
            prop_assert_eq!(all, (0..5 * groups.len() as u64).map(member).collect::<Vec<_>>());
            let entered: usize = batches.iter().map(|batch| batch.census.groups).sum();
            let kept: usize = batches.iter().map(|batch| batch.groups.len()).sum();
            let filtered: usize = batches.iter().map(|batch| batch.census.filtered).sum();
            prop_assert_eq!(entered, kept + filtered);
        }
    }
}
