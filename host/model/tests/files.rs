//! Model directories: what is written is what is read, and what is wrong is named.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use molt_model::{Config, Decoder, ModelError};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// A copy of a committed model whose files may be changed.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(testdata(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn config(extra: &str) -> Config {
    let text = format!(
        r#"{{"model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "rms_norm_eps": 1e-5 {extra}}}"#
    );
    Config::parse(&text).unwrap()
}

fn refusal(dir: &Path) -> String {
    Decoder::load(dir).unwrap_err().to_string()
}

/// Changes the tensors of a single-file model.
fn rewrite(dir: &Path, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    let path = dir.join("model.safetensors");
    let mut tensors: BTreeMap<String, Tensor> =
        Tensor::read_safetensors(&path).unwrap().into_iter().collect();
    change(&mut tensors);
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
    Tensor::write_safetensors(&tensors, path).unwrap();
}

#[test]
fn saved_and_loaded_is_bitwise_the_same() {
    for name in ["stories260k", "tiny-qwen3", "tiny-llama3", "tiny-qwen3-moe"] {
        let original = Decoder::load(&testdata(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let saved = dir.path().join("new/directory");
        original.save(&saved).unwrap();
        let loaded = Decoder::load(&saved).unwrap();
        for ((name, a), (_, b)) in original.parameters().iter().zip(loaded.parameters()) {
            assert_eq!(a.kind(), Kind::Float);
            assert!(a.equal(&b), "{name}");
        }
        let mut files: Vec<_> =
            std::fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["config.json", "model.safetensors"], "nothing else is left behind");
        original.save(&saved).unwrap();
    }
}

#[test]
fn the_file_has_the_keys_and_the_metadata_of_transformers() {
    for name in ["stories260k", "tiny-qwen3", "tiny-qwen3-moe"] {
        let dir = tempfile::tempdir().unwrap();
        Decoder::load(&testdata(name)).unwrap().save(dir.path()).unwrap();
        let [ours, theirs] =
            [dir.path(), &testdata(name)].map(|dir| std::fs::read(dir.join("model.safetensors")).unwrap());
        let keys = |bytes: &[u8]| {
            let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
            let mut keys = metadata.offset_keys();
            keys.sort();
            (keys, metadata.metadata().clone().unwrap())
        };
        assert_eq!(keys(&ours), keys(&theirs), "{name}");
    }
}

#[test]
fn config_json_changes_in_its_dtype_alone() {
    let dir = tempfile::tempdir().unwrap();
    Decoder::load(&testdata("tiny-qwen3")).unwrap().save(dir.path()).unwrap();
    let [ours, mut theirs] = [dir.path(), &testdata("tiny-qwen3")].map(|dir| {
        let text = std::fs::read(dir.join("config.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()
    });
    theirs["dtype"] = "float32".into();
    assert_eq!(ours, theirs);
}

#[test]
fn random_weights_follow_the_seed_and_the_configuration() {
    let [a, b, c] = [1, 1, 2].map(|seed| Decoder::random(config(""), seed).snapshot());
    let equal = |x: &[(String, Tensor)], y: &[(String, Tensor)]| {
        x.iter().zip(y).filter(|((_, x), (_, y))| x.equal(y)).count()
    };
    assert_eq!(equal(&a, &b), a.len());
    assert_eq!(equal(&a, &c), 5, "the norms alone are equal");
    for (name, tensor) in &a {
        if name.ends_with("norm.weight") {
            assert!(tensor.equal(&tensor.ones_like()), "{name}");
        } else {
            // Within six standard errors of the sample's deviation and mean.
            let n = tensor.numel() as f64;
            let (std, mean) =
                (tensor.std(true).double_value(&[]), tensor.mean(Kind::Float).double_value(&[]));
            assert!((std / 0.02 - 1.0).abs() < 6.0 / (2.0 * n).sqrt(), "{name}: {std}");
            assert!(mean.abs() < 6.0 * 0.02 / n.sqrt(), "{name}: {mean}");
        }
    }
}

#[test]
fn a_tied_head_is_one_parameter() {
    let names = |config| -> Vec<String> {
        Decoder::random(config, 0).parameters().into_iter().map(|(name, _)| name).collect()
    };
    let (tied, untied) = (names(config(r#", "tie_word_embeddings": true"#)), names(config("")));
    assert!(!tied.contains(&"lm_head.weight".to_owned()));
    assert_eq!(untied.len(), tied.len() + 1);
    assert!(untied.is_sorted());
}

#[test]
fn parameters_share_storage_and_a_snapshot_does_not() {
    let mut decoder = Decoder::random(config(""), 0);
    decoder.requires_grad(true);
    let ids = Tensor::from_slice(&[1_i64, 2]).unsqueeze(0);
    let before = decoder.logits(&decoder.hidden(&ids)).detach();
    let snapshot = decoder.snapshot();
    assert!(snapshot.iter().all(|(_, tensor)| !tensor.requires_grad()));
    tch::no_grad(|| {
        for (_, mut parameter) in decoder.parameters() {
            let _ = parameter.multiply_scalar_(1.5);
        }
    });
    let changed = decoder.logits(&decoder.hidden(&ids)).detach();
    assert!(!changed.equal(&before));
    decoder.load_parameters(&snapshot).unwrap();
    assert!(decoder.logits(&decoder.hidden(&ids)).detach().equal(&before));
    assert!(decoder.parameters().iter().all(|(_, tensor)| tensor.requires_grad()));
}

#[test]
fn parameters_that_do_not_fit_change_nothing() {
    let mut decoder = Decoder::random(config(""), 0);
    let before = decoder.snapshot();
    let other = Decoder::random(config(""), 1).snapshot();
    type Values = Vec<(String, Tensor)>;
    let changed = |change: &dyn Fn(&mut Values)| {
        let mut values: Values = other.iter().map(|(name, tensor)| (name.clone(), tensor.copy())).collect();
        change(&mut values);
        values
    };
    let missing = decoder.load_parameters(&changed(&|values| drop(values.remove(0)))).unwrap_err();
    assert!(matches!(&missing, ModelError::Missing(names) if names == &["lm_head.weight"]), "{missing}");
    let extra = decoder.load_parameters(&changed(&|values| values[0].0 = "lm_head.bias".into()));
    assert!(extra.is_err());
    let twice = decoder.load_parameters(&changed(&|values| {
        let again = (values[0].0.clone(), values[0].1.copy());
        values.push(again);
    }));
    assert!(matches!(twice.unwrap_err(), ModelError::Unexpected(names) if names == ["lm_head.weight"]));
    let shape = decoder.load_parameters(&changed(&|values| {
        let last = values.last_mut().unwrap();
        last.1 = Tensor::zeros([3], (Kind::Float, tch::Device::Cpu));
    }));
    assert!(matches!(shape.unwrap_err(), ModelError::Shape { found, .. } if found == [3]));
    for ((name, a), (_, b)) in before.iter().zip(decoder.snapshot()) {
        assert!(a.equal(&b), "{name}");
    }
}

#[test]
fn missing_unknown_and_misshapen_tensors_are_named() {
    let dir = copy("stories260k");
    rewrite(dir.path(), |tensors| drop(tensors.remove("model.layers.3.mlp.up_proj.weight")));
    assert_eq!(refusal(dir.path()), "parameters are missing: model.layers.3.mlp.up_proj.weight");

    let dir = copy("stories260k");
    rewrite(dir.path(), |tensors| {
        let bias = tensors["model.norm.weight"].copy();
        tensors.insert("model.layers.0.self_attn.q_proj.bias".to_owned(), bias);
    });
    assert!(refusal(dir.path()).contains("model.layers.0.self_attn.q_proj.bias"));

    let dir = copy("stories260k");
    rewrite(dir.path(), |tensors| {
        let name = "model.layers.4.self_attn.k_proj.weight";
        let transposed = tensors[name].transpose(0, 1).contiguous();
        tensors.insert(name.to_owned(), transposed);
    });
    let message = refusal(dir.path());
    assert!(message.contains("k_proj") && message.contains("[64, 32]"), "{message}");

    let dir = copy("stories260k");
    rewrite(dir.path(), |tensors| {
        let integers = tensors["model.norm.weight"].to_kind(Kind::Int64);
        tensors.insert("model.norm.weight".to_owned(), integers);
    });
    assert!(refusal(dir.path()).contains("I64"));
}

#[test]
fn experts_are_stacked_and_each_is_named_if_it_does_not_fit() {
    let stack = "model.layers.2.mlp.experts.down_proj.weight";
    let of_fourth = "model.layers.2.mlp.experts.4.down_proj.weight";
    let decoder = Decoder::load(&testdata("tiny-qwen3-moe")).unwrap();
    let parameters: BTreeMap<String, Tensor> = decoder.parameters().into_iter().collect();
    assert_eq!(parameters[stack].size(), [6, 32, 16]);
    let stored = Tensor::read_safetensors(testdata("tiny-qwen3-moe/model.safetensors")).unwrap();
    let fourth = stored.iter().find(|(name, _)| name == of_fourth).unwrap().1.to_kind(Kind::Float);
    assert!(parameters[stack].get(4).equal(&fourth));

    let dir = copy("tiny-qwen3-moe");
    rewrite(dir.path(), |tensors| drop(tensors.remove(of_fourth)));
    assert_eq!(refusal(dir.path()), format!("parameters are missing: {of_fourth}"));
    rewrite(dir.path(), |tensors| {
        drop(tensors.insert(of_fourth.to_owned(), fourth.transpose(0, 1).contiguous()))
    });
    let message = refusal(dir.path());
    assert!(message.contains(of_fourth) && message.contains("[16, 32]"), "{message}");
}

#[test]
fn a_stored_copy_of_the_tied_embedding_must_be_a_copy() {
    let dir = copy("stories260k");
    rewrite(dir.path(), |tensors| {
        let head = tensors["model.embed_tokens.weight"].copy();
        tensors.insert("lm_head.weight".to_owned(), head);
    });
    Decoder::load(dir.path()).unwrap();
    rewrite(dir.path(), |tensors| {
        let head = &tensors["model.embed_tokens.weight"] + 1.0;
        tensors.insert("lm_head.weight".to_owned(), head);
    });
    assert!(refusal(dir.path()).contains("tie_word_embeddings"));
}

#[test]
fn damaged_files_are_named() {
    let whole = std::fs::read(testdata("stories260k/model.safetensors")).unwrap();
    let cut = |length: usize| whole[..length].to_vec();
    let mut longer = whole.clone();
    longer.push(0);
    let mut endless = whole.clone();
    endless[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut scrambled = whole.clone();
    scrambled[20] = b'{';
    for bytes in [cut(0), cut(5), cut(100), cut(whole.len() - 1), longer, endless, scrambled] {
        let dir = copy("stories260k");
        std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        let message = refusal(dir.path());
        assert!(message.contains("model.safetensors is damaged"), "{message}");
    }
}

#[test]
fn incomplete_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path()).contains("config.json"));
    let dir = copy("stories260k");
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert!(matches!(Decoder::load(dir.path()).unwrap_err(), ModelError::NoWeights { .. }));
    let dir = copy("tiny-llama3");
    std::fs::remove_file(dir.path().join("model-00002-of-00004.safetensors")).unwrap();
    assert!(refusal(dir.path()).contains("model-00002-of-00004.safetensors"));
    let dir = copy("tiny-llama3");
    let index = dir.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, text.replace("model-00002", "../model-00002")).unwrap();
    assert!(refusal(dir.path()).contains("beside it"));
    std::fs::write(&index, "{}").unwrap();
    assert!(refusal(dir.path()).contains("weight_map"));
}

/// Each of these numbers makes tensors that no machine has room for, and `config.json` may hold most of them.
#[test]
fn a_config_far_beyond_its_weights_is_refused_by_its_key() {
    let dir = copy("tiny-qwen3-moe");
    let path = dir.path().join("config.json");
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, named) in [
        ("num_hidden_layers", "num_hidden_layers"),
        ("num_local_experts", "num_experts"),
        ("hidden_size", "hidden_size"),
        ("intermediate_size", "intermediate_size"),
        ("moe_intermediate_size", "moe_intermediate_size"),
        ("vocab_size", "vocab_size"),
        ("num_attention_heads", "num_attention_heads"),
        ("head_dim", "head_dim"),
    ] {
        for value in [30_000_u64, 16_000_000, 1_000_000_000, 1_000_000_000_000] {
            let mut config = config.clone();
            config[key] = value.into();
            std::fs::write(&path, config.to_string()).unwrap();
            let error = Decoder::load(dir.path()).unwrap_err();
            assert!(matches!(error, ModelError::Config { .. }), "{key}: {error}");
            assert!(error.to_string().contains(named) || error.to_string().contains(key), "{key}: {error}");
        }
    }
}
