//! One transformer layer. There is one forward pass: training and decoding differ in where keys come from.

use tch::Tensor;

use crate::cache::Window;
use crate::config::Config;
use crate::rope::Rotation;

/// The parameters of one layer, under the names of the Hugging Face checkpoint.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) input_layernorm: Tensor,
    pub(crate) q_proj: Tensor,
    pub(crate) k_proj: Tensor,
    pub(crate) v_proj: Tensor,
    pub(crate) o_proj: Tensor,
    /// Root-mean-square norm of every query and key head (Qwen3).
    pub(crate) qk_norm: Option<(Tensor, Tensor)>,
    pub(crate) post_attention_layernorm: Tensor,
    pub(crate) gate_proj: Tensor,
    pub(crate) up_proj: Tensor,
    pub(crate) down_proj: Tensor,
}

impl Block {
    /// `[B, T, d]` to `[B, T, d]`. Without a window every row starts here, and attention is causal in the row.
    pub(crate) fn forward(
        &self,
        config: &Config,
        layer: usize,
        x: &Tensor,
        rotation: &Rotation,
        window: Option<&mut Window>,
    ) -> Tensor {
        let normed = rms_norm(x, &self.input_layernorm, config);
        let x = x + linear(&self.attention(config, layer, &normed, rotation, window), &self.o_proj);
        let normed = rms_norm(&x, &self.post_attention_layernorm, config);
        let gated = linear(&normed, &self.gate_proj).silu() * linear(&normed, &self.up_proj);
        x + linear(&gated, &self.down_proj)
    }

    /// The heads' outputs side by side, `[B, T, heads * head_dim]`.
    fn attention(
        &self,
        config: &Config,
        layer: usize,
        x: &Tensor,
        rotation: &Rotation,
        window: Option<&mut Window>,
    ) -> Tensor {
        let size = x.size();
        let heads = |weight| linear(x, weight).view([size[0], size[1], -1, config.head_dim as i64]);
        let (mut query, mut key, value) = (heads(&self.q_proj), heads(&self.k_proj), heads(&self.v_proj));
        if let Some((query_norm, key_norm)) = &self.qk_norm {
            query = rms_norm(&query, query_norm, config);
            key = rms_norm(&key, key_norm, config);
        }
        let (query, key) = (rotation.apply(&query), rotation.apply(&key));
        let Some(window) = window else {
            return causal(&query, &key, &value);
        };
        window.append(layer, &key, &value);
        match window.mask() {
            None => causal(&query, &key, &value),
            Some(mask) => {
                let (keys, values) = window.stored(layer);
                masked(&query, &keys, &values, mask)
            }
        }
    }
}

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension (Zhang and Sennrich 2019).
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, config: &Config) -> Tensor {
    x.rms_norm(weight.size(), Some(weight), config.rms_norm_eps)
}

/// `x W^T`.
pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Tensor {
    x.linear::<&Tensor>(weight, None)
}

/// Attention of every token to itself and the tokens before it in its row.
/// Query `[B, T, heads, head_dim]`, keys and values `[B, T, kv_heads, head_dim]`.
fn causal(query: &Tensor, key: &Tensor, value: &Tensor) -> Tensor {
    let [batch, tokens, heads, head_dim] = size4(query);
    let groups = heads / size4(key)[2];
    let repeated = |x: &Tensor| {
        let x = x.transpose(1, 2);
        if groups == 1 {
            return x;
        }
        x.unsqueeze(2).expand([-1, -1, groups, -1, -1], false).reshape([batch, heads, tokens, head_dim])
    };
    let query = query.transpose(1, 2);
    let out = Tensor::scaled_dot_product_attention::<&Tensor>(
        &query,
        &repeated(key),
        &repeated(value),
        None,
        0.0,
        true,
        None,
        false,
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
