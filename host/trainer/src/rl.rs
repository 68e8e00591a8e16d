//! Reinforcement learning: the loop, from prompts to weights.

use crate::advantage::{advantages, first_rewards};
use crate::beside::{Beside, parts};
use crate::checkpoint::{Checkpoints, From};
use crate::error::TrainError;
use crate::given::given;
use crate::held_out::{Best, HeldOut, evaluated, evaluation};
use crate::kl::Reached;
use crate::loss::PolicyLoss;
use crate::optim::Update;
use crate::populations;
use crate::ranks::Ranks;
use crate::replay::{Replay, in_order, row_places};
use crate::report::{Clock, Step, Summary, Times, markdown, zero_advantage_groups};
use crate::save::{End, conclude, guarded, rescue_model, save_model};
use crate::shape::{Shaping, min_group, without_truncated};
use crate::step::{Layout, Learner, PolicyRow, PolicySums};
use molt_core::outcome::{Dropped, Group};
use molt_core::settings::{Curriculum, Importance, Train, TrainSettings};
use molt_core::trajectory::Segment;
use molt_generator::{Generator, WeightUpdate};
use molt_model::Weights;
use molt_observe::{Progress, RunDir};
use molt_rollout::{Batches, Driver, GroupFilter, Measure, Plan, Position, Prompts, counts};
use molt_sandbox::{Estimator, Loss, Traits};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Where the loop is, in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    summary: Summary,
    /// [`Summary::rewards`] and [`Summary::divergences`], which `summary.json` does not show.
    of_steps: [Vec<(f64, usize)>; 2],
    position: Position,
    /// The weight of the divergence from the reference.
    kl: Reached,
    /// Groups of the replay buffer.
    replay: Vec<Group>,
}

impl State {
    fn of(summary: &Summary, position: Position, beside: &Beside<'_>, replay: &Replay) -> Self {
        let of_steps = [&summary.rewards, &summary.divergences].map(Vec::clone);
        Self { summary: summary.clone(), of_steps, position, kl: beside.kl.reached(), replay: replay.kept() }
    }
}

/// Everything that a run is made of, loaded and checked.
pub struct Training<G: Generator> {
    pub settings: TrainSettings,
    /// The weights to train; the generator holds a copy of them as version 0.
    pub weights: Weights,
    /// Those of the reference, or teacher, if there is one.
    pub reference: Option<Weights>,
    /// Those of the critic, with a value head, if the estimator needs one.
    pub critic: Option<Weights>,
    /// The other ranks, if there are any.
    pub ranks: Option<Ranks>,
    pub driver: Arc<Driver<G>>,
    pub prompts: Arc<Prompts>,
    pub held_out: Option<HeldOut<G>>,
    pub estimator: Estimator,
    /// What the estimator says of itself.
    pub traits: Traits,
    /// The values of its parameters, from [`crate::advantage::check_estimator`].
    pub parameters: Vec<f64>,
    /// The plugin that `algo.loss` names, if it is none of the host's losses.
    pub loss: Option<Loss>,
    pub from: From,
}

/// Runs to the end of the data, or to `train.max_steps`, and saves the model to `model/` in the run directory.
/// Returns what `summary.json` holds, and whether the run was interrupted by `stop`. A run that fails says in its directory why, and what it reached.
/// When `stop` is cancelled the run ends before its next batch, with the model saved as it is. So is that of a run that
/// fails once it has begun, unless its ranks are lost or its weights are no numbers.
///
/// Blocks the calling thread, which does all tensor work; rollouts go on in `runtime` meanwhile.
///
/// # Panics
/// If called from a task of a runtime.
pub fn train<G: Generator>(
    training: Training<G>,
    run_dir: &mut RunDir,
    runtime: &Handle,
    stop: &CancellationToken,
) -> Result<(Summary, End), TrainError> {
    let started = Instant::now();
    let mut summary = Summary::new(training.settings.run.seed);
    let (model, has_ranks) = (training.settings.model.clone(), training.ranks.is_some());
    let mut learner = None;
    let result = guarded(|| run(training, run_dir, (runtime, stop), started, (&mut summary, &mut learner)));
    summary.clock(started);
    if let (Err(error), Some(learner)) = (&result, &mut learner)
        && !(has_ranks && error.loses_ranks())
    {
        let dir = run_dir.path().join("model");
        // The error that stopped the run matters more than one in keeping what it learnt.
        if let Err(error) = guarded(|| rescue_model(learner, &model, &dir)) {
            let _ = run_dir.event(&format!("the model could not be saved: {error}"));
        }
    }
    let end = conclude(run_dir, result, &summary)?;
    Ok((summary, end))
}

