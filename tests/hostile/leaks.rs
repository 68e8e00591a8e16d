//! What one instance leaves behind is not there for the next, nor for one that lives at the same time, nor for
//! the terminal of who reads what it printed.

use crate::attack::{SANDBOX, call, library, limits, sample, task};
use molt_sandbox::{Action, EstimatorBatch, Library, Limits, Verdict};
use molt_tests::component::{component, module, score};

/// Gives the number of bytes, table elements and globals that are not as a new instance has them, and leaves none.
fn hoarder() -> Vec<u8> {
    component(
        "reward",
        &module(&format!(
            "(global $mark (mut i32) (i32.const 0))
             (table $t 1000 funcref)
             (elem declare func $count)
             (func $count (result i32) (local $at i32) (local $found i32)
               (loop $bytes
                 (local.set $found (i32.add (local.get $found)
                   (i32.ne (i32.const 0) (i32.load8_u (i32.add (i32.const 1048576) (local.get $at))))))
                 (i32.store8 (i32.add (i32.const 1048576) (local.get $at)) (i32.const 0xa5))
                 (local.set $at (i32.add (local.get $at) (i32.const 61)))
                 (br_if $bytes (i32.lt_u (local.get $at) (i32.const 7000000))))
               (local.set $at (i32.const 0))
               (loop $elements
                 (local.set $found (i32.add (local.get $found)
                   (i32.eqz (ref.is_null (table.get $t (local.get $at))))))
                 (table.set $t (local.get $at) (ref.func $count))
                 (local.set $at (i32.add (local.get $at) (i32.const 1)))
                 (br_if $elements (i32.lt_u (local.get $at) (i32.const 1900))))
               (local.set $found (i32.add (local.get $found) (global.get $mark)))
               (global.set $mark (i32.const 1))
               (local.get $found))
             {}",
            score(
                "(drop (memory.grow (i32.const 126)))
                 (drop (table.grow $t (ref.null func) (i32.const 900)))
                 (f64.store (i32.const 1032) (f64.convert_i32_u (call $count)))"
            )
        )),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_tables_and_globals_are_new_every_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hoarder.wasm");
    std::fs::write(&path, hoarder()).unwrap();
    let patient = Limits { cpu_ms: 10_000, ..limits() };
    let plugin = SANDBOX.reward(&Library::new(&[]), path.to_str().unwrap(), patient).unwrap();
    // One after the other in the same place, and many at a time.
    for member in 0..50 {
        let verdict = plugin.score(call(member), &sample("")).await.unwrap();
        assert!(matches!(verdict, Verdict::Scored { reward: 0.0, .. }), "{member}: {verdict:?}");
    }
    let many: Vec<_> = (0..200)
        .map(|member| {
            let plugin = plugin.clone();
            tokio::spawn(async move { plugin.score(call(member), &sample("")).await })
        })
        .collect();
    for one in many {
        let verdict = one.await.unwrap().unwrap();
        assert!(matches!(verdict, Verdict::Scored { reward: 0.0, .. }), "{verdict:?}");
    }
}

#[tokio::test]
async fn the_statics_of_a_plugin_are_its_calls_own() {
    let reward = SANDBOX.reward(&library(), "hostile", limits()).unwrap();
    let environment = SANDBOX.environment(&library(), "hostile-environment", limits()).unwrap();
    let estimator = SANDBOX.estimator(&library(), "hostile-estimator", limits()).unwrap();
    for member in 0..5 {
        let verdict = reward.score(call(member), &sample("count")).await.unwrap();
        assert!(matches!(verdict, Verdict::Scored { reward: 0.0, .. }), "{verdict:?}");
        let mut episode = environment.open(call(member), &task("count")).await.unwrap();
        let action = Action { text: "on".into(), tool_calls: vec![], truncated: false };
        episode.reset().await.unwrap();
        assert_eq!(episode.step(&action).await.unwrap().reward, Some(0.0));
        let batch = EstimatorBatch {
            rewards: vec![1.0],
            groups: vec![0],
            segment_rollouts: vec![0],
            segment_offsets: vec![0, 1],
            turns: vec![0],
            turn_rewards: vec![1.0],
            turn_offsets: vec![0, 1],
            parameters: vec![13.0],
            ..EstimatorBatch::default()
        };
        assert_eq!(estimator.estimate(&batch).await.unwrap().advantages, [0.0]);
    }
}

#[tokio::test]
async fn chance_is_the_seed_and_time_is_counted_from_the_start() {
    let plugin = SANDBOX.reward(&library(), "hostile", limits()).unwrap();
    let score = async |member, act: &str| plugin.score(call(member), &sample(act)).await.unwrap();
    assert_eq!(score(1, "random").await, score(1, "random").await);
    assert_ne!(score(1, "random").await, score(2, "random").await);
    assert_eq!(score(1, "time").await, score(2, "time").await);
    assert_eq!(score(1, "sleep 3600").await, score(2, "sleep 3600").await);
}

#[tokio::test]
async fn a_loop_leaves_its_thread_to_others() {
    // One thread, and a loop that may go on for a minute: unless it yields, the second call never begins.
    let patient = Limits { cpu_ms: 60_000, ..limits() };
    let plugin = SANDBOX.reward(&library(), "hostile", patient).unwrap();
    let looping = plugin.clone();
    let attacker = tokio::spawn(async move { looping.score(call(1), &sample("loop")).await });
    tokio::task::yield_now().await;
    plugin.score(call(2), &sample("count")).await.unwrap();
    assert!(!attacker.is_finished());
    // An abandoned call ends where it is.
    attacker.abort();
    assert!(attacker.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn the_end_of_a_log_is_short_and_plain() {
    let access = Limits { cpu_ms: 10_000, ..limits() };
    let plugin = SANDBOX.reward(&library(), "hostile", access).unwrap();
    for act in ["flood", "flood with escapes", "flood with rubbish"] {
        let failure = plugin.score(call(1), &sample(act)).await.unwrap_err();
        assert!(failure.log.contains("flooded"), "{act}: {failure}");
        assert!(
            failure.log.chars().count() <= 400 && !failure.log.chars().any(char::is_control),
            "{failure}"
        );
    }
}
