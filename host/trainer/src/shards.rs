//! The parameters of the policy, cut among the ranks.
//!
//! Every parameter, or the slice of it that some ranks need, is cut on dimension 0 by itself: see [`Mesh::held`]. Its
//! rows are sent straight to where they are computed with, and those of its gradient straight to who holds them, so
//! nothing is padded or packed. Frozen parameters have neither gradient nor moments.

use crate::error::TrainError;
use crate::mesh::{Groups, Holders, Mesh};
use crate::optim::Parameter;
use molt_model::{Cut, Network, Unit, Weights};
use molt_torch::{Group, Pending};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use tch::{Kind, Tensor};

/// This rank's part of all parameters and of their gradients.
#[derive(Debug)]
pub(crate) struct Shards {
    /// None for a process that trains alone.
    ranks: Option<Groups>,
    /// Of each unit what this rank holds, in the order of [`Network::names`].
    units: HashMap<Unit, Vec<Shard>>,
    /// The kind of all parameters, and what they are rounded to before they are gathered to be computed with.
    held: Kind,
    gathered: Kind,
}

/// What this rank holds of a parameter.
#[derive(Debug)]
struct Shard {
    name: String,
    /// The shape of the parameter, and of the slice of it that a rank computes with.
    whole: Vec<i64>,
    shape: Vec<i64>,
    /// Who holds the other rows of the slice.
    holders: Holders,
    is_trained: bool,
    /// `[P]`: its rows, flat.
    value: Tensor,
    /// `[P]`: the sum of what was scattered for this step; None is zero.
    gradient: RefCell<Option<Tensor>>,
}

/// A unit whose parameters are to be computed with next.
pub(crate) enum Gathering<'s> {
    /// In a process that trains alone.
    Here(Vec<Tensor>),
    Coming(Vec<Pending<'s>>),
    /// Nothing is sent before they are waited for.
    Later(&'s Shards, Unit),
}

/// The gradient of a unit on its way to the ranks that hold the parameters.
pub(crate) struct Scattering<'s> {
    parts: Vec<(&'s Shard, Pending<'s>)>,
}

