//! The replay buffer: groups that were trained, to be trained again beside newer ones.

use molt_core::outcome::Group;
use molt_core::seed::{Purpose, derive, permutation};
use molt_core::settings;
use std::collections::VecDeque;

/// The groups that are kept, oldest first.
#[derive(Debug)]
pub(crate) struct Replay {
    settings: settings::Replay,
    seed: u64,
    kept: VecDeque<Group>,
}

impl Replay {
    /// With the groups of a checkpoint, as far as there is room.
    pub(crate) fn new(settings: settings::Replay, seed: u64, kept: Vec<Group>) -> Self {
        let mut replay = Self { settings, seed, kept: VecDeque::new() };
        replay.keep(&kept);
        replay
    }

    pub(crate) fn is_on(&self) -> bool {
        self.settings.groups_per_batch > 0
    }

    /// The groups to train again in this step: different ones, all that there are while there are few.
    pub(crate) fn draw(&self, step: u64) -> Vec<Group> {
        let order = permutation(derive(self.seed, Purpose::Replay { step }), self.kept.len());
        let drawn = order.iter().take(self.settings.groups_per_batch);
        drawn.map(|&at| self.kept[at].clone()).collect()
    }

    /// Keeps groups that were trained for the first time, in place of the oldest.
    pub(crate) fn keep(&mut self, trained: &[Group]) {
        if self.is_on() {
            self.kept.extend(trained.iter().cloned());
            self.kept.drain(..self.kept.len().saturating_sub(self.settings.capacity));
        }
    }

    /// Where each of the groups of a step comes in its optimiser steps. Replayed ones are its last, and would have an
    /// optimiser step of their own.
    pub(crate) fn places(&self, step: u64, groups: usize) -> Vec<usize> {
        permutation(derive(self.seed, Purpose::Mix { step }), groups)
    }

    /// What a checkpoint holds.
    pub(crate) fn kept(&self) -> Vec<Group> {
        self.kept.iter().cloned().collect()
    }
}

/// The places of the rows of `groups`, of which each has one for every segment: those of its group.
pub(crate) fn row_places(groups: &[Group], places: &[usize]) -> Vec<usize> {
    let rows = |group: &Group| group.finished().map(|trajectory| trajectory.segments.len()).sum();
    groups.iter().zip(places).flat_map(|(group, &place)| std::iter::repeat_n(place, rows(group))).collect()
}

/// Rows in the order of their places; those of one place stay as they are.
pub(crate) fn in_order<T>(rows: Vec<T>, places: &[usize]) -> Vec<T> {
    let mut rows: Vec<(usize, T)> = places.iter().copied().zip(rows).collect();
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_core::chat::Task;
    use molt_core::ids::GroupId;
    use std::collections::BTreeSet;

    fn group(id: u64) -> Group {
        let task = Task { id: id.to_string(), messages: Vec::new(), label: None, fields: Vec::new() };
        Group { id: GroupId(id), task, outcomes: Vec::new() }
    }

    fn ids(groups: &[Group]) -> Vec<u64> {
        groups.iter().map(|group| group.id.0).collect()
    }

    #[test]
    fn the_last_groups_are_kept_and_different_ones_drawn() {
        let settings = settings::Replay { groups_per_batch: 3, capacity: 5 };
        let mut replay = Replay::new(settings, 1, Vec::new());
        assert!(replay.draw(1).is_empty());
        replay.keep(&[group(0), group(1)]);
        assert_eq!(BTreeSet::from_iter(ids(&replay.draw(2))), BTreeSet::from([0, 1]), "all that there are");
        replay.keep(&(2..8).map(group).collect::<Vec<_>>());
        assert_eq!(ids(&replay.kept()), [3, 4, 5, 6, 7]);
        let drawn: Vec<Vec<u64>> = (3..40).map(|step| ids(&replay.draw(step))).collect();
        assert!(drawn.iter().all(|ids| ids.iter().collect::<BTreeSet<_>>().len() == 3), "no group twice");
        assert_eq!(drawn.iter().flatten().collect::<BTreeSet<_>>().len(), 5, "each comes some time");
        let again = Replay::new(settings, 1, replay.kept());
        assert_eq!(ids(&again.draw(3)), drawn[0], "a step draws the same after a restart");
    }

    #[test]
    fn groups_of_a_step_are_mixed_and_their_rows_stay_together() {
        let settings = settings::Replay { groups_per_batch: 3, capacity: 5 };
        let replay = Replay::new(settings, 1, Vec::new());
        let all: BTreeSet<Vec<usize>> = (0..200).map(|step| replay.places(step, 3)).collect();
        assert_eq!(all.len(), 6, "every order comes some time");
        assert_eq!(in_order(vec!['a', 'b', 'c', 'd', 'e'], &[2, 2, 0, 1, 1]), ['c', 'd', 'e', 'a', 'b']);
        assert!(in_order(Vec::<u8>::new(), &[1, 0]).is_empty(), "without a critic there are no lessons");
    }

    #[test]
    fn off_it_keeps_nothing() {
        let mut replay = Replay::new(settings::Replay::default(), 1, vec![group(0)]);
        replay.keep(&[group(1)]);
        assert!(replay.kept().is_empty() && replay.draw(1).is_empty() && !replay.is_on());
    }
}
