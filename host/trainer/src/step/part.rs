//! A rank's part of a checkpoint: one file with the rows that it holds of every parameter, and of what the optimiser
//! remembers of it. Any number of ranks can go on from the parts of any other.

use super::Learner;
use crate::error::TrainError;
use crate::mesh::Mesh;
use crate::ranks::Order;
use molt_model::{Cut, TensorFile, write_tensors};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use tch::Tensor;

/// The file of one rank.
pub(crate) fn file_name(rank: usize, ranks: usize) -> String {
    format!("part-{rank}-of-{ranks}.safetensors")
}

/// The SHA-256 of a file.
pub(crate) fn digest(path: &Path) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            count => hash.update(&buffer[..count]),
        }
    }
}

impl Learner {
    /// The name and shape of every parameter that is trained.
    pub fn shapes(&self) -> BTreeMap<String, Vec<i64>> {
        self.shards.parameters(&self.network).into_iter().map(|p| (p.name, p.shape)).collect()
    }

    /// Every rank writes its part into `dir`. Gives back the digest of every part, by rank.
    ///
    /// # Errors
    /// If a part cannot be written, or a rank is lost.
    pub(crate) fn save(&mut self, dir: &Path) -> Result<Vec<[u8; 32]>, TrainError> {
        self.order(|| Order::Save { dir: dir.to_owned() })?;
        let written = self.write_part(dir);
        self.exchange(written, "write its part of the checkpoint").map_err(|error| self.explained(error))
    }

    /// Goes on from the parts that ranks laid out as in `mesh` wrote into `dir` after `steps` updates.
    ///
    /// # Errors
    /// If a part cannot be read or is of another model, or a rank is lost.
    pub(crate) fn restore(&mut self, dir: &Path, mesh: Mesh, steps: u64) -> Result<(), TrainError> {
        self.order(|| Order::Restore { dir: dir.to_owned(), mesh, steps })?;
        let read = self.read_parts(dir, mesh).map(|()| [0; 32]);
        self.optimiser.set_steps(steps);
        let all = self.exchange(read, "read the checkpoint").map_err(|error| self.explained(error));
        all.map(drop)
    }

    /// What this rank holds, by name: values, and what the optimiser remembers.
    fn held(&self) -> Vec<(String, Tensor)> {
        let values = self.shards.parameters(&self.network).into_iter().map(|p| (p.name, p.value));
        values.chain(self.optimiser.state()).collect()
    }

    /// How the ranks divide the work.
    pub(crate) fn mesh(&self) -> Mesh {
        self.shards.place().1
    }

    fn write_part(&self, dir: &Path) -> Result<[u8; 32], TrainError> {
        let unwritable = |source| TrainError::Write { path: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(unwritable)?;
        let (rank, mesh) = self.shards.place();
        let path = dir.join(file_name(rank, mesh.ranks));
        let held: Vec<_> = self.held().into_iter().map(|(name, tensor)| (name, tensor.detach())).collect();
        write_tensors(&path, &held)?;
        digest(&path).map_err(|source| TrainError::Write { path, source })
    }

    fn read_parts(&self, dir: &Path, before: Mesh) -> Result<(), TrainError> {
        let shapes = self.shapes();
        let files = (0..before.ranks).map(|rank| TensorFile::open(&dir.join(file_name(rank, before.ranks))));
        let files: Vec<TensorFile> = files.collect::<Result<_, _>>()?;
        let (rank, mesh) = self.shards.place();
        for (name, tensor) in self.held() {
            // The optimiser's are `PARAMETER.MOMENT`, cut as the parameter is.
            let parameter = name.rsplit_once('.').map_or("", |(parameter, _)| parameter);
            let shape = shapes.get(&name).map(|shape| (&name[..], shape));
            let shape = shape.or_else(|| shapes.get(parameter).map(|shape| (parameter, shape)));
            let (parameter, shape) = shape.ok_or_else(|| TrainError::Order(format!("{name} is not cut")))?;
            let cut = Cut::of(parameter);
            let own = mesh.held(rank, cut, shape);
            let mut found = 0;
            for (old, file) in files.iter().enumerate() {
                let theirs = before.held(old, cut, shape);
                let pairs = own.iter().zip(&theirs);
                let common: Vec<_> = pairs.map(|(a, b)| a.start.max(b.start)..a.end.min(b.end)).collect();
                let Some(rows) = common.first().filter(|_| common.iter().all(|range| !range.is_empty()))
                else {
                    continue;
                };
                let theirs_row: i64 = theirs[1..].iter().map(|range| range.end - range.start).product();
                let start = (rows.start - theirs[0].start) * theirs_row;
                let part =
                    file.read(&name, start as usize, ((rows.end - rows.start) * theirs_row) as usize)?;
                let read =
                    std::iter::once(rows.clone()).chain(theirs.iter().skip(1).cloned()).collect::<Vec<_>>();
                tch::no_grad(|| within(&tensor, &own, &common).copy_(&within(&part, &read, &common)));
                found += common.iter().map(|range| range.end - range.start).product::<i64>();
            }
            if found as usize != tensor.numel() {
                let reason = format!("its parts hold {found} of {} values of {name}", tensor.numel());
                return Err(TrainError::Checkpoint { path: dir.to_owned(), reason });
            }
        }
        Ok(())
    }

    /// What every rank has to say of work that each did by itself, or the error: this rank's own, or that another
    /// one failed to do `what`.
    fn exchange(
        &self,
        own: Result<[u8; 32], TrainError>,
        what: &'static str,
    ) -> Result<Vec<[u8; 32]>, TrainError> {
        let Some(group) = self.shards.ranks() else { return Ok(vec![own?]) };
        let mut said = vec![u8::from(own.is_ok())];
        said.extend(own.as_ref().unwrap_or(&[0; 32]));
        let all = group.all_gather(&Tensor::from_slice(&said))?.wait()?;
        own?;
        let all = Vec::<u8>::try_from(all).expect("a vector of bytes");
        let all: Vec<&[u8]> = all.chunks_exact(33).collect();
        if let Some(rank) = all.iter().position(|said| said[0] == 0) {
            return Err(TrainError::RankFailed { rank, what });
        }
        Ok(all.iter().map(|said| said[1..].try_into().expect("33 bytes each")).collect())
    }
}

/// The part `common` of a tensor that holds these ranges of the dimensions of a parameter, flat.
fn within(tensor: &Tensor, ranges: &[Range<i64>], common: &[Range<i64>]) -> Tensor {
    let shape: Vec<i64> = ranges.iter().map(|range| range.end - range.start).collect();
    let dims = ranges.iter().zip(common).zip(0..);
    dims.fold(tensor.view(shape.as_slice()), |tensor, ((range, common), dim)| {
        tensor.narrow(dim, common.start - range.start, common.end - common.start)
    })
}