impl Shards {
    /// Reads this rank's part of `weights`. Those that are not in `trained` are frozen.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn read(
        weights: &Weights,
        trained: &BTreeSet<String>,
        ranks: Option<Groups>,
    ) -> Result<Self, TrainError> {
        let at = place(ranks.as_ref());
        let network = weights.network();
        let unit = |unit| {
            let read = |name| Shard::read(weights, name, trained, at);
            Ok((unit, network.names(unit).into_iter().map(read).collect::<Result<Vec<_>, _>>()?))
        };
        let mut units: HashMap<_, Vec<Shard>> =
            network.units().into_iter().map(unit).collect::<Result<_, TrainError>>()?;
        let held = units[&Unit::Embedding][0].value.kind();
        // What is in no file, such as the head of a critic, is float32 whatever the rest is.
        for shard in units.values_mut().flatten() {
            shard.value = shard.value.to_kind(held);
        }
        Ok(Self { ranks, units, held, gathered: network.gathered(held) })
    }

    pub(crate) fn ranks(&self) -> Option<&Group> {
        self.ranks.as_ref().map(|groups| &groups.all)
    }

    /// How the ranks divide the work, unless this is a process that trains alone.
    pub(crate) fn divided(&self) -> Option<&Groups> {
        self.ranks.as_ref()
    }

    /// All groups by which parameters and gradients are sent.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.ranks.iter().flat_map(Groups::of_shards)
    }

    /// Which rank this is, and how the ranks divide the work.
    pub(crate) fn place(&self) -> (usize, Mesh) {
        place(self.ranks.as_ref())
    }

    /// What is trained, in the order of the network.
    fn learnt(&self, network: &Network) -> impl Iterator<Item = &Shard> {
        let shards = network.units().into_iter().flat_map(|unit| &self.units[&unit]);
        shards.filter(|shard| shard.is_trained)
    }

    /// Handles to what this rank trains: values share their storage with the shards.
    pub(crate) fn parameters(&self, network: &Network) -> Vec<Parameter> {
        let of = |shard: &Shard| Parameter {
            name: shard.name.clone(),
            value: shard.value.shallow_clone(),
            shape: shard.whole.clone(),
        };
        self.learnt(network).map(of).collect()
    }

    /// The gradient of each of [`Shards::parameters`].
    pub(crate) fn gradients(&self, network: &Network) -> Vec<Tensor> {
        let of = |shard: &Shard| {
            let sum = shard.gradient.borrow();
            sum.as_ref().map_or_else(|| shard.value.zeros_like(), Tensor::shallow_clone)
        };
        self.learnt(network).map(of).collect()
    }

    /// Frees all gradients, which begin at zero again.
    pub(crate) fn forget_gradients(&self) {
        self.units.values().flatten().for_each(|shard| drop(shard.gradient.take()));
    }

    /// Which of a unit's parameters are trained, in the order of [`Network::names`].
    pub(crate) fn trained(&self, unit: Unit) -> impl Iterator<Item = bool> {
        self.units[&unit].iter().map(|shard| shard.is_trained)
    }

    /// Starts to gather the parameters of a unit to compute with: of each, what this rank needs. Every rank calls it.
    pub(crate) fn gather(&self, unit: Unit) -> Result<Gathering<'_>, TrainError> {
        self.gather_in(self.gathered, unit)
    }

    fn gather_in(&self, kind: Kind, unit: Unit) -> Result<Gathering<'_>, TrainError> {
        let shards = self.units[&unit].iter().map(|shard| (shard, shard.value.to_kind(kind)));
        let Some(groups) = &self.ranks else {
            let whole = |(shard, value): (&Shard, Tensor)| value.view(shard.shape.as_slice());
            return Ok(Gathering::Here(shards.map(whole).collect()));
        };
        let start = |(shard, value): (&Shard, Tensor)| shard.group(groups).gather_rows(&value, &shard.shape);
        Ok(Gathering::Coming(shards.map(start).collect::<Result<_, _>>()?))
    }

    /// The whole parameters of a unit, as they are held. Every rank calls it.
    pub(crate) fn whole(&self, network: &Network, unit: Unit) -> Result<Vec<Tensor>, TrainError> {
        let parallel = network.parallel();
        let whole = |(slice, name): (Tensor, String)| {
            match Cut::of(&name) {
                Cut::Tensor(dim) => parallel.tensor.as_ref().map(|group| group.gathered(&slice, dim as i64)),
                Cut::Expert => parallel.expert.as_ref().map(|group| group.gathered(&slice, 0)),
                Cut::Whole => None,
            }
            .unwrap_or(Ok(slice))
        };
        let slices = self.gather_in(self.held, unit)?.wait()?.into_iter().zip(network.names(unit));
        Ok(slices.map(whole).collect::<Result<_, _>>()?)
    }

    /// Adds the gradients of a unit's trained parameters to those of the shards: the sum over all ranks. One that
    /// is None or missing is zero.
    /// Every rank calls it. With other ranks it goes on until [`Scattering::wait`].
    pub(crate) fn scatter(
        &self,
        unit: Unit,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Option<Scattering<'_>>, TrainError> {
        let all = gradients.into_iter().chain(std::iter::repeat_with(|| None));
        let learnt = self.units[&unit].iter().zip(all).filter(|(shard, _)| shard.is_trained);
        let Some(groups) = &self.ranks else {
            for (shard, gradient) in learnt {
                if let Some(gradient) = gradient {
                    shard.add(gradient.to_kind(self.held).contiguous().view([-1]));
                }
            }
            return Ok(None);
        };
        let mut parts = Vec::new();
        for (shard, gradient) in learnt {
            let none = || Tensor::zeros(&shard.shape, (self.held, shard.value.device()));
            let gradient = gradient.map_or_else(none, |gradient| gradient.to_kind(self.held));
            parts.push((shard, shard.group(groups).scatter_rows(&gradient)?));
        }
        Ok((!parts.is_empty()).then_some(Scattering { parts }))
    }
}

