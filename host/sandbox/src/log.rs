//! What a guest prints: the last part is kept, to be shown when a call fails.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi_io::async_trait;
use wasmtime_wasi_io::bytes::Bytes;

use crate::quote;

/// Stdout and stderr of one instance in the order of writing; only the last `capacity` bytes are kept.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    capacity: usize,
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl Log {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, bytes: Arc::default() }
    }

    fn append(&self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(self.capacity)..];
        let mut log = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let excess = (log.len() + kept.len()).saturating_sub(self.capacity);
        log.drain(..excess);
        log.extend(kept);
    }

    /// The end of the log, to quote in a message.
    pub(crate) fn tail(&self) -> String {
        let log = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // What a quote can use: four bytes per character are enough for any text.
        let end: Vec<u8> = log.iter().skip(log.len().saturating_sub(8192)).copied().collect();
        quote::end(&String::from_utf8_lossy(&end))
    }

    /// Everything that is kept, which is not kept any longer. Of control characters only line ends and tabs are left.
    pub(crate) fn take(&self) -> String {
        let mut log = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = log.drain(..).collect();
        String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control() || "\n\t".contains(*c)).collect()
    }
}

impl IsTerminal for Log {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Log {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl OutputStream for Log {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.append(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

#[async_trait]
impl Pollable for Log {
    async fn ready(&mut self) {}
}

impl AsyncWrite for Log {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.append(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_cleaned() {
        let log = Log::new(8);
        log.append(b"0123456789");
        assert_eq!(log.tail(), "23456789");
        log.append(b"ab\n\x1b[c\xff");
        assert_eq!(log.tail(), "89ab [c\u{fffd}".trim_start_matches('8'));
    }

    #[test]
    fn a_log_of_no_size_keeps_nothing() {
        let log = Log::new(0);
        log.append(b"abc");
        assert_eq!(log.tail(), "");
    }
}
