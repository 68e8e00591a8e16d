//! Every setting of a run: one dotted namespace (`train.async_queue_size`), given by flags or a TOML file.
//!
//! The doc comment of a field is its help text. A field exists in the settings of a command only if that
//! command reads it, so a key that would do nothing is an unknown key.

mod algo;
mod ckpt;
mod command;
mod compute;
mod curriculum;
mod filter;
mod implied;
mod keys;
mod kl;
mod lora;
mod models;
mod moe;
mod optim;
mod origin;
mod overlay;
mod parameters;
mod plugins;
mod replay;
mod sft;
mod validate;

pub use algo::{
    Aggregation, Algo, Correction, CorrectionLevel, CorrectionMode, Importance, KlEstimator, NativeLoss,
};
pub use ckpt::{Change, Ckpt, changes};
pub use command::{Problem, Settings, SettingsError};
pub use compute::Compute;
pub use curriculum::Curriculum;
pub use filter::{Filter, FilterBy};
pub use keys::{ANY, Key, Kind, keys, nearest};
pub use kl::{Kl, KlIn};
pub use lora::Lora;
pub use models::{Critic, Reference, Teacher};
pub use moe::Moe;
pub use optim::{Optim, OptimKind, Schedule};
pub use origin::{HttpRule, HttpRuleError, Origin};
pub use overlay::{load, why_absent};
pub use parameters::{ParameterValue, Parameters};
pub use plugins::{Access, GrantedModel, Grants, Judge, LimitOverrides, Limits, Plugins};
pub use replay::Replay;
pub use sft::{Sft, SftData, SftEval, SftSettings};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Settings of `molt train`: reinforcement learning.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TrainSettings {
    pub run: Run,
    pub model: Model,
    pub data: Data,
    pub agent: Agent,
    pub reward: Reward,
    pub plugins: Plugins,
    pub judge: Judge,
    pub rollout: Rollout,
    pub generator: Generator,
    pub algo: Algo,
    pub reference: Reference,
    pub teacher: Teacher,
    pub critic: Critic,
    pub train: Train,
    pub replay: Replay,
    pub fsdp: Fsdp,
    pub moe: Moe,
    pub optim: Optim,
    pub lora: Lora,
    pub eval: Eval,
    pub ckpt: Ckpt,
    pub log: Log,
}

