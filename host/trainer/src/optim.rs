//! AdamW and Muon, with clipping by the global norm.

mod muon;

use crate::error::TrainError;
use crate::mesh::Groups;
use crate::shards::sums;
use molt_core::schedule::learning_rate;
use molt_core::settings::{Optim, OptimKind};
use molt_torch::{AdamW, Moments};
use tch::{Kind, Tensor};

/// Elements of a gradient whose squares are summed in its own precision; such sums are added up in float64.
const BLOCK: i64 = 4096;

/// Adam with decoupled weight decay (Loshchilov, Hutter 2019, algorithm 2) over a set of parameters, or Muon for
/// the matrices of the layers and Adam for the rest.
///
/// The decay is on matrices only: a norm's scale or a bias has no reason to be near 0.
#[derive(Debug)]
pub(crate) struct Optimiser {
    settings: Optim,
    total_steps: u64,
    step: u64,
    slots: Vec<Slot>,
}

/// What is trained of one parameter: all of it, or the rows that this rank holds. The value shares its storage with
/// the model.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub name: String,
    pub value: Tensor,
    /// Of the whole parameter.
    pub shape: Vec<i64>,
}

impl Parameter {
    /// A matrix, or several.
    fn is_matrix(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// A parameter, and what is remembered of its gradients.
#[derive(Debug)]
struct Slot {
    parameter: Parameter,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    AdamW { first: Tensor, second: Tensor },
    Muon { momentum: Tensor },
}

/// What one update did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Update {
    /// L2 norm of the whole gradient before clipping.
    pub grad_norm: f64,
    pub learning_rate: f64,
}

impl Optimiser {
    /// `total_steps` is where the schedule ends.
    pub(crate) fn new(parameters: Vec<Parameter>, settings: &Optim, total_steps: u64) -> Self {
        let slot = |parameter: Parameter| {
            let zeros = || parameter.value.zeros_like();
            let memory = match settings.kind {
                OptimKind::Muon if muon::fits(&parameter) => Memory::Muon { momentum: zeros() },
                _ => Memory::AdamW { first: zeros(), second: zeros() },
            };
            Slot { parameter, memory }
        };
        let slots = parameters.into_iter().map(slot).collect();
        Self { settings: settings.clone(), total_steps, step: 0, slots }
    }

    /// Updates taken so far.
    pub(crate) fn steps(&self) -> u64 {
        self.step
    }

    /// What is remembered between updates, by name: `NAME.exp_avg` and `NAME.exp_avg_sq` of a parameter under AdamW,
    /// `NAME.momentum_buffer` under Muon, of the rows that this rank holds. The tensors are the optimiser's own: it
    /// goes on from what is written to them, and to [`Optimiser::set_steps`].
    pub(crate) fn state(&self) -> Vec<(String, Tensor)> {
        let named = |slot: &Slot| {
            let named =
                |what, tensor: &Tensor| (format!("{}.{what}", slot.parameter.name), tensor.shallow_clone());
            match &slot.memory {
                Memory::AdamW { first, second } => {
                    vec![named("exp_avg", first), named("exp_avg_sq", second)]
                }
                Memory::Muon { momentum } => vec![named("momentum_buffer", momentum)],
            }
        };
        self.slots.iter().flat_map(named).collect()
    }

    /// Goes on as after so many updates.
    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.step = steps;
    }

