//! Keys and values of the tokens that were already computed, and the experts they went to.

use std::ops::Range;
use tch::{Device, Kind, Tensor};

use crate::decoder::Decoder;

/// Keys and values of every layer for a fixed number of rows (sequences). The room per row grows by doubling.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<Layer>,
    rows: usize,
    /// Tokens per row that there is room for.
    capacity: usize,
    heads: i64,
    head_dim: i64,
    /// Query heads per key head.
    groups: usize,
}

/// `[rows, capacity, heads, head_dim]` each: one token is contiguous, so that writing is one copy per token.
#[derive(Debug)]
struct Layer {
    keys: Tensor,
    values: Tensor,
    /// `[rows, capacity, k]` of `Int16`, in a layer with experts.
    experts: Option<Tensor>,
}

impl Layer {
    /// Everything that is stored per row and token.
    fn stored(&mut self) -> impl Iterator<Item = &mut Tensor> {
        [&mut self.keys, &mut self.values].into_iter().chain(&mut self.experts)
    }
}

/// The part of a cache that one forward pass appends to and reads.
pub(crate) struct Window<'a> {
    cache: &'a mut KvCache,
    rows: Range<usize>,
    /// `[R * T]`: where the new tokens go, counted in tokens from the cache's start.
    slots: Tensor,
    /// Tokens per row that a query may need.
    length: usize,
    /// `[R, 1, T * groups, length]`, 0 or minus infinity; none if nothing is cached yet and causality says it all.
    mask: Option<Tensor>,
}

impl KvCache {
    /// An empty cache of `rows` rows, in the numbers that the decoder computes in.
    pub fn new(decoder: &Decoder, rows: usize) -> Self {
        let config = decoder.config();
        let (heads, head_dim) = (config.num_key_value_heads as i64, config.head_dim as i64);
        let empty = || Tensor::zeros([rows as i64, 0, heads, head_dim], (decoder.kind(), Device::Cpu));
        let experts = |layer| {
            let experts = config.expert_layer(layer).and(config.experts.as_ref())?;
            Some(Tensor::zeros([rows as i64, 0, experts.per_token as i64], (Kind::Int16, Device::Cpu)))
        };
        let layer = |layer| Layer { keys: empty(), values: empty(), experts: experts(layer) };
        let layers = (0..config.num_hidden_layers).map(layer).collect();
        let groups = config.num_attention_heads / config.num_key_value_heads;
        Self { layers, rows, capacity: 0, heads, head_dim, groups }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Copies the first `tokens` tokens of row `from` over those of row `to`.
    ///
    /// # Panics
    /// If a row is not below [`KvCache::rows`], or `tokens` is more than a row has room for.
    pub fn copy_row(&mut self, from: usize, to: usize, tokens: usize) {
        assert!(from < self.rows && to < self.rows, "rows {from} and {to} of a cache of {}", self.rows);
        if from == to {
            return;
        }
        tch::no_grad(|| {
            for layer in &mut self.layers {
                for stored in layer.stored() {
                    let part = |row: usize| stored.select(0, row as i64).narrow(0, 0, tokens as i64);
                    part(to).copy_(&part(from));
                }
            }
        });
    }

    /// The experts of the first `tokens` tokens of a row, in the order `[tokens, layers with experts, k]`; each is
    /// of the forward pass that computed the keys and values beside it. Empty without such layers.
    ///
    /// # Panics
    /// If `row` is not below [`KvCache::rows`], or `tokens` is more than a row has room for.
    pub fn experts(&self, row: usize, tokens: usize) -> Vec<u16> {
        let of = |experts: &Tensor| experts.get(row as i64).narrow(0, 0, tokens as i64);
        let layers: Vec<Tensor> =
            self.layers.iter().filter_map(|layer| layer.experts.as_ref().map(of)).collect();
        if layers.is_empty() {
            return Vec::new();
        }
        let flat = Tensor::stack(&layers, 1).flatten(0, -1);
        let ids = Vec::<i16>::try_from(flat).expect("a vector of Int16");
        ids.into_iter().map(|id| id as u16).collect()
    }

    /// The window in which each row of `rows` gains `tokens` tokens after its first `starts[r]`.
    pub(crate) fn window(&mut self, rows: Range<usize>, starts: &[usize], tokens: usize) -> Window<'_> {
        assert!(
            rows.end <= self.rows && rows.len() == starts.len(),
            "{} starts for rows {rows:?} of a cache of {}",
            starts.len(),
            self.rows
        );
        let length = starts.iter().max().map_or(0, |longest| longest + tokens);
        self.reserve(length);
        let slots: Vec<i64> = rows
            .clone()
            .zip(starts)
            .flat_map(|(row, start)| (0..tokens).map(move |t| (row, start + t)))
            .map(|(row, at)| (row * self.capacity + at) as i64)
            .collect();
        let mask = starts.iter().any(|start| *start > 0).then(|| mask(starts, tokens, length, self.groups));
        Window { slots: Tensor::from_slice(&slots), cache: self, rows, length, mask }
    }

