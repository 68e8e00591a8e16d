//! The shipped plugins through the boundary.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, call, library, limits, sample, say, task};
use molt_core::chat::{Message, Role};
use molt_sandbox::{Cause, EstimatorBatch, Verdict};

/// Three rollouts in two groups; rollout 0 has two segments.
fn batch() -> EstimatorBatch {
    EstimatorBatch {
        rewards: vec![1.0, 0.3, -0.7],
        groups: vec![0, 1, 0],
        segment_rollouts: vec![0, 1, 0, 2],
        segment_offsets: vec![0, 2, 3, 4, 7],
        turns: vec![0, 0, 0, 1, 0, 0, 1],
        turn_rewards: vec![0.0, 1.0, 0.3, -0.2, -0.5],
        turn_offsets: vec![0, 2, 3, 5],
        kl: vec![0.1, -0.2, 0.3, 0.4, 0.0, -0.1, 0.7],
        values: vec![],
        kl_coef: 0.1,
        parameters: vec![],
    }
}

#[tokio::test]
async fn a_large_estimate_fits_whatever_the_output_limit() {
    let tokens = 400_000;
    let batch = EstimatorBatch {
        rewards: vec![1.0, 0.0],
        groups: vec![0, 0],
        segment_rollouts: vec![0, 1],
        segment_offsets: vec![0, tokens / 2, tokens],
        turns: vec![0; tokens as usize],
        turn_rewards: vec![1.0, 0.0],
        turn_offsets: vec![0, 1, 2],
        parameters: vec![1.0],
        ..EstimatorBatch::default()
    };
    let plugin = SANDBOX.estimator(&library(), "reinforce", limits()).unwrap();
    let estimate = plugin.estimate(&batch).await.unwrap();
    assert_eq!((estimate.returns[0], estimate.returns[tokens as usize - 1]), (1.0, 0.0));
}

#[tokio::test]
async fn a_batch_that_does_not_fit_together_never_reaches_the_plugin() {
    let plugin = SANDBOX.estimator(&library(), "grpo", limits()).unwrap();
    let change: [fn(&mut EstimatorBatch); 17] = [
        |b| b.groups = vec![0, 2, 0],
        |b| b.groups.push(0),
        |b| b.segment_rollouts[0] = 9,
        |b| b.segment_offsets = vec![0, 3, 2, 4, 7],
        |b| b.segment_offsets.clear(),
        |b| b.turns.clear(),
        |b| b.kl.truncate(3),
        |b| b.rewards[0] = f32::NAN,
        |b| b.groups = vec![0, u32::MAX, 0],
        |b| b.turns[3] = 2,
        |b| b.turn_rewards[1] = f32::INFINITY,
        |b| b.turn_rewards.clear(),
        |b| b.turn_offsets = vec![1, 2, 3, 5],
        |b| b.turn_offsets = vec![0, 3, 2, 5],
        |b| b.turn_offsets = vec![0, 5],
        |b| b.kl_coef = f32::NAN,
        |b| b.parameters = vec![f64::INFINITY],
    ];
    for (case, change) in change.iter().enumerate() {
        let mut bad = batch();
        change(&mut bad);
        let failure = plugin.estimate(&bad).await.unwrap_err();
        assert!(matches!(failure.cause, Cause::BadCall(_)), "case {case}: {failure}");
    }
}

#[tokio::test]
async fn rewards_score() {
    let exact = SANDBOX.reward(&library(), "exact-match", limits()).unwrap();
    let math = SANDBOX.reward(&library(), "math", limits()).unwrap();
    let right = Verdict::Scored { reward: 1.0, solved: true, metrics: vec![] };
    let wrong = Verdict::Scored { reward: 0.0, solved: false, metrics: vec![] };
    let half = sample("so it is \\boxed{\\frac{1}{2}}", Some("0.5"));
    // Which answers are the same, `math` says too.
    let same = Verdict::Scored { reward: 1.0, solved: true, metrics: vec![("answer".into(), 0.0)] };
    assert_eq!(math.score(call(1), &half).await.unwrap(), same);
    assert_eq!(exact.score(call(1), &half).await.unwrap(), wrong);
    assert_eq!(exact.score(call(1), &sample(" 42 ", Some("42"))).await.unwrap(), right);
    assert!(matches!(exact.score(call(1), &sample("42", None)).await.unwrap(), Verdict::Infra(_)));
}

#[tokio::test]
async fn a_megabyte_without_an_answer_is_scored_within_the_limits() {
    let math = SANDBOX.reward(&library(), "math", limits()).unwrap();
    for unit in ["\\boxed{", "9", "1,"] {
        let verdict =
            math.score(call(1), &sample(&unit.repeat((1 << 20) / unit.len()), Some("7"))).await.unwrap();
        assert!(matches!(verdict, Verdict::Scored { reward: 0.0, .. }), "{unit}: {verdict:?}");
    }
}

#[tokio::test]
async fn a_single_turn_is_one_prompt_and_one_answer() {
    let plugin = SANDBOX.environment(&library(), "single-turn", limits()).unwrap();
    let mut episode = plugin.open(call(1), &task(Some("42"))).await.unwrap();
    assert_eq!(episode.reset().await.unwrap(), task(None).messages);
    let transition = episode.step(&say("42")).await.unwrap();
    assert!(transition.done && transition.reward.is_none() && transition.messages.is_empty());
}

#[tokio::test]
async fn episodes_side_by_side_keep_their_own_state() {
    let plugin = SANDBOX.environment(&library(), "guess-number", limits()).unwrap();
    let mut low = plugin.open(call(1), &task(Some("10"))).await.unwrap();
    let mut high = plugin.open(call(2), &task(Some("90"))).await.unwrap();
    low.reset().await.unwrap();
    high.reset().await.unwrap();
    let hint = |text| vec![Message::new(Role::User, text)];
    assert_eq!(low.step(&say("50")).await.unwrap().messages, hint("lower"));
    assert_eq!(high.step(&say("50")).await.unwrap().messages, hint("higher"));
    let end = low.step(&say("10")).await.unwrap();
    assert_eq!((end.reward, end.solved, end.done), (Some(0.9), Some(true), true));
    assert_eq!(end.metrics, [("guesses".into(), 2.0)]);
    let end = high.step(&say("90")).await.unwrap();
    assert_eq!(end.reward, Some(0.9));
}

#[tokio::test]
async fn what_an_environment_reports_is_a_failure_of_its_rollout() {
    let plugin = SANDBOX.environment(&library(), "guess-number", limits()).unwrap();
    let mut episode = plugin.open(call(4), &task(Some("no number"))).await.unwrap();
    let failure = episode.reset().await.unwrap_err();
    assert_eq!((failure.label(), failure.rollout), ("infra", Some(common::rollout(4))));
    assert!(failure.to_string().contains("no number"), "{failure}");
}
