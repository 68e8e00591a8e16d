//! What a run leaves behind.

use crate::error::TrainError;
use crate::step::Learner;
use molt_core::panic::panic_text;
use molt_core::settings;
use molt_model::{Chat, save};
use molt_observe::RunDir;
use serde::Serialize;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tch::Tensor;

/// Writes weights, configuration, tokenizer and chat template to `dir`, as a directory that can be loaded again. An
/// adapter is merged into the weights, and written by itself to `adapter` beside `dir`.
pub(crate) fn save_model(
    learner: &mut Learner,
    model: &settings::Model,
    dir: &Path,
) -> Result<(), TrainError> {
    let parameters = learner.parameters()?;
    write_model(learner, &parameters, model, dir)
}

/// As [`save_model`], for a run that has failed. Weights that are no numbers are not worth a file, and what is in `dir`
/// may be better.
pub(crate) fn rescue_model(
    learner: &mut Learner,
    model: &settings::Model,
    dir: &Path,
) -> Result<(), TrainError> {
    let parameters = learner.parameters()?;
    let is_finite = |tensor: &Tensor| tensor.isfinite().all().int64_value(&[]) == 1;
    match parameters.iter().all(|(_, tensor)| is_finite(tensor)) {
        true => write_model(learner, &parameters, model, dir),
        false => Err(TrainError::WeightsNotFinite),
    }
}

fn write_model(
    learner: &mut Learner,
    parameters: &[(String, Tensor)],
    model: &settings::Model,
    dir: &Path,
) -> Result<(), TrainError> {
    save(learner.config(), parameters, dir)?;
    if let Some(adapter) = learner.adapter().cloned() {
        adapter.save(&learner.trainable()?, &model.path, &dir.with_file_name("adapter"))?;
    }
    Chat::copy_files(&model.path, dir)?;
    if let Some(template) = &model.chat_template {
        let target = dir.join("chat_template.jinja");
        std::fs::copy(template, &target).map_err(|source| TrainError::Write { path: target, source })?;
    }
    Ok(())
}

/// How a run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The data ended, or the steps.
    Finished,
    /// Somebody asked it to stop.
    Interrupted,
}

/// Writes `summary.json`, of a failed run too, and the run's last state.
pub(crate) fn conclude(
    run_dir: &mut RunDir,
    result: Result<End, TrainError>,
    summary: &impl Serialize,
) -> Result<End, TrainError> {
    let summary = serde_json::to_value(summary).unwrap_or_default();
    match &result {
        Ok(End::Finished) => run_dir.finish(&summary)?,
        Ok(End::Interrupted) => run_dir.interrupt(&summary)?,
        Err(error) => {
            // The error that stopped the run matters more than one in reporting it.
            let _ = run_dir.write_json("summary.json", &summary);
            let _ = run_dir.fail(&chain(error));
        }
    }
    result
}

/// Runs tensor work; a panic of libtorch, such as memory that runs out, becomes an error of the run.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, TrainError>) -> Result<T, TrainError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(TrainError::Tensors(panic_text(panic.as_ref()))))
}

/// An error and its causes in one line, without those that the one before already tells.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}
