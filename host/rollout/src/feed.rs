//! Which prompt comes next.

use crate::batches::Plan;
use molt_core::chat::Task;
use molt_core::ids::GroupId;
use molt_core::outcome::Group;
use molt_core::seed::{Purpose, derive, permutation, unit};
use molt_core::settings::Curriculum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The prompts in dispatch order. Without a curriculum the prompt of a group follows from its id alone.
pub(crate) struct Feed {
    pub(crate) plan: Plan,
    pass: u64,
    order: Vec<usize>,
    course: Option<Course>,
}

/// Where a curriculum is: all that another feed needs to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// The last pass rate of each row.
    rates: Vec<Option<f64>>,
    pass: u64,
    /// The rows of this pass.
    order: Vec<usize>,
    /// The group of the first of them.
    start: u64,
    /// The rows of groups that have begun and not ended.
    running: BTreeMap<GroupId, usize>,
}

/// How many prompts are what, by a curriculum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Buckets {
    pub easy: usize,
    pub middle: usize,
    pub hard: usize,
    /// Not rolled out so far.
    pub unseen: usize,
}

impl Feed {
    pub(crate) fn new(plan: Plan) -> Self {
        let order = plan.prompts.order(plan.seed, 0, plan.shuffle);
        let course = plan.curriculum.map(|_| Course {
            rates: vec![None; order.len()],
            pass: 0,
            order: order.clone(),
            start: 0,
            running: BTreeMap::new(),
        });
        Self { plan, pass: 0, order, course }
    }

    /// Goes on from where another feed of the same prompts was. Without a record a curriculum starts at the group `next`,
    /// and groups before it have the prompts that they have without one.
    pub(crate) fn resume(plan: Plan, course: Option<Course>, next: u64) -> Self {
        let mut feed = Self::new(plan);
        if let Some(own) = &mut feed.course {
            own.start = next;
            let rows = own.rates.len();
            let fits = |other: &Course| {
                other.rates.len() == rows
                    && !other.order.is_empty()
                    && other.start <= next
                    && other.order.iter().chain(other.running.values()).all(|&row| row < rows)
            };
            if let Some(other) = course.filter(fits) {
                *own = other;
            }
        }
        feed
    }

    /// Where its curriculum is, if it has one.
    pub(crate) fn course(&self) -> Option<Course> {
        self.course.clone()
    }

    /// The prompt of a group below [`Plan::groups`]. Groups begin by ascending id; one that is begun again after a restart
    /// has the prompt that it had.
    pub(crate) fn task(&mut self, id: GroupId) -> Task {
        let row = self.row(id);
        self.plan.prompts.rows[row].clone()
    }

    fn row(&mut self, id: GroupId) -> usize {
        let Self { plan, pass, order, course } = self;
        let mut plain = || {
            let rows = plan.prompts.rows.len() as u64;
            if id.0 / rows != *pass {
                *pass = id.0 / rows;
                *order = plan.prompts.order(plan.seed, *pass, plan.shuffle);
            }
            order[(id.0 % rows) as usize]
        };
        let (Some(curriculum), Some(course)) = (&plan.curriculum, course) else { return plain() };
        if let Some(row) = course.running.get(&id) {
            return *row;
        }
        // Of those that a curriculum has begun the row is known: this one was in flight before there was any.
        let row = if id.0 < course.start {
            plain()
        } else {
            while id.0 - course.start >= course.order.len() as u64 {
                course.start += course.order.len() as u64;
                course.pass += 1;
                course.order = next_pass(plan, curriculum, course);
            }
            course.order[(id.0 - course.start) as usize]
        };
        course.running.insert(id, row);
        row
    }

    /// Takes down what became of a group.
    pub(crate) fn ended(&mut self, group: &Group) {
        let Some(course) = &mut self.course else { return };
        let Some(row) = course.running.remove(&group.id) else { return };
        let finished = group.finished().count();
        if finished > 0 {
            let solved = group.finished().filter(|trajectory| trajectory.reward.solved()).count();
            course.rates[row] = Some(solved as f64 / finished as f64);
        }
    }

