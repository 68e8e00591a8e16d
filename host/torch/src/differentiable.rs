//! Collectives that autograd can go back through: what one gathers, the gradient scatters, and the other way round.

use crate::error::TorchError;
use crate::ffi::shim;
use crate::group::{ALL_GATHER, ALL_TO_ALL, Group, REDUCE_SCATTER};
use crate::vjp::{address, owned};
use tch::Tensor;

impl Group {
    /// The parts of all ranks, all of one shape, one after the other on dimension `dim`. Differentiable: every rank
    /// calls it, and takes the vector–Jacobian product of its graph, in the same order as the others.
    ///
    /// # Errors
    /// If there is no such dimension, or a rank was lost or did not come in time.
    pub fn gathered(&self, part: &Tensor, dim: i64) -> Result<Tensor, TorchError> {
        if dim < 0 || dim >= part.dim() as i64 {
            return Err(self.no_rows(ALL_GATHER));
        }
        // SAFETY: the tensor is borrowed until the call has returned.
        self.made(ALL_GATHER, part, || unsafe { shim::gathered(&self.inner, address(part), dim) })
    }

    /// The sum over all ranks of `whole`, cut on dimension `dim` into equal parts, of which every rank gets its own.
    /// Differentiable, as [`Group::gathered`].
    ///
    /// # Errors
    /// If the dimension does not divide by the number of ranks, or a rank was lost or did not come in time.
    pub fn scattered(&self, whole: &Tensor, dim: i64) -> Result<Tensor, TorchError> {
        let length = usize::try_from(dim).ok().and_then(|dim| whole.size().get(dim).copied());
        if length.is_none_or(|length| length % self.size() as i64 != 0) {
            return Err(self.no_rows(REDUCE_SCATTER));
        }
        // SAFETY: as in `gathered`.
        self.made(REDUCE_SCATTER, whole, || unsafe { shim::scattered(&self.inner, address(whole), dim) })
    }

    /// As [`Group::all_to_all`], but differentiable, as [`Group::gathered`].
    ///
    /// # Errors
    /// If the counts are not one per rank and the rows of `rows`, or a rank was lost or did not come in time.
    pub fn exchanged(&self, rows: &Tensor, give: &[i64], take: &[i64]) -> Result<Tensor, TorchError> {
        if !self.is_exchange(rows, give, take) {
            return Err(self.no_rows(ALL_TO_ALL));
        }
        // SAFETY: as in `gathered`.
        self.made(ALL_TO_ALL, rows, || unsafe { shim::exchanged(&self.inner, address(rows), give, take) })
    }

