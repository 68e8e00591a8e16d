//! Admission by slots: which prompt may start, and which finished groups make the next training batch.
//!
//! A slot is held from the admission of a group until the weights trained on it are published, or until
//! the group is dropped. With `(queue_size + 1) * batch_size` slots, one batch trains while at most
//! `queue_size` batches are generated ahead of it.
//!
//! Groups ship in the order in which they finish, so a slow group is overtaken; but never so often that it
//! would be trained more than `queue_size` updates after its admission. Each token is sampled after its
//! group is admitted, so no token is older than that either.

use crate::ids::GroupId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Where a run is in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing was admitted yet.
    Fresh,
    /// Prompts are left.
    Streaming,
    /// No prompt is left, but there are groups that run or wait to be shipped.
    Draining,
    /// Every prompt was shipped or dropped.
    Done,
}

/// The admission ledger. Its state follows from its counts, so the two cannot disagree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    prompts: u64,
    batch_size: usize,
    queue_size: usize,
    /// Prompts admitted so far, which is the next group's id.
    admitted: u64,
    /// Groups in flight, each with the number of updates published before its admission.
    running: BTreeMap<GroupId, u64>,
    /// Usable groups that wait, in the order in which they finished.
    finished: Vec<(GroupId, u64)>,
    /// Sizes of the batches that were shipped and are not published.
    training: VecDeque<usize>,
    /// Batches shipped so far.
    shipped: u64,
    /// Updates published so far.
    published: u64,
}