/// Settings of `molt eval`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EvalSettings {
    pub run: Run,
    pub model: Model,
    pub data: EvalData,
    pub agent: Agent,
    pub reward: EvalReward,
    pub plugins: Plugins,
    pub judge: Judge,
    pub generator: Generator,
    pub eval: Eval,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Run {
    /// Where everything of the run is written; must not exist yet, or be empty. Unset: runs/COMMAND-TIME.
    pub dir: Option<PathBuf>,
    /// The seed that every random number of the run derives from.
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Model {
    /// A Hugging Face model directory: config.json, *.safetensors, tokenizer.json. Required.
    pub path: PathBuf,
    /// A Jinja chat template to use in place of the model's own.
    pub chat_template: Option<PathBuf>,
    /// What layers are computed in, by trainer and generator alike, as a trained token must have the probability it was
    /// sampled with: float32, or bfloat16, which takes half the bytes. Weights, optimiser and sums of gradients are
    /// float32 in either, and so are norms, router, logits and loss.
    pub compute: Compute,
}

/// What to do with a row of a data file that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BadRow {
    /// Refuse to start, naming file and line.
    #[default]
    Refuse,
    /// Leave the row out, and say how many were.
    Skip,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Data {
    /// Prompts to train on: a file with one JSON object per line. Required.
    pub prompts: PathBuf,
    /// The column with the prompt: a string (one user message) or a list of messages.
    pub prompt_key: String,
    /// The column with the expected answer; a row may lack it.
    pub label_key: String,
    /// The column that says where a row comes from; metrics are also by source. Unset: data_source, if there is one.
    pub source_key: Option<String>,
    /// What to do with a malformed row: refuse or skip.
    pub on_bad_row: BadRow,
    /// Columns of every row that has no such column itself, e.g. [data.columns] math = "boxed": how a reward reads all of
    /// them.
    pub columns: Parameters,
    /// Passes over the prompts.
    pub passes: u64,
    /// Shuffle the prompts anew in every pass.
    pub shuffle: bool,
    pub curriculum: Curriculum,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            prompts: PathBuf::new(),
            prompt_key: "prompt".into(),
            label_key: "answer".into(),
            source_key: None,
            on_bad_row: BadRow::default(),
            columns: Parameters::new(),
            passes: 1,
            shuffle: true,
            curriculum: Curriculum::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EvalData {
    /// The column with the prompt: a string (one user message) or a list of messages.
    pub prompt_key: String,
    /// The column with the expected answer; a row may lack it.
    pub label_key: String,
    /// The column that says where a row comes from; metrics are also by source. Unset: data_source, if there is one.
    pub source_key: Option<String>,
    /// What to do with a malformed row: refuse or skip.
    pub on_bad_row: BadRow,
    /// Columns of every row that has no such column itself, e.g. [data.columns] math = "boxed": how a reward reads all of
    /// them.
    pub columns: Parameters,
}

impl Default for EvalData {
    fn default() -> Self {
        let Data { prompt_key, label_key, source_key, on_bad_row, columns, .. } = Data::default();
        Self { prompt_key, label_key, source_key, on_bad_row, columns }
    }
}

/// The column that says where a row comes from, unless the settings name one.
const SOURCE_KEY: &str = "data_source";

impl Data {
    /// The column that says where a row comes from.
    pub fn source_key(&self) -> &str {
        self.source_key.as_deref().unwrap_or(SOURCE_KEY)
    }
}

impl EvalData {
    /// The column that says where a row comes from.
    pub fn source_key(&self) -> &str {
        self.source_key.as_deref().unwrap_or(SOURCE_KEY)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Agent {
    /// The environment plugin that drives an episode: a name, name@version or a path to a .wasm file.
    pub name: String,
    /// Turns of the model per episode at most; an episode that reaches it ends as truncated.
    pub max_turns: u32,
}

impl Default for Agent {
    fn default() -> Self {
        Self { name: "single-turn".into(), max_turns: 10 }
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reward {
    /// The reward plugins that score a finished rollout; the weighted sum of their scores is added to what the
    /// environment gave, and the first says what is solved. Needed with single-turn, which gives none.
    pub name: Vec<String>,
    /// What the score of each reward plugin is multiplied by. Unset: 1 for each.
    pub weight: Vec<f64>,
    /// The reward of an output that cannot be scored, unless the batch holds a lower one. It is not clipped.
    pub lowest: f64,
    /// A lower score is trained as this one. What is taken or added counts for the last turn. An output that cannot be
    /// scored has no score to clip: it gets reward.lowest, or less. Unset: no bound.
    pub clip_low: Option<f64>,
    /// A higher reward is trained as this one. Unset: no bound.
    pub clip_high: Option<f64>,
    /// What a rollout loses that reaches rollout.max_new_tokens in a turn, or its context; linearly less in the last
    /// reward.overlong_cache tokens before. After clipping, and from the last turn. Unset: nothing.
    pub overlong_penalty: Option<f64>,
    /// The tokens before the limit in which the penalty grows from 0 to the whole.
    pub overlong_cache: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EvalReward {
    /// The reward plugins that score a finished rollout; the weighted sum of their scores is added to what the
    /// environment gave, and the first says what is solved.
    pub name: Vec<String>,
    /// What the score of each reward plugin is multiplied by. Unset: 1 for each.
    pub weight: Vec<f64>,
}

impl Reward {
    /// Every reward plugin with its weight, in order.
    pub fn weighted(&self) -> Vec<(&str, f64)> {
        weighted(&self.name, &self.weight)
    }
}

impl EvalReward {
    /// Every reward plugin with its weight, in order.
    pub fn weighted(&self) -> Vec<(&str, f64)> {
        weighted(&self.name, &self.weight)
    }
}

fn weighted<'a>(names: &'a [String], weights: &[f64]) -> Vec<(&'a str, f64)> {
    let weights = weights.iter().copied().chain(std::iter::repeat(1.0));
    names.iter().map(String::as_str).zip(weights).collect()
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rollout {
    /// Prompts per training batch.
    pub batch_size: usize,
    /// Rollouts of each prompt.
    pub samples_per_prompt: u32,
    /// A prompt with fewer finished rollouts is given up and replaced by a fresh one. Unset: 2 for an estimator that
    /// compares the rollouts of a prompt, which cannot do with less, else 1.
    pub min_group: Option<u32>,
    pub filter: Filter,
    /// Divides the logits, in the rollout and in training alike.
    pub temperature: f64,
    /// Tokens per turn of the model at most.
    pub max_new_tokens: usize,
    /// Tokens per rollout at most, prompt included. Unset: the model's context.
    pub max_context: Option<usize>,
    /// Strings that end a turn, besides the model's own end-of-turn tokens.
    pub stop: Vec<String>,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            batch_size: 16,
            samples_per_prompt: 8,
            min_group: None,
            filter: Filter::default(),
            temperature: 1.0,
            max_new_tokens: 256,
            max_context: None,
            stop: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Generator {
    /// Sequences decoded together at most.
    pub max_sequences: usize,
    /// Prompt tokens that one step may prefill, padding included, so that running sequences are not held up.
    pub prefill_tokens: usize,
}

impl Default for Generator {
    fn default() -> Self {
        Self { max_sequences: 64, prefill_tokens: 4096 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Train {
    /// Strictly on-policy: generate a batch, train on it, publish the weights, and only then go on.
    pub sync: bool,
    /// Training batches that generation may run ahead of the trainer; 0 waits for every update.
    pub async_queue_size: usize,
    /// Optimiser steps that each batch is split into. With 1, and train.epochs_per_batch 1, every batch is one step, and
    /// with train.sync every token is on-policy.
    pub steps_per_batch: usize,
    /// How often each batch is trained. In every pass a token's ratio is to the same probability, that of
    /// algo.importance.
    pub epochs_per_batch: usize,
    /// Leave rollouts that ran out of tokens, turns or context out of the loss. They still count in the baseline of
    /// their prompt, and in whitening. Of a batch that has no others nothing is learnt, and run.log says so.
    pub mask_truncated: bool,
    /// Tokens of one forward and backward of a rank at most, which lie one after the other without padding; a longer
    /// trajectory goes alone. Ranks have about as many each. Changes memory and speed, not the update.
    pub max_tokens_per_rank: usize,
    /// Stop after this many batches. Unset: when the data ends.
    pub max_steps: Option<u64>,
    /// The run stops when a token sampled by the weights being trained has a log-probability that differs
    /// by more than this between rollout and training. Unset: 0.01, or 1 with model.compute bfloat16.
    pub max_logprob_gap: Option<f64>,
    /// Train tokens over the experts that they were sampled with, wherever the router would send them now. Only for
    /// models with experts. Where weights changed within a rollout, all go where the newest of them sent them.
    pub replay_routing: bool,
    /// Evaluate after every so many steps, and at the end. Unset: only at the end.
    pub eval_every: Option<u64>,
    /// Evaluate before the first step.
    pub eval_at_start: bool,
    /// Keep the model that does best in an evaluation, in best/ of the run directory, by this metric of it: accuracy,
    /// reward_mean, or pass@K or maj@K with a K of eval.k. Unset: only the last model is kept.
    pub keep_best: Option<String>,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            sync: false,
            async_queue_size: 1,
            steps_per_batch: 1,
            epochs_per_batch: 1,
            mask_truncated: false,
            max_tokens_per_rank: 8192,
            max_steps: None,
            max_logprob_gap: None,
            replay_routing: false,
            eval_every: None,
            eval_at_start: true,
            keep_best: None,
        }
    }
}

/// How the trainer is spread over ranks, each of which holds a part of every parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Fsdp {
    /// The last so many layers keep what the backward pass needs of them; the others are gathered and computed
    /// again, which saves memory. Changes memory and speed, not the update. Unset: all.
    pub keep_layers: Option<usize>,
    /// The next layer is gathered, and the gradient of the last one sent, while a layer computes; without, one layer and
    /// its gradient are in memory, and not two. Changes memory and speed, not the update.
    pub prefetch: bool,
    /// So many ranks compute every layer together: each has some heads and columns of the projections, and a part of
    /// the tokens. Heads and widths of the model must divide by it.
    pub tensor_parallel: usize,
    /// So many ranks share every row: each has a part of its tokens, and gets keys and values from the others.
    pub context_parallel: usize,
    /// So many ranks hold the experts of a layer together, and tokens are sent to where theirs are. The experts must
    /// divide by it.
    pub expert_parallel: usize,
    /// The run ends if a rank is awaited longer than this.
    pub timeout_s: u64,
    /// The network device that ranks talk over, such as eth0. Unset: that of this machine's name.
    pub interface: Option<String>,
}

impl Default for Fsdp {
    fn default() -> Self {
        Self {
            keep_layers: None,
            prefetch: true,
            tensor_parallel: 1,
            context_parallel: 1,
            expert_parallel: 1,
            timeout_s: 600,
            interface: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Eval {
    /// Prompts to evaluate on, never trained: a file with one JSON object per line.
    pub prompts: Option<PathBuf>,
    /// Rollouts of each prompt.
    pub samples: u32,
    /// The k of pass@k, each at most `samples`.
    pub k: Vec<u32>,
    /// Divides the logits. 0 takes the most likely token.
    pub temperature: f64,
    /// Keeps the smallest set of most likely tokens whose mass reaches this.
    pub top_p: f64,
    /// Tokens per turn of the model at most.
    pub max_new_tokens: usize,
    /// Tokens per rollout at most, prompt included. Unset: the model's context.
    pub max_context: Option<usize>,
    /// Strings that end a turn, besides the model's own end-of-turn tokens.
    pub stop: Vec<String>,
}

impl Default for Eval {
    fn default() -> Self {
        Self {
            prompts: None,
            samples: 1,
            k: vec![1],
            temperature: 1.0,
            top_p: 1.0,
            max_new_tokens: 256,
            max_context: None,
            stop: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Log {
    /// Write the trajectories of every so many steps, the first and the last included.
    pub trajectories_every: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self { trajectories_every: 10 }
    }
}
