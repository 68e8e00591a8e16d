//! The models beside the policy: a reference or teacher, and a critic.

use super::Model;
use crate::stop::{OrStop, Stop};
use molt_core::settings::TrainSettings;
use molt_model::{Tokenizer, Weights};
use std::path::Path;

/// The weights of the reference, or of the teacher, if the run has one.
pub(crate) fn reference(settings: &TrainSettings, model: &Model) -> Result<Option<Weights>, Stop> {
    let key = if settings.teacher.model.is_some() { "teacher.model" } else { "reference.model" };
    settings.reference().map(|path| open(key, path, settings, model)).transpose()
}

/// The weights that a critic begins with.
pub(crate) fn critic(settings: &TrainSettings, model: &Model) -> Result<Weights, Stop> {
    let path = settings.critic.model.as_deref().unwrap_or(&model.path);
    let weights = open("critic.model", path, settings, model)?.with_value_head(settings.run.seed);
    molt_trainer::freeze::trained(weights.network(), &settings.critic.optim.freeze)
        .or_user("these parameters of the critic cannot be frozen", "change critic.optim.freeze")?;
    Ok(weights)
}

/// The weights of a model that reads the policy's tokens.
fn open(key: &str, path: &Path, settings: &TrainSettings, model: &Model) -> Result<Weights, Stop> {
    let unusable = || format!("the model in {} cannot be used as {key}", path.display());
    let weights = Weights::open(path).map(|weights| weights.in_numbers(settings.model.compute)).or_user(
        unusable(),
        format!("{key} must be a Hugging Face directory of the Llama, Qwen3 or Qwen3-MoE family"),
    )?;
    if path == model.path {
        return Ok(weights);
    }
    // It reads tokens, and needs no chat template.
    let tokenizer = Tokenizer::load(path).or_user(
        unusable(),
        format!("{key} needs its tokenizer.json, to be compared with that of model.path"),
    )?;
    let refused = |why: String, help: &str| Err(Stop::user(format!("{}: {why}", unusable()), help));
    if let Some(token) = model.chat.tokenizer().first_difference(&tokenizer) {
        let why =
            format!("its tokenizer is another: token {token} of that of model.path is not the same in it");
        return refused(why, "take a model with the tokenizer of the policy, of whatever size");
    }
    let (theirs, ours) = (weights.network().config(), &model.config);
    if theirs.vocab_size < ours.vocab_size {
        let why = format!(
            "it has {} tokens, and the policy may sample any of {}",
            theirs.vocab_size, ours.vocab_size
        );
        return refused(why, "take a model whose vocab_size is at least that of the policy");
    }
    let context = model.context("rollout.max_context", settings.rollout.max_context)?;
    if theirs.max_position_embeddings < context {
        let why = format!(
            "it was made for {} tokens, and rollouts have up to {context}",
            theirs.max_position_embeddings
        );
        return refused(why, "lower rollout.max_context");
    }
    Ok(weights)
}
