//! From the rewards of a batch to an advantage for every action token.

use crate::beside::Said;
use crate::error::TrainError;
use crate::step::PolicyRow;
use molt_core::outcome::Group;
use molt_core::settings::{Critic, TrainSettings};
use molt_core::trajectory::{Reward, Trajectory};
use molt_core::whiten::whiten;
use molt_sandbox::{Estimate, Estimator, EstimatorBatch, Failure, Traits, parameter_values};

/// Refuses an estimator whose needs the run does not meet, and settings that it makes nothing of. Gives the values of
/// its parameters.
///
/// # Errors
/// What does not go together.
pub fn check_estimator(settings: &TrainSettings, traits: &Traits) -> Result<Vec<f64>, TrainError> {
    let (algo, samples) = (&settings.algo, settings.rollout.samples_per_prompt);
    let estimator = || algo.estimator.clone();
    if traits.needs_group && samples < 2 {
        return Err(TrainError::NeedsGroup { estimator: estimator(), samples });
    }
    if settings.teacher.model.is_some() && !traits.uses_kl {
        return Err(TrainError::TeacherUnused { estimator: estimator() });
    }
    if algo.kl.in_reward() && !traits.uses_kl {
        return Err(TrainError::KlUnused { estimator: estimator() });
    }
    if settings.critic != Critic::default() && !traits.needs_values {
        return Err(TrainError::CriticUnused { estimator: estimator() });
    }
    if !algo.whiten && !traits.whiten {
        return Err(TrainError::WhitensNothing { estimator: estimator() });
    }
    parameter_values(&traits.parameters, &algo.parameters)
        .map_err(|problem| TrainError::Parameter { estimator: estimator(), problem })
}

/// Asks the estimator for the advantages of all finished rollouts of `groups`, of which the models beside the policy
/// said something. One row per segment, in order, and the return of every action token.
///
/// An output that could not be scored counts as the lower of `lowest` and the lowest score of the batch, turn by turn as
/// [`Trajectory::credits`] says, so that no policy gains by being unscorable. (That is before whitening, which moves and scales all advantages
/// of the batch together.)
pub async fn advantages<'a>(
    estimator: &Estimator,
    traits: &Traits,
    parameters: &[f64],
    (groups, said): (&'a [Group], &Said),
    lowest: f64,
) -> Result<(Vec<PolicyRow<'a>>, Vec<f32>), Failure> {
    let batch = EstimatorBatch {
        kl: said.kl.clone(),
        kl_coef: said.kl_coef,
        values: said.values.clone(),
        ..estimator_batch(parameters, groups, lowest)
    };
    let Estimate { mut advantages, returns } = estimator.estimate(&batch).await?;
    if traits.whiten {
        whiten(&mut advantages);
    }
    Ok((rows(groups, &advantages), returns))
}

/// The reward of every finished rollout of `groups`, in order.
pub fn rewards(groups: &[Group], lowest: f64) -> Vec<f64> {
    let lowest = lowest_of(groups, lowest);
    finished(groups).map(|t| t.reward.value(lowest)).collect()
}

/// Of the [`rewards`] of a batch those of its first `count` groups.
pub fn first_rewards(groups: &[Group], count: usize, lowest: f64) -> Vec<f64> {
    let mut all = rewards(groups, lowest);
    all.truncate(finished(&groups[..count]).count());
    all
}

/// The lower of `lowest` and the lowest score of the batch, which is what the environment gave where there is none.
fn lowest_of(groups: &[Group], lowest: f64) -> f64 {
    let scored = finished(groups).map(|t| match t.reward {
        Reward::Scored { value, .. } => value,
        Reward::Invalid { .. } => t.turn_rewards.iter().sum(),
    });
    scored.fold(lowest, f64::min)
}

/// All finished rollouts, group after group.
pub fn finished(groups: &[Group]) -> impl Iterator<Item = &Trajectory> {
    groups.iter().flat_map(Group::finished)
}

/// The flat arrays of the estimator contract: action tokens only, segment after segment.
fn estimator_batch(parameters: &[f64], groups: &[Group], lowest: f64) -> EstimatorBatch {
    let floor = lowest_of(groups, lowest);
    let least = finished(groups).flat_map(|t| &t.turn_rewards).copied().fold(f64::INFINITY, f64::min);
    let mut batch = EstimatorBatch {
        rewards: rewards(groups, lowest).iter().map(|&reward| reward as f32).collect(),
        groups: Vec::new(),
        segment_rollouts: Vec::new(),
        segment_offsets: vec![0],
        turns: Vec::new(),
        turn_rewards: Vec::new(),
        turn_offsets: vec![0],
        kl: Vec::new(),
        values: Vec::new(),
        kl_coef: 0.0,
        parameters: parameters.to_vec(),
    };
    let populated = groups.iter().filter(|group| group.finished().next().is_some());
    for (dense, group) in (0_u32..).zip(populated) {
        for trajectory in group.finished() {
            let rollout = batch.groups.len() as u32;
            batch.groups.push(dense);
            batch.turn_rewards.extend(trajectory.credits(least, floor).iter().map(|&credit| credit as f32));
            batch.turn_offsets.push(batch.turn_rewards.len() as u32);
            for segment in &trajectory.segments {
                batch.segment_rollouts.push(rollout);
                batch.turns.extend(segment.actions().iter().map(|action| action.turn));
                batch.segment_offsets.push(batch.turns.len() as u32);
            }
        }
    }
    batch
}

