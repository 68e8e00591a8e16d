//! Keys and values of the tokens that were already computed.

use std::ops::Range;
use tch::{Device, Kind, Tensor};

use crate::config::Config;

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
    /// An empty cache of `rows` rows.
    pub fn new(config: &Config, rows: usize) -> Self {
        let (heads, head_dim) = (config.num_key_value_heads as i64, config.head_dim as i64);
        let empty = || Tensor::zeros([rows as i64, 0, heads, head_dim], (Kind::Float, Device::Cpu));
        let layers =
            (0..config.num_hidden_layers).map(|_| Layer { keys: empty(), values: empty() }).collect();
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
                for stored in [&mut layer.keys, &mut layer.values] {
                    let part = |row: usize| stored.select(0, row as i64).narrow(0, 0, tokens as i64);
                    part(to).copy_(&part(from));
                }
            }
        });
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
        let shape = [self.rows as i64, capacity as i64, self.heads, self.head_dim];
        for layer in &mut self.layers {
            for stored in [&mut layer.keys, &mut layer.values] {
                let grown = Tensor::zeros(shape, (Kind::Float, Device::Cpu));
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
