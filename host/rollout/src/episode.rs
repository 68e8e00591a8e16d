//! One rollout: the environment asks, the model answers, until the episode is over and scored.

use crate::error::RolloutError;
use crate::tool_calls;
use futures_util::future::try_join_all;
use molt_core::chat::{Message, Role, Task};
use molt_core::ids::{GroupId, RolloutId, Token};
use molt_core::outcome::{DropReason, Dropped, Group, Outcome};
use molt_core::sampling::{Finish, Sampling};
use molt_core::seed::{Purpose, derive};
use molt_core::trajectory::{Reward as Score, Sampled, Segment, Trajectory};
use molt_generator::{Generation, Generator, GeneratorError, Request};
use molt_model::{Chat, TextError};
use molt_sandbox::{Action, Call, Environment, Failure, Reward, Sample, Verdict};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How the turns of a rollout are sampled, and how many there may be.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnSettings {
    /// Every turn is sampled like this, with fewer tokens where the context leaves less room.
    pub sampling: Sampling,
    /// Tokens of a rollout at most, prompt included. No more than the generator's context.
    pub max_context: usize,
    /// Turns of the model at most.
    pub max_turns: u32,
}

/// Everything that a rollout needs. Rollouts share it.
pub struct Driver<G: Generator> {
    pub generator: Arc<G>,
    pub chat: Arc<Chat>,
    pub environment: Environment,
    /// Scores the finished rollout; its score is added to what the environment gave.
    pub reward: Option<Reward>,
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
}

/// Why a rollout did not finish.
enum End {
    Dropped(DropReason, String),
    Fatal(RolloutError),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Dropped(DropReason::Plugin(failure.label()), failure.to_string())
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

/// What the environment said of a rollout so far.
#[derive(Default)]
struct Tally {
    /// The environment ended the episode itself.
    over: bool,
    reward: Option<f64>,
    solved: Option<bool>,
    metrics: BTreeMap<String, f64>,
}

impl<G: Generator> Driver<G> {
    /// Plays one training rollout to its end.
    ///
    /// # Errors
    /// Only if the generator stopped; whatever concerns this rollout alone is its outcome.
    pub async fn rollout(&self, id: RolloutId, task: &Task) -> Result<Outcome, RolloutError> {
        self.outcome(Stream::Train, id, task).await
    }

    /// Plays `samples` rollouts of one prompt at once.
    ///
    /// # Errors
    /// As [`Driver::rollout`].
    pub async fn group(&self, id: GroupId, task: &Task, samples: u32) -> Result<Group, RolloutError> {
        let members = (0..samples).map(|member| RolloutId { group: id, member });
        let outcomes = try_join_all(members.map(|rollout| self.rollout(rollout, task))).await?;
        Ok(Group { id, task: task.clone(), outcomes })
    }

    pub(crate) async fn outcome(
        &self,
        stream: Stream,
        id: RolloutId,
        task: &Task,
    ) -> Result<Outcome, RolloutError> {
        match self.play(stream, id, task).await {
            Ok(trajectory) => Ok(Outcome::Finished(Box::new(trajectory))),
            Err(End::Dropped(reason, detail)) => {
                Ok(Outcome::Dropped(Dropped { rollout: id, reason, detail }))
            }
            Err(End::Fatal(error)) => Err(error),
        }
    }

