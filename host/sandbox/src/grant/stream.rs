//! Streams of files: what they hold open is counted, and what they write to /scratch is within its quota.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use wasmtime_wasi::p2::{DynInputStream, InputStream, OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi_io::async_trait;
use wasmtime_wasi_io::bytes::Bytes;

use super::scratch::{Books, Handle};

/// Bytes that a guest may write at once.
const CHUNK: usize = 64 << 10;

/// Reads as the stream inside does.
pub(crate) struct Counted {
    stream: DynInputStream,
    _handle: Handle,
}

impl Counted {
    pub(crate) fn new(stream: DynInputStream, handle: Handle) -> Self {
        Self { stream, _handle: handle }
    }
}

#[async_trait]
impl Pollable for Counted {
    async fn ready(&mut self) {
        self.stream.ready().await;
    }
}

#[async_trait]
impl InputStream for Counted {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.stream.read(size)
    }

    async fn blocking_read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.stream.blocking_read(size).await
    }

    async fn cancel(&mut self) {
        self.stream.cancel().await;
    }
}

/// Writes a file in /scratch at once, into the kernel's memory: a write under way would make the books wrong.
pub(crate) struct Writer {
    file: Arc<File>,
    /// None: at the end.
    at: Option<u64>,
    books: Books,
    handle: Handle,
}

impl Writer {
    pub(crate) fn new(file: Arc<File>, at: Option<u64>, books: Books, handle: Handle) -> Self {
        Self { file, at, books, handle }
    }

    fn put(&mut self, bytes: &[u8]) -> wasmtime::Result<()> {
        let start = match self.at {
            Some(start) => start,
            None => self.file.metadata()?.len(),
        };
        let end = start.saturating_add(bytes.len() as u64);
        if let Some(inode) = self.handle.scratch() {
            self.books.check(inode, end)?;
        }
        let written = self.file.write_all_at(bytes, start);
        self.books.settle(&self.file)?;
        written?;
        self.at = self.at.map(|_| end);
        Ok(())
    }
}

#[async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {}
}

#[async_trait]
impl OutputStream for Writer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.put(&bytes).map_err(StreamError::LastOperationFailed)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}
