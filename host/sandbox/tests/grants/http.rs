//! HTTP: to the granted origins, in the granted way, within bounds.

use super::server::{Server, ok, respond};
use super::{answer, load};
use molt_sandbox::{Grants, Reward};

fn client(rules: Vec<String>) -> Reward {
    load("grant-http", Grants { http: rules, ..Grants::default() })
}

#[tokio::test]
async fn a_granted_request_is_sent_and_answered() {
    let server = Server::start(|request, _| ok(&format!("{} bytes", request.len()))).await;
    let reward = client(vec![format!("GET {}", server.origin()), format!("POST {}", server.origin())]);
    let here = format!("127.0.0.1:{}", server.port);
    let said =
        answer(&reward, &format!("GET http {here} /a?b=c x-mine:1\nPOST http {here} /up body=10000")).await;
    let requests = server.requests();
    assert!(requests[0].starts_with("GET /a?b=c HTTP/1.1\r\n"), "{}", requests[0]);
    assert!(requests[0].contains("x-mine: 1\r\n") && requests[0].contains(&format!("host: {here}\r\n")));
    assert!(requests[1].ends_with(&"x".repeat(10_000)));
    assert_eq!(said, format!("200 {} bytes|200 {} bytes", requests[0].len(), requests[1].len()));
}

#[tokio::test]
async fn everything_else_is_denied_and_never_sent() {
    let server = Server::start(|_, _| ok("reached")).await;
    let other = Server::start(|_, _| ok("reached")).await;
    let port = server.port;
    let reward = client(vec![format!("GET {}", server.origin()), "* https://granted.invalid".into()]);
    for line in [
        format!("POST http 127.0.0.1:{port} /"),
        format!("get http 127.0.0.1:{port} /"),
        format!("CONNECT http 127.0.0.1:{port} /"),
        format!("GET http 127.0.0.1:{} /", other.port),
        "GET http 127.0.0.1 /".into(),
        format!("GET https 127.0.0.1:{port} /"),
        format!("GET ftp 127.0.0.1:{port} /"),
        format!("GET http localhost:{port} /"),
        format!("GET http user@127.0.0.1:{port} /"),
        format!("GET http user:word@127.0.0.1:{port} /"),
        format!("GET http 127.0.0.1:{port}@127.0.0.1:{} /", other.port),
        format!("GET http 127.0.0.1.:{port} /"),
        format!("GET http 127.1:{port} /"),
        format!("GET http 2130706433:{port} /"),
        format!("GET http 0x7f000001:{port} /"),
        format!("GET http 0177.0.0.1:{port} /"),
        format!("GET http [::1]:{port} /"),
        format!("GET http [::ffff:127.0.0.1]:{port} /"),
        format!("GET http 127.0.0.1:{port}:80 /"),
        format!("GET http 127.0.0.1:0{port}x /"),
        "CONNECT https granted.invalid /".into(),
        "GET https sub.granted.invalid /".into(),
        "GET https granted.invalid. /".into(),
        "GET https granted.invalid.evil.invalid /".into(),
        "GET https gr\u{e4}nted.invalid /".into(),
        "GET https granted.invalid%2eevil.invalid /".into(),
        format!("GET http 127.0.0.1:{port} http://127.0.0.1:{}/", other.port),
        format!("GET http 127.0.0.1:{port} @127.0.0.1:{}/", other.port),
        format!("GET http 127.0.0.1:{port} / host:evil.invalid"),
        format!("GET http 127.0.0.1:{port} / Host:evil.invalid"),
        format!("GET http 127.0.0.1:{port} / transfer-encoding:chunked"),
        format!("GET http 127.0.0.1:{port} / content-length:5"),
        format!("GET http 127.0.0.1:{port} / proxy-authorization:x"),
        format!("GET http 127.0.0.1:{port} / upgrade:websocket"),
    ] {
        let said = answer(&reward, &line).await;
        let told = [
            "HttpRequestDenied",
            "HeaderError::Forbidden",
            "bad ",
            "HttpRequestUriInvalid",
            "HttpProtocolError",
        ];
        assert!(told.iter().any(|told| said.contains(told)), "{line}: {said}");
    }
    assert_eq!((server.requests(), other.requests()), (vec![], vec![]));
}

#[tokio::test]
async fn another_form_of_the_same_origin_is_the_same_origin() {
    let server = Server::start(|_, _| ok("reached")).await;
    let reward = client(vec![format!("* http://LocalHost:{}", server.port)]);
    let said = answer(&reward, &format!("PURGE http LOCALHOST:{} /", server.port)).await;
    // Where localhost is IPv6 first, the client tries the other address next.
    assert_eq!(said, "200 reached");
    assert!(server.requests()[0].starts_with("PURGE / HTTP/1.1"));
}

#[tokio::test]
async fn paths_stay_on_the_origin() {
    let server = Server::start(|request, _| ok(request.split(' ').nth(1).unwrap_or_default())).await;
    let reward = client(vec![format!("GET {}", server.origin())]);
    let here = format!("GET http 127.0.0.1:{}", server.port);
    for (path, sent) in [
        ("//evil.invalid/x", "//evil.invalid/x"),
        ("/\\evil.invalid", "//evil.invalid"),
        ("/..//evil.invalid", "//evil.invalid"),
        ("?q=@evil.invalid", "/?q=@evil.invalid"),
        ("/@evil.invalid", "/@evil.invalid"),
    ] {
        let said = answer(&reward, &format!("{here} {path}")).await;
        assert!(
            said == format!("200 {sent}") || said == "200 /evil.invalid" || said.starts_with("bad"),
            "{path}: {said}"
        );
    }
}

