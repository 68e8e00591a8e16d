//! Supervised fine-tuning: maximum likelihood of the assistant's tokens.

use crate::checkpoint::{Checkpoints, From};
use crate::conversations::{self, Conversation, Source};
use crate::error::TrainError;
use crate::ranks::Ranks;
use crate::report::{Metrics, thousands};
use crate::save::{End, conclude, guarded, save_model};
use crate::step::{Layout, Learner, Row};
use molt_core::settings::SftSettings;
use molt_model::Weights;
use molt_observe::{Progress, RunDir};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// `summary.json` of `molt sft`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SftSummary {
    pub seed: u64,
    /// Usable conversations, and malformed ones that were left out.
    pub rows: usize,
    pub skipped: usize,
    pub wall_s: f64,
    pub steps: u64,
    /// Tokens learnt, counted in every pass.
    pub tokens: usize,
    /// `−log π` per learnt token of the held-out conversations before the first step and after the last.
    pub held_out_loss_before: Option<f64>,
    pub held_out_loss_after: Option<f64>,
    /// Of `wall_s`, what passed before the checkpoint that the run went on from.
    #[serde(skip)]
    pub(crate) before_s: f64,
    /// `−log π` per learnt token at the first step and at the last.
    pub loss_first: Option<f64>,
    pub loss_last: Option<f64>,
}

/// What is learnt, and what is not.
#[derive(Debug, Clone, Copy)]
pub struct Data<'a> {
    pub sources: &'a [Source],
    /// Conversations whose loss is computed now and then.
    pub held_out: Option<&'a [Conversation]>,
}

impl SftSummary {
    /// Takes the time since the run was `started`.
    fn clock(&mut self, started: Instant) {
        self.wall_s = self.before_s + started.elapsed().as_secs_f64();
    }
}

/// Trains `decoder`, with the other ranks if there are any, on the conversations and saves the model to `model/` in the run directory. Returns what
/// `summary.json` holds, and whether `stop` ended the run. A run that fails says in its directory why, and what it reached.
/// When `stop` is cancelled the run ends before its next step, with the model saved as it is.
pub fn train(
    settings: &SftSettings,
    (weights, ranks): (Weights, Option<Ranks>),
    data: &Data<'_>,
    from: &From,
    run_dir: &mut RunDir,
    stop: &CancellationToken,
) -> Result<(SftSummary, End), TrainError> {
    let started = Instant::now();
    let rows = data.sources.iter().map(|source| source.rows.len()).sum();
    let skipped = data.sources.iter().map(|source| source.skipped).sum();
    let mut summary = SftSummary { seed: settings.run.seed, rows, skipped, ..SftSummary::default() };
    let result =
        guarded(|| run(settings, (weights, ranks), (data, from), run_dir, stop, (started, &mut summary)));
    summary.clock(started);
    let end = conclude(run_dir, result, &summary)?;
    Ok((summary, end))
}

