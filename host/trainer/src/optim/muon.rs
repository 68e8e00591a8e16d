//! Muon: momentum whose matrices are orthogonalised before they are subtracted (Jordan et al. 2024), scaled so that
//! the learning rate and decay of AdamW fit (Liu et al. 2025, "Muon is scalable for LLM training", eq. 4).

use super::{Memory, Parameter, Slot};
use crate::error::TrainError;
use crate::mesh::Groups;
use molt_model::Cut;
use std::cmp::Reverse;
use std::ops::Range;
use tch::Tensor;

const MOMENTUM: f64 = 0.95;
/// The iteration of Newton and Schulz: so many times `x ← a·x + (b·xxᵀ + c·(xxᵀ)²)·x`.
const ITERATIONS: usize = 5;
const COEFFICIENTS: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
/// The root mean square of an update over that of an orthogonal matrix's elements is brought to this.
const SCALE: f64 = 0.2;

/// Whether Muon is for this parameter: the matrices between embedding and head are maps of the hidden state.
pub(super) fn fits(parameter: &Parameter) -> bool {
    parameter.is_matrix() && parameter.name.starts_with("model.layers.")
}

/// A matrix, or a stack of them as `[experts, rows, columns]`, with its momentum and its gradient.
#[derive(Debug)]
pub(super) struct Matrix<'s> {
    parameter: &'s mut Parameter,
    momentum: &'s mut Tensor,
    gradient: &'s Tensor,
}

/// The numbers of one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) lr: f64,
    pub(super) weight_decay: f64,
    /// What the gradients are divided by.
    pub(super) divisor: f64,
}

impl<'s> Matrix<'s> {
    /// What this moves.
    pub(super) fn of((slot, gradient): (&'s mut Slot, &'s Tensor)) -> Option<Self> {
        match &mut slot.memory {
            Memory::Muon { momentum } => Some(Self { parameter: &mut slot.parameter, momentum, gradient }),
            Memory::AdamW { .. } => None,
        }
    }

    /// Rows and columns of a matrix.
    fn size(&self) -> (i64, i64) {
        match self.parameter.shape[..] {
            [.., rows, columns] => (rows, columns),
            _ => unreachable!("a matrix has two dimensions"),
        }
    }

    /// Takes the gradient into the momentum, and returns where Nesterov's looks ahead to.
    fn direction(&mut self, step: Step) -> Tensor {
        let gradient = self.gradient / step.divisor;
        let _ = self.momentum.lerp_(&gradient, 1.0 - MOMENTUM);
        gradient.lerp(self.momentum, MOMENTUM)
    }

    fn apply(&mut self, update: &Tensor, step: Step) {
        let (rows, columns) = self.size();
        let rate = step.lr * SCALE * (rows.max(columns) as f64).sqrt();
        let value = &mut self.parameter.value;
        let _ = value.g_mul_scalar_(1.0 - step.lr * step.weight_decay);
        let _ = value.g_sub_(&(update.view(value.size().as_slice()) * rate));
    }
}

/// Moves all of these; every rank of `groups` calls it. A matrix that is cut over the ranks is put together on one of
/// them, the ranks taking turns by size, and its update goes back to where its parts are.
pub(super) fn update(all: Vec<Matrix<'_>>, step: Step, groups: Option<&Groups>) -> Result<(), TrainError> {
    // A stack is cut between its matrices.
    let is_cut = |matrix: &Matrix<'_>| groups.is_some() && matrix.parameter.shape.len() == 2;
    let (mut cut, whole): (Vec<_>, Vec<_>) = all.into_iter().partition(is_cut);
    for mut matrix in whole.into_iter().filter(|matrix| matrix.parameter.value.numel() > 0) {
        let (rows, columns) = matrix.size();
        let update = orthogonalised(&matrix.direction(step).view([-1, rows, columns]));
        matrix.apply(&update.contiguous(), step);
    }
    let Some(groups) = groups else { return Ok(()) };
    cut.sort_by_key(|matrix| Reverse(matrix.size()));
    for round in cut.chunks_mut(groups.all.size()) {
        dealt(round, step, groups)?;
    }
    Ok(())
}

