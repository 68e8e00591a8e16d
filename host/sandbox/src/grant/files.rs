//! The grants `read` and `scratch_mib`: directories that a guest sees, and nothing beside them.
//!
//! Paths are resolved by wasmtime-wasi, which opens one part after the other relative to an open directory, or
//! has the kernel do it (`openat2` with `RESOLVE_BENEATH`): no symlink, `..` or absolute path leads out. On top of
//! that no link can be made, only plain files and directories open, and /scratch has a quota.

use std::os::unix::fs::MetadataExt;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::FsPerms;
use wasmtime_wasi::filesystem::{Descriptor, File, OpenMode, WasiFilesystemCtxView};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    self, Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, ErrorCode, HostDescriptor,
    HostDirectoryEntryStream, MetadataHashValue, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::bindings::filesystem::{preopens, types as bindings};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult, ReaddirIterator};

use super::directories::{FileState, Listing, SCRATCH};
use super::scratch::{Handle, Kind, Refusal};
use super::stream::{Counted, Writer};
use crate::plugin::Data;

/// Bytes of a path that a guest may name.
const PATH: usize = 4096;

/// Links `wasi:filesystem` to the granted directories.
pub(crate) fn link(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    preopens::add_to_linker::<Data, Files>(linker, view)?;
    bindings::add_to_linker::<Data, Files>(linker, view)
}

fn view(data: &mut Data) -> View<'_> {
    let data = data.counted();
    View { state: &mut data.grants.files, table: &mut data.table }
}

struct Files;

impl HasData for Files {
    type Data<'a> = View<'a>;
}

struct View<'a> {
    state: &'a mut FileState,
    table: &'a mut ResourceTable,
}

impl From<Refusal> for FsError {
    fn from(refusal: Refusal) -> Self {
        FsError::from(code(refusal))
    }
}

fn code(refusal: Refusal) -> ErrorCode {
    match refusal {
        // Languages know a full disk; few know a quota.
        Refusal::Quota => ErrorCode::InsufficientSpace,
        Refusal::TooMuchOpen => ErrorCode::InsufficientMemory,
    }
}

/// The same descriptor, to be handed on.
fn same(fd: &Resource<Descriptor>) -> Resource<Descriptor> {
    Resource::new_borrow(fd.rep())
}

/// Refused before anything else looks at it.
fn plain(path: &str) -> FsResult<()> {
    if path.len() > PATH { Err(ErrorCode::NameTooLong.into()) } else { Ok(()) }
}

/// A new name ends in a name.
fn new_name(path: &str) -> FsResult<()> {
    plain(path)?;
    match path.rsplit('/').next() {
        None | Some("" | "." | "..") => Err(ErrorCode::Invalid.into()),
        Some(_) => Ok(()),
    }
}

