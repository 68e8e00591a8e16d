//! Ranks as threads of one process: what they compute together is what one computes alone.

use super::tests::{
    LOSS, alone, decoder, gradient, layout, of_kind, optim, relative_difference, rows, segment,
};
use super::*;
use molt_model::{Decoder, Unit};
use molt_torch::Store;
use proptest::prelude::*;
use std::time::Duration;

/// Runs `body` as every rank of a group, each on a thread of its own, and gives back what each returns.
pub(crate) fn ranks<T: Send>(size: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let wait = Duration::from_secs(120);
    let server = Store::serve("127.0.0.1", 0, wait).expect("a port");
    std::thread::scope(|scope| {
        let start = |rank| {
            let (port, body) = (server.port(), &body);
            scope.spawn(move || {
                let store = Store::connect("127.0.0.1", port, wait).expect("a store");
                body(Group::gloo(&store, "all", (rank, size), (None, true), wait).expect("a group"))
            })
        };
        let all: Vec<_> = (0..size).map(start).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// The rows that this learner of `decoder` holds of a whole gradient, as [`gradient`] orders both.
pub(super) fn own(learner: &Learner, decoder: Decoder, whole: &[f64]) -> Vec<f64> {
    let ranks = learner.shards.ranks().expect("ranks");
    let (rank, size) = (ranks.rank(), ranks.size());
    let names = learner.network.units().into_iter().flat_map(|unit| learner.network.names(unit));
    let shapes = decoder.into_parts().1;
    let (mut own, mut start) = (Vec::new(), 0);
    for name in names {
        let shape = shapes[&name].size();
        let (rows, elements) = (shape[0] as usize, shape.iter().product::<i64>() as usize);
        let (most, row) = (rows.div_ceil(size), elements / rows);
        let held = (rank * most).min(rows)..((rank + 1) * most).min(rows);
        own.extend(&whole[start + held.start * row..start + held.end * row]);
        start += elements;
    }
    own
}

pub(super) fn together(group: Group, kind: Kind, layout: Layout) -> Learner {
    Learner::part(of_kind(kind, "0.3").into(), Some(group), &optim(), 20, layout, 0.7).expect("in memory")
}

proptest! {
    #![proptest_config(super::tests::config(12))]

    /// In float64 nothing is left of the number of ranks but rounding: loss, counts and every rank's part of the
    /// gradient. The vocabulary of 61 and the 8 rows of a head's norm are uneven for most numbers of ranks, and
    /// there may be fewer rows to train on than ranks.
    #[test]
    fn the_gradient_is_that_of_one(
        shapes in super::tests::shapes(), size in 2_usize..5, budget in 1_usize..120, keep_layers in 0_usize..3,
    ) {
        let segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        let one = alone(of_kind(Kind::Double, "0.3"), layout(100_000));
        let expected = one.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        let whole = gradient(&one);
        let layout = Layout { keep_layers, ..layout(budget) };
        let found = ranks(size, |group| {
            let learner = together(group, Kind::Double, layout);
            let sums = learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
            (sums, relative_difference(&gradient(&learner), &own(&learner, decoder("0.3"), &whole)))
        });
        for (sums, difference) in found {
            prop_assert!((sums.loss - expected.loss).abs() <= 1e-12 * expected.loss.abs().max(1.0));
            prop_assert_eq!((sums.tokens, sums.on_policy), (expected.tokens, expected.on_policy));
            prop_assert!((sums.gap_max - expected.gap_max).abs() <= 1e-12);
            prop_assert!(difference <= 1e-11, "gradients differ by {:e}", difference);
        }
    }
}

/// Every parameter, flat.
fn flat(parameters: &[(String, Tensor)]) -> Vec<f64> {
    let values = parameters.iter().map(|(_, tensor)| tensor.flatten(0, -1).to_kind(Kind::Double));
    values.flat_map(|tensor| Vec::<f64>::try_from(tensor).expect("float64")).collect()
}

/// In float32, in which runs compute. The bounds are those that a user is promised: 1e-5 of the gradient's norm,
/// and 1e-4 of the weights after 20 steps.
#[test]
fn twenty_steps_end_at_the_same_weights() {
    let segments: Vec<_> = (0..7).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let train = |mut learner: Learner| {
        let first = learner.policy_step(&rows(&segments), &LOSS).expect("a step");
        for _ in 1..20 {
            learner.policy_step(&rows(&segments), &LOSS).expect("a step");
        }
        (first, flat(&learner.parameters().expect("all ranks are here")))
    };
    let ((expected, update), weights) = train(alone(decoder("0.3"), layout(40)));
    assert!(relative_difference(&flat(&decoder("0.3").parameters()), &weights) > 1e-2, "20 steps move them");
    for size in [1, 2, 3, 4] {
        let layout = Layout { keep_layers: size % 3, ..layout(30) };
        let found = ranks(size, |group| train(together(group, Kind::Float, layout)));
        for ((sums, own_update), own_weights) in &found {
            assert!((sums.loss - expected.loss).abs() <= 1e-5 * expected.loss.abs(), "{sums:?}");
            assert!((own_update.grad_norm / update.grad_norm - 1.0).abs() <= 1e-5);
            let difference = relative_difference(own_weights, &weights);
            assert!(difference <= 1e-4, "{size} ranks: weights differ by {difference:e}");
        }
        assert!(found.iter().all(|(_, own)| own == &found[0].1), "ranks disagree on the weights");
    }
}

/// Together the ranks have what the files have, and each only its rows.
#[test]
fn every_rank_reads_its_rows_of_the_files() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let expected = decoder("0.3");
    expected.save(dir.path()).expect("room for a model");
    for size in [1, 2, 3, 5] {
        let found = ranks(size, |group| {
            let weights = Weights::open(dir.path()).expect("the model");
            let mut learner =
                Learner::part(weights, Some(group), &optim(), 1, layout(64), 1.0).expect("its rows");
            let held =
                learner.shards.parameters(&learner.network).iter().map(|p| p.value.numel()).sum::<usize>();
            (held, flat(&learner.parameters().expect("all ranks are here")))
        });
        let whole = flat(&expected.parameters());
        assert!(found.iter().all(|(_, own)| *own == whole), "{size} ranks");
        assert_eq!(found.iter().map(|(held, _)| held).sum::<usize>(), whole.len());
    }
}

/// What a step sends, by the formula: each forward pass gathers every unit once, a layer that is computed again
/// once more, a tied embedding for the logits too; each backward pass scatters every unit once. Each gather sends
/// `(n - 1)` times a rank's own part.
#[test]
fn a_step_sends_what_the_formula_says() {
    let segments: Vec<_> = (0..5).map(|n| segment(n, [4, 5, 0, 0])).collect();
    for (size, keep_layers) in [(2, 2), (2, 0), (3, 1), (4, 0)] {
        let layout = Layout { keep_layers, ..layout(1) };
        let traffic = ranks(size, |group| {
            let mut learner = together(group, Kind::Float, layout);
            learner.policy_step(&rows(&segments), &LOSS).expect("a step");
            learner.shards.ranks().expect("ranks").traffic()
        });
        let (network, parameters) = decoder("0.3").into_parts();
        let part = |unit: Unit| -> u64 {
            let of = |name: &String| {
                let shape = parameters[name].size();
                let row = shape[1..].iter().product::<i64>() as u64;
                (shape[0] as u64).div_ceil(size as u64) * row
            };
            4 * network.names(unit).iter().map(of).sum::<u64>()
        };
        let (others, passes) = (size as u64 - 1, segments.len().div_ceil(size) as u64);
        let layers = network.config().num_hidden_layers;
        let again: u64 = (0..layers - keep_layers).map(|layer| part(Unit::Layer(layer))).sum();
        let once: u64 = network.units().into_iter().map(part).sum();
        for traffic in traffic {
            assert_eq!(traffic.all_gather, passes * others * (once + part(Unit::Embedding) + again));
            assert_eq!(traffic.reduce_scatter, passes * others * once);
        }
    }
}