/// One matrix for each rank at most: the first is for rank 0.
fn dealt(round: &mut [Matrix<'_>], step: Step, groups: &Groups) -> Result<(), TrainError> {
    let ranks = &groups.all;
    let directions: Vec<Tensor> = round.iter_mut().map(|matrix| matrix.direction(step)).collect();
    let mut theirs: Vec<i64> = directions.iter().map(|part| part.numel() as i64).collect();
    theirs.resize(ranks.size(), 0);
    let own = round.get(ranks.rank()).map(|matrix| &*matrix.parameter);
    // The parts of this rank's matrix: what each rank holds of it.
    let held = |parameter: &Parameter| {
        let part = |rank| groups.mesh.held(rank, Cut::of(&parameter.name), &parameter.shape);
        (0..ranks.size()).map(part).collect::<Vec<_>>()
    };
    let parts = own.map(held).unwrap_or_default();
    let mut counts: Vec<i64> = parts.iter().map(|part| size(part).iter().product()).collect();
    counts.resize(ranks.size(), 0);
    let found = ranks.all_to_all(&Tensor::cat(&directions, 0), &theirs, &counts)?.wait()?;
    let update = match own {
        None => found,
        Some(parameter) => {
            let whole = found.new_empty(&parameter.shape, (found.kind(), found.device()));
            for (part, found) in parts.iter().zip(found.split_with_sizes(&counts, 0)) {
                within(&whole, part).copy_(&found.view(size(part)));
            }
            let update = orthogonalised(&whole);
            Tensor::cat(&parts.iter().map(|part| within(&update, part).reshape([-1])).collect::<Vec<_>>(), 0)
        }
    };
    let update = ranks.all_to_all(&update, &counts, &theirs)?.wait()?;
    for (matrix, part) in round.iter_mut().zip(update.split_with_sizes(theirs.as_slice(), 0)) {
        matrix.apply(&part, step);
    }
    Ok(())
}

/// Rows and columns of a part of a matrix.
fn size(part: &[Range<i64>]) -> [i64; 2] {
    [0, 1].map(|dim| part[dim].end - part[dim].start)
}

fn within(matrix: &Tensor, part: &[Range<i64>]) -> Tensor {
    let [rows, columns] = size(part);
    matrix.narrow(0, part[0].start, rows).narrow(1, part[1].start, columns)
}

/// Of every matrix `U·S·Vᵀ` of `[.., rows, columns]` about `U·Vᵀ`: the singular values come to between 0.7 and 1.2.
fn orthogonalised(matrices: &Tensor) -> Tensor {
    let (a, b, c) = COEFFICIENTS;
    let size = matrices.size();
    let is_tall = size[size.len() - 2] > size[size.len() - 1];
    // The smaller side makes the smaller products.
    let wide = |x: &Tensor| if is_tall { x.transpose(-2, -1) } else { x.shallow_clone() };
    let norm = matrices.norm_scalaropt_dim_dtype(2.0, [-2, -1], true, matrices.kind()).clamp_min(1e-7);
    let mut x = wide(&(matrices / norm));
    for _ in 0..ITERATIONS {
        let gram = x.matmul(&x.transpose(-2, -1));
        let factor = &gram * b + gram.matmul(&gram) * c;
        x = &x * a + factor.matmul(&x);
    }
    wide(&x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::Optimiser;
    use crate::step::ranks::ranks;
    use molt_core::settings::{Optim, OptimKind};
    use molt_torch::{Group, extent};
    use serde_json::Value;
    use tch::{Device, Kind};

    fn settings() -> Optim {
        Optim { kind: OptimKind::Muon, lr: 0.1, max_grad_norm: 0.0, ..Optim::default() }
    }

    fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
    }

    fn tensor(values: &[f64]) -> Tensor {
        Tensor::from_slice(values).to_kind(Kind::Float)
    }

    /// `testdata/muon.json` holds the parameters after every step of torch.optim.Muon, and of AdamW for what is no
    /// matrix of a layer, on the gradients that it lists, made by `testdata/muon.py`.
    #[test]
    fn agrees_with_pytorch() {
        let golden: Value =
            serde_json::from_str(include_str!("../../testdata/muon.json")).expect("valid JSON");
        for case in golden["cases"].as_array().expect("cases") {
            let f = |key: &str| case[key].as_f64().expect("a number");
            let settings = Optim {
                lr: f("lr"),
                weight_decay: f("weight_decay"),
                max_grad_norm: f("max_grad_norm"),
                ..settings()
            };
            let of = |p: &Value| {
                let shape: Vec<i64> = numbers(&p["shape"]).into_iter().map(|n| n as i64).collect();
                let name = p["name"].as_str().expect("a name").to_owned();
                Parameter { name, value: tensor(&numbers(&p["start"])), shape }
            };
            let parameters: Vec<_> = case["parameters"].as_array().expect("a list").iter().map(of).collect();
            let handle = |p: &Parameter| (p.name.clone(), p.value.shallow_clone());
            let handles: Vec<_> = parameters.iter().map(handle).collect();
            let mut optimiser = Optimiser::new(parameters, &settings, 10);
            for step in case["steps"].as_array().expect("steps") {
                let gradient = |(name, _): &(String, _)| tensor(&numbers(&step["gradients"][name.as_str()]));
                let gradients: Vec<_> = handles.iter().map(gradient).collect();
                optimiser.update(&gradients, None).expect("a finite gradient");
                for (name, value) in &handles {
                    let expected = tensor(&numbers(&step["values"][name.as_str()]));
                    assert!(
                        value.allclose(&expected, 1e-5, 1e-5, false),
                        "{name}: {value} is not {expected}"
                    );
                }
            }
        }
    }

    /// Matrices with their gradients, as a stack or each by itself.
    fn made(count: i64, is_stacked: bool) -> Vec<(Parameter, Tensor)> {
        let element = |n: i64| ((n * n % 97) as f64 / 50.0 - 1.0, (n * 31 % 89) as f64 / 40.0 - 1.1);
        let (values, gradients): (Vec<f64>, Vec<f64>) = (0..count * 12).map(element).unzip();
        let (values, gradients) = (tensor(&values), tensor(&gradients));
        let part = |name: String, start: i64, length: i64, shape: Vec<i64>| {
            let value = values.narrow(0, start, length).copy();
            (Parameter { name, value, shape }, gradients.narrow(0, start, length))
        };
        if is_stacked {
            return vec![part("model.layers.0.mlp".to_owned(), 0, count * 12, vec![count, 3, 4])];
        }
        (0..count).map(|n| part(format!("model.layers.{n}.mlp"), n * 12, 12, vec![3, 4])).collect()
    }

    /// The values after two steps, one after another.
    fn moved(matrices: Vec<(Parameter, Tensor)>, groups: Option<&Groups>) -> Vec<f32> {
        let (parameters, gradients): (Vec<_>, Vec<_>) = matrices.into_iter().unzip();
        let values: Vec<Tensor> = parameters.iter().map(|p| p.value.shallow_clone()).collect();
        let mut optimiser = Optimiser::new(parameters, &settings(), 10);
        for _ in 0..2 {
            optimiser.update(&gradients, groups).expect("a step");
        }
        Vec::try_from(Tensor::cat(&values, 0)).expect("float32")
    }

    /// What one rank holds of a matrix.
    fn own_rows((p, gradient): (Parameter, Tensor), group: &Group) -> (Parameter, Tensor) {
        let own = extent(&p.shape, group.rank(), group.size());
        let rows = |tensor: &Tensor| tensor.narrow(0, own.start, own.end - own.start).copy();
        (Parameter { value: rows(&p.value), ..p }, rows(&gradient))
    }

    /// The experts of a stack are matrices by themselves, on ranks of which one has none too.
    #[test]
    fn a_stack_is_its_matrices() {
        let expected = moved(made(3, false), None);
        let close = |found: &[f32]| found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(&moved(made(3, true), None)));
        let parts = ranks(4, |group| {
            let of_rank = |matrix| own_rows(matrix, &group);
            let own = made(3, true).into_iter().map(of_rank).collect();
            moved(own, Some(&group.into()))
        });
        assert!(close(&parts.concat()), "{parts:?} {expected:?}");
    }

    /// Each rank's rows go to the rank that puts the matrix together, and their update comes back.
    #[test]
    fn a_matrix_is_sent_there_and_back() {
        // Of 3 rows on 2 ranks the first has 2. Rank 0 puts together matrices 0 and 2, rank 1 puts together 1.
        let sent = ranks(2, |group| {
            let of_rank = |matrix| own_rows(matrix, &group);
            let own = made(3, false).into_iter().map(of_rank).collect();
            let groups = Groups::from(group);
            moved(own, Some(&groups));
            groups.all.traffic().all_to_all
        });
        // Two steps; rows of 4 columns of 4 bytes. Rank 0 sends 2 rows of 1 there, and 1 row each of 0 and 2 back.
        assert_eq!(sent, [2 * 4 * 4 * (2 + 2), 2 * 4 * 4 * (2 + 2)]);
    }

    #[test]
    fn singular_values_come_near_one() {
        tch::manual_seed(4);
        for size in [[8, 20], [20, 8], [12, 12]] {
            let orthogonal = orthogonalised(&Tensor::randn(size, (Kind::Float, Device::Cpu)));
            let (_, values, _) = orthogonal.svd(true, true);
            assert!(values.min().double_value(&[]) > 0.5 && values.max().double_value(&[]) < 1.5, "{values}");
        }
        // Without a gradient nothing moves.
        assert_eq!(
            orthogonalised(&Tensor::zeros([3, 4], (Kind::Float, Device::Cpu)))
                .count_nonzero(0)
                .sum(Kind::Int64)
                .int64_value(&[]),
            0
        );
    }
}
