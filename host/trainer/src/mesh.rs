//! How the ranks divide the work: by data, by sequence, by heads, and by experts.
//!
//! Of `n` ranks, `tensor` in a row hold slices of the projections, `context` such teams in a row share their rows, and
//! the others have other rows. Each rank of `tensor · context` has one part of the tokens of its rows. Apart from that,
//! `expert` ranks in a row hold the experts of a layer together. Whoever needs the same slice of a parameter holds a
//! part of it, so that every element of every parameter is held by one rank.

use crate::error::TrainError;
use molt_core::settings::Fsdp;
use molt_model::{Config, Cut, Parallel};
use molt_torch::{Group, TorchError, rows};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The number of ranks, and of those that share what the settings of the same name say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mesh {
    pub(crate) ranks: usize,
    #[serde(default = "one")]
    pub(crate) tensor: usize,
    #[serde(default = "one")]
    pub(crate) context: usize,
    #[serde(default = "one")]
    pub(crate) expert: usize,
}

impl Mesh {
    /// Whether the numbers are those of a mesh: one that a file says need not be.
    pub(crate) fn divides(&self) -> bool {
        let Self { ranks, tensor, context, expert } = *self;
        let team = tensor.saturating_mul(context);
        ranks > 0 && team > 0 && expert > 0 && ranks.is_multiple_of(team) && ranks.is_multiple_of(expert)
    }
}

fn one() -> usize {
    1
}

/// Where a rank is among those that share something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: usize,
    pub(crate) of: usize,
}

/// Ranks that need the same slice of a parameter, and hold a part of it each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holders {
    All,
    SameHeads,
    SameExperts,
}

/// The groups that a rank is in.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) mesh: Mesh,
    pub(crate) all: Group,
    /// Absent where they are all ranks.
    same_heads: Option<Group>,
    same_experts: Option<Group>,
    pub(crate) parallel: Parallel,
}

/// They divide the rows and nothing else.
impl From<Group> for Groups {
    fn from(all: Group) -> Self {
        let mesh = Mesh::of(all.size());
        Self { mesh, all, same_heads: None, same_experts: None, parallel: Parallel::default() }
    }
}

impl Mesh {
    /// Ranks that divide the rows and nothing else.
    pub(crate) fn of(ranks: usize) -> Self {
        Self { ranks, tensor: 1, context: 1, expert: 1 }
    }

    /// So many ranks, as the settings divide them, of a model.
    ///
    /// # Errors
    /// If something does not divide.
    pub(crate) fn new(ranks: usize, fsdp: &Fsdp, config: &Config) -> Result<Self, TrainError> {
        let mesh = Self {
            ranks,
            tensor: fsdp.tensor_parallel,
            context: fsdp.context_parallel,
            expert: fsdp.expert_parallel,
        };
        let Self { tensor, context, expert, .. } = mesh;
        let team = tensor * context;
        let refused = |sentence: String| Err(TrainError::Mesh(sentence));
        if !ranks.is_multiple_of(team) {
            return refused(format!(
                "fsdp.tensor_parallel {tensor} times fsdp.context_parallel {context} is {team}, and {ranks} ranks do \
                 not divide by it: start a multiple of {team} ranks with --nproc, or lower them"
            ));
        }
        if !ranks.is_multiple_of(expert) {
            return refused(format!(
                "fsdp.expert_parallel is {expert}, and {ranks} ranks do not divide by it: start a multiple of \
                 {expert} ranks with --nproc, or lower it"
            ));
        }
        let is_dense = (0..config.num_hidden_layers).any(|layer| config.expert_layer(layer).is_none());
        let of_tensor = [
            ("num_attention_heads", config.num_attention_heads),
            ("num_key_value_heads", config.num_key_value_heads),
            ("intermediate_size", if is_dense { config.intermediate_size } else { tensor }),
        ];
        for (what, size) in of_tensor {
            if !size.is_multiple_of(tensor) {
                let (least, rest) = (size / tensor, size % tensor);
                return refused(format!(
                    "fsdp.tensor_parallel is {tensor}, and the {what} of the model do not divide by it: {size} = \
                     {tensor} x {least} + {rest}"
                ));
            }
        }
        match &config.experts {
            None if expert > 1 => refused(format!(
                "fsdp.expert_parallel is {expert}, and this model has no experts: leave it at 1"
            )),
            Some(experts) if !experts.count.is_multiple_of(expert) => refused(format!(
                "fsdp.expert_parallel is {expert}, and the experts of a layer do not divide by it: {} = {expert} x {} \
                 + {}",
                experts.count,
                experts.count / expert,
                experts.count % expert
            )),
            _ => Ok(mesh),
        }
    }

