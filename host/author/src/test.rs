//! `molt plugin test`: cases from a file, and what differs.

use crate::batch::tokens_by_rollout;
use crate::cases::{
    self, EnvironmentCase, EstimatorCase, ExpectEstimate, ExpectLosses, ExpectOutput, ExpectTransition,
    ExpectVerdict, GroupCase, InterpreterCase, LossCase, RewardCase, Said,
};
use crate::error::{AuthorError, FAILED};
use crate::failure;
use crate::open::{Loaded, Target};
use crate::present::{message, print, quoted};
use molt_core::chat::Message;
use molt_sandbox::{
    Call, CodeOutput, Environment, Estimate, Estimator, EstimatorBatch, Failure, Info, Interpreter, Loss,
    Losses, Reward, Transition, Verdict,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Try a plugin on cases from a file: inputs, and what must come back
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The cases [default: cases.toml of the project]
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
}

/// A case and what differs from what it expects.
type Tried = (String, Vec<String>);

pub(crate) fn run(args: &Args) -> Result<u8, AuthorError> {
    let opened = args.target.open()?;
    let file = match (&args.cases, &opened.project) {
        (Some(file), _) => file.clone(),
        (None, Some(project)) => project.dir.join("cases.toml"),
        (None, None) => return Err(AuthorError::user("there are no cases to try", "give --cases a file")),
    };
    let tried = opened.runtime.block_on(try_all(&opened.load()?, &file))?;
    let mut text = String::new();
    for (name, differences) in &tried {
        text += &format!("{}  {name}\n", if differences.is_empty() { "ok    " } else { "FAILED" });
        for difference in differences {
            text += &format!("        {}\n", difference.replace('\n', "\n        "));
        }
    }
    let failed = tried.iter().filter(|(_, differences)| !differences.is_empty()).count();
    let count = match (tried.len(), failed) {
        (1, 0) => "1 case, as expected".to_owned(),
        (all, 0) => format!("{all} cases, all as expected"),
        (all, failed) => format!("{failed} of {all} cases FAILED"),
    };
    print(&format!("{text}{count}\n"))?;
    Ok(if failed == 0 { 0 } else { FAILED })
}

async fn try_all(plugin: &Loaded, file: &Path) -> Result<Vec<Tried>, AuthorError> {
    let mut tried = Vec::new();
    match plugin {
        Loaded::Reward(reward) if reward.scores_groups() => {
            for case in cases::read::<GroupCase>(file)? {
                let differences = group(reward, &case).await;
                tried.push((case.name, differences));
            }
        }
        Loaded::Reward(reward) => {
            for case in cases::read::<RewardCase>(file)? {
                let found = reward.score(Call { rollout: None, seed: case.row.seed }, &case.sample()).await;
                let differences = told(found, reward.info(), |verdict| {
                    compare_verdict(&case.expect, verdict, case.tolerance)
                });
                tried.push((case.name, differences));
            }
        }
        Loaded::Environment(environment) => {
            for case in cases::read::<EnvironmentCase>(file)? {
                let differences = episode(environment, &case).await;
                tried.push((case.name, differences));
            }
        }
        Loaded::Estimator(estimator) => {
            for case in cases::read::<EstimatorCase>(file)? {
                let name = case.name.clone();
                tried.push((name, estimate(estimator, case).await));
            }
        }
        Loaded::Loss(loss) => {
            for case in cases::read::<LossCase>(file)? {
                let name = case.name.clone();
                tried.push((name, step(loss, case).await));
            }
        }
        Loaded::Interpreter(interpreter) => {
            for case in cases::read::<InterpreterCase>(file)? {
                let differences = session(interpreter, &case).await;
                tried.push((case.name, differences));
            }
        }
    }
    Ok(tried)
}

/// What differs in what came back, or the failure.
fn told<T>(found: Result<T, Failure>, info: &Info, compare: impl FnOnce(&T) -> Vec<String>) -> Vec<String> {
    found.map_or_else(|problem| vec![failure::told(&problem, info)], |found| compare(&found))
}

