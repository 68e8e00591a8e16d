//! Weights in the safetensors format, in one file or in shards.

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

use crate::error::ModelError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The longest header that is read: the limit of the reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;

/// The weights files of a model directory, opened and checked; values are read when they are asked for.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    shards: Vec<Shard>,
}

#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    file: File,
    /// Where the values begin, in bytes.
    values: u64,
}

impl Checkpoint {
    /// Opens `model.safetensors`, or all shards that `model.safetensors.index.json` names.
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        let index = dir.join(INDEX);
        let files = if dir.join(SINGLE).exists() {
            BTreeSet::from([SINGLE.to_owned()])
        } else if index.exists() {
            shard_names(&index)?
        } else {
            return Err(ModelError::NoWeights { path: dir.to_owned() });
        };
        let mut checkpoint = Self { tensors: BTreeMap::new(), shards: Vec::new() };
        for name in files {
            let (shard, metadata) = Shard::open(dir.join(name))?;
            for (name, info) in metadata.tensors() {
                if checkpoint.tensors.insert(name.clone(), (checkpoint.shards.len(), info.clone())).is_some()
                {
                    return Err(damaged(&shard.path, format!("{name} is in another shard too")));
                }
            }
            checkpoint.shards.push(shard);
        }
        Ok(checkpoint)
    }

    /// Names of all tensors, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The longest dimension of all tensors.
    pub(crate) fn longest(&self) -> usize {
        self.tensors.values().flat_map(|(_, info)| info.shape.iter().copied()).max().unwrap_or(0)
    }

    /// Where the named tensor lies, of which shape and kind are checked.
    pub(crate) fn check(&self, name: &str, shape: &[i64]) -> Result<(&Shard, &TensorInfo, Kind), ModelError> {
        let Some((shard, info)) = self.tensors.get(name) else {
            return Err(ModelError::Missing(vec![name.to_owned()]));
        };
        let found: Vec<i64> = info.shape.iter().map(|n| *n as i64).collect();
        if found != shape {
            return Err(ModelError::Shape { name: name.to_owned(), expected: shape.to_vec(), found });
        }
        let kind = match info.dtype {
            Dtype::F64 => Kind::Double,
            Dtype::F32 => Kind::Float,
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            other => return Err(ModelError::Kind { name: name.to_owned(), found: format!("{other:?}") }),
        };
        Ok((&self.shards[*shard], info, kind))
    }

    /// Some rows of the named tensor as float32.
    pub(crate) fn read(&self, name: &str, shape: &[i64], rows: Range<i64>) -> Result<Tensor, ModelError> {
        let (shard, info, kind) = self.check(name, shape)?;
        let mut shape = shape.to_vec();
        if let Some(all) = shape.first_mut() {
            *all = rows.end - rows.start;
        }
        let row = shape.iter().skip(1).product::<i64>() as usize * kind.elt_size_in_bytes();
        let first = info.data_offsets.0 + rows.start as usize * row;
        let bytes = shard.read(first..first + (rows.end - rows.start) as usize * row)?;
        Ok(Tensor::f_from_data_size(&bytes, &shape, kind)?.f_to_kind(Kind::Float)?)
    }
}

/// One safetensors file of float32 tensors, of which parts can be read.
#[derive(Debug)]
pub struct TensorFile {
    shard: Shard,
    metadata: Metadata,
}

impl TensorFile {
    /// Opens a file, and checks that header and values fill it exactly.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let (shard, metadata) = Shard::open(path.to_owned())?;
        Ok(Self { shard, metadata })
    }

    /// `length` elements of a tensor, flat, from its element `start`: `[length]`.
    ///
    /// # Errors
    /// If the tensor is not there, is of another kind or has fewer elements, or the file cannot be read.
    pub fn read(&self, name: &str, start: usize, length: usize) -> Result<Tensor, ModelError> {
        let info = self.metadata.info(name).ok_or_else(|| ModelError::Missing(vec![name.to_owned()]))?;
        let bytes = |elements: usize| elements.saturating_mul(size_of::<f32>());
        let (first, end) = (bytes(start), bytes(start.saturating_add(length)));
        let (begins, ends) = info.data_offsets;
        if info.dtype != Dtype::F32 || end > ends - begins {
            return Err(damaged(&self.shard.path, format!("{name} is not what it should be")));
        }
        let bytes = self.shard.read(begins + first..begins + end)?;
        Ok(Tensor::f_from_data_size(&bytes, &[length as i64], Kind::Float)?)
    }
}

