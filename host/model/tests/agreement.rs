//! The decoder against transformers: `reference/reference.py` made the numbers in `testdata`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use molt_core::settings::Compute;
use molt_model::{Decoder, KvCache};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// One tensor of a reference file.
fn reference(file: &str, name: &str) -> Tensor {
    let tensors = Tensor::read_safetensors(testdata(file)).unwrap();
    tensors.into_iter().find(|(found, _)| found == name).unwrap().1
}

fn max_abs(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a - b).abs().max().double_value(&[])
}

fn agrees(model: &str) {
    let decoder = Decoder::load(&testdata(model)).unwrap();
    let file = format!("{model}/reference.safetensors");
    let (ids, expected) = (reference(&file, "ids"), reference(&file, "logits"));
    let difference = max_abs(&decoder.logits(&decoder.hidden(&ids)), &expected);
    println!("{model}: max abs difference {difference:.2e}");
    assert!(difference < 1e-4, "{model}: {difference}");
}

#[test]
fn logits_of_stories260k() {
    agrees("stories260k");
}

#[test]
fn logits_of_a_random_qwen3_in_bfloat16() {
    agrees("tiny-qwen3");
}

#[test]
fn logits_of_a_random_llama_in_float16_shards_with_llama3_rope() {
    agrees("tiny-llama3");
}

#[test]
fn logits_of_a_random_qwen3_moe_with_a_dense_layer_between() {
    agrees("tiny-qwen3-moe");
}

/// Ours and theirs round at about 50 places between a token and its logits, each time by 2^-9 at most: independent of
/// each other they would differ by √(2·50)·2^-9 = 2% of the logits. As ours round less, they are not further from the
/// logits of float32.
#[test]
fn logits_in_bfloat16() {
    for model in ["tiny-qwen3", "tiny-llama3"] {
        let decoder = Decoder::load(&testdata(model)).unwrap().in_numbers(Compute::Bfloat16);
        let exact = format!("{model}/reference.safetensors");
        let (ids, exact) = (reference(&exact, "ids"), reference(&exact, "logits"));
        let theirs = reference(&format!("{model}/bfloat16.safetensors"), "logits");
        let ours = decoder.logits(&decoder.hidden(&ids));
        assert_eq!(ours.kind(), Kind::Float);
        let apart = |a: &Tensor, b: &Tensor| ((a - b).norm() / exact.norm()).double_value(&[]);
        let found = [apart(&ours, &theirs), apart(&ours, &exact), apart(&theirs, &exact)];
        println!("{model}: {found:?}");
        assert!(found[0] < 0.02 && found[1] <= found[2], "{model}: {found:?}");
        assert!(found[1] > 0.1 * found[2], "{model} was not computed in bfloat16: {found:?}");
    }
}

/// The same weights under a `config.json` that does not renormalise.
#[test]
fn logits_without_renormalised_experts() {
    let dir = tempfile::tempdir().unwrap();
    let from = testdata("tiny-qwen3-moe");
    std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let changed = config.replace(r#""norm_topk_prob": true"#, r#""norm_topk_prob": false"#);
    assert_ne!(changed, config);
    std::fs::write(dir.path().join("config.json"), changed).unwrap();
    let decoder = Decoder::load(dir.path()).unwrap();
    let named = |name| reference("tiny-qwen3-moe/reference.safetensors", name);
    let difference =
        max_abs(&decoder.logits(&decoder.hidden(&named("ids"))), &named("logits_without_renormalisation"));
    println!("tiny-qwen3-moe without renormalisation: max abs difference {difference:.2e}");
    assert!(difference < 1e-4, "{difference}");
    assert!(max_abs(&named("logits"), &named("logits_without_renormalisation")) > 0.1);
}

/// The real model, if `cargo xtask` has put it into the cache.
#[test]
fn logits_of_smollm2() {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"),
    };
    let dir = cache.join("molt/models/smollm2-135m-instruct");
    if !dir.join("config.json").exists() {
        println!("skipped: {} is absent; `cargo xtask demo --model smollm2` makes it", dir.display());
        return;
    }
    let decoder = Decoder::load(&dir).unwrap();
    let named = |name| reference("smollm2-135m-instruct.safetensors", name);
    let logits = tch::no_grad(|| decoder.logits(&decoder.hidden(&named("ids")))).squeeze_dim(0);
    let difference = max_abs(&logits.gather(-1, &named("top_ids"), false), &named("top_logits"));
    let of_sums = max_abs(&logits.logsumexp([-1], false), &named("logsumexp"));
    println!("smollm2: max abs difference {difference:.2e}, of log-sum-exp {of_sums:.2e}");
    assert!(difference < 1e-4 && of_sums < 1e-4, "{difference} {of_sums}");
}

/// Greedy decoding through the cache gives the ids that transformers gives, whose text is published with the
/// model (karpathy/llama2.c, doc/stories260K.md).
#[test]
fn greedy_story() {
    let decoder = Decoder::load(&testdata("stories260k")).unwrap();
    let expected = Vec::<i64>::try_from(reference("stories260k/reference.safetensors", "greedy")).unwrap();
    assert_eq!(expected[..6], [1, 403, 407, 261, 378, 432]);
    let mut cache = KvCache::new(&decoder, 1);
    let mut ids = vec![1_i64];
    while ids.len() < expected.len() {
        let last = Tensor::from_slice(&ids[ids.len() - 1..]).unsqueeze(0);
        let hidden = decoder.hidden_cached(&last, &mut cache, 0..1, &[ids.len() - 1], None);
        ids.push(decoder.logits(&hidden).argmax(-1, false).int64_value(&[0, 0]));
    }
    assert_eq!(ids, expected);
}

/// Mean next-token cross-entropy, differentiated by libtorch in both languages.
#[test]
fn gradients_of_stories260k() {
    let mut decoder = Decoder::load(&testdata("stories260k")).unwrap();
    decoder.requires_grad(true);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(testdata("stories260k/gradients.json")).unwrap()).unwrap();
    let ids = reference("stories260k/reference.safetensors", "ids");
    let tokens = ids.size()[1];
    let logits = decoder.logits(&decoder.hidden(&ids)).narrow(1, 0, tokens - 1);
    let targets = ids.narrow(1, 1, tokens - 1).reshape([-1]);
    let loss = logits.flatten(0, 1).cross_entropy_for_logits(&targets);
    assert!((loss.double_value(&[]) - expected["loss"].as_f64().unwrap()).abs() < 1e-4);
    loss.backward();

    let parameters = decoder.parameters();
    let expected = expected["parameters"].as_object().unwrap();
    assert_eq!(parameters.len(), expected.len());
    for (name, parameter) in parameters {
        let (gradient, expected) = (parameter.grad().flatten(0, -1), &expected[&name]);
        let norm = expected["norm"].as_f64().unwrap();
        let found = gradient.to_kind(Kind::Double).norm().double_value(&[]);
        assert!((found - norm).abs() < 1e-4 * norm, "{name}: norm {found} for {norm}");
        for (at, entry) in
            expected["at"].as_array().unwrap().iter().zip(expected["entries"].as_array().unwrap())
        {
            let found = gradient.double_value(&[at.as_i64().unwrap()]);
            let entry = entry.as_f64().unwrap();
            assert!((found - entry).abs() < 1e-4 * norm, "{name}[{at}]: {found} for {entry}");
        }
    }
}
