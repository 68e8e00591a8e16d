use super::*;
use crate::loss::PolicyLoss;
use crate::loss::surrogate::Surrogate;
use crate::optim::Parameter;
use molt_core::chat::Task;
use molt_core::ids::RolloutId;
use molt_core::settings::{Aggregation, Importance, Optim};
use molt_core::trajectory::{Reward, Sampled, Segment, Trajectory};
use molt_model::{Config, Decoder, Weights};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError};
use std::collections::BTreeMap;
use tch::Kind;

const VOCABULARY: u32 = 61;

pub(crate) fn decoder(initializer_range: &str) -> Decoder {
    model(initializer_range, true)
}

/// A small model, whose head is its embedding if it is tied.
pub(super) fn model(initializer_range: &str, is_tied: bool) -> Decoder {
    let config = r#"{
        "model_type": "qwen3", "vocab_size": 61, "hidden_size": 16, "intermediate_size": 32, "head_dim": 8,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": TIED,
        "hidden_act": "silu", "initializer_range": RANGE
    }"#;
    let config = config.replace("RANGE", initializer_range).replace("TIED", &is_tied.to_string());
    Decoder::random(Config::parse(&config).expect("a valid configuration"), 7)
}

fn learner(max_tokens_per_rank: usize) -> Learner {
    with(Kind::Float, "0.3", max_tokens_per_rank)
}

/// A learner whose weights are of `kind`.
fn with(kind: Kind, initializer_range: &str, max_tokens_per_rank: usize) -> Learner {
    alone(of_kind(kind, initializer_range), layout(max_tokens_per_rank))
}

/// A decoder whose weights are of `kind`.
pub(super) fn of_kind(kind: Kind, initializer_range: &str) -> Decoder {
    converted(decoder(initializer_range), kind)
}

/// The decoder with its weights in `kind`.
pub(super) fn converted(decoder: Decoder, kind: Kind) -> Decoder {
    for (_, mut parameter) in decoder.parameters() {
        let converted = parameter.to_kind(kind);
        parameter.set_data(&converted);
    }
    decoder
}

pub(crate) fn layout(max_tokens_per_rank: usize) -> Layout {
    Layout::new(max_tokens_per_rank, &Fsdp::default())
}

/// A finished rollout with this reward, of which nothing else is known.
pub(crate) fn trajectory(
    rollout: RolloutId,
    task: &Task,
    segments: Vec<Segment>,
    reward: Reward,
) -> Trajectory {
    Trajectory {
        rollout,
        task: task.clone(),
        segments,
        messages: Vec::new(),
        completion: String::new(),
        truncated: false,
        reward,
        turn_rewards: Vec::new(),
        metrics: BTreeMap::new(),
    }
}

pub(super) fn optim() -> Optim {
    Optim { lr: 1e-2, ..Optim::default() }
}

/// A learner of a process that trains alone.
pub(crate) fn alone(weights: impl Into<Weights>, layout: Layout) -> Learner {
    Learner::part(weights.into(), None, &optim(), 10, layout, 0.7).expect("settings that fit")
}

pub(super) const LOSS: PolicyLoss = PolicyLoss {
    surrogate: Some(Surrogate::Ppo { low: 0.2, high: 0.3, dual: None }),
    importance: Importance::Sampled,
    correction: None,
    aggregation: Aggregation::TokenMean,
    max_length: 1.0,
    entropy_coef: 0.0,
    kl: None,
};

/// A rollout of two turns: tokens, log-probabilities and advantages are functions of `salt`.
pub(crate) fn segment(salt: u32, [prompt, first, between, second]: [u32; 4]) -> (Segment, Vec<f32>) {
    let token = |place: u32| (salt.wrapping_mul(2_654_435_761) ^ place.wrapping_mul(40_503)) % VOCABULARY;
    let context = |from: u32, count: u32| (from..from + count).map(token).collect::<Vec<_>>();
    let turn = |from: u32, count: u32, version| -> Vec<Sampled> {
        let sampled = |place| {
            let logprob = -2.0 - (token(place) as f32) / 20.0;
            Sampled { token: token(place), logprob, version: WeightVersion(version) }
        };
        (from..from + count).map(sampled).collect()
    };
    let mut segment = Segment::new(context(0, prompt));
    segment.push_turn(0, &turn(100, first, 0));
    segment.push_context(&context(200, between));
    segment.push_turn(1, &turn(300, second, 1));
    let advantages = (0..first + second).map(|n| f32::from((token(n + 400) % 9) as u8) / 3.0 - 1.2).collect();
    (segment, advantages)
}

