//! Low-rank adapters (Hu et al. 2021): a projection `W` acts as `W + alpha / rank · B·A`, and only A and B are trained.

use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use tch::{Device, Kind, Tensor};

use crate::checkpoint;
use crate::config::Config;
use crate::decoder::uniform;
use crate::error::ModelError;

/// Which projections of the layers have an adapter, and of which size.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    rank: usize,
    alpha: f64,
    targets: Vec<String>,
    /// The names of the weights, which are `[out, in]`.
    weights: BTreeSet<String>,
}

impl Adapter {
    /// An adapter of the projections that are called one of `targets`, such as `q_proj`, or of all if there are none.
    ///
    /// # Errors
    /// If the model has no such projection, or one of a lower rank.
    pub(crate) fn new(
        config: &Config,
        rank: usize,
        alpha: f64,
        targets: &[String],
    ) -> Result<Self, ModelError> {
        let projections: Vec<_> = projections(config).collect();
        let known: BTreeSet<&str> = projections.iter().map(|(weight, _)| last(weight)).collect();
        if let Some(unknown) = targets.iter().find(|name| !known.contains(name.as_str())) {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            return Err(ModelError::Adapter(format!(
                "no projection is called `{unknown}`; there are {known}"
            )));
        }
        let targets = if targets.is_empty() { known } else { targets.iter().map(String::as_str).collect() };
        let own = projections.iter().filter(|(weight, _)| targets.contains(last(weight)));
        for (weight, [rows, columns]) in own.clone() {
            let most = *rows.min(columns);
            if rank as i64 > most {
                let reason = format!("rank {rank} is more than the {most} that {weight} can have");
                return Err(ModelError::Adapter(reason));
            }
        }
        Ok(Self {
            rank,
            alpha,
            weights: own.map(|(weight, _)| weight.clone()).collect(),
            targets: targets.into_iter().map(str::to_owned).collect(),
        })
    }

    /// Whether this is the weight of a projection that has an adapter.
    pub(crate) fn has(&self, weight: &str) -> bool {
        self.weights.contains(weight)
    }

    /// The first A, `[rank, in]`, and B, `[out, rank]`, of every projection: A uniform in `±1/√in` from a stream that
    /// belongs to `seed` and its name, as wide as PEFT makes it, and B zero.
    pub(crate) fn parameters(&self, config: &Config, seed: u64) -> Vec<(String, Tensor)> {
        let rank = self.rank as i64;
        let of = |(weight, [rows, columns]): (String, [i64; 2])| {
            let [a, b] = names(&weight);
            let bound = (columns as f64).sqrt().recip();
            let mut next = uniform(seed, &a);
            let values = (0..rank * columns).map(|_| (bound * (2.0 * next() - 1.0)) as f32);
            let values = Tensor::from_slice(&values.collect::<Vec<_>>()).view([rank, columns]);
            [(a, values), (b, Tensor::zeros([rows, rank], (Kind::Float, Device::Cpu)))]
        };
        projections(config).filter(|(weight, _)| self.has(weight)).flat_map(of).collect()
    }

    /// `W + alpha / rank · B·A`.
    pub(crate) fn merged(&self, weight: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
        weight + b.matmul(a) * (self.alpha / self.rank as f64)
    }

    /// Writes the A and B of all projections as `adapter_config.json` and `adapter_model.safetensors`, which PEFT
    /// puts on the model at `base`, creating the directory. Each file appears whole or not at all.
    ///
    /// # Errors
    /// If the directory or a file cannot be written.
    pub fn save(&self, parameters: &[(String, Tensor)], base: &Path, dir: &Path) -> Result<(), ModelError> {
        std::fs::create_dir_all(dir).map_err(|source| ModelError::Write { path: dir.to_owned(), source })?;
        let named =
            |(name, tensor): &(String, Tensor)| (format!("base_model.model.{name}"), tensor.shallow_clone());
        let named: Vec<_> = parameters.iter().map(named).collect();
        checkpoint::write_tensors(&dir.join("adapter_model.safetensors"), &named)?;
        let config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": self.targets,
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
        });
        let config = format!("{config:#}\n");
        checkpoint::replace(&dir.join("adapter_config.json"), |file| file.write_all(config.as_bytes()))
    }
}

/// The names of the A and the B of a projection's weight.
pub(crate) fn names(weight: &str) -> [String; 2] {
    let projection = weight.trim_end_matches(".weight");
    ["lora_A", "lora_B"].map(|matrix| format!("{projection}.{matrix}.weight"))
}

/// What a projection is called in its layer: `q_proj` of `model.layers.0.self_attn.q_proj.weight`.
fn last(weight: &str) -> &str {
    let projection = weight.trim_end_matches(".weight");
    projection.rsplit('.').next().unwrap_or(projection)
}