    /// Moves the parameters by their gradients, one for each in the order of [`Optimiser::new`], clipped to
    /// `max_grad_norm`. Every rank of `groups` calls it, with what it holds; the norm is that of the whole gradient.
    ///
    /// A gradient that is 0 throughout, as of rewards that are all the same, is no update: moments of what was seen
    /// before would move the parameters by themselves, and forget what size of gradient is usual.
    ///
    /// # Errors
    /// [`TrainError::GradientNotFinite`] if the gradient holds a NaN or an infinity; nothing is changed then. If a
    /// rank is lost.
    pub(crate) fn update(
        &mut self,
        gradients: &[Tensor],
        groups: Option<&Groups>,
    ) -> Result<Update, TrainError> {
        assert_eq!(gradients.len(), self.slots.len(), "one gradient for each parameter");
        tch::no_grad(|| {
            let grad_norm = self.grad_norm(gradients, groups)?;
            let step = self.step + 1;
            let learning_rate = learning_rate(&self.settings, step, self.total_steps);
            if grad_norm == 0.0 {
                return Ok(Update { grad_norm, learning_rate });
            }
            let Optim { beta1, beta2, eps, weight_decay, max_grad_norm: bound, .. } = self.settings;
            let divisor = if bound > 0.0 && grad_norm > bound { grad_norm / bound } else { 1.0 };
            let lr = learning_rate;
            let matrices = self.slots.iter_mut().zip(gradients).filter_map(muon::Matrix::of).collect();
            muon::update(matrices, muon::Step { lr, weight_decay, divisor }, groups)?;
            for (decays, weight_decay) in [(true, weight_decay), (false, 0.0)] {
                let numbers = AdamW { step, lr, beta1, beta2, eps, weight_decay, divisor };
                let slots = self.slots.iter().zip(gradients);
                let slots = slots.filter(|(slot, _)| slot.parameter.is_matrix() == decays);
                numbers.update(&slots.filter_map(Slot::moments).collect::<Vec<_>>())?;
            }
            self.step = step;
            Ok(Update { grad_norm, learning_rate })
        })
    }

    fn grad_norm(&self, gradients: &[Tensor], groups: Option<&Groups>) -> Result<f64, TrainError> {
        let (mut own, mut broken) = (0.0, None);
        for (Slot { parameter, .. }, gradient) in self.slots.iter().zip(gradients) {
            let square = squares(gradient);
            if !square.is_finite() {
                broken = broken.or(Some(&parameter.name));
            }
            own += square;
        }
        // Every rank takes part in the sum, also one that found a number that is none.
        let all = sums(groups.map(|groups| &groups.all), &[own])?[0];
        if all.is_finite() {
            return Ok(all.sqrt());
        }
        let parameter = broken.map_or_else(|| "a parameter on another rank".to_owned(), String::clone);
        Err(TrainError::GradientNotFinite { step: self.step + 1, parameter })
    }
}

impl Slot {
    /// Of a parameter that AdamW moves.
    fn moments<'s>((slot, gradient): (&'s Self, &'s Tensor)) -> Option<Moments<'s>> {
        match &slot.memory {
            Memory::AdamW { first, second } => {
                Some(Moments { value: &slot.parameter.value, gradient, first, second })
            }
            Memory::Muon { .. } => None,
        }
    }
}

