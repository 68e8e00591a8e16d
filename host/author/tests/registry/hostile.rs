//! A registry that answers what no registry should.

use crate::forged::{CONFIG, WASM, manifest};
use crate::home::{Home, plugin};
use crate::server::digest;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// What is answered to a request.
struct Answer {
    status: u16,
    /// Each with the end of its line.
    headers: String,
    body: Vec<u8>,
    /// How often the body is sent.
    times: usize,
}

impl Answer {
    fn with(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, headers: String::new(), body: body.into(), times: 1 }
    }

    fn challenge(host: &str) -> Self {
        let headers = format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"s\"\r\n");
        Self { status: 401, headers, body: Vec::new(), times: 1 }
    }

    /// A text of 64 MiB in JSON.
    fn endless() -> Self {
        Self { times: 64, ..Self::with(vec![b' '; 1 << 20]) }
    }
}

/// A server that answers to a path and an authorization, as long as the test runs; its host.
fn serve(answer: impl Fn(&str, &str, Option<&str>) -> Answer + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let own = host.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // Who has read enough hangs up.
            let _ = reply(stream.unwrap(), |path, who| answer(&own, path, who));
        }
    });
    host
}

fn reply(mut stream: TcpStream, answer: impl Fn(&str, Option<&str>) -> Answer) -> std::io::Result<()> {
    let mut head = Vec::new();
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        head.push(line);
    }
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let who = head.iter().find_map(|line| line.strip_prefix("authorization: "));
    let Answer { status, headers, body, times } = answer(path, who);
    write!(
        stream,
        "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len() * times
    )?;
    (0..times).try_for_each(|_| stream.write_all(&body))
}

#[test]
fn a_manifest_without_end_is_refused() {
    let home = Home::new();
    let host = serve(|_, _, _| Answer::endless());
    for command in ["pull", "add"] {
        home.molt(&[command, &format!("{host}/lab/a:1")])
            .refused(&[&format!("{host} sends a manifest of more than 4194304 bytes")]);
    }
    assert_eq!(home.files("data/molt/plugins"), [""; 0]);
}

#[test]
fn a_token_is_asked_for_where_the_registry_says_and_has_bounds_too() {
    let home = Home::new();
    let bytes = plugin(None, "a");
    let (blob, size) = (digest(&bytes), bytes.len() as u64);
    let manifest = manifest(CONFIG, &[(WASM, &blob, size)]);
    let host = serve(move |host, path, who| match (path.split('?').next().unwrap(), who) {
        ("/token", None) if path == "/token?scope=repository%3Alab%2Fa%3Apull&service=s" => {
            Answer::with(r#"{"token": "open sesame"}"#)
        }
        ("/v2/lab/a/manifests/1", Some("Bearer open sesame")) => Answer::with(manifest.clone()),
        (path, Some("Bearer open sesame")) if path == format!("/v2/lab/a/blobs/{blob}") => {
            Answer::with(bytes.clone())
        }
        _ => Answer::challenge(host),
    });
    home.molt(&["pull", &format!("{host}/lab/a:1")]).good();
    assert_eq!(std::fs::read(home.path("a.wasm")).unwrap(), plugin(None, "a"));
    home.molt(&["pull", &format!("{host}/lab/b:1")]).refused(&["refuses this account"]);

    let host = serve(
        |host, path, _| {
            if path.starts_with("/token") { Answer::endless() } else { Answer::challenge(host) }
        },
    );
    home.molt(&["pull", &format!("{host}/lab/a:1")])
        .refused(&[&format!("{host} sends a token of more than 1048576 bytes")]);
}

#[test]
fn an_answer_that_is_no_answer_is_told_without_its_text() {
    let home = Home::new();
    let host = serve(|_, _, _| Answer { status: 500, ..Answer::endless() });
    home.molt(&["pull", &format!("{host}/lab/a:1")]).refused(&[&format!("{host} answers with status 500")]);
    let host = serve(|host, path, _| Answer {
        status: 307,
        headers: format!("Location: http://{host}{path}\r\n"),
        ..Answer::with("")
    });
    home.molt(&["pull", &format!("{host}/lab/a:1")]).refused(&[&host]);
}
