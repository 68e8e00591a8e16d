//! Credit turn by turn, in the line of GiGPO: how a rollout did against its group, plus how each of its turns did.
//!
//! With the reward R(i) of rollout i, what its turn t earned, r(i,t), and G(i,t) = r(i,t) + gamma · G(i,t+1), where gamma
//! counts turns, every action token of the turn has
//!
//! ```text
//! A(i,t) = episode_weight · (R(i) − mean of R(j)) + step_weight · (G(i,t) − mean of G(j,t))
//! ```
//!
//! with means over the rollouts j of the group, on the right those that have a turn t. With `normalise`, both differences
//! are divided by the standard deviation of what they compare, with n − 1 in the denominator, plus 1e-9. Whoever has
//! nobody to compare with has 0 on that side.
//!
//! That is GiGPO (Feng et al. 2025, arXiv:2505.10978, equations 3, 7 and 8, with F_norm 1 or the deviation and ω
//! `step_weight`) but for one thing: GiGPO compares steps that began in the same state of the environment, and the
//! contract has no states. Here steps are compared that have the same number. Of the first turn, which begins with the
//! prompt, the two are the same; later on, rollouts of one number may be in different states, so the step's part is then
//! a baseline by turn and not one by state. With step_weight 0 it is `dr-grpo`, or `grpo` with `normalise`.
//! The returns are G.

use group_credit::{centred, members, single, standardised};
use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Parameter, Traits};

pub struct TurnCredit;

