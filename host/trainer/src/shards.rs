//! The parameters of the policy, cut among the ranks.
//!
//! Every parameter, or the slice of it that some ranks need, is cut on dimension 0 by itself: see [`Mesh::held`]. What
//! a rank holds of one unit lies in one flat buffer, padded to the same length on all ranks, so that a unit is gathered
//! by one collective and its gradient scattered by another; with tensor or expert parallelism, in one such buffer for
//! each of the groups that share slices. The padding is zero and stays zero. Frozen parameters lie behind the trained
//! ones, and have neither gradient nor moments.

use crate::error::TrainError;
use crate::mesh::{Groups, Holders, Mesh};
use crate::optim::Parameter;
use molt_model::{Cut, Network, Unit, Weights};
use molt_torch::{Group, Pending};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use tch::{Kind, Tensor};

/// This rank's part of all parameters and of their gradients.
#[derive(Debug)]
pub(crate) struct Shards {
    /// None for a process that trains alone.
    ranks: Option<Groups>,
    units: HashMap<Unit, Held>,
    /// The kind of all parameters, and what they are rounded to before they are gathered to be computed with.
    held: Kind,
    gathered: Kind,
}

/// What this rank holds of a unit.
#[derive(Debug)]
struct Held {
    /// By who holds the other parts.
    shards: Vec<Shard>,
    /// Whether each parameter is trained, in the order of [`Network::names`].
    trained: Vec<bool>,
}

#[derive(Debug)]
struct Shard {
    holders: Holders,
    /// `[P]`: this rank's rows of one parameter after the other, the trained ones first.
    values: Tensor,
    /// `[T]`: of the trained ones.
    gradient: Tensor,
    /// The gradient is zero, whatever the tensor holds: what comes first replaces it.
    is_unset: Cell<bool>,
    pieces: Vec<Piece>,
}

