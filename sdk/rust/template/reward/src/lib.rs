//! Closeness: 1 for the right answer, and up to a half for one that begins like it.

use molt_plugin::reward::{Grade, Reward, Sample, Verdict};
use molt_plugin::types::Metric;

pub struct Closeness;

impl Reward for Closeness {
    fn score(sample: Sample) -> Verdict {
        let Some(label) = &sample.task.label else {
            return Verdict::Infra("the row has no label".into()); // the grader's fault: dropped and counted
        };
        let (answer, label) = (trim(&sample.completion), trim(label));
        if answer.is_empty() {
            return Verdict::Invalid("the answer is empty".into()); // the model's fault: the lowest reward
        }
        let solved = answer == label;
        let length = answer.chars().count();
        let reward = if solved {
            1.0
        } else {
            let common = answer.chars().zip(label.chars()).take_while(|(a, b)| a == b).count();
            0.5 * common as f64 / length.max(label.chars().count()) as f64
        };
        let metrics = vec![Metric::new("length", length as f64)];
        Verdict::Scored(Grade { reward, solved: Some(solved), metrics })
    }
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c'])
}

molt_plugin::export_reward!(Closeness);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::Task;

    fn score(completion: &str, label: Option<&str>) -> Verdict {
        let label = label.map(str::to_owned);
        let task = Task { id: "1".into(), messages: vec![], label, fields: vec![], seed: 0 };
        Closeness::score(Sample { task, messages: vec![], completion: completion.into(), truncated: false })
    }

    #[test]
    fn half_of_the_beginning_is_worth_a_quarter() {
        let metrics = vec![Metric::new("length", 2.0)];
        let expected = Grade { reward: 0.25, solved: Some(false), metrics };
        assert_eq!(score(" 42\n", Some("43")), Verdict::Scored(expected));
    }

    #[test]
    fn faults_of_model_and_grader_are_kept_apart() {
        assert!(matches!(score(" \n", Some("42")), Verdict::Invalid(_)));
        assert!(matches!(score("42", None), Verdict::Infra(_)));
    }
}
