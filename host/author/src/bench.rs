//! `molt plugin bench`: what a plugin costs.

use crate::batch::BatchInput;
use crate::cases::{self, EnvironmentCase, EstimatorCase, GroupCase, LossCase, RewardCase, Row};
use crate::check;
use crate::error::{AuthorError, OrAuthor};
use crate::failure;
use crate::open::{Loaded, Opened, Target};
use crate::present::{print, table};
use molt_core::chat::Task;
use molt_sandbox::{
    Action, Call, Cost, EstimatorBatch, Failure, Kind, LossBatch, Parameter, Sample, Sandbox,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Measure a plugin: time and instructions of a call, memory of an instance, compilation
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Cases, of which the first is the input; an interpreter has none [default: cases.toml of the project]
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Rounds at most; five seconds end them earlier
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rounds: usize,
}

const TIME: Duration = Duration::from_secs(5);

/// Rounds that are not measured: caches fill.
const WARM: usize = 3;

/// A limit that no call reaches: under one, instructions are counted.
const FUEL: u64 = u64::MAX / 2;

/// What is measured.
enum Input {
    /// The rollouts of one prompt.
    Group(Vec<Sample>, u64),
    Episode(Task, Vec<Action>, u64),
    Batch(EstimatorBatch),
    Step(LossBatch),
    Code(&'static str),
}

/// What the sandbox told of the calls since it was last looked at.
type Costs = Arc<Mutex<Vec<Cost>>>;

/// Measurements by what was done, in the order in which it was first done.
#[derive(Default)]
struct Laps {
    costs: Costs,
    /// What was done, and for each time how long it took and how many instructions it ran.
    laps: Vec<(&'static str, Vec<Duration>, Vec<u64>)>,
    /// The most memory of an instance, in bytes.
    memory: usize,
}

impl Laps {
    /// Does and measures one thing.
    async fn lap<T>(
        &mut self,
        what: &'static str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let start = Instant::now();
        let value = call.await?;
        let took = start.elapsed();
        let costs = std::mem::take(&mut *self.costs.lock().unwrap_or_else(PoisonError::into_inner));
        self.memory = costs.iter().map(|cost| cost.memory).fold(self.memory, usize::max);
        let fuel = costs.iter().filter_map(|cost| cost.fuel).sum();
        match self.laps.iter_mut().find(|(name, ..)| *name == what) {
            Some((_, times, fuels)) => {
                times.push(took);
                fuels.push(fuel);
            }
            None => self.laps.push((what, vec![took], vec![fuel])),
        }
        Ok(value)
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, AuthorError> {
    let mut opened = args.target.open()?;
    let project = opened.project.as_ref().map(|project| project.dir.join("cases.toml"));
    let cases = args.cases.clone().or_else(|| project.filter(|file| file.is_file()));
    if args.cases.is_some() && opened.info.kind == Kind::Interpreter {
        return Err(AuthorError::user("bench takes no cases for an interpreter", "leave --cases out"));
    }
    let (first, cached) = compile(&opened)?;

    let costs = Costs::default();
    let told = Arc::clone(&costs);
    opened.sandbox = opened.sandbox.observe(move |cost| {
        told.lock().unwrap_or_else(PoisonError::into_inner).push(cost.clone());
    });
    let loaded = opened.load()?;
    let input = input(&opened, &loaded, cases.as_deref())?;
    let timed = rounds(&opened, &loaded, &input, &costs, args.rounds)?;
    opened.access.limits.fuel = Some(FUEL);
    let counted = rounds(&opened, &opened.load()?, &input, &costs, 1)?;
    let mut rows = vec![["WHAT", "MEDIAN", "P95", "INSTRUCTIONS", "TIMES"].map(String::from).to_vec()];
    for (what, mut times, _) in timed.laps {
        times.sort_unstable();
        let fuel =
            counted.laps.iter().find(|(name, ..)| *name == what).and_then(|(_, _, fuels)| fuels.first());
        rows.push(vec![
            what.to_owned(),
            quantile(&times, 50).map_or_else(String::new, duration),
            quantile(&times, 95).map_or_else(String::new, duration),
            fuel.map_or_else(|| "-".to_owned(), |fuel| thousands(*fuel)),
            times.len().to_string(),
        ]);
    }
    let memory = timed.memory as f64 / f64::from(1 << 20);
    print(&format!(
        "compiling    {}, and {} once it is cached\nmemory       {memory:.1} MiB per instance\n\n{}",
        duration(first),
        duration(cached),
        table(&rows)
    ))?;
    Ok(0)
}

/// How long the plugin takes to load when it was never compiled, and when it was.
fn compile(opened: &Opened) -> Result<(Duration, Duration), AuthorError> {
    let help = "look at the limits of this machine (ulimit -v)";
    let anew = Sandbox::new(None).or_user("plugins cannot be run", help)?;
    let start = Instant::now();
    opened.load_in(&anew)?;
    let first = start.elapsed();
    opened.load()?;
    let start = Instant::now();
    opened.load()?;
    Ok((first, start.elapsed()))
}

fn rounds(
    opened: &Opened,
    loaded: &Loaded,
    input: &Input,
    costs: &Costs,
    most: usize,
) -> Result<Laps, AuthorError> {
    let measured = opened.runtime.block_on(async {
        let mut warm = Laps { costs: Arc::clone(costs), ..Laps::default() };
        for _ in 0..WARM {
            round(loaded, input, &mut warm).await?;
        }
        let mut laps = Laps { costs: Arc::clone(costs), ..Laps::default() };
        let start = Instant::now();
        for _ in 0..most.max(1) {
            round(loaded, input, &mut laps).await?;
            if start.elapsed() > TIME {
                break;
            }
        }
        Ok(laps)
    });
    measured.map_err(|problem: Failure| AuthorError {
        because: vec![failure::told(&problem, &opened.info)],
        ..AuthorError::failed(
            "the plugin fails on the input",
            "give --cases a file whose first case it can do",
        )
    })
}

/// Everything that is measured, once.
async fn round(loaded: &Loaded, input: &Input, laps: &mut Laps) -> Result<(), Failure> {
    match (loaded, input) {
        (Loaded::Reward(reward), Input::Group(samples, seed)) => {
            let call = Call { rollout: None, seed: *seed };
            laps.lap("new instance", reward.instantiate()).await?;
            if reward.scores_groups() {
                laps.lap("score-group, with a new instance", reward.score_group(call, samples)).await?;
            } else if let Some(sample) = samples.first() {
                laps.lap("score, with a new instance", reward.score(call, sample)).await?;
            }
        }
        (Loaded::Environment(environment), Input::Episode(task, actions, seed)) => {
            let call = Call { rollout: None, seed: *seed };
            laps.lap("new instance", environment.instantiate()).await?;
            let mut episode = laps.lap("open, with a new instance", environment.open(call, task)).await?;
            laps.lap("reset", episode.reset()).await?;
            for action in actions {
                if laps.lap("step", episode.step(action)).await?.done {
                    break;
                }
            }
        }
        (Loaded::Estimator(estimator), Input::Batch(batch)) => {
            laps.lap("new instance", estimator.instantiate()).await?;
            laps.lap("describe, with a new instance", estimator.traits()).await?;
            laps.lap("estimate, with a new instance", estimator.estimate(batch)).await?;
        }
        (Loaded::Loss(loss), Input::Step(batch)) => {
            laps.lap("new instance", loss.instantiate()).await?;
            laps.lap("compute, with a new instance", loss.compute(batch)).await?;
        }
        (Loaded::Interpreter(interpreter), Input::Code(code)) => {
            laps.lap("new instance", interpreter.instantiate()).await?;
            let call = Call { rollout: None, seed: 0 };
            let mut session = laps.lap("open, with a new instance", interpreter.open(call)).await?;
            laps.lap("run, the first time", session.run(code)).await?;
            laps.lap("run, again", session.run(code)).await?;
        }
        _ => {}
    }
    Ok(())
}

/// The first case, or something of a usual size.
fn input(opened: &Opened, loaded: &Loaded, cases: Option<&Path>) -> Result<Input, AuthorError> {
    let row = Row::new(Some("What is 6 times 7?".into()), Some("42".into()), 7);
    let answer = "Six times seven is forty-two, so the answer is 42. ".repeat(40);
    Ok(match (loaded, cases) {
        (Loaded::Reward(reward), Some(file)) if reward.scores_groups() => {
            let cases = cases::read::<GroupCase>(file)?;
            cases.first().map_or_else(empty, |case| Input::Group(case.samples(), case.row.seed))
        }
        (Loaded::Reward(_), Some(file)) => {
            let cases = cases::read::<RewardCase>(file)?;
            cases.first().map_or_else(empty, |case| Input::Group(vec![case.sample()], case.row.seed))
        }
        (Loaded::Reward(_), None) => Input::Group(vec![row.sample(&answer); 8], 7),
        (Loaded::Environment(_), Some(file)) => {
            let cases = cases::read::<EnvironmentCase>(file)?;
            cases.first().map_or_else(empty, |case| {
                let actions = case.turns.iter().map(cases::Turn::action).collect();
                Input::Episode(case.row.task(), actions, case.row.seed)
            })
        }
        (Loaded::Environment(_), None) => {
            let action = Action { text: answer, tool_calls: Vec::new(), truncated: false };
            Input::Episode(row.task(), vec![action; 4], 7)
        }
        (Loaded::Estimator(estimator), file) => {
            let traits = opened
                .runtime
                .block_on(estimator.traits())
                .or_failed("bench cannot ask the estimator for its parameters", "look at its `describe`")?;
            Input::Batch(batch(file, &traits.parameters)?)
        }
        (Loaded::Loss(_), Some(file)) => match cases::read::<LossCase>(file)?.into_iter().next() {
            Some(case) => {
                let help = "look at the first case of the file";
                Input::Step(case.step.into_batch().map_err(|problem| AuthorError::user(problem, help))?)
            }
            None => empty(),
        },
        (Loaded::Loss(_), None) => Input::Step(check::loss::usual()),
        (Loaded::Interpreter(_), _) => Input::Code("sum(range(1000))"),
    })
}

/// There is always a first case: a file without any is refused.
fn empty() -> Input {
    Input::Group(Vec::new(), 0)
}

/// The first case, or 64 rollouts in groups of 8, of 256 action tokens each.
fn batch(cases: Option<&Path>, declared: &[Parameter]) -> Result<EstimatorBatch, AuthorError> {
    let input = match cases {
        Some(file) => cases::read::<EstimatorCase>(file)?.into_iter().next().map(|case| case.batch),
        None => None,
    };
    let usual = || {
        let rewards = (0..64).map(|rollout| (rollout % 3) as f32 / 2.0).collect();
        BatchInput::of(rewards, (0..64).map(|rollout| rollout / 8).collect(), vec![256; 64])
    };
    let help = "look at the first case of the file";
    input.unwrap_or_else(usual).into_batch(declared).map_err(|problem| AuthorError::user(problem, help))
}

/// The time that `percent` of the sorted times do not exceed.
fn quantile(times: &[Duration], percent: usize) -> Option<Duration> {
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied()
}

fn duration(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        m if m < 10.0 => format!("{m:.1} µs"),
        m if m < 1e3 => format!("{m:.0} µs"),
        m if m < 1e4 => format!("{:.1} ms", m / 1e3),
        m if m < 1e6 => format!("{:.0} ms", m / 1e3),
        m => format!("{:.1} s", m / 1e6),
    }
}

/// A count with a comma after every three digits.
fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let comma = |(at, digit): (usize, char)| {
        let due = at > 0 && (digits.len() - at).is_multiple_of(3);
        due.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(comma).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let times = [1_500, 52_400, 1_240_000, 52_000_000, 1_234_000_000].map(Duration::from_nanos);
        assert_eq!(times.map(duration), ["1.5 µs", "52 µs", "1.2 ms", "52 ms", "1.2 s"]);
        assert_eq!([7, 999, 1000, 1_234_567].map(thousands), ["7", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn quantiles_of_few_times() {
        let times: Vec<Duration> = (1..=4).map(Duration::from_secs).collect();
        assert_eq!(quantile(&times, 50), Some(Duration::from_secs(3)));
        assert_eq!(quantile(&times, 95), Some(Duration::from_secs(4)));
        assert_eq!(quantile(&[], 50), None);
    }
}