impl View<'_> {
    /// What wasmtime-wasi does with the same descriptors.
    fn wasi(&mut self) -> WasiFilesystemCtxView<'_> {
        WasiFilesystemCtxView { ctx: &mut self.state.context, table: &mut *self.table }
    }

    fn is_scratch(&self, fd: &Resource<Descriptor>) -> FsResult<bool> {
        let perms = match self.table.get(fd)? {
            Descriptor::File(file) => file.perms,
            Descriptor::Dir(dir) => dir.perms,
        };
        Ok(perms == FsPerms::ReadWrite)
    }

    /// Anything but reading is refused outside /scratch.
    fn writable(&self, fd: &Resource<Descriptor>) -> FsResult<()> {
        if self.is_scratch(fd)? { Ok(()) } else { Err(ErrorCode::NotPermitted.into()) }
    }

    fn file(&self, fd: &Resource<Descriptor>) -> FsResult<&File> {
        match self.table.get(fd)? {
            Descriptor::File(file) => Ok(file),
            Descriptor::Dir(_) => Err(ErrorCode::IsDirectory.into()),
        }
    }

    fn inode(&self, fd: &Resource<Descriptor>) -> Option<u64> {
        self.state.handles.get(&fd.rep()).and_then(Handle::scratch)
    }

    /// The kind of the object at a path, and its inode; None if there is nothing that can be looked at.
    async fn look(
        &mut self,
        fd: &Resource<Descriptor>,
        flags: PathFlags,
        path: &str,
    ) -> FsResult<Option<DescriptorType>> {
        match self.wasi().stat_at(same(fd), flags, path.to_owned()).await {
            Ok(stat) => Ok(Some(stat.type_)),
            Err(error) => error.downcast().map(|_| None).map_err(FsError::trap),
        }
    }

    /// What a name in /scratch stands for: its inode, and whether it is a directory.
    fn named(&self, fd: &Resource<Descriptor>, path: &str) -> FsResult<Option<(u64, bool)>> {
        let Descriptor::Dir(dir) = self.table.get(fd)? else { return Ok(None) };
        let dir = cap_std::fs::Dir::from_std_file(dir.dir.try_clone()?);
        let found = dir.symlink_metadata(path).ok();
        Ok(found.map(|found| (cap_std::fs::MetadataExt::ino(&found), found.is_dir())))
    }

    /// What is to be forgotten once the name is gone, if the guest was told a number of it.
    async fn hash(&mut self, fd: &Resource<Descriptor>, path: &str) -> Option<MetadataHashValue> {
        if !self.state.has_numbers() {
            return None;
        }
        let path = path.trim_end_matches('/').to_owned();
        self.wasi().metadata_hash_at(same(fd), PathFlags::empty(), path).await.ok()
    }

    /// Whether a change of the file's size to `bytes` is within the quota.
    fn check(&self, fd: &Resource<Descriptor>, bytes: u64) -> FsResult<()> {
        if let Some(inode) = self.inode(fd) {
            self.state.books.check(inode, bytes)?;
        }
        Ok(())
    }

    fn settle(&self, fd: &Resource<Descriptor>) -> FsResult<()> {
        let file = self.file(fd)?;
        Ok(self.state.books.settle(&file.file)?)
    }

    fn writer(&mut self, fd: &Resource<Descriptor>, at: Option<u64>) -> FsResult<Resource<DynOutputStream>> {
        self.writable(fd)?;
        let handle = self.state.books.handle(Kind::Stream, self.inode(fd))?;
        let file = self.file(fd)?;
        if !file.open_mode.contains(OpenMode::WRITE) {
            return Err(ErrorCode::BadDescriptor.into());
        }
        let writer = Writer::new(file.file.clone(), at, self.state.books.clone(), handle);
        Ok(self.table.push(Box::new(writer) as DynOutputStream)?)
    }

    fn without_times(&self, mut stat: DescriptorStat) -> DescriptorStat {
        if !self.state.shows_times() {
            stat.data_access_timestamp = None;
            stat.data_modification_timestamp = None;
            stat.status_change_timestamp = None;
        }
        stat
    }
}

impl preopens::Host for View<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let mut directories = self.state.read().to_vec();
        directories.extend(self.state.scratch()?.map(|dir| (dir, SCRATCH.to_owned())));
        let mut give = |(dir, place)| Ok((self.table.push(Descriptor::Dir(dir))?, place));
        directories.into_iter().map(&mut give).collect()
    }
}

impl types::Host for View<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        if let Some(refusal) = self.table.get(&error)?.downcast_ref::<Refusal>() {
            return Ok(Some(code(*refusal)));
        }
        self.wasi().filesystem_error_code(error)
    }
}

