//! An adapter is trained in place of the weights.

use super::ranks::{part, ranks};
use super::tests::{
    LOSS, alone, decoder, definition, layout, optim, relative_difference, rows, segment, trained,
};
use super::*;
use crate::optim::Parameter;
use molt_model::Weights;
use std::collections::BTreeMap;
use tch::Kind;

/// Rank 2 and alpha 6.
const SCALE: f64 = 3.0;
const TARGETS: [&str; 3] = ["q_proj", "k_proj", "down_proj"];

/// A model whose adapter does something.
pub(super) fn adapted() -> Weights {
    let weights = Weights::from(decoder("0.3"));
    effective(weights.with_adapter(2, 6.0, &TARGETS.map(str::to_owned), 5).expect("an adapter"))
}

/// Makes an adapter, which begins at nothing, do something.
pub(super) fn effective(weights: Weights) -> Weights {
    for (name, shape) in weights.shapes().iter().filter(|(name, _)| name.ends_with("lora_B.weight")) {
        let mut b = weights.rows(name, 0..shape[0]).expect("in memory");
        let values = Tensor::arange(shape.iter().product::<i64>(), (b.kind(), b.device())).sin() * 0.1;
        b.copy_(&values.view(shape.as_slice()));
    }
    weights
}

/// All parameters by name.
fn parameters(weights: &Weights) -> BTreeMap<String, Tensor> {
    let of = |(name, shape): (&String, &Vec<i64>)| {
        (name.clone(), weights.rows(name, 0..shape[0]).expect("in memory").copy())
    };
    weights.shapes().iter().map(of).collect()
}

fn named(tensors: Vec<(String, Tensor)>) -> BTreeMap<String, Tensor> {
    tensors.into_iter().collect()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.flatten(0, -1).to_kind(Kind::Double)).expect("float64")
}

/// `W + 3·B·A` for the weights that have an adapter: the definition, from the parameters that are trained.
fn merged(
    weights: &BTreeMap<String, Tensor>,
    adapter: &BTreeMap<String, Tensor>,
) -> BTreeMap<String, Tensor> {
    let of = |(name, weight): (&String, &Tensor)| {
        let own = |matrix: &str| adapter.get(&name.replace(".weight", &format!(".{matrix}.weight")));
        let sum = own("lora_A").zip(own("lora_B")).map(|(a, b)| weight + b.matmul(a) * SCALE);
        (name.clone(), sum.unwrap_or_else(|| weight.shallow_clone()))
    };
    weights.iter().map(of).collect()
}

/// With `G` the gradient by `W + s·B·A` that autograd finds in the whole model, that by A is `s·Bᵀ·G`, and that by
/// B is `s·G·Aᵀ`.
#[test]
fn gradients_are_those_of_the_formula() {
    let segments = [segment(1, [3, 4, 2, 3]), segment(2, [5, 1, 0, 0]), segment(3, [1, 7, 4, 6])];
    let parameters = parameters(&adapted());
    let mut plain = decoder("0.3");
    let weights = named(plain.parameters());
    let whole: Vec<_> = merged(&weights, &parameters).into_iter().collect();
    plain.load_parameters(&whole).expect("the same weights");
    let loss = definition(&mut plain, &rows(&segments));
    let expected = named(plain.parameters());
    for keep_layers in 0..3 {
        let ours = alone(adapted(), Layout { keep_layers, ..layout(24) });
        let sums = ours.policy_gradient(&rows(&segments), &LOSS).expect("a gradient");
        assert!((sums.loss - loss).abs() < 1e-6, "{} is not {loss}", sums.loss);
        let trained = trained(&ours);
        assert_eq!(trained.len(), 2 * 2 * TARGETS.len());
        for (Parameter { name, .. }, gradient) in trained {
            let other = |from: &str, to: &str| &parameters[&name.replace(from, to)];
            let of_weight = expected[&name.replace(".lora_A", "").replace(".lora_B", "")].grad();
            let expected = if name.contains("lora_A") {
                other("lora_A", "lora_B").transpose(0, 1).matmul(&of_weight) * SCALE
            } else {
                of_weight.matmul(&other("lora_B", "lora_A").transpose(0, 1)) * SCALE
            };
            let difference = relative_difference(&numbers(&gradient), &numbers(&expected));
            assert!(difference < 1e-5, "{name}: {difference:e}");
        }
    }
}

/// On ranks too, over which 2 rows of A are cut unevenly.
#[test]
fn what_is_exported_is_the_base_with_the_adapter_in_it() {
    let segments: Vec<_> = (0..4).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let base = named(decoder("0.3").parameters());
    let start = parameters(&adapted());
    let trained = |mut learner: Learner| {
        for _ in 0..3 {
            learner.policy_step(&rows(&segments), &LOSS).expect("a step");
        }
        let adapter = learner.trainable().expect("all ranks are here");
        (named(learner.parameters().expect("all ranks are here")), named(adapter))
    };
    let one = trained(alone(adapted(), layout(40)));
    let mut all = ranks(3, |group| trained(part(adapted(), group, &optim(), layout(30))));
    all.push(one);
    for (weights, adapter) in all {
        assert!(adapter.iter().all(|(name, value)| name.contains("lora_") && *value != start[name]));
        assert_eq!(adapter.len(), 2 * 2 * TARGETS.len());
        let expected = merged(&base, &adapter);
        assert_eq!(weights.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, value) in &weights {
            let is_target = TARGETS.iter().any(|target| name.contains(target));
            assert!(value.allclose(&expected[name], 1e-6, 1e-6, false), "{name}");
            assert_eq!(is_target, *value != base[name], "{name}");
        }
    }
}
