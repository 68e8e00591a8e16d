//! A batch for an estimator, and an optimiser step for a loss, as people write them.

use molt_core::settings::Parameters;
use molt_sandbox::{EstimatorBatch, LossBatch, Parameter, parameter_values};
use serde::Deserialize;

/// Action tokens that one batch may have here: gigabytes of memory.
const LARGEST: u32 = 100_000_000;

/// Rewards and groups are enough; the rest has defaults that fit them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchInput {
    /// One per rollout.
    pub(crate) rewards: Vec<f32>,
    /// The prompt group of each rollout; all are of one group if unset.
    #[serde(default)]
    pub(crate) groups: Vec<u32>,
    /// Action tokens of each rollout, which has one segment then; one each if unset.
    tokens: Option<Vec<u32>>,
    /// Instead of `tokens`: the rollout of each segment, and the number of its action tokens.
    segments: Option<Vec<(u32, u32)>>,
    /// The turn of each action token; 0 if unset.
    turns: Option<Vec<u32>>,
    /// What each turn of each rollout earned; if unset, each rollout has one turn, which earned its reward.
    turn_rewards: Option<Vec<Vec<f32>>>,
    #[serde(default)]
    kl: Vec<f32>,
    #[serde(default)]
    values: Vec<f32>,
    #[serde(default)]
    kl_coef: f32,
    /// What the estimator's parameters are set to, as under `algo.parameters` of a run.
    #[serde(default)]
    parameters: Parameters,
}

impl BatchInput {
    /// A batch of one segment per rollout.
    pub(crate) fn of(rewards: Vec<f32>, groups: Vec<u32>, tokens: Vec<u32>) -> Self {
        Self { rewards, groups, tokens: Some(tokens), ..Self::default() }
    }

    /// The batch as the sandbox takes it, which checks what does not fit together, for an estimator that declares
    /// these parameters.
    ///
    /// # Errors
    /// `tokens` and `segments` are both given, there are too many tokens, or the parameters are not what was declared.
    pub(crate) fn into_batch(self, declared: &[Parameter]) -> Result<EstimatorBatch, String> {
        let parameters =
            parameter_values(declared, &self.parameters).map_err(|error| format!("parameters: {error}"))?;
        let segments: Vec<(u32, u32)> = match (self.tokens, self.segments) {
            (Some(_), Some(_)) => return Err("give tokens or segments, not both".into()),
            (None, Some(segments)) => segments,
            (Some(tokens), None) => (0..).zip(tokens).collect(),
            (None, None) => (0..).zip(self.rewards.iter().map(|_| 1)).collect(),
        };
        let offsets = |lengths: &mut dyn Iterator<Item = u32>| {
            let mut offsets = vec![0_u32];
            let mut end = 0_u32;
            for length in lengths {
                let sum = end.checked_add(length).filter(|&sum| sum <= LARGEST);
                end = sum.ok_or_else(|| format!("there are more than {LARGEST} tokens or turns"))?;
                offsets.push(end);
            }
            Ok::<_, String>(offsets)
        };
        let segment_offsets = offsets(&mut segments.iter().map(|(_, tokens)| *tokens))?;
        let tokens = segment_offsets.last().map_or(0, |&end| end as usize);
        let turn_rewards: Vec<Vec<f32>> =
            self.turn_rewards.unwrap_or_else(|| self.rewards.iter().map(|&reward| vec![reward]).collect());
        let turn_offsets = offsets(&mut turn_rewards.iter().map(|turns| turns.len() as u32))?;
        let groups = if self.groups.is_empty() { vec![0; self.rewards.len()] } else { self.groups };
        Ok(EstimatorBatch {
            rewards: self.rewards,
            groups,
            segment_rollouts: segments.into_iter().map(|(rollout, _)| rollout).collect(),
            segment_offsets,
            turns: self.turns.unwrap_or_else(|| vec![0; tokens]),
            turn_rewards: turn_rewards.concat(),
            turn_offsets,
            kl: self.kl,
            values: self.values,
            kl_coef: self.kl_coef,
            parameters,
        })
    }
}

/// Of an optimiser step, one number per action token each, segment after segment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepInput {
    logprobs: Vec<f32>,
    sampled: Vec<f32>,
    /// `logprobs` if unset, as in the first step of a batch.
    old: Option<Vec<f32>>,
    advantages: Vec<f32>,
    /// Action tokens of each segment; all are of one if unset.
    tokens: Option<Vec<u32>>,
}

