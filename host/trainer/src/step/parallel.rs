//! Ranks that compute layers together: tensor, context and expert parallelism, each with shards and with each other.

use super::experts::routing;
use super::pass::MicroBatch;
use super::ranks::{assert_same_end, flat, twenty_steps, with_store};
use super::tests::{LOSS, alone, converted, gradient, layout, optim, relative_difference, rows, segment};
use super::*;
use crate::loss::tests::losses;
use crate::mesh::{Groups, Mesh};
use molt_core::settings::{Optim, OptimKind};
use molt_core::trajectory::Segment;
use molt_model::{Cut, Decoder, Weights};
use proptest::prelude::*;
use std::time::Duration;
use tch::Kind;

/// Sizes of a model of three layers, of which the second is dense, and the others too without experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    hidden: usize,
    head_dim: usize,
    kv_heads: usize,
    /// Query heads per key head.
    groups: usize,
    ffn: usize,
    experts: usize,
    is_tied: bool,
}

pub(super) const MIXTURE: Sizes =
    Sizes { hidden: 14, head_dim: 6, kv_heads: 2, groups: 2, ffn: 10, experts: 4, is_tied: true };
const DENSE: Sizes = Sizes { experts: 0, kv_heads: 4, groups: 1, is_tied: false, ..MIXTURE };

impl Sizes {
    pub(super) fn decoder(self) -> Decoder {
        let Self { hidden, head_dim, kv_heads, groups, ffn, experts, is_tied } = self;
        let (kind, heads) = (if experts > 0 { "qwen3_moe" } else { "qwen3" }, kv_heads * groups);
        let mixture = match experts {
            0 => String::new(),
            experts => format!(
                r#", "num_experts": {experts}, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
                "mlp_only_layers": [1], "norm_topk_prob": true"#
            ),
        };
        let config = format!(
            r#"{{"model_type": "{kind}", "vocab_size": 61, "hidden_size": {hidden}, "intermediate_size": {ffn},
            "head_dim": {head_dim}, "num_hidden_layers": 3, "num_attention_heads": {heads},
            "num_key_value_heads": {kv_heads}, "max_position_embeddings": 128, "initializer_range": 0.3,
            "tie_word_embeddings": {is_tied} {mixture}}}"#
        );
        Decoder::random(Config::parse(&config).expect("a valid configuration"), 7)
    }

    fn double(self) -> Decoder {
        converted(self.decoder(), Kind::Double)
    }
}

/// Ranks, and how many of them share heads, rows and experts.
pub(super) const fn mesh(ranks: usize, tensor: usize, context: usize, expert: usize) -> Mesh {
    Mesh { ranks, tensor, context, expert }
}

/// Each of the three at 2 on 2 and on 4 ranks, their pairs at 2 each, all of them at 2, and each at 3 and at 4.
const MESHES: [Mesh; 17] = [
    mesh(2, 2, 1, 1),
    mesh(2, 1, 2, 1),
    mesh(2, 1, 1, 2),
    mesh(4, 2, 1, 1),
    mesh(4, 1, 2, 1),
    mesh(4, 1, 1, 2),
    mesh(4, 2, 2, 1),
    mesh(4, 2, 1, 2),
    mesh(4, 1, 2, 2),
    mesh(4, 2, 2, 2),
    mesh(2, 1, 2, 2),
    mesh(3, 3, 1, 1),
    mesh(3, 1, 3, 1),
    mesh(3, 1, 1, 3),
    mesh(4, 4, 1, 1),
    mesh(4, 1, 4, 1),
    mesh(4, 1, 1, 4),
];

/// The mesh that settings for it make, of a model.
fn divided(mesh: Mesh, config: &Config) -> Result<Mesh, TrainError> {
    let Mesh { ranks, tensor, context, expert } = mesh;
    let fsdp = Fsdp {
        tensor_parallel: tensor,
        context_parallel: context,
        expert_parallel: expert,
        ..Fsdp::default()
    };
    Mesh::new(ranks, &fsdp, config)
}