fn run<G: Generator>(
    training: Training<G>,
    run_dir: &mut RunDir,
    (runtime, stop): (&Handle, &CancellationToken),
    started: Instant,
    (summary, began): (&mut Summary, &mut Option<Learner>),
) -> Result<End, TrainError> {
    let Training {
        settings,
        weights,
        ranks,
        driver,
        prompts,
        held_out,
        estimator,
        traits,
        parameters,
        loss: plugin,
        from,
        ..
    } = training;
    let others = (training.reference, training.critic);
    if traits.needs_values && others.1.is_none() {
        return Err(TrainError::NeedsCritic { estimator: settings.algo.estimator });
    }
    let traits = Traits { whiten: traits.whiten && settings.algo.whiten, ..traits };
    let plan = plan(&settings, prompts, traits.needs_group)?;
    let planned = batches_planned(&settings, &plan);
    let is_filtered = plan.filter.is_some();
    let steps_of_a_batch = settings.train.steps_per_batch.saturating_mul(settings.train.epochs_per_batch);
    // While the critic warms up the policy does not move.
    let warming_up = others.1.as_ref().map_or(0, |_| settings.critic.warmup_steps);
    let mut learner = Learner::new(
        weights,
        ranks.clone(),
        &settings.optim,
        planned.saturating_sub(warming_up).max(1).saturating_mul(steps_of_a_batch as u64),
        Layout::new(settings.train.max_tokens_per_rank, &settings.fsdp),
        settings.rollout.temperature,
    )?;
    learner.balance_experts(settings.moe.router_aux_coef)?;
    let mut beside = Beside::new(&settings, ranks.as_ref(), others, planned)?;
    let progress = Progress::new(Some(planned), "train");
    if warming_up >= planned && warming_up > 0 {
        let note = format!(
            "critic.warmup_steps is {warming_up}, and the run has {planned} batches at most: the policy is not trained"
        );
        progress.note(&note);
        run_dir.event(&note)?;
    }
    if from.checkpoint.is_none() {
        Best::forget(run_dir.path())?;
    }
    let keep_best = settings.train.keep_best.as_deref();
    let evaluation = match keep_best {
        Some(_) => evaluation(&settings, &from.identity.components)?,
        None => String::new(),
    };
    let mut best = Best::open(run_dir.path(), keep_best, evaluation);
    let kept = best.kept();
    let mut eval = |run_dir: &mut RunDir,
                    learner: &mut Learner,
                    summary: &mut Summary|
     -> Result<_, TrainError> {
        let step = summary.steps;
        let Some(held_out) = &held_out else { return Ok(None) };
        let Some(metrics) = held_out.evaluate(measure(&settings), (runtime, stop))? else { return Ok(None) };
        run_dir.metrics(step, &metrics)?;
        let is_best = best.offer(&metrics, step, learner, &settings.model)?;
        summary.best = best.kept();
        progress.note(&evaluated(step, &metrics, is_best));
        Ok(metrics.get("eval/accuracy").copied())
    };
    let (mut position, mut replayed) = (None, Vec::new());
    if let Some(checkpoint) = &from.checkpoint {
        let state: State = checkpoint.restore((&mut learner, beside.critic.as_mut()))?;
        beside.kl.resume(state.kl);
        (*summary, position) = (state.summary.resumed(state.of_steps), Some(state.position));
        replayed = state.replay;
        publish(&mut learner, &driver, runtime)?;
    }
    // What is there, whatever there was when the checkpoint was written.
    summary.best = kept;
    let saved = (&settings.ckpt, &settings.model);
    let mut checkpoints = Checkpoints::new(run_dir.path(), saved, from.identity, summary.steps);
    if settings.train.eval_at_start && from.checkpoint.is_none() {
        summary.held_out_accuracy_before = eval(run_dir, &mut learner, summary)?;
    }
    // From here on there is something to lose.
    let learner = began.insert(learner);

    let mut batches = {
        let _in_runtime = runtime.enter();
        let (driver, queue_size) = (Arc::clone(&driver), settings.train.async_queue_size);
        match position {
            Some(position) => Batches::resume(driver, plan, queue_size, position),
            None if settings.train.sync => Batches::sync(driver, plan),
            None => Batches::streaming(driver, plan, queue_size),
        }
    };
    let mut replay = Replay::new(settings.replay, settings.run.seed, replayed);
    let loss = PolicyLoss::from(&settings);
    let shaping = Shaping::new(&settings.reward, &driver.turn);
    let mut clock = Clock::start();
    let mut unwritten: Option<(u64, Vec<Group>)> = None;
    let mut end = End::Finished;
    while settings.train.max_steps.is_none_or(|max| summary.steps < max) {
        let between = clock.lap();
        let next = runtime.block_on(async {
            tokio::select! {
                biased;
                () = stop.cancelled() => None,
                batch = batches.next() => Some(batch),
            }
        });
        let generate_wait = clock.lap();
        let Some(next) = next else {
            end = End::Interrupted;
            break;
        };
        let mut batch = match next {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                record_rest(&mut batches, summary, run_dir)?;
                return Err(error.into());
            }
        };
        record_dropped(&batch.dropped, summary, run_dir)?;
        let step = summary.steps + 1;
        let version = learner.version();

        let shaped = shaping.apply(&mut batch.groups);
        let lowest = settings.reward.lowest;
        let replayed = replay.draw(step);
        let fresh = batch.groups.len();
        batch.groups.extend(replayed);
        let (groups, replayed) = batch.groups.split_at(fresh);
        let said = beside.look(learner, &batch.groups, step)?;
        let asked = advantages(&estimator, &traits, &parameters, (&batch.groups, &said), lowest);
        let (mut rows, returns) = match runtime.block_on(asked) {
            Ok(answer) => answer,
            Err(failure) => return Err(TrainError::Estimator { step, source: Box::new(failure) }),
        };
        said.attach(&mut rows);
        let mut lessons = said.lessons(&rows, &returns);
        let silent = zero_advantage_groups(groups, &rows);
        if settings.train.mask_truncated {
            rows = without_truncated(&batch.groups, rows);
            lessons = without_truncated(&batch.groups, lessons);
        }
        if !replayed.is_empty() {
            let mut places = row_places(&batch.groups, &replay.places(step, batch.groups.len()));
            if settings.train.mask_truncated {
                places = without_truncated(&batch.groups, places);
            }
            rows = in_order(rows, &places);
            lessons = in_order(lessons, &places);
        }
        let advantages = clock.lap();
        let loss = beside.weigh(loss);
        let is_warming_up = beside.is_warming_up(summary.steps);
        // A plugin is promised them, whatever the host's losses compare with.
        let needs_old = loss.importance == Importance::Old || plugin.is_some();
        if needs_old && steps_of_a_batch > 1 && !is_warming_up {
            remember(&mut rows, learner)?;
        }
        let mut sums = PolicySums::default();
        let mut update = Update::default();
        // None if all rollouts are masked, or a critic warms up: the weights stay as they are.
        for part in passes(&rows, &settings.train).filter(|_| !is_warming_up) {
            let (seen, next) = match &plugin {
                Some(plugin) => {
                    let rows = given(part, plugin, learner, (runtime, step))?;
                    learner.policy_step(&rows, &loss)?
                }
                None => learner.policy_step(part, &loss)?,
            };
            sums.add(&seen);
            // One without a gradient was no step.
            update = if next.grad_norm > 0.0 || update.grad_norm == 0.0 { next } else { update };
        }
        let is_idle = update.grad_norm == 0.0 && !is_warming_up;
        let idle = summary.add_idle(is_idle, rows.len());
        let of_others = beside.learn(&lessons, &said, &sums, is_warming_up)?;
        let train = clock.lap();
        if learner.version() > version {
            publish(learner, &driver, runtime)?;
            // What was not trained has no place among what is to be trained again.
            replay.keep(groups);
        }
        batches.published(learner.version());
        let times = Times { between, generate_wait, advantages, train, publish: clock.lap() };

        let rewards = first_rewards(&batch.groups, fresh, lowest);
        let is_scored = settings.is_scored();
        let kl = of_others.get("train/kl_reference").copied();
        summary.add_step(&sums, if is_scored { &rewards } else { &[] }, kl);
        let seen = Step {
            groups,
            replayed: replay.is_on().then_some(replayed),
            rewards: &rewards,
            is_scored,
            loss: &loss,
            silent,
            dropped: &batch.dropped,
            census: is_filtered.then_some(&batch.census),
            buckets: batch.buckets,
            shaped: shaping.is_set().then_some(shaped),
            mask_truncated: settings.train.mask_truncated,
            source_key: settings.data.source_key(),
            version,
            sums,
            update,
            times,
        };
        let mut metrics = seen.metrics();
        metrics.extend(of_others);
        run_dir.metrics(step, &metrics)?;
        progress.step(step, &seen.line(&metrics));
        let bound = settings.max_logprob_gap();
        if sums.gap_max > bound || sums.gap_max.is_nan() {
            return Err(TrainError::LogprobGap { step, gap: sums.gap_max, bound });
        }
        let masked = summary.add_correction(loss.correction.as_ref(), &sums);
        // What is masked is why it is idle.
        if let Some(note) = if summary.masked_in_a_row > 0 { masked } else { idle } {
            progress.note(&format!("step {step}: {note}"));
            run_dir.event(&format!("step {step}: {note}"))?;
        }
        if settings.algo.correction.max_masked_batches.is_some_and(|most| summary.masked_in_a_row >= most) {
            let (low, high) = settings.algo.correction.band();
            return Err(TrainError::Masked { step, batches: summary.masked_in_a_row, low, high });
        }
        if step == 1 || step.is_multiple_of(settings.log.trajectories_every.max(1)) {
            run_dir.trajectories(step, &markdown(step, groups))?;
            unwritten = None;
        } else {
            batch.groups.truncate(fresh);
            unwritten = Some((step, batch.groups));
        }
        if settings.train.eval_every.is_some_and(|every| step.is_multiple_of(every)) {
            summary.held_out_accuracy_after = eval(run_dir, learner, summary)?;
        }
        summary.clock(started);
        if checkpoints.due(step, false) {
            match runtime.block_on(batches.position()) {
                Ok(position) => {
                    let state = State::of(summary, position, &beside, &replay);
                    checkpoints.save((&mut *learner, beside.critic.as_mut()), step, &state)?;
                }
                Err(error) => {
                    record_rest(&mut batches, summary, run_dir)?;
                    return Err(error.into());
                }
            }
        }
    }
    if checkpoints.due(summary.steps, true) {
        // A pool that has failed by now has nothing to go on from, and the run ends anyway.
        if let Ok(position) = runtime.block_on(batches.position()) {
            let state = State::of(summary, position, &beside, &replay);
            checkpoints.save((&mut *learner, beside.critic.as_mut()), summary.steps, &state)?;
        }
    }
    record_rest(&mut batches, summary, run_dir)?;
    drop(batches);
    if summary.steps == 0 && end == End::Finished {
        return Err(TrainError::NothingTrained { dropped: counts(&summary.dropped) });
    }
    if let Some((step, groups)) = unwritten {
        run_dir.trajectories(step, &markdown(step, &groups))?;
    }
    save_model(learner, &settings.model, &run_dir.path().join("model"))?;
    let is_evaluated = settings.train.eval_every.is_some_and(|every| summary.steps.is_multiple_of(every))
        && summary.held_out_accuracy_after.is_some();
    if end == End::Finished && !is_evaluated {
        summary.held_out_accuracy_after = eval(run_dir, learner, summary)?;
    }
    progress.done();
    // An evaluation that was asked to stop gave no accuracy.
    Ok(if stop.is_cancelled() { End::Interrupted } else { end })
}

