//! One transformer layer. There is one forward pass: training and decoding differ in where keys come from.

use molt_torch::{Span, TorchError, packed_attention};
use tch::Tensor;

use crate::cache::Window;
use crate::config::Config;
use crate::experts::Routed;
use crate::parallel::Parallel;
use crate::rope::Rotation;

const ATTENTION: [&str; 6] = [
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
];
const DENSE: &[&str] = &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
const EXPERTS: &[&str] =
    &["mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj", "mlp.gate"];

/// The parameters of one layer, under the names of the Hugging Face checkpoint; those of experts are stacked.
#[derive(Debug)]
pub(crate) struct Block {
    input_layernorm: Tensor,
    q_proj: Tensor,
    k_proj: Tensor,
    v_proj: Tensor,
    o_proj: Tensor,
    /// Root-mean-square norm of every query and key head (Qwen3).
    qk_norm: Option<(Tensor, Tensor)>,
    post_attention_layernorm: Tensor,
    /// `[ffn, d]`, or `[E, ffn, d]` with experts; `down_proj` is the other way round.
    gate_proj: Tensor,
    up_proj: Tensor,
    down_proj: Tensor,
    /// `[E, d]`, of a layer with experts.
    router: Option<Tensor>,
}

impl Block {
    /// The names of a layer's parameters, between `model.layers.N.` and `.weight`.
    pub(crate) fn names(config: &Config, layer: usize) -> impl Iterator<Item = &'static str> {
        let mlp = if config.expert_layer(layer).is_some() { EXPERTS } else { DENSE };
        let qk_norm: &[&str] = if config.qk_norm { &["self_attn.q_norm", "self_attn.k_norm"] } else { &[] };
        ATTENTION.iter().chain(mlp).chain(qk_norm).copied()
    }

    /// The layer whose parameters these are, as [`Block::names`] orders them.
    pub(crate) fn new(config: &Config, layer: usize, parameters: &[Tensor]) -> Self {
        let [input_layernorm, q_proj, k_proj, v_proj, o_proj, post, gate_proj, up_proj, down_proj, rest @ ..] =
            parameters
        else {
            panic!("{} parameters for a layer", parameters.len())
        };
        let (router, qk_norm) = match (config.expert_layer(layer), rest) {
            (Some(_), [router, rest @ ..]) => (Some(router.shallow_clone()), rest),
            _ => (None, rest),
        };
        let qk_norm = match (config.qk_norm, qk_norm) {
            (true, [query, key]) => Some((query.shallow_clone(), key.shallow_clone())),
            (false, []) => None,
            _ => panic!("{} parameters for a layer", parameters.len()),
        };
        Self {
            input_layernorm: input_layernorm.shallow_clone(),
            q_proj: q_proj.shallow_clone(),
            k_proj: k_proj.shallow_clone(),
            v_proj: v_proj.shallow_clone(),
            o_proj: o_proj.shallow_clone(),
            qk_norm,
            post_attention_layernorm: post.shallow_clone(),
            gate_proj: gate_proj.shallow_clone(),
            up_proj: up_proj.shallow_clone(),
            down_proj: down_proj.shallow_clone(),
            router,
        }
    }

    /// `[B, T, d]` to `[B, T, d]`. Of a layer with experts `recorded` may say which are taken, and its routing comes
    /// back.
    pub(crate) fn forward(
        &self,
        (config, parallel): (&Config, &Parallel),
        x: &Tensor,
        rotation: &Rotation,
        keys: Keys<'_, '_>,
        recorded: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Routed>), TorchError> {
        let normed = parallel.spread(rms_norm(x, &self.input_layernorm, config))?;
        let attended = self.attention((config, parallel), &normed, rotation, keys)?;
        let x = x + parallel.summed(linear(&attended, &self.o_proj))?;
        let normed = rms_norm(&x, &self.post_attention_layernorm, config);
        let [gate, up, down] = [&self.gate_proj, &self.up_proj, &self.down_proj];
        let Some((experts, router)) = config.experts.as_ref().zip(self.router.as_ref()) else {
            let output = gated(&parallel.spread(normed)?, gate, up, down);
            return Ok((x + parallel.summed(output)?, None));
        };
        let routed = experts.route(&normed, router, recorded);
        let mixed = experts.mix(&normed, &routed, [gate, up, down], parallel.expert.as_ref())?;
        Ok((x + mixed, Some(routed)))
    }

    /// The heads' outputs side by side, `[B, T, heads * head_dim]`.
    fn attention(
        &self,
        (config, parallel): (&Config, &Parallel),
        x: &Tensor,
        rotation: &Rotation,
        keys: Keys<'_, '_>,
    ) -> Result<Tensor, TorchError> {
        let size = x.size();
        let heads = |weight| linear(x, weight).view([size[0], size[1], -1, config.head_dim as i64]);
        let (mut query, mut key, value) = (heads(&self.q_proj), heads(&self.k_proj), heads(&self.v_proj));
        if let Some((query_norm, key_norm)) = &self.qk_norm {
            query = rms_norm(&query, query_norm, config);
            key = rms_norm(&key, key_norm, config);
        }
        let (query, key) = (rotation.apply(&query), rotation.apply(&key));
        let (layer, window) = match keys {
            Keys::Rows => return Ok(causal(&query, &key, &value)),
            Keys::Packed(spans) => {
                let (key, value) = parallel.seen(key, value)?;
                return Ok(packed_attention(&query, &key, &value, spans)?.flatten(2, 3));
            }
            Keys::Cached(layer, window) => (layer, window),
        };
        window.append(layer, &key, &value);
        Ok(match window.mask() {
            None => causal(&query, &key, &value),
            Some(mask) => {
                let (keys, values) = window.stored(layer);
                masked(&query, &keys, &values, mask)
            }
        })
    }
}