/// Runs `body` as every rank of a mesh, each on a thread of its own.
pub(super) fn meshed<T: Send>(mesh: Mesh, body: impl Fn(Groups) -> T + Sync) -> Vec<T> {
    with_store(mesh.ranks, |store, all| {
        let join =
            |name: &str, place| Group::gloo(store, name, place, (None, true), Duration::from_secs(120));
        body(Groups::join(mesh, all, join).expect("all ranks come"))
    })
}

pub(super) fn part(weights: impl Into<Weights>, groups: Groups, optim: &Optim, layout: Layout) -> Learner {
    Learner::part(weights.into(), Some(groups), optim, 20, layout, 0.7).expect("settings that fit")
}

/// What this learner holds and trains of a whole gradient, as [`gradient`] orders both.
fn own(learner: &Learner, decoder: Decoder, whole: &[f64]) -> Vec<f64> {
    by_parameter(learner, decoder, whole).into_iter().flat_map(|(_, held, _)| held).collect()
}

/// Of each parameter that this learner trains: its name, what is held of it of a whole gradient, and the largest
/// element of all of it.
fn by_parameter(learner: &Learner, decoder: Decoder, whole: &[f64]) -> Vec<(String, Vec<f64>, f64)> {
    let (rank, mesh) = learner.shards.place();
    let trained: Vec<String> =
        learner.shards.parameters(&learner.network).into_iter().map(|parameter| parameter.name).collect();
    let shapes = decoder.into_parts().1;
    let (mut own, mut start) = (Vec::new(), 0);
    for name in learner.network.units().into_iter().flat_map(|unit| learner.network.names(unit)) {
        let shape = shapes[&name].size();
        let elements = shape.iter().product::<i64>() as usize;
        let mut held = Tensor::from_slice(&whole[start..start + elements]).view(shape.as_slice());
        let largest = held.abs().max().double_value(&[]);
        start += elements;
        for (dim, range) in mesh.held(rank, Cut::of(&name), &shape).into_iter().enumerate() {
            held = held.narrow(dim as i64, range.start, range.end - range.start);
        }
        if trained.contains(&name) {
            let held = Vec::<f64>::try_from(held.reshape([-1])).expect("float64");
            own.push((name, held, largest));
        }
    }
    own
}

/// With those of the patterns that are in a name of this network.
fn frozen(patterns: &[&str], network: &Network) -> Optim {
    let names: Vec<String> = network.units().into_iter().flat_map(|unit| network.names(unit)).collect();
    let fits = |pattern: &&&str| names.iter().any(|name| name.contains(**pattern));
    let freeze = patterns.iter().filter(fits).map(|pattern| (*pattern).to_owned()).collect();
    Optim { freeze, ..optim() }
}

/// Nothing; the bottom; all but the matrices of heads and experts, which then are all that is differentiated.
const FROZEN: [&[&str]; 4] = [
    &[],
    &["embed_tokens", "layers.0."],
    &["embed_tokens", "norm", "mlp.gate.", "layers.1"],
    &["embed_tokens", "norm", "mlp.gate.", "self_attn", "lm_head"],
];

fn sizes() -> impl Strategy<Value = (usize, [usize; 6], bool)> {
    let sizes = (3_usize..9, 1_usize..4, 1_usize..3, 1_usize..4, 1_usize..6, 0_usize..4);
    (0..MESHES.len(), sizes.prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f]), any::<bool>())
}

