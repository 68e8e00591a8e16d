//! 1 if the final answer of the model's last turn equals the label, else 0.
//!
//! The last `\boxed{}` is the final answer, and one that never closes is none; without a box it is what follows
//! the last "answer is" or `####`, or else the last number. Answers are equal if they are the same rational
//! number or the same text after normalisation. Nothing that the model wrote is evaluated.

use molt_plugin::reward::{Reward, Sample, Verdict};

pub struct Math;

impl Reward for Math {
    fn score(sample: Sample) -> Verdict {
        let Some(label) = sample.task.label else {
            return Verdict::Infra(format!("row {} has no label to compare with", sample.task.id));
        };
        Verdict::correct(math_answer::is_right(&sample.completion, &label))
    }
}

molt_plugin::export_reward!(Math);

#[cfg(test)]
mod tests {
    use super::*;
    use math_answer::equal;
    use molt_plugin::types::Task;

    fn score(completion: &str, label: Option<&str>) -> Verdict {
        let label = label.map(str::to_owned);
        let task = Task { id: "7".into(), messages: vec![], label, fields: vec![], seed: 0 };
        Math::score(Sample { task, messages: vec![], completion: completion.into(), truncated: false })
    }

    #[test]
    fn the_final_answer_is_compared_with_the_label() {
        assert_eq!(score("So 1 + 1 = \\boxed{2}, not 3.", Some("2")), Verdict::reward(1.0));
        assert_eq!(score("The answer is 3.", Some("2")), Verdict::reward(0.0));
        assert_eq!(score("I do not know.", Some("2")), Verdict::reward(0.0));
        assert_eq!(score("It is 18", Some("16 - 3 - 4 = 9, 9 * 2 = 18\n#### 18")), Verdict::reward(1.0));
        assert!(matches!(score("2", None), Verdict::Infra(why) if why.contains("row 7")));
    }

    /// Pairs that graders in use agree on: gold, answer, 1 if they are equal, source, licence.
    #[test]
    fn pairs_from_other_graders() {
        let mut rows = 0;
        for line in include_str!("../tests/pairs.tsv").lines().skip(1) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [gold, answer, expected, source, _licence] = columns[..] else { panic!("row {line:?}") };
            assert_eq!(equal(answer, gold), expected == "1", "{answer:?} and {gold:?} ({source})");
            rows += 1;
        }
        assert!(rows >= 30, "{rows} rows");
    }
}
