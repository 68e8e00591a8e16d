//! AdamW in one pass over memory, by the kernels of libtorch.

use crate::error::TorchError;
use crate::ffi::shim;
use crate::vjp::address;
use tch::Tensor;

/// The numbers of one step of AdamW (Loshchilov, Hutter 2019, algorithm 2).
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    /// From 1: which step it is.
    pub step: u64,
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// The gradients are divided by this, in place; 1 leaves them alone. Rounded to float32.
    pub divisor: f64,
}

/// A parameter, its gradient, and the moving means of the gradient and its square: one kind and size, contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Moments<'a> {
    pub value: &'a Tensor,
    pub gradient: &'a Tensor,
    pub first: &'a Tensor,
    pub second: &'a Tensor,
}

impl AdamW {
    /// Moves all values, which are on one device. The number of threads changes no bit of the result.
    ///
    /// # Errors
    /// If the tensors of a parameter do not match; nothing is changed then.
    pub fn update(&self, parameters: &[Moments<'_>]) -> Result<(), TorchError> {
        for Moments { value, gradient, first, second } in parameters {
            let fits = |t: &Tensor| {
                t.is_contiguous()
                    && (t.kind(), t.device(), t.size()) == (value.kind(), value.device(), value.size())
            };
            if !(fits(value) && fits(gradient) && fits(first) && fits(second)) {
                let reason = format!("a parameter of {:?} has another gradient or moments", value.size());
                return Err(TorchError::Step(reason));
            }
        }
        let of = |pick: fn(&Moments<'_>) -> usize| parameters.iter().map(pick).collect::<Vec<_>>();
        let (values, gradients) = (of(|p| address(p.value)), of(|p| address(p.gradient)));
        let (first, second) = (of(|p| address(p.first)), of(|p| address(p.second)));
        let Self { step, lr, beta1, beta2, eps, weight_decay, divisor } = *self;
        let numbers = shim::AdamW { step: step as f64, lr, beta1, beta2, eps, weight_decay, divisor };
        // SAFETY: the addresses are of tensors that are borrowed until the call has returned, and the kernels go
        // by the number of elements, which was compared.
        unsafe { shim::adamw(&numbers, &values, &gradients, &first, &second) }
            .map_err(|error| TorchError::Step(error.what().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    const STEP: AdamW =
        AdamW { step: 1, lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 0.0, weight_decay: 0.5, divisor: 2.0 };

    fn tensor(values: &[f64], kind: Kind) -> Tensor {
        Tensor::from_slice(values).to_kind(kind)
    }

    /// By hand: g = [2, -4, 0.5] / 2, m = 0.1·g, v = 0.01·g²; without eps the first step is lr · sign(g).
    #[test]
    fn a_step_by_hand() {
        for kind in [Kind::Float, Kind::Double] {
            let value = tensor(&[1.0, 2.0, 0.0], kind);
            let gradient = tensor(&[2.0, -4.0, 0.5], kind);
            let (first, second) = (value.zeros_like(), value.zeros_like());
            let all = Moments { value: &value, gradient: &gradient, first: &first, second: &second };
            STEP.update(&[all]).expect("a step");
            for (found, expected) in [
                (&value, [0.95 - 0.1, 1.9 + 0.1, -0.1]),
                (&gradient, [1.0, -2.0, 0.25]),
                (&first, [0.1, -0.2, 0.025]),
                (&second, [0.01, 0.04, 0.000_625]),
            ] {
                assert!(found.allclose(&tensor(&expected, kind), 1e-6, 1e-7, false), "{found} {expected:?}");
            }
        }
    }

    #[test]
    fn tensors_that_do_not_match_are_refused() {
        let (value, other) = (tensor(&[1.0; 4], Kind::Float), tensor(&[1.0; 3], Kind::Float));
        let (strided, double) =
            (tensor(&[1.0; 8], Kind::Float).slice(0, 0, 8, 2), value.to_kind(Kind::Double));
        let good = Moments { value: &value, gradient: &value, first: &value, second: &value };
        for bad in [
            Moments { gradient: &other, ..good },
            Moments { first: &strided, ..good },
            Moments { second: &double, ..good },
        ] {
            STEP.update(&[good, bad]).expect_err("they do not match");
            assert_eq!(Vec::<f32>::try_from(&value).expect("a vector"), [1.0; 4]);
        }
    }
}
