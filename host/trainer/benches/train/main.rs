//! Training throughput and memory, against PyTorch in the same run: `cargo xtask bench train [PART…]`, where a part is
//! speed or memory.

mod ours;
mod side;
mod work;

use molt_model::{Config, Decoder};
use side::Side;
use std::path::Path;
use work::Work;

struct Size {
    name: &'static str,
    config: &'static str,
    rows: usize,
    tokens: usize,
    turns: usize,
    steps: usize,
}

const SIZES: [Size; 2] = [
    Size {
        name: "8M",
        config: r#"{"model_type": "llama", "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 704,
            "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#,
        rows: 4,
        tokens: 512,
        turns: 7,
        steps: 1,
    },
    Size {
        name: "65M",
        config: r#"{"model_type": "llama", "vocab_size": 16384, "hidden_size": 640, "intermediate_size": 1728,
            "num_hidden_layers": 12, "num_attention_heads": 10, "num_key_value_heads": 5,
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#,
        rows: 2,
        tokens: 512,
        turns: 5,
        steps: 1,
    },
];

fn main() {
    // `cargo bench` gives `--bench` besides what was asked for.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["rank", model, work] => ours::run(Path::new(model), &serde_json::from_str(work).expect("work")),
        [python, ref parts @ ..] => compare(Path::new(python), parts),
        [] => eprintln!("`cargo xtask bench train` sets the peer up and starts this"),
    }
}

fn compare(python: &Path, parts: &[&str]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/train/fully_shard.py");
    let this = std::env::current_exe().expect("this program");
    for size in &SIZES {
        if !parts.is_empty() && !parts.contains(&size.name) {
            continue;
        }
        let model = dir.path().join(size.name);
        let config = Config::parse(size.config).expect("a valid configuration");
        let vocabulary = config.vocab_size as u32;
        Decoder::random(config, 0).save(&model).expect("room for a model");
        let tokens = (0..size.rows as u32)
            .map(|row| {
                (0..=size.tokens as u32)
                    .map(|n| (row * 7919 + n).wrapping_mul(2_654_435_761) % vocabulary)
                    .collect()
            })
            .collect();
        for ranks in [1, 2] {
            for recompute in [false] {
                let work = Work {
                    tokens: Clone::clone(&tokens),
                    recompute,
                    lr: 1e-4,
                    weight_decay: 0.1,
                    max_grad_norm: 1.0,
                };
                let mut ours = Side::start(ranks, &[&this, Path::new("rank")], &model, &work);
                let mut theirs = Side::start(ranks, &[python, &script], &model, &work);
                let first = [ours.step(1), theirs.step(1)];
                println!("loss {} {}", first[0].loss, first[1].loss);
                let (mut a, mut b) = (Vec::new(), Vec::new());
                for _ in 0..size.turns {
                    a.push(ours.step(size.steps).seconds);
                    b.push(theirs.step(size.steps).seconds);
                }
                let (ours, theirs) = (ours.end(), theirs.end());
                println!(
                    "{} {ranks} ranks: ours {:.3} theirs {:.3} ratio {:.3}",
                    size.name,
                    median(&mut a),
                    median(&mut b),
                    median(&mut b) / median(&mut a)
                );
                println!("  {a:.2?} {b:.2?}");
                println!("  ours {ours:?}\n  theirs {theirs:?}");
            }
        }
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
