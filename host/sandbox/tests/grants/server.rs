//! A small HTTP server that does as a test says.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers every request with what a function makes of its head and body, and keeps the requests.
pub(crate) struct Server {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the server sends: all bytes of the answer, or None to say nothing at all.
pub(crate) type Answer = Option<Vec<u8>>;

impl Server {
    pub(crate) async fn start(answer: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (requests.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, seen.clone(), answer.clone()));
            }
        });
        Self { port, requests, task }
    }

    /// The requests so far: head and body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: Arc<Mutex<Vec<String>>>,
    answer: Arc<impl Fn(&str, usize) -> Answer + Send + Sync + 'static>,
) {
    while let Some(request) = read(&mut stream).await {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len()
        };
        let Some(bytes) = answer(&request, number) else {
            std::future::pending::<()>().await;
            return;
        };
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// A whole answer.
pub(crate) fn ok(body: &str) -> Answer {
    respond("200 OK", "", body)
}

pub(crate) fn respond(status: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Some(format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n{body}").into_bytes())
}
