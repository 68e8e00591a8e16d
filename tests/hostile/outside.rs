//! What lies around the grants that are attacked: a directory beside a secret, servers, a model.

use molt_sandbox::{ChatError, ChatFinish, ChatModel, ChatReply, ChatRequest};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

pub(crate) struct Outside {
    root: TempDir,
    /// May be asked with GET.
    pub(crate) granted: Server,
    pub(crate) other: Server,
    pub(crate) model: Arc<Echo>,
}

impl Outside {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        fs::create_dir_all(data.join("sub")).unwrap();
        fs::write(data.join("a.txt"), "inside").unwrap();
        fs::write(root.path().join("secret.txt"), "secret").unwrap();
        symlink("../secret.txt", data.join("up")).unwrap();
        symlink("..", data.join("parent")).unwrap();
        symlink("sub/../../secret.txt", data.join("around")).unwrap();
        symlink(root.path().join("secret.txt"), data.join("absolute")).unwrap();
        symlink("/etc", data.join("etc")).unwrap();
        symlink("loop", data.join("loop")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(data.join("pipe")).status().unwrap();
        assert!(made.success());
        let other = Server::start(String::new());
        let granted = Server::start(format!("http://127.0.0.1:{}/", other.port));
        Self { root, granted, other, model: Arc::default() }
    }

    /// The directory that may be read.
    pub(crate) fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub(crate) fn secret(&self) -> PathBuf {
        self.root.path().join("secret.txt")
    }

    /// Whether every attack, run `times`, left all as it was, and reached no more than its quota.
    pub(crate) fn check(&self, times: usize) {
        assert_eq!(fs::read_to_string(self.data().join("a.txt")).unwrap(), "inside");
        let entries = |dir| fs::read_dir(dir).unwrap().count();
        assert_eq!([self.data(), self.data().join("sub"), self.root.path().into()].map(entries), [9, 0, 2]);
        assert_eq!(*self.other.requests.lock().unwrap(), Vec::<String>::new());
        let requests = self.granted.requests.lock().unwrap();
        let counted = |line: &str| requests.iter().filter(|request| *request == line).count();
        assert_eq!(counted("GET /counted HTTP/1.1"), 3 * times, "{requests:?}");
        let posted: Vec<&String> = requests.iter().filter(|request| !request.starts_with("GET ")).collect();
        assert!(posted.iter().all(|request| *request == "POST /up HTTP/1.1"), "{posted:?}");
        assert!(posted.len() <= times, "{posted:?}");
        assert_eq!(self.model.asked.load(Ordering::Relaxed), 3 * times);
    }
}

/// A model that repeats the question, and counts.
#[derive(Default)]
pub(crate) struct Echo {
    asked: AtomicUsize,
}

impl ChatModel for Echo {
    fn chat(
        &self,
        mut request: ChatRequest,
    ) -> Pin<Box<dyn Future<Output = Result<ChatReply, ChatError>> + Send + '_>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let text = request.messages.pop().map_or_else(String::new, |message| message.content);
        let reply = ChatReply {
            text,
            tool_calls: vec![],
            finish: ChatFinish::Stop,
            prompt_tokens: 1,
            completion_tokens: 1,
        };
        Box::pin(async { Ok(reply) })
    }
}

/// A web server that goes on for as long as the process.
pub(crate) struct Server {
    pub(crate) port: u16,
    /// The first lines of all requests.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Its page `/elsewhere` leads to the given address.
    fn start(elsewhere: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (seen, elsewhere) = (seen.clone(), elsewhere.clone());
                std::thread::spawn(move || serve(&stream, &seen, &elsewhere));
            }
        });
        Self { port, requests }
    }
}

/// Answers one request after the other, until the other side has enough.
fn serve(mut stream: &TcpStream, seen: &Mutex<Vec<String>>, elsewhere: &str) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    loop {
        let line = lines.next()?.ok()?;
        seen.lock().unwrap().push(line.clone());
        while !lines.next()?.ok()?.is_empty() {}
        match line.split(' ').nth(1)? {
            "/endless" => {
                write!(stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").ok()?;
                loop {
                    write!(stream, "1000\r\n{}\r\n", "y".repeat(4096)).ok()?;
                }
            }
            "/silent" => return lines.next()?.ok().map(drop),
            "/elsewhere" => {
                write!(stream, "HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: {elsewhere}\r\n\r\n")
                    .ok()?;
            }
            "/up" => return lines.next()?.ok().map(drop),
            _ => write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").ok()?,
        }
    }
}
