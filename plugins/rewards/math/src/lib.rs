//! 1 if the final answer of the model's last turn equals the label, else 0.
//!
//! The last `\boxed{}` is the final answer, or several that are joined by a word like "and"; one that never closes is
//! none. Without a box it is what follows the last "answer is" or `####`, or else the last formula or number. What a
//! model writes between `<think>` and `</think>` is not looked at. Answers are equal if they are the same mathematics,
//! or the same text after normalisation; see `math-answer`. Nothing that the model wrote is evaluated as code.
//!
//! Where public graders contradict each other, the row's column `math` chooses, by words with spaces between them:
//! * `boxed`: only a box is an answer.
//! * `ordered`: several answers must come in the label's order. By default they are a set.
//! * `reduced`: a fraction must be in lowest terms. By default 2/6 is 1/3.
//! * `percent`: 10% is 0.1 only. By default it is 10 too, as many labels leave the sign out.
//! * `digits=N`: a decimal with at least N significant digits is what it is rounded from, so with 4, the default, 1.732
//!   is √3. `exact`: none is.

use math_answer::Choices;
use molt_plugin::reward::{Reward, Sample, Verdict};

pub struct Math;

impl Reward for Math {
    fn score(sample: Sample) -> Verdict {
        let Some(label) = &sample.task.label else {
            return Verdict::Infra(format!("row {} has no label to compare with", sample.task.id));
        };
        let choices = match Choices::parse(sample.task.field("math").unwrap_or("")) {
            Ok(choices) => choices,
            Err(why) => {
                return Verdict::Infra(format!("the column \"math\" of row {}: {why}", sample.task.id));
            }
        };
        Verdict::correct(math_answer::is_right(&sample.completion, label, &choices))
    }
}

molt_plugin::export_reward!(Math);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::{Field, Task};

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

    #[test]
    fn a_column_chooses_where_graders_differ() {
        let score = |choices: &str| {
            let fields = vec![Field { name: "math".into(), value: choices.into() }];
            let task =
                Task { id: "7".into(), messages: vec![], label: Some("1/3, 2".into()), fields, seed: 0 };
            Math::score(Sample {
                task,
                messages: vec![],
                completion: "\\boxed{2, 2/6}".into(),
                truncated: false,
            })
        };
        assert_eq!(score(""), Verdict::reward(1.0));
        assert_eq!(score("boxed percent"), Verdict::reward(1.0));
        assert_eq!(score("ordered"), Verdict::reward(0.0));
        assert_eq!(score("reduced"), Verdict::reward(0.0));
        assert!(
            matches!(score("lenient"), Verdict::Infra(why) if why.contains("row 7") && why.contains("ordered"))
        );
    }
}
