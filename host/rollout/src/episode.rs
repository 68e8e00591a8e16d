//! One rollout: the environment asks, the model answers, until the episode is over.

use crate::error::RolloutError;
use crate::score::{self, Graded, WeightedReward};
use crate::tool_calls;
use futures_util::future::try_join_all;
use molt_core::chat::{Message, Role, Task};
use molt_core::ids::{GroupId, RolloutId, Token};
use molt_core::outcome::{DropReason, Dropped, Group};
use molt_core::sampling::{Finish, Sampling};
use molt_core::seed::{Purpose, derive};
use molt_core::trajectory::{Sampled, Segment};
use molt_generator::{Generation, Generator, GeneratorError, Request};
use molt_model::{Chat, TextError};
use molt_sandbox::{Action, Call, Environment, Failure, Sample, Transition};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a token stands for at most: the longest entries of the vocabularies in use are runs of so many spaces.
const TOKEN_BYTES: usize = 128;

/// Names of metrics that an environment may use in one rollout: each becomes a column of the run's metrics.
const METRICS: usize = 256;

/// How the turns of a rollout are sampled, and how many there may be.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnSettings {
    /// Every turn is sampled like this, with fewer tokens where the context leaves less room.
    pub sampling: Sampling,
    /// Tokens of a rollout at most, prompt included. No more than the generator's context.
    pub max_context: usize,
    /// Turns of the model at most.
    pub max_turns: u32,
    /// Trajectories keep the experts of their tokens, of a model that has some.
    pub record_routing: bool,
    /// A rollout that nobody scored has the reward 0, where learning needs none; else it is dropped.
    pub reward_is_optional: bool,
}

/// Whether the text of `messages` may fit into so many tokens: tells at no cost what is not worth rendering.
pub(crate) fn may_fit(messages: &[Message], tokens: usize) -> bool {
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    bytes <= tokens.saturating_mul(TOKEN_BYTES)
}

/// Everything that a rollout needs. Rollouts share it.
pub struct Driver<G: Generator> {
    pub generator: Arc<G>,
    pub chat: Arc<Chat>,
    pub environment: Environment,
    /// Score the finished rollouts, beside what the environment gave.
    pub rewards: Vec<WeightedReward>,
    pub turn: TurnSettings,
    /// The run's seed.
    pub seed: u64,
}

/// Which seeds a rollout draws from: evaluating must not change training.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stream {
    Train,
    Eval,
}

impl Stream {
    fn turn(self, id: RolloutId, turn: u32) -> Purpose {
        match self {
            Stream::Train => Purpose::Turn { rollout: id, turn },
            Stream::Eval => Purpose::Eval { row: id.group.0, sample: id.member, turn },
        }
    }

    fn plugin(self, id: RolloutId) -> Purpose {
        match self {
            Stream::Train => Purpose::Plugin { rollout: id },
            Stream::Eval => Purpose::EvalPlugin { row: id.group.0, sample: id.member },
        }
    }

    fn group_plugin(self, id: GroupId) -> Purpose {
        match self {
            Stream::Train => Purpose::GroupPlugin { group: id },
            Stream::Eval => Purpose::EvalGroupPlugin { row: id.0 },
        }
    }
}

/// Why a rollout did not finish.
enum End {
    Dropped(DropReason, String),
    Fatal(RolloutError),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Dropped(DropReason::Plugin(failure.label().into()), failure.to_string())
    }
}

impl From<TextError> for End {
    fn from(error: TextError) -> Self {
        End::Dropped(DropReason::Unrenderable, error.to_string())
    }
}

impl From<GeneratorError> for End {
    fn from(error: GeneratorError) -> Self {
        match error {
            GeneratorError::PromptTooLong { .. } => {
                End::Dropped(DropReason::PromptTooLong, error.to_string())
            }
            error => End::Fatal(error.into()),
        }
    }
}

