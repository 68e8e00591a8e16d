//! The parameters of the policy, cut among the ranks.
//!
//! Every parameter is cut on dimension 0 by itself, as FSDP2 does: rank `r` of `n` holds rows
//! `r·⌈rows/n⌉ ..` of it, the last ranks fewer or none. What a rank holds of one unit lies in one flat buffer,
//! padded to the same length on all ranks, so that a unit is gathered by one collective and its gradient scattered
//! by another. The padding is zero and stays zero. Frozen parameters lie behind the trained ones, and have neither
//! gradient nor moments.

use crate::error::TrainError;
use crate::optim::Parameter;
use molt_model::{Network, Unit, Weights};
use molt_torch::{Group, Pending};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use tch::{Kind, Tensor};

/// This rank's part of all parameters and of their gradients.
#[derive(Debug)]
pub(crate) struct Shards {
    /// None for a process that trains alone.
    ranks: Option<Group>,
    units: HashMap<Unit, Shard>,
}

#[derive(Debug)]
struct Shard {
    /// `[P]`: this rank's rows of one parameter after the other, the trained ones first.
    values: Tensor,
    /// `[T]`: of the trained ones.
    gradient: Tensor,
    /// The gradient is zero, whatever the tensor holds: what comes first replaces it.
    is_unset: Cell<bool>,
    /// In the order of [`Network::names`].
    pieces: Vec<Piece>,
}

/// Where a parameter lies in the flat buffer.
#[derive(Debug)]
struct Piece {
    name: String,
    shape: Vec<i64>,
    is_trained: bool,
    /// First element, and elements with padding: the same on every rank.
    start: i64,
    length: i64,
    /// Elements without padding.
    own: i64,
}

/// A unit whose parameters are on their way.
pub(crate) struct Gathering<'s> {
    shard: &'s Shard,
    pending: Option<Pending<'s>>,
}

/// The gradient of a unit on its way to the ranks that hold the parameters.
pub(crate) struct Scattering<'s> {
    shard: &'s Shard,
    pending: Pending<'s>,
}

impl Shards {
    /// Reads this rank's part of `weights`. Those that are not in `trained` are frozen.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn read(
        weights: &Weights,
        trained: &BTreeSet<String>,
        ranks: Option<Group>,
    ) -> Result<Self, TrainError> {
        let place = ranks.as_ref().map_or((0, 1), |ranks| (ranks.rank() as i64, ranks.size() as i64));
        let network = weights.network();
        let unit = |unit| Ok((unit, Shard::read(weights, network.names(unit), trained, place)?));
        let units = network.units().into_iter().map(unit).collect::<Result<_, TrainError>>()?;
        Ok(Self { ranks, units })
    }

    pub(crate) fn ranks(&self) -> Option<&Group> {
        self.ranks.as_ref()
    }

    /// The whole shape of every parameter.
    pub(crate) fn shapes(&self) -> BTreeMap<String, Vec<i64>> {
        let pieces = self.units.values().flat_map(|shard| &shard.pieces);
        pieces.map(|piece| (piece.name.clone(), piece.shape.clone())).collect()
    }

    /// Handles to what this rank trains: values and gradients share their storage with the shards.
    pub(crate) fn parameters(&self, network: &Network) -> Vec<Parameter> {
        let of = |unit: Unit| self.units[&unit].parameters();
        network.units().into_iter().flat_map(of).collect()
    }

    /// Which of a unit's parameters are trained, in the order of [`Network::names`].
    pub(crate) fn trained(&self, unit: Unit) -> impl Iterator<Item = bool> {
        self.units[&unit].pieces.iter().map(|piece| piece.is_trained)
    }

    /// Starts to gather the parameters of a unit. Every rank calls it.
    pub(crate) fn gather(&self, unit: Unit) -> Result<Gathering<'_>, TrainError> {
        let shard = &self.units[&unit];
        let pending = self.ranks.as_ref().map(|ranks| ranks.all_gather(&shard.values)).transpose()?;
        Ok(Gathering { shard, pending })
    }

    /// Adds the gradients of a unit's trained parameters to those of the shards: the sum over all ranks. One that
    /// is None or missing is zero.
    /// Every rank calls it. With other ranks it goes on until [`Scattering::wait`].
    pub(crate) fn scatter(
        &self,
        unit: Unit,
        gradients: &[Option<Tensor>],
    ) -> Result<Option<Scattering<'_>>, TrainError> {
        let shard = &self.units[&unit];
        let Some(ranks) = &self.ranks else {
            let is_unset = shard.is_unset.take();
            for (index, piece) in shard.pieces.iter().enumerate().filter(|(_, piece)| piece.is_trained) {
                let mut sum = piece.of(&shard.gradient).view(piece.shape.as_slice());
                match gradients.get(index).and_then(Option::as_ref) {
                    Some(gradient) if is_unset => sum.copy_(gradient),
                    Some(gradient) => drop(sum.g_add_(gradient)),
                    None if is_unset => drop(sum.zero_()),
                    None => {}
                }
            }
            return Ok(None);
        };
        if shard.gradient.numel() == 0 {
            return Ok(None);
        }
        let packed = shard.pack(gradients, ranks.size() as i64);
        Ok(Some(Scattering { shard, pending: ranks.reduce_scatter(&packed)? }))
    }

    /// Forgets all gradients, which begin at zero again.
    pub(crate) fn begin_gradient(&self) {
        self.units.values().for_each(|shard| shard.is_unset.set(true));
    }

    /// After the last scatter: what nothing was added to is zero.
    pub(crate) fn end_gradient(&self) {
        for shard in self.units.values().filter(|shard| shard.is_unset.take()) {
            let _ = shard.gradient.shallow_clone().zero_();
        }
    }
}

