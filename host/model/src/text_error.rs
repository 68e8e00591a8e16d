//! Why text could not become tokens.

use std::path::PathBuf;

/// A model directory whose text side cannot be used, or messages that its template refuses.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is not valid JSON")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{path} is not a tokenizer: {detail}")]
    Tokenizer { path: PathBuf, detail: String },
    #[error("the tokenizer cannot encode a text: {0}")]
    Encode(String),
    #[error("{0} has no chat template; give one with model.chat_template")]
    NoTemplate(PathBuf),
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    #[error("the chat template does not render these messages: {0}")]
    Render(String),
    #[error(
        "the chat template shows a message of the assistant {found} times where once is expected, so what \
         follows a sampled turn cannot be found; give another template with model.chat_template"
    )]
    Seam { found: usize },
    #[error(
        "the chat template closes a message of the assistant with {closing:?}, which holds none of the model's \
         stop tokens {stop:?}, so that a model would never learn to stop; set eos_token in tokenizer_config.json \
         or give another template with model.chat_template"
    )]
    NoStop { closing: String, stop: Vec<String> },
    #[error("a conversation to learn from holds no message of the assistant")]
    NothingToLearn,
    #[error(
        "the chat template edits a message that holds the text of a special token ({0:?}), so it cannot be \
         shown without becoming that token"
    )]
    EditedSpecial(String),
}
