//! The hostile suite: plugins and inputs that attack, each with what has to come of it.
//!
//! Every attack is contained: it costs its own call a failure with a label and a sentence that names the plugin,
//! the limit and the rollout, and nothing else. `beside.rs` runs all of them beside healthy rollouts.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attack;
mod bombs;
mod damage;
mod exports;
mod floods;
mod grants;
mod leaks;
mod load;
mod outside;
mod python;
mod resources;
mod returns;
mod world;

use attack::Attack;

/// Every attack of a list, one after the other, and at the end all that came out otherwise.
async fn check(attacks: Vec<Attack>) {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (attack, member) in attacks.iter().zip(0..) {
        match attack.run(dir.path(), member).await {
            Ok(label) => assert_eq!(label, attack.label()),
            Err(other) => wrong.push(other),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn every_export_is_guarded() {
    check(exports::attacks()).await;
}

#[tokio::test]
async fn every_flood_is_cut_off() {
    check(floods::attacks()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_is_stretched() {
    let outside = outside::Outside::new();
    check(grants::attacks(&outside)).await;
    outside.check(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_is_contained() {
    check(python::attacks()).await;
}

#[tokio::test]
async fn every_file_is_refused_with_a_sentence() {
    check(load::attacks()).await;
}

#[tokio::test]
async fn every_resource_is_limited() {
    check(resources::attacks()).await;
}

#[tokio::test]
async fn every_answer_is_checked() {
    check(returns::attacks()).await;
}

#[tokio::test]
async fn the_world_is_out_of_reach() {
    check(world::attacks()).await;
}

#[tokio::test]
async fn no_file_takes_long_to_compile() {
    check(bombs::attacks()).await;
}
