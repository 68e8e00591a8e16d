//! A registry server of the Docker project, started on a free port and stopped when dropped.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) struct Server {
    process: Child,
    host: String,
    dir: TempDir,
}

/// The account of [`Server::with_account`].
pub(crate) const ACCOUNT: (&str, &str) = ("ada", "lovelace");

/// The password of [`ACCOUNT`] as bcrypt writes it, by libxcrypt's crypt().
const HASHED: &str = "$2b$05$abcdefghijklmnopqrstuuugyJgZetmHGvxwCJ1rpgM8bgT8KJ8.i";

impl Server {
    pub(crate) fn start() -> Self {
        Self::launch(false)
    }

    /// A server that wants to know who asks.
    pub(crate) fn with_account() -> Self {
        Self::launch(true)
    }

    fn launch(account: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("htpasswd"), format!("{}:{HASHED}\n", ACCOUNT.0)).unwrap();
        // Another process may take a port that was free a moment ago.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let host = format!("127.0.0.1:{port}");
            let storage = dir.path().display();
            let mut config = format!(
                "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {storage}/storage\n\
                 http:\n  addr: {host}\n"
            );
            if account {
                config += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {storage}/htpasswd\n");
            }
            fs::write(dir.path().join("config.yml"), config).unwrap();
            let log = File::create(dir.path().join("log")).unwrap();
            let mut process = Command::new(binary())
                .arg("serve")
                .arg(dir.path().join("config.yml"))
                .env("OTEL_TRACES_EXPORTER", "none")
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            if listens(&mut process, &host) {
                return Self { process, host, dir };
            }
        }
        panic!("the registry does not start: {}", fs::read_to_string(dir.path().join("log")).unwrap());
    }

    /// `HOST/rest`.
    pub(crate) fn reference(&self, rest: &str) -> String {
        format!("{}/{rest}", self.host)
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    fn storage(&self) -> PathBuf {
        self.dir.path().join("storage/docker/registry/v2")
    }

    /// The file in which the server keeps the blob or manifest with this digest.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.storage().join("blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }

    /// Puts a blob into a repository behind the server's back; returns its digest.
    pub(crate) fn plant_blob(&self, repository: &str, bytes: &[u8]) -> String {
        let digest = digest(bytes);
        self.write(&self.blob(&digest), bytes);
        self.link(&format!("{repository}/_layers"), &digest);
        digest
    }

    /// Puts a manifest under a tag behind the server's back; returns its digest.
    pub(crate) fn plant_manifest(&self, repository: &str, tag: &str, manifest: &str) -> String {
        let digest = digest(manifest.as_bytes());
        self.write(&self.blob(&digest), manifest.as_bytes());
        self.link(&format!("{repository}/_manifests/revisions"), &digest);
        self.link(&format!("{repository}/_manifests/tags/{tag}/index"), &digest);
        let current = format!("repositories/{repository}/_manifests/tags/{tag}/current/link");
        self.write(&self.storage().join(current), digest.as_bytes());
        digest
    }

    fn link(&self, place: &str, digest: &str) {
        let hex = digest.strip_prefix("sha256:").unwrap();
        let link = self.storage().join("repositories").join(place).join("sha256").join(hex).join("link");
        self.write(&link, digest.as_bytes());
    }

    fn write(&self, path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Whether the server answers; false if it ended.
fn listens(process: &mut Child, host: &str) -> bool {
    while process.try_wait().unwrap().is_none() {
        if TcpStream::connect(host).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// `MOLT_TEST_REGISTRY`, or where `cargo xtask registry` puts it.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("MOLT_TEST_REGISTRY") {
        return path.into();
    }
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let binary = cache.map(|cache| cache.join("molt/docker-registry-2.8.2/docker-registry"));
    binary.filter(|path| path.is_file()).expect(
        "no registry server to test against: run `cargo xtask registry`, or set MOLT_TEST_REGISTRY to a \
         docker-registry binary of version 2.8",
    )
}