/// The elements of a flat parameter of this shape that a rank of `size` ranks holds.
pub(crate) fn extent(shape: &[i64], rank: usize, size: usize) -> Range<usize> {
    let rows = shape.first().map_or(1, |&rows| rows as usize);
    let row = shape.iter().skip(1).product::<i64>() as usize;
    let most = rows.div_ceil(size);
    (rank * most).min(rows) * row..((rank + 1) * most).min(rows) * row
}

impl Shard {
    fn read(
        weights: &Weights,
        names: Vec<String>,
        trained: &BTreeSet<String>,
        (rank, size): (i64, i64),
    ) -> Result<Self, TrainError> {
        let (mut pieces, mut parts, mut start) = (Vec::new(), Vec::new(), 0);
        let mut order: Vec<_> = names.into_iter().enumerate().collect();
        order.sort_by_key(|(_, name)| !trained.contains(name));
        for (place, name) in order {
            let shape = weights.shapes()[&name].clone();
            let rows = shape.first().copied().unwrap_or(1);
            let row = shape.iter().skip(1).product::<i64>();
            let most = (rows + size - 1) / size;
            let first = (rank * most).min(rows);
            let own = (rows - first).min(most);
            let held = weights.rows(&name, first..first + own)?.flatten(0, -1);
            parts.push(held.constant_pad_nd([0, (most - own) * row]));
            let is_trained = trained.contains(&name);
            pieces
                .push((place, Piece { name, shape, is_trained, start, length: most * row, own: own * row }));
            start += most * row;
        }
        pieces.sort_by_key(|(place, _)| *place);
        let pieces: Vec<Piece> = pieces.into_iter().map(|(_, piece)| piece).collect();
        let values = Tensor::cat(&parts, 0);
        let learnt: i64 = pieces.iter().filter(|piece| piece.is_trained).map(|piece| piece.length).sum();
        let gradient = values.new_zeros([learnt], (values.kind(), values.device()));
        Ok(Self { gradient, values, is_unset: Cell::new(false), pieces })
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.pieces
            .iter()
            .filter(|piece| piece.is_trained)
            .map(|piece| Parameter {
                name: piece.name.clone(),
                value: piece.of(&self.values).narrow(0, 0, piece.own),
                gradient: piece.of(&self.gradient).narrow(0, 0, piece.own),
                shape: piece.shape.clone(),
            })
            .collect()
    }

    /// Whole gradients of the trained parameters as `[ranks * P]`: for every rank what it holds.
    fn pack(&self, gradients: &[Option<Tensor>], size: i64) -> Tensor {
        let kind = (self.values.kind(), self.values.device());
        let packed = Tensor::empty([size, self.gradient.size()[0]], kind);
        for (index, piece) in self.pieces.iter().enumerate().filter(|(_, piece)| piece.is_trained) {
            let mut part = packed.narrow(1, piece.start, piece.length);
            let Some(gradient) = gradients.get(index).and_then(Option::as_ref) else {
                let _ = part.zero_();
                continue;
            };
            // The first ranks hold as many rows as there is room for, one perhaps fewer, the others none.
            let flat = gradient.flatten(0, -1);
            let full = flat.size()[0] / piece.length;
            let (rows, rest) = (full * piece.length, flat.size()[0] % piece.length);
            part.narrow(0, 0, full).copy_(&flat.narrow(0, 0, rows).view([full, piece.length]));
            if full < size {
                let _ = part.narrow(0, full, size - full).zero_();
                part.get(full).narrow(0, 0, rest).copy_(&flat.narrow(0, rows, rest));
            }
        }
        packed.flatten(0, 1)
    }
}

impl Piece {
    /// The part of a flat buffer that is this parameter's.
    fn of(&self, flat: &Tensor) -> Tensor {
        flat.narrow(0, self.start, self.length)
    }
}

impl Gathering<'_> {
    /// The whole parameters, in the order of [`Network::names`], without gradients.
    pub(crate) fn wait(self) -> Result<Vec<Tensor>, TrainError> {
        let pieces = self.shard.pieces.iter();
        let Some(pending) = self.pending else {
            let values = &self.shard.values;
            return Ok(pieces.map(|piece| piece.of(values).view(piece.shape.as_slice())).collect());
        };
        let all = pending.wait()?.view([-1, self.shard.values.size()[0]]);
        let whole = |piece: &Piece| {
            let elements = piece.shape.iter().product();
            let padded = all.narrow(1, piece.start, piece.length).reshape([-1]);
            padded.narrow(0, 0, elements).view(piece.shape.as_slice())
        };
        Ok(pieces.map(whole).collect())
    }
}

impl Scattering<'_> {
    pub(crate) fn wait(self) -> Result<(), TrainError> {
        let own = self.pending.wait()?;
        let mut sum = self.shard.gradient.shallow_clone();
        match self.shard.is_unset.take() {
            true => sum.copy_(&own),
            false => drop(sum.g_add_(&own)),
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
