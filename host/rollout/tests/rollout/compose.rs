//! Several rewards on one rollout, rewards that see the whole group, and what each turn earned.

use crate::scripted::*;
use molt_core::ids::{GroupId, RolloutId};
use molt_core::outcome::{DropReason, Group, Outcome};
use molt_core::seed::{Purpose, derive};
use molt_core::settings::Limits;
use molt_core::trajectory::{Reward, Trajectory};
use molt_rollout::{Driver, Prompts, WeightedReward, evaluate};
use std::sync::Arc;

const GROUP: GroupId = GroupId(7);

/// A reward that does what the completion says: fail, be invalid, or score its length.
fn hostile_times(weight: f64) -> WeightedReward {
    WeightedReward { weight, ..hostile().remove(0) }
}

fn exact_times(weight: f64) -> WeightedReward {
    WeightedReward { weight, ..exact_match().remove(0) }
}

/// Four rollouts of one row with label `right`.
async fn play(rewards: Vec<WeightedReward>, script: Script) -> Group {
    driver(single_turn(), rewards, script).group(GROUP, &task("q", Some("right"), &[]), 0..4).await.unwrap()
}

/// What the script says to member `member` of the group.
fn said(script: Script, member: u32) -> String {
    script("q", derive(5, Purpose::Turn { rollout: RolloutId { group: GROUP, member }, turn: 0 }))
}

fn finished(group: &Group) -> Vec<&Trajectory> {
    group.finished().collect()
}

fn reasons(group: &Group) -> Vec<&str> {
    let dropped = group.outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Dropped(dropped) => Some(dropped.reason.label()),
        Outcome::Finished(_) => None,
    });
    dropped.collect()
}

#[tokio::test]
async fn the_reward_is_the_weighted_sum_and_the_first_says_what_is_solved() {
    // "right" is 5 letters: 1 · 2.0 + 5 · −0.25.
    let group = play(vec![exact_times(2.0), hostile_times(-0.25)], |_, _| "right".into()).await;
    for rollout in finished(&group) {
        assert_eq!(rollout.reward, Reward::Scored { value: 0.75, solved: true });
        assert_eq!((rollout.metrics["reward/exact-match"], rollout.metrics["reward/hostile"]), (1.0, 5.0));
        assert_eq!(rollout.turn_rewards, [0.75]);
    }
    // The other way round a length of at least 1 is what is solved, though the answer is wrong.
    let group = play(vec![hostile_times(1.0), exact_times(1.0)], |_, _| "wrong".into()).await;
    assert!(finished(&group).iter().all(|r| r.reward == Reward::Scored { value: 5.0, solved: true }));
    assert_eq!(finished(&group).len(), 4);
}

#[tokio::test]
async fn one_failure_drops_and_one_invalid_verdict_is_invalid_in_whatever_order() {
    for rewards in [[exact_times(1.0), hostile_times(1.0)], [hostile_times(1.0), exact_times(1.0)]] {
        let group = play(rewards.to_vec(), |_, _| "infra".into()).await;
        assert_eq!(reasons(&group), ["infra"; 4]);
        let group = play(rewards.to_vec(), |_, _| "invalid".into()).await;
        for rollout in finished(&group) {
            assert_eq!(rollout.reward, Reward::Invalid { reason: "cannot be scored".into() });
            assert_eq!(rollout.metrics["reward/exact-match"], 0.0);
            assert_eq!(rollout.credits(0.0, -1.0), [-1.0]);
        }
    }
    // A failure beats an invalid verdict, also of a reward that is asked later: without a label exact-match is infra.
    let rewards = vec![hostile_times(1.0), exact_times(1.0)];
    let driver = driver(single_turn(), rewards, |_, _| "invalid".into());
    let group = driver.group(GROUP, &task("q", None, &[]), 0..2).await.unwrap();
    assert_eq!(reasons(&group), ["infra"; 2]);
}

#[tokio::test]
async fn a_weight_that_makes_a_reward_too_large_is_a_counted_outcome() {
    let group = play(vec![hostile_times(1e11)], |_, _| "seventeen letters".into()).await;
    assert_eq!(reasons(&group), ["reward-too-large"; 4]);
    let Outcome::Dropped(dropped) = &group.outcomes[0] else { panic!("finished") };
    assert!(dropped.detail.contains("`hostile`") && dropped.detail.contains("1.7e12"), "{}", dropped.detail);
    let group = play(vec![hostile_times(-1e11)], |_, _| "ten so far".into()).await;
    assert_eq!(finished(&group).len(), 4);
}

