//! Grants that are stretched: ways out of a directory, floods of what has a quota, and requests that nobody allowed.

use crate::attack::{Answer, Attack, Expected, Fails, SANDBOX};
use crate::outside::Outside;
use molt_sandbox::{Access, GrantedModel};

pub(crate) fn attacks(outside: &Outside) -> Vec<Attack> {
    SANDBOX.provide(GrantedModel::Judge, outside.model.clone());
    [escapes(outside), changes(outside), floods(outside), requests(outside), questions()]
        .into_iter()
        .flatten()
        // Much of it is work of the host, and the rest of the machine may be busy.
        .map(|attack| attack.with(|access| access.limits.cpu_ms = 10_000))
        .collect()
}

/// Refused in the words of the standard library, of a call of the interface, and of HTTP, and nothing else said.
const DENIED: Expected = Answer("Invalid(\"PermissionDenied\")");
const NOT_PERMITTED: Expected = Answer("Invalid(\"not-permitted\")");
const NOT_SENT: Expected = Answer("Invalid(\"ErrorCode::HttpRequestDenied\")");

/// May read one directory, and write to another of one MiB and ten files.
fn files(outside: &Outside) -> impl Fn(&'static str, &str, Expected) -> Attack {
    let data = outside.data();
    move |name, commands, expected| {
        let data = data.clone();
        Attack::granted(name, "grant-files", commands, expected).with(move |access| {
            access.grants.read = vec![data];
            access.grants.scratch_mib = Some(1);
            access.grants.scratch_files = 10;
        })
    }
}

/// Nothing leads out of a directory that may be read.
fn escapes(outside: &Outside) -> Vec<Attack> {
    let files = files(outside);
    let secret = format!("read {}", outside.secret().display());
    vec![
        files("what-is-granted", "read /data/a.txt", Answer("Invalid(\"inside\")")),
        files("up-by-dots", "read /data/../secret.txt", DENIED),
        files("up-by-dots-from-below", "read /data/sub/../../secret.txt", DENIED),
        files("up-by-a-link", "read /data/up", DENIED),
        files("up-by-a-link-to-a-directory", "read /data/parent/secret.txt", DENIED),
        files("up-by-a-link-around", "read /data/around", DENIED),
        files("out-by-an-absolute-link", "read /data/absolute", DENIED),
        files("out-by-a-link-to-etc", "read /data/etc/passwd", DENIED),
        files("a-link-to-itself", "read /data/loop", Answer("Invalid(\"FilesystemLoop\")")),
        files("the-list-above", "list /data/..", DENIED),
        files("the-list-behind-a-link", "list /data/parent", DENIED),
        files("an-absolute-path", &secret, Answer("Invalid(\"NotFound\")")),
        files("the-host-beside-a-grant", "read /proc/self/environ", Answer("Invalid(\"NotFound\")")),
        files("up-by-dots-from-a-handle", "raw-read /data ../secret.txt", NOT_PERMITTED),
        files("an-absolute-path-from-a-handle", "raw-read /data /etc/passwd", NOT_PERMITTED),
        files("a-link-from-a-handle", "raw-read /data absolute", NOT_PERMITTED),
        files("a-link-as-a-directory", "raw-read /data up/.", NOT_PERMITTED),
        files("whether-a-file-is-above", "raw-stat /data ../secret.txt", NOT_PERMITTED),
        files("a-pipe-that-would-wait", "read /data/pipe", DENIED),
    ]
}

/// What may be read is not changed, and nothing gets from one directory to the other by its name.
fn changes(outside: &Outside) -> Vec<Attack> {
    let files = files(outside);
    vec![
        files("writing-what-may-be-read", "write /data/a.txt 3", DENIED),
        files("cutting-what-may-be-read", "raw-truncate /data a.txt", NOT_PERMITTED),
        files("removing-what-may-be-read", "rm /data/a.txt", DENIED),
        files("renaming-what-may-be-read", "rename /data/a.txt /data/b.txt", DENIED),
        files("a-handle-that-claims-more", "raw-create-below /data sub new", NOT_PERMITTED),
        files("a-hard-link-to-what-may-be-read", "raw-link /data a.txt /scratch b", NOT_PERMITTED),
        files("a-hard-link-to-what-is-above", "raw-link /data ../secret.txt /scratch b", NOT_PERMITTED),
        files(
            "a-link-to-the-passwords",
            "raw-symlink /scratch /etc/passwd b\nread /scratch/b",
            Answer("Invalid(\"not-permitted|NotFound\")"),
        ),
        files(
            "a-link-upwards",
            "raw-symlink /scratch ../../../etc b\nlist /scratch/b",
            Answer("Invalid(\"not-permitted|NotFound\")"),
        ),
        files("moving-in", "raw-rename /data a.txt /scratch b", NOT_PERMITTED),
        files(
            "moving-out",
            "write /scratch/a 3\nraw-rename /scratch a /data b",
            Answer("Invalid(\"ok|not-permitted\")"),
        ),
        files("a-file-above-scratch", "raw-create /scratch ../b", NOT_PERMITTED),
    ]
}