impl HostDescriptor for View<'_> {
    async fn open_at(
        &mut self,
        fd: Resource<Descriptor>,
        follow: PathFlags,
        path: String,
        how: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        plain(&path)?;
        if how.contains(OpenFlags::CREATE) {
            new_name(&path)?;
        }
        // Room for it comes first, so that nothing is created or truncated without.
        let mut handle = self.state.books.handle(Kind::Open, None)?;
        let found = self.look(&fd, follow, &path).await?;
        // To open a pipe or a device can wait forever, or do something.
        if found.is_some_and(|kind| {
            !matches!(
                kind,
                DescriptorType::RegularFile | DescriptorType::Directory | DescriptorType::SymbolicLink
            )
        }) {
            return Err(ErrorCode::NotPermitted.into());
        }
        let creates = found.is_none() && how.contains(OpenFlags::CREATE) && self.is_scratch(&fd)?;
        if creates {
            self.state.books.create()?;
        }
        let opened = self.wasi().open_at(same(&fd), follow, path, how, flags).await;
        if creates && opened.is_err() {
            self.state.books.uncreate();
        }
        let opened = opened?;
        if let Descriptor::File(file) = self.table.get(&opened)?
            && file.perms == FsPerms::ReadWrite
        {
            handle.keep(file.file.metadata()?.ino());
            self.state.books.settle(&file.file)?;
        }
        self.state.handles.insert(opened.rep(), handle);
        Ok(opened)
    }

    fn drop(&mut self, fd: Resource<Descriptor>) -> wasmtime::Result<()> {
        let rep = fd.rep();
        HostDescriptor::drop(&mut self.wasi(), fd)?;
        self.state.handles.remove(&rep);
        Ok(())
    }

    async fn set_size(&mut self, fd: Resource<Descriptor>, size: u64) -> FsResult<()> {
        self.writable(&fd)?;
        self.check(&fd, size)?;
        let done = self.wasi().set_size(same(&fd), size).await;
        self.settle(&fd)?;
        done
    }

    async fn write(&mut self, fd: Resource<Descriptor>, bytes: Vec<u8>, at: u64) -> FsResult<u64> {
        self.writable(&fd)?;
        let end = at.checked_add(bytes.len() as u64).ok_or(ErrorCode::FileTooLarge)?;
        self.check(&fd, end)?;
        let done = self.wasi().write(same(&fd), bytes, at).await;
        self.settle(&fd)?;
        done
    }

    fn write_via_stream(&mut self, fd: Resource<Descriptor>, at: u64) -> FsResult<Resource<DynOutputStream>> {
        self.writer(&fd, Some(at))
    }

    fn append_via_stream(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<DynOutputStream>> {
        self.writer(&fd, None)
    }

    fn read_via_stream(&mut self, fd: Resource<Descriptor>, at: u64) -> FsResult<Resource<DynInputStream>> {
        let handle = self.state.books.handle(Kind::Stream, self.inode(&fd))?;
        let stream = self.wasi().read_via_stream(fd, at)?;
        let stream = self.table.delete(stream)?;
        Ok(self.table.push(Box::new(Counted::new(stream, handle)) as DynInputStream)?)
    }

    async fn create_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        // mkdir may be asked for with a slash at the end.
        new_name(path.trim_end_matches('/'))?;
        self.writable(&fd)?;
        self.state.books.create()?;
        let done = self.wasi().create_directory_at(fd, path).await;
        if done.is_err() {
            self.state.books.uncreate();
        }
        done
    }

    async fn remove_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        plain(&path)?;
        self.writable(&fd)?;
        let hash = self.hash(&fd, &path).await;
        self.wasi().remove_directory_at(fd, path).await?;
        self.state.books.uncreate();
        self.state.forget(hash);
        Ok(())
    }

    async fn unlink_file_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        new_name(&path)?;
        self.writable(&fd)?;
        let named = self.named(&fd, &path)?;
        let hash = self.hash(&fd, &path).await;
        self.wasi().unlink_file_at(fd, path).await?;
        self.state.forget(hash);
        if let Some((inode, _)) = named {
            self.state.books.remove(inode);
        }
        Ok(())
    }

    async fn rename_at(
        &mut self,
        fd: Resource<Descriptor>,
        old: String,
        new_fd: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        new_name(old.trim_end_matches('/'))?;
        new_name(new.trim_end_matches('/'))?;
        self.writable(&fd)?;
        self.writable(&new_fd)?;
        let moved = self.named(&fd, &old)?;
        let replaced = self.named(&new_fd, &new)?;
        let hash = if replaced == moved { None } else { self.hash(&new_fd, &new).await };
        self.wasi().rename_at(fd, old, new_fd, new).await?;
        self.state.forget(hash);
        match replaced {
            Some((_, true)) if replaced != moved => self.state.books.uncreate(),
            Some((inode, false)) if replaced != moved => self.state.books.remove(inode),
            _ => {}
        }
        Ok(())
    }

    async fn link_at(
        &mut self,
        _: Resource<Descriptor>,
        _: PathFlags,
        _: String,
        _: Resource<Descriptor>,
        _: String,
    ) -> FsResult<()> {
        Err(ErrorCode::NotPermitted.into())
    }

    async fn symlink_at(&mut self, _: Resource<Descriptor>, _: String, _: String) -> FsResult<()> {
        Err(ErrorCode::NotPermitted.into())
    }

    async fn read(&mut self, fd: Resource<Descriptor>, length: u64, at: u64) -> FsResult<(Vec<u8>, bool)> {
        self.wasi().read(fd, length, at).await
    }

    async fn read_directory(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<ReaddirIterator>> {
        let handle = self.state.books.handle(Kind::Listing, None)?;
        let listing = self.wasi().read_directory(fd).await?;
        let rep = listing.rep();
        let mut entries = Vec::new();
        loop {
            let next = self.wasi().read_directory_entry(Resource::new_borrow(rep)).await;
            match next.transpose() {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        // By name, whatever the operating system's order; what cannot be told comes last.
        entries.sort_by(|a, b| match (a, b) {
            (Ok(a), Ok(b)) => a.name.cmp(&b.name),
            _ => a.is_err().cmp(&b.is_err()),
        });
        self.state.listings.insert(rep, Listing { entries: entries.into_iter(), _handle: handle });
        Ok(listing)
    }

    async fn stat(&mut self, fd: Resource<Descriptor>) -> FsResult<DescriptorStat> {
        let stat = self.wasi().stat(fd).await?;
        Ok(self.without_times(stat))
    }

    async fn stat_at(
        &mut self,
        fd: Resource<Descriptor>,
        follow: PathFlags,
        path: String,
    ) -> FsResult<DescriptorStat> {
        plain(&path)?;
        let stat = self.wasi().stat_at(fd, follow, path).await?;
        Ok(self.without_times(stat))
    }

    async fn set_times(
        &mut self,
        fd: Resource<Descriptor>,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> FsResult<()> {
        self.writable(&fd)?;
        self.wasi().set_times(fd, accessed, modified).await
    }

    async fn set_times_at(
        &mut self,
        fd: Resource<Descriptor>,
        follow: PathFlags,
        path: String,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> FsResult<()> {
        plain(&path)?;
        self.writable(&fd)?;
        self.wasi().set_times_at(fd, follow, path, accessed, modified).await
    }

    async fn readlink_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<String> {
        plain(&path)?;
        self.wasi().readlink_at(fd, path).await
    }

    async fn metadata_hash(&mut self, fd: Resource<Descriptor>) -> FsResult<MetadataHashValue> {
        let hash = self.wasi().metadata_hash(fd).await?;
        Ok(self.state.number(hash))
    }

    async fn metadata_hash_at(
        &mut self,
        fd: Resource<Descriptor>,
        follow: PathFlags,
        path: String,
    ) -> FsResult<MetadataHashValue> {
        plain(&path)?;
        let hash = self.wasi().metadata_hash_at(fd, follow, path).await?;
        Ok(self.state.number(hash))
    }

    async fn is_same_object(
        &mut self,
        a: Resource<Descriptor>,
        b: Resource<Descriptor>,
    ) -> wasmtime::Result<bool> {
        self.wasi().is_same_object(a, b).await
    }

    async fn get_flags(&mut self, fd: Resource<Descriptor>) -> FsResult<DescriptorFlags> {
        self.wasi().get_flags(fd).await
    }

    async fn get_type(&mut self, fd: Resource<Descriptor>) -> FsResult<DescriptorType> {
        self.wasi().get_type(fd).await
    }

    async fn advise(
        &mut self,
        fd: Resource<Descriptor>,
        at: u64,
        length: u64,
        advice: Advice,
    ) -> FsResult<()> {
        self.wasi().advise(fd, at, length, advice).await
    }

    /// Nothing here outlives the instance, so nothing has to reach the disk.
    async fn sync(&mut self, fd: Resource<Descriptor>) -> FsResult<()> {
        self.table.get(&fd)?;
        Ok(())
    }

    async fn sync_data(&mut self, fd: Resource<Descriptor>) -> FsResult<()> {
        self.table.get(&fd)?;
        Ok(())
    }
}

impl HostDirectoryEntryStream for View<'_> {
    async fn read_directory_entry(
        &mut self,
        listing: Resource<ReaddirIterator>,
    ) -> FsResult<Option<DirectoryEntry>> {
        self.state.listings.get_mut(&listing.rep()).and_then(|listing| listing.entries.next()).transpose()
    }

    fn drop(&mut self, listing: Resource<ReaddirIterator>) -> wasmtime::Result<()> {
        let rep = listing.rep();
        HostDirectoryEntryStream::drop(&mut self.wasi(), listing)?;
        self.state.listings.remove(&rep);
        Ok(())
    }
}