/// Lays one advantage per action token back on the segments.
fn rows<'a>(groups: &'a [Group], advantages: &[f32]) -> Vec<PolicyRow<'a>> {
    let mut rest = advantages.iter().copied();
    finished(groups)
        .flat_map(|trajectory| &trajectory.segments)
        .map(|segment| PolicyRow::new(segment, rest.by_ref().take(segment.actions().len()).collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::trajectory;
    use crate::step::tests::{config, rebuilt};
    use molt_core::chat::Task;
    use molt_core::ids::{GroupId, RolloutId, WeightVersion};
    use molt_core::outcome::{DropReason, Dropped, Outcome};
    use molt_core::settings::{KlIn, ParameterValue};
    use molt_core::trajectory::{Sampled, Segment};
    use molt_sandbox::{Parameter, ParameterKind};
    use proptest::prelude::*;

    fn task() -> Task {
        Task { id: "1".into(), messages: Vec::new(), label: None, fields: Vec::new() }
    }

    /// A rollout with one segment per entry of `segments`: the lengths of its turns. Every turn but the last
    /// earned 0.25.
    fn finished(group: u64, member: u32, reward: Reward, segments: &[&[usize]]) -> Outcome {
        let mut turn = 0;
        let mut segment = |lengths: &&[usize]| {
            let mut segment = Segment::new(vec![1]);
            for &length in *lengths {
                let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(0) };
                segment.push_turn(turn, &vec![sampled; length]);
                segment.push_context(&[3]);
                turn += 1;
            }
            segment
        };
        let segments: Vec<Segment> = segments.iter().map(&mut segment).collect();
        let mut turn_rewards = vec![0.25; turn as usize];
        turn_rewards[turn as usize - 1] = reward.value(0.0) - 0.25 * f64::from(turn - 1);
        let bare = trajectory(RolloutId { group: GroupId(group), member }, &task(), segments, reward);
        Outcome::Finished(Box::new(Trajectory { turn_rewards, ..bare }))
    }

    fn dropped(group: u64, member: u32) -> Outcome {
        let rollout = RolloutId { group: GroupId(group), member };
        Outcome::Dropped(Dropped {
            rollout,
            reason: DropReason::Plugin("trap".into()),
            detail: String::new(),
        })
    }

    fn scored(value: f64) -> Reward {
        Reward::Scored { value, solved: false }
    }

    fn groups() -> Vec<Group> {
        let invalid = Reward::Invalid { reason: "no answer".into() };
        vec![
            Group {
                id: GroupId(4),
                task: task(),
                outcomes: vec![
                    finished(4, 0, scored(1.0), &[&[2, 1], &[1]]),
                    dropped(4, 1),
                    finished(4, 2, invalid, &[&[1, 1]]),
                ],
            },
            Group { id: GroupId(7), task: task(), outcomes: vec![dropped(7, 0)] },
            Group { id: GroupId(9), task: task(), outcomes: vec![finished(9, 0, scored(-0.5), &[&[1]])] },
        ]
    }

    #[test]
    fn the_estimator_sees_action_tokens_of_finished_rollouts() {
        let batch = estimator_batch(&[0.5], &groups(), 0.0);
        assert_eq!((batch.rewards, batch.parameters), (vec![1.0, -0.5, -0.5], vec![0.5]));
        assert_eq!(batch.groups, [0, 0, 1]);
        assert_eq!(batch.segment_rollouts, [0, 0, 1, 2]);
        assert_eq!(batch.segment_offsets, [0, 3, 4, 6, 7]);
        assert_eq!(batch.turns, [0, 0, 1, 2, 0, 1, 0]);
        // The invalid rollout is trained with -0.5, the lowest of the batch, and so is each of its turns.
        assert_eq!(batch.turn_rewards, [0.25, 0.25, 0.5, -0.5, -0.5, -0.5]);
        assert_eq!(batch.turn_offsets, [0, 3, 5, 6]);
    }

    proptest! {
        #![proptest_config(config(60))]

        /// What an environment says is in no array of an estimator, however long it is.
        #[test]
        fn observations_change_nothing_of_the_batch(gaps in prop::collection::vec(0_usize..9, 20)) {
            let mut other = groups();
            let mut gaps = gaps.into_iter().cycle();
            for outcome in other.iter_mut().flat_map(|group| &mut group.outcomes) {
                let Outcome::Finished(trajectory) = outcome else { continue };
                for segment in &mut trajectory.segments {
                    *segment = rebuilt(segment, |logprob| logprob, || gaps.next().unwrap_or(0));
                }
            }
            prop_assert_eq!(estimator_batch(&[0.5], &other, 0.0), estimator_batch(&[0.5], &groups(), 0.0));
            let advantages = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
            let of = |groups: &[Group]| -> Vec<Vec<f32>> {
                rows(groups, &advantages).into_iter().map(|row| row.advantages).collect()
            };
            prop_assert_eq!(of(&other), of(&groups()));
        }
    }

    #[test]
    fn advantages_come_back_to_their_tokens() {
        let groups = groups();
        let rows = rows(&groups, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let advantages: Vec<_> = rows.iter().map(|row| row.advantages.clone()).collect();
        assert_eq!(advantages, [vec![1.0, 2.0, 3.0], vec![4.0], vec![5.0, 6.0], vec![7.0]]);
        assert!(rows.iter().all(|row| row.advantages.len() == row.segment.actions().len()));
    }

    #[test]
    fn an_output_that_cannot_be_scored_gets_the_lowest_reward() {
        assert_eq!(rewards(&groups(), 0.0), [1.0, -0.5, -0.5]);
        assert_eq!(rewards(&groups(), -2.0), [1.0, -2.0, -0.5]);
        assert_eq!(first_rewards(&groups(), 2, 0.0), [1.0, -0.5], "the lowest of all, not only of those");
        // What the environment took off on the way is not given back.
        let mut groups = groups();
        let Some(Outcome::Finished(invalid)) = groups[0].outcomes.last_mut() else {
            panic!("it is finished")
        };
        invalid.turn_rewards = vec![-3.0, 0.5];
        assert_eq!(rewards(&groups, -2.0), [1.0, -2.5, -0.5]);
        assert_eq!(estimator_batch(&[], &groups, -2.0).turn_rewards[3..5], [-3.0, -3.0]);
    }

    #[test]
    fn what_an_estimator_needs_is_checked() {
        let traits = |needs_group, needs_values| Traits { needs_group, needs_values, ..Traits::default() };
        let mut settings = TrainSettings::default();
        settings.algo.estimator = "one".into();
        settings.rollout.samples_per_prompt = 2;
        check_estimator(&settings, &traits(true, false)).expect("two rollouts are enough");
        check_estimator(&settings, &traits(false, true)).expect("it gets a critic");
        settings.rollout.samples_per_prompt = 1;
        check_estimator(&settings, &traits(false, false)).expect("it needs nothing");
        let error = check_estimator(&settings, &traits(true, false)).expect_err("one rollout has no group");
        assert!(error.to_string().contains("rollout.samples_per_prompt must be at least 2, found 1"));

        let mut unwhitened = settings.clone();
        unwhitened.algo.whiten = false;
        let error = check_estimator(&unwhitened, &traits(false, false)).expect_err("nothing is whitened");
        assert!(matches!(error, TrainError::WhitensNothing { .. }));
        let whitened = Traits { whiten: true, ..Traits::default() };
        check_estimator(&unwhitened, &whitened).expect("there is something to leave out");

        settings.critic.warmup_steps = 3;
        check_estimator(&settings, &traits(false, true)).expect("there is a critic");
        let error = check_estimator(&settings, &traits(false, false)).expect_err("there is none");
        assert!(matches!(&error, TrainError::CriticUnused { estimator } if estimator == "one"), "{error}");
    }

    #[test]
    fn a_divergence_that_nobody_looks_at_is_refused() {
        let of = |uses_kl| Traits { uses_kl, ..Traits::default() };
        let mut settings = TrainSettings::default();
        settings.algo.kl.coef = 0.1;
        check_estimator(&settings, &of(false)).expect("it is in the loss");
        settings.algo.kl.r#in = KlIn::Reward;
        check_estimator(&settings, &of(true)).expect("it is used");
        let error = check_estimator(&settings, &of(false)).expect_err("it would change nothing").to_string();
        assert!(error.contains("grpo does not look at it") && error.contains("algo.kl.in loss"), "{error}");
    }

    #[test]
    fn a_parameter_is_one_that_the_estimator_declares() {
        let kind = ParameterKind::Float { default: 1.0, min: 0.0, max: 1.0 };
        let gamma = Parameter { name: "gamma".into(), doc: "discount".into(), kind };
        let traits = Traits { parameters: vec![gamma], ..Traits::default() };
        let check = |name: &str, value| {
            let mut settings = TrainSettings::default();
            settings.algo.estimator = "reinforce".into();
            settings.algo.parameters = [(name.to_owned(), ParameterValue::Number(value))].into();
            check_estimator(&settings, &traits).map_err(|error| error.to_string())
        };
        assert_eq!(check("gamma", 0.5), Ok(vec![0.5]));
        let at = "algo.parameters does not fit the estimator reinforce: ";
        let unknown = format!("{at}there is no parameter lambda: the plugin has gamma");
        assert_eq!(check("lambda", 0.5), Err(unknown));
        assert_eq!(check("gamma", 2.0), Err(format!("{at}gamma is 2, but must be a number from 0 to 1")));
    }
}