fn run(
    settings: &SftSettings,
    (weights, ranks): (Weights, Option<Ranks>),
    (data, from): (&Data<'_>, &From),
    run_dir: &mut RunDir,
    stop: &CancellationToken,
    (started, summary): (Instant, &mut SftSummary),
) -> Result<End, TrainError> {
    let sft = &settings.sft;
    let rows = conversations::pass(data.sources, settings.run.seed, 0).len();
    let planned = sft.passes.saturating_mul(rows.div_ceil(sft.batch_size) as u64);
    let planned = sft.max_steps.map_or(planned, |max| max.min(planned));
    let mut learner = Learner::new(
        weights,
        ranks,
        &settings.optim,
        planned,
        Layout::new(sft.max_tokens_per_rank, &settings.fsdp),
        1.0,
    )?;
    learner.balance_experts(settings.moe.router_aux_coef)?;
    if let Some(checkpoint) = &from.checkpoint {
        let usable = (summary.rows, summary.skipped);
        *summary = checkpoint.restore((&mut learner, None))?;
        if usable != (summary.rows, summary.skipped) {
            let (now, before) = (usable.0, summary.rows);
            let reason = format!(
                "{before} conversations could be used, and now {now}: go on with the same chat template"
            );
            return Err(TrainError::Checkpoint { path: checkpoint.path().to_owned(), reason });
        }
        summary.before_s = summary.wall_s;
    }
    let saved = (&settings.ckpt, &settings.model);
    let mut checkpoints = Checkpoints::new(run_dir.path(), saved, from.identity.clone(), summary.steps);
    let progress = Progress::new(Some(planned), "sft");
    let mut end = End::Finished;
    let eval = |learner: &mut Learner, run_dir: &mut RunDir, step| {
        let Some(held_out) = data.held_out else { return Ok(None) };
        let loss = held_out_loss(learner, held_out, sft.batch_size)?;
        run_dir.metrics(step, &[("eval/loss".to_owned(), loss)].into())?;
        progress.note(&format!("held-out loss at step {step}: {loss:.3}"));
        Ok::<_, TrainError>(Some(loss))
    };
    if from.checkpoint.is_none() {
        summary.held_out_loss_before = eval(&mut learner, run_dir, 0)?;
    }
    let is_due = |step: u64| settings.eval.every.is_some_and(|every| step.is_multiple_of(every));
    let batches = batches(data.sources, sft.passes, sft.batch_size, settings.run.seed).take(planned as usize);
    for batch in batches.skip(summary.steps as usize) {
        if stop.is_cancelled() {
            end = End::Interrupted;
            break;
        }
        let clock = Instant::now();
        let tokens: usize = batch.iter().map(|row| row.targets.len()).sum();
        let (loss, update) = learner.supervised_step(&batch)?;
        let seconds = clock.elapsed().as_secs_f64();
        let tokens_per_s = tokens as f64 / seconds.max(1e-9);
        summary.steps += 1;
        summary.tokens += tokens;
        summary.loss_first.get_or_insert(loss);
        summary.loss_last = Some(loss);
        let metrics = [
            ("train/loss", loss),
            ("train/grad_norm", update.grad_norm),
            ("train/lr", update.learning_rate),
            ("train/tokens", tokens as f64),
            ("time/train", seconds),
            ("perf/tokens_per_s", tokens_per_s),
        ];
        let metrics: Metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
        run_dir.metrics(summary.steps, &metrics)?;
        progress.step(summary.steps, &format!("loss {loss:.3}  {} tok/s", thousands(tokens_per_s)));
        if is_due(summary.steps) {
            summary.held_out_loss_after = eval(&mut learner, run_dir, summary.steps)?;
        }
        summary.clock(started);
        if checkpoints.due(summary.steps, false) {
            checkpoints.save((&mut learner, None), summary.steps, summary)?;
        }
    }
    if checkpoints.due(summary.steps, true) {
        checkpoints.save((&mut learner, None), summary.steps, summary)?;
    }
    save_model(&mut learner, &settings.model, &run_dir.path().join("model"))?;
    if end == End::Finished && !is_due(summary.steps) {
        summary.held_out_loss_after = eval(&mut learner, run_dir, summary.steps)?;
    }
    progress.done();
    Ok(end)
}

/// The mean of `−log π` over the learnt tokens of conversations that are not trained.
fn held_out_loss(learner: &mut Learner, rows: &[Conversation], batch_size: usize) -> Result<f64, TrainError> {
    let (mut sum, mut tokens) = (0.0, 0);
    for batch in rows.chunks(batch_size) {
        let batch: Vec<Row<'_>> = batch.iter().map(row).collect();
        tokens += batch.iter().map(|row| row.targets.len()).sum::<usize>();
        sum += learner.loss(&batch)?;
    }
    Ok(sum / tokens as f64)
}

/// The rows in batches, shuffled anew in every pass; the last batch of a pass may be short.
fn batches(
    sources: &[Source],
    passes: u64,
    batch_size: usize,
    seed: u64,
) -> impl Iterator<Item = Vec<Row<'_>>> {
    (0..passes).flat_map(move |pass| {
        let order = conversations::pass(sources, seed, pass);
        let batch = |batch: &[(usize, usize)]| {
            batch.iter().map(|&(source, at)| row(&sources[source].rows[at])).collect()
        };
        order.chunks(batch_size).map(batch).collect::<Vec<_>>()
    })
}

fn row(conversation: &Conversation) -> Row<'_> {
    Row { tokens: &conversation.tokens, targets: conversation.targets.clone(), routing: None }
}
