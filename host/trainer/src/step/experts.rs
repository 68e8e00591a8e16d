//! Steps over layers of experts: they depend on no layout either, and go where the rollout went.

use super::ranks::{own, ranks};
use super::tests::{
    LOSS, alone, by_definition, converted, gradient, layout, optim, relative_difference, rows, segment,
    trained,
};
use super::*;
use crate::optim::Parameter;
use molt_core::settings::Optim;
use molt_core::trajectory::Segment;
use molt_core::trajectory::{Routing, Sampled};
use molt_model::{Decoder, KvCache, Unit};
use proptest::prelude::*;
use tch::Kind;

/// Experts in two of three layers, and more of them than numbers of ranks divide.
fn decoder(experts: usize, per_token: usize, normalised: bool) -> Decoder {
    let config = format!(
        r#"{{"model_type": "qwen3_moe", "vocab_size": 61, "hidden_size": 16, "intermediate_size": 32,
        "head_dim": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 128, "tie_word_embeddings": true, "initializer_range": 0.3,
        "moe_intermediate_size": 12, "mlp_only_layers": [1], "num_experts": {experts},
        "num_experts_per_tok": {per_token}, "norm_topk_prob": {normalised}}}"#
    );
    Decoder::random(Config::parse(&config).expect("a valid configuration"), 7)
}

fn double(normalised: bool) -> Decoder {
    converted(decoder(5, 2, normalised), Kind::Double)
}

/// By weights of `version`, experts below `below`: two different ones in each of two layers, as `salt` says.
pub(super) fn routing(salt: u32, version: u64, positions: usize, below: u16) -> Routing {
    let pair = |n: u32| {
        let mixed = salt.wrapping_add(n).wrapping_mul(2_654_435_761) >> 7;
        let first = (mixed % u32::from(below)) as u16;
        [first, (first + 1 + (mixed >> 8) as u16 % (below - 1)) % below]
    };
    Routing::new(WeightVersion(version), 4, (0..2 * positions as u32).flat_map(pair).collect())
}

proptest! {
    #![proptest_config(super::tests::config(16))]

    /// In float64, where rounding does not move a token to another expert: loss and gradient of any number of
    /// ranks in any layout are those of one process in one micro-batch. Some rollouts have a record, in part.
    #[test]
    fn neither_layout_nor_ranks_matter(
        shapes in super::tests::shapes(), size in 1_usize..5, budget in 1_usize..120, keep_layers in 0_usize..4,
        rotate in 0_usize..6, normalised in any::<bool>(), router_aux_coef in prop_oneof![Just(0.0), 0.01..1.0],
    ) {
        let mut segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        for ((segment, _), &(salt, ..)) in segments.iter_mut().zip(&shapes) {
            if salt % 2 == 0 {
                let version = segment.actions().last().map_or(0, |action| action.version.0);
                segment.record_routing(routing(salt, version, segment.tokens().len() - 1, 5));
            }
        }
        let mut one = alone(double(normalised), layout(100_000));
        one.router_aux_coef = router_aux_coef;
        let expected = one.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        let whole = gradient(&one);
        segments.rotate_left(rotate % shapes.len());
        let layout = Layout { keep_layers, ..layout(budget) };
        let found = ranks(size, |group| {
            let weights = double(normalised).into();
            let mut learner = Learner::part(weights, Some(group.into()), &optim(), 20, layout, 0.7).expect("in memory");
            learner.router_aux_coef = router_aux_coef;
            let sums = learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
            let part = own(&learner, double(normalised), &whole);
            (sums, relative_difference(&gradient(&learner), &part))
        });
        for (sums, difference) in found {
            prop_assert!((sums.loss - expected.loss).abs() <= 1e-12 * expected.loss.abs().max(1.0));
            prop_assert_eq!((sums.tokens, sums.on_policy), (expected.tokens, expected.on_policy));
            prop_assert!(difference <= 1e-11, "gradients differ by {:e}", difference);
            prop_assert!((sums.balance - expected.balance).abs() <= 1e-12);
            prop_assert_eq!(sums.balance > 0.0, router_aux_coef > 0.0);
        }
    }
}

