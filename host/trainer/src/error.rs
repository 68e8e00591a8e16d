//! Why training stopped.

use molt_generator::GeneratorError;
use molt_model::{ModelError, TextError};
use molt_observe::ObserveError;
use molt_rollout::{DataError, RolloutError};
use molt_sandbox::{Failure, ParameterError};
use molt_torch::TorchError;
use std::path::PathBuf;

/// What ends a training run before its data does.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(
        "the gradient of {parameter} at optimiser step {step} is not finite; lower optim.lr, or look at the \
         rewards and the log-probability gap of the steps before"
    )]
    GradientNotFinite { step: u64, parameter: String },
    #[error(
        "at step {step} a token has a log-probability that differs by {gap:.2e} between rollout and training, \
         more than train.max_logprob_gap = {bound:.2e}: the two forward passes are not the same function"
    )]
    LogprobGap { step: u64, gap: f64, bound: f64 },
    #[error(
        "up to step {step}, {batches} batches in a row were wholly outside the band of algo.correction, from {low} to \
         {high}, and nothing was learnt from them: widen it with algo.correction.low and high, or lower \
         train.async_queue_size or optim.lr"
    )]
    Masked { step: u64, batches: u64, low: f64, high: f64 },
    #[error(
        "the data ended before a single group of rollouts could be trained on; dropped: {dropped}; run.log says why"
    )]
    NothingTrained { dropped: String },
    #[error("the estimator {estimator} needs the values of a critic, and this run has none")]
    NeedsCritic { estimator: String },
    #[error(
        "algo.kl.coef takes the divergence from the reference off the reward, and the estimator {estimator} does not look \
         at it, so it would change nothing: set algo.kl.in loss, or take an estimator that uses it, such as reinforce"
    )]
    KlUnused { estimator: String },
    #[error(
        "teacher.model teaches by the divergence from it, and the estimator {estimator} does not look at that, so nothing \
         would be learnt from it: leave algo.estimator out, for on-policy-distill, or take one that uses it, such as \
         reinforce"
    )]
    TeacherUnused { estimator: String },
    #[error(
        "the loss {loss} turns on the probability that a token was sampled with: it corrects for older weights itself, and \
         algo.correction.level would have it done twice: leave that and algo.importance out"
    )]
    CorrectsTwice { loss: String },
    #[error(
        "the loss {loss} does not look at the probability that a token was sampled with, and tokens of older weights are \
         trained: correct for them with algo.importance old and algo.correction.level, or take train.sync without replay"
    )]
    CorrectsNothing { loss: String },
    #[error(
        "the loss {loss} compares log-probabilities with nothing, and every batch is trained in several steps, the later of \
         which are of other weights than sampled it: take train.steps_per_batch 1 and train.epochs_per_batch 1"
    )]
    ComparesNothing { loss: String },
    #[error(
        "settings of a critic are given, and the estimator {estimator} needs no values, so none is trained: leave them \
         out, or take an estimator that needs them, such as gae"
    )]
    CriticUnused { estimator: String },
    #[error(
        "the estimator {estimator} compares the rollouts of a prompt: rollout.samples_per_prompt must be at least 2, \
         found {samples}"
    )]
    NeedsGroup { estimator: String, samples: u32 },
    #[error("algo.whiten is false, and the estimator {estimator} whitens nothing: leave it out")]
    WhitensNothing { estimator: String },
    #[error("algo.parameters does not fit the estimator {estimator}: {problem}")]
    Parameter { estimator: String, problem: ParameterError },
    #[error(
        "the estimator {estimator} compares the rollouts of a prompt: rollout.min_group must be at least 2, found \
         {finished}"
    )]
    MinGroup { estimator: String, finished: u32 },
    #[error(
        "libtorch gave up: {0}; if memory ran out, lower train.max_tokens_per_rank or sft.max_tokens_per_rank"
    )]
    Tensors(String),
    #[error(
        "a rollout was recorded with other experts than the model has: the generator must run the model that is trained"
    )]
    Routing,
    #[error(
        "optim.freeze holds `{pattern}`, but no parameter of this model has that in its name; they are named like \
         {example}"
    )]
    FreezesNothing { pattern: String, example: String },
    #[error("optim.freeze leaves no parameter to train: take a pattern out")]
    FreezesAll,
    #[error("{0}")]
    Mesh(String),
    #[error("no advantages for step {step}")]
    Estimator { step: u64, source: Box<Failure> },
    #[error("no loss for a made-up step, with which it is tried before the run")]
    LossProbe { source: Box<Failure> },
    #[error("no loss for step {step}")]
    Loss { step: u64, source: Box<Failure> },
    #[error(
        "at step {step} the model gives a token a log-probability that is no finite number; lower optim.lr, or look at \
         the steps before"
    )]
    LogprobNotFinite { step: u64 },
    #[error("at step {step} the {model} gives a token a {what} that is no number: {help}")]
    NoNumber { step: u64, model: &'static str, what: &'static str, help: &'static str },
    #[error("the weights are no finite numbers any more")]
    WeightsNotFinite,
    #[error(
        "rank {rank} and rank 0 differ in their {what}: every rank needs the same command line, settings file, model, data and \
         plugins"
    )]
    RanksDiffer { rank: usize, what: String },
    #[error("rank {} of {size} does not answer any more", list(ranks))]
    RanksSilent { ranks: Vec<usize>, size: usize, source: TorchError },
    #[error(
        "rank {} of {size} hangs: its process lives, and the last collective that it began is {last}",
        list(ranks)
    )]
    RanksHang { ranks: Vec<usize>, size: usize, last: String, source: Box<TorchError> },
    #[error("the checkpoint {} cannot be used: {reason}", path.display())]
    Checkpoint { path: PathBuf, reason: String },
    #[error(
        "the checkpoint of step {step} could not be written, so the run ends; {}. Make room or look at the \
         permissions there, and go on with ckpt.load",
        match last { 0 => "there is none before it".to_owned(), last => format!("that of step {last} is as it was") }
    )]
    Save { step: u64, last: u64, source: Box<TrainError> },
    #[error(
        "the part of rank {rank} is not in {}: run.dir must be on a file system that all ranks share",
        path.display()
    )]
    NotShared { rank: usize, path: PathBuf },
    #[error("rank {rank} could not {what}; it says why itself")]
    RankFailed { rank: usize, what: &'static str },
    #[error("an order between ranks is damaged: {0}; every rank needs the same build of molt")]
    Order(String),
    #[error(transparent)]
    Torch(#[from] TorchError),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error("publishing weights failed")]
    Publish(#[from] GeneratorError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

impl TrainError {
    /// Whether ranks may be lost, or be in the middle of something else, so that nothing more can be asked of them.
    pub(crate) fn loses_ranks(&self) -> bool {
        match self {
            Self::RanksSilent { .. } | Self::RanksHang { .. } | Self::Torch(_) | Self::Order(_) => true,
            // Found by one rank, while the others wait for it.
            Self::Tensors(_) | Self::Routing => true,
            Self::Save { source, .. } => source.loses_ranks(),
            _ => false,
        }
    }
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
