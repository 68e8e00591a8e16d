//! Credit turn by turn: what a turn led to, against what the other rollouts of its prompt got from that turn on.
//!
//! Turn t of rollout i has the return G(i,t) = r(i,t) + gamma · G(i,t+1), where r(i,t) is what the turn earned and
//! the sum ends with the rollout; gamma counts turns, not tokens. Its advantage is
//!
//! ```text
//! A(i,t) = G(i,t) − mean of G(j,t) over the rollouts j ≠ i of the group that have a turn t
//! ```
//!
//! and every action token of the turn gets it. What the others got does not depend on what rollout i says, so the
//! gradient stays unbiased (the leave-one-out baseline of Kool et al. 2019). A turn that no other rollout of the
//! group came to has nothing to compare with: 0. With one turn this is leave-one-out REINFORCE; with gamma 0 each
//! turn answers only for what it earned itself.

use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Traits};

pub struct TurnCredit;

impl Estimator for TurnCredit {
    fn describe() -> Traits {
        Traits { needs_group: true, needs_values: false, whiten: false }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let gamma = f64::from(batch.gamma);
        let returns: Vec<Vec<f64>> =
            (0..batch.rewards.len()).map(|rollout| returns(batch.turn_rewards_of(rollout), gamma)).collect();
        let mut advantages = vec![Vec::new(); returns.len()];
        for members in batch.rollouts_by_group() {
            let longest = members.iter().map(|&rollout| returns[rollout].len()).max().unwrap_or(0);
            for turn in 0..longest {
                let there =
                    members.iter().filter_map(|&rollout| Some((rollout, *returns[rollout].get(turn)?)));
                let there: Vec<(usize, f64)> = there.collect();
                let values: Vec<f64> = there.iter().map(|(_, value)| *value).collect();
                for ((rollout, _), advantage) in there.into_iter().zip(leave_one_out(&values)) {
                    advantages[rollout].push(advantage);
                }
            }
        }
        Ok(Estimates { advantages: per_token(&batch, &advantages), returns: per_token(&batch, &returns) })
    }
}

molt_plugin::export_estimator!(TurnCredit);

/// The discounted sum of what each turn and those after it earned.
pub fn returns(rewards: &[f32], gamma: f64) -> Vec<f64> {
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

/// Each value less the mean of the others; 0 for one that has no others.
pub fn leave_one_out(values: &[f64]) -> Vec<f64> {
    let others = values.len().saturating_sub(1);
    if others == 0 {
        return vec![0.0; values.len()];
    }
    let sum: f64 = values.iter().sum();
    values.iter().map(|value| value - (sum - value) / others as f64).collect()
}

/// The number of its rollout and turn for every action token.
fn per_token(batch: &Batch, by_turn: &[Vec<f64>]) -> Credit {
    let tokens = batch.segments().flat_map(|segment| {
        let of_rollout = &by_turn[segment.rollout];
        batch.turns[segment.tokens].iter().map(|&turn| of_rollout[turn as usize] as f32)
    });
    Credit::PerToken(tokens.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rollouts of (group, what each turn earned), each turn of two action tokens.
    fn batch(gamma: f32, rollouts: &[(u32, &[f32])]) -> Batch {
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
            gamma,
            lambda: 1.0,
            kl_coef: 0.0,
        };
        for (_, turns) in rollouts {
            batch.turns.extend((0..turns.len() as u32).flat_map(|turn| [turn, turn]));
            batch.segment_offsets.push(batch.turns.len() as u32);
            batch.turn_offsets.push(batch.turn_offsets.last().copied().unwrap_or(0) + turns.len() as u32);
        }
        batch
    }

    fn estimate(batch: Batch) -> (Vec<f32>, Vec<f32>) {
        let estimates = TurnCredit::estimate(batch).expect("it cannot fail");
        match (estimates.advantages, estimates.returns) {
            (Credit::PerToken(advantages), Credit::PerToken(returns)) => (advantages, returns),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn three_rollouts_of_different_lengths() {
        // By hand, with gamma 1/2.
        // Returns: [1, 0, 2] -> 2, then 0 + 2/2 = 1, then 1 + 1/2 = 1.5; [0, 2] -> 2, then 1; [3] -> 3.
        // Turn 0: 1.5 − (1 + 3)/2 = −0.5; 1 − (1.5 + 3)/2 = −1.25; 3 − (1.5 + 1)/2 = 1.75.
        // Turn 1: 1 − 2 = −1; 2 − 1 = 1. Turn 2 has one rollout: 0.
        let (advantages, returns) =
            estimate(batch(0.5, &[(0, &[1.0, 0.0, 2.0]), (0, &[0.0, 2.0]), (0, &[3.0])]));
        assert_eq!(returns, [1.5, 1.5, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
        assert_eq!(advantages, [-0.5, -0.5, -1.0, -1.0, 0.0, 0.0, -1.25, -1.25, 1.0, 1.0, 1.75, 1.75]);
    }

    #[test]
    fn groups_are_compared_with_themselves_and_tokens_found_across_segments() {
        // Group 0 has rollouts 0 and 2 with 1 and 0: ±1. Group 1 has one rollout: 0.
        let mut batch = batch(1.0, &[(0, &[1.0]), (1, &[9.0]), (0, &[0.0])]);
        // The second token of rollout 0 lies in a segment of its own at the end.
        batch.segment_rollouts = vec![0, 1, 2, 0];
        batch.segment_offsets = vec![0, 1, 3, 5, 6];
        assert_eq!(estimate(batch).0, [1.0, 0.0, 0.0, -1.0, -1.0, 1.0]);
    }

    #[test]
    fn with_gamma_0_a_turn_answers_for_itself() {
        let (advantages, _) = estimate(batch(0.0, &[(0, &[1.0, 0.0]), (0, &[0.0, 1.0])]));
        assert_eq!(advantages, [1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0]);
    }

    proptest! {
        #[test]
        fn the_advantages_of_one_turn_add_up_to_nothing(
            rollouts in prop::collection::vec(prop::collection::vec(-10f32..10.0, 1..5), 2..8),
            gamma in 0f32..=1.0,
        ) {
            let group: Vec<(u32, &[f32])> = rollouts.iter().map(|turns| (0, &turns[..])).collect();
            let batch = batch(gamma, &group);
            let turns = batch.turns.clone();
            let (advantages, _) = estimate(batch);
            for turn in 0..5 {
                let sum: f64 =
                    turns.iter().zip(&advantages).filter(|(t, _)| **t == turn).map(|(_, a)| f64::from(*a)).sum();
                prop_assert!(sum.abs() < 1e-3, "turn {turn}: {sum}");
            }
        }
    }
}
