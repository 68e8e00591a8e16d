//! Vector–Jacobian products.

use crate::error::TorchError;
use crate::ffi::shim;
use std::borrow::Borrow;
use tch::Tensor;

/// The gradients of `Σ outputs[i] · gradients[i]` by `inputs`, through the graph that autograd recorded, which is
/// freed. An input that no output depends on has none.
///
/// # Errors
/// If the lengths or shapes do not match, or an input or output takes no part in autograd.
pub fn vjp(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    gradients: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, TorchError> {
    let (outputs, inputs, gradients) = (addresses(outputs), addresses(inputs), addresses(gradients));
    // SAFETY: the addresses are of tensors that are borrowed until the call has returned.
    let found = unsafe { shim::vjp(&outputs, &inputs, &gradients) };
    let found = found.map_err(|error| TorchError::Gradient(error.what().to_owned()))?;
    Ok(found.into_iter().map(owned).collect())
}

/// Where C++ finds the tensor. Valid as long as the tensor is borrowed.
pub(crate) fn address(tensor: &Tensor) -> usize {
    tensor.as_ptr() as usize
}

pub(crate) fn addresses(tensors: &[impl Borrow<Tensor>]) -> Vec<usize> {
    tensors.iter().map(|tensor| address(tensor.borrow())).collect()
}

pub(crate) fn owned(address: usize) -> Option<Tensor> {
    // SAFETY: the shim gives every tensor away that it made, each once.
    (address != 0).then(|| unsafe { Tensor::from_ptr(address as *mut _) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    fn leaf(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor).expect("a vector")
    }

    #[test]
    fn of_two_outputs_with_their_own_vectors() {
        let (x, y) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 5.0]));
        let (product, square) = (&x * &y, x.square());
        let (u, v) = (Tensor::from_slice(&[1.0_f32, 10.0]), Tensor::from_slice(&[100.0_f32, 1000.0]));
        let found = vjp(&[&product, &square], &[&x, &y], &[&u, &v]).expect("a gradient");
        // d/dx = u·y + v·2x, d/dy = u·x
        assert_eq!(values(found[0].as_ref().expect("of x")), [203.0, 4050.0]);
        assert_eq!(values(found[1].as_ref().expect("of y")), [1.0, 20.0]);
        assert!(!x.grad().defined());
    }

    #[test]
    fn an_input_that_takes_no_part_has_none() {
        let (x, y) = (leaf(&[1.0]), leaf(&[2.0]));
        let found = vjp(&[&x.square()], &[&x, &y], &[&Tensor::from_slice(&[1.0_f32])]).expect("a gradient");
        assert_eq!(values(found[0].as_ref().expect("of x")), [2.0]);
        assert!(found[1].is_none());
    }

    #[test]
    fn agrees_with_the_gradient_of_a_scalar() {
        tch::manual_seed(3);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (x, w) = (random(&[7, 5]).set_requires_grad(true), random(&[3, 5]).set_requires_grad(true));
        let g = random(&[7, 3]);
        let found = vjp(&[&x.linear::<&Tensor>(&w, None).silu()], &[&x, &w], &[&g]).expect("a gradient");
        (x.linear::<&Tensor>(&w, None).silu() * &g).sum(Kind::Float).backward();
        for (found, expected) in found.into_iter().zip([x.grad(), w.grad()]) {
            assert!(found.expect("a gradient").allclose(&expected, 1e-6, 1e-6, false));
        }
    }

    #[test]
    fn a_constant_has_no_gradient() {
        let constant = Tensor::from_slice(&[1.0_f32]);
        let error = vjp(&[&constant], &[&constant], &[&constant]).expect_err("no graph");
        let said = error.to_string();
        assert!(said.contains("does not require grad") && !said.contains("frame #"), "{said}");
    }
}