/// A third each: the same answer, one of its own, or a failure of the reward that sees it alone.
fn mixed(_: &str, seed: u64) -> String {
    match scramble(seed, 3) % 3 {
        0 => "same".into(),
        1 => format!("own {seed}"),
        _ => "infra".into(),
    }
}

#[tokio::test]
async fn a_group_reward_sees_all_that_was_not_dropped_before() {
    let rewards = vec![hostile_times(0.0), reward("novelty", 10.0, Limits::default())];
    let driver = driver(single_turn(), rewards, mixed);
    let group = driver.group(GROUP, &task("q", None, &[]), 0..24).await.unwrap();
    let answers: Vec<String> = (0..24).map(|member| said(mixed, member)).collect();
    let same = answers.iter().filter(|answer| *answer == "same").count();
    let lost = answers.iter().filter(|answer| *answer == "infra").count();
    assert!(same > 1 && lost > 0 && same + lost < 24, "{answers:?}");
    assert_eq!(reasons(&group), vec!["infra"; lost]);
    assert_eq!(finished(&group).len(), 24 - lost);
    for rollout in finished(&group) {
        let own = if rollout.completion == "same" { 1.0 / same as f64 } else { 1.0 };
        assert_eq!(rollout.metrics["reward/novelty"], own);
        // hostile is the first: it says solved, and counts for nothing.
        assert_eq!(rollout.reward, Reward::Scored { value: 10.0 * own, solved: true });
        assert_eq!(
            answers[rollout.rollout.member as usize], rollout.completion,
            "verdicts keep their places"
        );
    }
}

#[tokio::test]
async fn a_group_reward_that_fails_drops_the_group() {
    // It needs a little more than this memory to begin.
    let small = Limits { memory_mib: 1, ..Limits::default() };
    let group = play(vec![exact_times(1.0), reward("novelty", 1.0, small)], |_, _| "right".into()).await;
    assert_eq!(reasons(&group).len(), 4);
    let Outcome::Dropped(dropped) = &group.outcomes[3] else { panic!("finished") };
    assert!(matches!(dropped.reason, DropReason::Plugin(_)));
    assert!(dropped.detail.contains("novelty") && dropped.detail.contains("7.3"), "{}", dropped.detail);

    for (answer, label) in [("too few", "bad-return"), ("too many", "bad-return"), ("nan", "not-finite")] {
        let script: Script = match answer {
            "too few" => |_, _| "too few".into(),
            "too many" => |_, _| "too many".into(),
            _ => |_, _| "nan".into(),
        };
        let group = play(vec![reward("grouped", 1.0, Limits::default())], script).await;
        assert_eq!(reasons(&group), [label; 4]);
    }
}