impl Shard {
    /// Opens a file and checks that it is whole: header and values must fill it exactly.
    fn open(path: PathBuf) -> Result<(Self, Metadata), ModelError> {
        let read = |source| ModelError::Read { path: path.clone(), source };
        let mut file = File::open(&path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        let mut prefix = [0; 8];
        if size < prefix.len() as u64 {
            return Err(damaged(&path, format!("it has {size} bytes")));
        }
        file.read_exact(&mut prefix).map_err(read)?;
        let header = u64::from_le_bytes(prefix);
        let values = header.saturating_add(prefix.len() as u64);
        if header > LONGEST_HEADER || values > size {
            return Err(damaged(&path, format!("a header of {header} bytes in a file of {size}")));
        }
        let mut text = vec![0; header as usize];
        file.read_exact(&mut text).map_err(read)?;
        let metadata: Metadata =
            serde_json::from_slice(&text).map_err(|error| damaged(&path, format!("its header: {error}")))?;
        let expected = values.saturating_add(metadata.data_len() as u64);
        if expected != size {
            return Err(damaged(&path, format!("{size} bytes where its header says {expected}")));
        }
        Ok((Self { path, file, values }, metadata))
    }

    /// The values at `place`, in bytes.
    fn read(&self, place: Range<usize>) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; place.len()];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.values + place.start as u64))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| ModelError::Read { path: self.path.clone(), source })?;
        Ok(bytes)
    }
}

/// The distinct files of an index. They must lie beside it.
fn shard_names(index: &Path) -> Result<BTreeSet<String>, ModelError> {
    let text = std::fs::read_to_string(index)
        .map_err(|source| ModelError::Read { path: index.to_owned(), source })?;
    let json: Value = serde_json::from_str(&text).map_err(|error| damaged(index, error.to_string()))?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| damaged(index, "it has no object weight_map".to_owned()))?;
    map.values()
        .map(|file| match file.as_str() {
            Some(name) if Path::new(name).file_name().is_some_and(|only| only == name) => Ok(name.to_owned()),
            _ => Err(damaged(index, format!("{file} is not the name of a file beside it"))),
        })
        .collect()
}

fn damaged(path: &Path, reason: String) -> ModelError {
    ModelError::Damaged { path: path.to_owned(), reason }
}

/// Writes float32 tensors as `model.safetensors` in `dir`.
pub(crate) fn write(dir: &Path, tensors: &[(String, Tensor)]) -> Result<(), ModelError> {
    write_tensors(&dir.join(SINGLE), tensors)
}

/// Writes float32 tensors as a safetensors file, which is on the disk and whole when it is there.
///
/// # Errors
/// If it cannot be written; then nothing is left of it.
pub fn write_tensors(path: &Path, tensors: &[(String, Tensor)]) -> Result<(), ModelError> {
    let mut end = 0;
    let infos = tensors.iter().map(|(name, tensor)| {
        let start = end;
        end += tensor.numel() * size_of::<f32>();
        let shape = tensor.size().iter().map(|n| *n as usize).collect();
        (name.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
    });
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut header = Metadata::new(Some(format), infos.collect())
        .map_err(|error| error.to_string())
        .and_then(|metadata| serde_json::to_vec(&metadata).map_err(|error| error.to_string()))
        .map_err(|error| ModelError::Write { path: path.to_owned(), source: std::io::Error::other(error) })?;
    header.resize(header.len().next_multiple_of(8), b' '); // the values are aligned

    replace(path, |file| {
        let mut file = BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for (_, tensor) in tensors {
            let mut bytes = vec![0; tensor.numel() * size_of::<f32>()];
            tensor
                .f_contiguous()
                .and_then(|whole| whole.f_copy_data_u8(&mut bytes, tensor.numel()))
                .map_err(std::io::Error::other)?;
            file.write_all(&bytes)?;
        }
        file.flush()
    })
}

/// Writes a file under another name in the same directory, then renames it: `path` is never half-written.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<(), ModelError> {
    let partial = path.with_added_extension("partial");
    File::create(&partial)
        .and_then(|mut file| {
            write(&mut file)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&partial, path))
        .map_err(|source| {
            // What is half-written must not stay; the first error is the one to report.
            let _ = std::fs::remove_file(&partial);
            ModelError::Write { path: path.to_owned(), source }
        })
}
