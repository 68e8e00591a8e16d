//! Layers of experts: a router sends every token to a few of many small networks (Qwen3-MoE).

use molt_core::trajectory::Routing;
use molt_torch::{Group, TorchError};
use serde_json::Value;
use tch::{Kind, Tensor};

use crate::block::{gated, linear};
use crate::config::Keys;

/// More experts than this have no place in a record of 16 bits.
const MOST: usize = i16::MAX as usize;

/// The layers of experts of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// Experts of each layer.
    pub count: usize,
    /// Experts that a token goes to.
    pub per_token: usize,
    /// Width of one expert.
    pub intermediate_size: usize,
    /// The weights of a token's experts are divided by their sum.
    pub normalised: bool,
    /// The layers that have experts, ascending; at least one. The others are dense.
    pub layers: Vec<usize>,
}

/// How the tokens of a layer were routed.
#[derive(Debug)]
pub struct Routed {
    /// `[B, T, E]`: softmax of the router over all experts, in float32 at least.
    pub probabilities: Tensor,
    /// `[B, T, k]`, `Int64`: the experts of each token.
    pub experts: Tensor,
}

impl Experts {
    /// What a `qwen3_moe` file says, with the defaults of transformers; none if every layer is dense.
    pub(crate) fn parse(keys: &Keys<'_>, layers: usize) -> Result<Option<Self>, String> {
        let dense = mlp_only(keys, layers)?;
        let step = keys.size("decoder_sparse_step", Some(1))?;
        let experts = Self {
            count: count(keys)?,
            per_token: keys.size("num_experts_per_tok", Some(8))?,
            intermediate_size: keys.size("moe_intermediate_size", Some(768))?,
            normalised: keys.flag("norm_topk_prob")?,
            layers: (0..layers)
                .filter(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(layer))
                .collect(),
        };
        if experts.per_token > experts.count {
            return Err(format!(
                "num_experts_per_tok {} is more than num_experts {}",
                experts.per_token, experts.count
            ));
        }
        if experts.count > MOST {
            return Err(format!("num_experts {} is more than {MOST}, which are supported", experts.count));
        }
        Ok((!experts.layers.is_empty()).then_some(experts))
    }

    /// Numbers that say where one token goes in all layers.
    pub fn width(&self) -> usize {
        self.layers.len() * self.per_token
    }

    /// Whether all that is recorded are experts of this model.
    pub fn holds(&self, routing: &Routing) -> bool {
        let fits = |experts: &[u16]| {
            experts.len() == self.width() && experts.iter().all(|expert| usize::from(*expert) < self.count)
        };
        routing.records().all(fits)
    }

    /// The records of sequences, as many of the first positions of each, one after the other: `[1, n, width]` of
    /// `Int64`, −1 where there is none; none without any.
    pub fn recorded(&self, sequences: &[(Option<&Routing>, usize)]) -> Option<Tensor> {
        sequences.iter().any(|(routing, _)| routing.is_some()).then(|| {
            let width = self.width();
            let tokens: usize = sequences.iter().map(|(_, positions)| positions).sum();
            let mut ids = vec![-1_i64; tokens * width];
            let places = sequences.iter().flat_map(|&(routing, positions)| {
                (0..positions).map(move |position| routing.and_then(|routing| routing.experts(position)))
            });
            for (place, known) in ids.chunks_mut(width).zip(places) {
                place.iter_mut().zip(known.unwrap_or_default()).for_each(|(id, e)| *id = i64::from(*e));
            }
            Tensor::from_slice(&ids).view([1, tokens as i64, width as i64])
        })
    }

    /// The part of [`Experts::recorded`] that is of this layer, `[B, positions, k]`; none if it is dense.
    pub fn of_layer(&self, recorded: &Tensor, layer: usize) -> Option<Tensor> {
        let place = self.layers.binary_search(&layer).ok()?;
        Some(recorded.narrow(2, (place * self.per_token) as i64, self.per_token as i64))
    }