impl Estimator for TurnCredit {
    fn describe() -> Traits {
        let any = 0.0..=f64::INFINITY;
        let parameters = vec![
            Parameter::float("gamma", 1.0, 0.0..=1.0, "discount per turn"),
            Parameter::float("episode_weight", 1.0, any.clone(), "how much the rollout's reward counts"),
            Parameter::float("step_weight", 1.0, any, "how much the return of the turn counts"),
            Parameter::boolean("normalise", false, "divide by the standard deviation of what is compared"),
        ];
        Traits { needs_group: true, parameters, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let [gamma, episode_weight, step_weight, normalise] = batch.parameter_values()?;
        let relative = if normalise == 1.0 { standardised } else { centred };
        let returns: Vec<Vec<f64>> =
            (0..batch.rewards.len()).map(|rollout| returns(batch.turn_rewards_of(rollout), gamma)).collect();
        let mut advantages: Vec<Vec<f64>> = returns.iter().map(|turns| vec![0.0; turns.len()]).collect();
        for group in members(&batch) {
            let rewards: Vec<f64> = group.iter().map(|member| member.reward).collect();
            for (member, episode) in group.iter().zip(relative(&rewards)) {
                advantages[member.rollout].fill(episode_weight * episode);
            }
            let longest = group.iter().map(|member| returns[member.rollout].len()).max().unwrap_or(0);
            for turn in 0..longest {
                let there = group.iter().filter_map(|m| Some((m.rollout, *returns[m.rollout].get(turn)?)));
                let (rollouts, values): (Vec<usize>, Vec<f64>) = there.unzip();
                for (rollout, step) in rollouts.into_iter().zip(relative(&values)) {
                    let turns: &mut Vec<f64> = &mut advantages[rollout];
                    turns[turn] += step_weight * step;
                }
            }
        }
        Ok(Estimates { advantages: per_token(&batch, &advantages)?, returns: per_token(&batch, &returns)? })
    }
}

molt_plugin::export_estimator!(TurnCredit);

/// The discounted sum of what each turn and those after it earned.
fn returns(rewards: &[f32], gamma: f64) -> Vec<f64> {
    let mut ahead = 0.0;
    let mut returns: Vec<f64> = rewards
        .iter()
        .rev()
        .map(|&reward| {
            ahead = f64::from(reward) + gamma * ahead;
            ahead
        })
        .collect();
    returns.reverse();
    returns
}

/// The number of its rollout and turn for every action token.
fn per_token(batch: &Batch, by_turn: &[Vec<f64>]) -> Result<Credit, String> {
    let tokens = batch.segments().flat_map(|segment| {
        let of_rollout = &by_turn[segment.rollout];
        batch.turns[segment.tokens].iter().map(|&turn| single(of_rollout[turn as usize]))
    });
    Ok(Credit::PerToken(tokens.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rollouts of (group, what each turn earned), each turn of two action tokens.
    fn batch(parameters: [f64; 4], rollouts: &[(u32, &[f32])]) -> Batch {
        let mut batch = Batch {
            rewards: rollouts.iter().map(|(_, turns)| turns.iter().sum()).collect(),
            groups: rollouts.iter().map(|(group, _)| *group).collect(),
            segment_rollouts: (0..rollouts.len() as u32).collect(),
            segment_offsets: vec![0],
            turns: vec![],
            turn_rewards: rollouts.iter().flat_map(|(_, turns)| turns.iter().copied()).collect(),
            turn_offsets: vec![0],
            kl: vec![],
            values: vec![],
            kl_coef: 0.0,
            parameters: parameters.to_vec(),
        };
        for (_, turns) in rollouts {
            batch.turns.extend((0..turns.len() as u32).flat_map(|turn| [turn, turn]));
            batch.segment_offsets.push(batch.turns.len() as u32);
            batch.turn_offsets.push(batch.turn_offsets.last().copied().unwrap_or(0) + turns.len() as u32);
        }
        batch
    }

    fn estimate(batch: Batch) -> (Vec<f32>, Vec<f32>) {
        let estimates = TurnCredit::estimate(batch).expect("finite");
        match (estimates.advantages, estimates.returns) {
            (Credit::PerToken(advantages), Credit::PerToken(returns)) => (advantages, returns),
            other => panic!("{other:?}"),
        }
    }

    /// The first token of each turn.
    fn by_turn(tokens: &[f32]) -> Vec<f32> {
        tokens.iter().copied().step_by(2).collect()
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    const GROUP: [(u32, &[f32]); 3] = [(0, &[1.0, 0.0, 2.0]), (0, &[0.0, 2.0]), (0, &[3.0])];

    #[test]
    fn three_rollouts_of_different_lengths() {
        // By hand, with gamma 1/2.
        // Returns: [1, 0, 2] -> 2, then 0 + 2/2 = 1, then 1 + 1/2 = 1.5; [0, 2] -> 2, then 1; [3] -> 3.
        // Steps of turn 0: 1.5, 1 and 3 less 11/6; of turn 1: 1 and 2 less 3/2; turn 2 has one rollout: 0.
        // Episodes: 3, 2 and 3 less 8/3.
        let (steps, returns) = estimate(batch([0.5, 0.0, 1.0, 0.0], &GROUP));
        assert_eq!(by_turn(&returns), [1.5, 1.0, 2.0, 1.0, 2.0, 3.0]);
        close(&by_turn(&steps), &[-1.0 / 3.0, -0.5, 0.0, -5.0 / 6.0, 0.5, 7.0 / 6.0]);
        let (episodes, _) = estimate(batch([0.5, 1.0, 0.0, 0.0], &GROUP));
        let (third, two) = (1.0 / 3.0, -2.0 / 3.0);
        close(&by_turn(&episodes), &[third, third, third, two, two, third]);
        let (both, _) = estimate(batch([0.5, 1.0, 1.0, 0.0], &GROUP));
        close(&by_turn(&both), &[0.0, -1.0 / 6.0, third, -1.5, -1.0 / 6.0, 1.5]);
        assert_eq!(both[0].to_bits(), both[1].to_bits(), "a turn's tokens have the same");
    }

    #[test]
    fn with_normalise_both_parts_are_in_deviations() {
        // 1 and 0: ±1/√2 each, twice.
        let (advantages, _) = estimate(batch([1.0, 1.0, 1.0, 1.0], &[(0, &[1.0]), (0, &[0.0])]));
        close(&by_turn(&advantages), &[std::f32::consts::SQRT_2, -std::f32::consts::SQRT_2]);
    }

    #[test]
    fn groups_are_compared_with_themselves_and_tokens_found_across_segments() {
        // Group 0 has rollouts 0 and 2 with 1 and 0: ±1/2, twice. Group 1 has one rollout: 0.
        let mut batch = batch([1.0, 1.0, 1.0, 0.0], &[(0, &[1.0]), (1, &[9.0]), (0, &[0.0])]);
        // The second token of rollout 0 lies in a segment of its own at the end.
        batch.segment_rollouts = vec![0, 1, 2, 0];
        batch.segment_offsets = vec![0, 1, 3, 5, 6];
        assert_eq!(estimate(batch).0, [1.0, 0.0, 0.0, -1.0, -1.0, 1.0]);
    }

    #[test]
    fn with_gamma_0_a_turn_answers_for_itself() {
        let (advantages, _) = estimate(batch([0.0, 0.0, 1.0, 0.0], &[(0, &[1.0, 0.0]), (0, &[0.0, 1.0])]));
        assert_eq!(by_turn(&advantages), [0.5, -0.5, -0.5, 0.5]);
    }

    #[test]
    fn equal_rollouts_and_silent_ones() {
        let same: [(u32, &[f32]); 3] = [(0, &[0.1, 0.3]); 3];
        for normalise in [0.0, 1.0] {
            assert_eq!(estimate(batch([0.7, 1.0, 1.0, normalise], &same)).0, [0.0; 12]);
        }
        let silent = Batch {
            parameters: vec![1.0, 1.0, 1.0, 0.0],
            ..Batch::of(&[100.0, 1.0, 0.0], &[0; 3], &[0, 1, 1])
        };
        assert_eq!(estimate(silent).0, [1.0, -1.0]);
    }

    #[test]
    fn what_is_too_large_is_told() {
        let huge = batch([1.0, 1.0, f64::MAX, 0.0], &[(0, &[1.0]), (0, &[0.0])]);
        assert!(TurnCredit::estimate(huge).expect_err("too large").contains("too large"));
    }

    proptest! {
        #[test]
        fn the_steps_of_one_turn_add_up_to_nothing_and_episodes_to_nothing(
            rollouts in prop::collection::vec(prop::collection::vec(-10f32..10.0, 1..5), 2..8),
            gamma in 0f64..=1.0,
            normalise in 0u8..2,
        ) {
            let group: Vec<(u32, &[f32])> = rollouts.iter().map(|turns| (0, &turns[..])).collect();
            let steps = batch([gamma, 0.0, 1.0, f64::from(normalise)], &group);
            let turns = steps.turns.clone();
            let (advantages, _) = estimate(steps);
            for turn in 0..5 {
                let sum: f64 =
                    turns.iter().zip(&advantages).filter(|(t, _)| **t == turn).map(|(_, a)| f64::from(*a)).sum();
                prop_assert!(sum.abs() < 1e-3, "turn {turn}: {sum}");
            }
            let (episodes, _) = estimate(batch([gamma, 1.0, 0.0, f64::from(normalise)], &group));
            let mut at = 0;
            let mut sum = 0.0;
            for rollout in &rollouts {
                sum += f64::from(episodes[at]);
                at += 2 * rollout.len();
            }
            prop_assert!(sum.abs() < 1e-3, "{sum}");
        }

        /// Every pair of rollouts that have the turn, and every pair of rollouts.
        #[test]
        fn as_the_mean_difference_to_all(
            rollouts in prop::collection::vec(prop::collection::vec(-3f32..3.0, 1..5), 1..7),
            gamma in 0f64..=1.0,
            weight in 0f64..3.0,
        ) {
            let group: Vec<(u32, &[f32])> = rollouts.iter().map(|turns| (0, &turns[..])).collect();
            let (advantages, _) = estimate(batch([gamma, 1.0, weight, 0.0], &group));
            let ahead = |rollout: &[f32], from: usize| -> f64 {
                let later = rollout[from..].iter().enumerate();
                later.map(|(k, &reward)| gamma.powi(k as i32) * f64::from(reward)).sum()
            };
            let total = |rollout: &[f32]| rollout.iter().map(|&reward| f64::from(reward)).sum::<f64>();
            let mut found = advantages.iter().step_by(2);
            for own in &rollouts {
                for turn in 0..own.len() {
                    let episodes: f64 = rollouts.iter().map(|r| total(own) - total(r)).sum();
                    let there: Vec<&Vec<f32>> = rollouts.iter().filter(|r| r.len() > turn).collect();
                    let steps: f64 = there.iter().map(|r| ahead(own, turn) - ahead(r, turn)).sum();
                    let expected = episodes / rollouts.len() as f64 + weight * steps / there.len() as f64;
                    let found = f64::from(*found.next().expect("one per turn"));
                    prop_assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
                }
            }
        }
    }
}