    /// Makes room for `length` tokens per row. New room is zero: a masked key must still be a number.
    fn reserve(&mut self, length: usize) {
        if length <= self.capacity {
            return;
        }
        const SMALLEST: usize = 64;
        let capacity = length.next_power_of_two().max(SMALLEST);
        for layer in &mut self.layers {
            for stored in layer.stored() {
                let mut shape = stored.size();
                shape[1] = capacity as i64;
                let grown = Tensor::zeros(shape, (stored.kind(), Device::Cpu));
                grown.narrow(1, 0, self.capacity as i64).copy_(stored);
                *stored = grown;
            }
        }
        self.capacity = capacity;
    }
}

impl Window<'_> {
    /// None if no row has earlier tokens: then attention is causal among the new ones alone.
    pub(crate) fn mask(&self) -> Option<&Tensor> {
        self.mask.as_ref()
    }

    /// Stores `[R, T, heads, head_dim]` keys and values.
    pub(crate) fn append(&mut self, layer: usize, keys: &Tensor, values: &Tensor) {
        let shape = [-1, self.cache.heads, self.cache.head_dim];
        let layer = &mut self.cache.layers[layer];
        for (stored, new) in [(&layer.keys, keys), (&layer.values, values)] {
            let _ = stored.view(shape).index_copy_(0, &self.slots, &new.reshape(shape));
        }
    }

    /// Stores the `[R, T, k]` experts of a layer that has some.
    pub(crate) fn record(&mut self, layer: usize, experts: &Tensor) {
        if let Some(stored) = &self.cache.layers[layer].experts {
            let shape = [-1, stored.size()[2]];
            let new = experts.reshape(shape).to_kind(Kind::Int16);
            let _ = stored.view(shape).index_copy_(0, &self.slots, &new);
        }
    }

    /// Views `[R, length, heads, head_dim]` of the keys and values stored so far.
    pub(crate) fn stored(&self, layer: usize) -> (Tensor, Tensor) {
        let layer = &self.cache.layers[layer];
        let view = |stored: &Tensor| {
            stored.narrow(0, self.rows.start as i64, self.rows.len() as i64).narrow(1, 0, self.length as i64)
        };
        (view(&layer.keys), view(&layer.values))
    }
}

/// Query `t` of row `r` sees the positions up to `starts[r] + t`; each query stands `groups` times.
fn mask(starts: &[usize], tokens: usize, length: usize, groups: usize) -> Tensor {
    let last: Vec<i64> = starts
        .iter()
        .flat_map(|start| (0..tokens * groups).map(move |query| (start + query / groups) as i64))
        .collect();
    let last = Tensor::from_slice(&last).view([starts.len() as i64, 1, -1, 1]);
    let hidden = Tensor::arange(length as i64, (Kind::Int64, Device::Cpu)).gt_tensor(&last);
    Tensor::zeros(hidden.size(), (Kind::Float, Device::Cpu)).masked_fill_(&hidden, f64::NEG_INFINITY)
}
