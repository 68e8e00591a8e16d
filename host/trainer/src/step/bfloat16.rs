//! Layers in bfloat16 over float32 shards. A number of bfloat16 is off by 2^-9 of itself at most, so what agrees in
//! float32 to rounding agrees here to some of those.

use super::adapter::adapted;
use super::parallel::{MIXTURE, mesh, meshed};
use super::ranks::{flat, part, ranks};
use super::tests::{
    LOSS, alone, config, decoder, gradient, layout, optim, relative_difference, rows, segment, trained,
};
use super::*;
use crate::optim::Parameter;
use molt_core::settings::Compute;
use molt_core::trajectory::Segment;
use molt_model::{Decoder, Weights};
use proptest::prelude::*;
use tch::Kind;

fn half(decoder: Decoder) -> Weights {
    Weights::from(decoder).in_numbers(Compute::Bfloat16)
}

fn weights() -> Weights {
    half(decoder("0.02"))
}

fn segments() -> Vec<(Segment, Vec<f32>)> {
    (0..7).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect()
}

proptest! {
    #![proptest_config(config(24))]

    /// Every micro-batch rounds its part of a gradient before they are added in float32, so the whole differs by about
    /// 2^-9; three times as much is allowed (2.4e-3 at most in 24 random cases).
    #[test]
    fn layout_is_rounding(
        shapes in super::tests::shapes(), budget in 1_usize..120, logit_rows in 1_usize..7, keep_layers in 0_usize..3,
    ) {
        let segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        let (whole, split) = (alone(weights(), layout(100_000)), Layout { logit_rows, keep_layers, ..layout(budget) });
        let expected = whole.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        let split = alone(weights(), split);
        let sums = split.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        let difference = relative_difference(&gradient(&split), &gradient(&whole));
        prop_assert!((sums.loss - expected.loss).abs() <= 1e-3 * expected.loss.abs().max(1.0));
        prop_assert!(difference <= 3.0 / 512.0, "gradients differ by {:e}", difference);
    }
}

/// What the gradient of float32 is, to what the numbers can hold; and it is another one.
#[test]
fn the_gradient_is_that_of_float32_to_its_precision() {
    let segments = segments();
    for (name, of_half, of_float) in [
        ("dense", weights(), Weights::from(decoder("0.02"))),
        ("adapted", adapted().in_numbers(Compute::Bfloat16), adapted()),
    ] {
        let (one, exact) = (alone(of_half, layout(100)), alone(of_float, layout(100)));
        for learner in [&one, &exact] {
            learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        }
        let difference = relative_difference(&gradient(&one), &gradient(&exact));
        assert!(difference > 1e-4 && difference < 0.05, "{name}: {difference:e}");
        let is_float =
            |(p, gradient): &(Parameter, Tensor)| [p.value.kind(), gradient.kind()] == [Kind::Float; 2];
        assert!(trained(&one).iter().all(is_float));
    }
}

/// The head of a critic is float32 as logits are.
#[test]
fn a_critic_has_the_gradient_of_float32_to_its_precision() {
    let segments = segments();
    let values = |returns: &[f32]| returns.iter().map(|r| r / 2.0).collect();
    let rows: Vec<ValueRow<'_>> = segments
        .iter()
        .map(|(segment, returns)| ValueRow { segment, values: values(returns), returns: returns.clone() })
        .collect();
    let critic = |weights: Weights| alone(weights.with_value_head(3), layout(60));
    let (half, exact) = (critic(weights()), critic(Weights::from(decoder("0.02"))));
    let found = [&half, &exact].map(|learner| learner.value_gradient(&rows, 0.2).expect("a gradient").loss);
    assert!((found[0] - found[1]).abs() <= 0.01 * found[1], "{found:?}");
    let difference = relative_difference(&gradient(&half), &gradient(&exact));
    assert!(difference > 1e-4 && difference < 0.05, "{difference:e}");
}

/// The loss of twenty steps is that of float32 on the way, and every rank ends at the same weights. (Weights themselves
/// part sooner: Adam moves an element whose gradient is about zero as far as any other, and its sign is rounding. Losses
/// part by 2.1 % at most, to either side, in 12 batches like this one, rows alone or packed by four budgets.)
#[test]
fn twenty_steps_learn_as_those_of_float32() {
    let segments = segments();
    let steps = |mut learner: Learner| {
        let positions = |segment: &Segment| segment.actions().iter().map(|action| action.position).collect();
        let of =
            |segment| Row { tokens: Segment::tokens(segment), targets: positions(segment), routing: None };
        let rows: Vec<Row<'_>> = segments.iter().map(|(segment, _)| of(segment)).collect();
        let losses: Vec<f64> =
            (0..20).map(|_| learner.supervised_step(&rows).expect("a finite gradient").0).collect();
        (losses, flat(&learner.parameters().expect("all ranks are here")))
    };
    let (exact, _) = steps(alone(decoder("0.02"), layout(40)));
    assert!(exact[19] < 0.8 * exact[0], "{exact:?}");
    for size in [1, 2, 3] {
        let layout = Layout { keep_layers: size % 3, ..layout(30) };
        let found = ranks(size, |group| steps(part(weights(), group, &optim(), layout)));
        assert!(found.iter().all(|own| own == &found[0]), "ranks disagree");
        for (step, (own, exact)) in found[0].0.iter().zip(&exact).enumerate() {
            assert!((own - exact).abs() <= 0.03 * exact, "{size} ranks, step {step}: {own} is not {exact}");
        }
    }
}

/// Tensor, context and expert parallelism: what a rank gathers of others is bfloat16, what it adds up float32.
#[test]
fn ranks_that_share_layers_make_the_gradient_of_one() {
    let segments = segments();
    let one = alone(half(MIXTURE.decoder()), layout(100));
    let expected = one.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
    for mesh in [mesh(2, 2, 1, 1), mesh(2, 1, 2, 1), mesh(2, 1, 1, 2)] {
        let found = meshed(mesh, |groups| {
            let learner = super::parallel::part(half(MIXTURE.decoder()), groups, &optim(), layout(100));
            learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient")
        });
        for sums in found {
            assert!((sums.loss - expected.loss).abs() <= 5e-3 * expected.loss.abs(), "{mesh:?}");
        }
    }
}

/// The same ranks go on to the last bit: what is saved is float32.
#[test]
fn a_checkpoint_is_gone_on_from_bit_by_bit() {
    let segments = segments();
    let steps = |learner: &mut Learner, count| {
        for _ in 0..count {
            learner.policy_step(&rows(&segments), &LOSS).expect("a step");
        }
    };
    let dir = tempfile::tempdir().expect("a directory");
    let start = |group| part(weights(), group, &optim(), layout(40));
    let whole = ranks(2, |group| {
        let mut learner = start(group);
        steps(&mut learner, 3);
        learner.save(dir.path()).expect("a part");
        steps(&mut learner, 2);
        flat(&learner.parameters().expect("all ranks are here"))
    });
    let resumed = ranks(2, |group| {
        let mut learner = start(group);
        learner.restore(dir.path(), crate::mesh::Mesh::of(2), 3).expect("the parts");
        steps(&mut learner, 2);
        flat(&learner.parameters().expect("all ranks are here"))
    });
    assert!(whole == resumed);
}
