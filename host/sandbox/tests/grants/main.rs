//! What a run grants is given, and nothing beside it: each escape and each quota as a component that tries it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod code;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod http;
mod judge;
mod load;
mod model;
mod real;
mod server;

use molt_sandbox::{Access, Failure, Grants, Limits, Reward, Verdict};

/// These grants under limits that no test reaches by accident.
fn access(grants: Grants) -> Access {
    let limits = Limits { memory_mib: 64, cpu_ms: 5000, ..Limits::default() };
    Access { limits, grants, code_limits: limits }
}

fn load(name: &str, grants: Grants) -> Reward {
    common::SANDBOX.reward(&common::library(), name, access(grants)).unwrap()
}

/// What a fixture answers to commands, one a line.
async fn answer(reward: &Reward, commands: &str) -> String {
    match try_answer(reward, commands).await.unwrap() {
        Verdict::Invalid(answer) => answer,
        other => panic!("{commands}: {other:?}"),
    }
}

async fn try_answer(reward: &Reward, commands: &str) -> Result<Verdict, Failure> {
    reward.score(common::call(1), &common::sample(commands, None)).await
}
