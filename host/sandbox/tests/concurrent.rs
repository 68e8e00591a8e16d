//! Many calls at a time. Alone in its process, whose memory it measures.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, call, library, limits, sample};

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_calls_beside_attackers_are_unchanged() {
    let plugin = SANDBOX.reward(&library(), "hostile", limits()).unwrap();
    let work = plugin.score(call(1), &sample("work", None)).await.unwrap();
    let before = resident();
    let spawn = |act: &'static str, member: u32| {
        let plugin = plugin.clone();
        tokio::spawn(async move { plugin.score(call(member), &sample(act, None)).await })
    };
    let attacks = ["loop", "alloc", "trap", "recurse", "big", "file", "flood"];
    let attackers: Vec<_> =
        attacks.iter().cycle().take(21).zip(1000..).map(|(act, n)| spawn(act, n)).collect();
    let healthy: Vec<_> = (0..200).map(|n| spawn("work", n)).collect();
    for call in healthy {
        assert_eq!(call.await.unwrap().unwrap(), work);
    }
    for (attacker, member) in attackers.into_iter().zip(1000..) {
        let failure = attacker.await.unwrap().unwrap_err();
        assert_eq!(failure.rollout, Some(common::rollout(member)));
    }
    // Three attackers filled 32 MiB each and 200 instances lived: all of that is given back.
    let kept = resident().saturating_sub(before);
    assert!(kept < 32 << 20, "{kept} bytes are kept");
}