    /// The experts of tokens with these router weights `[E, d]`. Those of `recorded`, `[B, T, k]` of `Int64`, are
    /// taken where it has any, −1 standing for none; a token has all of them or none.
    pub(crate) fn route(&self, x: &Tensor, router: &Tensor, recorded: Option<&Tensor>) -> Routed {
        // A selection turns on small differences: half precision would flip it.
        let kind = if x.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let probabilities = linear(&x.to_kind(kind), &router.to_kind(kind)).softmax(-1, None);
        let (_, chosen) = probabilities.detach().topk(self.per_token as i64, -1, true, true);
        let experts = match recorded {
            Some(recorded) => recorded.where_self(&recorded.ge(0), &chosen),
            None => chosen,
        };
        Routed { probabilities, experts }
    }

    /// The sum over a token's experts of their output times their weight, `[B, T, d]`. Their probabilities are
    /// the weights, so the router has a gradient wherever its choice came from.
    /// `projections` are gate and up `[E, ffn, d]`, and down `[E, d, ffn]`; with `ranks`, of which each has an equal
    /// part of the experts, those of this rank's.
    pub(crate) fn mix(
        &self,
        x: &Tensor,
        routed: &Routed,
        projections: [&Tensor; 3],
        ranks: Option<&Group>,
    ) -> Result<Tensor, TorchError> {
        let weights = routed.probabilities.gather(-1, &routed.experts, false);
        let weights =
            if self.normalised { &weights / weights.sum_dim_intlist(-1, true, None) } else { weights };
        // Pairs of token and expert, those of one expert side by side.
        let pairs = routed.experts.reshape([-1]);
        let order = pairs.argsort_stable(true, 0, false);
        let tokens = order.divide_scalar_mode(self.per_token as i64, "floor");
        let counts = Vec::<i64>::try_from(pairs.bincount::<&Tensor>(None, self.count as i64))
            .expect("a vector of Int64");
        let flat = x.flatten(0, -2);
        let inputs = flat.index_select(0, &tokens);
        let outputs = match ranks {
            None => computed(&inputs, &counts, projections),
            Some(ranks) => dispatched(&inputs, &counts, projections, ranks)?,
        };
        let weights = weights.reshape([-1, 1]).index_select(0, &order).to_kind(x.kind());
        Ok(flat.zeros_like().index_add(0, &tokens, &(outputs * weights)).view_as(x))
    }
}

/// What experts make of their rows: `inputs` `[n, d]` are those of the first, then those of the next, and so on.
fn computed(inputs: &Tensor, counts: &[i64], projections: [&Tensor; 3]) -> Tensor {
    let parts = inputs.split_with_sizes(counts, 0);
    // One node of autograd for all experts: the gradient of a stack is made once.
    let [gate, up, down] = projections.map(|stack| stack.unbind(0));
    // Without any rows the first still is part of the graph, which every rank must have.
    let is_used = |expert: usize| counts[expert] > 0 || (expert == 0 && inputs.size()[0] == 0);
    let outputs: Vec<Tensor> = (0..counts.len())
        .filter(|&expert| is_used(expert))
        .map(|expert| gated(&parts[expert], &gate[expert], &up[expert], &down[expert]))
        .collect();
    Tensor::cat(&outputs, 0)
}