/// The load-balancing loss of all tokens of `rows` but what follows their last action, in one graph of autograd:
/// the definition. Its value before the coefficient, and the gradient as [`gradient`] orders it.
fn balance_by_definition(decoder: Decoder, coefficient: f64, rows: &[PolicyRow<'_>]) -> (f64, Vec<f64>) {
    let (network, parameters) = decoder.into_parts();
    let leaves: Vec<Tensor> = network
        .units()
        .into_iter()
        .flat_map(|unit| network.names(unit))
        .map(|name| parameters[&name].detach().set_requires_grad(true))
        .collect();
    // By layer: the probabilities of all tokens, and a 1 for every expert that one goes to.
    let (mut probabilities, mut chosen) = ([vec![], vec![]], [vec![], vec![]]);
    for row in rows {
        let length = row.segment.actions().last().expect("an action").position;
        let ids: Vec<i64> = row.segment.tokens()[..length].iter().map(|&token| token.into()).collect();
        let sequences = network.sequences(&[length], 0..length);
        let (mut x, mut first) = (network.embed(&leaves[0], &Tensor::from_slice(&ids).unsqueeze(0)), 1);
        for layer in 0..3 {
            let own = first..first + network.names(Unit::Layer(layer)).len();
            first = own.end;
            let (output, routed) =
                network.layer(layer, &leaves[own], &x, &sequences, None).expect("no ranks");
            x = output;
            if let Some(routed) = routed {
                let place = usize::from(layer == 2);
                chosen[place].push(routed.experts.squeeze_dim(0).one_hot(5).sum_dim_intlist(
                    [1].as_slice(),
                    false,
                    Kind::Double,
                ));
                probabilities[place].push(routed.probabilities.squeeze_dim(0));
            }
        }
    }
    let of_layer = |place: usize| {
        let share = |parts: &[Tensor]| Tensor::cat(parts, 0).mean_dim([0].as_slice(), false, Kind::Double);
        (share(&chosen[place]) * share(&probabilities[place])).sum(Kind::Double) * 5.0
    };
    let mean = (of_layer(0) + of_layer(1)) / 2.0;
    (&mean * coefficient).backward();
    let flat = |leaf: &Tensor| {
        let gradient = leaf.grad();
        let gradient = if gradient.defined() { gradient } else { leaf.zeros_like() };
        Vec::<f64>::try_from(gradient.flatten(0, -1)).expect("float64")
    };
    (mean.double_value(&[]), leaves.iter().flat_map(flat).collect())
}

#[test]
fn the_load_balancing_loss_is_that_of_all_tokens_of_the_step() {
    let mut segments = [segment(1, [3, 4, 2, 3]), segment(2, [5, 1, 0, 0]), segment(3, [1, 7, 4, 6])];
    // No advantage: nothing else has a gradient.
    segments.iter_mut().for_each(|(_, advantages)| advantages.fill(0.0));
    let (mean, expected) = balance_by_definition(double(true), 0.3, &rows(&segments));
    for (budget, keep_layers) in [(100, 3), (1, 0), (24, 1)] {
        let mut ours = alone(double(true), Layout { keep_layers, ..layout(budget) });
        ours.router_aux_coef = 0.3;
        let sums = ours.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        assert!((sums.balance - mean).abs() < 1e-12 && mean > 2.0, "{} for {mean}", sums.balance);
        let difference = relative_difference(&gradient(&ours), &expected);
        assert!(difference < 1e-11, "{difference:e}");
    }
}

#[test]
fn steps_of_the_load_balancing_loss_balance() {
    let mut segments: Vec<_> = (0..6).map(|n| segment(n, [3 + n, 9, n % 3, 9])).collect();
    segments.iter_mut().for_each(|(_, advantages)| advantages.fill(0.0));
    let mut learner = alone(double(true), layout(100));
    learner.balance_experts(1.0).expect("no ranks");
    let step =
        |learner: &mut Learner| learner.policy_step(&rows(&segments), &LOSS).expect("a step").0.balance;
    let (first, last) = (step(&mut learner), (0..9).map(|_| step(&mut learner)).last().expect("steps"));
    assert!(last < first - 0.05 && last > 2.0, "from {first} to {last}, and 2 is best");
}

#[test]
fn agrees_with_the_definition() {
    let segments = [segment(1, [3, 4, 2, 3]), segment(2, [5, 1, 0, 0]), segment(3, [1, 7, 4, 6])];
    for (normalised, keep_layers) in [(false, 0), (true, 1), (true, 3)] {
        let (loss, expected) = by_definition(decoder(5, 2, normalised), &rows(&segments));
        let ours = alone(decoder(5, 2, normalised), Layout { keep_layers, ..layout(24) });
        let sums = ours.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        assert!((sums.loss - loss).abs() < 1e-6, "{} is not {loss}", sums.loss);
        let difference = relative_difference(&gradient(&ours), &expected);
        assert!(difference < 1e-6, "{difference:e}");
    }
}

/// The parameters of layers with experts whose name ends like this.
fn ending(learner: &Learner, end: &str) -> Vec<(Parameter, Tensor)> {
    let is_meant = |(p, _): &(Parameter, _)| p.name.contains(".mlp.") && p.name.ends_with(end);
    trained(learner).into_iter().filter(is_meant).collect()
}

/// Which experts have a gradient, in each of the two layers.
fn used(learner: &Learner) -> Vec<Vec<bool>> {
    let of = |gradient: Tensor| gradient.view([5, -1]).abs().amax([1], false).gt(0.0);
    let downs = ending(learner, "experts.down_proj.weight");
    downs.into_iter().map(|(_, gradient)| Vec::<bool>::try_from(of(gradient)).expect("booleans")).collect()
}

#[test]
fn a_perturbed_router_replays_every_selection_and_gets_its_gradient() {
    let natural: Vec<_> = (0..4).map(|n| segment(n, [3 + n, 4, 0, 0])).collect();
    // The rollouts went to experts 0, 1 and 2 only.
    let mut replayed = natural.clone();
    for (salt, (segment, _)) in replayed.iter_mut().enumerate() {
        segment.record_routing(routing(salt as u32, 0, segment.tokens().len() - 1, 3));
    }
    for (normalised, keep_layers) in [(false, 0), (true, 0), (true, 3)] {
        let learner = alone(double(normalised), Layout { keep_layers, ..layout(60) });
        for (router, _) in ending(&learner, "mlp.gate.weight") {
            let _ = tch::no_grad(|| router.value.shallow_clone().neg_());
        }
        learner.policy_gradient(&rows(&natural), &LOSS).expect("a gradient");
        assert!(used(&learner).iter().all(|layer| layer[3] && layer[4]), "by itself it goes there too");
        learner.policy_gradient(&rows(&replayed), &LOSS).expect("a gradient");
        assert_eq!(used(&learner), [[true, true, true, false, false]; 2]);
        // The router's gradient is that of the loss with the selection held, by central differences.
        for (router, expected) in ending(&learner, "mlp.gate.weight") {
            let value = router.value;
            assert!(expected.abs().max().double_value(&[]) > 1e-4);
            for at in [1, 18, 35] {
                const STEP: f64 = 1e-5;
                let moved = |by: f64| {
                    let _ = tch::no_grad(|| value.narrow(0, at, 1).g_add_scalar_(by));
                    learner.policy_gradient(&rows(&replayed), &LOSS).expect("a gradient").loss
                };
                let slope = (moved(STEP) - moved(-2.0 * STEP)) / (2.0 * STEP);
                moved(STEP);
                let expected = expected.double_value(&[at]);
                assert!((slope - expected).abs() < 1e-7, "{}[{at}]: {slope} for {expected}", router.name);
            }
        }
    }
}

/// A rollout of two turns by `decoder` with a cache, a token at a time, and its record.
fn rollout(decoder: &Decoder, salt: u32, is_recorded: bool) -> (Segment, Vec<f32>) {
    let (shape, advantages) = segment(salt, [6, 20, 4, 20]);
    let tokens: Vec<i64> = shape.tokens().iter().map(|&token| i64::from(token)).collect();
    let experts = decoder.config().experts.as_ref().expect("experts");
    let mut out = Segment::new(shape.tokens()[..6].to_vec());
    for (turn, range) in [(0, 6..26), (1, 30..50)] {
        if turn == 1 {
            out.push_context(&shape.tokens()[26..30]);
        }
        // Every turn begins with a prefill of all but the last token, which goes where it went before.
        let mut cache = KvCache::new(decoder, 1);
        let known = experts.recorded(&[(out.routing(), range.start - 1)]);
        let feed = |from: usize, to: usize, cache: &mut KvCache, known: Option<&Tensor>| {
            let ids = Tensor::from_slice(&tokens[from..to]).unsqueeze(0);
            let hidden = decoder.hidden_cached(&ids, cache, 0..1, &[from], known);
            (decoder.logits(&hidden.select(1, -1)) / 0.7).log_softmax(-1, Kind::Float).squeeze_dim(0)
        };
        let _ = feed(0, range.start - 1, &mut cache, known.as_ref());
        let sampled = range.clone().map(|at| {
            let logprob = feed(at - 1, at, &mut cache, None).double_value(&[tokens[at]]) as f32;
            Sampled { token: shape.tokens()[at], logprob, version: WeightVersion(0) }
        });
        out.push_turn(turn, &sampled.collect::<Vec<_>>());
        if is_recorded {
            let ids = cache.experts(0, range.end - 1);
            out.record_routing(Routing::new(WeightVersion(0), experts.width(), ids));
        }
    }
    (out, advantages)
}

/// Pairs of experts whose routers are the same but for a few units in the last place: which of the two is chosen
/// is a matter of rounding. The trainer's weights have the difference the other way round.
#[test]
fn with_replay_training_agrees_with_the_rollout_where_rounding_decides() {
    let paired = |nudge: f64| {
        let decoder = decoder(6, 3, true);
        for (_, router) in decoder.parameters().iter().filter(|(name, _)| name.ends_with("mlp.gate.weight")) {
            for pair in [0, 2, 4] {
                router.get(pair + 1).copy_(&(router.get(pair) * (1.0 + nudge)));
            }
        }
        decoder
    };
    let gap = |of: f64, is_recorded: bool| {
        let segments: Vec<_> = (0..6).map(|salt| rollout(&paired(of), salt, is_recorded)).collect();
        let learner = alone(paired(-2e-6), Layout { keep_layers: 1, ..layout(100) });
        let sums = learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        assert_eq!(sums.on_policy, 6 * 40);
        sums.gap_max
    };
    let (same, turned, without) = (gap(-2e-6, true), gap(2e-6, true), gap(2e-6, false));
    println!("gap with replay {same:.1e}, of turned pairs {turned:.1e}, and without replay {without:.1e}");
    assert!(same < 5e-6 && turned < 5e-5 && without > 1e-2, "{same:e} {turned:e} {without:e}");
}

#[test]
fn frozen_routers_stay_and_all_else_learns() {
    let segments: Vec<_> = (0..4).map(|n| segment(n, [3 + n, 9, n % 3, 9])).collect();
    let optim = Optim { freeze: vec!["mlp.gate.".to_owned()], ..optim() };
    let weights = double(true).into();
    let mut learner = Learner::part(weights, None, &optim, 10, layout(60), 0.7).expect("in memory");
    learner.router_aux_coef = 0.1;
    learner.policy_step(&rows(&segments), &LOSS).expect("a step");
    let before = double(true).into_parts().1;
    for (name, after) in learner.parameters().expect("no ranks") {
        assert_eq!(after.equal(&before[&name]), name.ends_with("mlp.gate.weight"), "{name}");
    }
}

#[test]
fn experts_that_the_model_does_not_have_are_refused() {
    let learner = alone(double(true), layout(64));
    for (width, experts) in [(4, [0, 1, 0, 5].repeat(6)), (3, vec![0; 18])] {
        let routing = Routing::new(WeightVersion(0), width, experts);
        let mut segment = segment(1, [3, 4, 0, 0]);
        segment.0.record_routing(routing);
        let error = learner.policy_gradient(&rows(&[segment]), &LOSS).expect_err("unknown experts");
        assert!(matches!(error, TrainError::Routing), "{error}");
    }
}