/// What the environment said of a rollout.
#[derive(Default)]
pub(crate) struct Tally {
    /// The environment ended the episode itself.
    pub(crate) over: bool,
    /// The environment's reward of each turn; 0 where it gave none.
    pub(crate) turns: Vec<f64>,
    /// It gave a reward for some turn.
    pub(crate) scored: bool,
    pub(crate) solved: Option<bool>,
    pub(crate) metrics: BTreeMap<String, f64>,
}

impl Tally {
    /// Takes in what the environment said of one more turn.
    fn add(&mut self, answer: &mut Transition, environment: &str) -> Result<(), End> {
        self.turns.push(answer.reward.unwrap_or(0.0));
        self.scored |= answer.reward.is_some();
        self.solved = answer.solved.or(self.solved);
        self.metrics.extend(std::mem::take(&mut answer.metrics));
        if self.metrics.len() > METRICS {
            let detail = format!(
                "plugin `{environment}` gave {} metrics of different names in one rollout, and {METRICS} at most \
                 are kept: use the same names in every turn",
                self.metrics.len()
            );
            return Err(End::Dropped(DropReason::Plugin("too-many-metrics".into()), detail));
        }
        Ok(())
    }
}

/// A rollout that came to its end and is not scored yet.
pub(crate) struct Played {
    pub(crate) id: RolloutId,
    pub(crate) segments: Vec<Segment>,
    pub(crate) sample: Sample,
    pub(crate) tally: Tally,
}

impl<G: Generator> Driver<G> {
    /// Plays these members of a training group at once, and scores them as if there were no others.
    ///
    /// # Errors
    /// Only if the generator stopped; whatever concerns a rollout or the group alone is its outcome.
    pub async fn group(&self, id: GroupId, task: &Task, members: Range<u32>) -> Result<Group, RolloutError> {
        self.members(Stream::Train, id, task, members).await
    }

    pub(crate) async fn members(
        &self,
        stream: Stream,
        id: GroupId,
        task: &Task,
        members: Range<u32>,
    ) -> Result<Group, RolloutError> {
        let rollouts = members.map(|member| self.graded(stream, RolloutId { group: id, member }, task));
        let rollouts = try_join_all(rollouts).await?;
        let call = Call { rollout: None, seed: derive(self.seed, stream.group_plugin(id)) };
        let outcomes = score::together(
            (&self.rewards, self.turn.reward_is_optional),
            call,
            rollouts,
            &self.environment.info().name,
        )
        .await;
        Ok(Group { id, task: task.clone(), outcomes })
    }

    /// Plays one rollout, and asks the rewards that see it alone.
    async fn graded(
        &self,
        stream: Stream,
        id: RolloutId,
        task: &Task,
    ) -> Result<Result<Graded, Dropped>, RolloutError> {
        let call = Call { rollout: Some(id), seed: derive(self.seed, stream.plugin(id)) };
        match self.play(stream, call, id, task).await {
            Ok(played) => Ok(score::alone(&self.rewards, call, played).await),
            Err(End::Dropped(reason, detail)) => Ok(Err(Dropped { rollout: id, reason, detail })),
            Err(End::Fatal(error)) => Err(error),
        }
    }