proptest! {
    #![proptest_config(super::tests::config(40))]

    /// In float64 nothing is left of how ranks divide the work but rounding: loss, counts, and what each holds of the
    /// gradient, whatever the loss. Streams rarely divide by the parts of a sequence, parameters rarely by the ranks that
    /// hold them, and
    /// there may be fewer rows than teams. Some rollouts say where their tokens went.
    #[test]
    fn the_gradient_is_that_of_one_process(
        (at, [hidden, head_dim, kv_heads, groups, ffn, experts], is_tied) in sizes(),
        shapes in super::tests::shapes(), budget in 1_usize..120, keep_layers in 0_usize..4,
        loss in losses(), patterns in prop::sample::select(FROZEN.to_vec()), router_aux_coef in prop_oneof![Just(0.0), 0.01..1.0],
    ) {
        let mesh = MESHES[at];
        let experts = if mesh.expert > 1 { mesh.expert * experts.max(1) } else { experts * 2 };
        let sizes = Sizes {
            hidden: 2 * hidden + 1,
            head_dim: 2 * head_dim,
            kv_heads: mesh.tensor * kv_heads,
            groups,
            ffn: mesh.tensor * ffn,
            experts,
            is_tied,
        };
        let mut segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        for ((segment, _), &(salt, ..)) in segments.iter_mut().zip(&shapes).filter(|_| experts > 0) {
            if salt % 2 == 0 {
                let version = segment.actions().last().map_or(0, |action| action.version.0);
                segment.record_routing(routing(salt, version, segment.tokens().len() - 1, experts as u16));
            }
        }
        let mut one = alone(sizes.double(), layout(100_000));
        one.router_aux_coef = router_aux_coef;
        let expected = one.policy_gradient(&rows(&segments), &loss).expect("a gradient");
        let whole = gradient(&one);
        let layout = Layout { keep_layers, prefetch: budget % 2 == 0, ..layout(budget) };
        let settings = frozen(patterns, &one.network);
        let found = meshed(mesh, |groups| {
            let mut learner = part(sizes.double(), groups, &settings, layout);
            learner.router_aux_coef = router_aux_coef;
            let sums = learner.policy_gradient(&rows(&segments), &loss).expect("a gradient");
            (sums, relative_difference(&gradient(&learner), &own(&learner, sizes.double(), &whole)))
        });
        for (sums, difference) in found {
            prop_assert!((sums.loss - expected.loss).abs() <= 1e-12 * expected.loss.abs().max(1.0));
            prop_assert_eq!((sums.tokens, sums.on_policy), (expected.tokens, expected.on_policy));
            prop_assert!((sums.balance - expected.balance).abs() <= 1e-12);
            prop_assert!((sums.gap_max - expected.gap_max).abs() <= 1e-12);
            prop_assert!(difference <= 1e-10, "{:?}: gradients differ by {:e}", mesh, difference);
        }
    }
}

/// In float32, element by element: each is that of one process to 1e-5 of the largest of its parameter, with any number
/// of ranks and in any of the meshes of two and four.
#[test]
fn every_element_of_a_gradient_is_that_of_one_process() {
    let segments: Vec<_> = (0..7).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let plain = [2, 3, 4].map(|ranks| mesh(ranks, 1, 1, 1));
    for sizes in [MIXTURE, DENSE] {
        let one = alone(sizes.decoder(), layout(40));
        one.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        let whole = gradient(&one);
        for &mesh in plain.iter().chain(&MESHES[..10]).filter(|mesh| sizes.experts > 0 || mesh.expert == 1) {
            let layout = Layout { keep_layers: mesh.ranks % 3, ..layout(60) };
            let worst = meshed(mesh, |groups| {
                let learner = part(sizes.decoder(), groups, &optim(), layout);
                learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
                let found = gradient(&learner);
                let expected = by_parameter(&learner, sizes.decoder(), &whole);
                let mut found = found.iter();
                let furthest = expected.into_iter().map(|(name, expected, largest)| {
                    let pairs = expected.iter().zip(found.by_ref().take(expected.len()));
                    let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    (if largest > 0.0 { apart / largest } else { apart }, name)
                });
                furthest.max_by(|a, b| a.0.total_cmp(&b.0)).expect("a parameter")
            });
            for (apart, name) in worst {
                assert!(apart <= 1e-5, "{mesh:?}: {name} is off by {apart:e}");
            }
        }
    }
}

