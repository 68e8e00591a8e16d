//! The weights of a model for those who need a part of them.

use molt_core::settings::Compute;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use tch::{Device, Kind, Tensor};

use crate::adapter::Adapter;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::decoder::{Decoder, match_names};
use crate::error::ModelError;
use crate::experts::stored;
use crate::network::{EMBEDDING, HEAD, Network};

/// Values of each parameter that [`Weights::fingerprint`] looks at, from the beginning and from the end.
const LOOKED_AT: i64 = 4096;

/// The weights of a model, of which one can read some rows: from the files of a directory, or in memory.
#[derive(Debug)]
pub struct Weights {
    network: Network,
    files: Option<Checkpoint>,
    shapes: BTreeMap<String, Vec<i64>>,
    /// Those that are in no file.
    memory: BTreeMap<String, Tensor>,
}

impl Weights {
    /// Opens `config.json` and the safetensors files of a Hugging Face model directory. No values are read yet.
    ///
    /// # Errors
    /// If a file is absent or damaged, the architecture is not supported, or a tensor is missing, unknown or of
    /// another shape than `config.json` makes it.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let config = Config::load(&dir.join("config.json"))?;
        let files = Checkpoint::open(dir)?;
        config
            .fits(files.names().count(), files.longest())
            .map_err(|reason| ModelError::Config { path: dir.join("config.json"), reason })?;
        let shapes: BTreeMap<_, _> = config.parameters().into_iter().collect();
        // Old checkpoints store the rotary frequencies, and some a copy of the tied embedding.
        let ignored = |name: &str| {
            name.ends_with(".rotary_emb.inv_freq") || (config.tie_word_embeddings && name == HEAD)
        };
        let names: Vec<String> = shapes.iter().flat_map(|(name, shape)| stored(name, shape).0).collect();
        match_names(names.iter().map(String::as_str), files.names().filter(|name| !ignored(name)))?;
        for (name, shape) in &shapes {
            let (parts, of_part) = stored(name, shape);
            parts.iter().try_for_each(|part| files.check(part, of_part).map(drop))?;
        }
        if config.tie_word_embeddings && files.names().any(|name| name == HEAD) {
            let shape = &shapes[EMBEDDING];
            for rows in ranges(shape) {
                if files.read(HEAD, shape, rows.clone())? != files.read(EMBEDDING, shape, rows)? {
                    return Err(ModelError::Config {
                        path: dir.join("config.json"),
                        reason: format!("tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}"),
                    });
                }
            }
        }
        Ok(Self { network: Network::new(config), files: Some(files), shapes, memory: BTreeMap::new() })
    }

    /// With an adapter on the projections that are called one of `targets`, or on all if there are none; see
    /// [`Network::names`]. As its B is zero, the model computes what it did.
    ///
    /// # Errors
    /// If the model has no such projection, or one of a lower rank.
    pub fn with_adapter(
        mut self,
        rank: usize,
        alpha: f64,
        targets: &[String],
        seed: u64,
    ) -> Result<Self, ModelError> {
        let adapter = Adapter::new(self.network.config(), rank, alpha, targets)?;
        for (name, tensor) in adapter.parameters(self.network.config(), seed) {
            self.shapes.insert(name.clone(), tensor.size());
            self.memory.insert(name, tensor);
        }
        self.network = self.network.adapted(adapter);
        Ok(self)
    }

    /// Layers are computed in these numbers; what [`Weights::rows`] gives stays float32.
    pub fn in_numbers(self, compute: Compute) -> Self {
        Self { network: self.network.in_numbers(compute), ..self }
    }

    /// What the model computes.
    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn into_network(self) -> Network {
        self.network
    }

    /// Names and shapes of all parameters, those of [`Decoder::parameters`].
    pub fn shapes(&self) -> &BTreeMap<String, Vec<i64>> {
        &self.shapes
    }

    /// Some rows of a parameter: a range of its first dimension. From a file they come as float32.
    ///
    /// # Errors
    /// If there is no such parameter or its file cannot be read.
    ///
    /// # Panics
    /// If it has fewer rows.
    pub fn rows(&self, name: &str, rows: Range<i64>) -> Result<Tensor, ModelError> {
        if let Some(tensor) = self.memory.get(name) {
            return Ok(tensor.detach().narrow(0, rows.start, rows.end - rows.start));
        }
        let (Some(shape), Some(files)) = (self.shapes.get(name), &self.files) else {
            return Err(ModelError::Missing(vec![name.to_owned()]));
        };
        let (parts, of_part) = stored(name, shape);
        if of_part.len() == shape.len() {
            return files.read(name, shape, rows);
        }
        let whole = |part: &String| files.read(part, of_part, 0..of_part.first().copied().unwrap_or(1));
        let parts: Vec<Tensor> =
            parts[rows.start as usize..rows.end as usize].iter().map(whole).collect::<Result<_, _>>()?;
        Ok(if parts.is_empty() {
            Tensor::empty([0], (Kind::Float, Device::Cpu))
        } else {
            Tensor::stack(&parts, 0)
        })
    }

    /// What two models with the same weights have in common, and others hardly: sums over the first and the last
    /// rows of every parameter, so that nobody has to read all of it.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<String, ModelError> {
        let mut text = String::new();
        for (name, shape) in &self.shapes {
            let (all, few) = (rows_of(shape), ranges(shape).next().map_or(0, |rows| rows.end));
            text += &format!("{name} {shape:?}");
            for rows in [0..few, all - few..all] {
                let part = tch::no_grad(|| self.rows(name, rows))?;
                for sum in [part.sum(Kind::Double), part.square().sum(Kind::Double)] {
                    text += &format!(" {:x}", sum.double_value(&[]).to_bits());
                }
            }
            text.push('\n');
        }
        Ok(text)
    }
}

impl From<Decoder> for Weights {
    fn from(decoder: Decoder) -> Self {
        let (network, memory) = decoder.into_parts();
        let shapes = memory.iter().map(|(name, tensor)| (name.clone(), tensor.size())).collect();
        Self { network, files: None, shapes, memory }
    }
}

fn rows_of(shape: &[i64]) -> i64 {
    shape.first().copied().unwrap_or(1)
}

/// All rows of a parameter in ranges of about [`LOOKED_AT`] values.
fn ranges(shape: &[i64]) -> impl Iterator<Item = Range<i64>> {
    let rows = rows_of(shape);
    let row = shape.iter().skip(1).product::<i64>().max(1);
    let few = (LOOKED_AT / row).max(1);
    (0..rows).step_by(few as usize).map(move |start| start..(start + few).min(rows))
}
