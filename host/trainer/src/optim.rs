//! AdamW with clipping by the global norm.

use crate::error::TrainError;
use molt_core::schedule::learning_rate;
use molt_core::settings::Optim;
use tch::{Kind, Tensor};

/// Adam with decoupled weight decay (Loshchilov, Hutter 2019, algorithm 2) over a set of parameters.
///
/// The decay is on matrices only: a norm's scale or a bias has no reason to be near 0.
#[derive(Debug)]
pub struct AdamW {
    settings: Optim,
    total_steps: u64,
    step: u64,
    slots: Vec<Slot>,
}

/// What is trained of one parameter: all of it, or the rows that this rank holds. The tensors share storage with
/// the model, and what is not trained of a parameter is not in them.
#[derive(Debug)]
pub struct Parameter {
    pub name: String,
    pub value: Tensor,
    pub gradient: Tensor,
    /// Whether the whole parameter has at least two dimensions.
    pub is_matrix: bool,
}

/// A parameter and its moments.
#[derive(Debug)]
struct Slot {
    parameter: Parameter,
    first: Tensor,
    second: Tensor,
}

/// What one update did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Update {
    /// L2 norm of the whole gradient before clipping.
    pub grad_norm: f64,
    pub learning_rate: f64,
}

impl AdamW {
    /// `total_steps` is where the schedule ends.
    pub fn new(parameters: Vec<Parameter>, settings: &Optim, total_steps: u64) -> Self {
        let slots = parameters
            .into_iter()
            .map(|parameter| Slot {
                first: parameter.value.zeros_like(),
                second: parameter.value.zeros_like(),
                parameter,
            })
            .collect();
        Self { settings: settings.clone(), total_steps, step: 0, slots }
    }

    /// Updates taken so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Clips the gradients to `max_grad_norm` and moves the parameters. `total` makes the sum of the squares of
    /// what this rank holds that of the whole gradient.
    ///
    /// # Errors
    /// [`TrainError::GradientNotFinite`] if the gradient holds a NaN or an infinity; nothing is changed then.
    pub fn update(
        &mut self,
        total: impl FnOnce(f64) -> Result<f64, TrainError>,
    ) -> Result<Update, TrainError> {
        tch::no_grad(|| {
            let grad_norm = self.grad_norm(total)?;
            self.step += 1;
            let learning_rate = learning_rate(&self.settings, self.step, self.total_steps);
            let bound = self.settings.max_grad_norm;
            let scale = if bound > 0.0 && grad_norm > bound { bound / grad_norm } else { 1.0 };
            let Optim { beta1, beta2, eps, weight_decay, .. } = self.settings;
            let power = i32::try_from(self.step).unwrap_or(i32::MAX);
            let (bias1, bias2) = (1.0 - beta1.powi(power), 1.0 - beta2.powi(power));
            for Slot { parameter: Parameter { value, gradient, is_matrix, .. }, first, second } in
                &mut self.slots
            {
                let gradient = &*gradient * scale;
                let _ = first.lerp_(&gradient, 1.0 - beta1);
                let _ = second.g_mul_scalar_(beta2).g_add_(&(gradient.square() * (1.0 - beta2)));
                if *is_matrix {
                    let _ = value.g_mul_scalar_(1.0 - learning_rate * weight_decay);
                }
                let denominator = second.sqrt() / bias2.sqrt() + eps;
                let _ = value.g_sub_(&(&*first / denominator * (learning_rate / bias1)));
            }
            Ok(Update { grad_norm, learning_rate })
        })
    }

    fn grad_norm(&self, total: impl FnOnce(f64) -> Result<f64, TrainError>) -> Result<f64, TrainError> {
        let (mut squares, mut broken) = (0.0, None);
        for Slot { parameter: Parameter { name, gradient, .. }, .. } in &self.slots {
            let square = gradient.square().sum(Kind::Double).double_value(&[]);
            if !square.is_finite() {
                broken = broken.or(Some(name));
            }
            squares += square;
        }
        // Every rank takes part in the sum, also one that found a number that is none.
        let squares = total(squares)?;
        if squares.is_finite() {
            return Ok(squares.sqrt());
        }
        let parameter = broken.map_or_else(|| "a parameter on another rank".to_owned(), String::clone);
        Err(TrainError::GradientNotFinite { step: self.step + 1, parameter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn tensor(values: &[f64]) -> Tensor {
        Tensor::from_slice(values).to_kind(Kind::Float)
    }

    fn parameter(name: &str, values: &[f64], shape: &[i64]) -> Parameter {
        let value = tensor(values).reshape(shape);
        let gradient = value.zeros_like();
        Parameter { name: name.to_owned(), value, gradient, is_matrix: shape.len() >= 2 }
    }

    /// The sum of a process that trains alone.
    #[allow(clippy::unnecessary_wraps, reason = "the type of a sum over ranks")]
    fn alone(squares: f64) -> Result<f64, TrainError> {
        Ok(squares)
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
            let handle = |p: &Parameter| (p.value.shallow_clone(), p.gradient.shallow_clone());
            let mut handles: Vec<_> = parameters.iter().map(handle).collect();
            let mut optimiser = AdamW::new(parameters, &settings, 10);
            for step in case["steps"].as_array().expect("steps") {
                for ((value, gradient), key) in handles.iter_mut().zip(["matrix_grad", "vector_grad"]) {
                    gradient.copy_(&tensor(&numbers(&step[key])).reshape(value.size()));
                }
                let update = optimiser.update(alone).expect("a finite gradient");
                assert!((update.grad_norm - step["grad_norm"].as_f64().expect("a norm")).abs() < 1e-5);
                for ((value, _), key) in handles.iter().zip(["matrix", "vector"]) {
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
        let parameters = [("a", 3.0), ("b", 4.0)].map(|(name, gradient)| Parameter {
            gradient: tensor(&[gradient]),
            ..parameter(name, &[0.0], &[1])
        });
        let mut optimiser = AdamW::new(parameters.into(), &Optim::default(), 1);
        assert_eq!(optimiser.update(alone).expect("finite").grad_norm, 5.0);
        assert!((optimiser.slots[0].first.double_value(&[0]) - 0.06).abs() < 1e-7);
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let gradient = tensor(&[f64::NAN, 1.0]);
        let p = Parameter { gradient, ..parameter("w", &[1.0, 2.0], &[2]) };
        let value = p.value.shallow_clone();
        let mut optimiser = AdamW::new(vec![p], &Optim::default(), 1);
        let error = optimiser.update(alone).expect_err("a NaN");
        assert!(matches!(&error, TrainError::GradientNotFinite { step: 1, parameter } if parameter == "w"));
        assert_eq!(Vec::<f32>::try_from(value).expect("a vector"), [1.0, 2.0]);
        assert_eq!(optimiser.steps(), 0);
    }

    #[test]
    fn the_norm_is_that_of_all_ranks() {
        let p = Parameter { gradient: tensor(&[3.0]), ..parameter("w", &[0.0], &[1]) };
        let mut optimiser = AdamW::new(vec![p], &Optim::default(), 1);
        let update = optimiser.update(|own| Ok(own + 16.0)).expect("finite");
        assert_eq!(update.grad_norm, 5.0);
        let error = optimiser.update(|_| Ok(f64::NAN)).expect_err("a NaN elsewhere").to_string();
        assert!(error.contains("a parameter on another rank"), "{error}");
    }
}