/// As [`told`], of what may be expected to fail with some text.
fn told_or_failed<T>(
    found: Result<T, Failure>,
    expected: &Option<String>,
    info: &Info,
    compare: impl FnOnce(&T) -> Vec<String>,
) -> Vec<String> {
    match (found, expected) {
        (Ok(_), Some(expected)) => vec![format!("expected a failure with {expected:?}, found none")],
        (Err(problem), Some(expected)) if problem.to_string().contains(expected) => Vec::new(),
        (found, _) => told(found, info, compare),
    }
}

async fn group(reward: &Reward, case: &GroupCase) -> Vec<String> {
    let samples = case.samples();
    if samples.len() != case.expect.len() {
        return vec![format!("{} completions, and {} verdicts to expect", samples.len(), case.expect.len())];
    }
    let found = reward.score_group(Call { rollout: None, seed: case.row.seed }, &samples).await;
    told(found, reward.info(), |verdicts| {
        let pairs = case.expect.iter().zip(verdicts).enumerate();
        let differences = pairs.flat_map(|(at, (expect, verdict))| {
            let differences = compare_verdict(expect, verdict, case.tolerance);
            differences.into_iter().map(move |difference| format!("completion {}: {difference}", at + 1))
        });
        differences.collect()
    })
}

async fn episode(environment: &Environment, case: &EnvironmentCase) -> Vec<String> {
    let call = Call { rollout: None, seed: case.row.seed };
    let mut episode = match environment.open(call, &case.row.task()).await {
        Ok(episode) => episode,
        Err(problem) => return vec![failure::told(&problem, environment.info())],
    };
    let start = match (episode.reset().await, &case.failure) {
        (Ok(start), None) => start,
        (Ok(_), Some(expected)) => return vec![format!("expected a failure with {expected:?}, found none")],
        (Err(problem), Some(expected)) if problem.to_string().contains(expected) => return Vec::new(),
        (Err(problem), _) => return vec![failure::told(&problem, environment.info())],
    };
    let mut differences = Vec::new();
    if let Some(expected) = &case.start {
        differences.extend(compare_messages("start", expected, &start));
    }
    for (at, turn) in case.turns.iter().enumerate() {
        let before = |difference: String| format!("turn {}: {difference}", at + 1);
        let transition = match (episode.step(&turn.action()).await, &turn.expect.failure) {
            (Ok(transition), None) => transition,
            (Err(problem), Some(expected)) if problem.to_string().contains(expected) => return differences,
            (Ok(_), Some(expected)) => {
                differences.push(before(format!("expected a failure with {expected:?}, found none")));
                return differences;
            }
            (Err(problem), _) => {
                differences.push(before(failure::told(&problem, environment.info())));
                return differences;
            }
        };
        let found = compare_transition(&turn.expect, &transition, case.tolerance);
        differences.extend(found.into_iter().map(before));
        if transition.done && at + 1 < case.turns.len() {
            differences.push(format!("the episode is over after turn {}, and the case goes on", at + 1));
            return differences;
        }
    }
    differences
}

async fn estimate(estimator: &Estimator, case: EstimatorCase) -> Vec<String> {
    let traits = match estimator.traits().await {
        Ok(traits) => traits,
        Err(problem) => return vec![failure::told(&problem, estimator.info())],
    };
    let batch = match case.batch.into_batch(&traits.parameters) {
        Ok(batch) => batch,
        Err(problem) => return vec![problem],
    };
    let found = estimator.estimate(&batch).await;
    told_or_failed(found, &case.expect.failure, estimator.info(), |found| {
        compare_estimate(&case.expect, &batch, found, case.tolerance)
    })
}

