//! Ranks as threads of one process: what they compute together is what one computes alone.

use super::adapter::adapted;
use super::tests::{
    LOSS, alone, converted, decoder, gradient, layout, model, of_kind, optim, relative_difference, rows,
    segment,
};
use super::*;
use molt_core::settings::{Compute, Optim, OptimKind};
use molt_model::{Decoder, Unit, Weights};
use molt_torch::Store;
use proptest::prelude::*;
use std::time::Duration;
use tch::Kind;

/// Runs `body` as every rank of a group, each on a thread of its own, and gives back what each returns.
pub(crate) fn ranks<T: Send>(size: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    with_store(size, |_, group| body(group))
}

/// As [`ranks`], with the store by which they can make more groups.
pub(crate) fn with_store<T: Send>(size: usize, body: impl Fn(&Store, Group) -> T + Sync) -> Vec<T> {
    let wait = Duration::from_secs(120);
    let server = Store::serve("127.0.0.1", 0, wait).expect("a port");
    std::thread::scope(|scope| {
        let start = |rank| {
            let (port, body) = (server.port(), &body);
            scope.spawn(move || {
                let store = Store::connect("127.0.0.1", port, wait).expect("a store");
                let group = Group::gloo(&store, "all", (rank, size), (None, true), wait);
                body(&store, group.expect("a group"))
            })
        };
        let all: Vec<_> = (0..size).map(start).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// The rows that this learner trains of a whole gradient, as [`gradient`] orders both; of a model like `decoder`.
pub(super) fn own(learner: &Learner, decoder: Decoder, whole: &[f64]) -> Vec<f64> {
    let ranks = learner.shards.ranks().expect("ranks");
    let (rank, size) = (ranks.rank(), ranks.size());
    let trained: Vec<String> =
        learner.shards.parameters(&learner.network).into_iter().map(|parameter| parameter.name).collect();
    let names = learner.network.units().into_iter().flat_map(|unit| learner.network.names(unit));
    let shapes = decoder.into_parts().1;
    let (mut own, mut start) = (Vec::new(), 0);
    for name in names {
        let shape = shapes[&name].size();
        let (rows, elements) = (shape[0] as usize, shape.iter().product::<i64>() as usize);
        let (most, row) = (rows.div_ceil(size), elements / rows);
        let held = (rank * most).min(rows)..((rank + 1) * most).min(rows);
        if trained.contains(&name) {
            own.extend(&whole[start + held.start * row..start + held.end * row]);
        }
        start += elements;
    }
    own
}

pub(super) fn together(group: Group, kind: Kind, layout: Layout) -> Learner {
    part(of_kind(kind, "0.3"), group, &optim(), layout)
}

pub(super) fn part(weights: impl Into<Weights>, group: Group, optim: &Optim, layout: Layout) -> Learner {
    Learner::part(weights.into(), Some(group.into()), optim, 20, layout, 0.7).expect("settings that fit")
}

fn freeze(patterns: &[&str]) -> Optim {
    Optim { freeze: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(), ..optim() }
}

/// What may be frozen: at the bottom, in the middle, at the top, parts of layers, and nearly all.
const FROZEN: [&[&str]; 8] = [
    &["embed_tokens"],
    &["layers.0."],
    &["embed_tokens", "layers.0."],
    &["layers.1.", "model.norm"],
    &["model.layers"],
    &["embed_tokens", "model.layers"],
    &["mlp", "k_proj"],
    &["embed_tokens", "norm", "layers.1.self_attn"],
];

/// In the numbers in which runs compute, at the usual scale of weights: rows one by one, packed or dealt, a batch has one
/// loss and one gradient, to the rounding that each layout is allowed alone.
#[test]
fn a_batch_has_one_gradient_however_it_is_dealt() {
    let segments: Vec<_> = (0..9).map(|n| segment(n, [1 + 3 * n, 4, n % 3, 5])).collect();
    for (compute, bound) in [(Compute::Float32, 1e-6), (Compute::Bfloat16, 3.0 / 512.0)] {
        let weights = || Weights::from(decoder("0.02")).in_numbers(compute);
        let one_by_one = alone(weights(), layout(1));
        let expected = one_by_one.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        let whole = gradient(&one_by_one);
        for (size, budget) in [(1, 100_000), (1, 60), (2, 100_000), (2, 30), (3, 1), (4, 40)] {
            let found = ranks(size, |group| {
                let learner = match size {
                    1 => alone(weights(), layout(budget)),
                    _ => part(weights(), group, &optim(), layout(budget)),
                };
                let sums = learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
                let expected = match size {
                    1 => whole.clone(),
                    _ => own(&learner, decoder("0.02"), &whole),
                };
                (sums.loss, gradient(&learner), expected)
            });
            for (loss, ..) in &found {
                let apart = (loss - expected.loss).abs() / expected.loss.abs().max(1.0);
                assert!(
                    apart <= bound,
                    "{compute:?}, {size} ranks, {budget} tokens: losses differ by {apart:e}"
                );
            }
            let [all, expected] = [0, 1].map(|side| {
                let of =
                    |own: &(f64, Vec<f64>, Vec<f64>)| if side == 0 { own.1.clone() } else { own.2.clone() };
                found.iter().flat_map(of).collect::<Vec<f64>>()
            });
            let difference = relative_difference(&all, &expected);
            assert!(difference <= bound, "{compute:?}, {size} ranks, {budget} tokens: {difference:e}");
        }
    }
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
        let layout = Layout { keep_layers, prefetch: budget % 2 == 0, ..layout(budget) };
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

    /// What is frozen keeps every bit in a step, and the gradient of all else is the one without freezing.
    #[test]
    fn frozen_parameters_stay_and_change_no_gradient(
        shapes in super::tests::shapes(), size in 1_usize..5, keep_layers in 0_usize..3, is_tied: bool,
        patterns in prop::sample::select(FROZEN.to_vec()),
    ) {
        let segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        let double = || converted(model("0.3", is_tied), Kind::Double);
        let one = alone(double(), layout(100_000));
        one.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        let whole = gradient(&one);
        let layout = Layout { keep_layers, ..layout(40) };
        let found = ranks(size, |group| {
            let mut learner = part(double(), group, &freeze(patterns), layout);
            learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
            let difference = relative_difference(&gradient(&learner), &own(&learner, double(), &whole));
            let update = learner.update().expect("a step");
            (difference, update.grad_norm, learner.parameters().expect("all ranks are here"))
        });
        let start = double().into_parts().1;
        for (difference, grad_norm, after) in found {
            prop_assert!(difference <= 1e-11, "gradients differ by {:e}", difference);
            let is_frozen = |name: &str| patterns.iter().any(|pattern| name.contains(pattern));
            let mut moved = after.iter().filter(|(name, value)| *value != start[name]).map(|(name, _)| name);
            prop_assert_eq!(moved.clone().next().is_some(), grad_norm > 0.0);
            prop_assert!(moved.all(|name| !is_frozen(name)));
        }
    }
}

/// Every parameter, flat.
pub(super) fn flat(parameters: &[(String, Tensor)]) -> Vec<f64> {
    let values = parameters.iter().map(|(_, tensor)| tensor.flatten(0, -1).to_kind(Kind::Double));
    values.flat_map(|tensor| Vec::<f64>::try_from(tensor).expect("float64")).collect()
}

/// What the first of 20 steps saw, and the weights after the last.
type End = ((PolicySums, Update), Vec<f64>);

pub(super) fn twenty_steps(mut learner: Learner) -> End {
    let segments: Vec<_> = (0..7).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let first = learner.policy_step(&rows(&segments), &LOSS).expect("a step");
    for _ in 1..20 {
        learner.policy_step(&rows(&segments), &LOSS).expect("a step");
    }
    (first, flat(&learner.parameters().expect("all ranks are here")))
}

/// What every rank has `found` is what one process expects, with the bounds that a user is promised.
pub(super) fn assert_same_end(found: &[End], ((expected, update), weights): &End, who: &str) {
    for ((sums, own_update), own_weights) in found {
        assert!((sums.loss - expected.loss).abs() <= 1e-5 * expected.loss.abs(), "{sums:?}");
        assert!((own_update.grad_norm / update.grad_norm - 1.0).abs() <= 1e-5);
        let difference = relative_difference(own_weights, weights);
        assert!(difference <= 1e-4, "{who}: weights differ by {difference:e}");
    }
    assert!(found.iter().all(|(_, own)| own == &found[0].1), "ranks disagree on the weights");
}

/// In float32, in which runs compute. The bounds are those that a user is promised: 1e-5 of the gradient's norm,
/// and 1e-4 of the weights after 20 steps.
#[test]
fn twenty_steps_end_at_the_same_weights() {
    for kind in [OptimKind::Adamw, OptimKind::Muon] {
        twenty_steps_of(|| decoder("0.3").into(), &Optim { kind, ..optim() });
    }
    twenty_steps_of(adapted, &optim());
}

fn twenty_steps_of(start: impl Fn() -> Weights + Sync, optim: &Optim) {
    let expected =
        twenty_steps(Learner::part(start(), None, optim, 20, layout(40), 0.7).expect("settings that fit"));
    assert!(
        relative_difference(&flat(&decoder("0.3").parameters()), &expected.1) > 1e-2,
        "20 steps move them"
    );
    for size in [1, 2, 3, 4] {
        let layout = Layout { keep_layers: size % 3, ..layout(30) };
        let found = ranks(size, |group| twenty_steps(part(start(), group, optim, layout)));
        assert_same_end(&found, &expected, &format!("{size} ranks, {:?}", optim.kind));
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
                Learner::part(weights, Some(group.into()), &optim(), 1, layout(64), 1.0).expect("its rows");
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
/// `(n - 1)` times a rank's own rows, each scatter the rows of all others. What is frozen is not scattered, and a layer
/// that has nothing trained at or below it is not computed again. A parameter that is gathered in bfloat16 takes 2
/// bytes, its gradient 4 as ever.
#[test]
fn a_step_sends_what_the_formula_says() {
    let segments: Vec<_> = (0..5).map(|n| segment(n, [4, 5, 0, 0])).collect();
    let none: &[&str] = &[];
    let bottom: &[&str] = &["embed_tokens", "layers.0.", "layers.1.mlp"];
    let (float32, bfloat16) = (Compute::Float32, Compute::Bfloat16);
    for (size, keep_layers, frozen, compute) in [
        (2, 2, none, float32),
        (2, 0, none, float32),
        (3, 1, none, float32),
        (4, 0, none, float32),
        (3, 0, bottom, float32),
        (2, 1, bottom, float32),
        (2, 2, none, bfloat16),
        (3, 0, bottom, bfloat16),
    ] {
        let layout = Layout { keep_layers, ..layout(1) };
        let traffic = ranks(size, |group| {
            let weights = Weights::from(decoder("0.3")).in_numbers(compute);
            let mut learner = part(weights, group, &freeze(frozen), layout);
            learner.policy_step(&rows(&segments), &LOSS).expect("a step");
            learner.traffic()
        });
        let (network, parameters) = decoder("0.3").into_parts();
        let is_frozen = |name: &str| frozen.iter().any(|pattern| name.contains(pattern));
        // Elements of a unit, and those of them that a rank holds.
        let elements = |unit: Unit, rank: usize, counts: &dyn Fn(&str) -> bool| -> [u64; 2] {
            let names = network.names(unit).into_iter().filter(|name| counts(name));
            let of = |name: String| {
                let shape = parameters[&name].size();
                [shape.iter().product::<i64>() as u64, molt_torch::extent(&shape, rank, size).count() as u64]
            };
            names.map(of).fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
        };
        let gathered_bytes = if compute == bfloat16 { 2 } else { 4 };
        let (others, passes) = (size as u64 - 1, segments.len().div_ceil(size) as u64);
        let layers = network.config().num_hidden_layers;
        let lowest = if frozen.is_empty() { 0 } else { 1 };
        let again = (lowest..layers - keep_layers).map(Unit::Layer);
        let gathered: Vec<Unit> = network.units().into_iter().chain([Unit::Embedding]).chain(again).collect();
        for (rank, traffic) in traffic.into_iter().enumerate() {
            let own: u64 = gathered.iter().map(|&unit| elements(unit, rank, &|_| true)[1]).sum();
            assert_eq!(traffic.all_gather, gathered_bytes * passes * others * own);
            let units = network.units().into_iter();
            let of_others = units.map(|unit| {
                let [whole, own] = elements(unit, rank, &|name| !is_frozen(name));
                whole - own
            });
            assert_eq!(traffic.reduce_scatter, 4 * passes * of_others.sum::<u64>());
        }
    }
}

/// Without `fsdp.prefetch` nothing of a unit is sent before somebody waits for it.
#[test]
fn a_unit_is_on_its_way_only_with_prefetch() {
    for prefetch in [true, false] {
        let fsdp = Fsdp { prefetch, ..Fsdp::default() };
        let sent = ranks(2, |group| {
            let learner = together(group, Kind::Float, Layout::new(64, &fsdp));
            let layer = learner.ahead(Unit::Layer(0)).expect("both are there");
            let before = learner.traffic().all_gather;
            layer.wait().expect("all rows");
            [before > 0, learner.traffic().all_gather > 0]
        });
        assert_eq!(sent, [[prefetch, true]; 2]);
    }
}

/// A checkpoint of two ranks goes on with one and with three, whatever is trained and how.
#[test]
fn a_checkpoint_holds_what_is_trained_and_how() {
    let segments: Vec<_> = (0..5).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let steps = |learner: &mut Learner, count| {
        for _ in 0..count {
            learner.policy_step(&rows(&segments), &LOSS).expect("a step");
        }
    };
    let plain = || Weights::from(decoder("0.3"));
    let cases: [(&(dyn Fn() -> Weights + Sync), Optim); 3] = [
        (&plain, Optim { kind: OptimKind::Muon, ..optim() }),
        (&plain, freeze(&["embed_tokens", "layers.0.", "norm"])),
        (&adapted, optim()),
    ];
    for (start, optim) in cases {
        let mut whole = Learner::part(start(), None, &optim, 20, layout(40), 0.7).expect("settings that fit");
        steps(&mut whole, 5);
        let expected = flat(&whole.parameters().expect("nobody is lost"));
        let dir = tempfile::tempdir().expect("a directory");
        ranks(2, |group| {
            let mut learner = part(start(), group, &optim, layout(40));
            steps(&mut learner, 3);
            learner.save(dir.path()).expect("a part");
        });
        for size in [1, 3] {
            let found = ranks(size, |group| {
                let mut learner = part(start(), group, &optim, layout(40));
                learner.restore(dir.path(), crate::mesh::Mesh::of(2), 3).expect("the parts");
                steps(&mut learner, 2);
                flat(&learner.parameters().expect("all ranks are here"))
            });
            let difference = relative_difference(&found[0], &expected);
            assert!(difference <= 1e-5, "{size} ranks, {optim:?}: {difference:e}");
        }
    }
}
