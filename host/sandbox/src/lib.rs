//! The plugin boundary: find a component by name, link what is granted, limit it, call it.
//!
//! Every call of a reward or an estimator, and every episode of an environment, has a fresh instance to
//! itself. Whatever a plugin does ends in a value that was checked or in a [`Failure`] that names the
//! plugin, the limit and the rollout. This crate knows no tensor and no model.

mod bindings;
mod clock;
mod contract;
mod convert;
mod effort;
mod engine;
mod environment;
mod error;
mod estimator;
mod grant;
mod info;
mod interpreter;
mod library;
mod limit;
mod lock;
mod log;
mod loss;
mod model;
mod observe;
mod parameter;
mod plugin;
mod quote;
mod reference;
mod refuse;
mod reward;
mod sandbox;
mod strip;
mod trace;
mod wasi;

pub use environment::{Action, Environment, Episode, ToolCall, Transition};
pub use error::{Cause, Failure, LoadError};
pub use estimator::{Estimate, Estimator, EstimatorBatch, Traits};
pub use grant::{JudgeEndpoint, JudgeError};
pub use info::{Info, Kind, inspect};
pub use interpreter::{CodeOutput, Interpreter, Session};
pub use library::Library;
pub use lock::{LOCK_FILE, Lock, LockError, Locked};
pub use loss::{Loss, LossBatch, Losses};
pub use model::{ChatError, ChatFinish, ChatModel, ChatReply, ChatRequest};
pub use molt_core::settings::{Access, GrantedModel, Grants, Judge, Limits};
pub use observe::Cost;
pub use parameter::{Parameter, ParameterError, ParameterKind, parameter_values};
pub use plugin::Call;
pub use reward::{Reward, Sample, Verdict};
pub use sandbox::Sandbox;
