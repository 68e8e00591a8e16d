//! Settings of supervised fine-tuning.

use super::{BadRow, Ckpt, Fsdp, Lora, Model, Moe, Optim, Run};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Settings of `molt sft`: supervised fine-tuning.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SftSettings {
    pub run: Run,
    pub model: Model,
    pub data: SftData,
    pub sft: Sft,
    pub eval: SftEval,
    pub fsdp: Fsdp,
    pub moe: Moe,
    pub optim: Optim,
    pub lora: Lora,
    pub ckpt: Ckpt,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SftData {
    /// Conversations to learn from: files with one JSON object per line. Required.
    pub conversations: Vec<PathBuf>,
    /// How often every conversation of each file comes in a pass; with a fraction, so large a part of the file, drawn
    /// anew in every pass, comes once more. Unset: 1 for each.
    pub weight: Vec<f64>,
    /// The column with the conversation: a list of messages, or a string that is the user's message.
    pub prompt_key: String,
    /// The column with the reply, when the conversation column holds only the prompt.
    pub reply_key: String,
    /// What to do with a malformed row, or one longer than the context: refuse or skip.
    pub on_bad_row: BadRow,
}

impl Default for SftData {
    fn default() -> Self {
        Self {
            conversations: Vec::new(),
            weight: Vec::new(),
            prompt_key: "prompt".into(),
            reply_key: "answer".into(),
            on_bad_row: BadRow::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sft {
    /// Passes over the conversations.
    pub passes: u64,
    /// Conversations per optimiser step.
    pub batch_size: usize,
    /// Tokens of one forward and backward of a rank at most, which lie one after the other without padding; a longer
    /// conversation goes alone. Changes memory and speed, not the update.
    pub max_tokens_per_rank: usize,
    /// Tokens per conversation at most; a longer one is a bad row. Unset: the model's context.
    pub max_context: Option<usize>,
    /// Stop after this many steps. Unset: when the data ends.
    pub max_steps: Option<u64>,
}

impl Default for Sft {
    fn default() -> Self {
        Self { passes: 1, batch_size: 32, max_tokens_per_rank: 8192, max_context: None, max_steps: None }
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SftEval {
    /// Conversations that are never learnt, for the loss on them: a file with one JSON object per line.
    pub conversations: Option<PathBuf>,
    /// Compute that loss after every so many steps, and at the end. Unset: before the first step and at the end.
    pub every: Option<u64>,
}
