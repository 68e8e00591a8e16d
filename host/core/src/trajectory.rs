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

/// The experts that a generator sent the tokens of a sequence to, under weights of one version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    version: WeightVersion,
    /// Layers with experts times experts of a token. At least 1.
    width: usize,
    /// `width` for each position, from the first token on.
    experts: Vec<u16>,
}

impl Routing {
    /// `experts` are in the order `[positions, layers with experts, experts of a token]`, `width` of them for each
    /// position; the weights of `version` sent the tokens there.
    ///
    /// # Panics
    /// If there is not a whole number of positions.
    pub fn new(version: WeightVersion, width: usize, experts: Vec<u16>) -> Self {
        assert!(
            width > 0 && experts.len().is_multiple_of(width),
            "{} experts, {width} a position",
            experts.len()
        );
        Self { version, width, experts }
    }

    /// The weights that sent the tokens there.
    pub fn version(&self) -> WeightVersion {
        self.version
    }

    /// The experts of all positions that have a record, as [`Routing::experts`] gives them.
    pub fn records(&self) -> impl Iterator<Item = &[u16]> {
        self.experts.chunks_exact(self.width)
    }

    /// The experts of the token at `position`, `[layers with experts, experts of a token]`; none if it has no record.
    pub fn experts(&self, position: usize) -> Option<&[u16]> {
        self.records().nth(position)
    }
}

/// One token sequence, which becomes one training row: context tokens and action tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Segment {
    tokens: Vec<Token>,
    actions: Vec<Action>,
    routing: Option<Routing>,
}

impl Segment {
    /// A segment that begins with context.
    pub fn new(context: Vec<Token>) -> Self {
        Self { tokens: context, actions: Vec::new(), routing: None }
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

    /// Takes in where the tokens so far went, under the weights that sampled the last action. Those that were not
    /// computed yet are missing: a last sampled token is when the next turn begins.
    ///
    /// While weights are the same, the record that a position has stays: it is what its action was sampled with. New
    /// weights compute the whole sequence again, and their record takes the place of the old one: the actions that
    /// they sample have no other way to be computed, and one pass over the sequence has room for one record.
    pub fn record_routing(&mut self, routing: Routing) {
        match &mut self.routing {
            Some(known) if known.version == routing.version && known.width == routing.width => {
                let more = routing.experts.get(known.experts.len()..).unwrap_or_default();
                known.experts.extend_from_slice(more);
            }
            known => *known = Some(routing),
        }
    }

    /// Where tokens are to go again when the segment is continued or trained.
    pub fn routing(&self) -> Option<&Routing> {
        self.routing.as_ref()
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
    /// What each turn is trained with. A score's turns add up to it. An output that could not be scored has for each
    /// turn `least`, the least that a turn of the batch earned, and for its last whatever is missing to `lowest`, its
    /// reward. So no turn of it has more than if it had been scored, nor have any turns together; if turns of
    /// the batch lost something, its own may come to less than its reward.
    pub fn credits(&self, least: f64, lowest: f64) -> Vec<f64> {
        match self.reward {
            Reward::Scored { .. } => self.turn_rewards.clone(),
            Reward::Invalid { .. } => {
                let mut credits = vec![least; self.turn_rewards.len()];
                let missing = (lowest - least * credits.len() as f64).min(0.0);
                if let Some(last) = credits.last_mut() {
                    *last += missing;
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
    fn credits_add_up_to_a_score_and_never_to_more_than_the_lowest() {
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
        assert_eq!(scored.credits(-0.5, -2.0), [0.25, -0.5, 1.0]);
        let invalid = trajectory(Reward::Invalid { reason: String::new() });
        assert_eq!(invalid.credits(0.0, -2.0), [0.0, 0.0, -2.0], "what it earned on its way is void");
        assert_eq!(invalid.credits(-0.5, -2.0), [-0.5, -0.5, -1.0], "it adds up to the lowest");
        assert_eq!(invalid.credits(0.5, 0.0), [0.5, 0.5, -1.0], "also where every turn earned something");
        // Each turn of a batch may have lost 5, though none of its rollouts lost that in all.
        assert_eq!(invalid.credits(-5.0, 0.0), [-5.0, -5.0, -5.0], "no turn of it has more than another");
    }

    /// A routing by these weights whose experts at position `p` are `first + p`, twice.
    fn routing(version: u64, first: u16, positions: u16) -> Routing {
        let experts = (first..first + positions).flat_map(|expert| [expert; 2]).collect();
        Routing::new(WeightVersion(version), 2, experts)
    }

    /// What a segment would replay at its positions.
    fn replayed(segment: &Segment) -> Vec<Option<u16>> {
        let at = |position| Some(segment.routing()?.experts(position)?[0]);
        (0..segment.tokens().len()).map(at).collect()
    }

    fn sampled(version: u64) -> Sampled {
        Sampled { token: 9, logprob: -1.0, version: WeightVersion(version) }
    }

    #[test]
    fn the_first_record_of_the_same_weights_holds() {
        let mut segment = Segment::new(vec![1, 2]);
        segment.push_turn(0, &[sampled(3), sampled(3)]);
        assert_eq!(replayed(&segment), [None; 4]);
        segment.record_routing(routing(3, 100, 3));
        assert_eq!(replayed(&segment), [Some(100), Some(101), Some(102), None]);
        // The next turn computed all positions again, and the token that was not fed before.
        segment.push_context(&[5]);
        segment.push_turn(1, &[sampled(3)]);
        segment.record_routing(routing(3, 200, 5));
        assert_eq!(replayed(&segment), [Some(100), Some(101), Some(102), Some(203), Some(204), None]);
    }

    #[test]
    fn the_record_of_new_weights_replaces_that_of_the_old() {
        let mut segment = Segment::new(vec![1, 2]);
        segment.push_turn(0, &[sampled(3), sampled(3)]);
        segment.record_routing(routing(3, 100, 3));
        segment.push_context(&[5]);
        segment.push_turn(1, &[sampled(4)]);
        segment.record_routing(routing(4, 200, 5));
        assert_eq!(replayed(&segment), [Some(200), Some(201), Some(202), Some(203), Some(204), None]);
        // Weights that are swapped within a turn.
        segment.push_turn(2, &[sampled(4), sampled(5)]);
        segment.record_routing(routing(5, 300, 7));
        let expected = [300, 301, 302, 303, 304, 305, 306].map(Some);
        assert_eq!(replayed(&segment)[..7], expected);
        assert_eq!(segment.routing().map(Routing::version), Some(WeightVersion(5)));
    }

    /// A prompt of 6 tokens, turns of 2 and 3, and 6 tokens of the environment after each: what labs-molt 0.1.6 gives for
    /// them, actions at 6..8 and 14..17.
    #[test]
    fn actions_are_where_they_were_sampled() {
        let mut segment = Segment::new(vec![1; 6]);
        for (turn, length) in [(0, 2), (1, 3)] {
            segment.push_turn(turn, &vec![sampled(0); length]);
            segment.push_context(&[5; 6]);
        }
        let positions: Vec<usize> = segment.actions().iter().map(|action| action.position).collect();
        assert_eq!((positions, segment.tokens().len()), (vec![6, 7, 14, 15, 16], 23));
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