    async fn play(&self, stream: Stream, call: Call, id: RolloutId, task: &Task) -> Result<Played, End> {
        let max_context = self.turn.max_context;
        let mut episode = self.environment.open(call, task).await?;
        let mut messages = episode.reset().await?;
        let mut segment = Segment::new(self.first_prompt(task, &messages)?);
        let mut tally = Tally::default();
        let mut turn = 0;
        let (completion, truncated) = loop {
            let seed = derive(self.seed, stream.turn(id, turn));
            let Generation { sampled, finish, routing } = self.generate(&segment, seed).await?;
            if sampled.is_empty() {
                return Err(End::Dropped(DropReason::NoActionTokens, format!("turn {turn} has no token")));
            }
            segment.push_turn(turn, &sampled);
            if let Some(routing) = routing.filter(|_| self.turn.record_routing) {
                segment.record_routing(routing);
            }
            let tokens: Vec<Token> = sampled.iter().map(|Sampled { token, .. }| *token).collect();
            let text = self.chat.tokenizer().decode(&tokens, true);
            messages.push(Message::new(Role::Assistant, text.clone()));
            let cut_off = finish == Finish::Length;
            let action =
                Action { tool_calls: tool_calls::parse(&text), text: text.clone(), truncated: cut_off };
            let mut answer = episode.step(&action).await?;
            tally.add(&mut answer, &self.environment.info().name)?;
            if answer.done {
                tally.over = true;
                break (text, cut_off);
            }
            turn += 1;
            if !may_fit(&answer.messages, max_context.saturating_sub(segment.tokens().len())) {
                // No room is left, and what nobody will read is not kept either.
                break (text, true);
            }
            let seam = match turn < self.turn.max_turns {
                true => Some(self.chat.seam(&messages, &tokens, &answer.messages)?),
                false => None,
            };
            messages.extend(answer.messages);
            match seam {
                Some(seam) if segment.tokens().len() + seam.len() < max_context => {
                    segment.push_context(&seam)
                }
                // No turn or no room is left: the episode ends here, and is scored as far as it came.
                _ => break (text, true),
            }
        };
        drop(episode);
        let sample = Sample { task: task.clone(), seed: call.seed, messages, completion, truncated };
        Ok(Played { id, segments: vec![segment], sample, tally })
    }

    fn first_prompt(&self, task: &Task, messages: &[Message]) -> Result<Vec<Token>, End> {
        let max = self.turn.max_context;
        if !may_fit(messages, max) {
            let what = format!("a prompt of so much text leaves no room for a turn in a context of {max}");
            return Err(self.too_long(task, what));
        }
        let prompt = self.chat.prompt(messages)?;
        if prompt.is_empty() {
            let detail = "the chat template renders the first prompt to no token".to_string();
            return Err(End::Dropped(DropReason::Unrenderable, detail));
        }
        let len = prompt.len();
        if len >= max {
            let what = format!("a prompt of {len} tokens leaves no room for a turn in a context of {max}");
            return Err(self.too_long(task, what));
        }
        Ok(prompt)
    }

    /// Whose doing a first prompt without room for a turn is: the row's if it is too long by itself, and else the
    /// environment's, whose failures are counted, so that it cannot go on like this for a whole run.
    fn too_long(&self, task: &Task, detail: String) -> End {
        let max = self.turn.max_context;
        let alone = !may_fit(&task.messages, max)
            || self.chat.prompt(&task.messages).is_ok_and(|prompt| prompt.len() >= max);
        if alone {
            return End::Dropped(DropReason::PromptTooLong, detail);
        }
        let name = &self.environment.info().name;
        let detail = format!("plugin `{name}` says too much: {detail}, and the row alone would not");
        End::Dropped(DropReason::Plugin("said-too-much".into()), detail)
    }

    async fn generate(&self, segment: &Segment, seed: u64) -> Result<Generation, GeneratorError> {
        let (tokens, routing) = (segment.tokens(), segment.routing().cloned());
        let mut sampling = self.turn.sampling.clone();
        sampling.max_tokens = sampling.max_tokens.min(self.turn.max_context.saturating_sub(tokens.len()));
        self.generator.generate(Request { prompt: tokens.to_vec(), sampling, seed, routing }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with 64 metrics, of names from this number on.
    fn answer(from: usize) -> Transition {
        let metrics = (from..from + 64).map(|n| (n.to_string(), 1.0)).collect();
        Transition { messages: vec![], reward: None, solved: None, done: false, metrics }
    }

    #[test]
    fn an_environment_uses_few_names_of_metrics_however_many_turns_it_has() {
        let mut tally = Tally::default();
        for turn in 0..20 {
            assert!(tally.add(&mut answer(turn % 4 * 64), "odd").is_ok(), "turn {turn}");
        }
        assert_eq!((tally.metrics.len(), tally.turns.len()), (256, 20));
        let Err(End::Dropped(reason, detail)) = tally.add(&mut answer(4 * 64), "odd") else { panic!("kept") };
        assert!(reason.is_failure() && reason.label() == "too-many-metrics");
        assert!(detail.contains("`odd`") && detail.contains("320"), "{detail}");
    }
}