async fn step(loss: &Loss, case: LossCase) -> Vec<String> {
    let batch = match case.step.into_batch() {
        Ok(batch) => batch,
        Err(problem) => return vec![problem],
    };
    let found = loss.compute(&batch).await;
    told_or_failed(found, &case.expect.failure, loss.info(), |found| {
        compare_losses(&case.expect, found, case.tolerance)
    })
}

async fn session(interpreter: &Interpreter, case: &InterpreterCase) -> Vec<String> {
    let mut session = match interpreter.open(Call { rollout: None, seed: 0 }).await {
        Ok(session) => session,
        Err(problem) => return vec![failure::told(&problem, interpreter.info())],
    };
    let mut differences = Vec::new();
    for (at, run) in case.runs.iter().enumerate() {
        match session.run(&run.code).await {
            Ok(output) => {
                let found = compare_output(&run.expect, &output);
                differences
                    .extend(found.into_iter().map(|difference| format!("run {}: {difference}", at + 1)));
            }
            Err(problem) => {
                differences.push(format!("run {}: {}", at + 1, failure::told(&problem, interpreter.info())));
                return differences;
            }
        }
    }
    differences
}

fn compare_verdict(expect: &ExpectVerdict, found: &Verdict, tolerance: f64) -> Vec<String> {
    let scored = expect.reward.is_some() || expect.solved.is_some() || !expect.metrics.is_empty();
    if [scored, expect.invalid.is_some(), expect.infra.is_some()].iter().filter(|set| **set).count() > 1 {
        return vec!["a verdict is a score, `invalid` or `infra`: expect one of them".into()];
    }
    if let Some(reason) = &expect.invalid {
        return match found {
            Verdict::Invalid(why) if why.contains(reason) => Vec::new(),
            other => vec![format!("expected invalid with {reason:?}, found {}", describe(other))],
        };
    }
    if let Some(reason) = &expect.infra {
        return match found {
            Verdict::Infra(why) if why.contains(reason) => Vec::new(),
            other => vec![format!("expected infra with {reason:?}, found {}", describe(other))],
        };
    }
    let Verdict::Scored { reward, solved, metrics } = found else {
        return vec![format!("expected a score, found {}", describe(found))];
    };
    let mut differences = number("reward", expect.reward, Some(*reward), tolerance);
    differences.extend(plain("solved", expect.solved, Some(*solved)));
    differences.extend(compare_metrics(&expect.metrics, metrics, tolerance));
    differences
}

fn compare_transition(expect: &ExpectTransition, found: &Transition, tolerance: f64) -> Vec<String> {
    let mut differences = Vec::new();
    if let Some(expected) = &expect.messages {
        differences.extend(compare_messages("messages", expected, &found.messages));
    }
    differences.extend(number("reward", expect.reward, found.reward, tolerance));
    differences.extend(plain("solved", expect.solved, found.solved));
    differences.extend(plain("done", expect.done, Some(found.done)));
    differences.extend(compare_metrics(&expect.metrics, &found.metrics, tolerance));
    differences
}

fn compare_messages(what: &str, expected: &[Said], found: &[Message]) -> Option<String> {
    let expected: Vec<Message> = expected.iter().map(Said::message).collect();
    let list = |messages: &[Message]| {
        let lines: Vec<String> = messages.iter().map(message).collect();
        if lines.is_empty() { "none".to_owned() } else { lines.join(", ") }
    };
    (expected != found)
        .then(|| format!("{what}: expected {}\n{what}: found    {}", list(&expected), list(found)))
}

fn compare_metrics(expected: &BTreeMap<String, f64>, found: &[(String, f64)], tolerance: f64) -> Vec<String> {
    let compare = |(name, value): (&String, &f64)| {
        let found = found.iter().find(|(found, _)| found == name).map(|(_, value)| *value);
        number(&format!("metric {name}"), Some(*value), found, tolerance)
    };
    expected.iter().flat_map(compare).collect()
}

