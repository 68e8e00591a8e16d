//! Decoding with a cache is the same function as the forward pass over whole sequences.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use molt_model::{Config, Decoder, KvCache};
use tch::{Kind, Tensor};

/// Grouped heads and a q/k norm, with weights large enough for attention to matter.
fn decoder() -> Decoder {
    of_type("qwen3")
}

/// The same with experts in two of three layers, if `model_type` is qwen3_moe.
fn of_type(model_type: &str) -> Decoder {
    let config = r#"{"model_type": "TYPE", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true,
        "mlp_only_layers": [1], "initializer_range": 0.3}"#;
    Decoder::random(Config::parse(&config.replace("TYPE", model_type)).unwrap(), 7)
}

/// A sequence of `length` ids that differs from row to row.
fn sequence(row: usize, length: usize) -> Vec<i64> {
    (0..length).map(|t| ((row * 31 + t * t * 7 + 3) % 97) as i64).collect()
}

fn close(found: &Tensor, expected: &Tensor, what: &str) {
    let difference = (found - expected).abs().max().double_value(&[]);
    assert!(difference < 1e-5, "{what}: {difference}");
}

/// `[d]` at position `t` of the forward pass over the whole sequence.
fn whole(decoder: &Decoder, ids: &[i64], t: usize) -> Tensor {
    decoder.hidden(&Tensor::from_slice(ids).unsqueeze(0)).select(1, t as i64).squeeze()
}

#[test]
fn ragged_rows_step_by_step() {
    for model_type in ["qwen3", "qwen3_moe"] {
        step_by_step(&of_type(model_type));
    }
}

fn step_by_step(decoder: &Decoder) {
    let prompts = [5, 1, 9, 3];
    let sequences: Vec<Vec<i64>> = (0..4).map(|row| sequence(row, prompts[row] + 80)).collect();
    let mut cache = KvCache::new(decoder, 6);
    assert_eq!(cache.rows(), 6);

    // Prefill of rows 1..5 at once, padded on the right to the longest prompt.
    let longest = 9;
    let padded: Vec<i64> = (0..4)
        .flat_map(|row| {
            let padding = vec![0; longest - prompts[row]];
            [&sequences[row][..prompts[row]], &padding].concat()
        })
        .collect();
    let ids = Tensor::from_slice(&padded).view([4, longest as i64]);
    let hidden = decoder.hidden_cached(&ids, &mut cache, 1..5, &[0; 4], None);
    for row in 0..4 {
        let last = prompts[row] - 1;
        close(
            &hidden.select(0, row as i64).select(0, last as i64),
            &whole(decoder, &sequences[row], last),
            "prefill",
        );
    }

    // 80 single steps: past the first growth of the cache.
    let mut lengths = prompts;
    for step in 0..80 {
        let next: Vec<i64> = (0..4).map(|row| sequences[row][lengths[row]]).collect();
        let hidden =
            decoder.hidden_cached(&Tensor::from_slice(&next).unsqueeze(1), &mut cache, 1..5, &lengths, None);
        if step % 13 == 0 || step == 79 {
            for row in 0..4 {
                let expected = whole(decoder, &sequences[row], lengths[row]);
                close(&hidden.get(row as i64).squeeze(), &expected, "step");
            }
        }
        lengths.iter_mut().for_each(|length| *length += 1);
    }
}

#[test]
fn several_tokens_behind_rows_of_different_length() {
    let decoder = decoder();
    let starts = [4, 0, 7];
    let sequences: Vec<Vec<i64>> = (0..3).map(|row| sequence(row, 12)).collect();
    let mut cache = KvCache::new(&decoder, 3);
    for row in 0..3 {
        if starts[row] > 0 {
            let ids = Tensor::from_slice(&sequences[row][..starts[row]]).unsqueeze(0);
            let _ = decoder.hidden_cached(&ids, &mut cache, row..row + 1, &[0], None);
        }
    }
    let more: Vec<i64> = (0..3).flat_map(|row| sequences[row][starts[row]..][..5].to_vec()).collect();
    let ids = Tensor::from_slice(&more).view([3, 5]);
    let hidden = decoder.hidden_cached(&ids, &mut cache, 0..3, &starts, None);
    for row in 0..3 {
        for t in 0..5 {
            let expected = whole(&decoder, &sequences[row], starts[row] + t);
            close(&hidden.get(row as i64).get(t as i64), &expected, "continuation");
        }
    }
}

#[test]
fn a_moved_row_continues_and_leaves_nothing_behind() {
    let decoder = decoder();
    let mut cache = KvCache::new(&decoder, 3);
    let (kept, left) = (sequence(0, 20), sequence(1, 30));
    let _ = decoder.hidden_cached(&Tensor::from_slice(&left).unsqueeze(0), &mut cache, 0..1, &[0], None);
    let _ =
        decoder.hidden_cached(&Tensor::from_slice(&kept[..10]).unsqueeze(0), &mut cache, 2..3, &[0], None);
    cache.copy_row(2, 0, 10);
    let rest = Tensor::from_slice(&kept[10..]).unsqueeze(0);
    let hidden = decoder.hidden_cached(&rest, &mut cache, 0..1, &[10], None);
    close(&hidden.get(0).get(9), &whole(&decoder, &kept, 19), "moved row");
}

/// However a row came by its tokens, its record is that of one pass over the whole sequence.
#[test]
fn the_experts_of_every_token_are_kept_with_its_keys() {
    let decoder = of_type("qwen3_moe");
    let ids = sequence(2, 100);
    let tensor = |ids: &[i64]| Tensor::from_slice(ids).unsqueeze(0);
    let mut at_once = KvCache::new(&decoder, 1);
    let _ = decoder.hidden_cached(&tensor(&ids), &mut at_once, 0..1, &[0], None);
    let expected = at_once.experts(0, 100);
    assert_eq!(expected.len(), 100 * 2 * 2);
    assert!(expected.iter().all(|expert| *expert < 7));
    assert!(expected.chunks(2).all(|pair| pair[0] != pair[1]));
    let by_layer = |nth: usize| expected.chunks(2).skip(nth).step_by(2).collect::<Vec<_>>();
    assert_ne!(by_layer(0), by_layer(1));

    let mut cache = KvCache::new(&decoder, 3);
    let _ = decoder.hidden_cached(&tensor(&ids[..40]), &mut cache, 2..3, &[0], None);
    cache.copy_row(2, 0, 40);
    for t in 40..100 {
        let _ = decoder.hidden_cached(&tensor(&ids[t..=t]), &mut cache, 0..1, &[t], None);
    }
    assert_eq!(cache.experts(0, 100), expected);
    assert_eq!(cache.experts(2, 40), expected[..40 * 4]);
    let dense = KvCache::new(&of_type("qwen3"), 1);
    assert!(dense.experts(0, 0).is_empty());
}

#[test]
fn no_gradient_is_recorded_in_the_cache() {
    let mut decoder = decoder();
    decoder.requires_grad(true);
    let ids = Tensor::from_slice(&sequence(0, 4)).unsqueeze(0);
    let mut cache = KvCache::new(&decoder, 1);
    assert!(!decoder.hidden_cached(&ids, &mut cache, 0..1, &[0], None).requires_grad());
    let hidden = decoder.hidden(&ids);
    assert!(hidden.requires_grad());
    decoder.logits(&hidden).to_kind(Kind::Double).sum(Kind::Double).backward();
    assert!(decoder.parameters().iter().all(|(_, parameter)| parameter.grad().defined()));
}
