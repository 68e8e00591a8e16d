//! A right answer is worth 1, divided among the rollouts of the prompt that found it in the same words.

use molt_plugin::reward::{Grade, GroupReward, Sample, Verdict};
use molt_plugin::types::Metric;

pub struct Shared;

impl GroupReward for Shared {
    fn score_group(samples: Vec<Sample>) -> Vec<Verdict> {
        samples.iter().map(|sample| score(sample, &samples)).collect()
    }
}

fn score(sample: &Sample, all: &[Sample]) -> Verdict {
    let Some(label) = &sample.task.label else {
        return Verdict::Infra("the row has no label".into()); // the grader's fault: dropped and counted
    };
    let same = all.iter().filter(|other| other.completion == sample.completion).count() as f64;
    let solved = sample.completion.contains(label.as_str());
    let reward = if solved { 1.0 / same } else { 0.0 };
    Verdict::Scored(Grade { reward, solved: Some(solved), metrics: vec![Metric::new("same", same)] })
}

molt_plugin::export_group_reward!(Shared);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::Task;

    #[test]
    fn the_same_words_share() {
        let sample = |completion: &str| {
            let task = Task { id: "1".into(), messages: vec![], label: Some("42".into()), fields: vec![], seed: 0 };
            Sample { task, messages: vec![], completion: completion.into(), truncated: false }
        };
        let verdicts = Shared::score_group(["42", "It is 42.", "42", "41"].map(sample).to_vec());
        let rewards: Vec<f64> = verdicts
            .iter()
            .map(|verdict| match verdict {
                Verdict::Scored(grade) => grade.reward,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(rewards, [0.5, 1.0, 0.5, 0.0]);
    }
}
