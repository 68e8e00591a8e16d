//! All attacks of the suite beside a thousand healthy rollouts. Alone in its process, whose memory it measures.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod attack;
mod bombs;
mod exports;
mod floods;
mod grants;
mod load;
mod outside;
mod python;
mod resources;
mod returns;
mod world;

use attack::{Attack, SANDBOX, call, library, limits, sample, task};
use molt_sandbox::{Action, Environment, Episode, Limits, Reward, Transition, Verdict};
use outside::Outside;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Attacks that go on at a time.
const ATTACKERS: usize = 12;

/// Instances with sixteen tables, each of which takes four of the 6,144 places for episodes.
const CROWD: usize = 1400;

fn attacks(outside: &Outside) -> Vec<Attack> {
    let all = [
        bombs::attacks(),
        exports::attacks(),
        floods::attacks(),
        grants::attacks(outside),
        load::attacks(),
        python::attacks(),
        resources::attacks(),
        returns::attacks(),
        world::attacks(),
    ];
    all.into_iter().flatten().map(|attack| attack.with(|access| access.limits.call_s = 300)).collect()
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// What came of one healthy rollout: its turns in the environment, and its score.
type Outcome = (Vec<Transition>, Verdict);

/// Looks for the number by halving, and has the last answer graded.
async fn rollout(environment: &Environment, reward: &Reward, member: u32) -> Outcome {
    let mut episode = environment.open(call(member), &task(&(member % 100 + 1).to_string())).await.unwrap();
    episode.reset().await.unwrap();
    let (mut low, mut high, mut turns) = (1, 100, Vec::new());
    loop {
        let guess = (low + high) / 2;
        let action = Action { text: guess.to_string(), tool_calls: vec![], truncated: false };
        let turn = episode.step(&action).await.unwrap();
        match turn.messages.first().map(|message| message.content.as_str()) {
            Some("higher") => low = guess + 1,
            Some("lower") => high = guess - 1,
            _ => {}
        }
        let done = turn.done;
        turns.push(turn);
        if done {
            return (
                turns,
                reward.score(call(member), &sample(&format!("\\boxed{{{guess}}}"))).await.unwrap(),
            );
        }
    }
}

async fn healthy() -> Vec<Outcome> {
    let patient = Limits { cpu_ms: 60_000, call_s: 600, ..limits() };
    let environment = SANDBOX.environment(&library(), "guess-number", patient).unwrap();
    let reward = SANDBOX.reward(&library(), "math", patient).unwrap();
    let rollouts: Vec<_> = (0..1000)
        .map(|member| {
            let (environment, reward) = (environment.clone(), reward.clone());
            tokio::spawn(async move { rollout(&environment, &reward, member).await })
        })
        .collect();
    let mut outcomes = Vec::new();
    for rollout in rollouts {
        outcomes.push(rollout.await.unwrap());
    }
    outcomes
}

/// Every attack once, several at a time. Gives how often each label was counted.
async fn attack_all(outside: Arc<Outside>, dir: Arc<Path>) -> BTreeMap<&'static str, usize> {
    let places = Arc::new(Semaphore::new(ATTACKERS));
    let attackers: Vec<_> = attacks(&outside)
        .into_iter()
        .zip(10_000..)
        .map(|(attack, member)| {
            let (places, dir) = (places.clone(), dir.clone());
            tokio::spawn(async move {
                let _place = places.acquire().await.unwrap();
                attack.run(&dir, member).await
            })
        })
        .collect();
    let mut counted = BTreeMap::new();
    for attacker in attackers {
        if let Some(label) = attacker.await.unwrap().unwrap() {
            *counted.entry(label).or_insert(0) += 1;
        }
    }
    counted
}

/// Episodes of an environment with as many tables as are allowed, which hold nearly all places of the pool.
async fn crowd(dir: &Path) -> Vec<Episode> {
    let path = dir.join("crowd.wasm");
    let tables = "(table 1 funcref)".repeat(16);
    std::fs::write(&path, exports::environment_with(&tables, exports::NEW, "", "")).unwrap();
    let many = Limits { instances: CROWD, ..limits() };
    let environment = SANDBOX.environment(&library(), path.to_str().unwrap(), many).unwrap();
    let mut episodes = Vec::new();
    for member in 0..CROWD {
        episodes.push(environment.open(call(20_000 + member as u32), &task("")).await.unwrap());
    }
    episodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_healthy_rollouts_beside_the_attackers_are_unchanged() {
    let mut expected = BTreeMap::new();
    let outside = Arc::new(Outside::new());
    for label in attacks(&outside).iter().filter_map(Attack::label) {
        *expected.entry(label).or_insert(0) += 1;
    }
    assert!(attacks(&outside).len() >= 60 && expected.len() >= 9, "{expected:?}");
    let dir = tempfile::tempdir().unwrap();
    let dir: Arc<Path> = dir.path().into();

    let alone = healthy().await;
    // All at once, as below: what is left of memory then depends on how much was in use at a time.
    let (counted, episodes) = tokio::join!(attack_all(outside.clone(), dir.clone()), crowd(&dir));
    assert_eq!(counted, expected);
    drop(episodes);
    let before = resident();
    let attackers = tokio::spawn(attack_all(outside.clone(), dir.clone()));
    let crowd = crowd(&dir).await;
    let beside = healthy().await;
    drop(crowd);
    assert_eq!(attackers.await.unwrap(), expected);
    outside.check(2);
    let kept = resident().saturating_sub(before);

    assert_eq!(alone.len(), 1000);
    assert!(alone.iter().all(|(_, verdict)| matches!(verdict, Verdict::Scored { .. })));
    for (member, (alone, beside)) in alone.iter().zip(&beside).enumerate() {
        assert_eq!(alone, beside, "rollout {member}");
    }
    // What the attackers filled at one time or another is more than a gibibyte. The allocator keeps some tens of
    // mebibytes of it, more or less by the order in which threads came.
    assert!(kept < 128 << 20, "{kept} bytes are kept");
}