/// Keeps the log-probabilities of a batch as they are before its first optimiser step.
fn remember(rows: &mut [PolicyRow<'_>], learner: &mut Learner) -> Result<(), TrainError> {
    let segments: Vec<&Segment> = rows.iter().map(|row| row.segment).collect();
    for (row, old) in rows.iter_mut().zip(learner.logprobs(&segments)?) {
        row.old = Some(old);
    }
    Ok(())
}

/// Gives the generator the weights as they are.
fn publish<G: Generator>(
    learner: &mut Learner,
    driver: &Driver<G>,
    runtime: &Handle,
) -> Result<(), TrainError> {
    let parameters = learner.parameters()?;
    let new = WeightUpdate { version: learner.version(), parameters };
    Ok(runtime.block_on(driver.generator.load_weights(new))?)
}

/// How held-out prompts are measured.
fn measure(settings: &TrainSettings) -> Measure<'_> {
    Measure {
        samples: settings.eval.samples,
        ks: &settings.eval.k,
        source_key: settings.data.source_key(),
        errors: settings.plugins.error_limit(),
    }
}

/// Counts rollouts that were dropped, and writes down why: those of a group that ended alike in one line.
fn record_dropped(dropped: &[Dropped], summary: &mut Summary, run_dir: &RunDir) -> Result<(), TrainError> {
    summary.add_dropped(dropped);
    let is_alike = |a: &Dropped, b: &Dropped| {
        a.rollout.group == b.rollout.group && a.reason == b.reason && a.detail == b.detail
    };
    for alike in dropped.chunk_by(is_alike) {
        let Some(Dropped { rollout, reason, detail }) = alike.first() else { continue };
        let more = match alike.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more of its prompt"),
        };
        run_dir.event(&format!("rollout {rollout}{more} dropped, {}: {detail}", reason.label()))?;
    }
    Ok(())
}