    fn made(
        &self,
        name: &str,
        input: &Tensor,
        make: impl FnOnce() -> Result<usize, cxx::Exception>,
    ) -> Result<Tensor, TorchError> {
        let collective = format!("{name} of {:?} {:?}", input.size(), input.kind());
        self.begin(&collective);
        let address = make().map_err(|error| self.failed(&collective, error.what()))?;
        owned(address).ok_or_else(|| self.failed(&collective, "there is no result"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::ranks;
    use tch::{Device, Kind};

    /// Values of a rank that differ from those of the others.
    fn numbers_of(rank: usize, shape: &[i64]) -> Tensor {
        let line = Tensor::arange(shape.iter().product::<i64>(), (Kind::Double, Device::Cpu));
        ((line * 0.7 + rank as f64 * 2.3).sin() * 1.3).view(shape)
    }

    /// What one process gets for all ranks: the outputs, and the gradients by the inputs of `Σ outputs · weights`.
    fn by_definition(inputs: &[Tensor], of: impl Fn(&[Tensor]) -> Vec<Tensor>) -> (Vec<Tensor>, Vec<Tensor>) {
        let leaves: Vec<Tensor> = inputs.iter().map(|t| t.copy().set_requires_grad(true)).collect();
        let outputs = of(&leaves);
        let weighted = |(rank, output): (usize, &Tensor)| (output * weights(rank, output)).sum(Kind::Double);
        outputs.iter().enumerate().map(weighted).reduce(|a, b| a + b).expect("a rank").backward();
        (outputs, leaves.iter().map(Tensor::grad).collect())
    }

    fn weights(rank: usize, output: &Tensor) -> Tensor {
        numbers_of(rank + 7, &output.size())
    }

    /// Compares a differentiable collective, twice over its own result's square, with its definition.
    fn is_differentiable(
        size: usize,
        shape: impl Fn(usize) -> Vec<i64> + Sync,
        collective: impl Fn(&Group, &Tensor) -> Tensor + Sync,
        definition: impl Fn(&[Tensor]) -> Vec<Tensor>,
    ) {
        let inputs: Vec<Tensor> = (0..size).map(|rank| numbers_of(rank, &shape(rank))).collect();
        let (outputs, gradients) = by_definition(&inputs, definition);
        let found = ranks(size, |group| {
            let rank = group.rank();
            let input = numbers_of(rank, &shape(rank)).set_requires_grad(true);
            let output = collective(group, &(&input * 1.0));
            // A gradient need not be contiguous.
            let weights = weights(rank, &output).transpose(0, 1).contiguous().transpose(0, 1);
            let gradient =
                crate::vjp(&[&output], &[&input], &[&weights]).expect("a gradient").pop().flatten();
            let without = tch::no_grad(|| collective(group, &input));
            assert!(!without.requires_grad() && without.equal(&output));
            (output.detach(), gradient.expect("of the input"))
        });
        for (rank, (output, gradient)) in found.into_iter().enumerate() {
            for (found, expected) in [(output, &outputs[rank]), (gradient, &gradients[rank])] {
                assert_eq!(found.size(), expected.size());
                let same = found.allclose(expected, 1e-13, 1e-13, false);
                assert!(same, "rank {rank} of {size}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn a_gather_and_a_scatter_along_any_dimension_are_differentiable() {
        for size in 1..=4 {
            for dim in 0..3 {
                is_differentiable(
                    size,
                    |_| vec![2, 3, 5],
                    |group, x| group.gathered(x, dim).expect("a gather"),
                    |all| (0..all.len()).map(|_| Tensor::cat(all, dim)).collect(),
                );
                let mut whole = vec![2, 3, 5];
                whole[dim as usize] *= size as i64;
                is_differentiable(
                    size,
                    |_| whole.clone(),
                    |group, x| group.scattered(x, dim).expect("a scatter"),
                    |all| {
                        let sum = Tensor::stack(all, 0).sum_dim_intlist([0].as_slice(), false, Kind::Double);
                        sum.chunk(all.len() as i64, dim)
                    },
                );
            }
        }
    }

    /// Rank `r` gives `(r + 2·to) % 3` rows to rank `to`: some give and some take nothing.
    #[test]
    fn an_exchange_is_differentiable_where_nothing_is_given_too() {
        let rows =
            |from: usize, to: usize, size: usize| if size == 2 { 0 } else { ((from + 2 * to) % 3) as i64 };
        for size in 1..=4 {
            let give = |from| (0..size).map(|to| rows(from, to, size)).collect::<Vec<_>>();
            let take = |to| (0..size).map(|from| rows(from, to, size)).collect::<Vec<_>>();
            is_differentiable(
                size,
                |rank| vec![give(rank).iter().sum(), 4],
                |group, x| group.exchanged(x, &give(group.rank()), &take(group.rank())).expect("an exchange"),
                |all| {
                    let parts: Vec<_> =
                        (0..size).map(|from| all[from].split_with_sizes(give(from), 0)).collect();
                    let of =
                        |to: usize| parts.iter().map(|from| from[to].shallow_clone()).collect::<Vec<_>>();
                    (0..size).map(|to| Tensor::cat(&of(to), 0)).collect()
                },
            );
        }
    }

    #[test]
    fn a_rank_that_leaves_is_an_error_of_the_gradient() {
        let results = ranks(2, |group| {
            let input = numbers_of(0, &[2, 2]).set_requires_grad(true);
            let output = group.gathered(&input, 0).expect("both are there");
            (group.rank() == 0).then(|| crate::vjp(&[&output], &[&input], &[&output.ones_like()]).map(drop))
        });
        let error = results[0].as_ref().expect("rank 0 tried").as_ref().expect_err("rank 1 left");
        let said = error.to_string();
        let what = "the reduce-scatter of a gradient of group `all` failed on rank 0 of 2: ";
        assert!(said.contains(what) && !said.contains("frame #"), "{said}");
    }
}
