//! Files that the whole process may hold open. Alone in its process, whose limit it lowers.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "shared with other tests, which use all of it")]

mod common;
#[path = "grants/server.rs"]
mod server;

use molt_sandbox::{Access, Grants, Limits, Reward, Verdict};
use rustix::process::{Resource, getrlimit, setrlimit};
use server::{Server, ok};

fn load(name: &str, grants: Grants) -> Reward {
    let limits = Limits { cpu_ms: 20_000, ..Limits::default() };
    let access = Access { limits, grants, code_limits: limits };
    common::SANDBOX.reward(&common::library(), name, access).unwrap()
}

async fn answer(reward: &Reward, commands: &str) -> String {
    match reward.score(common::call(1), &common::sample(commands, None)).await.unwrap() {
        Verdict::Invalid(answer) => answer,
        other => panic!("{commands}: {other:?}"),
    }
}

#[tokio::test]
async fn plugins_hold_half_of_what_the_process_may_open() {
    let server = Server::start(|_, _| ok("fine")).await;
    let rules = vec![format!("GET {}", server.origin())];
    let http = load("grant-http", Grants { http: rules, ..Grants::default() });
    let files = load("grant-files", Grants { scratch_mib: Some(1), ..Grants::default() });
    let before = getrlimit(Resource::Nofile);
    let mut few = before;
    few.current = Some(24);
    setrlimit(Resource::Nofile, few).unwrap();
    // The first file that is opened makes the sandbox ask how many may be.
    let first = answer(&files, "write /scratch/a 1").await;
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(first, "ok");
    let said = answer(&files, "write /scratch/a 1\nopen-many /scratch/a 100").await;
    assert_eq!(said, "ok|11", "and the directory itself");
    assert_eq!(answer(&http, &format!("many 20 127.0.0.1:{}", server.port)).await, "12 answered, 8 refused");
    assert_eq!(answer(&http, &format!("many 2 127.0.0.1:{}", server.port)).await, "2 answered, 0 refused");
}
