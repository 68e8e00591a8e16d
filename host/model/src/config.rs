//! The shape of a decoder, read from a Hugging Face `config.json`.

use serde_json::{Map, Value};
use std::path::Path;

use crate::error::ModelError;
use crate::experts::Experts;

/// What `config.json` says of a Llama, Qwen3 or Qwen3-MoE decoder. Keys that the decoder does not use are kept for saving.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// The longest sequence that the model was made for, in tokens.
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    /// The output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Every query and key head is normalised (Qwen3).
    pub qk_norm: bool,
    /// None if every layer is dense.
    pub experts: Option<Experts>,
    /// Standard deviation of random initial weights.
    pub initializer_range: f64,
    /// The file as it was read, with every key.
    source: Map<String, Value>,
}

/// How the rotary frequencies differ from `theta^(-2i/head_dim)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided by `factor`, high ones kept, those between blended.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: usize,
    },
}

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If the file cannot be read, is malformed, or asks for anything that the decoder does not compute.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|reason| ModelError::Config { path: path.to_owned(), reason })
    }

    /// Reads the text of a `config.json`; the error is a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let source: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
        let keys = Keys { object: &source, within: "" };
        let model_type = keys.text("model_type")?;
        let qwen3 = match model_type {
            Some("llama") => false,
            Some("qwen3" | "qwen3_moe") => true,
            Some(other) => {
                return Err(format!("model_type {other:?} is not supported; llama, qwen3 and qwen3_moe are"));
            }
            None => return Err("model_type is missing; llama, qwen3 and qwen3_moe are supported".to_owned()),
        };
        refuse_unsupported(&keys)?;

        let num_attention_heads = keys.size("num_attention_heads", None)?;
        let hidden_size = keys.size("hidden_size", None)?;
        let (theta, rope_scaling) = rope(&keys)?;
        let num_hidden_layers = keys.size("num_hidden_layers", None)?;
        let is_moe = model_type == Some("qwen3_moe");
        let config = Self {
            vocab_size: keys.size("vocab_size", None)?,
            hidden_size,
            intermediate_size: keys.size("intermediate_size", None)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: keys.size("num_key_value_heads", Some(num_attention_heads))?,
            head_dim: keys.size(
                "head_dim",
                Some(if qwen3 && !is_moe { 128 } else { (hidden_size / num_attention_heads).max(1) }),
            )?,
            max_position_embeddings: keys
                .size("max_position_embeddings", Some(if qwen3 { 32_768 } else { 2048 }))?,
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: theta,
            rope_scaling,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?,
            qk_norm: qwen3,
            experts: if is_moe { Experts::parse(&keys, num_hidden_layers)? } else { None },
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            source: Map::new(),
        };
        if !config.num_attention_heads.is_multiple_of(config.num_key_value_heads) {
            return Err(format!(
                "num_attention_heads {} is not a multiple of num_key_value_heads {}",
                config.num_attention_heads, config.num_key_value_heads
            ));
        }
        if !config.head_dim.is_multiple_of(2) {
            return Err(format!("head_dim {} is odd; rotary embedding pairs dimensions", config.head_dim));
        }
        if config.rope_theta <= 0.0 || config.rms_norm_eps < 0.0 || config.initializer_range < 0.0 {
            return Err(
                "rope_theta must be positive, rms_norm_eps and initializer_range not negative".to_owned()
            );
        }
        Ok(Self { source, ..config })
    }

    /// Whether weights files with so many tensors, of which no dimension is longer than `longest`, may be of this shape:
    /// a number that is beyond them is refused before anything of its size is made.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub(crate) fn fits(&self, tensors: usize, longest: usize) -> Result<(), String> {
        let of_experts = self.experts.as_ref().map_or(0, |experts| experts.layers.len() * experts.count);
        for (key, count) in [("num_hidden_layers", self.num_hidden_layers), ("num_experts", of_experts)] {
            if count > tensors {
                return Err(format!(
                    "{key} makes {count} tensors or more, and the weights files hold {tensors}"
                ));
            }
        }
        let is_dense = self.experts.as_ref().is_none_or(|e| e.layers.len() < self.num_hidden_layers);
        let of_experts = self.experts.as_ref().map_or(0, |experts| experts.intermediate_size);
        for (key, length) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", if is_dense { self.intermediate_size } else { 0 }),
            ("moe_intermediate_size", of_experts),
            ("num_attention_heads", self.num_attention_heads),
            ("head_dim", self.num_attention_heads * self.head_dim),
        ] {
            if length > longest {
                return Err(format!(
                    "{key} makes dimensions of {length}, and the longest in the weights files is {longest}"
                ));
            }
        }
        Ok(())
    }

    /// The place of this layer among those with experts; none if it is dense.
    pub fn expert_layer(&self, layer: usize) -> Option<usize> {
        self.experts.as_ref()?.layers.binary_search(&layer).ok()
    }

    /// The `config.json` of float32 weights of this shape: the file that was read, with that dtype.
    pub(crate) fn to_json(&self) -> Value {
        let mut object = self.source.clone();
        let class = match object.get("model_type").and_then(Value::as_str) {
            Some("qwen3_moe") => "Qwen3MoeForCausalLM",
            Some("qwen3") => "Qwen3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        if object.get("architectures").is_none_or(Value::is_null) {
            object.insert("architectures".to_owned(), Value::from(vec![class]));
        }
        object.insert("dtype".to_owned(), Value::from("float32"));
        if let Some(older_name) = object.get_mut("torch_dtype") {
            *older_name = Value::from("float32");
        }
        Value::Object(object)
    }

    /// The number of parameters; a tied head counts once, as the embedding.
    pub fn parameter_count(&self) -> usize {
        self.parameters().iter().map(|(_, shape)| shape.iter().product::<i64>() as usize).sum()
    }

    /// Names and shapes of all parameters, sorted by name. The experts of a layer are stacked.
    pub(crate) fn parameters(&self) -> Vec<(String, Vec<i64>)> {
        let [d, ffn, vocab, head] =
            [self.hidden_size, self.intermediate_size, self.vocab_size, self.head_dim].map(|n| n as i64);
        let (q, kv) = (self.num_attention_heads as i64 * head, self.num_key_value_heads as i64 * head);
        let mut all = vec![
            ("model.embed_tokens.weight".to_owned(), vec![vocab, d]),
            ("model.norm.weight".to_owned(), vec![d]),
        ];
        if !self.tie_word_embeddings {
            all.push(("lm_head.weight".to_owned(), vec![vocab, d]));
        }
        for layer in 0..self.num_hidden_layers {
            let mut add = |name: &str, shape: &[i64]| {
                all.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
            };
            add("input_layernorm", &[d]);
            add("self_attn.q_proj", &[q, d]);
            add("self_attn.k_proj", &[kv, d]);
            add("self_attn.v_proj", &[kv, d]);
            add("self_attn.o_proj", &[d, q]);
            if self.qk_norm {
                add("self_attn.q_norm", &[head]);
                add("self_attn.k_norm", &[head]);
            }
            add("post_attention_layernorm", &[d]);
            match &self.experts {
                Some(experts) if self.expert_layer(layer).is_some() => {
                    let [count, ffn] = [experts.count, experts.intermediate_size].map(|n| n as i64);
                    add("mlp.gate", &[count, d]);
                    add("mlp.experts.gate_proj", &[count, ffn, d]);
                    add("mlp.experts.up_proj", &[count, ffn, d]);
                    add("mlp.experts.down_proj", &[count, d, ffn]);
                }
                _ => {
                    add("mlp.gate_proj", &[ffn, d]);
                    add("mlp.up_proj", &[ffn, d]);
                    add("mlp.down_proj", &[d, ffn]);
                }
            }
        }
        all.sort();
        all
    }
}