fn compare_estimate(
    expect: &ExpectEstimate,
    batch: &EstimatorBatch,
    found: &Estimate,
    tolerance: f64,
) -> Vec<String> {
    let tokens = tokens_by_rollout(batch);
    let per_rollout = |what: &str, expected: &Option<Vec<f64>>, found: &[f32]| {
        let Some(expected) = expected else { return Vec::new() };
        if expected.len() != tokens.len() {
            return vec![format!("{what}: {} expected, and {} rollouts", expected.len(), tokens.len())];
        }
        let differs = |(rollout, tokens): (usize, &Vec<usize>)| {
            let expected = *expected.get(rollout)?;
            let values = tokens.iter().filter_map(|&token| found.get(token));
            let other = values.copied().find(|&value| !close(expected, f64::from(value), tolerance))?;
            Some(format!("{what} of rollout {rollout}: expected {expected}, found {other}"))
        };
        tokens.iter().enumerate().filter_map(differs).collect()
    };
    let mut differences = per_rollout("advantage", &expect.advantages, &found.advantages);
    differences.extend(per_rollout("return", &expect.returns, &found.returns));
    differences.extend(per_token("advantage", &expect.token_advantages, &found.advantages, tolerance));
    differences.extend(per_token("return", &expect.token_returns, &found.returns, tolerance));
    differences
}

fn compare_losses(expect: &ExpectLosses, found: &Losses, tolerance: f64) -> Vec<String> {
    let mut differences = per_token("loss", &expect.losses, &found.losses, tolerance);
    differences.extend(per_token("slope", &expect.slopes, &found.slopes, tolerance));
    differences
}

fn per_token(what: &str, expected: &Option<Vec<f64>>, found: &[f32], tolerance: f64) -> Vec<String> {
    let Some(expected) = expected else { return Vec::new() };
    if expected.len() != found.len() {
        return vec![format!("{what}: {} expected, and {} action tokens", expected.len(), found.len())];
    }
    let pairs = expected.iter().zip(found).enumerate();
    let differs = pairs.filter(|(_, (expected, found))| !close(**expected, f64::from(**found), tolerance));
    differs.map(|(at, (e, f))| format!("{what} of token {at}: expected {e}, found {f}")).collect()
}

fn compare_output(expect: &ExpectOutput, found: &CodeOutput) -> Vec<String> {
    let mut differences = Vec::new();
    let shown = |text: Option<&str>| text.map_or("none".to_owned(), quoted);
    if expect.printed.as_ref().is_some_and(|expected| *expected != found.printed) {
        let expected = shown(expect.printed.as_deref());
        differences.push(format!("printed: expected {expected}, found {}", quoted(&found.printed)));
    }
    if expect.value.is_some() && expect.value != found.value {
        let (expected, found) = (shown(expect.value.as_deref()), shown(found.value.as_deref()));
        differences.push(format!("value: expected {expected}, found {found}"));
    }
    let error = found.error.as_deref();
    if let Some(expected) = expect.error.as_deref().filter(|e| !error.is_some_and(|error| error.contains(e)))
    {
        differences.push(format!("error: expected {}, found {}", quoted(expected), shown(error)));
    }
    differences
}

fn number(what: &str, expected: Option<f64>, found: Option<f64>, tolerance: f64) -> Vec<String> {
    let Some(expected) = expected else { return Vec::new() };
    match found {
        Some(found) if close(expected, found, tolerance) => Vec::new(),
        Some(found) => vec![format!("{what}: expected {expected}, found {found}")],
        None => vec![format!("{what}: expected {expected}, found none")],
    }
}

fn plain(what: &str, expected: Option<bool>, found: Option<bool>) -> Option<String> {
    let expected = expected?;
    let shown = found.map_or("none".to_owned(), |found| found.to_string());
    (found != Some(expected)).then(|| format!("{what}: expected {expected}, found {shown}"))
}

/// Whether two numbers are the same up to `tolerance`, which is relative for numbers above 1.
fn close(expected: f64, found: f64, tolerance: f64) -> bool {
    (expected - found).abs() <= tolerance * expected.abs().max(1.0)
}