    /// How many prompts are easy and hard now, if there is a curriculum.
    pub(crate) fn buckets(&self) -> Option<Buckets> {
        let (curriculum, course) = (self.plan.curriculum.as_ref()?, self.course.as_ref()?);
        let mut buckets = Buckets::default();
        for &rate in &course.rates {
            *match level(curriculum, rate) {
                _ if rate.is_none() => &mut buckets.unseen,
                Level::Easy => &mut buckets.easy,
                Level::Middle => &mut buckets.middle,
                Level::Hard => &mut buckets.hard,
            } += 1;
        }
        Some(buckets)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Easy,
    /// Or not known.
    Middle,
    Hard,
}

fn level(curriculum: &Curriculum, rate: Option<f64>) -> Level {
    match rate {
        Some(rate) if rate >= curriculum.high => Level::Easy,
        Some(rate) if rate <= curriculum.low => Level::Hard,
        _ => Level::Middle,
    }
}

/// The rows of the pass that the course has come to: at least one.
fn next_pass(plan: &Plan, curriculum: &Curriculum, course: &Course) -> Vec<usize> {
    let level = |row: &usize| level(curriculum, course.rates[*row]);
    // Which of a bucket come is drawn anew in every pass, even if their order is that of the file.
    let mut left_out = vec![false; course.rates.len()];
    let drawn = permutation(derive(plan.seed, Purpose::Curriculum { pass: course.pass }), left_out.len());
    for (of, share) in [(Level::Easy, curriculum.easy_share), (Level::Hard, curriculum.hard_share)] {
        let bucket: Vec<usize> = drawn.iter().copied().filter(|row| level(row) == of).collect();
        // One prompt of which two fifths are to come does so in two passes of five.
        let (whole, pass, is_hard) = (share * bucket.len() as f64, course.pass, of == Level::Hard);
        let one_more = unit(derive(plan.seed, Purpose::Share { pass, is_hard })) < whole.fract();
        let kept = whole as usize + usize::from(one_more);
        bucket.iter().skip(kept).for_each(|&row| left_out[row] = true);
    }
    let whole = plan.prompts.order(plan.seed, course.pass, plan.shuffle);
    let mut order: Vec<usize> = whole.iter().copied().filter(|&row| !left_out[row]).collect();
    if order.is_empty() {
        // Nothing is left to prefer.
        order = whole;
    }
    if curriculum.easy_first {
        order.sort_by_key(level);
    }
    order
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::prompts::Prompts;
    use molt_core::ids::RolloutId;
    use molt_core::outcome::Outcome;
    use molt_core::trajectory::{Reward, Trajectory};
    use molt_core::window::ErrorLimit;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn plan(rows: usize, passes: u64, curriculum: Option<Curriculum>) -> Plan {
        let row =
            |id: usize| Task { id: id.to_string(), messages: Vec::new(), label: None, fields: Vec::new() };
        Plan {
            prompts: Arc::new(Prompts { rows: (0..rows).map(row).collect(), skipped: 0 }),
            passes,
            shuffle: true,
            curriculum,
            seed: 7,
            batch_size: 1,
            samples: 2,
            min_finished: 1,
            filter: None,
            errors: ErrorLimit { max_rate: 1.0, window: 1 },
        }
    }

    /// A rollout of this prompt that ended, solved or not.
    pub(crate) fn finished(rollout: RolloutId, task: &Task, solved: bool) -> Outcome {
        Outcome::Finished(Box::new(Trajectory {
            rollout,
            task: task.clone(),
            segments: Vec::new(),
            messages: Vec::new(),
            completion: String::new(),
            truncated: false,
            reward: Reward::Scored { value: f64::from(u8::from(solved)), solved },
            turn_rewards: Vec::new(),
            metrics: BTreeMap::new(),
        }))
    }

    /// A group of this prompt that ended with so many of its rollouts solved.
    fn ended(id: u64, task: &Task, solved: &[bool]) -> Group {
        let finished = |(member, &solved): (u32, &bool)| {
            finished(RolloutId { group: GroupId(id), member }, task, solved)
        };
        Group { id: GroupId(id), task: task.clone(), outcomes: (0..).zip(solved).map(finished).collect() }
    }

    /// Of each ten rows four are always solved, three sometimes, three never.
    fn solved(row: usize) -> [bool; 2] {
        match row % 10 {
            0..=3 => [true, true],
            4..=6 => [true, false],
            _ => [false, false],
        }
    }

    /// The rows of these groups, one after the other.
    fn rows(feed: &mut Feed, ids: std::ops::Range<u64>) -> Vec<usize> {
        ids.map(|id| {
            let task = feed.task(GroupId(id));
            let row = task.id.parse().expect("a number");
            feed.ended(&ended(id, &task, &solved(row)));
            row
        })
        .collect()
    }

    fn count(rows: &[usize], of: std::ops::RangeInclusive<usize>) -> usize {
        rows.iter().filter(|row| of.contains(&(**row % 10))).count()
    }

    #[test]
    fn the_first_pass_has_all_and_the_next_ones_the_shares() {
        let curriculum = Curriculum { easy_share: 0.25, hard_share: 0.5, ..Curriculum::default() };
        let mut feed = Feed::new(plan(100, 4, Some(curriculum)));
        assert_eq!(feed.buckets(), Some(Buckets { unseen: 100, ..Buckets::default() }));
        let mut first = rows(&mut feed, 0..100);
        let plain = rows(&mut Feed::new(plan(100, 4, None)), 0..100);
        assert_eq!(first, plain, "nothing is known yet");
        first.sort_unstable();
        assert_eq!(first, (0..100).collect::<Vec<_>>());
        assert_eq!(feed.buckets(), Some(Buckets { easy: 40, middle: 30, hard: 30, unseen: 0 }));
        // 10 of 40 easy ones, 30 others, 15 of 30 hard ones.
        let (second, third) = (rows(&mut feed, 100..155), rows(&mut feed, 155..210));
        for pass in [&second, &third] {
            assert_eq!([count(pass, 0..=3), count(pass, 4..=6), count(pass, 7..=9)], [10, 30, 15]);
            let different: std::collections::BTreeSet<_> = pass.iter().collect();
            assert_eq!(different.len(), 55);
        }
        let easy = |pass: &[usize]| -> std::collections::BTreeSet<usize> {
            pass.iter().copied().filter(|row| row % 10 < 4).collect()
        };
        assert_ne!(easy(&second), easy(&third), "others come in every pass");
    }

    /// Of one hard prompt no share is a whole number; over many passes it comes as often as its share says.
    #[test]
    fn a_bucket_of_one_has_its_share_of_the_passes() {
        let curriculum = Curriculum { easy_share: 0.3, hard_share: 0.4, ..Curriculum::default() };
        let plan = plan(5, 1000, Some(curriculum));
        let mut course = Course {
            rates: vec![Some(0.5), Some(0.0), Some(1.0), Some(1.0), None],
            pass: 0,
            order: vec![0],
            start: 0,
            running: BTreeMap::new(),
        };
        let (mut hard, mut easy) = (0, 0);
        for pass in 1..=1000 {
            course.pass = pass;
            let order = next_pass(&plan, &curriculum, &course);
            assert!(order.contains(&0) && order.contains(&4));
            hard += usize::from(order.contains(&1));
            easy += usize::from(order.contains(&2)) + usize::from(order.contains(&3));
        }
        // 400 and 600 expected; 80 is five standard deviations.
        assert!(hard.abs_diff(400) < 80 && easy.abs_diff(600) < 80, "{hard} and {easy}");
    }

    #[test]
    fn easy_prompts_come_first_and_nothing_to_prefer_is_no_end() {
        let curriculum = Curriculum { easy_first: true, ..Curriculum::default() };
        let mut feed = Feed::new(plan(20, 2, Some(curriculum)));
        rows(&mut feed, 0..20);
        let levels: Vec<usize> =
            rows(&mut feed, 20..40).iter().map(|row| [0, 0, 0, 0, 1, 1, 1, 2, 2, 2][row % 10]).collect();
        assert!(levels.is_sorted(), "{levels:?}");
        assert_eq!(levels.len(), 20);

        let none = Curriculum { easy_share: 0.0, hard_share: 0.0, ..Curriculum::default() };
        let mut feed = Feed::new(plan(3, 3, Some(none)));
        assert_eq!(rows(&mut feed, 0..9).len(), 9, "all three are easy, and none would be left");
    }

    proptest! {
        /// With groups in flight, from wherever the state is taken, the same prompts come.
        #[test]
        fn a_feed_goes_on_from_where_another_was(
            size in 1_usize..12, easy_share in 0.0..1.0, hard_share in 0.0..1.0, easy_first in any::<bool>(),
            begun in 1_u64..20, lag in 0_u64..5,
        ) {
            let curriculum = Curriculum { easy_share, hard_share, easy_first, ..Curriculum::default() };
            let plan = plan(size, 6, Some(curriculum));
            let mut feed = Feed::new(plan.clone());
            let mut tasks = Vec::new();
            let go = |feed: &mut Feed, ids: std::ops::Range<u64>, tasks: &mut Vec<Task>| {
                for id in ids {
                    let task = feed.task(GroupId(id));
                    tasks.push(task);
                    if let Some(at) = id.checked_sub(lag) {
                        let task = &tasks[at as usize];
                        let row = task.id.parse().expect("a number");
                        feed.ended(&ended(at, task, &solved(row)));
                    }
                }
            };
            go(&mut feed, 0..begun, &mut tasks);
            let saved = postcard::to_allocvec(&feed.course()).expect("serialisable");
            let course = postcard::from_bytes(&saved).expect("readable");
            let mut other = Feed::resume(plan, course, begun);
            for id in begun.saturating_sub(lag)..begun {
                prop_assert_eq!(&other.task(GroupId(id)), &tasks[id as usize], "one in flight");
            }
            let mut again = tasks.clone();
            go(&mut feed, begun..begun + 20, &mut tasks);
            go(&mut other, begun..begun + 20, &mut again);
            prop_assert_eq!(tasks, again);
        }
    }

    #[test]
    fn a_record_of_other_prompts_is_not_taken() {
        let curriculum = Curriculum { easy_first: true, ..Curriculum::default() };
        let other = Feed::new(plan(5, 2, Some(curriculum))).course();
        let mut feed = Feed::resume(plan(3, 9, Some(curriculum)), other, 6);
        let mut pass = rows(&mut feed, 6..9);
        pass.sort_unstable();
        assert_eq!(pass, [0, 1, 2]);
    }

    /// Groups in flight have the prompts that they had, and what becomes of them counts.
    #[test]
    fn a_curriculum_that_is_turned_on_leaves_groups_in_flight_what_they_are() {
        let mut before = Feed::new(plan(10, 4, None));
        let all: Vec<Task> = (0..26).map(|id| before.task(GroupId(id))).collect();
        assert_eq!(before.course(), None);
        let curriculum = Curriculum { easy_first: true, ..Curriculum::default() };
        // 18 and 19 are of the second pass, 20 and 25 of the third.
        let in_flight = [18, 19, 20, 25];
        let mut feed = Feed::resume(plan(10, 4, Some(curriculum)), None, 26);
        for id in in_flight {
            assert_eq!(feed.task(GroupId(id)), all[id as usize], "group {id}");
        }
        let course = feed.course();
        let mut pass = rows(&mut feed, 26..36);
        pass.sort_unstable();
        assert_eq!(pass, (0..10).collect::<Vec<_>>(), "and then a pass has all");
        // Once more, before any has ended.
        let mut again = Feed::resume(plan(10, 4, Some(curriculum)), course, 26);
        for id in in_flight {
            let task = again.task(GroupId(id));
            assert_eq!(task, all[id as usize], "group {id}");
            again.ended(&ended(id, &task, &[true, true]));
        }
        let different: std::collections::BTreeSet<_> =
            in_flight.iter().map(|id| &all[*id as usize].id).collect();
        let seen = different.len();
        assert!(seen > 1);
        assert_eq!(again.buckets(), Some(Buckets { easy: seen, unseen: 10 - seen, ..Buckets::default() }));
    }
}
