//! Where ranks find each other: a small key–value server that one of them, or the launcher, keeps.

use crate::error::TorchError;
use crate::ffi::shim;
use cxx::UniquePtr;
use std::fmt;
use std::time::Duration;

/// A connection to the ranks' store.
pub struct Store {
    inner: UniquePtr<shim::Store>,
    host: String,
    prefix: String,
}

// SAFETY: c10d's client serialises its requests by a mutex of its own.
unsafe impl Send for Store {}
// SAFETY: as for Send.
unsafe impl Sync for Store {}

impl Store {
    /// Serves a store on `port`, 0 for any that is free, and connects to it.
    ///
    /// # Errors
    /// If the port cannot be had.
    pub fn serve(host: &str, port: u16, timeout: Duration) -> Result<Self, TorchError> {
        Self::open(host, port, true, timeout)
    }

    /// Connects to a store that somebody else serves. Waits for it up to `timeout`, which also bounds
    /// every later [`Store::get`].
    ///
    /// # Errors
    /// If nobody serves one there in time.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, TorchError> {
        Self::open(host, port, false, timeout)
    }

    fn open(host: &str, port: u16, serve: bool, timeout: Duration) -> Result<Self, TorchError> {
        let inner =
            shim::store(host, port, serve, millis(timeout)).map_err(|error| failed(host, port, &error))?;
        Ok(Self { inner, host: host.to_owned(), prefix: String::new() })
    }

    /// The same connection to the keys that begin with `prefix`.
    #[must_use]
    pub fn within(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The port it is served on.
    pub fn port(&self) -> u16 {
        shim::store_port(&self.inner)
    }

    pub(crate) fn inner(&self) -> &shim::Store {
        &self.inner
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), TorchError> {
        shim::store_set(&self.inner, &self.key(key), value)
            .map_err(|error| failed(&self.host, self.port(), &error))
    }

    /// The value of a key, as soon as somebody sets it.
    ///
    /// # Errors
    /// If nobody does in time, or the connection is lost.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, TorchError> {
        shim::store_get(&self.inner, &self.key(key)).map_err(|error| failed(&self.host, self.port(), &error))
    }
}

impl Store {
    /// Forgets a key.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn delete(&self, key: &str) -> Result<(), TorchError> {
        shim::store_delete(&self.inner, &self.key(key))
            .map_err(|error| failed(&self.host, self.port(), &error))
    }

    /// How long a [`Store::get`] waits from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        shim::store_timeout(&self.inner, millis(timeout));
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({}:{})", self.host, self.port())
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn failed(host: &str, port: u16, error: &cxx::Exception) -> TorchError {
    TorchError::Store { address: format!("{host}:{port}"), reason: error.what().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_seen_by_another() {
        let wait = Duration::from_secs(20);
        let server = Store::serve("127.0.0.1", 0, wait).expect("a port");
        let port = server.port();
        let other = std::thread::spawn(move || {
            let client = Store::connect("127.0.0.1", port, wait).expect("a store");
            client.get("seed").expect("a value")
        });
        server.set("seed", &[0, 255, 7]).expect("it is set");
        assert_eq!(other.join().expect("no panic"), [0, 255, 7]);
        let again = Store::connect("127.0.0.1", port, wait).expect("a store").within("again/");
        again.set_timeout(Duration::from_millis(100));
        again.get("seed").expect_err("it is another key");
        again.set("seed", &[1]).expect("it is set");
        assert_eq!(server.get("again/seed").expect("a value"), [1]);
        server.delete("seed").expect("it is there");
        server.set_timeout(Duration::from_millis(100));
        server.get("seed").expect_err("it is forgotten");
    }

    #[test]
    fn what_nobody_sets_is_an_error() {
        let server = Store::serve("127.0.0.1", 0, Duration::from_millis(200)).expect("a port");
        let error = server.get("never").expect_err("nobody sets it").to_string();
        assert!(error.starts_with("no connection to the ranks' store at 127.0.0.1:"), "{error}");
    }
}