/// The sum of the squares of all elements, with no copy of them.
fn squares(tensor: &Tensor) -> f64 {
    let flat = tensor.view([-1]);
    let elements = flat.size()[0];
    let whole = elements - elements % BLOCK;
    let blocks = flat.narrow(0, 0, whole).view([-1, BLOCK]);
    let rest = flat.narrow(0, whole, elements - whole).unsqueeze(0);
    let of = |rows: &Tensor| {
        let norms = rows.norm_scalaropt_dim(2.0, 1, false);
        norms.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[])
    };
    of(&blocks) + of(&rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::ranks::ranks;
    use serde_json::Value;

    fn tensor(values: &[f64]) -> Tensor {
        Tensor::from_slice(values).to_kind(Kind::Float)
    }

    fn parameter(name: &str, values: &[f64], shape: &[i64]) -> Parameter {
        Parameter { name: name.to_owned(), value: tensor(values).reshape(shape), shape: shape.to_vec() }
    }

    fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
    }

    /// `testdata/adamw.json` holds the parameters after every step of torch.optim.AdamW on the gradients that it
    /// lists, made by `testdata/adamw.py`.
    #[test]
    fn agrees_with_pytorch() {
        let golden: Value = serde_json::from_str(include_str!("../testdata/adamw.json")).expect("valid JSON");
        for case in golden["cases"].as_array().expect("cases") {
            let f = |key: &str| case[key].as_f64().expect("a number");
            let settings = Optim {
                lr: f("lr"),
                beta1: f("beta1"),
                beta2: f("beta2"),
                eps: f("eps"),
                weight_decay: f("weight_decay"),
                max_grad_norm: f("max_grad_norm"),
                ..Optim::default()
            };
            let parameters = vec![
                parameter("matrix", &numbers(&case["matrix"]), &[2, 3]),
                parameter("vector", &numbers(&case["vector"]), &[3]),
            ];
            let values: Vec<_> = parameters.iter().map(|p| p.value.shallow_clone()).collect();
            let mut optimiser = Optimiser::new(parameters, &settings, 10);
            for step in case["steps"].as_array().expect("steps") {
                let keys = ["matrix_grad", "vector_grad"];
                let gradient =
                    |(value, key): (&Tensor, &str)| tensor(&numbers(&step[key])).reshape(value.size());
                let gradients: Vec<_> = values.iter().zip(keys).map(gradient).collect();
                let update = optimiser.update(&gradients, None).expect("a finite gradient");
                assert!((update.grad_norm - step["grad_norm"].as_f64().expect("a norm")).abs() < 1e-5);
                for (value, key) in values.iter().zip(["matrix", "vector"]) {
                    let got = Vec::<f32>::try_from(value.flatten(0, -1)).expect("a vector");
                    for (g, w) in got.iter().zip(numbers(&step[key])) {
                        assert!((f64::from(*g) - w).abs() < 1e-6, "{key}: {g} is not {w}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_norm_is_global_and_reported_before_clipping() {
        // Gradients [3] and [4]: norm 5. AdamW does not see the scale of a constant gradient, so the clipping
        // is seen in the first moment: 0.1 · 3 · (1 / 5).
        let parameters = ["a", "b"].map(|name| parameter(name, &[0.0], &[1]));
        let mut optimiser = Optimiser::new(parameters.into(), &Optim::default(), 1);
        let gradients = [3.0, 4.0].map(|gradient| tensor(&[gradient]));
        assert_eq!(optimiser.update(&gradients, None).expect("finite").grad_norm, 5.0);
        assert!((optimiser.state()[0].1.double_value(&[0]) - 0.06).abs() < 1e-7);
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let p = parameter("w", &[1.0, 2.0], &[2]);
        let value = p.value.shallow_clone();
        let mut optimiser = Optimiser::new(vec![p], &Optim::default(), 1);
        let error = optimiser.update(&[tensor(&[f64::NAN, 1.0])], None).expect_err("a NaN");
        assert!(matches!(&error, TrainError::GradientNotFinite { step: 1, parameter } if parameter == "w"));
        assert_eq!(Vec::<f32>::try_from(value).expect("a vector"), [1.0, 2.0]);
        assert_eq!(optimiser.steps(), 0);
    }

    /// Of AdamW and of Muon, and with a decay: as if the step had not been.
    #[test]
    fn a_gradient_of_nothing_moves_nothing() {
        for kind in [OptimKind::Adamw, OptimKind::Muon] {
            let settings = Optim { kind, weight_decay: 0.5, ..Optim::default() };
            let all =
                vec![parameter("model.layers.0.q", &[1.0, -2.0], &[1, 2]), parameter("b", &[3.0], &[1])];
            let values: Vec<_> = all.iter().map(|p| p.value.shallow_clone()).collect();
            let mut optimiser = Optimiser::new(all, &settings, 10);
            let gradients = |scale: f64| values.iter().map(|v| v.sin() * scale).collect::<Vec<_>>();
            optimiser.update(&gradients(0.3), None).expect("a step");
            let seen = |optimiser: &Optimiser| {
                let state = optimiser.state().into_iter().map(|(_, tensor)| tensor.copy());
                state.chain(values.iter().map(Tensor::copy)).collect::<Vec<_>>()
            };
            let before = seen(&optimiser);
            assert_eq!(optimiser.update(&gradients(0.0), None).expect("no step").grad_norm, 0.0);
            assert_eq!((seen(&optimiser), optimiser.steps()), (before, 1));
            optimiser.update(&gradients(1e-3), None).expect("a step");
            assert_eq!(optimiser.steps(), 2);
        }
    }

    #[test]
    fn the_norm_is_that_of_all_ranks() {
        let found = ranks(2, |group| {
            let groups = Groups::from(group);
            let mine = |of_each: [f64; 2]| {
                let parameters = vec![parameter("w", &[0.0], &[1])];
                let mut optimiser = Optimiser::new(parameters, &Optim::default(), 1);
                optimiser.update(&[tensor(&[of_each[groups.all.rank()]])], Some(&groups))
            };
            (
                mine([3.0, 4.0]).expect("finite").grad_norm,
                mine([3.0, f64::NAN]).expect_err("a NaN").to_string(),
            )
        });
        assert!(found.iter().all(|(norm, _)| *norm == 5.0));
        assert!(found[0].1.contains("a parameter on another rank"), "{}", found[0].1);
        assert!(found[1].1.contains("of w at"), "{}", found[1].1);
    }

    /// One rank holds what has no gradient, and takes part in the step of the others.
    #[test]
    fn a_step_is_one_if_any_rank_has_a_gradient() {
        let found = ranks(2, |group| {
            let groups = Groups::from(group);
            let mut optimiser = Optimiser::new(vec![parameter("w", &[1.0], &[1])], &Optim::default(), 4);
            let mut steps = |of_each: [f64; 2]| {
                let gradient = tensor(&[of_each[groups.all.rank()]]);
                optimiser.update(&[gradient], Some(&groups)).expect("finite");
                optimiser.steps()
            };
            [steps([0.0, 2.0]), steps([0.0, 0.0]), steps([1.0, 0.0])]
        });
        assert_eq!(found, [[1, 1, 2]; 2]);
    }

    /// Sums of squares of integers are exact, in any order; 10000 elements are two blocks and a rest.
    #[test]
    fn squares_are_summed_in_blocks() {
        for elements in [0, 1, 4096, 10_000] {
            let tensor = Tensor::arange(elements, (Kind::Float, tch::Device::Cpu)).remainder(3);
            let expected: i64 = (0..elements).map(|n| (n % 3) * (n % 3)).sum();
            let relative = (squares(&tensor) - expected as f64).abs() / expected.max(1) as f64;
            assert!(relative < 1e-6, "{elements}: {relative:e}");
        }
    }

    #[test]
    fn another_optimiser_goes_on_from_the_state() {
        let settings = Optim { weight_decay: 0.1, ..Optim::default() };
        let new = || {
            let all = vec![parameter("a", &[1.0, -2.0], &[1, 2]), parameter("b", &[3.0], &[1])];
            let values: Vec<_> = all.iter().map(|p| p.value.shallow_clone()).collect();
            (Optimiser::new(all, &settings, 10), values)
        };
        let step = |(optimiser, values): &mut (Optimiser, Vec<Tensor>), scale: f64| {
            let gradients: Vec<_> = values.iter().map(|value| value.sin() * scale).collect();
            optimiser.update(&gradients, None).expect("a step");
        };
        let mut first = new();
        step(&mut first, 0.3);
        step(&mut first, -0.2);
        let mut second = new();
        for (to, from) in second.1.iter_mut().zip(&first.1) {
            to.copy_(from);
        }
        let names: Vec<String> = first.0.state().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a.exp_avg", "a.exp_avg_sq", "b.exp_avg", "b.exp_avg_sq"]);
        for ((_, mut to), (_, from)) in second.0.state().into_iter().zip(first.0.state()) {
            to.copy_(&from);
        }
        second.0.set_steps(first.0.steps());
        step(&mut first, 0.5);
        step(&mut second, 0.5);
        for (a, b) in first.1.iter().zip(&second.1) {
            assert_eq!(a, b);
        }
    }
}
