//! Parts of the weights are what one would cut from the whole.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use molt_model::{Config, Decoder, ModelError, Weights};
use std::path::{Path, PathBuf};
use tch::Tensor;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

#[test]
fn rows_are_those_of_the_whole() {
    for name in ["stories260k", "tiny-qwen3", "tiny-llama3", "tiny-qwen3-moe"] {
        let whole = Decoder::load(&testdata(name)).unwrap();
        let parameters = whole.parameters();
        let files = Weights::open(&testdata(name)).unwrap();
        let memory = Weights::from(whole);
        assert_eq!(files.shapes(), memory.shapes());
        assert_eq!(files.fingerprint().unwrap(), memory.fingerprint().unwrap());
        for (name, tensor) in parameters {
            let rows = tensor.size()[0];
            for (start, end) in [(0, rows), (0, 1), (rows / 3, rows / 2), (rows - 1, rows), (rows, rows)] {
                let expected = tensor.narrow(0, start, end - start);
                for weights in [&files, &memory] {
                    let part = weights.rows(&name, start..end).unwrap();
                    assert_eq!(part.numel(), expected.numel(), "{name} {start}..{end}");
                    assert!(part.numel() == 0 || part == expected, "{name} {start}..{end}");
                }
            }
        }
        assert!(matches!(files.rows("model.bias", 0..1), Err(ModelError::Missing(_))));
    }
}

#[test]
fn other_weights_have_another_fingerprint() {
    let config = r#"{"model_type": "llama", "vocab_size": 600, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": true}"#;
    let decoder = || Decoder::random(Config::parse(config).unwrap(), 3);
    let of = |decoder: Decoder| Weights::from(decoder).fingerprint().unwrap();
    let expected = of(decoder());
    assert_eq!(of(decoder()), expected);
    // The first and the last values, of a matrix and of a vector.
    for (name, row) in
        [("model.embed_tokens.weight", 0), ("model.embed_tokens.weight", 599), ("model.norm.weight", 15)]
    {
        let changed = decoder();
        let of_name = changed.parameters().into_iter().find(|(found, _)| found == name).unwrap().1;
        let _: Tensor = tch::no_grad(|| of_name.get(row).g_add_scalar_(1e-3));
        assert_ne!(of(changed), expected, "row {row} of {name}");
    }
}