/// Other tokens in the rows beside a row change nothing of what is said of its own, wherever ranks cut the stream.
#[test]
fn a_row_does_not_see_its_neighbours() {
    let with_neighbours = |salt: u32| -> Vec<Segment> {
        let of = |n: u32| segment(if n == 3 { n } else { n + salt }, [3 + n, 4, n % 3, 5]).0;
        (0..7).map(of).collect()
    };
    let (segments, others) = (with_neighbours(0), with_neighbours(50));
    for sizes in [MIXTURE, DENSE] {
        let alone = [mesh(1, 1, 1, 1)];
        for &mesh in alone.iter().chain(&MESHES[..10]).filter(|mesh| sizes.experts > 0 || mesh.expert == 1) {
            let found = meshed(mesh, |groups| {
                let learner = part(sizes.double(), groups, &optim(), layout(200));
                [&segments, &others].map(|segments| {
                    let rows: Vec<Row<'_>> = segments.iter().map(PolicyRow::layout).collect();
                    learner.of_targets(&rows).expect("logits")
                })
            });
            for [before, after] in found {
                for (row, (before, after)) in before.iter().zip(&after).enumerate() {
                    let apart = before.iter().zip(after).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert_eq!(apart > 1e-12, row != 3, "{mesh:?}: row {row} differs by {apart:e}");
                }
            }
        }
    }
}

/// What a rank attends for at a time is within its budget, here of more than every row.
#[test]
fn no_rank_has_more_tokens_at_a_time_than_it_may() {
    let segments: Vec<Segment> = (0..13).map(|n| segment(n, [3 + n % 7, 4, n % 3, 5]).0).collect();
    let rows: Vec<Row<'_>> = segments.iter().map(PolicyRow::layout).collect();
    let total: usize = rows.iter().map(|row| row.targets[row.targets.len() - 1]).sum();
    let budget = 24;
    for &mesh in MESHES.iter().filter(|mesh| mesh.expert == 1) {
        let found = meshed(mesh, |groups| {
            let learner = part(DENSE.double(), groups, &optim(), layout(budget));
            let mut sizes = Vec::new();
            let mut note = |batch: Option<&MicroBatch>| {
                sizes.extend(batch.map(|batch| batch.ids.size()[1] as usize));
                Ok(())
            };
            learner.deal(&rows, &mut note).expect("rows that fit");
            sizes
        });
        let all: Vec<usize> = found.concat();
        // A tensor group puts its parts together; the ends of streams make up for what does not divide.
        assert!(all.iter().all(|own| own * mesh.tensor <= budget), "{mesh:?}: {all:?}");
        let (sum, made_up) = (all.iter().sum::<usize>(), all.len() * mesh.tensor * mesh.context);
        assert!(sum >= total && sum < total + made_up, "{mesh:?}: {all:?} for {total}");
    }
}

