//! Rewards: score a finished rollout, or the finished rollouts of one prompt together.

pub use crate::bindings::group_reward::exports::molt::plugin::group_reward::Guest as GroupReward;
pub use crate::bindings::reward::exports::molt::plugin::reward::Guest as Reward;
pub use crate::bindings::types::{Grade, Metric, Sample, Verdict};

impl Verdict {
    /// A reward without metrics; the task counts as solved when it is at least 1.
    pub fn reward(reward: f64) -> Self {
        Verdict::Scored(Grade { reward, solved: None, metrics: Vec::new() })
    }

    /// Says whether the task counts as solved, for accuracy and pass@k, apart from the reward.
    pub fn solved(self, solved: bool) -> Self {
        match self {
            Verdict::Scored(grade) => Verdict::Scored(Grade { solved: Some(solved), ..grade }),
            unscored => unscored,
        }
    }

    /// Adds a metric, if there is a value and the task was scored.
    pub fn metric(self, name: &str, value: Option<f64>) -> Self {
        match (self, value) {
            (Verdict::Scored(mut grade), Some(value)) => {
                grade.metrics.push(Metric::new(name, value));
                Verdict::Scored(grade)
            }
            (verdict, _) => verdict,
        }
    }

    /// 1 for a right answer, 0 for a wrong one.
    pub fn correct(correct: bool) -> Self {
        Self::reward(if correct { 1.0 } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shaped_reward_says_itself_what_is_solved() {
        let grade = Grade { reward: 0.4, solved: Some(true), metrics: vec![] };
        assert_eq!(Verdict::reward(0.4).solved(true), Verdict::Scored(grade));
        let metric = Metric::new("tries", 2.0);
        let with = Verdict::reward(1.0).metric("tries", Some(2.0)).metric("time", None);
        assert!(matches!(with, Verdict::Scored(grade) if grade.metrics == [metric]));
        let unscored = Verdict::Infra("no label".into());
        assert_eq!(unscored.clone().solved(true), unscored);
    }
}
