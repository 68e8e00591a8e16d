//! The table of reasons in ARCHITECTURE.md has those that a rollout can be dropped for, and no other.

use molt_core::outcome::DropReason;
use molt_sandbox::{Cause, Failure};
use std::collections::BTreeMap;

/// Those that are no plugin's.
fn of_the_host() -> [DropReason; 6] {
    use DropReason::*;
    let all = [PromptTooLong, NoActionTokens, NoReward, Unrenderable, GroupUnusable, Filtered];
    for reason in &all {
        // A new one does not compile until it is in the list.
        match reason {
            PromptTooLong | NoActionTokens | NoReward | Unrenderable | GroupUnusable | Filtered
            | Plugin(_) => {}
        }
    }
    all
}

/// What a failing call is counted as.
fn of_failures() -> Vec<&'static str> {
    use Cause::*;
    let all = [
        Memory { limit_mib: 1 },
        Tables { limit: 1 },
        Cpu { limit_ms: 1 },
        Fuel { limit: 1 },
        Time { limit_s: 1 },
        HostCalls { limit: 1 },
        Output { limit_kib: 1 },
        Stack,
        Trap(String::new()),
        NotFinite(String::new()),
        BadReturn(String::new()),
        Denied(String::new()),
        Reported(String::new()),
        BadCall(String::new()),
        Full(String::new()),
    ];
    let label = |cause| {
        match &cause {
            Memory { .. } | Tables { .. } | Cpu { .. } | Fuel { .. } | Time { .. } | HostCalls { .. } => {}
            Output { .. } | Stack | Trap(_) | NotFinite(_) | BadReturn(_) | Denied(_) | Reported(_) => {}
            BadCall(_) | Full(_) => {}
        }
        let failure =
            Failure { plugin: String::new(), rollout: None, cause, log: String::new(), trace: Box::new([]) };
        failure.label()
    };
    all.into_iter().map(label).collect()
}

/// What the code of rollouts calls a plugin's fault by itself.
fn of_rollouts() -> Vec<String> {
    let sources = [include_str!("../../src/episode.rs"), include_str!("../../src/score.rs")];
    let code = sources.map(|text| text.split("#[cfg(test)]").next().unwrap());
    let named = |code: &'static str| {
        let parts = code.split("DropReason::Plugin(\"").skip(1).chain(code.split("            (\"").skip(1));
        parts.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect::<Vec<_>>()
    };
    code.into_iter().flat_map(named).collect()
}

#[test]
fn every_reason_is_in_the_table_and_the_table_has_no_other() {
    let text = include_str!("../../../../ARCHITECTURE.md");
    let (_, section) = text.split_once("\n## Why rollouts are dropped\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut table = BTreeMap::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
        let mut columns = row.split('|').map(str::trim);
        let (names, is_failure) = (columns.next().unwrap(), columns.next().unwrap() == "yes");
        for name in names.split(',') {
            table.insert(name.trim().trim_matches('`').to_owned(), is_failure);
        }
    }
    let of_rollouts = of_rollouts();
    assert_eq!(of_rollouts.len(), 4, "{of_rollouts:?}");
    let plugins = of_failures().into_iter().map(str::to_owned).chain(of_rollouts);
    let plugins = plugins.map(|label| DropReason::Plugin(label.into()));
    let all: BTreeMap<String, bool> = of_the_host()
        .into_iter()
        .chain(plugins)
        .map(|reason| (reason.label().to_owned(), reason.is_failure()))
        .collect();
    assert_eq!(all, table);
}
