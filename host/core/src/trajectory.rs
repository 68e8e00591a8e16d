//! The token-exact record of a rollout.
//!
//! A [`Segment`] grows only by appending context or sampled tokens, so a sampled token can never lose its
//! log-probability, its weight version or its place.

use crate::chat::{Message, Task};
use crate::ids::{RolloutId, Token, WeightVersion};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a generator returns for one token that it sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    pub token: Token,
    /// Log-probability under the distribution that was sampled. Finite.
    pub logprob: f32,
    /// The weights that computed it.
    pub version: WeightVersion,
}

/// An action token in its place.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Index into [`Segment::tokens`]; at least 1, since a first token has nothing to be predicted from.
    pub position: usize,
    pub logprob: f32,
    pub version: WeightVersion,
    /// The model's turn, counted from 0 within the rollout.
    pub turn: u32,
}

/// One token sequence, which becomes one training row: context tokens and action tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Segment {
    tokens: Vec<Token>,
    actions: Vec<Action>,
}

impl Segment {
    /// A segment that begins with context.
    pub fn new(context: Vec<Token>) -> Self {
        Self { tokens: context, actions: Vec::new() }
    }

    /// Appends tokens that the model did not sample: they condition, and are never trained.
    pub fn push_context(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Appends a sampled turn.
    ///
    /// # Panics
    /// If the segment is empty, or a log-probability is not finite: a generator checks both.
    pub fn push_turn(&mut self, turn: u32, sampled: &[Sampled]) {
        assert!(!self.tokens.is_empty(), "a turn needs context before it");
        for s in sampled {
            assert!(s.logprob.is_finite(), "log-probability of a sampled token must be finite");
            self.actions.push(Action {
                position: self.tokens.len(),
                logprob: s.logprob,
                version: s.version,
                turn,
            });
            self.tokens.push(s.token);
        }
    }

    /// All tokens in order.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The action tokens, by ascending position.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }
}

/// A finished rollout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    pub rollout: RolloutId,
    pub task: Task,
    /// At least one segment with at least one action token.
    pub segments: Vec<Segment>,
    /// The conversation as text, for rewards and for people.
    pub messages: Vec<Message>,
    /// The model's last turn as text.
    pub completion: String,
    /// The last turn ran out of tokens, or the episode out of turns or context, before it was over.
    pub truncated: bool,
    pub reward: Reward,
    /// What each turn of the model earned: the environment's reward of the step that answered it, and on the last
    /// turn the reward plugins' score too. They add up to a scored reward. One entry per turn.
    pub turn_rewards: Vec<f64>,
    /// The agent's and the rewards' own metrics, and the value of each reward as `reward/NAME`.
    pub metrics: BTreeMap<String, f64>,
}

/// How a rollout was scored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reward {
    /// A finite number.
    Scored { value: f64, solved: bool },
    /// The model's output could not be scored: trained with the run's lowest reward.
    Invalid { reason: String },
}

impl Reward {
    /// The number to train on, `lowest` for an output that could not be scored.
    pub fn value(&self, lowest: f64) -> f64 {
        match self {
            Reward::Scored { value, .. } => *value,
            Reward::Invalid { .. } => lowest,
        }
    }

    pub fn solved(&self) -> bool {
        matches!(self, Reward::Scored { solved: true, .. })
    }
}

impl Trajectory {
    /// What each turn is trained with, which adds up to the reward that the rollout is trained with. An output
    /// that could not be scored earned nothing on its way, and `lowest` with its last turn.
    pub fn credits(&self, lowest: f64) -> Vec<f64> {
        match self.reward {
            Reward::Scored { .. } => self.turn_rewards.clone(),
            Reward::Invalid { .. } => {
                let mut credits = vec![0.0; self.turn_rewards.len()];
                if let Some(last) = credits.last_mut() {
                    *last = lowest;
                }
                credits
            }
        }
    }

    /// Number of action tokens in all segments.
    pub fn action_tokens(&self) -> usize {
        self.segments.iter().map(|s| s.actions.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GroupId;

    #[test]
    fn credits_add_up_to_what_is_trained() {
        let trajectory = |reward| Trajectory {
            rollout: RolloutId { group: GroupId(0), member: 0 },
            task: Task { id: "1".into(), messages: Vec::new(), label: None, fields: Vec::new() },
            segments: Vec::new(),
            messages: Vec::new(),
            completion: String::new(),
            truncated: false,
            reward,
            turn_rewards: vec![0.25, -0.5, 1.0],
            metrics: BTreeMap::new(),
        };
        let scored = trajectory(Reward::Scored { value: 0.75, solved: false });
        assert_eq!(scored.credits(-2.0), [0.25, -0.5, 1.0]);
        let invalid = trajectory(Reward::Invalid { reason: String::new() });
        assert_eq!(invalid.credits(-2.0), [0.0, 0.0, -2.0], "what it earned on its way is void");
    }

    #[test]
    fn a_turn_keeps_place_logprob_and_version() {
        // The chat-server case of the notes: prompt [1,2,3], action [90,91].
        let mut segment = Segment::new(vec![1, 2, 3]);
        let version = WeightVersion(7);
        segment.push_turn(
            0,
            &[Sampled { token: 90, logprob: -0.3, version }, Sampled { token: 91, logprob: -0.4, version }],
        );
        segment.push_context(&[50, 51]);
        segment.push_turn(1, &[Sampled { token: 92, logprob: -0.5, version: WeightVersion(8) }]);
        assert_eq!(segment.tokens(), [1, 2, 3, 90, 91, 50, 51, 92]);
        let positions: Vec<_> = segment.actions().iter().map(|a| (a.position, a.turn, a.version.0)).collect();
        assert_eq!(positions, [(3, 0, 7), (4, 0, 7), (7, 1, 8)]);
    }
}