/// What a step sends, by the formula. Of shards as ever, but a slice is gathered and scattered among those who hold parts
/// of it. Tensor parallelism gathers the tokens before attention and before a dense network and scatters their sums after,
/// forward, and the other way round backward; context parallelism gathers keys and values and scatters their gradients.
/// Experts get the tokens that go to them and send back as many, forward and backward, and before are told how many.
/// A layer that is computed again sends what is of the forward pass once more.
#[test]
fn a_step_sends_what_the_formula_says() {
    // As many rows as ranks, of twelve tokens that are computed.
    let segments: Vec<_> = (0..2)
        .map(|salt| {
            let (mut segment, advantages) = segment(salt, [6, 7, 0, 0]);
            segment.record_routing(routing(salt, 0, 12, MIXTURE.experts as u16));
            (segment, advantages)
        })
        .collect();
    let (tokens, hidden) = (12, MIXTURE.hidden as u64);
    for mesh in [mesh(2, 2, 1, 1), mesh(2, 1, 2, 1), mesh(2, 1, 1, 2)] {
        for keep_layers in [3, 1] {
            let layout = Layout { keep_layers, ..layout(1) };
            let found = meshed(mesh, |groups| {
                let learner = part(MIXTURE.decoder(), groups, &optim(), layout);
                learner.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
                learner.traffic()
            });
            let (network, parameters) = MIXTURE.decoder().into_parts();
            let slices = |cut| match cut {
                Cut::Tensor(_) => mesh.tensor as u64,
                Cut::Expert => mesh.expert as u64,
                Cut::Whole => 1,
            };
            // Elements of a unit that a rank holds, if the other needs them: of what each has a slice of its own, nobody
            // sends anything.
            let held = |unit: Unit, rank: usize| -> u64 {
                let shared = network.names(unit).into_iter().filter(|name| slices(Cut::of(name)) == 1);
                shared.map(|name| molt_torch::extent(&parameters[&name].size(), rank, 2).count() as u64).sum()
            };
            // Those that share rows take them one after the other.
            let rounds = if mesh.expert == 2 { 1 } else { 2 };
            let again = 3 - keep_layers;
            let gathered = network.units().into_iter().chain([Unit::Embedding]);
            let gathered: Vec<Unit> = gathered.chain((0..again).map(Unit::Layer)).collect();
            // By layer: forward and again, and backward. Of the three the second is dense.
            let dense = |layers: std::ops::Range<usize>| layers.filter(|&layer| layer == 1).count() as u64;
            let (forward, backward) = (3 + again as u64, 3);
            let part = tokens / 2 * hidden;
            let key_values = tokens / 2 * 2 * (MIXTURE.kv_heads * MIXTURE.head_dim) as u64;
            let (more_gathered, more_scattered) = if mesh.tensor == 2 {
                let forward = part * (forward + dense(0..3) + dense(0..again));
                let backward = part * (backward + dense(0..3));
                (forward + backward, forward + backward)
            } else if mesh.context == 2 {
                (key_values * forward, key_values * backward)
            } else {
                (0, 0)
            };
            for (rank, traffic) in found.iter().enumerate() {
                let own: u64 = gathered.iter().map(|&unit| held(unit, rank)).sum();
                let of_other: u64 = network.units().into_iter().map(|unit| held(unit, 1 - rank)).sum();
                let expected = [own + more_gathered, of_other + more_scattered].map(|all| 4 * rounds * all);
                assert_eq!([traffic.all_gather, traffic.reduce_scatter], expected, "{mesh:?} {keep_layers}");
            }
            let all_to_all: u64 = found.iter().map(|traffic| traffic.all_to_all).sum();
            let expected = if mesh.expert == 2 {
                let (forward, backward) = (forward - dense(0..3) - dense(0..again), backward - dense(0..3));
                // In each layer with experts, how many tokens of a rank go to experts of the other.
                let away = |layer: usize, rank: usize| -> u64 {
                    let routing = segments[rank].0.routing().expect("recorded");
                    let of = |experts: &[u16]| {
                        experts[2 * layer..][..2].iter().filter(|&&e| usize::from(e) / 2 != rank).count()
                    };
                    routing.records().map(of).sum::<usize>() as u64
                };
                assert_eq!((forward, backward), (2 + u64::from(again > 0), 2));
                let again = usize::from(again > 0);
                let pairs: u64 = (0..2)
                    .map(|layer| {
                        let passes = if layer < again { 6 } else { 4 };
                        passes * (away(layer, 0) + away(layer, 1))
                    })
                    .sum();
                4 * hidden * pairs + 2 * 8 * 2 * forward
            } else {
                0
            };
            assert_eq!(all_to_all, expected, "{mesh:?} {keep_layers}");
        }
    }
}

/// What makes the weights that each rank begins with.
type Start<'s> = &'s (dyn Fn() -> Weights + Sync);

/// A dense model whose adapter does something.
fn adapted() -> Weights {
    adapter::effective(Weights::from(DENSE.decoder()).with_adapter(3, 6.0, &[], 5).expect("an adapter"))
}

