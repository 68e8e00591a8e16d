//! Leave-one-out: the advantage of a rollout is its reward less the mean reward of the others in its group.

use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Traits};

pub struct LeaveOneOut;

impl Estimator for LeaveOneOut {
    fn describe() -> Traits {
        Traits { needs_group: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let mut advantages = vec![0.0; batch.rewards.len()];
        for group in batch.rollouts_by_group() {
            let sum: f64 = group.iter().map(|&rollout| f64::from(batch.rewards[rollout])).sum();
            let others = (group.len() as f64 - 1.0).max(1.0); // a rollout without others has advantage 0
            for &rollout in &group {
                let own = f64::from(batch.rewards[rollout]);
                let rest = if group.len() == 1 { own } else { sum - own };
                advantages[rollout] = (own - rest / others) as f32;
            }
        }
        Ok(Estimates {
            advantages: Credit::PerRollout(advantages),
            returns: Credit::PerRollout(batch.rewards),
        })
    }
}

molt_plugin::export_estimator!(LeaveOneOut);

#[cfg(test)]
mod tests {
    use super::*;

    fn advantages(rewards: &[f32], groups: &[u32]) -> Vec<f32> {
        let batch = Batch::of(rewards, groups, &vec![1; rewards.len()]);
        match LeaveOneOut::estimate(batch).expect("never refuses").advantages {
            Credit::PerRollout(advantages) => advantages,
            Credit::PerToken(_) => panic!("the advantages are per rollout"),
        }
    }

    #[test]
    fn each_against_the_mean_of_the_others() {
        // Group 0 has rewards 1, 0, 0.5: 1 - 0.25, 0 - 0.75, 0.5 - 0.5.
        assert_eq!(advantages(&[1.0, 3.0, 0.0, 0.5], &[0, 1, 0, 0]), [0.75, 0.0, -0.75, 0.0]);
    }

    #[test]
    fn equal_rewards_have_no_advantage() {
        assert_eq!(advantages(&[0.25; 4], &[0; 4]), [0.0; 4]);
    }
}