#[tokio::test]
async fn a_group_reward_is_told_the_seed_of_each_rollout() {
    let rewards = || vec![reward("grouped", 1.0, Limits::default())];
    // As many bits as every language can hold; the environment and a reward of one rollout are told the same.
    let told = |purpose| (derive(5, purpose) & ((1 << 53) - 1)) as f64;
    let group = play(rewards(), |_, _| "seeds".into()).await;
    let seeds: Vec<f64> = finished(&group).iter().map(|rollout| rollout.metrics["seed"]).collect();
    let own = |member| told(Purpose::Plugin { rollout: RolloutId { group: GROUP, member } });
    assert_eq!(seeds, (0..4).map(own).collect::<Vec<_>>());
    assert!(seeds.iter().all(|seed| seeds.iter().filter(|other| *other == seed).count() == 1));
    let driver = driver(single_turn(), rewards(), |_, _| "seeds".into());
    let prompts = Prompts { rows: vec![task("q", None, &[])], skipped: 0 };
    let report = evaluate(&driver, &prompts, measure(3, &[])).await.unwrap();
    let seeds: Vec<f64> = finished(&report.groups[0]).iter().map(|rollout| rollout.metrics["seed"]).collect();
    let own = |sample| told(Purpose::EvalPlugin { row: 0, sample });
    assert_eq!(seeds, (0..3).map(own).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_verdict_on_one_of_a_group_is_about_that_one() {
    let grouped = || vec![exact_times(1.0), reward("grouped", 1.0, Limits::default())];
    let group = play(grouped(), |_, _| "infra".into()).await;
    assert_eq!((reasons(&group), finished(&group).len()), (vec!["infra"], 3));
    let group = play(grouped(), |_, _| "mixed".into()).await;
    let invalid: Vec<bool> =
        finished(&group).iter().map(|r| matches!(r.reward, Reward::Invalid { .. })).collect();
    assert_eq!(invalid, [true, false, false, false]);
}

#[tokio::test]
async fn groups_are_scored_alike_whatever_the_timing_and_in_evaluation_too() {
    let rewards = || vec![exact_times(1.0), reward("novelty", 0.5, Limits::default())];
    let script: Script =
        |last, seed| if scramble(seed, 4).is_multiple_of(2) { last.into() } else { "other".into() };
    let salted = |salt| {
        let mut driver: Driver<Scripted> = driver(single_turn(), rewards(), script);
        Arc::get_mut(&mut driver.generator).unwrap().salt = salt;
        driver
    };
    let task = task("q", Some("q"), &[]);
    let first = salted(0).group(GROUP, &task, 0..6).await.unwrap();
    for salt in 1..4 {
        assert_eq!(salted(salt).group(GROUP, &task, 0..6).await.unwrap(), first);
    }
    let rows = Prompts { rows: vec![task.clone(), task], skipped: 0 };
    let report = evaluate(&salted(0), &rows, measure(6, &[])).await.unwrap();
    for group in &report.groups {
        for rollout in finished(group) {
            let same = finished(group).iter().filter(|other| other.completion == rollout.completion).count();
            let exact = f64::from(rollout.completion == "q");
            let expected = exact + 0.5 / same as f64;
            assert_eq!(rollout.reward, Reward::Scored { value: expected, solved: exact == 1.0 });
        }
    }
    let mean = |name| report.groups.iter().flat_map(finished).map(|r| r.metrics[name]).sum::<f64>() / 12.0;
    assert!((report.metrics["reward/novelty"] - mean("reward/novelty")).abs() < 1e-12);
    assert_eq!(report.metrics["distinct_answers"], mean("distinct_answers"));
}

#[tokio::test]
async fn every_turn_keeps_what_it_earned_and_the_last_the_rewards_too() {
    // Right, wrong, right; exact-match compares the last turn with the whole label: 0 of weight 1.
    let script: Script = |last, _| if last == "b" { "no".into() } else { last.into() };
    let quiz = |rewards, script| driver(environment("quiz"), rewards, script);
    let task = task("a", Some("a\nb\nc"), &[("more", "b\nc")]);
    let group = quiz(vec![hostile_times(0.5)], script).group(GROUP, &task, 0..1).await.unwrap();
    let rollout = finished(&group)[0];
    let third = 1.0 / 3.0;
    assert_eq!(rollout.turn_rewards, [third, 0.0, third + 0.5]);
    assert_eq!(rollout.credits(0.0, 0.0), rollout.turn_rewards);
    assert_eq!((rollout.metrics["reward/quiz"], rollout.metrics["reward/hostile"]), (2.0 * third, 1.0));
    let Reward::Scored { value, solved } = rollout.reward else { panic!("{:?}", rollout.reward) };
    assert!((value - (2.0 * third + 0.5)).abs() < 1e-12 && solved, "{value} {solved}");

    // What an environment gave on the way is void when the end cannot be scored.
    let invalid: Script = |last, _| if last == "c" { "invalid".into() } else { last.into() };
    let group = quiz(vec![hostile_times(1.0)], invalid).group(GROUP, &task, 0..1).await.unwrap();
    assert_eq!(finished(&group)[0].credits(0.0, -0.5), [0.0, 0.0, -0.5]);

    // A rollout cut short has as many as turns were played.
    let mut driver = quiz(vec![], script);
    driver.turn.max_turns = 2;
    let group = driver.group(GROUP, &task, 0..1).await.unwrap();
    assert_eq!(finished(&group)[0].turn_rewards, [third, 0.0]);
}