impl StepInput {
    /// The step as the sandbox takes it, which checks what does not fit together.
    ///
    /// # Errors
    /// The tokens of the segments are not as many as there are.
    pub(crate) fn into_batch(self) -> Result<LossBatch, String> {
        let count = self.logprobs.len();
        let mut segment_offsets = vec![0_u32];
        let mut end = 0_u32;
        for length in self.tokens.unwrap_or_else(|| vec![count as u32]) {
            end = end.saturating_add(length);
            segment_offsets.push(end);
        }
        if end as usize != count {
            return Err(format!("tokens add up to {end}, and there are {count} logprobs"));
        }
        Ok(LossBatch {
            old: self.old.unwrap_or_else(|| self.logprobs.clone()),
            logprobs: self.logprobs,
            sampled: self.sampled,
            advantages: self.advantages,
            segment_offsets,
        })
    }
}

/// The action tokens of each rollout in order, as indices into the per-token arrays.
pub(crate) fn tokens_by_rollout(batch: &EstimatorBatch) -> Vec<Vec<usize>> {
    let mut rollouts = vec![Vec::new(); batch.rewards.len()];
    for (&rollout, ends) in batch.segment_rollouts.iter().zip(batch.segment_offsets.windows(2)) {
        if let (Some(tokens), [from, to]) = (rollouts.get_mut(rollout as usize), ends) {
            tokens.extend(*from as usize..*to as usize);
        }
    }
    rollouts
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_sandbox::ParameterKind;

    #[test]
    fn rewards_are_enough_and_the_rest_follows() {
        let input: BatchInput = serde_json::from_str(r#"{"rewards": [1, 0.5]}"#).expect("well-formed");
        let batch = input.into_batch(&[]).expect("fits");
        assert_eq!(
            (batch.groups, batch.segment_offsets, batch.turns),
            (vec![0, 0], vec![0, 1, 2], vec![0, 0])
        );
        assert_eq!((batch.turn_rewards, batch.turn_offsets), (vec![1.0, 0.5], vec![0, 1, 2]));
    }

    #[test]
    fn a_rollout_may_have_several_segments() {
        let text =
            r#"{"rewards": [1, 2], "segments": [[1, 2], [0, 0], [1, 3]], "turn_rewards": [[1], [0, 2]]}"#;
        let input: BatchInput = serde_json::from_str(text).expect("well-formed");
        let batch = input.into_batch(&[]).expect("fits");
        assert_eq!(tokens_by_rollout(&batch), [vec![], vec![0, 1, 2, 3, 4]]);
        assert_eq!((&batch.turn_offsets, &batch.turn_rewards), (&vec![0, 1, 3], &vec![1.0, 0.0, 2.0]));
    }

    #[test]
    fn parameters_are_those_that_the_estimator_declares() {
        let kind = ParameterKind::Float { default: 1.0, min: 0.0, max: 1.0 };
        let declared = [Parameter { name: "gamma".into(), doc: "discount".into(), kind }];
        let values = |text: &str| {
            let input: BatchInput = serde_json::from_str(text).expect("well-formed");
            input.into_batch(&declared).map(|batch| batch.parameters)
        };
        assert_eq!(values(r#"{"rewards": []}"#), Ok(vec![1.0]));
        assert_eq!(values(r#"{"rewards": [], "parameters": {"gamma": 0.5}}"#), Ok(vec![0.5]));
        let error = values(r#"{"rewards": [], "parameters": {"gamma": 2}}"#).expect_err("too large");
        assert_eq!(error, "parameters: gamma is 2, but must be a number from 0 to 1");
    }

    #[test]
    fn a_step_is_one_segment_of_the_first_step_unless_it_says_otherwise() {
        let step = |more: &str| {
            let text =
                format!(r#"{{"logprobs": [-1, -2], "sampled": [-3, -4], "advantages": [1, 0]{more}}}"#);
            serde_json::from_str::<StepInput>(&text).expect("well-formed").into_batch()
        };
        let plain = step("").expect("fits");
        assert_eq!((&plain.old, &plain.segment_offsets), (&plain.logprobs, &vec![0, 2]));
        let later = step(r#", "old": [-1.5, -2], "tokens": [0, 2]"#).expect("fits");
        assert_eq!((later.old, later.segment_offsets), (vec![-1.5, -2.0], vec![0, 0, 2]));
        let error = step(r#", "tokens": [1]"#).expect_err("one is of no segment");
        assert_eq!(error, "tokens add up to 1, and there are 2 logprobs");
    }

    #[test]
    fn two_ways_at_once_are_refused() {
        let text = r#"{"rewards": [1], "tokens": [1], "segments": [[0, 1]]}"#;
        let input: BatchInput = serde_json::from_str(text).expect("well-formed");
        assert!(input.into_batch(&[]).is_err());
        let text = r#"{"rewards": [1, 2], "tokens": [100000000, 1]}"#;
        let input: BatchInput = serde_json::from_str(text).expect("well-formed");
        assert!(input.into_batch(&[]).is_err());
    }
}
