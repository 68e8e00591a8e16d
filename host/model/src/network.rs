//! What the model computes, whoever holds its parameters.

use molt_core::settings::Compute;
use molt_torch::TorchError;
use std::ops::Range;
use tch::{Kind, Tensor};

use crate::adapter::{self, Adapter};
use crate::block::{Block, Keys, linear, rms_norm};
use crate::config::Config;
use crate::experts::Routed;
use crate::parallel::Parallel;
use crate::rope::{Rope, Rotation};
use crate::sequences::Sequences;

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const VALUE: &str = "score.weight";

/// A causal language model of the Llama family without its parameters: an embedding, a chain of layers, and a
/// head. Who calls it gives the parameters of a unit, and may drop them after.
#[derive(Debug)]
pub struct Network {
    config: Config,
    rope: Rope,
    adapter: Option<Adapter>,
    parallel: Parallel,
    compute: Compute,
    /// The head makes one number of a hidden state in place of logits.
    is_critic: bool,
}

/// A part of the model whose parameters are needed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    Embedding,
    Layer(usize),
    /// The last norm, and the projection to logits unless it is the embedding, or that to a value.
    Head,
}

impl Network {
    pub fn new(config: Config) -> Self {
        let (rope, parallel) = (Rope::new(&config), Parallel::default());
        Self { rope, config, adapter: None, parallel, compute: Compute::default(), is_critic: false }
    }

    /// Layers are computed in these numbers: see [`Network::kind`].
    pub fn in_numbers(self, compute: Compute) -> Self {
        Self { compute, ..self }
    }

    /// What weights that are held in `held` are rounded to before anything is computed with them. This decides it for
    /// all: hidden states follow the weights, and norms, rotations, router and logits are float32 at least.
    pub fn kind(&self, held: Kind) -> Kind {
        match self.compute {
            Compute::Float32 => held,
            Compute::Bfloat16 => Kind::BFloat16,
        }
    }

    /// What parameters that are held in `held` may be rounded to before [`Network::layer`] and the others get them. An
    /// adapter is merged before: of what it adds to rounded weights, the next rounding would leave little.
    pub fn gathered(&self, held: Kind) -> Kind {
        if self.adapter.is_some() { held } else { self.kind(held) }
    }

    fn rounded(&self, tensor: &Tensor) -> Tensor {
        tensor.to_kind(self.kind(tensor.kind()))
    }

    /// Layers are computed together with these ranks: parameters are slices, see [`crate::Cut`], and tokens a part.
    pub fn in_parallel(self, parallel: Parallel) -> Self {
        Self { parallel, ..self }
    }

    /// The ranks that compute layers together with this one.
    pub fn parallel(&self) -> &Parallel {
        &self.parallel
    }

    pub(crate) fn with_value_head(self) -> Self {
        Self { is_critic: true, ..self }
    }

    /// Whether the head makes values in place of logits.
    pub fn is_critic(&self) -> bool {
        self.is_critic
    }

    /// Whether the projection to logits is the embedding.
    pub fn is_tied(&self) -> bool {
        self.config.tie_word_embeddings && !self.is_critic
    }

    pub(crate) fn adapted(self, adapter: Adapter) -> Self {
        Self { adapter: Some(adapter), ..self }
    }

    /// What is trained in place of the weights, if anything is.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// The shape of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All units in the order of the forward pass.
    pub fn units(&self) -> Vec<Unit> {
        let layers = (0..self.config.num_hidden_layers).map(Unit::Layer);
        std::iter::once(Unit::Embedding).chain(layers).chain([Unit::Head]).collect()
    }

    /// The names of a unit's own parameters, those of [`crate::Decoder::parameters`], in the order in which its
    /// functions take them: its weights, then the A and B of each that has an adapter.
    pub fn names(&self, unit: Unit) -> Vec<String> {
        let mut names = self.weights(unit);
        if let Some(adapter) = &self.adapter {
            let own =
                names.iter().filter(|weight| adapter.has(weight)).flat_map(|weight| adapter::names(weight));
            names.extend(own.collect::<Vec<_>>());
        }
        names
    }

    /// The parameters that can be trained: all, or those of the adapter.
    pub fn trainable(&self) -> Vec<String> {
        let of = |unit| {
            let frozen = if self.adapter.is_some() { self.weights(unit).len() } else { 0 };
            self.names(unit).into_iter().skip(frozen)
        };
        self.units().into_iter().flat_map(of).collect()
    }