impl Ledger {
    /// A ledger for `prompts` groups, all passes together.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn new(prompts: u64, batch_size: usize, queue_size: usize) -> Self {
        assert!(batch_size > 0, "a batch holds at least one group");
        Self {
            prompts,
            batch_size,
            queue_size,
            admitted: 0,
            running: BTreeMap::new(),
            finished: Vec::new(),
            training: VecDeque::new(),
            shipped: 0,
            published: 0,
        }
    }

    /// The ledger of a run that goes on, maybe with another number of prompts or another queue.
    #[must_use]
    pub fn resumed(self, prompts: u64, queue_size: usize) -> Self {
        Self { prompts: prompts.max(self.admitted), queue_size, ..self }
    }

    /// Prompts admitted so far, which is the id of the group that comes next.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Groups in flight, which a run that goes on must start again.
    pub fn running(&self) -> impl Iterator<Item = GroupId> {
        self.running.keys().copied()
    }

    /// Where the run is in its data.
    pub fn state(&self) -> State {
        if self.admitted < self.prompts {
            if self.admitted == 0 { State::Fresh } else { State::Streaming }
        } else if self.running.is_empty() && self.finished.is_empty() {
            State::Done
        } else {
            State::Draining
        }
    }

    /// Groups that may hold a slot at a time.
    pub fn slots(&self) -> usize {
        self.queue_size.saturating_add(1).saturating_mul(self.batch_size)
    }

    /// Groups that hold a slot now: running, waiting, or shipped and not published.
    pub fn held(&self) -> usize {
        self.running.len() + self.finished.len() + self.training.iter().sum::<usize>()
    }

    /// Starts the next prompt if one is left and a slot is free.
    pub fn admit(&mut self) -> Option<GroupId> {
        if self.admitted == self.prompts || self.held() >= self.slots() {
            return None;
        }
        let id = GroupId(self.admitted);
        self.admitted += 1;
        self.running.insert(id, self.published);
        Some(id)
    }

    /// A group ended. One that is not usable is dropped, and frees its slot at once.
    ///
    /// # Panics
    /// If the group is not running.
    pub fn finish(&mut self, id: GroupId, usable: bool) {
        let update = self.running.remove(&id).expect("a group ends once, after its admission");
        if usable {
            self.finished.push((id, update));
        }
    }

    /// The next batch, by ascending id, once it is complete: `batch_size` groups, fewer only at the very end.
    pub fn ship(&mut self) -> Option<Vec<GroupId>> {
        let mut batch = self.pick()?;
        self.finished.retain(|(id, _)| !batch.contains(id));
        self.training.push_back(batch.len());
        self.shipped += 1;
        batch.sort_unstable();
        Some(batch)
    }

    /// Weights trained on the oldest shipped batch were published, which frees its slots.
    /// Without such a batch nothing changes.
    pub fn publish(&mut self) {
        if self.training.pop_front().is_some() {
            self.published += 1;
        }
    }

    /// Batch number `shipped` is trained when as many updates are published. A group admitted at update
    /// `u` must be in a batch with a number of at most `u + queue_size`. So of the groups that the batches
    /// up to `later` batches from now must take, those that `later` full batches cannot hold go in this one.
    fn pick(&self) -> Option<Vec<GroupId>> {
        let mut batch: Vec<GroupId> = Vec::new();
        // Batches beyond those that hold every group must take nothing from this one.
        let holding = self.running.len() + self.finished.len();
        let near = (0..=self.queue_size).take_while(|later| later.saturating_mul(self.batch_size) < holding);
        for later in near {
            let Some(update) = (self.shipped + later as u64).checked_sub(self.queue_size as u64) else {
                continue;
            };
            let due = |u: u64| u <= update;
            let waiting = self.finished.iter().filter(|(_, u)| due(*u));
            let total = waiting.clone().count() + self.running.values().filter(|u| due(**u)).count();
            // With a shorter queue than before an interruption more may be due than a batch holds.
            let must = total.saturating_sub(later.saturating_mul(self.batch_size)).min(self.batch_size);
            for (id, _) in waiting {
                if batch.len() >= must {
                    break;
                }
                if !batch.contains(id) {
                    batch.push(*id);
                }
            }
            if batch.len() < must {
                return None;
            }
        }
        for (id, _) in &self.finished {
            if batch.len() < self.batch_size && !batch.contains(id) {
                batch.push(*id);
            }
        }
        let last = self.admitted == self.prompts && self.running.is_empty() && !batch.is_empty();
        (batch.len() == self.batch_size || last).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a ledger to its end. `choices` decides each event, `usable` which groups survive.
    fn run(
        prompts: u64,
        batch_size: usize,
        queue_size: usize,
        mut choice: impl FnMut(usize) -> usize,
        usable: impl Fn(u64) -> bool,
    ) -> Vec<Vec<GroupId>> {
        let mut ledger = Ledger::new(prompts, batch_size, queue_size);
        let mut admitted_at = BTreeMap::new();
        let (mut running, mut batches, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
        let mut updates = 0;
        let mut events = 0;
        while ledger.state() != State::Done {
            events += 1;
            assert!(events <= 20 * prompts + 20, "the ledger does not terminate");
            while let Some(id) = ledger.admit() {
                assert_eq!(id.0 as usize, admitted_at.len(), "ids follow admission");
                admitted_at.insert(id, updates);
                running.push(id);
            }
            assert!(ledger.held() <= ledger.slots());
            if let Some(batch) = ledger.ship() {
                assert!(batch.is_sorted());
                for id in &batch {
                    let staleness = batches.len() as u64 - admitted_at[id];
                    assert!(staleness <= queue_size as u64, "{id:?} is {staleness} updates old");
                }
                batches.push(batch);
                continue;
            }
            let in_training = batches.len() as u64 - updates;
            let enabled = running.len() + usize::from(in_training > 0);
            assert!(enabled > 0, "nothing can happen any more: {ledger:?}");
            let event = choice(enabled);
            if event < running.len() {
                let id = running.swap_remove(event);
                ledger.finish(id, usable(id.0));
                if !usable(id.0) {
                    dropped.push(id);
                }
            } else {
                ledger.publish();
                updates += 1;
            }
        }
        assert_eq!((ledger.admit(), ledger.ship()), (None, None));
        let mut seen: Vec<u64> = batches.iter().flatten().chain(&dropped).map(|id| id.0).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..prompts).collect::<Vec<_>>(), "every prompt exactly once");
        let full = batches.len().saturating_sub(1);
        assert!(batches[..full].iter().all(|batch| batch.len() == batch_size), "only the last may be short");
        batches
    }

    proptest! {
        #[test]
        fn bounded_exhaustive_and_terminating(
            prompts in 0u64..70,
            batch_size in 1usize..9,
            queue_size in 0usize..4,
            picks in proptest::collection::vec(any::<u32>(), 1..64),
            fates in proptest::collection::vec(0u32..100, 1..80),
            drop_percent in prop_oneof![Just(0u32), Just(30), Just(90), Just(100)],
        ) {
            let mut pick = picks.iter().cycle();
            let choice = |n: usize| *pick.next().expect("an endless cycle") as usize % n;
            run(prompts, batch_size, queue_size, choice, |id| fates[id as usize % fates.len()] >= drop_percent);
        }

        #[test]
        fn without_a_queue_a_batch_is_the_first_usable_prompts(
            picks in proptest::collection::vec(any::<u32>(), 1..64),
            every in 2u64..6,
        ) {
            let mut pick = picks.iter().cycle();
            let choice = |n: usize| *pick.next().expect("an endless cycle") as usize % n;
            let batches = run(40, 6, 0, choice, |id| id % every != 0);
            let flat: Vec<u64> = batches.iter().flatten().map(|id| id.0).collect();
            prop_assert_eq!(flat, (0..40).filter(|id| id % every != 0).collect::<Vec<_>>());
        }
    }

    /// Prompts and batch size of cases in which a pool that confuses "not started" with "drained" hangs or
    /// loses groups.
    #[test]
    fn the_end_of_the_data_is_the_end() {
        for (prompts, batch_size) in [(10, 3), (50, 16), (65, 8), (9, 3), (48, 16), (64, 8)] {
            for queue_size in 0..4 {
                for stride in [0, 1, 7] {
                    let batches = run(prompts, batch_size, queue_size, |n| stride % n, |_| true);
                    let last = prompts as usize - (batches.len() - 1) * batch_size;
                    assert_eq!(batches.last().map(Vec::len), Some(last));
                }
            }
        }
    }

    #[test]
    fn all_dropped_ends_without_a_batch() {
        assert!(run(20, 4, 1, |n| n - 1, |_| false).is_empty());
        assert_eq!(Ledger::new(0, 4, 1).state(), State::Done);
    }

    #[test]
    fn states_in_order() {
        let mut ledger = Ledger::new(2, 1, 0);
        assert_eq!(ledger.state(), State::Fresh);
        let first = ledger.admit().expect("a free slot");
        assert_eq!((ledger.state(), ledger.admit()), (State::Streaming, None));
        ledger.finish(first, true);
        assert_eq!(ledger.ship(), Some(vec![first]));
        assert_eq!(ledger.admit(), None, "the batch in training holds its slot");
        ledger.publish();
        let second = ledger.admit().expect("the slot was freed");
        assert_eq!(ledger.state(), State::Draining);
        ledger.finish(second, false);
        assert_eq!((ledger.ship(), ledger.state()), (None, State::Done));
    }

    #[test]
    fn a_slow_group_is_overtaken_until_it_is_due() {
        let mut ledger = Ledger::new(12, 2, 1);
        while ledger.admit().is_some() {}
        for id in [3, 2, 1] {
            ledger.finish(GroupId(id), true);
        }
        assert_eq!(ledger.ship(), Some(vec![GroupId(2), GroupId(3)]), "in the order of finishing");
        ledger.publish();
        while ledger.admit().is_some() {}
        ledger.finish(GroupId(4), true);
        assert_eq!(ledger.ship(), None, "group 0 is due in this batch");
        ledger.finish(GroupId(0), true);
        assert_eq!(ledger.ship(), Some(vec![GroupId(0), GroupId(1)]));
    }
}
