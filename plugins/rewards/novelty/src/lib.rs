//! A bonus for answers of one's own: 1/k for an answer that k rollouts of the group gave, 0 for an empty one.
//!
//! The answer is the last line of the completion that is not blank, without regard to case and to how much white
//! space is between its words. The bonuses of a group add up to the number of its distinct answers, so giving an
//! answer that nobody else gave is the only way to more of them. It says nothing of right and wrong: name it after
//! the reward that does, with a small weight.

use molt_plugin::reward::{Grade, GroupReward, Sample, Verdict};
use molt_plugin::types::Metric;
use std::collections::BTreeMap;

pub struct Novelty;

impl GroupReward for Novelty {
    fn score_group(samples: Vec<Sample>) -> Vec<Verdict> {
        let answers: Vec<String> = samples.iter().map(|sample| answer(&sample.completion)).collect();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for answer in &answers {
            *counts.entry(answer).or_default() += 1;
        }
        let distinct = counts.keys().filter(|answer| !answer.is_empty()).count() as f64;
        let share = distinct / answers.len().max(1) as f64;
        let verdict = |answer: &String| {
            let bonus = if answer.is_empty() { 0.0 } else { 1.0 / f64::from(counts[answer.as_str()]) };
            let metrics = vec![Metric::new("distinct_answers", share)];
            Verdict::Scored(Grade { reward: bonus, solved: Some(false), metrics })
        };
        answers.iter().map(verdict).collect()
    }
}

molt_plugin::export_group_reward!(Novelty);

/// What a completion answers, in a form that equal answers share.
fn answer(completion: &str) -> String {
    let last = completion.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    last.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::Task;

    fn bonuses(completions: &[&str]) -> Vec<f64> {
        let sample = |completion: &&str| Sample {
            task: Task { id: "7".into(), messages: vec![], label: None, fields: vec![], seed: 0 },
            messages: vec![],
            completion: (*completion).into(),
            truncated: false,
        };
        let verdicts = Novelty::score_group(completions.iter().map(sample).collect());
        let bonus = |verdict| match verdict {
            Verdict::Scored(grade) => grade.reward,
            other => panic!("{other:?}"),
        };
        verdicts.into_iter().map(bonus).collect()
    }

    #[test]
    fn a_shared_answer_shares_its_bonus() {
        assert_eq!(bonuses(&["4", "5", "so it is\n 4 \n\n", "4"]), [1.0 / 3.0, 1.0, 1.0 / 3.0, 1.0 / 3.0]);
        assert_eq!(bonuses(&["The  END", "the end"]), [0.5, 0.5]);
        assert_eq!(bonuses(&["", " \n ", "x"]), [0.0, 0.0, 1.0], "saying nothing is not new");
        assert!(bonuses(&[]).is_empty());
    }

    #[test]
    fn it_never_says_solved_and_tells_the_share_of_distinct_answers() {
        let task = Task { id: "7".into(), messages: vec![], label: None, fields: vec![], seed: 0 };
        let sample = Sample { task, messages: vec![], completion: "x".into(), truncated: false };
        let expected =
            Grade { reward: 0.5, solved: Some(false), metrics: vec![Metric::new("distinct_answers", 0.5)] };
        assert_eq!(Novelty::score_group(vec![sample; 2]), vec![Verdict::Scored(expected); 2]);
    }
}
