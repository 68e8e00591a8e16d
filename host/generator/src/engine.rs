//! The embedded engine: one thread that owns a model and decodes for everyone.

use crate::batch::Batch;
use crate::{Generation, Generator, GeneratorError, Request, WeightUpdate};
use molt_core::ids::WeightVersion;
use molt_core::panic::panic_text;
use molt_core::settings;
use molt_model::{Decoder, KvCache, Tokenizer};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// A handle to the engine; the engine ends with its last handle.
///
/// The tokens of a turn follow from its prompt, its seed and the weights, not from the turns that share its
/// batch, up to what rounding of the logits may do to a choice on the edge.
#[derive(Debug, Clone)]
pub struct Engine {
    thread: Arc<Thread>,
}

/// What the engine has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Tokens sampled.
    pub generated: u64,
    /// Prompt tokens computed, and tokens computed anew for new weights. Copied prompts cost none.
    pub prefilled: u64,
    /// Time in which there was something to do.
    pub busy: Duration,
}

pub(crate) type Reply = oneshot::Sender<Result<Generation, GeneratorError>>;

pub(crate) enum Command {
    Generate(Request, Reply),
    Load(WeightUpdate, oneshot::Sender<Result<(), GeneratorError>>),
}

/// What the thread shows to its handles.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    generated: AtomicU64,
    prefilled: AtomicU64,
    busy_nanos: AtomicU64,
    /// Why the thread ended before its handles did.
    stopped: OnceLock<String>,
}

#[derive(Debug)]
struct Thread {
    commands: Option<Sender<Command>>,
    handle: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Engine {
    /// Starts the thread. It decodes with `decoder`, whose weights are of `version` and shared with nobody;
    /// `tokenizer` turns tokens into text for stop strings; a sequence has at most `context` tokens.
    pub fn start(
        decoder: Decoder,
        tokenizer: Arc<Tokenizer>,
        version: WeightVersion,
        settings: &settings::Generator,
        context: usize,
    ) -> Engine {
        let shared = Arc::new(Shared::default());
        let cache = KvCache::new(&decoder, settings.max_sequences.max(1));
        let batch = Batch {
            decoder,
            tokenizer,
            version,
            cache,
            context,
            prefill_tokens: settings.prefill_tokens,
            waiting: VecDeque::new(),
            running: Vec::new(),
            shared: Arc::clone(&shared),
        };
        let (commands, receiver) = mpsc::channel();
        let serve = {
            let shared = Arc::clone(&shared);
            move || serve(batch, receiver, &shared)
        };
        let handle = match std::thread::Builder::new().name("generator".into()).spawn(serve) {
            Ok(handle) => Some(handle),
            Err(error) => {
                shared.stop(format!("its thread could not start: {error}"));
                None
            }
        };
        Engine { thread: Arc::new(Thread { commands: Some(commands), handle, shared }) }
    }

    /// Counters since the start; they only grow.
    pub fn stats(&self) -> EngineStats {
        let shared = &self.thread.shared;
        EngineStats {
            generated: shared.generated.load(Ordering::Relaxed),
            prefilled: shared.prefilled.load(Ordering::Relaxed),
            busy: Duration::from_nanos(shared.busy_nanos.load(Ordering::Relaxed)),
        }
    }

    /// Sends a command and waits for its reply.
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, GeneratorError>>) -> Command,
    ) -> Result<T, GeneratorError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.thread.commands.as_ref().is_some_and(|c| c.send(command(reply)).is_ok());
        match answer.await {
            Ok(result) if sent => result,
            _ => {
                let reason = self.thread.shared.stopped.get().cloned();
                Err(GeneratorError::Stopped(reason.unwrap_or_else(|| "its thread has ended".into())))
            }
        }
    }
}

impl Generator for Engine {
    async fn generate(&self, request: Request) -> Result<Generation, GeneratorError> {
        self.ask(|reply| Command::Generate(request, reply)).await
    }

    async fn load_weights(&self, update: WeightUpdate) -> Result<(), GeneratorError> {
        self.ask(|reply| Command::Load(update, reply)).await
    }
}

impl Shared {
    pub(crate) fn count_generated(&self, tokens: usize) {
        self.generated.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_prefilled(&self, tokens: usize) {
        self.prefilled.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_busy(&self, time: Duration) {
        self.busy_nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn stop(&self, reason: String) {
        tracing::error!("the generator stopped: {reason}");
        let _ = self.stopped.set(reason);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // The thread ends once nobody can send to it.
        self.commands = None;
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// The thread. A panic of libtorch ends it, and its reason is there before any caller learns that no reply is
/// coming: `batch` and `commands`, which hold the callers, are dropped after it.
fn serve(mut batch: Batch, commands: Receiver<Command>, shared: &Shared) {
    let ended = catch_unwind(AssertUnwindSafe(|| batch.run(&commands)));
    if let Err(panic) = ended {
        shared.stop(panic_text(panic.as_ref()));
    }
}

#[cfg(test)]
mod tests;