/// What the tokens of a forward pass attend to, besides what is with them.
pub(crate) enum Keys<'a, 'c> {
    /// Every row starts here.
    Rows,
    /// One row of tokens, of which these are sequences.
    Packed(&'a [Span]),
    /// The number of this layer, and what rows continue.
    Cached(usize, &'a mut Window<'c>),
}

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension (Zhang and Sennrich 2019).
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, config: &Config) -> Tensor {
    x.rms_norm(weight.size(), Some(weight), config.rms_norm_eps)
}

/// `(silu(x G^T) * x U^T) D^T` (Shazeer 2020, SwiGLU).
pub(crate) fn gated(x: &Tensor, gate: &Tensor, up: &Tensor, down: &Tensor) -> Tensor {
    linear(&(linear(x, gate).silu() * linear(x, up)), down)
}

/// `x W^T`.
pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Tensor {
    x.linear::<&Tensor>(weight, None)
}

/// Attention of every token to itself and the tokens before it in its row.
/// Query `[B, T, heads, head_dim]`, keys and values `[B, T, kv_heads, head_dim]`.
fn causal(query: &Tensor, key: &Tensor, value: &Tensor) -> Tensor {
    let [batch, tokens, heads, head_dim] = size4(query);
    let is_grouped = heads != size4(key)[2];
    let out = Tensor::scaled_dot_product_attention::<&Tensor>(
        &query.transpose(1, 2),
        &key.transpose(1, 2),
        &value.transpose(1, 2),
        None,
        0.0,
        true,
        None,
        is_grouped,
    );
    out.transpose(1, 2).reshape([batch, tokens, heads * head_dim])
}

/// Attention to cached tokens, `[R, L, kv_heads, head_dim]`, where `mask` `[R, 1, T * groups, L]` is 0.
/// The query heads that share a key head become further queries of that head, so no key is copied.
fn masked(query: &Tensor, keys: &Tensor, values: &Tensor, mask: &Tensor) -> Tensor {
    let [rows, tokens, heads, head_dim] = size4(query);
    let kv_heads = size4(keys)[2];
    let groups = heads / kv_heads;
    let grouped = query.view([rows, tokens, kv_heads, groups, head_dim]).transpose(1, 2).reshape([
        rows,
        kv_heads,
        tokens * groups,
        head_dim,
    ]);
    let out = Tensor::scaled_dot_product_attention(
        &grouped,
        &keys.transpose(1, 2),
        &values.transpose(1, 2),
        Some(mask),
        0.0,
        false,
        None,
        false,
    );
    out.view([rows, kv_heads, tokens, groups, head_dim]).transpose(1, 2).reshape([
        rows,
        tokens,
        heads * head_dim,
    ])
}

fn size4(x: &Tensor) -> [i64; 4] {
    let (a, b, c, d) = x.size4().expect("heads are laid out as four dimensions");
    [a, b, c, d]
}
