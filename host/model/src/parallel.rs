//! Layers that several ranks compute together.
//!
//! A stream of tokens is cut into parts of equal length, wherever its sequences begin, one for each rank of the context
//! and the tensor group together; what is by token, such as norms, embedding, router and loss, each computes for its own part. For attention and the
//! feed-forward network the tensor group puts its parts together, computes some heads or columns each, and adds up the
//! results part by part (Korthikanti et al. 2022, sequence parallelism). The context group gathers keys and values.

use molt_torch::{Group, TorchError};
use tch::Tensor;

/// The ranks that compute a layer with this one. A group is absent where it would be this rank alone.
#[derive(Debug, Default)]
pub struct Parallel {
    /// They hold slices of the projections of attention and of the dense feed-forward networks.
    pub tensor: Option<Group>,
    /// They attend for a part of the tokens each.
    pub context: Option<Group>,
    /// They hold some of the experts of each layer, and send every token to where its experts are.
    pub expert: Option<Group>,
}

/// What one rank needs of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// All of it.
    Whole,
    /// Its slice of this dimension, which is cut among the tensor group.
    Tensor(usize),
    /// Its slice of dimension 0, which is cut among the expert group.
    Expert,
}

impl Cut {
    /// How the parameter of this name is cut. An adapter's A has the columns of the weight, its B the rows.
    pub fn of(name: &str) -> Self {
        let is_one_of = |all: &[&str]| all.iter().any(|part| name.contains(&format!(".{part}.")));
        if name.contains(".mlp.experts.") {
            Self::Expert
        } else if is_one_of(&["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"])
            && !name.contains("lora_A")
        {
            Self::Tensor(0)
        } else if is_one_of(&["o_proj", "down_proj"]) && !name.contains("lora_B") {
            Self::Tensor(1)
        } else {
            Self::Whole
        }
    }
}

impl Parallel {
    /// All of them.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.tensor.iter().chain(&self.context).chain(&self.expert)
    }

    /// `[B, T, d]` of the tokens of this rank to those of its tensor group.
    pub(crate) fn spread(&self, x: Tensor) -> Result<Tensor, TorchError> {
        self.tensor.as_ref().map_or(Ok(x.shallow_clone()), |group| group.gathered(&x, 1))
    }

    /// The sum over the tensor group of `[B, T, d]`, of which each rank gets its tokens.
    pub(crate) fn summed(&self, x: Tensor) -> Result<Tensor, TorchError> {
        self.tensor.as_ref().map_or(Ok(x.shallow_clone()), |group| group.scattered(&x, 1))
    }

    /// Keys and values `[B, T, kv_heads, head_dim]` of the tokens of this rank, and of all before them.
    pub(crate) fn seen(&self, key: Tensor, value: Tensor) -> Result<(Tensor, Tensor), TorchError> {
        let Some(group) = &self.context else { return Ok((key, value)) };
        let seen = key.size()[1] * (group.rank() as i64 + 1);
        let heads = key.size()[2];
        let all = group.gathered(&Tensor::cat(&[key, value], 2), 1)?.narrow(1, 0, seen);
        Ok((all.narrow(2, 0, heads), all.narrow(2, heads, heads)))
    }
}
