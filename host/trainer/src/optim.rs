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

/// One parameter, shared with the model, and its moments.
#[derive(Debug)]
struct Slot {
    name: String,
    parameter: Tensor,
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
    /// `parameters` are handles that share storage with the model; `total_steps` is where the schedule ends.
    pub fn new(parameters: Vec<(String, Tensor)>, settings: &Optim, total_steps: u64) -> Self {
        let slots = parameters
            .into_iter()
            .map(|(name, parameter)| Slot {
                name,
                first: parameter.zeros_like().set_requires_grad(false),
                second: parameter.zeros_like().set_requires_grad(false),
                parameter,
            })
            .collect();
        Self { settings: settings.clone(), total_steps, step: 0, slots }
    }

    /// Updates taken so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Forgets all gradients.
    pub fn zero_grad(&mut self) {
        for slot in &mut self.slots {
            slot.parameter.zero_grad();
        }
    }

    /// Clips the accumulated gradients to `max_grad_norm` and moves the parameters. A parameter that received
    /// no gradient since it was created stays where it is.
    ///
    /// # Errors
    /// [`TrainError::GradientNotFinite`] if the gradient holds a NaN or an infinity; nothing is changed then.
    pub fn update(&mut self) -> Result<Update, TrainError> {
        tch::no_grad(|| {
            let grad_norm = self.grad_norm()?;
            self.step += 1;
            let learning_rate = learning_rate(&self.settings, self.step, self.total_steps);
            let bound = self.settings.max_grad_norm;
            let scale = if bound > 0.0 && grad_norm > bound { bound / grad_norm } else { 1.0 };
            let Optim { beta1, beta2, eps, weight_decay, .. } = self.settings;
            let power = i32::try_from(self.step).unwrap_or(i32::MAX);
            let (bias1, bias2) = (1.0 - beta1.powi(power), 1.0 - beta2.powi(power));
            for Slot { parameter, first, second, .. } in &mut self.slots {
                let gradient = parameter.grad();
                if !gradient.defined() {
                    continue;
                }
                let gradient = gradient * scale;
                let _ = first.lerp_(&gradient, 1.0 - beta1);
                let _ = second.g_mul_scalar_(beta2).g_add_(&(gradient.square() * (1.0 - beta2)));
                if parameter.dim() >= 2 {
                    let _ = parameter.g_mul_scalar_(1.0 - learning_rate * weight_decay);
                }
                let denominator = second.sqrt() / bias2.sqrt() + eps;
                let _ = parameter.g_sub_(&(&*first / denominator * (learning_rate / bias1)));
            }
            Ok(Update { grad_norm, learning_rate })
        })
    }

    fn grad_norm(&self) -> Result<f64, TrainError> {
        let mut squares = 0.0;
        for Slot { name, parameter, .. } in &self.slots {
            let gradient = parameter.grad();
            if gradient.defined() {
                let square = gradient.square().sum(Kind::Double).double_value(&[]);
                if !square.is_finite() {
                    return Err(TrainError::GradientNotFinite {
                        step: self.step + 1,
                        parameter: name.clone(),
                    });
                }
                squares += square;
            }
        }
        Ok(squares.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn parameter(values: &[f64], shape: &[i64]) -> Tensor {
        Tensor::from_slice(values).to_kind(Kind::Float).reshape(shape).set_requires_grad(true)
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
                ("matrix".to_owned(), parameter(&numbers(&case["matrix"]), &[2, 3])),
                ("vector".to_owned(), parameter(&numbers(&case["vector"]), &[3])),
            ];
            let handles: Vec<Tensor> = parameters.iter().map(|(_, p)| p.shallow_clone()).collect();
            let mut optimiser = AdamW::new(parameters, &settings, 10);
            for step in case["steps"].as_array().expect("steps") {
                optimiser.zero_grad();
                for (handle, key) in handles.iter().zip(["matrix_grad", "vector_grad"]) {
                    // The gradient of Σ g·p with respect to p is g.
                    let gradient = Tensor::from_slice(&numbers(&step[key])).to_kind(Kind::Float);
                    (gradient.reshape(handle.size()) * handle).sum(Kind::Float).backward();
                }
                let update = optimiser.update().expect("a finite gradient");
                assert!((update.grad_norm - step["grad_norm"].as_f64().expect("a norm")).abs() < 1e-5);
                for (handle, key) in handles.iter().zip(["matrix", "vector"]) {
                    let got = Vec::<f32>::try_from(handle.detach().flatten(0, -1)).expect("a vector");
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
        let parameters: Vec<_> = [("a", 3.0), ("b", 4.0)]
            .map(|(name, gradient)| {
                let p = parameter(&[0.0], &[1]);
                (&p * gradient).sum(Kind::Float).backward();
                (name.to_owned(), p)
            })
            .into();
        let mut optimiser = AdamW::new(parameters, &Optim::default(), 1);
        assert_eq!(optimiser.update().expect("finite").grad_norm, 5.0);
        assert!((optimiser.slots[0].first.double_value(&[0]) - 0.06).abs() < 1e-7);
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let p = parameter(&[1.0, 2.0], &[2]);
        (&p * Tensor::from_slice(&[f32::NAN, 1.0])).sum(Kind::Float).backward();
        let mut optimiser = AdamW::new(vec![("w".to_owned(), p.shallow_clone())], &Optim::default(), 1);
        let error = optimiser.update().expect_err("a NaN");
        assert!(matches!(&error, TrainError::GradientNotFinite { step: 1, parameter } if parameter == "w"));
        assert_eq!(Vec::<f32>::try_from(p.detach()).expect("a vector"), [1.0, 2.0]);
        assert_eq!(optimiser.steps(), 0);
    }
}
