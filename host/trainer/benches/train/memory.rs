//! What a rank holds and sends, beside the formula.

use crate::work::{End, Work};
use crate::{LARGE, ours, report, write};
use molt_model::{Unit, Weights};
use molt_torch::extent;
use std::path::Path;

/// The same layers, with next to no parameters: what is left is the program and its libraries.
const TINY: &str = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 12, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#;

const STEPS: usize = 3;

/// Beside what is sent a rank writes headers of messages, orders and norms.
const WRITTEN: f64 = 1.01;

/// A unit is there whole, and so is its gradient, or what others send of that; the gradient of a tied head waits for that
/// of the embedding. All of it is at most so many times the largest unit, here the embedding.
const ONE_AT_A_TIME: f64 = 1.75;
/// The next unit is on its way, and so is the gradient of the last.
const AHEAD: f64 = 3.0;

/// What is freed goes back to the system at once, as glibc does it with tensors of 32 MiB and more: resident bytes are
/// those in use, and not the holes that small tensors leave.
const ALLOCATOR: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");

pub(crate) fn by_ranks() -> usize {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (tiny, large) = (write(TINY, dir.path()).1, write(LARGE, dir.path()).1);
    let weights = Weights::open(&large).expect("the model that was just written");
    let bytes = |unit| part(&weights, unit, 1) as f64 * 4.0;
    let units = weights.network().units();
    let whole: f64 = units.iter().map(|&unit| bytes(unit)).sum();
    let largest = units.iter().map(|&unit| bytes(unit)).fold(0.0, f64::max);
    println!(
        "\nfloat32, {:.0} MiB of weights of which the largest unit has {:.0}; layers computed again",
        mib(whole),
        mib(largest)
    );
    let mut missed = 0;
    for (ranks, prefetch) in [(1, false), (2, false), (4, false), (2, true), (4, true)] {
        // Next to no activations.
        let run = |model: &Path, vocabulary| {
            let work = Work { prefetch, ..Work::new((ranks, 8), vocabulary, true) };
            let mut side = ours(ranks, &[ALLOCATOR], model, &work);
            side.step(STEPS);
            side.end()
        };
        let most = |ends: &[End]| ends.iter().map(|end| end.peak).max().unwrap_or(0) as f64;
        let ends = run(&large, weights.network().config().vocab_size);
        let measured = most(&ends) - most(&run(&tiny, 64));
        let share = 4.0 * whole / ranks as f64;
        println!(
            "{ranks} ranks, fsdp.prefetch {prefetch}: a rank holds {:.0} MiB at most; weights, gradient and moments / \
             {ranks} are {:.0}",
            mib(measured),
            mib(share)
        );
        let (beyond, limit) = ((measured - share) / largest, if prefetch { AHEAD } else { ONE_AT_A_TIME });
        missed += report("largest units beyond that", beyond, beyond <= limit, limit);
        let (End { sent, written, .. }, expected) = (&ends[0], formula(&weights, ranks));
        for (what, sent, expected) in
            [("gathered", sent[0], expected[0]), ("scattered", sent[1], expected[1])]
        {
            let ratio = if expected == 0 { 1.0 } else { sent as f64 / (expected * STEPS as u64) as f64 };
            let what =
                format!("{what}: {:.1} MiB a step, times the formula", mib(sent as f64 / STEPS as f64));
            missed += report(&what, ratio, sent == expected * STEPS as u64, 1.0);
        }
        let counted = sent.iter().sum::<u64>();
        if counted > 0 {
            let ratio = *written as f64 / counted as f64;
            missed += report(
                "bytes written to the system, times these",
                ratio,
                (1.0..=WRITTEN).contains(&ratio),
                WRITTEN,
            );
        }
    }
    missed
}

/// Bytes that rank 0 sends in a step of one micro-batch: its rows to each other rank, of every unit that is gathered, and
/// the rows of all others, of every gradient that is scattered. Layers are gathered twice, and a tied embedding too.
fn formula(weights: &Weights, ranks: usize) -> [u64; 2] {
    let network = weights.network();
    let tied = u64::from(network.config().tie_word_embeddings);
    let (mut gathered, mut scattered) = (0, 0);
    for unit in network.units() {
        let (own, whole) = (part(weights, unit, ranks), part(weights, unit, 1));
        let times = match unit {
            Unit::Layer(_) => 2,
            Unit::Embedding => 1 + tied,
            Unit::Head => 1,
        };
        gathered += times * own * (ranks as u64 - 1);
        scattered += whole - own;
    }
    [4 * gathered, 4 * scattered]
}

/// Elements of a unit that rank 0 of so many holds.
fn part(weights: &Weights, unit: Unit, ranks: usize) -> u64 {
    let of = |name: &String| extent(&weights.shapes()[name], 0, ranks).count() as u64;
    weights.network().names(unit).iter().map(of).sum()
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