    async fn play(&self, stream: Stream, id: RolloutId, task: &Task) -> Result<Trajectory, End> {
        let max_context = self.turn.max_context;
        let call = || Call { rollout: Some(id), seed: derive(self.seed, stream.plugin(id)) };
        let mut episode = self.environment.open(call(), task).await?;
        let mut messages = episode.reset().await?;
        let mut segment = Segment::new(self.first_prompt(&messages)?);
        let mut tally = Tally::default();
        let mut turn = 0;
        let (completion, truncated) = loop {
            let seed = derive(self.seed, stream.turn(id, turn));
            let Generation { sampled, finish } = self.generate(segment.tokens(), seed).await?;
            if sampled.is_empty() {
                return Err(End::Dropped(DropReason::NoActionTokens, format!("turn {turn} has no token")));
            }
            segment.push_turn(turn, &sampled);
            let tokens: Vec<Token> = sampled.iter().map(|Sampled { token, .. }| *token).collect();
            let text = self.chat.tokenizer().decode(&tokens, true);
            messages.push(Message::new(Role::Assistant, text.clone()));
            let cut_off = finish == Finish::Length;
            let action =
                Action { tool_calls: tool_calls::parse(&text), text: text.clone(), truncated: cut_off };
            let answer = episode.step(&action).await?;
            if let Some(reward) = answer.reward {
                *tally.reward.get_or_insert(0.0) += reward;
            }
            tally.solved = answer.solved.or(tally.solved);
            tally.metrics.extend(answer.metrics);
            if answer.done {
                tally.over = true;
                break (text, cut_off);
            }
            turn += 1;
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
        let sample = Sample { task: task.clone(), messages, completion, truncated };
        let (reward, metrics) = self.score(call(), id, &sample, tally).await?;
        let Sample { task, messages, completion, truncated } = sample;
        let segments = vec![segment];
        Ok(Trajectory { rollout: id, task, segments, messages, completion, truncated, reward, metrics })
    }

    fn first_prompt(&self, messages: &[Message]) -> Result<Vec<Token>, End> {
        let prompt = self.chat.prompt(messages)?;
        if prompt.is_empty() {
            let detail = "the chat template renders the first prompt to no token".to_string();
            return Err(End::Dropped(DropReason::Unrenderable, detail));
        }
        let (len, max) = (prompt.len(), self.turn.max_context);
        if len >= max {
            let detail = format!("a prompt of {len} tokens leaves no room for a turn in a context of {max}");
            return Err(End::Dropped(DropReason::PromptTooLong, detail));
        }
        Ok(prompt)
    }

    async fn generate(&self, tokens: &[Token], seed: u64) -> Result<Generation, GeneratorError> {
        let mut sampling = self.turn.sampling.clone();
        sampling.max_tokens = sampling.max_tokens.min(self.turn.max_context.saturating_sub(tokens.len()));
        self.generator.generate(Request { prompt: tokens.to_vec(), sampling, seed }).await
    }

    /// The reward is the sum of what the environment gave per step and of what the reward plugin gave. Whether
    /// the task is solved is for the reward plugin to say, else for the environment, else for a reward of at
    /// least 1. Where both name a metric, the reward plugin's is kept.
    async fn score(
        &self,
        call: Call,
        id: RolloutId,
        sample: &Sample,
        tally: Tally,
    ) -> Result<(Score, BTreeMap<String, f64>), End> {
        let Tally { over, reward: mut total, mut solved, mut metrics } = tally;
        if let Some(plugin) = &self.reward {
            match plugin.score(call, sample).await? {
                Verdict::Scored { reward, solved: verdict, metrics: more } => {
                    total = Some(total.unwrap_or(0.0) + reward);
                    solved = Some(verdict);
                    metrics.extend(more);
                }
                Verdict::Invalid(reason) => return Ok((Score::Invalid { reason }, metrics)),
                Verdict::Infra(what) => {
                    let detail = format!("{} could not grade rollout {id}: {what}", plugin.info().name);
                    return Err(End::Dropped(DropReason::Plugin("infra"), detail));
                }
            }
        }
        let Some(value) = total else {
            if !over {
                // Not dropped: a policy must not escape its score by never coming to an end.
                let reason = "no turn or no room was left before anything was scored".to_string();
                return Ok((Score::Invalid { reason }, metrics));
            }
            let detail =
                "neither the environment nor a reward plugin scored the rollout; reward.name names one";
            return Err(End::Dropped(DropReason::NoReward, detail.to_string()));
        };
        // Estimators see rewards as f32.
        if !(value as f32).is_finite() {
            let detail = format!("the rewards of rollout {id} add up to {value}, which is not a finite f32");
            return Err(End::Dropped(DropReason::Plugin("not-finite"), detail));
        }
        Ok((Score::Scored { value, solved: solved.unwrap_or(value >= 1.0) }, metrics))
    }
}
