//! The load-balancing loss of layers with experts (Fedus et al. 2021, eq. 4–6, with the sum over a token's k experts
//! that Qwen's models have).
//!
//! For one layer, over the `N` tokens of the whole step, with `c_e` the number of tokens that go to expert `e` and
//! `p_ne` the router's probability of it for token `n`:
//!
//! `B = E · Σ_e f_e P_e`, where `f_e = c_e / N` and `P_e = Σ_n p_ne / N`.
//!
//! It is `k` if all experts get the same. The mean of it over the layers with experts, times the coefficient, is added
//! to the loss. A count has no derivative, so `∂B / ∂p_ne = E · f_e / N`: the same slope for all tokens, once the
//! counts of the whole step are known. A first forward pass finds them, and the sum over ranks; then every
//! micro-batch is differentiated by itself, and no product of sums depends on how the step was cut.

use super::{Learner, Row};
use crate::error::TrainError;
use crate::shards::sums;
use molt_model::{Experts, Routed};
use tch::{Kind, Tensor};

/// What the loss asks of the router in one step.
#[derive(Debug)]
pub(super) struct Balance {
    /// `[layers with experts, E]`: the derivative of the loss by each token's probabilities.
    pub(super) slopes: Tensor,
    /// The mean of `B` over the layers.
    pub(super) mean: f64,
}

/// Of a number of tokens, `[layers with experts, E]` each: how many went to each expert, and the sum of the
/// probabilities of each.
#[derive(Debug)]
struct Load {
    counts: Tensor,
    probabilities: Tensor,
}

impl Load {
    fn new(experts: &Experts) -> Self {
        let zeros = || {
            let shape = [experts.layers.len() as i64, experts.count as i64];
            Tensor::zeros(shape, (Kind::Double, tch::Device::Cpu))
        };
        Self { counts: zeros(), probabilities: zeros() }
    }

    /// Takes in a layer, by its place among those with experts. `real`, `[1, n, 1]`, is 0 for what belongs to
    /// no sequence and 1 for all else.
    fn add(&self, place: i64, routed: &Routed, real: &Tensor) {
        let probabilities =
            (&routed.probabilities * real).sum_dim_intlist([0, 1].as_slice(), false, Kind::Double);
        let weights = real.expand_as(&routed.experts).reshape([-1]).to_kind(Kind::Double);
        let count = probabilities.size()[0];
        let counts = routed.experts.reshape([-1]).bincount(Some(&weights), count);
        let _ = self.probabilities.get(place).g_add_(&probabilities);
        let _ = self.counts.get(place).g_add_(&counts);
    }

    /// The balance of all that was taken in, where a token goes to so many experts.
    fn balance(&self, coefficient: f64, per_token: usize) -> Balance {
        let [layers, count] = self.counts.size()[..] else { unreachable!("layers and experts") };
        let pairs = self.counts.get(0).sum(Kind::Double).double_value(&[]);
        let tokens = (pairs / per_token as f64).max(1.0);
        let slopes = &self.counts * (count as f64 / tokens / tokens);
        let mean = (&slopes * &self.probabilities).sum(Kind::Double).double_value(&[]) / layers as f64;
        Balance { slopes: slopes * (coefficient / layers as f64), mean }
    }
}

impl Balance {
    /// The derivative by the probabilities `[1, n, E]` of a layer.
    pub(super) fn by(&self, probabilities: &Tensor, place: usize, real: &Tensor) -> Tensor {
        (real * self.slopes.get(place as i64)).to_kind(probabilities.kind())
    }
}

impl Learner {
    /// The balance of a step over `rows`; none if nothing asks for it. Every rank calls it.
    pub(super) fn balance(&self, rows: &[Row<'_>]) -> Result<Option<Balance>, TrainError> {
        let config = self.network.config();
        let Some(experts) = config.experts.as_ref().filter(|_| self.router_aux_coef > 0.0) else {
            return Ok(None);
        };
        let load = Load::new(experts);
        self.deal(rows, &mut |batch| {
            let (head, _) = self.layers(batch, &mut |layer, routed| {
                if let Some((place, batch)) = config.expert_layer(layer).zip(batch) {
                    load.add(place as i64, &routed, &batch.real);
                }
            })?;
            head.discard()
        })?;
        for part in [&load.counts, &load.probabilities] {
            let own = Vec::<f64>::try_from(part.flatten(0, -1)).expect("a vector of float64");
            let all = sums(self.shards.ranks(), &own)?;
            part.shallow_clone().copy_(&Tensor::from_slice(&all).view_as(part));
        }
        Ok(Some(load.balance(self.router_aux_coef, experts.per_token)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_model::Config;

    /// Values of `load_balancing_loss_func` of transformers 5.19 (Qwen3-MoE) for router logits
    /// `1.3 sin(1.7 i + 0.3)`, computed with and without its mask for the last two tokens.
    #[test]
    fn the_value_is_that_of_transformers() {
        for (tokens, count, per_token, all, without_two) in [
            (7_i64, 5, 2, 2.0106146335601807, 2.0094234943389893),
            (12, 6, 3, 3.0071747303009033, 3.0112431049346924),
        ] {
            let config = format!(
                r#"{{"model_type": "qwen3_moe", "vocab_size": 9, "hidden_size": {count}, "num_hidden_layers": 1,
                "intermediate_size": 8, "num_attention_heads": 1, "head_dim": 2, "num_experts": {count},
                "num_experts_per_tok": {per_token}, "moe_intermediate_size": 4}}"#
            );
            let config = Config::parse(&config).expect("a valid configuration");
            let experts = config.experts.as_ref().expect("experts");
            let line = Tensor::arange(tokens * count, (Kind::Double, tch::Device::Cpu));
            let probabilities = (((line * 1.7 + 0.3).sin() * 1.3).view([1, tokens, count])).softmax(-1, None);
            let (_, chosen) = probabilities.topk(per_token, -1, true, true);
            let routed = Routed { probabilities, experts: chosen };
            for (real, expected) in [(tokens, all), (tokens - 2, without_two)] {
                let load = Load::new(experts);
                let mask = Tensor::arange(tokens, (Kind::Int64, tch::Device::Cpu)).lt(real);
                load.add(0, &routed, &mask.to_kind(Kind::Float).view([1, tokens, 1]));
                let mean = load.balance(0.5, per_token as usize).mean;
                assert!((mean - expected).abs() < 1e-6, "{mean} for {expected}");
            }
        }
    }
}
