//! What a rank holds and sends, beside the formula.

use crate::work::Work;
use crate::{LARGE, ours, report, write};
use molt_model::{Unit, Weights};
use std::path::Path;

/// The same layers, with next to no parameters: what is left is the program and its libraries.
const TINY: &str = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 12, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#;

const STEPS: usize = 3;

/// The gradient of the largest unit is there whole, as what is sent of it, and as the copy that c10d makes of that;
/// then there is this rank's part of the sum.
const UNITS: f64 = 4.0;

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
    for ranks in [1, 2, 4] {
        // Next to no activations.
        let run = |model: &Path, vocabulary| {
            let mut side = ours(ranks, &[ALLOCATOR], model, &Work::new((ranks, 8), vocabulary, true));
            side.step(STEPS);
            let ends = side.end();
            (ends.iter().map(|end| end.peak).max().unwrap_or(0) as f64, ends[0].sent)
        };
        let (measured, sent) = run(&large, weights.network().config().vocab_size);
        let measured = measured - run(&tiny, 64).0;
        let share = 4.0 * whole / ranks as f64;
        println!(
            "{ranks} ranks: a rank holds {:.0} MiB at most; weights, gradient and moments / {ranks} are {:.0}",
            mib(measured),
            mib(share)
        );
        let beyond = (measured - share) / largest;
        missed += report("largest units beyond that", beyond, beyond <= UNITS, UNITS);
        let expected = formula(&weights, ranks);
        for (what, sent, expected) in
            [("gathered", sent[0], expected[0]), ("scattered", sent[1], expected[1])]
        {
            let ratio = if expected == 0 { 1.0 } else { sent as f64 / (expected * STEPS as u64) as f64 };
            let what =
                format!("{what}: {:.1} MiB a step, times the formula", mib(sent as f64 / STEPS as f64));
            missed += report(&what, ratio, sent == expected * STEPS as u64, 1.0);
        }
    }
    missed
}

/// Bytes that a rank sends in a step of one micro-batch each: `(n - 1)` times its part of every unit that is gathered,
/// and of every one whose gradient is scattered. Layers are gathered twice, and a tied embedding too.
fn formula(weights: &Weights, ranks: usize) -> [u64; 2] {
    let network = weights.network();
    let tied = u64::from(network.config().tie_word_embeddings);
    let of = |layer: u64, embedding: u64| -> u64 {
        let times = |unit: &Unit| match unit {
            Unit::Layer(_) => layer,
            Unit::Embedding => embedding,
            Unit::Head => 1,
        };
        network.units().iter().map(|unit| times(unit) * part(weights, *unit, ranks)).sum()
    };
    [of(2, 1 + tied), of(1, 1)].map(|elements| 4 * (ranks as u64 - 1) * elements)
}

/// Elements of a unit that a rank holds, with padding.
fn part(weights: &Weights, unit: Unit, ranks: usize) -> u64 {
    let of = |name: &String| {
        let shape = &weights.shapes()[name];
        (shape[0] as u64).div_ceil(ranks as u64) * shape[1..].iter().product::<i64>() as u64
    };
    weights.network().names(unit).iter().map(of).sum()
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
