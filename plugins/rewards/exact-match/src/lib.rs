//! 1 if the model's last turn is the label, without the white space around either; else 0.

use molt_plugin::reward::{Reward, Sample, Verdict};

pub struct ExactMatch;

impl Reward for ExactMatch {
    fn score(sample: Sample) -> Verdict {
        match sample.task.label {
            Some(label) => Verdict::correct(sample.completion.trim() == label.trim()),
            None => Verdict::Infra(format!("row {} has no label to compare with", sample.task.id)),
        }
    }
}

molt_plugin::export_reward!(ExactMatch);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::Task;

    fn score(completion: &str, label: Option<&str>) -> Verdict {
        let label = label.map(str::to_owned);
        let task = Task { id: "7".into(), messages: vec![], label, fields: vec![], seed: 0 };
        ExactMatch::score(Sample { task, messages: vec![], completion: completion.into(), truncated: false })
    }

    #[test]
    fn white_space_around_does_not_count_and_all_else_does() {
        assert_eq!(score(" 42\n", Some("42")), Verdict::reward(1.0));
        assert_eq!(score("42.", Some("42")), Verdict::reward(0.0));
        assert_eq!(score("a b", Some("ab")), Verdict::reward(0.0));
    }

    #[test]
    fn without_a_label_the_grader_is_at_fault() {
        assert!(matches!(score("42", None), Verdict::Infra(why) if why.contains("row 7")));
    }
}
