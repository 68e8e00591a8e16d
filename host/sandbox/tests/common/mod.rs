//! Where the built plugins are, and one sandbox for all tests of a binary.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use molt_core::chat::{Message, Role, Task};
use molt_core::ids::{GroupId, RolloutId};
use molt_sandbox::{Action, Call, Library, Limits, Sample, Sandbox};
use std::path::PathBuf;
use std::sync::LazyLock;

pub(crate) static SANDBOX: LazyLock<Sandbox> =
    LazyLock::new(|| Sandbox::new(None).expect("the runtime starts"));

/// The shipped plugins and the hostile ones.
pub(crate) fn library() -> Library {
    Library::new(&[plugins("plugins"), plugins("plugins-test")])
}

/// `plugins` or `plugins-test`: in `MOLT_TEST_PLUGINS`, or in the target directory that this test runs from.
pub(crate) fn plugins(folder: &str) -> PathBuf {
    let from_env = std::env::var_os("MOLT_TEST_PLUGINS").map(PathBuf::from).into_iter();
    let executable = std::env::current_exe().expect("a test has a path");
    let above: Vec<PathBuf> = executable.ancestors().skip(1).map(Into::into).collect();
    from_env
        .chain(above)
        .map(|place| place.join(folder))
        .find(|place| place.is_dir())
        .expect("no built plugins: run `cargo xtask plugins` first")
}

pub(crate) fn limits() -> Limits {
    Limits { memory_mib: 32, cpu_ms: 300, output_kib: 1024, log_kib: 16, ..Limits::default() }
}

pub(crate) fn rollout(member: u32) -> RolloutId {
    RolloutId { group: GroupId(3), member }
}

pub(crate) fn call(member: u32) -> Call {
    Call { rollout: Some(rollout(member)), seed: u64::from(member) }
}

pub(crate) fn task(label: Option<&str>) -> Task {
    Task {
        id: "row-1".into(),
        messages: vec![Message::new(Role::User, "6 * 7?")],
        label: label.map(Into::into),
        fields: vec![],
    }
}

pub(crate) fn sample(completion: &str, label: Option<&str>) -> Sample {
    let mut messages = task(label).messages;
    messages.push(Message::new(Role::Assistant, completion));
    Sample { task: task(label), seed: 7, messages, completion: completion.into(), truncated: false }
}

pub(crate) fn say(text: &str) -> Action {
    Action { text: text.into(), tool_calls: vec![], truncated: false }
}
