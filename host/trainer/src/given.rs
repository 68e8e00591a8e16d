//! The loss of every token of an optimiser step, from a plugin.
//!
//! Only the leader has plugins, and only the leader asks: once per optimiser step, with all of its tokens, before the
//! step. What comes back goes to the other ranks with the rows. So a plugin cannot tell how the work is cut, and
//! sequences are whole; the price is a forward pass for the log-probabilities that it is asked with.

use crate::error::TrainError;
use crate::loss::Given;
use crate::step::{Learner, PolicyRow};
use molt_core::settings::{CorrectionLevel, TrainSettings};
use molt_core::trajectory::Segment;
use molt_sandbox::{Failure, Loss, LossBatch, Losses};
use tokio::runtime::Handle;

/// Refuses a loss plugin that would correct for the age of tokens where the settings have that done, and one that would not
/// where nothing else does. What it does is asked of the plugin itself: whether its answer to the same step changes with
/// the probabilities that the tokens had before.
///
/// # Errors
/// What does not go together, or how the plugin failed.
pub async fn check_loss(settings: &TrainSettings, plugin: &Loss) -> Result<(), TrainError> {
    let first = try_out(plugin, &probe()).await?;
    let looks_at_sampled = changes(plugin, &first, |batch| &mut batch.sampled).await?;
    let looks_at_old = changes(plugin, &first, |batch| &mut batch.old).await?;
    let TrainSettings { algo, train, .. } = settings;
    let loss = || algo.loss.clone();
    let is_corrected = algo.correction.level != CorrectionLevel::Off;
    if looks_at_sampled && is_corrected {
        return Err(TrainError::CorrectsTwice { loss: loss() });
    }
    if !looks_at_sampled && !is_corrected && settings.trains_older_tokens() {
        return Err(TrainError::CorrectsNothing { loss: loss() });
    }
    // In the second step of a batch its tokens are those of older weights too.
    let has_several_steps = train.steps_per_batch > 1 || train.epochs_per_batch > 1;
    if !looks_at_sampled && !looks_at_old && has_several_steps {
        return Err(TrainError::ComparesNothing { loss: loss() });
    }
    Ok(())
}

async fn try_out(plugin: &Loss, batch: &LossBatch) -> Result<Losses, TrainError> {
    plugin.compute(batch).await.map_err(|failure| TrainError::LossProbe { source: Box::new(failure) })
}

/// Whether the plugin's answer to the made-up step, the `first`, changes with these of its log-probabilities.
async fn changes(
    plugin: &Loss,
    first: &Losses,
    of: impl Fn(&mut LossBatch) -> &mut Vec<f32>,
) -> Result<bool, TrainError> {
    for shift in [0.3, -0.3, 3.0, -3.0] {
        let mut batch = probe();
        for (nth, logprob) in of(&mut batch).iter_mut().enumerate() {
            // No probability is above 1.
            *logprob = (*logprob - shift * sign(nth / 2)).min(-0.01);
        }
        if try_out(plugin, &batch).await? != *first {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A made-up step.
fn probe() -> LossBatch {
    let logprobs: Vec<f32> = (0..12).map(|nth| -0.1 - 0.2 * nth as f32).collect();
    LossBatch {
        sampled: logprobs.clone(),
        old: logprobs.iter().map(|logprob| logprob - 0.05).collect(),
        advantages: (0..12).map(|nth| sign(nth) * (1.0 + nth as f32 / 4.0)).collect(),
        segment_offsets: vec![0, 1, 5, 12],
        logprobs,
    }
}

fn sign(nth: usize) -> f32 {
    if nth.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// The rows of `step` with what `plugin` makes of their tokens under the weights as they are.
pub(crate) fn given<'a>(
    rows: &[PolicyRow<'a>],
    plugin: &Loss,
    learner: &mut Learner,
    (runtime, step): (&Handle, u64),
) -> Result<Vec<PolicyRow<'a>>, TrainError> {
    let segments: Vec<&Segment> = rows.iter().map(|row| row.segment).collect();
    let logprobs = learner.logprobs(&segments)?;
    if !logprobs.iter().flatten().all(|logprob| logprob.is_finite()) {
        return Err(TrainError::LogprobNotFinite { step });
    }
    let failed = |failure: Failure| TrainError::Loss { step, source: Box::new(failure) };
    let found = runtime.block_on(plugin.compute(&batch(rows, &logprobs))).map_err(failed)?;
    Ok(with(rows, found))
}

/// The flat arrays of the contract.
fn batch(rows: &[PolicyRow<'_>], logprobs: &[Vec<f32>]) -> LossBatch {
    let mut batch = LossBatch { segment_offsets: vec![0], ..LossBatch::default() };
    for (row, logprobs) in rows.iter().zip(logprobs) {
        batch.logprobs.extend(logprobs);
        batch.sampled.extend(row.segment.actions().iter().map(|action| action.logprob));
        batch.old.extend(row.old.as_ref().unwrap_or(logprobs));
        batch.advantages.extend(&row.advantages);
        batch.segment_offsets.push(batch.logprobs.len() as u32);
    }
    batch
}

/// Lays the losses back on the rows.
fn with<'a>(rows: &[PolicyRow<'a>], Losses { losses, slopes }: Losses) -> Vec<PolicyRow<'a>> {
    let mut rest =
        losses.into_iter().zip(slopes).map(|(loss, slope)| Given { loss: loss.into(), slope: slope.into() });
    let row = |row: &PolicyRow<'a>| PolicyRow {
        given: Some(rest.by_ref().take(row.segment.actions().len()).collect()),
        ..row.clone()
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::segment;

    #[test]
    fn rows_go_out_flat_and_come_back() {
        let segments = [segment(1, [3, 2, 1, 1]), segment(2, [2, 2, 0, 0])];
        let mut rows: Vec<_> = segments
            .iter()
            .map(|(segment, advantages)| PolicyRow::new(segment, advantages.clone()))
            .collect();
        rows[1].old = Some(vec![-7.0, -8.0]);
        let asked = batch(&rows, &[vec![-1.0, -2.0, -3.0], vec![-4.0, -5.0]]);
        assert_eq!(asked.logprobs, [-1.0, -2.0, -3.0, -4.0, -5.0]);
        assert_eq!(asked.old, [-1.0, -2.0, -3.0, -7.0, -8.0], "unknown ones are the present ones");
        assert_eq!(asked.segment_offsets, [0, 3, 5]);
        let sampled: Vec<f32> =
            segments.iter().flat_map(|(segment, _)| segment.actions()).map(|action| action.logprob).collect();
        assert_eq!(asked.sampled, sampled);
        assert_eq!(asked.advantages, [&segments[0].1[..], &segments[1].1].concat());

        let losses = Losses { losses: vec![1.0, 2.0, 3.0, 4.0, 5.0], slopes: vec![0.5; 5] };
        let given: Vec<Vec<f64>> = with(&rows, losses)
            .iter()
            .map(|row| row.given.as_ref().expect("given").iter().map(|given| given.loss).collect())
            .collect();
        assert_eq!(given, [vec![1.0, 2.0, 3.0], vec![4.0, 5.0]]);
    }
}
