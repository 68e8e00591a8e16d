//! Decoding throughput, and what batching gains: `cargo bench -p molt-generator`.

use molt_core::ids::WeightVersion;
use molt_core::sampling::Sampling;
use molt_core::settings;
use molt_generator::{Engine, Generator, Request};
use molt_model::{Config, Decoder, Tokenizer};
use std::path::Path;
use std::sync::Arc;

const ROWS: usize = 64;
const TOKENS: usize = 200;

/// Tokens per second with `rows` turns in flight, on a random model of 4 layers of 256.
async fn throughput(rows: usize) -> f64 {
    let config = r#"{"model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 688,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "initializer_range": 0.02}"#;
    let decoder = Decoder::random(Config::parse(config).expect("a valid configuration"), 0);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/testdata/stories260k");
    let tokenizer = Arc::new(Tokenizer::load(&dir).expect("the repository holds the tokenizer"));
    let settings = settings::Generator { max_sequences: ROWS, prefill_tokens: 4096 };
    let engine = Engine::start(decoder, tokenizer, WeightVersion(0), &settings, 512);
    let mut turns = tokio::task::JoinSet::new();
    for seed in 0..rows as u64 {
        let engine = engine.clone();
        let sampling = Sampling {
            temperature: 1.0,
            top_p: 1.0,
            max_tokens: TOKENS,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
        };
        let request = Request { prompt: vec![1, 403, 407, 261, 378], sampling, seed, routing: None };
        turns.spawn(async move { engine.generate(request).await.expect("a turn") });
    }
    turns.join_all().await;
    let stats = engine.stats();
    stats.generated as f64 / stats.busy.as_secs_f64()
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (one, all) = runtime.block_on(async { (throughput(1).await, throughput(ROWS).await) });
    println!("1 turn: {one:.0} tokens/s; {ROWS} turns: {all:.0} tokens/s, {:.1} times as many", all / one);
}