/// In float32, in which runs compute, with the bounds that a user is promised: 1e-5 of the gradient's norm, and 1e-4 of
/// the weights after 20 steps, which every rank has whole when it asks for them.
#[test]
fn twenty_steps_end_at_the_same_weights() {
    let dense = || Weights::from(DENSE.decoder());
    let mixture = || Weights::from(MIXTURE.decoder());
    let (adamw, muon) = (optim(), Optim { kind: OptimKind::Muon, ..optim() });
    let cases: [(Start<'_>, &Optim, &[Mesh]); 5] = [
        (&mixture, &adamw, &MESHES[..10]),
        (&mixture, &muon, &[mesh(4, 2, 1, 2), mesh(2, 2, 1, 1)]),
        (&dense, &adamw, &[mesh(4, 2, 2, 1)]),
        (&dense, &muon, &[mesh(4, 2, 2, 1), mesh(4, 2, 1, 1)]),
        (&adapted, &adamw, &[mesh(4, 2, 2, 1)]),
    ];
    for (start, optim, meshes) in cases {
        let one = Learner::part(start(), None, optim, 20, layout(40), 0.7).expect("in memory");
        let expected = twenty_steps(one);
        for &mesh in meshes {
            let layout = Layout { keep_layers: mesh.ranks % 3, ..layout(60) };
            let found = meshed(mesh, |groups| twenty_steps(part(start(), groups, optim, layout)));
            assert_same_end(&found, &expected, &format!("{mesh:?} {:?}", optim.kind));
        }
    }
}

/// A checkpoint of one division of the work is gone on from in another: weights are those that were saved, bit by bit,
/// and with the moments too the next step is the same but for rounding.
#[test]
fn a_checkpoint_fits_any_division_of_the_work() {
    for kind in [OptimKind::Adamw, OptimKind::Muon] {
        checkpoints_of(&Optim { kind, ..optim() });
    }
}

fn checkpoints_of(optim: &Optim) {
    let segments: Vec<_> = (0..5).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let step = |learner: &mut Learner| learner.policy_step(&rows(&segments), &LOSS).expect("a step");
    let dir = tempfile::tempdir().expect("a directory");
    let meshes = [mesh(4, 2, 1, 2), mesh(3, 1, 3, 1), mesh(2, 2, 1, 1), mesh(4, 1, 2, 4), mesh(1, 1, 1, 1)];
    let mut alone =
        Learner::part(MIXTURE.decoder().into(), None, optim, 20, layout(40), 0.7).expect("in memory");
    let mut expected = Vec::new();
    for _ in 0..meshes.len() {
        step(&mut alone);
        expected.push(flat(&alone.parameters().expect("alone")));
    }
    let mut saved = flat(&MIXTURE.decoder().into_parts().1.into_iter().collect::<Vec<_>>());
    let path = |nth: usize| dir.path().join(nth.to_string());
    for (nth, mesh) in meshes.into_iter().enumerate() {
        let found = meshed(mesh, |groups| {
            let mut learner = part(MIXTURE.decoder(), groups, optim, layout(30));
            if let Some(last) = nth.checked_sub(1) {
                learner.restore(&path(last), meshes[last], nth as u64).expect("a checkpoint");
            }
            let before = flat(&learner.parameters().expect("all ranks are here"));
            step(&mut learner);
            learner.save(&path(nth)).expect("room for it");
            (before, flat(&learner.parameters().expect("all ranks are here")))
        });
        for (before, after) in &found {
            assert!(*before == saved, "{mesh:?} {optim:?}");
            assert!(relative_difference(after, &expected[nth]) <= 1e-5, "{mesh:?}");
        }
        saved = found.into_iter().next().expect("a rank").1;
    }
}

/// A value is read on the rank of the team that has its token.
#[test]
fn a_critic_learns_as_in_one_process() {
    let segments: Vec<_> = (0..5).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let learn = |mut critic: Learner| {
        let all: Vec<&Segment> = segments.iter().map(|(segment, _)| segment).collect();
        let values = critic.values(&all).expect("values");
        let pairs = segments.iter().zip(&values);
        let rows: Vec<ValueRow<'_>> = pairs
            .map(|((segment, returns), values)| ValueRow {
                segment,
                values: values.clone(),
                returns: returns.clone(),
            })
            .collect();
        let losses = [(); 2].map(|()| critic.value_step(&rows, 0.2).expect("a step").0.loss);
        let weights = flat(&critic.parameters().expect("all ranks are here"));
        (values.concat(), losses, weights)
    };
    let weights = || Weights::from(MIXTURE.double()).with_value_head(3);
    let (values, losses, expected) = learn(alone(weights(), layout(40)));
    for mesh in [mesh(2, 2, 1, 1), mesh(2, 1, 2, 1), mesh(2, 1, 1, 2), mesh(4, 2, 2, 1)] {
        for found in meshed(mesh, |groups| learn(part(weights(), groups, &optim(), layout(40)))) {
            for (a, b) in found.0.iter().zip(&values) {
                assert!((a - b).abs() <= 1e-6, "{mesh:?}: {a} is not {b}");
            }
            for (a, b) in found.1.iter().zip(&losses) {
                assert!((a - b).abs() <= 1e-9 * b.abs(), "{mesh:?}: {a} is not {b}");
            }
            let difference = relative_difference(&found.2, &expected);
            assert!(difference <= 1e-9, "{mesh:?}: {difference:e}");
        }
    }
}

#[test]
fn the_loss_of_what_is_not_learnt_is_that_of_one_process() {
    let segments: Vec<Segment> = (0..5).map(|n| segment(n, [3 + n, 4, n % 3, 5]).0).collect();
    let targets = |segment: &Segment| segment.actions().iter().map(|action| action.position).collect();
    let of = |segment| Row { tokens: Segment::tokens(segment), targets: targets(segment), routing: None };
    let rows: Vec<Row<'_>> = segments.iter().map(of).collect();
    let expected = alone(MIXTURE.double(), layout(100)).loss(&rows).expect("a loss");
    for mesh in [mesh(4, 2, 2, 1), mesh(4, 1, 2, 2), mesh(3, 1, 3, 1)] {
        let loss = |groups| part(MIXTURE.double(), groups, &optim(), layout(40)).loss(&rows).expect("a loss");
        for found in meshed(mesh, loss) {
            assert!((found - expected).abs() <= 1e-12 * expected, "{mesh:?}: {found} is not {expected}");
        }
    }
}

#[test]
fn what_does_not_divide_is_refused_with_the_arithmetic() {
    let configs = [DENSE, MIXTURE].map(|sizes| sizes.decoder().config().clone());
    let [dense, mixture] = &configs;
    assert_eq!(divided(mesh(8, 2, 2, 4), mixture).expect("it divides"), mesh(8, 2, 2, 4));
    for (config, ranks, [tensor, context, expert], start) in [
        (
            dense,
            6,
            [2, 2, 1],
            "fsdp.tensor_parallel 2 times fsdp.context_parallel 2 is 4, and 6 ranks do not divide",
        ),
        (
            dense,
            1,
            [1, 2, 1],
            "fsdp.tensor_parallel 1 times fsdp.context_parallel 2 is 2, and 1 ranks do not divide",
        ),
        (
            dense,
            3,
            [3, 1, 1],
            "fsdp.tensor_parallel is 3, and the num_attention_heads of the model do not divide by \
                               it: 4 = 3 x 1 + 1",
        ),
        (
            mixture,
            4,
            [4, 1, 1],
            "fsdp.tensor_parallel is 4, and the num_key_value_heads of the model do not divide by \
                                 it: 2 = 4 x 0 + 2",
        ),
        (
            dense,
            4,
            [4, 1, 1],
            "fsdp.tensor_parallel is 4, and the intermediate_size of the model do not divide by \
                               it: 10 = 4 x 2 + 2",
        ),
        (dense, 2, [1, 1, 2], "fsdp.expert_parallel is 2, and this model has no experts"),
        (
            mixture,
            3,
            [1, 1, 3],
            "fsdp.expert_parallel is 3, and the experts of a layer do not divide by it: 4 = 3 x 1 \
                                 + 1",
        ),
        (mixture, 3, [1, 1, 2], "fsdp.expert_parallel is 2, and 3 ranks do not divide by it"),
    ] {
        let said = divided(mesh(ranks, tensor, context, expert), config).expect_err(start).to_string();
        assert!(said.starts_with(start), "{said}");
    }
}
