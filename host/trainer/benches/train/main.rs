//! Training steps: throughput and memory beside PyTorch, `cargo xtask bench train speed`; and what a rank holds and
//! sends, by number of ranks, `… memory`.

mod memory;
mod ours;
mod side;
mod work;

use molt_model::{Config, Decoder};
use side::Side;
use std::path::{Path, PathBuf};
use work::{End, Work};

/// A model, and rows of a step.
struct Size {
    name: &'static str,
    config: &'static str,
    rows: usize,
    tokens: usize,
    turns: usize,
}

const SIZES: [Size; 2] = [
    Size {
        name: "8M parameters, 4 rows of 512",
        config: r#"{"model_type": "llama", "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 704,
            "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#,
        rows: 4,
        tokens: 512,
        turns: 11,
    },
    Size { name: "65M parameters, 2 rows of 512", config: LARGE, rows: 2, tokens: 512, turns: 5 },
];

const LARGE: &str = r#"{"model_type": "llama", "vocab_size": 16384, "hidden_size": 640, "intermediate_size": 1728,
    "num_hidden_layers": 12, "num_attention_heads": 10, "num_key_value_heads": 5,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#;

fn main() {
    // `cargo bench` gives `--bench` besides what was asked for.
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [rank, model, work] = &asked[..]
        && rank == "rank"
    {
        return ours::run(Path::new(model), &serde_json::from_str(work).expect("work"));
    }
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|asked| asked == part);
    let mut missed = 0;
    if wanted("speed") {
        missed += speed();
    }
    if wanted("memory") {
        missed += memory::by_ranks();
    }
    if missed > 0 {
        eprintln!("{missed} missed");
        std::process::exit(1);
    }
    println!("every limit is met");
}

/// A directory with a random model.
fn write(config: &str, dir: &Path) -> (Config, PathBuf) {
    let config = Config::parse(config).expect("a valid configuration");
    let path = dir.join(format!("{}-{}", config.hidden_size, config.vocab_size));
    Decoder::random(config.clone(), 0).save(&path).expect("room for a model");
    (config, path)
}

fn ours(ranks: usize, further: &[(&str, &str)], model: &Path, work: &Work) -> Side {
    let this = std::env::current_exe().expect("this program");
    Side::start(ranks, (&[&this, Path::new("rank")], further), model, work)
}

/// Both sides in turn, so that whatever else the machine does is in both.
fn speed() -> usize {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/train/fully_shard.py");
    println!("{:<47} {:>15} {:>15}", "float32; forward, backward and step", "tokens/s", "peak MiB");
    println!("{:<47} {:>7} {:>7} {:>7} {:>7}", "", "ours", "peer", "ours", "peer");
    let mut missed = 0;
    for size in &SIZES {
        let (config, model) = write(size.config, dir.path());
        for (ranks, recompute) in [(1, false), (2, false), (2, true)] {
            let work = Work::new((size.rows, size.tokens), config.vocab_size, recompute);
            let peer = Side::start(ranks, (&[Path::new("python3"), &script], &[]), &model, &work);
            let mut sides = [ours(ranks, &[], &model, &work), peer];
            let first = sides.each_mut().map(|side| side.step(1).loss);
            assert!((first[0] / first[1] - 1.0).abs() < 1e-4, "the losses are {first:?}: not the same model");
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..size.turns {
                for (side, times) in sides.iter_mut().zip(&mut times) {
                    times.push(side.step(1).seconds);
                }
            }
            let tokens = (size.rows * size.tokens) as f64;
            let [a, b] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                tokens / times[times.len() / 2]
            });
            let above = |end: &End| (end.peak - end.base) as f64 / f64::from(1 << 20);
            let [m, n] = sides.map(|side| side.end().iter().map(above).fold(0.0, f64::max));
            let how = if recompute { ", layers computed again" } else { "" };
            let plural = if ranks > 1 { "s" } else { "" };
            println!("{}, {ranks} rank{plural}{how}", size.name);
            println!("{:<47} {a:>7.0} {b:>7.0} {m:>7.0} {n:>7.0}", "");
            missed += report("times as fast, aim 1.3", a / b, a >= b, 1.0);
            missed += report("times the memory above the program's own", m / n, m <= n, 1.0);
        }
    }
    missed
}

/// Prints one line, and counts a limit that is missed.
fn report(what: &str, measured: f64, is_met: bool, limit: f64) -> usize {
    let verdict = if is_met { "ok" } else { "MISSED" };
    println!("    {what:<43} {measured:>7.2}   limit {limit:.2} {verdict}");
    usize::from(!is_met)
}