/// Counts the rollouts that were dropped after the last batch, in a line of their own among the metrics.
fn record_rest<G: Generator>(
    batches: &mut Batches<G>,
    summary: &mut Summary,
    run_dir: &mut RunDir,
) -> Result<(), TrainError> {
    let rest = batches.take_dropped();
    record_dropped(&rest, summary, run_dir)?;
    if !rest.is_empty() {
        run_dir.metrics(summary.steps, &populations::dropped(&rest))?;
    }
    Ok(())
}

/// What the rollouts are drawn from.
fn plan(settings: &TrainSettings, prompts: Arc<Prompts>, needs_group: bool) -> Result<Plan, TrainError> {
    let (rollout, filter) = (&settings.rollout, &settings.rollout.filter);
    let (by, low, high) = (filter.by, filter.low, filter.high);
    Ok(Plan {
        prompts,
        passes: settings.data.passes,
        shuffle: settings.data.shuffle,
        curriculum: Some(settings.data.curriculum).filter(Curriculum::is_on),
        seed: settings.run.seed,
        batch_size: rollout.batch_size,
        samples: rollout.samples_per_prompt,
        min_finished: min_group(rollout, &settings.algo.estimator, needs_group)?,
        filter: filter.is_on().then(|| GroupFilter {
            by,
            low,
            high,
            lowest: settings.reward.lowest,
            max_refills: filter.most_refills(rollout.batch_size),
        }),
        errors: settings.plugins.error_limit(),
    })
}

/// Batches that the run has if no group is dropped.
fn batches_planned(settings: &TrainSettings, plan: &Plan) -> u64 {
    let batches = plan.groups().div_ceil(plan.batch_size.max(1) as u64);
    settings.train.max_steps.map_or(batches, |max| max.min(batches))
}

/// The rows of every optimiser step of a batch: all of them in parts, as often as the settings say.
fn passes<'a, T>(rows: &'a [T], train: &Train) -> impl Iterator<Item = &'a [T]> {
    let steps = train.steps_per_batch;
    (0..train.epochs_per_batch).flat_map(move |_| parts(rows, steps))
}