/// Every key that changes what the model computes, and that the decoder does not compute, is an error.
fn refuse_unsupported(keys: &Keys) -> Result<(), String> {
    for bias in ["attention_bias", "mlp_bias"] {
        if keys.flag(bias)? {
            return Err(format!("{bias} is true; projections with a bias are not supported"));
        }
    }
    match keys.text("hidden_act")? {
        None | Some("silu") => {}
        Some(other) => return Err(format!("hidden_act {other:?} is not supported; silu is")),
    }
    let layer_types = keys.object.get("layer_types").and_then(Value::as_array);
    let full = |kind: &Value| kind.as_str() == Some("full_attention");
    if let Some(other) = layer_types.and_then(|kinds| kinds.iter().find(|kind| !full(kind))) {
        return Err(format!("layer_types has {other}; only full_attention is supported"));
    }
    let window = keys.object.get("sliding_window").is_none_or(|window| !window.is_null());
    if layer_types.is_none() && window && keys.flag("use_sliding_window")? {
        return Err("use_sliding_window is true; sliding-window attention is not supported".to_owned());
    }
    if keys.object.get("quantization_config").is_some_and(|value| !value.is_null()) {
        return Err("quantization_config is set; dequantise the weights first".to_owned());
    }
    Ok(())
}

/// Rotary base and scaling. Newer files have both in `rope_parameters`, older ones `rope_theta` beside
/// `rope_scaling`; transformers reads either, and so do we.
fn rope(keys: &Keys) -> Result<(f64, RopeScaling), String> {
    let given = |key: &str| keys.object.get(key).is_some_and(|value| !value.is_null());
    let within = if given("rope_scaling") { "rope_scaling" } else { "rope_parameters" };
    let empty = Map::new();
    let object = match keys.object.get(within) {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(object)) => object,
        Some(other) => return Err(format!("{within} is {other}; an object was expected")),
    };
    let rope = Keys { object, within };
    if object.values().any(Value::is_object) {
        return Err(format!("{within} differs from layer to layer, which is not supported"));
    }
    let theta = match rope.number("rope_theta")? {
        Some(theta) => theta,
        None => keys.number("rope_theta")?.unwrap_or(10_000.0),
    };
    for keys in [&rope, keys] {
        if keys.number("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
            return Err("partial_rotary_factor is not 1; partial rotation is not supported".to_owned());
        }
    }
    let kind = match rope.text("rope_type")? {
        Some(kind) => Some(kind),
        None => rope.text("type")?,
    };
    let scaling = match kind.unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: rope.positive("factor")? },
        "llama3" => {
            let original_context = match rope.object.get("original_max_position_embeddings") {
                Some(_) => rope.size("original_max_position_embeddings", None)?,
                None => keys.size("max_position_embeddings", Some(2048))?,
            };
            let low_freq_factor = rope.positive("low_freq_factor")?;
            let high_freq_factor = rope.positive("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                return Err(format!("{within}: high_freq_factor must be above low_freq_factor"));
            }
            let factor = rope.positive("factor")?;
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context }
        }
        other => return Err(format!("rope type {other:?} is not supported; default, linear and llama3 are")),
    };
    Ok((theta, scaling))
}