/// The weights of all projections of the layers, `[out, in]`. Stacks of experts are none.
fn projections(config: &Config) -> impl Iterator<Item = (String, [i64; 2])> {
    config.parameters().into_iter().filter_map(|(name, shape)| match shape[..] {
        [rows, columns] if name.ends_with("_proj.weight") => Some((name, [rows, columns])),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Network, Unit};
    use crate::{Decoder, Weights};
    use std::collections::BTreeMap;

    fn decoder() -> Decoder {
        let config = r#"{
            "model_type": "qwen3", "vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "head_dim": 4,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 64, "tie_word_embeddings": true, "hidden_act": "silu"
        }"#;
        Decoder::random(Config::parse(config).expect("a valid configuration"), 1)
    }

    type Parts = (Network, BTreeMap<String, Tensor>);

    fn adapted(rank: usize, alpha: f64, targets: &[&str], seed: u64) -> Result<Parts, ModelError> {
        let targets: Vec<String> = targets.iter().map(|name| (*name).to_owned()).collect();
        let weights = Weights::from(decoder()).with_adapter(rank, alpha, &targets, seed)?;
        let whole =
            |(name, shape): (&String, &Vec<i64>)| Ok((name.clone(), weights.rows(name, 0..shape[0])?));
        let parameters = weights.shapes().iter().map(whole).collect::<Result<_, ModelError>>()?;
        Ok((weights.into_network(), parameters))
    }

    fn refused(rank: usize, names: &[&str]) -> String {
        adapted(rank, 1.0, names, 0).map(|_| ()).expect_err("refused").to_string()
    }

    #[test]
    fn what_does_not_fit_the_model_is_refused() {
        assert_eq!(
            refused(2, &["q_proj", "c_attn"]),
            "no projection is called `c_attn`; there are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
        );
        // One key head of 4.
        let said = refused(5, &["q_proj", "k_proj"]);
        assert_eq!(said, "rank 5 is more than the 4 that model.layers.0.self_attn.k_proj.weight can have");
        adapted(5, 1.0, &["q_proj"], 0).expect("8 by 16");
    }

    #[test]
    fn a_layer_has_its_adapters_behind_its_weights() {
        let (network, parameters) = adapted(2, 8.0, &["up_proj", "q_proj"], 3).expect("an adapter");
        let plain = decoder().into_parts().0.names(Unit::Layer(1));
        let names = network.names(Unit::Layer(1));
        assert_eq!(names[..plain.len()], plain);
        let own = [
            "self_attn.q_proj.lora_A",
            "self_attn.q_proj.lora_B",
            "mlp.up_proj.lora_A",
            "mlp.up_proj.lora_B",
        ];
        assert_eq!(names[plain.len()..], own.map(|name| format!("model.layers.1.{name}.weight")));
        assert_eq!(network.trainable().len(), 8);

        // alpha / rank is 4; a row of ones times B of one column of ones.
        let tensors: Vec<Tensor> = names
            .iter()
            .map(|name| match name.as_str() {
                "model.layers.1.mlp.up_proj.lora_A.weight" => {
                    Tensor::ones([2, 8], (Kind::Float, Device::Cpu))
                }
                "model.layers.1.mlp.up_proj.lora_B.weight" => {
                    Tensor::ones([12, 2], (Kind::Float, Device::Cpu))
                }
                name => parameters[name].shallow_clone(),
            })
            .collect();
        let merged = network.merged(Unit::Layer(1), &tensors);
        assert_eq!(merged.len(), plain.len());
        for (name, tensor) in merged {
            let expected = if name.ends_with("up_proj.weight") {
                &parameters[&name] + 8.0
            } else {
                parameters[&name].shallow_clone()
            };
            assert_eq!(tensor, expected, "{name}");
        }
    }

    #[test]
    fn the_first_a_is_of_its_seed_and_name_and_b_is_zero() {
        let made = |seed| adapted(4, 1.0, &[], seed).expect("an adapter").1;
        let (one, again, other) = (made(1), made(1), made(2));
        let adapters: Vec<&String> = one.keys().filter(|name| name.contains("lora_")).collect();
        assert_eq!(adapters.len(), 2 * 2 * 7);
        for name in adapters {
            assert_eq!(one[name], again[name]);
            if name.contains("lora_B") {
                assert_eq!(one[name].count_nonzero(None).int64_value(&[]), 0);
                continue;
            }
            assert_ne!(one[name], other[name]);
            let (bound, most) =
                ((one[name].size()[1] as f64).sqrt().recip(), one[name].abs().max().double_value(&[]));
            assert!(most <= bound && most > 0.7 * bound, "{name}: {most} of {bound}");
        }
        assert_ne!(
            one["model.layers.0.self_attn.q_proj.lora_A.weight"],
            one["model.layers.1.self_attn.q_proj.lora_A.weight"]
        );
    }

    /// The names and values that PEFT wants; that it reads them, `reference/adapter.py` checks.
    #[test]
    fn an_adapter_is_saved_under_the_names_of_peft() {
        let dir = tempfile::tempdir().expect("a directory");
        let (network, parameters) = adapted(2, 6.0, &["v_proj"], 3).expect("an adapter");
        let own: Vec<_> = network
            .trainable()
            .into_iter()
            .map(|name| (name.clone(), parameters[&name].shallow_clone()))
            .collect();
        network
            .adapter()
            .expect("it has one")
            .save(&own, Path::new("models/tiny"), dir.path())
            .expect("saved");
        let config = std::fs::read_to_string(dir.path().join("adapter_config.json")).expect("a file");
        let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        let expected = json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "models/tiny",
            "r": 2, "lora_alpha": 6.0, "lora_dropout": 0.0, "target_modules": ["v_proj"],
            "bias": "none", "fan_in_fan_out": false, "init_lora_weights": true, "inference_mode": true,
        });
        assert_eq!(config, expected);
        let saved = Tensor::read_safetensors(dir.path().join("adapter_model.safetensors")).expect("tensors");
        let names: Vec<&str> = saved.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(saved.len(), 4);
        for layer in 0..2 {
            for (matrix, size) in [("lora_A", [2, 8]), ("lora_B", [4, 2])] {
                let name = format!("base_model.model.model.layers.{layer}.self_attn.v_proj.{matrix}.weight");
                let (_, tensor) =
                    saved.iter().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("{names:?}"));
                assert_eq!(tensor.size(), size);
                assert_eq!(*tensor, parameters[&name["base_model.model.".len()..]]);
            }
        }
    }
}
