//! The decoder: token ids to hidden states to logits.

use molt_core::settings::Compute;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use tch::{Device, Kind, Tensor};

use crate::block::{Block, Keys};
use crate::cache::{KvCache, Window};
use crate::checkpoint;
use crate::config::Config;
use crate::error::ModelError;
use crate::experts::stored;
use crate::network::{EMBEDDING, HEAD, NORM, Network, Unit};
use crate::weights::Weights;

/// A causal language model of the Llama family on the CPU, in float32 unless [`Decoder::in_numbers`] says otherwise.
#[derive(Debug)]
pub struct Decoder {
    network: Network,
    /// All parameters by name. The fields below are handles to the same tensors, but for the head's.
    parameters: BTreeMap<String, Tensor>,
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    /// The embedding itself if it is tied; a copy if it is in narrower numbers than logits are.
    head: Tensor,
}

impl Decoder {
    /// Reads `config.json` and the safetensors files of a Hugging Face model directory.
    ///
    /// # Errors
    /// If a file is absent or damaged, the architecture is not supported, or a tensor is missing, unknown or of
    /// another shape than `config.json` makes it.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let weights = Weights::open(dir)?;
        let whole = |(name, shape): (&String, &Vec<i64>)| {
            Ok((name.clone(), weights.rows(name, 0..shape.first().copied().unwrap_or(1))?))
        };
        let parameters =
            weights.shapes().iter().map(whole).collect::<Result<BTreeMap<_, _>, ModelError>>()?;
        Ok(Self::new(weights.into_network(), parameters))
    }

    /// Random weights: norm weights are 1, all others normal with deviation `initializer_range`.
    /// The values of a parameter depend on `seed` and its name alone.
    pub fn random(config: Config, seed: u64) -> Self {
        let parameters = config
            .parameters()
            .into_iter()
            .map(|(name, shape)| {
                let tensor = if name.ends_with("norm.weight") {
                    Tensor::ones(&shape, (Kind::Float, Device::Cpu))
                } else {
                    normal(seed, &name, shape.iter().product::<i64>() as usize, config.initializer_range)
                        .view(shape.as_slice())
                };
                (name, tensor)
            })
            .collect();
        Self::new(Network::new(config), parameters)
    }

    /// The same model with its weights rounded to these numbers, and computed in them. For decoding: what is trained is
    /// held in float32.
    pub fn in_numbers(self, compute: Compute) -> Self {
        let network = self.network.in_numbers(compute);
        let rounded = |(name, tensor): (String, Tensor)| {
            let kind = network.kind(tensor.kind());
            (name, tensor.to_kind(kind))
        };
        let parameters = self.parameters.into_iter().map(rounded).collect();
        Self::new(network, parameters)
    }

    fn new(network: Network, parameters: BTreeMap<String, Tensor>) -> Self {
        let get = |name: &str| parameters[name].shallow_clone();
        let block = |layer| {
            let own: Vec<Tensor> = network.names(Unit::Layer(layer)).iter().map(|name| get(name)).collect();
            Block::new(network.config(), layer, &own)
        };
        let config = network.config();
        Self {
            embedding: get(EMBEDDING),
            blocks: (0..config.num_hidden_layers).map(block).collect(),
            norm: get(NORM),
            head: network.head(&parameters[head(config)]),
            network,
            parameters,
        }
    }

    /// The shape of the model.
    pub fn config(&self) -> &Config {
        self.network.config()
    }

    /// The kind of keys and values.
    pub(crate) fn kind(&self) -> Kind {
        self.embedding.kind()
    }

    /// What the model computes, and its parameters by name.
    pub fn into_parts(self) -> (Network, BTreeMap<String, Tensor>) {
        (self.network, self.parameters)
    }

    /// All parameters under their Hugging Face names, sorted by name; a tied head appears once, as the
    /// embedding, and the experts of a layer as one stack, without their numbers in the name. The tensors are the model's own: a change to one in place changes the model.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        self.parameters.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect()
    }

    /// Copies of all parameters, as [`Decoder::parameters`] orders them, without gradients.
    pub fn snapshot(&self) -> Vec<(String, Tensor)> {
        self.parameters.iter().map(|(name, tensor)| (name.clone(), tensor.detach().copy())).collect()
    }

    /// Copies the given values over the model's own, which keep their handles.
    ///
    /// # Errors
    /// If the names are not exactly those of [`Decoder::parameters`] or a shape differs; nothing is changed then.
    pub fn load_parameters(&mut self, values: &[(String, Tensor)]) -> Result<(), ModelError> {
        match_names(
            self.parameters.keys().map(String::as_str),
            values.iter().map(|(name, _)| name.as_str()),
        )?;
        for (name, value) in values {
            let (expected, found) = (self.parameters[name].size(), value.size());
            if expected != found {
                return Err(ModelError::Shape { name: name.clone(), expected, found });
            }
        }
        tch::no_grad(|| {
            for (name, value) in values {
                self.parameters[name].shallow_clone().f_copy_(value)?;
            }
            self.head = self.network.head(&self.parameters[head(self.network.config())]);
            Ok(())
        })
    }

    /// Whether autograd records operations on the parameters.
    pub fn requires_grad(&mut self, yes: bool) {
        for parameter in self.parameters.values() {
            let _ = parameter.set_requires_grad(yes);
        }
    }

    /// Normed hidden states `[B, T, d]` of `ids`, `[B, T]` of kind `Int64`. Attention is causal, so padding on
    /// the right changes nothing before it.
    ///
    /// # Panics
    /// If an id is not below `vocab_size`.
    pub fn hidden(&self, ids: &Tensor) -> Tensor {
        let tokens = ids.size().last().copied().unwrap_or_default();
        let positions = Tensor::arange(tokens, (Kind::Float, Device::Cpu)).unsqueeze(0);
        self.forward(ids, &positions, None, None)
    }

    /// [`Decoder::hidden`] of `ids`, `[R, T]`, as the continuation of what `rows` of the cache hold, without
    /// gradients. Row `r` has `starts[r]` tokens; the new keys and values are stored behind them, over whatever
    /// was there. A row whose `ids` are padded on the right is continued by a smaller start next time.
    /// `recorded` are experts that tokens are to go to, as [`crate::Experts::recorded`] makes them.
    ///
    /// # Panics
    /// If `rows`, `starts` and `ids` disagree on R, the cache has fewer rows, or an id is not below `vocab_size`.
    pub fn hidden_cached(
        &self,
        ids: &Tensor,
        cache: &mut KvCache,
        rows: Range<usize>,
        starts: &[usize],
        recorded: Option<&Tensor>,
    ) -> Tensor {
        tch::no_grad(|| {
            let tokens = ids.size().last().copied().unwrap_or_default();
            let first: Vec<f32> = starts.iter().map(|start| *start as f32).collect();
            let positions =
                Tensor::from_slice(&first).unsqueeze(1) + Tensor::arange(tokens, (Kind::Float, Device::Cpu));
            let mut window = cache.window(rows, starts, tokens as usize);
            self.forward(ids, &positions, Some(&mut window), recorded)
        })
    }

    /// The forward pass that training and decoding share.
    fn forward(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        mut window: Option<&mut Window>,
        recorded: Option<&Tensor>,
    ) -> Tensor {
        let rotation = self.network.rotation(positions);
        let mut x = self.network.embed(&self.embedding, ids);
        for (layer, block) in self.blocks.iter().enumerate() {
            let keys = window.as_deref_mut().map_or(Keys::Rows, |window| Keys::Cached(layer, window));
            let recorded = self.config().experts.as_ref().zip(recorded);
            let recorded = recorded.and_then(|(experts, recorded)| experts.of_layer(recorded, layer));
            let with = (self.config(), self.network.parallel());
            let (output, routed) = block
                .forward(with, &x, &rotation, keys, recorded.as_ref())
                .expect("a decoder has no ranks that it could lose");
            if let Some((window, routed)) = window.as_deref_mut().zip(routed) {
                window.record(layer, &routed.experts);
            }
            x = output;
        }
        self.network.norm(&self.norm, &x)
    }

    /// Logits `[.., V]` of normed hidden states `[.., d]`.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        self.network.logits(&self.head, hidden)
    }

    /// Writes `config.json` and `model.safetensors` (float32), creating the directory. Each file appears whole
    /// or not at all.
    ///
    /// # Errors
    /// If the directory or a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), ModelError> {
        save(self.config(), &self.parameters(), dir)
    }
}