/// The same segment with other log-probabilities, and with more context before each turn and at the end: as many tokens
/// as `gap` says.
pub(crate) fn rebuilt(
    segment: &Segment,
    logprob: impl Fn(f32) -> f32,
    mut gap: impl FnMut() -> usize,
) -> Segment {
    let tokens = segment.tokens();
    let Some(first) = segment.actions().first() else { return segment.clone() };
    let mut other = Segment::new(tokens[..first.position].to_vec());
    let (mut at, mut turn) = (first.position, None);
    for action in segment.actions() {
        other.push_context(&tokens[at..action.position]);
        if turn != Some(action.turn) {
            other.push_context(&vec![5; gap()]);
        }
        let token = tokens[action.position];
        let sampled = Sampled { token, logprob: logprob(action.logprob), version: action.version };
        other.push_turn(action.turn, &[sampled]);
        (at, turn) = (action.position + 1, Some(action.turn));
    }
    other.push_context(&tokens[at..]);
    other.push_context(&vec![5; gap()]);
    other
}

pub(super) fn rows(segments: &[(Segment, Vec<f32>)]) -> Vec<PolicyRow<'_>> {
    segments.iter().map(|(segment, advantages)| PolicyRow::new(segment, advantages.clone())).collect()
}

/// All gradients one after another.
pub(super) fn gradient(learner: &Learner) -> Vec<f64> {
    let flat = |gradient: &Tensor| Vec::<f64>::try_from(gradient.to_kind(Kind::Double)).expect("float64");
    learner.shards.gradients(&learner.network).iter().flat_map(flat).collect()
}

/// What is trained, each with its gradient.
pub(super) fn trained(learner: &Learner) -> Vec<(Parameter, Tensor)> {
    let gradients = learner.shards.gradients(&learner.network);
    learner.shards.parameters(&learner.network).into_iter().zip(gradients).collect()
}

/// L2 norm of the difference, over the norm of `b`; 0 if both are 0, as when every token is clipped.
pub(super) fn relative_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    if difference == 0.0 { 0.0 } else { difference / norm(&mut b.iter().copied()) }
}

/// Rollouts of a step: salt, and lengths of prompt, turn, observation and turn.
pub(super) fn shapes() -> impl Strategy<Value = Vec<(u32, u32, u32, u32, u32)>> {
    prop::collection::vec((any::<u32>(), 1_u32..12, 1_u32..9, 0_u32..6, 0_u32..9), 1..7)
}

/// The same cases in every run, and no file of failures in the source tree.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(20);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// How far the gradient of the step in another layout is from the one in one micro-batch, and that nothing else
/// of it changed: micro-batch size, and with it the number of micro-batches and what lies in one, the order of the
/// rows, the split of the logits, and the layers that are computed again.
fn layout_difference(
    (kind, initializer_range): (Kind, &str),
    shapes: &[(u32, u32, u32, u32, u32)],
    (max_tokens_per_rank, logit_rows, keep_layers, rotate): (usize, usize, usize, usize),
) -> Result<f64, TestCaseError> {
    let segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
    let mut shuffled = segments.clone();
    shuffled.rotate_left(rotate % segments.len());
    shuffled.reverse();
    let whole = with(kind, initializer_range, 100_000);
    let layout = Layout { max_tokens_per_rank, keep_layers, logit_rows, ..layout(1) };
    let split = alone(of_kind(kind, initializer_range), layout);
    let expected = whole.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
    let sums = split.policy_gradient(&rows(&shuffled), &LOSS).expect("a gradient");
    prop_assert!((sums.loss - expected.loss).abs() <= 1e-5 * expected.loss.abs().max(1.0));
    prop_assert_eq!((sums.tokens, sums.on_policy), (expected.tokens, expected.on_policy));
    Ok(relative_difference(&gradient(&split), &gradient(&whole)))
}