/// Where a parameter lies in the flat buffer.
#[derive(Debug)]
struct Piece {
    name: String,
    /// Its place in [`Network::names`].
    index: usize,
    /// The shape of the parameter, and of the slice of it that a rank computes with.
    whole: Vec<i64>,
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
    held: &'s Held,
    kind: Kind,
    /// Of each shard; none alone.
    pending: Vec<Pending<'s>>,
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
        let (rank, mesh) = place(ranks.as_ref());
        let network = weights.network();
        let unit = |unit| Ok((unit, Held::read(weights, network.names(unit), trained, (rank, mesh))?));
        let units: HashMap<_, Held> =
            network.units().into_iter().map(unit).collect::<Result<_, TrainError>>()?;
        let held = units[&Unit::Embedding].shards[0].values.kind();
        Ok(Self { ranks, units, held, gathered: network.gathered(held) })
    }

    pub(crate) fn ranks(&self) -> Option<&Group> {
        self.ranks.as_ref().map(|groups| &groups.all)
    }

    /// All groups by which parameters and gradients are sent.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.ranks.iter().flat_map(Groups::of_shards)
    }

    /// Which rank this is, and how the ranks divide the work.
    pub(crate) fn place(&self) -> (usize, Mesh) {
        place(self.ranks.as_ref())
    }

    /// Handles to what this rank trains: values and gradients share their storage with the shards.
    pub(crate) fn parameters(&self, network: &Network) -> Vec<Parameter> {
        let of = |unit: Unit| {
            let mut all: Vec<_> = self.units[&unit].shards.iter().flat_map(Shard::parameters).collect();
            all.sort_by_key(|(index, _)| *index);
            all.into_iter().map(|(_, parameter)| parameter)
        };
        network.units().into_iter().flat_map(of).collect()
    }

    /// Which of a unit's parameters are trained, in the order of [`Network::names`].
    pub(crate) fn trained(&self, unit: Unit) -> impl Iterator<Item = bool> {
        self.units[&unit].trained.iter().copied()
    }

    /// Starts to gather the parameters of a unit to compute with: of each, what this rank needs. Every rank calls it.
    pub(crate) fn gather(&self, unit: Unit) -> Result<Gathering<'_>, TrainError> {
        self.gather_in(self.gathered, unit)
    }

    fn gather_in(&self, kind: Kind, unit: Unit) -> Result<Gathering<'_>, TrainError> {
        let held = &self.units[&unit];
        let start = |groups| {
            let of = move |shard: &Shard| shard.group(groups).all_gather(&shard.values.to_kind(kind));
            held.shards.iter().map(of)
        };
        let pending = self.ranks.iter().flat_map(start).collect::<Result<_, _>>()?;
        Ok(Gathering { held, kind, pending })
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
        gradients: &[Option<Tensor>],
    ) -> Result<Option<Scattering<'_>>, TrainError> {
        let held = &self.units[&unit];
        let Some(groups) = &self.ranks else {
            for shard in &held.shards {
                let is_unset = shard.is_unset.take();
                for piece in shard.pieces.iter().filter(|piece| piece.is_trained) {
                    let mut sum = piece.of(&shard.gradient).view(piece.shape.as_slice());
                    match gradients.get(piece.index).and_then(Option::as_ref) {
                        Some(gradient) if is_unset => sum.copy_(gradient),
                        Some(gradient) => drop(sum.g_add_(gradient)),
                        None if is_unset => drop(sum.zero_()),
                        None => {}
                    }
                }
            }
            return Ok(None);
        };
        let learns = held.shards.iter().filter(|shard| shard.gradient.numel() > 0);
        let start = |shard: &'_ Shard| {
            let group = shard.group(groups);
            group.reduce_scatter(&shard.pack(gradients, group.size() as i64))
        };
        let parts: Vec<_> =
            learns.map(|shard| Ok((shard, start(shard)?))).collect::<Result<_, TrainError>>()?;
        Ok((!parts.is_empty()).then_some(Scattering { parts }))
    }

    fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.units.values().flat_map(|held| &held.shards)
    }

    /// Forgets all gradients, which begin at zero again.
    pub(crate) fn begin_gradient(&self) {
        self.shards().for_each(|shard| shard.is_unset.set(true));
    }

    /// After the last scatter: what nothing was added to is zero.
    pub(crate) fn end_gradient(&self) {
        for shard in self.shards().filter(|shard| shard.is_unset.take()) {
            let _ = shard.gradient.shallow_clone().zero_();
        }
    }
}

/// Which rank this is, and how the ranks divide the work.
fn place(ranks: Option<&Groups>) -> (usize, Mesh) {
    ranks.map_or((0, Mesh::of(1)), |groups| (groups.all.rank(), groups.mesh))
}

