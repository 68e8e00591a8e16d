//! Both versions of the contract through the boundary, and what is checked of what a plugin returns.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, call, library, limits, rollout, sample, say, task};
use molt_core::chat::{Message, Role};
use molt_sandbox::{Cause, EstimatorBatch, ParameterKind, Sample, ToolCall, Traits, Verdict, inspect};

#[tokio::test]
async fn a_reward_of_contract_0_1_scores() {
    let library = library();
    let reward = SANDBOX.reward(&library, "contract-0-1-reward", limits()).unwrap();
    assert_eq!(inspect(&reward.info().path).unwrap().contract, "0.1.0");
    assert!(!reward.scores_groups());
    let score = async |text| reward.score(call(1), &sample(text, Some("seven"))).await;
    let graded =
        |reward, solved| Verdict::Scored { reward, solved, metrics: vec![("messages".to_owned(), 2.0)] };
    assert_eq!(score("seven").await.unwrap(), graded(5.0, true));
    assert_eq!(score("six").await.unwrap(), graded(3.0, false));
    assert_eq!(score("invalid").await.unwrap(), Verdict::Invalid("no answer".into()));
    assert_eq!(score("infra").await.unwrap(), Verdict::Infra("no label".into()));
    let failure = score("panic").await.unwrap_err();
    assert_eq!((failure.label(), failure.rollout), ("trap", Some(rollout(1))));
    assert!(failure.to_string().contains("panics on purpose"), "{failure}");
}

#[tokio::test]
async fn an_environment_of_contract_0_1_plays() {
    let plugin = SANDBOX.environment(&library(), "contract-0-1-environment", limits()).unwrap();
    let mut episode = plugin.open(call(1), &task(Some("2"))).await.unwrap();
    assert_eq!(episode.reset().await.unwrap(), task(None).messages);
    let mut action = say("hello");
    action.tool_calls = vec![ToolCall { name: "f".into(), arguments_json: "{}".into() }];
    let first = episode.step(&action).await.unwrap();
    assert_eq!(first.messages, [Message::new(Role::User, "hello with 1 calls")]);
    assert_eq!((first.reward, first.solved, first.done), (None, Some(false), false));
    let second = episode.step(&say("bye")).await.unwrap();
    assert_eq!((second.reward, second.solved, second.done), (Some(0.5), Some(true), true));
    assert_eq!(second.metrics, [("taken".to_owned(), 2.0)]);
    let mut unlabelled = plugin.open(call(2), &task(None)).await.unwrap();
    let failure = unlabelled.reset().await.unwrap_err();
    assert_eq!(failure.cause, Cause::Reported("the row says no number of turns".into()));
}

#[tokio::test]
async fn an_estimator_of_contract_0_1_estimates() {
    let plugin = SANDBOX.estimator(&library(), "contract-0-1-estimator", limits()).unwrap();
    let traits = plugin.traits().await.unwrap();
    let rate = ParameterKind::Float { default: 1.0, min: 0.0, max: 1.0 };
    let parameters: Vec<_> = traits.parameters.iter().map(|p| (p.name.as_str(), &p.kind)).collect();
    assert_eq!(parameters, [("gamma", &rate), ("lambda", &rate)]);
    let expected = Traits { needs_group: true, uses_kl: true, whiten: true, ..Traits::default() };
    assert_eq!(Traits { parameters: vec![], ..traits }, expected);
    let batch = EstimatorBatch {
        rewards: vec![1.0, 0.5],
        groups: vec![0, 0],
        segment_rollouts: vec![0, 1],
        segment_offsets: vec![0, 2, 3],
        turns: vec![0, 1, 0],
        turn_rewards: vec![0.25, 0.75, 0.5],
        turn_offsets: vec![0, 2, 3],
        parameters: vec![0.5, 1.0],
        ..EstimatorBatch::default()
    };
    let estimate = plugin.estimate(&batch).await.unwrap();
    assert_eq!(estimate.advantages, [0.5, 0.5, 0.25]);
    assert_eq!(estimate.returns, [0.0, 1.0, 0.0]);
    let empty =
        EstimatorBatch { segment_offsets: vec![0], turn_offsets: vec![0], ..EstimatorBatch::default() };
    let failure = plugin.estimate(&empty).await.unwrap_err();
    assert_eq!(failure.cause, Cause::Reported("there is nothing to estimate".into()));
}

fn group(completions: &[&str]) -> Vec<Sample> {
    completions.iter().map(|completion| sample(completion, None)).collect()
}

#[tokio::test]
async fn a_group_is_scored_together_in_order() {
    let reward = SANDBOX.reward(&library(), "grouped", limits()).unwrap();
    assert!(reward.scores_groups());
    let verdicts = reward.score_group(call(0), &group(&["aaa", "a", "aaaa", "aa"])).await.unwrap();
    let rewards: Vec<f64> = verdicts
        .iter()
        .map(|verdict| match verdict {
            Verdict::Scored { reward, .. } => *reward,
            unscored => panic!("{unscored:?}"),
        })
        .collect();
    assert_eq!(rewards, [2.0, 0.0, 3.0, 1.0]);
    assert_eq!(reward.score_group(call(0), &[]).await.unwrap(), []);
    let mixed = reward.score_group(call(0), &group(&["mixed", "a"])).await.unwrap();
    assert_eq!(mixed[0], Verdict::Invalid("no answer".into()));
    assert!(matches!(mixed[1], Verdict::Scored { .. }));
}

#[tokio::test]
async fn verdicts_that_do_not_fit_the_group_are_refused() {
    let reward = SANDBOX.reward(&library(), "grouped", limits()).unwrap();
    for (act, label, told) in [
        ("too few", "bad-return", "1 verdicts of 2 rollouts"),
        ("too many", "bad-return", "3 verdicts of 2 rollouts"),
        ("nan", "not-finite", "the reward is NaN"),
    ] {
        let failure = reward.score_group(call(0), &group(&[act, "b"])).await.unwrap_err();
        assert_eq!(failure.label(), label, "{failure}");
        assert!(failure.to_string().contains(told), "{failure}");
    }
}

#[tokio::test]
async fn each_kind_of_reward_says_which_call_it_takes() {
    let (grouped, single) = ("grouped", "exact-match");
    let grouped = SANDBOX.reward(&library(), grouped, limits()).unwrap();
    let failure = grouped.score(call(1), &sample("a", None)).await.unwrap_err();
    assert_eq!(failure.label(), "bad-call");
    let single = SANDBOX.reward(&library(), single, limits()).unwrap();
    assert!(!single.scores_groups());
    let failure = single.score_group(call(1), &group(&["a"])).await.unwrap_err();
    assert_eq!(failure.label(), "bad-call");
}