/// As [`computed`], by the ranks that have the experts: rows go there, and what they become comes back.
fn dispatched(
    inputs: &Tensor,
    counts: &[i64],
    projections: [&Tensor; 3],
    ranks: &Group,
) -> Result<Tensor, TorchError> {
    let own = counts.len() / ranks.size();
    let each = vec![own as i64; ranks.size()];
    // For every rank, how many rows it sends to each expert of this one.
    let theirs = ranks.all_to_all(&Tensor::from_slice(counts), &each, &each)?.wait()?;
    let theirs = Vec::<i64>::try_from(theirs).expect("a vector of Int64");
    let of_ranks = |counts: &[i64]| counts.chunks(own).map(|part| part.iter().sum()).collect::<Vec<i64>>();
    let (give, take) = (of_ranks(counts), of_ranks(&theirs));
    let received = ranks.exchanged(inputs, &give, &take)?;
    // They come rank by rank, and are needed expert by expert.
    let experts = theirs.iter().zip((0..own as i64).cycle());
    let experts: Vec<i64> =
        experts.flat_map(|(&count, expert)| std::iter::repeat_n(expert, count as usize)).collect();
    let order = Tensor::from_slice(&experts).argsort_stable(true, 0, false);
    let counts: Vec<i64> = (0..own).map(|expert| theirs[expert..].iter().step_by(own).sum()).collect();
    let outputs = computed(&received.index_select(0, &order), &counts, projections);
    ranks.exchanged(&outputs.index_select(0, &order.argsort(0, false)), &take, &give)
}

/// Published files have `num_experts`, those that transformers 5 saves `num_local_experts`.
fn count(keys: &Keys<'_>) -> Result<usize, String> {
    let (older, newer) = ("num_experts", "num_local_experts");
    let count = keys.size(newer, Some(keys.size(older, Some(128))?))?;
    let given = keys.size(older, Some(count))?;
    if given != count {
        return Err(format!("{older} is {given} and {newer} is {count}; they are the same thing"));
    }
    Ok(count)
}

/// The layers that `mlp_only_layers` names.
fn mlp_only(keys: &Keys<'_>, layers: usize) -> Result<Vec<usize>, String> {
    let wanted = format!("a list of layers, each below num_hidden_layers {layers},");
    let layer = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n < layers);
    let listed = keys.read("mlp_only_layers", &wanted, |value| {
        value.as_array().and_then(|all| all.iter().map(layer).collect::<Option<Vec<_>>>())
    })?;
    Ok(listed.unwrap_or_default())
}