/// Which rank this is, and how the ranks divide the work.
fn place(ranks: Option<&Groups>) -> (usize, Mesh) {
    ranks.map_or((0, Mesh::of(1)), |groups| (groups.all.rank(), groups.mesh))
}

impl Shard {
    fn read(
        weights: &Weights,
        name: String,
        trained: &BTreeSet<String>,
        (rank, mesh): (usize, Mesh),
    ) -> Result<Self, TrainError> {
        let (whole, cut) = (weights.shapes()[&name].clone(), Cut::of(&name));
        let needed = mesh.needed(rank, cut, &whole);
        let held = mesh.held(rank, cut, &whole);
        let mut value = weights.rows(&name, held.first().map_or(0..1, Range::clone))?;
        let is_slice = |(dim, range): &(usize, &Range<i64>)| range.end - range.start < whole[*dim];
        for (dim, range) in held.iter().enumerate().skip(1).filter(is_slice) {
            value = value.narrow(dim as i64, range.start, range.end - range.start);
        }
        Ok(Self {
            shape: needed.iter().map(|range| range.end - range.start).collect(),
            holders: mesh.holders(cut),
            is_trained: trained.contains(&name),
            // A copy: a part of a larger tensor would keep all of it.
            value: value.reshape([-1]).copy(),
            gradient: RefCell::new(None),
            whole,
            name,
        })
    }

    fn group<'g>(&self, groups: &'g Groups) -> &'g Group {
        groups.of(self.holders)
    }

    /// Takes `gradient` for its own if it is the first.
    fn add(&self, gradient: Tensor) {
        let mut sum = self.gradient.borrow_mut();
        match sum.as_mut() {
            None => *sum = Some(gradient),
            Some(sum) => drop(sum.g_add_(&gradient)),
        }
    }
}

impl Gathering<'_> {
    /// What this rank computes with: the parameters, or its slices of them, in the order of [`Network::names`],
    /// without gradients.
    pub(crate) fn wait(self) -> Result<Vec<Tensor>, TrainError> {
        match self {
            Self::Here(parameters) => Ok(parameters),
            Self::Coming(pending) => Ok(pending.into_iter().map(Pending::wait).collect::<Result<_, _>>()?),
            Self::Later(shards, unit) => shards.gather(unit)?.wait(),
        }
    }

    /// For a unit that is not needed after all: what is on its way must be taken, and nothing else is sent.
    pub(crate) fn discard(self) -> Result<(), TrainError> {
        match self {
            Self::Later(..) => Ok(()),
            sent => sent.wait().map(drop),
        }
    }
}

impl Scattering<'_> {
    pub(crate) fn wait(self) -> Result<(), TrainError> {
        for (shard, pending) in self.parts {
            shard.add(pending.wait()?);
        }
        Ok(())
    }
}

/// The sum over all ranks of numbers that each has.
pub(crate) fn sums(ranks: Option<&Group>, values: &[f64]) -> Result<Vec<f64>, TrainError> {
    reduced(ranks, values, molt_torch::Reduce::Sum)
}

/// The largest over all ranks of numbers that each has.
pub(crate) fn largest(ranks: Option<&Group>, values: &[f64]) -> Result<Vec<f64>, TrainError> {
    reduced(ranks, values, molt_torch::Reduce::Max)
}

fn reduced(
    ranks: Option<&Group>,
    values: &[f64],
    reduce: molt_torch::Reduce,
) -> Result<Vec<f64>, TrainError> {
    let Some(ranks) = ranks else { return Ok(values.to_vec()) };
    let all = ranks.all_reduce(&Tensor::from_slice(values), reduce)?.wait()?;
    Ok(Vec::try_from(all.to_kind(Kind::Double)).expect("a vector of float64"))
}