/// The name of the projection to logits.
fn head(config: &Config) -> &'static str {
    if config.tie_word_embeddings { EMBEDDING } else { HEAD }
}

/// Writes a model as [`Decoder::save`] does.
///
/// # Errors
/// If the directory or a file cannot be written.
pub fn save(config: &Config, parameters: &[(String, Tensor)], dir: &Path) -> Result<(), ModelError> {
    std::fs::create_dir_all(dir).map_err(|source| ModelError::Write { path: dir.to_owned(), source })?;
    let split = parameters.iter().flat_map(|(name, tensor)| {
        let shape = tensor.size();
        let (names, of_part) = stored(name, &shape);
        let is_stacked = of_part.len() < shape.len();
        let parts = if is_stacked { tensor.unbind(0) } else { vec![tensor.shallow_clone()] };
        names.into_iter().zip(parts)
    });
    checkpoint::write(dir, &split.collect::<Vec<_>>())?;
    let config = format!("{:#}\n", config.to_json());
    checkpoint::replace(&dir.join("config.json"), |file| file.write_all(config.as_bytes()))
}

/// Both sets of names must be equal; a name that is given twice counts as one too many.
pub(crate) fn match_names<'a>(
    expected: impl Iterator<Item = &'a str>,
    found: impl Iterator<Item = &'a str>,
) -> Result<(), ModelError> {
    let mut missing: std::collections::BTreeSet<&str> = expected.collect();
    let unexpected: Vec<String> = found.filter(|name| !missing.remove(name)).map(str::to_owned).collect();
    if !missing.is_empty() {
        return Err(ModelError::Missing(missing.into_iter().map(str::to_owned).collect()));
    }
    if !unexpected.is_empty() {
        return Err(ModelError::Unexpected(unexpected));
    }
    Ok(())
}

/// Numbers uniform in (0, 1], from a stream that belongs to `seed` and `name`.
pub(crate) fn uniform(seed: u64, name: &str) -> impl FnMut() -> f64 + use<> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    // FNV-1a of the name.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    key[8..16].copy_from_slice(&hash.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    // 53 random bits.
    move || ((random.next_u64() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
}

/// `count` normal numbers of deviation `std` from the stream of [`uniform`], by the transform of Box and Muller
/// (1958).
pub(crate) fn normal(seed: u64, name: &str, count: usize, std: f64) -> Tensor {
    let mut uniform = uniform(seed, name);
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        let radius = std * (-2.0 * uniform().ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * uniform()).sin_cos();
        values.extend([(radius * cos) as f32, (radius * sin) as f32]);
    }
    Tensor::from_slice(&values[..count])
}