    /// The weights of a unit by name, its adapters merged into them.
    ///
    /// # Panics
    /// If `parameters` are not those of [`Network::names`].
    pub fn merged(&self, unit: Unit, parameters: &[Tensor]) -> Vec<(String, Tensor)> {
        let names = self.weights(unit);
        let (weights, adapters) = parameters.split_at(names.len());
        let mut adapters = adapters.chunks_exact(2);
        let of = |(name, weight): (String, &Tensor)| {
            let Some(adapter) = self.adapter.as_ref().filter(|adapter| adapter.has(&name)) else {
                return (name, weight.shallow_clone());
            };
            let [a, b] = adapters.next().expect("an A and a B for each weight that has them") else {
                unreachable!("chunks of two")
            };
            (name, adapter.merged(weight, a, b))
        };
        names.into_iter().zip(weights).map(of).collect()
    }

    fn weights(&self, unit: Unit) -> Vec<String> {
        match unit {
            Unit::Embedding => vec![EMBEDDING.to_owned()],
            Unit::Layer(layer) => Block::names(&self.config, layer)
                .map(|name| format!("model.layers.{layer}.{name}.weight"))
                .collect(),
            Unit::Head if self.is_critic => vec![NORM.to_owned(), VALUE.to_owned()],
            Unit::Head if self.is_tied() => vec![NORM.to_owned()],
            Unit::Head => vec![NORM.to_owned(), HEAD.to_owned()],
        }
    }

    /// Sequences of these lengths, one after the other in a stream of tokens, of which `own` are those that this rank
    /// attends for. Behind the last may be tokens that belong to none.
    pub fn sequences(&self, lengths: &[usize], own: Range<usize>) -> Sequences {
        Sequences::new(&self.rope, lengths, own)
    }

    /// The rotation of tokens at `positions`, `[B, T]` or `[1, T]`.
    pub(crate) fn rotation(&self, positions: &Tensor) -> Rotation {
        self.rope.at(positions)
    }

    /// `[B, T]` ids of kind `Int64` to `[B, T, d]`.
    ///
    /// # Panics
    /// If an id is not below `vocab_size`.
    pub fn embed(&self, embedding: &Tensor, ids: &Tensor) -> Tensor {
        self.rounded(&Tensor::embedding(embedding, ids, -1, false, false))
    }

    /// `[1, n, d]` through a layer: a stream of `sequences`, or this rank's part of it. Every token attends to itself
    /// and those before it in its own sequence. In a layer with experts, tokens go to the experts that `recorded`,
    /// `[1, n, k]` of `Int64`, names, and where it has −1 to those with the largest probabilities; how they were
    /// routed comes back.
    ///
    /// # Errors
    /// If a rank of [`Network::parallel`] is lost, or `sequences` are not of this stream.
    ///
    /// # Panics
    /// If `parameters` are not those of [`Network::names`], or an expert is not below their number.
    pub fn layer(
        &self,
        layer: usize,
        parameters: &[Tensor],
        x: &Tensor,
        sequences: &Sequences,
        recorded: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Routed>), TorchError> {
        let merged = self.merged(Unit::Layer(layer), parameters);
        let weights: Vec<Tensor> = merged.iter().map(|(_, weight)| self.rounded(weight)).collect();
        let block = Block::new(&self.config, layer, &weights);
        let Sequences { rotation, spans } = sequences;
        block.forward((&self.config, &self.parallel), x, rotation, Keys::Packed(spans), recorded)
    }

    /// The last norm of `[.., d]`.
    pub fn norm(&self, norm: &Tensor, x: &Tensor) -> Tensor {
        rms_norm(x, &self.rounded(norm), &self.config)
    }

    /// The projection that [`Network::logits`] takes. Its numbers are those of the layers, but float32 at least: of a
    /// logit of 20, bfloat16 would round off as much as 6% of a probability.
    pub fn head(&self, head: &Tensor) -> Tensor {
        let rounded = self.rounded(head);
        if rounded.kind() == Kind::BFloat16 { rounded.to_kind(Kind::Float) } else { rounded }
    }

    /// Logits `[.., V]` of normed hidden states `[.., d]`, or of a critic values `[.., 1]`, by what [`Network::head`] made.
    pub fn logits(&self, head: &Tensor, hidden: &Tensor) -> Tensor {
        linear(&hidden.to_kind(head.kind()), head)
    }
}