    /// Which of the teams that share rows a rank is in.
    pub(crate) fn team(&self, rank: usize) -> Place {
        let size = self.tensor * self.context;
        Place { index: rank / size, of: self.ranks / size }
    }

    /// Which part of the tokens of its rows a rank has.
    pub(crate) fn part(&self, rank: usize) -> Place {
        let of = self.tensor * self.context;
        Place { index: rank % of, of }
    }

    /// Which part of the tokens of its rows a rank attends for.
    pub(crate) fn attended(&self, rank: usize) -> Place {
        Place { index: rank / self.tensor % self.context, of: self.context }
    }

    pub(crate) fn holders(&self, cut: Cut) -> Holders {
        match cut {
            Cut::Tensor(_) if self.tensor > 1 => Holders::SameHeads,
            Cut::Expert if self.expert > 1 => Holders::SameExperts,
            _ => Holders::All,
        }
    }

    /// Which slice a rank needs of what is so cut, and which part of the slice it holds.
    fn slice(&self, rank: usize, holders: Holders) -> (Place, Place) {
        let slices = match holders {
            Holders::All => 1,
            Holders::SameHeads => self.tensor,
            Holders::SameExperts => self.expert,
        };
        let slice = Place { index: rank % slices, of: slices };
        (slice, Place { index: rank / slices, of: self.ranks / slices })
    }

    /// The slice of a parameter of this shape that a rank needs, as a range of each dimension.
    pub(crate) fn needed(&self, rank: usize, cut: Cut, shape: &[i64]) -> Vec<Range<i64>> {
        let (slice, _) = self.slice(rank, self.holders(cut));
        let mut needed: Vec<Range<i64>> = shape.iter().map(|&length| 0..length).collect();
        let dim = if let Cut::Tensor(dim) = cut { dim } else { 0 };
        if let Some(range) = needed.get_mut(dim) {
            let length = range.end / slice.of as i64;
            *range = length * slice.index as i64..length * (slice.index as i64 + 1);
        }
        needed
    }

    /// The part of [`Mesh::needed`] that a rank holds: the [`rows`] that are its own of those that need the same.
    pub(crate) fn held(&self, rank: usize, cut: Cut, shape: &[i64]) -> Vec<Range<i64>> {
        let (_, part) = self.slice(rank, self.holders(cut));
        let mut held = self.needed(rank, cut, shape);
        if let Some(all) = held.first_mut() {
            let own = rows(all.end - all.start, part.index, part.of);
            *all = all.start + own.start..all.start + own.end;
        }
        held
    }
}

impl Groups {
    /// Joins all groups of this rank, which `join` makes by name, rank and size.
    ///
    /// # Errors
    /// If a rank does not come.
    pub(crate) fn join(
        mesh: Mesh,
        all: Group,
        join: impl Fn(&str, (usize, usize)) -> Result<Group, TorchError>,
    ) -> Result<Self, TorchError> {
        let rank = all.rank();
        // Of the ranks that are equal modulo `slices`, and of the runs of so many ranks.
        let parts = |name: &str, holders: Holders| {
            let (slice, part) = mesh.slice(rank, holders);
            let group = || join(&format!("{name} {}", slice.index), (part.index, part.of));
            (slice.of > 1).then(group).transpose()
        };
        let run = |name: &str, team: usize, place: Place| {
            (place.of > 1).then(|| join(&format!("{name} {team}"), (place.index, place.of))).transpose()
        };
        let Mesh { tensor, context, expert, .. } = mesh;
        let team = rank / (tensor * context) * tensor + rank % tensor;
        let parallel = Parallel {
            tensor: run("tensor", rank / tensor, Place { index: rank % tensor, of: tensor })?,
            context: run("context", team, mesh.attended(rank))?,
            expert: run("expert", rank / expert, Place { index: rank % expert, of: expert })?,
        };
        Ok(Self {
            mesh,
            same_heads: parts("same heads", Holders::SameHeads)?,
            same_experts: parts("same experts", Holders::SameExperts)?,
            all,
            parallel,
        })
    }

    /// Those of [`Groups::of`], each once.
    pub(crate) fn of_shards(&self) -> impl Iterator<Item = &Group> {
        std::iter::once(&self.all).chain(&self.same_heads).chain(&self.same_experts)
    }

    pub(crate) fn of(&self, holders: Holders) -> &Group {
        let some = match holders {
            Holders::All => None,
            Holders::SameHeads => self.same_heads.as_ref(),
            Holders::SameExperts => self.same_experts.as_ref(),
        };
        some.unwrap_or(&self.all)
    }
}