impl Held {
    fn read(
        weights: &Weights,
        names: Vec<String>,
        trained: &BTreeSet<String>,
        (rank, mesh): (usize, Mesh),
    ) -> Result<Self, TrainError> {
        let is_trained = names.iter().map(|name| trained.contains(name)).collect();
        let mut by_holders: BTreeMap<Holders, Vec<(usize, String)>> = BTreeMap::new();
        for (index, name) in names.into_iter().enumerate() {
            by_holders.entry(mesh.holders(Cut::of(&name))).or_default().push((index, name));
        }
        let read = |(holders, names)| Shard::read(weights, holders, names, trained, (rank, mesh));
        Ok(Self { shards: by_holders.into_iter().map(read).collect::<Result<_, _>>()?, trained: is_trained })
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
        holders: Holders,
        mut names: Vec<(usize, String)>,
        trained: &BTreeSet<String>,
        (rank, mesh): (usize, Mesh),
    ) -> Result<Self, TrainError> {
        let (mut pieces, mut parts, mut start, mut learnt) = (Vec::new(), Vec::new(), 0, 0);
        names.sort_by_key(|(_, name)| !trained.contains(name));
        for (index, name) in names {
            let (whole, cut) = (weights.shapes()[&name].clone(), Cut::of(&name));
            let lengths = |ranges: &[Range<i64>]| ranges.iter().map(|r| r.end - r.start).collect::<Vec<_>>();
            let shape = lengths(&mesh.needed(rank, cut, &whole));
            let (held, most) = mesh.held(rank, cut, &whole);
            let rows = held.first().map_or(0..1, Clone::clone);
            let mut own = weights.rows(&name, rows)?;
            let is_slice = |(dim, range): &(usize, &Range<i64>)| range.end - range.start < whole[*dim];
            for (dim, range) in held.iter().enumerate().skip(1).filter(is_slice) {
                own = own.narrow(dim as i64, range.start, range.end - range.start);
            }
            let own = own.flatten(0, -1);
            let length = most * shape.iter().skip(1).product::<i64>();
            let is_trained = trained.contains(&name);
            learnt += if is_trained { length } else { 0 };
            parts.push(own.constant_pad_nd([0, length - own.size()[0]]));
            let own = own.size()[0];
            pieces.push(Piece { name, index, whole, shape, is_trained, start, length, own });
            start += length;
        }
        let values = Tensor::cat(&parts, 0);
        let gradient = values.new_zeros([learnt], (values.kind(), values.device()));
        Ok(Self { holders, gradient, values, is_unset: Cell::new(false), pieces })
    }

    fn group<'g>(&self, groups: &'g Groups) -> &'g Group {
        groups.of(self.holders)
    }

    /// With their places in [`Network::names`].
    fn parameters(&self) -> impl Iterator<Item = (usize, Parameter)> {
        let of = |piece: &Piece| Parameter {
            name: piece.name.clone(),
            value: piece.of(&self.values).narrow(0, 0, piece.own),
            gradient: piece.of(&self.gradient).narrow(0, 0, piece.own),
            shape: piece.whole.clone(),
        };
        self.pieces.iter().filter(|piece| piece.is_trained).map(move |piece| (piece.index, of(piece)))
    }

    /// Whole gradients of the trained parameters as `[ranks * P]`: for every rank what it holds.
    fn pack(&self, gradients: &[Option<Tensor>], size: i64) -> Tensor {
        let kind = (self.values.kind(), self.values.device());
        let packed = Tensor::empty([size, self.gradient.size()[0]], kind);
        for piece in self.pieces.iter().filter(|piece| piece.is_trained) {
            let mut part = packed.narrow(1, piece.start, piece.length);
            let Some(gradient) = gradients.get(piece.index).and_then(Option::as_ref) else {
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
    /// What this rank computes with: the parameters, or its slices of them, in the order of [`Network::names`],
    /// without gradients.
    pub(crate) fn wait(self) -> Result<Vec<Tensor>, TrainError> {
        let mut all = Vec::new();
        let mut pending = self.pending.into_iter();
        for shard in &self.held.shards {
            let gathered = match pending.next() {
                Some(pending) => pending.wait()?,
                None => shard.values.to_kind(self.kind),
            };
            let gathered = gathered.view([-1, shard.values.size()[0]]);
            all.extend(shard.pieces.iter().map(|piece| {
                let padded = gathered.narrow(1, piece.start, piece.length).reshape([-1]);
                let elements = piece.shape.iter().product();
                (piece.index, padded.narrow(0, 0, elements).view(piece.shape.as_slice()))
            }));
        }
        all.sort_by_key(|(index, _)| *index);
        Ok(all.into_iter().map(|(_, tensor)| tensor).collect())
    }
}

impl Scattering<'_> {
    pub(crate) fn wait(self) -> Result<(), TrainError> {
        for (shard, pending) in self.parts {
            let own = pending.wait()?;
            let mut sum = shard.gradient.shallow_clone();
            match shard.is_unset.take() {
                true => sum.copy_(&own),
                false => drop(sum.g_add_(&own)),
            }
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