/// The names and the shape under which a parameter is stored: each expert of a stack has a tensor of its own.
pub(crate) fn stored<'a>(name: &str, shape: &'a [i64]) -> (Vec<String>, &'a [i64]) {
    match (name.split_once(".mlp.experts."), shape) {
        (Some((layer, projection)), [count, of_one @ ..]) => {
            let one = |expert| format!("{layer}.mlp.experts.{expert}.{projection}");
            ((0..*count).map(one).collect(), of_one)
        }
        _ => (vec![name.to_owned()], shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(extra: &str) -> Result<Config, String> {
        Config::parse(&format!(
            r#"{{"model_type": "qwen3_moe", "vocab_size": 50, "hidden_size": 24, "intermediate_size": 20,
            "num_hidden_layers": 6, "num_attention_heads": 4 {extra}}}"#
        ))
    }

    #[test]
    fn absent_keys_have_the_defaults_of_transformers() {
        let config = parse("").expect("complete");
        let layers = (0..6).collect();
        let expected =
            Experts { count: 128, per_token: 8, intermediate_size: 768, normalised: false, layers };
        assert_eq!(config.experts, Some(expected));
        assert_eq!((config.head_dim, config.qk_norm), (6, true));
    }

    #[test]
    fn layers_are_dense_where_the_file_says() {
        let layers = |extra: &str| parse(extra).expect(extra).experts.map(|experts| experts.layers);
        assert_eq!(layers(r#", "decoder_sparse_step": 2"#), Some(vec![1, 3, 5]));
        assert_eq!(layers(r#", "decoder_sparse_step": 2, "mlp_only_layers": [3, 0]"#), Some(vec![1, 5]));
        assert_eq!(layers(r#", "decoder_sparse_step": 7"#), None);
        let config = parse(r#", "mlp_only_layers": [1, 2]"#).expect("supported");
        let places: Vec<_> = (0..6).map(|layer| config.expert_layer(layer)).collect();
        assert_eq!(places, [Some(0), None, None, Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn either_name_of_the_number_of_experts_is_read() {
        for extra in [r#", "num_experts": 16"#, r#", "num_local_experts": 16, "num_experts": 16"#] {
            assert_eq!(parse(extra).expect(extra).experts.map(|experts| experts.count), Some(16), "{extra}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (extra, named) in [
            (r#", "num_experts": 4"#, "num_experts_per_tok 8 is more than num_experts 4"),
            (r#", "num_experts": 40000"#, "32767"),
            (r#", "num_experts": 8, "num_local_experts": 16"#, "num_local_experts is 16"),
            (r#", "num_experts": 0"#, "num_experts is 0"),
            (r#", "num_experts_per_tok": 0"#, "num_experts_per_tok"),
            (r#", "moe_intermediate_size": -1"#, "moe_intermediate_size"),
            (r#", "norm_topk_prob": 1"#, "norm_topk_prob"),
            (r#", "decoder_sparse_step": 0"#, "decoder_sparse_step"),
            (r#", "mlp_only_layers": 2"#, "mlp_only_layers is 2; a list of layers"),
            (r#", "mlp_only_layers": [6]"#, "below num_hidden_layers 6"),
            (r#", "mlp_only_layers": ["1"]"#, "mlp_only_layers"),
        ] {
            let message = parse(extra).expect_err(extra);
            assert!(message.contains(named), "{message}");
        }
    }

    #[test]
    fn a_stack_is_stored_expert_by_expert() {
        let (names, shape) = stored("model.layers.2.mlp.experts.up_proj.weight", &[2, 5, 7]);
        let expected =
            ["model.layers.2.mlp.experts.0.up_proj.weight", "model.layers.2.mlp.experts.1.up_proj.weight"];
        assert_eq!((names.as_slice(), shape), (expected.map(str::to_owned).as_slice(), &[5, 7][..]));
        let (names, shape) = stored("model.layers.2.mlp.gate.weight", &[2, 5]);
        assert_eq!(
            (names.as_slice(), shape),
            (&["model.layers.2.mlp.gate.weight".to_owned()][..], &[2, 5][..])
        );
    }

    const SHAPE: &str = r#", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 3"#;

    fn experts(normalised: bool) -> Experts {
        let extra = format!(r#"{SHAPE}, "norm_topk_prob": {normalised}"#);
        parse(&extra).expect("supported").experts.expect("layers with experts")
    }

    /// Numbers that differ from each other, the same in every run.
    fn numbers(shape: &[i64], salt: f64) -> Tensor {
        let count = shape.iter().product::<i64>();
        let line = Tensor::arange(count, (Kind::Double, tch::Device::Cpu));
        ((line * 1.7 + salt).sin() * 1.3).view(shape)
    }

    /// Router, and gate, up and down projections.
    fn weights() -> (Tensor, [Tensor; 3]) {
        let stacks = [numbers(&[5, 3, 24], 2.0), numbers(&[5, 3, 24], 3.0), numbers(&[5, 24, 3], 4.0)];
        (numbers(&[5, 24], 1.0), stacks)
    }

    /// The definition, a token at a time.
    fn by_definition(normalised: bool, x: &Tensor, recorded: &[[i64; 2]]) -> Tensor {
        let (router, stacks) = weights();
        let rows = (0..x.size()[1]).map(|t| {
            let x = x.get(0).get(t);
            let probabilities = Vec::<f64>::try_from(router.mv(&x).softmax(-1, None)).expect("float64");
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
            let recorded = recorded.get(t as usize).filter(|of| of[0] >= 0);
            let chosen = recorded.map_or([order[0], order[1]], |of| of.map(|expert| expert as usize));
            let sum: f64 = if normalised { chosen.iter().map(|e| probabilities[*e]).sum() } else { 1.0 };
            chosen.iter().fold(x.zeros_like(), |out, &expert| {
                let [gate, up, down] = [0, 1, 2].map(|nth| stacks[nth].get(expert as i64));
                out + down.mv(&(gate.mv(&x).silu() * up.mv(&x))) * (probabilities[expert] / sum)
            })
        });
        Tensor::stack(&rows.collect::<Vec<_>>(), 0).unsqueeze(0)
    }

    #[test]
    fn a_layer_is_what_its_definition_says_with_and_without_a_record() {
        let x = numbers(&[1, 7, 24], 0.3);
        let (router, [gate, up, down]) = weights();
        // In the second case most tokens have a record, among them experts that the router would not choose.
        let some = vec![[4, 0], [-1, -1], [0, 1], [2, 3], [3, 2], [-1, -1], [1, 4]];
        for (normalised, recorded) in [(false, vec![]), (true, vec![]), (false, some.clone()), (true, some)] {
            let experts = experts(normalised);
            let flat: Vec<i64> = recorded.iter().flatten().copied().collect();
            let given = (!flat.is_empty()).then(|| Tensor::from_slice(&flat).view([1, 7, 2]));
            let routed = experts.route(&x, &router, given.as_ref());
            let found = experts.mix(&x, &routed, [&gate, &up, &down], None).expect("no ranks");
            let expected = by_definition(normalised, &x, &recorded);
            let difference = (found - expected).abs().max().double_value(&[]);
            assert!(difference < 1e-13, "{normalised} {recorded:?}: {difference:e}");
        }
    }

    #[test]
    fn a_recorded_choice_gives_the_router_a_gradient_and_unused_experts_none() {
        let x = numbers(&[1, 4, 24], 0.3);
        let (router, stacks) = weights();
        let recorded = Tensor::from_slice(&[3_i64, 0].repeat(4)).view([1, 4, 2]);
        for normalised in [false, true] {
            let experts = experts(normalised);
            let leaf = |t: &Tensor| t.detach().set_requires_grad(true);
            let router = leaf(&(&router * 0.1));
            let [gate, up, down] = [0, 1, 2].map(|nth| leaf(&stacks[nth]));
            let routed = experts.route(&x, &router, Some(&recorded));
            let mixed = experts.mix(&x, &routed, [&gate, &up, &down], None).expect("no ranks");
            mixed.square().sum(Kind::Double).backward();
            // Renormalised, the weights of a token's experts depend on those experts' logits alone.
            let moved = router.grad().abs().amax([1], false).gt(1e-6);
            let moved = Vec::<bool>::try_from(moved).expect("booleans");
            let expected = if normalised { [true, false, false, true, false] } else { [true; 5] };
            assert_eq!(moved, expected);
            for stack in [gate, up, down] {
                let used = Vec::<bool>::try_from(stack.grad().abs().amax([1, 2], false).gt(0.0));
                assert_eq!(used.expect("booleans"), [true, false, false, true, false]);
            }
        }
    }

    #[test]
    fn the_router_computes_in_float32() {
        let half = |t: Tensor| t.to_kind(Kind::BFloat16);
        let (x, router) = (half(numbers(&[1, 7, 24], 0.3)), half(weights().0));
        let (routed, wide) =
            (experts(false).route(&x, &router, None), [&x, &router].map(|t| t.to_kind(Kind::Float)));
        let expected = experts(false).route(&wide[0], &wide[1], None);
        assert_eq!(routed.probabilities.kind(), Kind::Float);
        assert!(
            routed.probabilities.equal(&expected.probabilities) && routed.experts.equal(&expected.experts)
        );
        let [gate, up, down] = weights().1.map(half);
        let mixed = experts(false).mix(&x, &routed, [&gate, &up, &down], None).expect("no ranks");
        assert_eq!(mixed.kind(), Kind::BFloat16);
    }
}