/// A verdict on one line.
pub(crate) fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Scored { reward, solved, metrics } => {
            let metrics: String = metrics.iter().map(|(name, value)| format!(", {name} {value}")).collect();
            format!("reward {reward}, {}{metrics}", if *solved { "solved" } else { "not solved" })
        }
        Verdict::Invalid(why) => format!("invalid: {why}"),
        Verdict::Infra(why) => format!("infra: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(reward: f64) -> Verdict {
        Verdict::Scored { reward, solved: false, metrics: vec![("length".into(), 2.0)] }
    }

    #[test]
    fn what_is_unset_is_not_compared_and_what_differs_is_told() {
        let expect = ExpectVerdict { reward: Some(0.25), ..ExpectVerdict::default() };
        assert!(compare_verdict(&expect, &scored(0.25 + 1e-12), 1e-9).is_empty());
        let metrics = [("length".to_owned(), 3.0), ("depth".to_owned(), 1.0)].into();
        let expect = ExpectVerdict { solved: Some(true), metrics, ..expect };
        assert_eq!(
            compare_verdict(&expect, &scored(0.5), 1e-9),
            [
                "reward: expected 0.25, found 0.5",
                "solved: expected true, found false",
                "metric depth: expected 1, found none",
                "metric length: expected 3, found 2",
            ]
        );
    }

    #[test]
    fn a_reason_need_only_contain_what_is_expected() {
        let expect = ExpectVerdict { invalid: Some("empty".into()), ..ExpectVerdict::default() };
        assert!(compare_verdict(&expect, &Verdict::Invalid("the answer is empty".into()), 0.0).is_empty());
        assert_eq!(
            compare_verdict(&expect, &Verdict::Infra("empty".into()), 0.0),
            ["expected invalid with \"empty\", found infra: empty"]
        );
    }

    #[test]
    fn a_verdict_that_cannot_be_is_not_expected() {
        let expect =
            ExpectVerdict { invalid: Some("empty".into()), reward: Some(1.0), ..ExpectVerdict::default() };
        let told = compare_verdict(&expect, &Verdict::Invalid("empty".into()), 0.0);
        assert_eq!(told, ["a verdict is a score, `invalid` or `infra`: expect one of them"]);
    }

    #[test]
    fn advantages_are_compared_over_all_tokens_of_a_rollout() {
        let batch = EstimatorBatch {
            rewards: vec![1.0, 0.0],
            segment_rollouts: vec![0, 1, 0],
            segment_offsets: vec![0, 1, 2, 3],
            ..EstimatorBatch::default()
        };
        let found = Estimate { advantages: vec![1.0, 0.0, 0.5], returns: vec![0.0; 3] };
        let expect = ExpectEstimate { advantages: Some(vec![1.0, 0.0]), ..ExpectEstimate::default() };
        assert_eq!(
            compare_estimate(&expect, &batch, &found, 1e-6),
            ["advantage of rollout 0: expected 1, found 0.5"]
        );
        let expect =
            ExpectEstimate { token_advantages: Some(vec![1.0, 0.0, 0.5]), ..ExpectEstimate::default() };
        assert!(compare_estimate(&expect, &batch, &found, 1e-6).is_empty());
    }

    #[test]
    fn losses_and_slopes_are_compared_token_by_token() {
        let found = Losses { losses: vec![0.5, -6.0], slopes: vec![-1.0, 2.0] };
        let expect = ExpectLosses { losses: Some(vec![0.5, -6.000_001]), ..ExpectLosses::default() };
        assert!(compare_losses(&expect, &found, 1e-6).is_empty());
        let expect = ExpectLosses { slopes: Some(vec![-1.0, -2.0]), losses: Some(vec![0.5]), failure: None };
        assert_eq!(
            compare_losses(&expect, &found, 1e-6),
            ["loss: 1 expected, and 2 action tokens", "slope of token 1: expected -2, found 2"]
        );
    }
}
