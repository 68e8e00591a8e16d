//! Rewards: one verdict for one rollout, whatever the model wrote.

use super::{Findings, answer, brief, inputs};
use crate::cases::{self, GroupCase, RewardCase, Row};
use crate::error::AuthorError;
use futures_util::future::join_all;
use molt_sandbox::{Call, Failure, Reward, Sample, Verdict};
use std::path::Path;

/// An input: the samples of a prompt group, of which a reward of single rollouts gets one after the other.
struct Input {
    name: String,
    seed: u64,
    samples: Vec<Sample>,
}

pub(super) async fn check(
    reward: &Reward,
    cases: Option<&Path>,
    findings: &mut Findings,
) -> Result<(), AuthorError> {
    let mut inputs = from_cases(reward, cases)?;
    inputs.extend(hard());
    let mut alone = Vec::new();
    for input in &inputs {
        alone.push(score(reward, input).await);
    }
    let good =
        format!("{} inputs, empty, huge, malformed and of all scripts; {}", inputs.len(), count(&alone));
    let help = "a verdict is due for everything that a model may write: `invalid` if it cannot be scored, `infra` if \
                the row is at fault";
    let calls = (&*failures(&inputs, &alone), inputs.len());
    if !findings.calls("inputs", good, calls, (reward.info(), help)) {
        return Ok(());
    }

    let mut problems = Vec::new();
    for (input, before) in inputs.iter().zip(&alone) {
        let again = score(reward, input).await;
        if answer(before) != answer(&again) {
            problems.push(format!(
                "{}: {}, and then {}",
                input.name,
                brief(&answer(before)),
                brief(&answer(&again))
            ));
        }
    }
    findings.all(
        "determinism",
        "the same input gives the same bits",
        problems,
        "let nothing but the input and `task.seed` decide: no time, no order of a hash table",
    );

    // In the other order and all at once: an instance that saw another's input would answer otherwise.
    let together = join_all(inputs.iter().rev().map(|input| score(reward, input))).await;
    let pairs = inputs.iter().zip(&alone).zip(together.iter().rev());
    let problems = pairs.filter(|((_, before), after)| answer(before) != answer(after));
    let problems = problems.map(|((input, before), after)| {
        format!("{}: alone {}, beside others {}", input.name, brief(&answer(before)), brief(&answer(after)))
    });
    findings.all(
        "independence",
        "inputs scored at the same time do not change each other's verdicts",
        problems.collect(),
        "keep nothing outside of the call",
    );
    Ok(())
}

async fn score(reward: &Reward, input: &Input) -> Result<Vec<Verdict>, Failure> {
    let call = Call { rollout: None, seed: input.seed };
    if reward.scores_groups() {
        return reward.score_group(call, &input.samples).await;
    }
    let mut verdicts = Vec::new();
    for sample in &input.samples {
        verdicts.push(reward.score(call, sample).await?);
    }
    Ok(verdicts)
}

fn from_cases(reward: &Reward, file: Option<&Path>) -> Result<Vec<Input>, AuthorError> {
    let Some(file) = file else { return Ok(Vec::new()) };
    if reward.scores_groups() {
        let cases = cases::read::<GroupCase>(file)?;
        let input =
            |case: GroupCase| Input { samples: case.samples(), name: named(&case.name), seed: case.row.seed };
        return Ok(cases.into_iter().map(input).collect());
    }
    let cases = cases::read::<RewardCase>(file)?;
    let input = |case: RewardCase| Input {
        samples: vec![case.sample()],
        name: named(&case.name),
        seed: case.row.seed,
    };
    Ok(cases.into_iter().map(input).collect())
}

fn named(case: &str) -> String {
    format!("case {case:?}")
}

/// Every hard text as the completion, and the short ones as the label too.
fn hard() -> Vec<Input> {
    let mut all = Vec::new();
    for (name, text) in inputs::texts() {
        let row = Row::new(Some("What is 6 times 7?".into()), Some("42".into()), 7);
        let samples = vec![row.sample(&text), row.sample("42"), row.sample(&text)];
        all.push(Input { name: format!("completion: {name}"), seed: 7, samples });
        if text.len() < 1000 {
            let row = Row::new(Some(text.clone()), Some(text.clone()), 7);
            all.push(Input { name: format!("label: {name}"), seed: 7, samples: vec![row.sample("42")] });
            all.push(Input {
                name: format!("label and completion: {name}"),
                seed: 7,
                samples: vec![row.sample(&text)],
            });
        }
    }
    let unlabelled = Row::new(None, None, 7);
    all.push(Input {
        name: "a row without prompt and label".into(),
        seed: 7,
        samples: vec![unlabelled.sample("42")],
    });
    let row = Row::new(Some("What is 6 times 7?".into()), Some("-42".into()), u64::MAX);
    let mut sample = row.sample("The answer is 4");
    sample.truncated = true;
    sample.task.fields = vec![("tests".into(), "{".into()), (String::new(), "\u{0}".into())];
    all.push(Input { name: "a turn that was cut off".into(), seed: u64::MAX, samples: vec![sample.clone()] });
    sample.messages.clear();
    sample.seed = 0;
    all.push(Input { name: "a conversation without messages".into(), seed: 0, samples: vec![sample; 16] });
    all
}

fn failures<'a>(
    inputs: &'a [Input],
    verdicts: &'a [Result<Vec<Verdict>, Failure>],
) -> Vec<(&'a str, &'a Failure)> {
    let failed =
        |(input, verdict): (&'a Input, &'a Result<_, _>)| Some((&*input.name, verdict.as_ref().err()?));
    inputs.iter().zip(verdicts).filter_map(failed).collect()
}

/// An input has several rollouts.
fn count(verdicts: &[Result<Vec<Verdict>, Failure>]) -> String {
    let (mut scored, mut invalid, mut infra) = (0, 0, 0);
    for verdict in verdicts.iter().flatten().flatten() {
        match verdict {
            Verdict::Scored { .. } => scored += 1,
            Verdict::Invalid(_) => invalid += 1,
            Verdict::Infra(_) => infra += 1,
        }
    }
    let all = scored + invalid + infra;
    format!("of their {all} rollouts {scored} scored, {invalid} invalid, {infra} infra")
}
