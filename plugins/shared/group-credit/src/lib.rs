//! What estimators share that compare the rollouts of a prompt.
//!
//! A rollout without an action token has nothing to be trained on, and its reward shifts nobody's baseline: it is no
//! member of its group, and its advantage is 0. Statistics are of rollouts, however many segments they have.

use molt_plugin::estimator::{Batch, Credit, Estimates};

/// A rollout of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// Index into [`Batch::rewards`].
    pub rollout: usize,
    pub reward: f64,
    /// Its action tokens, at least one.
    pub tokens: usize,
}

/// The members of each group.
pub fn members(batch: &Batch) -> Vec<Vec<Member>> {
    let mut tokens = vec![0; batch.rewards.len()];
    for segment in batch.segments() {
        tokens[segment.rollout] += segment.tokens.len();
    }
    let member = |rollout: usize| Member {
        rollout,
        reward: f64::from(batch.rewards[rollout]),
        tokens: tokens[rollout],
    };
    let groups = batch.rollouts_by_group().into_iter();
    groups.map(|group| group.into_iter().map(member).filter(|member| member.tokens > 0).collect()).collect()
}

/// The advantage of every rollout, of which `of` finds those of one group from its rewards. The returns are the same.
///
/// # Errors
/// An advantage is too large for 32 bits.
pub fn estimates(batch: &Batch, of: impl Fn(&[f64]) -> Vec<f64>) -> Result<Estimates, String> {
    let mut advantages = vec![0.0; batch.rewards.len()];
    for group in members(batch) {
        let rewards: Vec<f64> = group.iter().map(|member| member.reward).collect();
        for (member, advantage) in group.iter().zip(of(&rewards)) {
            advantages[member.rollout] = single(advantage)?;
        }
    }
    let returns = Credit::PerRollout(advantages.clone());
    Ok(Estimates { advantages: Credit::PerRollout(advantages), returns })
}

/// Each value less the mean of all; exactly 0 where all are equal.
pub fn centred(values: &[f64]) -> Vec<f64> {
    let Some(first) = values.first().filter(|first| values.iter().any(|value| value != *first)) else {
        return vec![0.0; values.len()];
    };
    // About the first value: sums of large equal parts are not exact.
    let mean = first + values.iter().map(|value| value - first).sum::<f64>() / values.len() as f64;
    values.iter().map(|value| value - mean).collect()
}

/// Each value less the mean of all, in standard deviations with n − 1 in the denominator, plus 1e-9.
pub fn standardised(values: &[f64]) -> Vec<f64> {
    let centred = centred(values);
    let squares: f64 = centred.iter().map(|value| value * value).sum();
    let scale = (squares / (values.len() as f64 - 1.0).max(1.0)).sqrt() + 1e-9;
    centred.iter().map(|value| value / scale).collect()
}

/// Each value less the mean of the others. One that is alone has no others, and stays as it is.
pub fn leave_one_out(values: &[f64]) -> Vec<f64> {
    let count = values.len() as f64;
    if count < 2.0 {
        return values.to_vec();
    }
    // value − (sum − value) / (count − 1), without the cancellation.
    centred(values).into_iter().map(|value| value * (count / (count - 1.0))).collect()
}

/// A number as the host takes it.
///
/// # Errors
/// It is too large for 32 bits.
pub fn single(value: f64) -> Result<f32, String> {
    let single = value as f32;
    single.is_finite().then_some(single).ok_or_else(|| {
        format!("an advantage or a return of {value:e} is too large: the rewards are too far apart")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollouts_without_action_tokens_are_no_members() {
        // Rollout 0 has two segments, of 2 and 1 tokens; rollout 2 has one, of none; rollout 3 has no segment.
        let batch = Batch {
            segment_rollouts: vec![0, 1, 0, 2],
            segment_offsets: vec![0, 2, 5, 6, 6],
            turns: vec![0; 6],
            ..Batch::of(&[1.0, 2.0, 100.0, -100.0], &[0, 0, 0, 1], &[])
        };
        let member = |rollout, reward, tokens| Member { rollout, reward, tokens };
        assert_eq!(members(&batch), [vec![member(0, 1.0, 3), member(1, 2.0, 3)], vec![]]);
        let estimates = estimates(&batch, centred).expect("finite");
        assert_eq!(estimates.advantages, Credit::PerRollout(vec![-0.5, 0.5, 0.0, 0.0]));
    }

    #[test]
    fn equal_values_give_exactly_nothing() {
        for value in [0.1, 1e300, 1.0 / 3.0, -7e-310] {
            assert_eq!(centred(&[value; 7]), [0.0; 7]);
            assert_eq!(standardised(&[value; 7]), [0.0; 7]);
            assert_eq!(leave_one_out(&[value; 7]), [0.0; 7]);
        }
        assert!(centred(&[]).is_empty() && standardised(&[]).is_empty() && leave_one_out(&[]).is_empty());
    }

    #[test]
    fn leave_one_out_is_the_mean_of_the_others() {
        let close = |found: &[f64], expected: &[f64]| {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
            }
        };
        // 1 − (2 + 6)/2, 2 − (1 + 6)/2, 6 − (1 + 2)/2.
        close(&leave_one_out(&[1.0, 2.0, 6.0]), &[-3.0, -1.5, 4.5]);
        assert_eq!(leave_one_out(&[0.5]), [0.5]);
        // Seven of 0.35 and one of 0.95: 0.35 − (6 · 0.35 + 0.95)/7, and 0.6.
        let mut rewards = [0.35; 8];
        rewards[7] = 0.95;
        close(&leave_one_out(&rewards), &[[-0.6 / 7.0; 7].as_slice(), &[0.6]].concat());
    }

    #[test]
    fn what_does_not_fit_is_told() {
        assert_eq!(single(1e-60), Ok(0.0));
        assert!(single(1e39).expect_err("too large").contains("1e39"));
        assert!(single(f64::NAN).is_err());
    }
}