proptest! {
    #![proptest_config(config(32))]

    /// In float64 nothing is left of the layout but rounding (2e-15 at most in 185 random cases). A factor or a
    /// token that depended on it would show at any bound.
    #[test]
    fn layout_does_not_matter(
        shapes in shapes(), budget in 1_usize..120, logit_rows in 1_usize..7, keep in 0_usize..3,
        rotate in 0_usize..6,
    ) {
        let difference = layout_difference((Kind::Double, "0.3"), &shapes, (budget, logit_rows, keep, rotate))?;
        prop_assert!(difference <= 1e-12, "gradients differ by {difference:e}");
    }

    /// In float32, in which runs compute, rounding is larger. Weights of the usual scale keep within 1e-6 (5e-7
    /// at most in 184 random cases); weights fifteen times as large do not always (2.8e-6 at most).
    #[test]
    fn layout_is_rounding_in_float32(
        shapes in shapes(), budget in 1_usize..120, logit_rows in 1_usize..7, keep in 0_usize..3,
        rotate in 0_usize..6,
    ) {
        let difference = layout_difference((Kind::Float, "0.02"), &shapes, (budget, logit_rows, keep, rotate))?;
        prop_assert!(difference <= 1e-6, "gradients differ by {difference:e}");
    }
}

/// The gradient of a weighted sum of the log-probabilities of all targets.
fn weighted(learner: &Learner, rows: &[Row<'_>], weight: impl Fn(Target) -> f64) -> Vec<f64> {
    let mut loss = |targets: &[Target], _: &Seen| {
        let by_score = targets.iter().map(|target| weight(*target)).collect();
        Slopes { by_score, by_entropy: None }
    };
    let mut objective = Objective { needs_entropy: false, loss: &mut loss };
    learner.gradient(rows, &mut objective).expect("a gradient");
    gradient(learner)
}

proptest! {
    #![proptest_config(config(16))]

    /// Rows of very unequal lengths, packed in any order and by any budget, have the sum of the gradients that they have
    /// one by one. Of some nothing is learnt.
    #[test]
    fn packed_rows_are_rows_one_by_one(
        rows in prop::collection::vec((prop_oneof![1_usize..4, 20_usize..30, 90_usize..110], 0_u32..97, 0_usize..3), 1..12),
        budget in 1_usize..400, keep_layers in 0_usize..3, order in any::<prop::sample::Index>(),
    ) {
        let tokens: Vec<Vec<Token>> = rows
            .iter()
            .map(|&(length, salt, _)| (0..=length as u32).map(|n| (salt + n * n * 7) % VOCABULARY).collect())
            .collect();
        // All targets, some, or none.
        let targets = |(nth, tokens): (usize, &Vec<Token>)| -> Vec<usize> {
            let is_target = |at: &usize| match rows[nth].2 { 0 => true, 1 => at % 3 == 1, _ => false };
            (1..tokens.len()).filter(is_target).collect()
        };
        let all: Vec<Row<'_>> = tokens
            .iter()
            .enumerate()
            .map(|(nth, tokens)| Row { tokens, targets: targets((nth, tokens)), routing: None })
            .collect();
        let weight = |row: usize, nth: usize| ((row * 31 + nth) as f64).sin();
        let one = with(Kind::Double, "0.3", 1);
        let mut expected = vec![0.0; gradient(&one).len()];
        for (row, own) in all.iter().enumerate() {
            let found = weighted(&one, std::slice::from_ref(own), |target| weight(row, target.nth));
            expected.iter_mut().zip(found).for_each(|(sum, own)| *sum += own);
        }
        let mut places: Vec<usize> = (0..all.len()).collect();
        places.rotate_left(order.index(all.len()));
        places.reverse();
        let shuffled: Vec<Row<'_>> = places.iter().map(|&row| all[row].clone()).collect();
        let packed = alone(of_kind(Kind::Double, "0.3"), Layout { keep_layers, ..layout(budget) });
        let found = weighted(&packed, &shuffled, |target| weight(places[target.row], target.nth));
        let difference = relative_difference(&found, &expected);
        prop_assert!(difference <= 1e-10, "gradients differ by {difference:e}");
    }
}

#[test]
fn a_step_begins_without_the_gradient_of_the_last() {
    let after = |learner: &Learner, salt| {
        let segment = segment(salt, [3, 4, 2, 3]);
        learner.policy_gradient(&rows(&[segment]), &LOSS).expect("a gradient");
        gradient(learner)
    };
    let used = learner(64);
    for salt in [1, 2] {
        assert_eq!(after(&used, salt), after(&learner(64), salt));
    }
}

/// Row by row, with all logits at once and a mask over all positions: the definition. The loss, and its gradient
/// as [`gradient`] orders it.
pub(super) fn by_definition(mut decoder: Decoder, rows: &[PolicyRow<'_>]) -> (f64, Vec<f64>) {
    let loss = definition(&mut decoder, rows);
    let (network, parameters) = decoder.into_parts();
    let names = network.units().into_iter().flat_map(|unit| network.names(unit));
    let gradient = names.flat_map(|name| {
        let flat = parameters[&name].grad().flatten(0, -1).to_kind(Kind::Double);
        Vec::<f64>::try_from(flat).expect("float64")
    });
    (loss, gradient.collect())
}

/// The loss by the definition; its gradient is left with the decoder's parameters.
pub(super) fn definition(decoder: &mut Decoder, rows: &[PolicyRow<'_>]) -> f64 {
    decoder.requires_grad(true);
    let tokens: usize = rows.iter().map(|row| row.segment.actions().len()).sum();
    let mut total = Tensor::from(0.0_f32);
    for row in rows {
        let ids: Vec<i64> = row.segment.tokens().iter().map(|&token| i64::from(token)).collect();
        let ids = Tensor::from_slice(&ids).unsqueeze(0);
        let logits = decoder.logits(&decoder.hidden(&ids)).squeeze_dim(0) / 0.7;
        let logprobs = logits.log_softmax(-1, Kind::Float);
        for (action, advantage) in row.segment.actions().iter().zip(&row.advantages) {
            let token = i64::from(row.segment.tokens()[action.position]);
            let logprob = logprobs.get(action.position as i64 - 1).get(token);
            let ratio = (logprob - f64::from(action.logprob)).exp();
            let clipped = ratio.clamp(0.8, 1.3) * f64::from(*advantage);
            total -= (ratio * f64::from(*advantage)).minimum(&clipped);
        }
    }
    let loss = total / tokens as f64;
    loss.backward();
    loss.double_value(&[])
}

#[test]
fn agrees_with_the_definition() {
    let segments = [segment(1, [3, 4, 2, 3]), segment(2, [5, 1, 0, 0]), segment(3, [1, 7, 4, 6])];
    let (loss, expected) = by_definition(decoder("0.3"), &rows(&segments));
    for keep_layers in 0..3 {
        let ours = alone(decoder("0.3"), Layout { keep_layers, ..layout(24) });
        let sums = ours.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        assert!((sums.loss - loss).abs() < 1e-6, "{} is not {loss}", sums.loss);
        assert!(sums.clipped > 0.0 && sums.clipped < sums.tokens as f64, "the case should clip some tokens");
        let difference = relative_difference(&gradient(&ours), &expected);
        assert!(difference < 1e-6, "{difference:e}");
    }
}

#[test]
fn only_tokens_of_the_present_weights_count_as_on_policy() {
    // Of each segment the first turn was sampled by version 0, the second by version 1.
    let segments = [segment(1, [3, 4, 2, 3]), segment(2, [5, 2, 1, 4])];
    let mut learner = learner(64);
    let (sums, _) = learner.policy_step(&rows(&segments), &LOSS).expect("a finite gradient");
    assert_eq!((sums.tokens, sums.on_policy), (13, 6));
    assert!(sums.gap_max > 0.0 && sums.gap <= 6.0 * sums.gap_max);
    // One step later the same tokens of version 0 are stale, and those of version 1 are not.
    assert_eq!(learner.version(), WeightVersion(1));
    let (sums, _) = learner.policy_step(&rows(&segments), &LOSS).expect("a finite gradient");
    assert_eq!(sums.on_policy, 7);
}

#[test]
fn the_gap_is_zero_for_our_own_log_probabilities() {
    let learner = learner(64);
    let (given, _) = segment(1, [3, 4, 0, 0]);
    let layout = Row {
        tokens: given.tokens(),
        targets: given.actions().iter().map(|a| a.position).collect(),
        routing: None,
    };
    let logprobs = learner.of_targets(std::slice::from_ref(&layout)).expect("logits");
    let mut sampled: Vec<Sampled> = given
        .actions()
        .iter()
        .zip(&logprobs[0])
        .map(|(a, &logprob)| Sampled {
            token: given.tokens()[a.position],
            logprob: logprob as f32,
            version: a.version,
        })
        .collect();
    let context = given.tokens()[..3].to_vec();
    let gap = |sampled: &[Sampled]| {
        let mut segment = Segment::new(context.clone());
        segment.push_turn(0, sampled);
        let row = PolicyRow::new(&segment, vec![1.0; 4]);
        learner.policy_gradient(&[row], &LOSS).expect("a gradient")
    };
    assert!(gap(&sampled).gap_max < 1e-6);
    sampled[2].logprob += 0.25;
    let sums = gap(&sampled);
    assert!((sums.gap_max - 0.25).abs() < 1e-5 && (sums.gap - 0.25).abs() < 1e-5, "{sums:?}");
}

#[test]
fn what_follows_the_last_action_is_not_read() {
    let (short, advantages) = segment(4, [3, 4, 0, 0]);
    let mut long = short.clone();
    long.push_context(&[1, 2, 3]);
    let gradients = [short, long].map(|segment| {
        let learner = learner(64);
        learner.policy_gradient(&rows(&[(segment, advantages.clone())]), &LOSS).expect("a gradient");
        gradient(&learner)
    });
    assert_eq!(gradients[0], gradients[1]);
}

#[test]
fn what_cannot_be_frozen_is_refused() {
    let refused = |is_tied, freeze: &[&str]| {
        let freeze = freeze.iter().map(|pattern| (*pattern).to_owned()).collect();
        let optim = Optim { freeze, ..optim() };
        let learner = Learner::part(model("0.3", is_tied).into(), None, &optim, 10, layout(64), 0.7);
        learner.map(|_| ()).expect_err("refused").to_string()
    };
    let unknown = refused(true, &["norm", "layers.7."]);
    assert!(unknown.contains("holds `layers.7.`, but no parameter"), "{unknown}");
    assert!(unknown.ends_with("like model.layers.0.input_layernorm.weight"), "{unknown}");
    // A tied head has no name of its own.
    assert!(refused(true, &["lm_head"]).contains("holds `lm_head`"));
    assert!(refused(true, &["layers", "norm", "embed"]).contains("no parameter to train"));
    assert!(refused(false, &["layers", "norm", "embed", "lm_head"]).contains("no parameter to train"));
}

#[test]
fn supervised_steps_learn() {
    let tokens = [5, 9, 14, 3, 22];
    let row = Row { tokens: &tokens, targets: vec![2, 3, 4], routing: None };
    let mut learner = learner(64);
    let losses: Vec<f64> = (0..8)
        .map(|_| learner.supervised_step(std::slice::from_ref(&row)).expect("a finite gradient").0)
        .collect();
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
}

#[test]
fn a_step_without_targets_completes() {
    let tokens = [5, 9, 14];
    let mut learner = learner(64);
    let (loss, update) = learner
        .supervised_step(&[Row { tokens: &tokens, targets: vec![], routing: None }])
        .expect("nothing to differentiate");
    assert_eq!((loss, update.grad_norm), (0.0, 0.0));
}