/// What has a quota is bounded however it is filled.
fn floods(outside: &Outside) -> Vec<Attack> {
    let files = files(outside);
    vec![
        files("a-byte-more-than-scratch-has", "write /scratch/a 1048577", Answer("Invalid(\"i/o error\")")),
        files(
            "a-file-with-a-hole",
            "write-at /scratch/a 9000000000000000000 1",
            Answer("Invalid(\"i/o error\")"),
        ),
        files(
            "a-file-that-is-made-longer",
            "write /scratch/a 1\nresize /scratch/a 1048577",
            Answer("Invalid(\"ok|no space\")"),
        ),
        files(
            "a-stream-without-end",
            "raw-stream /scratch a 0 1073741824",
            Answer("Invalid(\"insufficient-space\")"),
        ),
        files("files-without-names", "hide /scratch/a 262144 1000", Answer("Invalid(\"4\")")),
        files(
            "writing-and-cutting-in-turns",
            "raw-race /scratch a 500\nwrite /scratch/b 1048576\nwrite /scratch/c 1",
            Answer("Invalid(\"0|ok|i/o error\")"),
        ),
        files("files-without-number", "create-many /scratch 100000", Answer("Invalid(\"10\")")),
        files("directories-without-number", "mkdir-many /scratch 100000", Answer("Invalid(\"10\")")),
        files("handles-without-number", "open-many /data/a.txt 100000", Answer("Invalid(\"64\")")),
        files("listings-without-number", "list-many /data 100000", Answer("Invalid(\"8\")")),
        files("streams-of-a-closed-file", "raw-streams /data a.txt 100000", Answer("Invalid(\"256\")")),
    ]
}

/// Requests to one origin with one method, of 64 KiB.
fn requests(outside: &Outside) -> Vec<Attack> {
    let (port, other) = (outside.granted.port, outside.other.port);
    let rule = format!("GET http://127.0.0.1:{port}");
    let grant = |access: &mut Access| {
        access.grants.http = vec![rule.clone()];
        (access.grants.http_kib, access.grants.http_s) = (64, 120);
    };
    let http = |name, commands: String, expected| {
        Attack::granted(name, "grant-http", commands, expected).with(grant)
    };
    let get = |rest: &str| format!("GET http 127.0.0.1:{port} {rest}");
    vec![
        http("a-request-that-is-granted", get("/"), Answer("Invalid(\"200 ok\")")),
        http("a-port-that-is-not-granted", format!("GET http 127.0.0.1:{other} /"), NOT_SENT),
        http("a-host-that-is-not-granted", format!("GET http localhost:{port} /"), NOT_SENT),
        http("a-host-in-another-spelling", format!("GET http 2130706433:{port} /"), NOT_SENT),
        http("the-metadata-of-a-cloud-by-http", "GET http 169.254.169.254 /".into(), NOT_SENT),
        http("a-method-that-is-not-granted", format!("POST http 127.0.0.1:{port} /up"), NOT_SENT),
        http("a-method-in-small-letters", format!("get http 127.0.0.1:{port} /"), NOT_SENT),
        http("a-tunnel", format!("CONNECT http 127.0.0.1:{port} /"), NOT_SENT),
        http("a-scheme-that-is-not-granted", format!("GET https 127.0.0.1:{port} /"), NOT_SENT),
        http("a-host-behind-a-user", format!("GET http 127.0.0.1:{port}@127.0.0.1:{other} /"), NOT_SENT),
        http(
            "a-path-that-is-a-host",
            get(&format!("http://127.0.0.1:{other}/")),
            Answer("Invalid(\"bad path\")"),
        ),
        http(
            "a-forged-host",
            get("/ host:evil.invalid"),
            Answer("Invalid(\"host: HeaderError::Forbidden\")"),
        ),
        http(
            "a-smuggled-request",
            get("/ transfer-encoding:chunked"),
            Answer("Invalid(\"transfer-encoding: HeaderError::Forbidden\")"),
        ),
        http("a-redirect", get("/elsewhere"), Answer("Invalid(\"302\")")),
        http(
            "a-body-without-end",
            get("/endless"),
            Answer("Invalid(\"download stopped after 65536: HTTP response body size exceeds limit"),
        ),
        http(
            "a-server-that-says-nothing",
            get("/silent"),
            Answer("Invalid(\"ErrorCode::HttpResponseTimeout\")"),
        )
        .with(|access| access.grants.http_s = 3),
        http(
            "an-upload-without-end",
            format!("POST http 127.0.0.1:{port} /up body=1073741824"),
            Answer("ErrorCode::HttpRequestBodySize(Some(65536))"),
        )
        .with(|access| access.grants.http.push(format!("POST http://127.0.0.1:{port}"))),
        http(
            "requests-without-number",
            vec![get("/counted"); 50].join("\n"),
            Answer("Invalid(\"200 ok|200 ok|200 ok|ErrorCode::InternalError(Some(\\\"the 3 HTTP requests"),
        )
        .with(|access| access.grants.http_requests = 3),
        http(
            "requests-at-a-time",
            format!("many 200 127.0.0.1:{port}"),
            Answer("Invalid(\"16 answered, 184 refused\")"),
        )
        .with(|access| access.grants.http_requests = 1000),
    ]
}

/// Questions to a model that repeats them.
fn questions() -> Vec<Attack> {
    let grant = |access: &mut Access| {
        access.grants.model = Some(GrantedModel::Judge);
        access.grants.model_calls = 3;
    };
    let ask =
        |name, question: &str, expected| Attack::granted(name, "grant-model", question, expected).with(grant);
    vec![
        // The fixture asks as often as the label says.
        ask("questions-without-number", "hello", Answer("Invalid(\"hello|hello|hello|quota|quota|")),
        ask("a-temperature-that-is-no-number", "nan", Answer("Invalid(\"unavailable: temperature is NaN")),
        ask("a-question-of-five-mebibytes", &"x".repeat(5 << 20), Fails("output-limit", "1024 KiB")),
    ]
}