#[tokio::test]
async fn a_redirect_is_an_answer() {
    let other = Server::start(|_, _| ok("reached")).await;
    let to = format!("location: {}/\r\n", other.origin());
    let server = Server::start(move |_, _| respond("302 Found", &to, "")).await;
    let reward = client(vec![format!("GET {}", server.origin()), format!("GET {}", other.origin())]);
    assert_eq!(answer(&reward, &format!("GET http 127.0.0.1:{} /", server.port)).await, "302");
    assert_eq!(other.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn sizes_are_bounded_both_ways() {
    let server = Server::start(|request, _| {
        let chunked = |chunks: usize| {
            let chunk = format!("1000\r\n{}\r\n", "y".repeat(4096)).repeat(chunks);
            Some(
                format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n").into_bytes(),
            )
        };
        match request.split(' ').nth(1) {
            Some("/large") => ok(&"y".repeat(70_000)),
            Some("/most") => ok(&"y".repeat(65_536)),
            Some("/chunks") => chunked(100),
            Some("/head") => respond("200 OK", &format!("x-long: {}\r\n", "y".repeat(40_000)), ""),
            _ => ok("fine"),
        }
    })
    .await;
    let rules = vec![format!("* {}", server.origin())];
    let reward = load("grant-http", Grants { http: rules, http_kib: 64, ..Grants::default() });
    let here = format!("127.0.0.1:{}", server.port);
    assert_eq!(answer(&reward, &format!("GET http {here} /most")).await, "200 65536 bytes");
    for (line, told) in [
        (format!("GET http {here} /large"), "HttpResponseBodySize"),
        (format!("GET http {here} /chunks"), "body size exceeds limit"),
        (format!("GET http {here} /head"), "HttpResponseHeaderSectionSize"),
        (format!("POST http {here} /up body=65537"), "HttpRequestBodySize"),
        (format!("GET http {here} /{}", "a".repeat(9000)), "HttpRequestUriTooLong"),
    ] {
        let said = answer(&reward, &line).await;
        assert!(said.contains(told), "{told}: {said}");
    }
    assert_eq!(answer(&reward, &format!("POST http {here} /up body=65536")).await, "200 fine");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_waited_for_as_long_as_granted() {
    let silent = Server::start(|_, _| None).await;
    let endless =
        Server::start(|_, _| Some(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec())).await;
    let rules = vec![format!("GET {}", silent.origin()), format!("GET {}", endless.origin())];
    let reward = load("grant-http", Grants { http: rules, http_s: 1, ..Grants::default() });
    let said = answer(&reward, &format!("GET http 127.0.0.1:{} /", silent.port)).await;
    assert!(said.contains("Timeout"), "{said}");
    let said = answer(&reward, &format!("GET http 127.0.0.1:{} /", endless.port)).await;
    assert!(said.starts_with("download stopped after 4") && said.contains("timeout"), "{said}");
}

#[tokio::test]
async fn requests_are_counted_and_refused_ones_too() {
    let server = Server::start(|_, number| ok(&number.to_string())).await;
    let rules = vec![format!("GET {}", server.origin())];
    let reward = load("grant-http", Grants { http: rules, http_requests: 3, ..Grants::default() });
    let good = format!("GET http 127.0.0.1:{} /", server.port);
    let said = answer(&reward, &format!("{good}\nGET http 127.0.0.1:1 /\n{good}\n{good}")).await;
    let parts: Vec<&str> = said.split('|').collect();
    assert_eq!((parts[0], parts[2]), ("200 1", "200 2"));
    assert!(parts[1].contains("HttpRequestDenied") && parts[3].contains("the 3 HTTP requests"), "{said}");
    assert_eq!(answer(&reward, &good).await, "200 3", "the next instance has its own");
}

#[tokio::test]
async fn no_answer_is_told_plainly() {
    let closed = Server::start(|_, _| Some(b"nonsense\r\n\r\n".to_vec())).await;
    let reward = client(vec!["GET http://127.0.0.1:1".into(), format!("GET {}", closed.origin())]);
    let said = answer(&reward, "GET http 127.0.0.1:1 /").await;
    assert!(said.contains("ConnectionRefused"), "{said}");
    let said = answer(&reward, &format!("GET http 127.0.0.1:{} /", closed.port)).await;
    assert!(said.contains("HttpProtocolError"), "{said}");
}

#[tokio::test]
async fn few_requests_are_under_way_at_a_time() {
    let server = Server::start(|_, _| ok("fine")).await;
    let rules = vec![format!("GET {}", server.origin())];
    let reward = load("grant-http", Grants { http: rules, http_requests: 1000, ..Grants::default() });
    let said = answer(&reward, &format!("many 20 127.0.0.1:{}", server.port)).await;
    assert_eq!(said, "16 answered, 4 refused");
    // One after the other there may be more.
    let line = format!("GET http 127.0.0.1:{} /\n", server.port);
    let said = answer(&reward, &line.repeat(20)).await;
    assert_eq!(said, ["200 fine"; 20].join("|"));
}

#[tokio::test]
async fn a_method_is_a_short_word() {
    let server = Server::start(|_, _| ok("reached")).await;
    let reward = client(vec![format!("* {}", server.origin())]);
    let send = |letters: usize| format!("{} http 127.0.0.1:{} /", "A".repeat(letters), server.port);
    assert_eq!(answer(&reward, &send(32)).await, "200 reached");
    let said = answer(&reward, &send(33)).await;
    assert!(said.contains("method"), "{said}");
}