/// Typed access to an object of the file; an absent key and `null` are the same.
pub(crate) struct Keys<'a> {
    object: &'a Map<String, Value>,
    /// The key that holds the object, empty for the whole file.
    within: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn read<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| format!("{} is {value}; {wanted} was expected", self.path(key))),
        }
    }

    fn path(&self, key: &str) -> String {
        if self.within.is_empty() { key.to_owned() } else { format!("{}.{key}", self.within) }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        self.read(key, "a string", Value::as_str)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<bool, String> {
        Ok(self.read(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        self.read(key, "a number", Value::as_f64)
    }

    fn positive(&self, key: &str) -> Result<f64, String> {
        match self.number(key)? {
            Some(number) if number > 0.0 => Ok(number),
            _ => Err(format!("{} must be a positive number", self.path(key))),
        }
    }

    /// A count from 1 to 2^24, which leaves room to multiply three of them.
    pub(crate) fn size(&self, key: &str, default: Option<usize>) -> Result<usize, String> {
        let wanted = "a whole number from 1 to 2^24";
        let size = self.read(key, wanted, |value| {
            value.as_u64().filter(|n| (1..=1 << 24).contains(n)).and_then(|n| usize::try_from(n).ok())
        })?;
        size.or(default).ok_or_else(|| format!("{} is missing; {wanted} was expected", self.path(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A complete Llama file with `extra` members.
    fn llama(extra: &str) -> String {
        format!(
            r#"{{"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 172,
            "num_hidden_layers": 5, "num_attention_heads": 8 {extra}}}"#
        )
    }

    fn refusal(extra: &str) -> String {
        Config::parse(&llama(extra)).expect_err(extra)
    }

    #[test]
    fn absent_keys_have_the_defaults_of_transformers() {
        let config = Config::parse(&llama("")).expect("complete");
        assert_eq!((config.num_key_value_heads, config.head_dim), (8, 8));
        assert_eq!((config.rms_norm_eps, config.rope_theta, config.initializer_range), (1e-6, 1e4, 0.02));
        assert_eq!(config.max_position_embeddings, 2048);
        assert!(!config.tie_word_embeddings && !config.qk_norm);
        let qwen3 = llama("").replace("llama", "qwen3");
        let qwen3 = Config::parse(&qwen3).expect("complete");
        assert_eq!((qwen3.head_dim, qwen3.qk_norm, qwen3.max_position_embeddings), (128, true, 32_768));
    }

    #[test]
    fn rope_is_read_from_both_layouts() {
        let scaled = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64,
        };
        let members = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4,
            "original_max_position_embeddings": 64"#;
        for extra in [
            format!(r#", "rope_parameters": {{"rope_type": "llama3", "rope_theta": 500.0, {members}}}"#),
            format!(r#", "rope_theta": 500, "rope_scaling": {{"rope_type": "llama3", {members}}}"#),
            format!(r#", "rope_theta": 500, "rope_scaling": {{"type": "llama3", {members}}}"#),
        ] {
            let config = Config::parse(&llama(&extra)).expect("supported");
            assert_eq!((config.rope_theta, config.rope_scaling), (500.0, scaled), "{extra}");
        }
        let linear = llama(r#", "rope_scaling": {"type": "linear", "factor": 2.0}"#);
        let linear = Config::parse(&linear).expect("supported");
        assert_eq!((linear.rope_theta, linear.rope_scaling), (1e4, RopeScaling::Linear { factor: 2.0 }));
        let none = Config::parse(&llama(r#", "rope_scaling": null"#)).expect("supported");
        assert_eq!(none.rope_scaling, RopeScaling::None);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (extra, named) in [
            (r#", "attention_bias": true"#, "attention_bias"),
            (r#", "mlp_bias": true"#, "mlp_bias"),
            (r#", "hidden_act": "gelu""#, "gelu"),
            (r#", "use_sliding_window": true"#, "use_sliding_window"),
            (r#", "layer_types": ["full_attention", "sliding_attention"]"#, "sliding_attention"),
            (r#", "quantization_config": {"bits": 4}"#, "quantization_config"),
            (r#", "rope_scaling": {"rope_type": "yarn", "factor": 2}"#, "yarn"),
            (r#", "rope_scaling": {"rope_type": "dynamic", "factor": 2}"#, "dynamic"),
            (r#", "rope_scaling": {"rope_type": "linear"}"#, "rope_scaling.factor"),
            (r#", "rope_scaling": 3"#, "rope_scaling"),
            (r#", "rope_parameters": "llama3""#, "rope_parameters"),
            (r#", "rope_parameters": {"full_attention": {"rope_type": "default"}}"#, "rope_parameters"),
            (r#", "partial_rotary_factor": 0.5"#, "partial_rotary_factor"),
            (r#", "num_key_value_heads": 3"#, "num_key_value_heads"),
            (r#", "num_key_value_heads": 0"#, "num_key_value_heads"),
            (r#", "head_dim": 7"#, "head_dim"),
            (r#", "head_dim": 1e30"#, "head_dim"),
            (r#", "tie_word_embeddings": "yes""#, "tie_word_embeddings"),
        ] {
            let message = refusal(extra);
            assert!(message.contains(named), "{message}");
        }
        assert!(Config::parse("{").expect_err("malformed").contains("JSON"));
        assert!(Config::parse("{}").expect_err("empty").contains("model_type"));
        let other = llama("").replace("llama", "mamba");
        assert!(Config::parse(&other).expect_err("other").contains("mamba"));
        let partial = llama("").replace("vocab_size", "vocabulary");
        assert!(Config::parse(&partial).expect_err("missing").contains("vocab_size"));
    }

    #[test]
    fn an_inactive_sliding_window_is_accepted() {
        for extra in [
            r#", "use_sliding_window": false, "sliding_window": 4096"#,
            r#", "use_sliding_window": true, "sliding_window": null"#,
            r#", "layer_types": ["full_attention"], "sliding_window": null"#,
        ] {
            Config::parse(&llama(extra)).expect(extra);
        }
    }

    #[test]
    fn unknown_keys_survive_and_the_dtype_changes() {
        let text = llama(r#", "zebra": [1, {"a": null}], "torch_dtype": "bfloat16", "eos_token_id": 2"#);
        let written = Config::parse(&text).expect("complete").to_json();
        assert_eq!(written["zebra"], serde_json::json!([1, {"a": null}]));
        assert_eq!(written["eos_token_id"], 2);
        assert_eq!((&written["dtype"], &written["torch_dtype"]), (&"float32".into(), &"float32".into()));
        assert_eq!(written["architectures"], serde_json::json!(["LlamaForCausalLM"]));
    }
}
