//! Metrics, the line and the summary.

use super::*;
use crate::step::tests::trajectory;
use molt_core::chat::Task;
use molt_core::ids::{GroupId, RolloutId};
use molt_core::outcome::{DropReason, Outcome};
use molt_core::settings::{CorrectionLevel, TrainSettings};
use molt_core::trajectory::{Sampled, Segment};
use proptest::prelude::*;

fn group(id: u64, rollouts: &[(Reward, usize, u64)]) -> Group {
    let task = Task { id: "7".into(), messages: Vec::new(), label: None, fields: Vec::new() };
    let finished = |(member, (reward, length, version)): (u32, &(Reward, usize, u64))| {
        let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(*version) };
        let mut segment = Segment::new(vec![1]);
        segment.push_turn(0, &vec![sampled; *length]);
        let rollout = RolloutId { group: GroupId(id), member };
        Outcome::Finished(Box::new(Trajectory {
            truncated: *length > 3,
            turn_rewards: vec![reward.value(0.0)],
            metrics: BTreeMap::from([
                ("lines".to_owned(), *length as f64),
                ("reward/math".to_owned(), 2.0 * *length as f64),
            ]),
            ..trajectory(rollout, &task, vec![segment], reward.clone())
        }))
    };
    let outcomes = (0..).zip(rollouts).map(finished).collect();
    Group { id: GroupId(id), task, outcomes }
}

/// A step of these rollouts, with the host's PPO, of which nothing else is known.
fn step<'a>(groups: &'a [Group], rewards: &'a [f64], loss: &'a PolicyLoss) -> Step<'a> {
    Step {
        groups,
        replayed: None,
        rewards,
        is_scored: true,
        loss,
        silent: 0,
        dropped: &[],
        census: None,
        buckets: None,
        shaped: None,
        mask_truncated: false,
        source_key: "data_source",
        version: WeightVersion(5),
        sums: PolicySums::default(),
        update: Update::default(),
        times: Times::default(),
    }
}

fn ppo() -> PolicyLoss {
    PolicyLoss::from(&TrainSettings::default())
}

#[test]
fn a_mean_is_a_sum_over_its_population() {
    let scored = |value| Reward::Scored { value, solved: value >= 1.0 };
    let invalid = Reward::Invalid { reason: "no number".into() };
    let groups = [
        group(0, &[(scored(1.0), 2, 5), (scored(0.0), 4, 4), (invalid, 1, 5)]),
        group(1, &[(scored(1.0), 1, 5)]),
    ];
    let advantages = [vec![0.0; 2], vec![0.0, 0.0, 0.0, -1.0], vec![0.5], vec![0.0]];
    let rows: Vec<PolicyRow<'_>> = finished(&groups)
        .zip(&advantages)
        .map(|(t, advantages)| PolicyRow::new(&t.segments[0], advantages.clone()))
        .collect();
    let drop = |member| Dropped {
        rollout: RolloutId { group: GroupId(2), member },
        reason: DropReason::Plugin("trap".into()),
        detail: String::new(),
    };
    let loss = ppo();
    let step = Step {
        silent: zero_advantage_groups(&groups, &rows),
        dropped: &[drop(0), drop(1)],
        mask_truncated: true,
        sums: PolicySums {
            tokens: 8,
            clipped: 2.0,
            advantage: -0.5,
            on_policy: 4,
            gap: 4e-6,
            gap_max: 3e-6,
            ..Default::default()
        },
        update: Update::default(),
        times: Times {
            generate_wait: Duration::from_secs(2),
            advantages: Duration::ZERO,
            train: Duration::from_secs(1),
            publish: Duration::from_secs(1),
            between: Duration::from_secs(3),
        },
        ..step(&groups, &[1.0, 0.0, 0.0, 1.0], &loss)
    };
    let metrics = step.metrics();
    for (name, want) in [
        ("rollout/reward_mean", 0.5),
        ("rollout/solved_rate", 0.5),
        ("rollout/invalid_rate", 0.25),
        ("rollout/truncated_rate", 0.25),
        ("rollout/length_mean", 2.0),
        ("rollout/groups", 2.0),
        ("rollout/zero_advantage_groups", 1.0),
        ("rollout/zero_variance_groups", 1.0),
        ("rollout/staleness_mean", 0.5),
        ("rollout/staleness_max", 1.0),
        ("train/clip_fraction", 0.25),
        ("train/advantage_mean", -0.0625),
        ("train/logprob_gap_mean", 1e-6),
        ("train/logprob_gap_max", 3e-6),
        ("plugin/lines", 2.0),
        ("reward/math", 4.0),
        ("dropped/trap", 2.0),
        ("perf/tokens_per_s", 2.0),
        ("time/step", 7.0),
        ("rollout/masked", 1.0),
    ] {
        assert!((metrics[name] - want).abs() < 1e-12, "{name}: {} is not {want}", metrics[name]);
    }
    let parts = ["between", "generate_wait", "advantages", "train", "publish"];
    let parts: f64 = parts.iter().map(|part| metrics[&format!("time/{part}")]).sum();
    assert!((parts - metrics["time/step"]).abs() < 1e-12, "nothing is left over");
    assert_eq!(step.line(&metrics), "reward 0.50 solved 50% 2 tok/s gen 50% train 25% publish 25%");
}

/// One of a batch's rollouts.
#[derive(Debug, Clone)]
struct Played {
    /// None of an output that could not be scored.
    reward: Option<f64>,
    truncated: bool,
    /// The tokens of each turn, and where a second segment begins.
    turns: Vec<usize>,
    cut: usize,
    version: u64,
}

fn played() -> impl Strategy<Value = Vec<Vec<Played>>> {
    let reward = prop::option::weighted(0.8, prop_oneof![Just(0.0), Just(1.0), -2.0..2.0]);
    let turns = prop::collection::vec(1_usize..5, 1..4);
    let rollout = (reward, any::<bool>(), turns, 0_usize..4, 0_u64..12).prop_map(
        |(reward, truncated, turns, cut, version)| Played { reward, truncated, turns, cut, version },
    );
    prop::collection::vec(prop::collection::vec(rollout, 0..5), 0..4)
}

fn groups_of(played: &[Vec<Played>]) -> Vec<Group> {
    let rollout = |group: u64, member: u32, of: &Played| {
        let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(of.version) };
        let mut segments = vec![Segment::new(vec![1; 4])];
        for (turn, tokens) in of.turns.iter().enumerate() {
            if turn > 0 && turn == of.cut {
                segments.push(Segment::new(vec![1; 4]));
            }
            let segment = segments.last_mut().expect("there is one");
            segment.push_turn(turn as u32, &vec![sampled; *tokens]);
            segment.push_context(&[3]);
        }
        let reward = match of.reward {
            Some(value) => Reward::Scored { value, solved: value >= 1.0 },
            None => Reward::Invalid { reason: String::new() },
        };
        let outcomes = self::group(group, &[(reward, 1, of.version)]).outcomes;
        let Some(Outcome::Finished(mut trajectory)) = outcomes.into_iter().next() else {
            panic!("it is finished")
        };
        trajectory.rollout.member = member;
        (trajectory.segments, trajectory.truncated) = (segments, of.truncated);
        Outcome::Finished(trajectory)
    };
    let group = |(id, rollouts): (u64, &Vec<Played>)| Group {
        outcomes: (0..).zip(rollouts).map(|(member, of)| rollout(id, member, of)).collect(),
        ..group(id, &[])
    };
    (0..).zip(played).map(group).collect()
}

proptest! {
    #![proptest_config(crate::step::tests::config(200))]

    /// Each mean once more, slowly: everything of its population in one list, summed up and divided by its length.
    #[test]
    fn every_mean_is_that_of_a_slow_recount(played in played(), drops in 0_u32..4) {
        let groups = groups_of(&played);
        let rewards: Vec<f64> = played.iter().flatten().map(|of| of.reward.unwrap_or(-2.0)).collect();
        let drop = |member| Dropped {
            rollout: RolloutId { group: GroupId(9), member },
            reason: if member % 2 == 0 { DropReason::Filtered } else { DropReason::NoReward },
            detail: String::new(),
        };
        let (loss, dropped) = (ppo(), (0..drops).map(drop).collect::<Vec<_>>());
        let step = Step {
            dropped: &dropped,
            mask_truncated: true,
            version: WeightVersion(11),
            ..step(&groups, &rewards, &loss)
        };
        let metrics = step.metrics();
        let all: Vec<&Played> = played.iter().flatten().collect();
        let of = |value: &dyn Fn(&Played) -> f64| all.iter().map(|of| value(of)).collect::<Vec<f64>>();
        let truth = |is: bool| if is { 1.0 } else { 0.0 };
        let length = |of: &Played| of.turns.iter().sum::<usize>() as f64;
        // A segment begins with a prompt of 4, and behind each turn there is a token of the environment.
        let segments = |of: &Played| 1 + usize::from(of.cut > 0 && of.cut < of.turns.len());
        let every_turn: Vec<f64> = all.iter().flat_map(|of| &of.turns).map(|&tokens| tokens as f64).collect();
        let ages: Vec<f64> =
            all.iter().flat_map(|of| vec![(11 - of.version) as f64; length(of) as usize]).collect();
        // Half the mean squared difference of all pairs is the variance.
        let spread = |rewards: &[f64]| {
            let mut squares = 0.0;
            for a in rewards {
                for b in rewards {
                    squares += (a - b).powi(2);
                }
            }
            let n = rewards.len() as f64;
            (squares / (2.0 * n * (n - 1.0))).sqrt()
        };
        let of_group = |group: &Vec<Played>| -> Vec<f64> {
            group.iter().map(|of| of.reward.unwrap_or(-2.0)).collect()
        };
        let spreads = played.iter().map(of_group).filter(|rewards| rewards.len() > 1);
        let spreads: Vec<f64> = spreads.map(|rewards| spread(&rewards)).collect();
        let means = [
            ("rollout/reward_mean", rewards.clone()),
            ("rollout/solved_rate", of(&|of| truth(of.reward.is_some_and(|value| value >= 1.0)))),
            ("rollout/truncated_rate", of(&|of| truth(of.truncated))),
            ("rollout/invalid_rate", of(&|of| truth(of.reward.is_none()))),
            ("rollout/length_mean", of(&length)),
            ("rollout/turns_mean", of(&|of| of.turns.len() as f64)),
            ("rollout/total_length_mean", of(&|of| {
                length(of) + (of.turns.len() + 4 * segments(of)) as f64
            })),
            ("rollout/segments_mean", of(&|of| segments(of) as f64)),
            ("turn/length_mean", every_turn.clone()),
            ("rollout/staleness_mean", ages.clone()),
            ("group/reward_std_mean", spreads),
            ("rollout/reward_std", if rewards.len() > 1 { vec![spread(&rewards)] } else { Vec::new() }),
        ];
        for (name, values) in means {
            let want = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
            let same = match (metrics.get(name), want) {
                (Some(found), Some(want)) => (found - want).abs() < 1e-9,
                (found, want) => found.is_none() && want.is_none(),
            };
            prop_assert!(same, "{name}: {:?} is not {want:?}", metrics.get(name));
        }
        let most = |values: Vec<f64>| values.into_iter().reduce(f64::max);
        for (name, values) in [
            ("rollout/length_max", of(&length)),
            ("rollout/turns_max", of(&|of| of.turns.len() as f64)),
            ("turn/length_max", every_turn),
            ("rollout/staleness_max", ages.clone()),
        ] {
            prop_assert_eq!(metrics.get(name).copied(), most(values), "{}", name);
        }
        let shares: f64 = metrics.iter().filter(|(name, _)| name.starts_with("staleness/")).map(|(_, x)| x).sum();
        prop_assert!((shares - truth(!ages.is_empty())).abs() < 1e-9, "every token has one age");
        prop_assert_eq!(metrics["rollout/finished"], all.len() as f64);
        prop_assert_eq!(metrics["rollout/dropped"], f64::from(drops));
        let by_reason: f64 = metrics.iter().filter(|(name, _)| name.starts_with("dropped/")).map(|(_, x)| x).sum();
        prop_assert_eq!(by_reason, f64::from(drops));
    }
}

/// Of two batches with 3 of 12 and 3 of 4 the share is 6 of 16, not the mean of the shares, .5 (TRL 6380).
#[test]
fn a_mean_is_no_mean_of_means() {
    let scored = |right: usize, all: usize| -> Vec<(Reward, usize, u64)> {
        (0..all).map(|nth| (Reward::Scored { value: 0.0, solved: nth < right }, 1, 0)).collect()
    };
    let groups = [group(0, &scored(3, 12)), group(1, &scored(3, 4))];
    let mut sums = PolicySums { tokens: 12, clipped: 3.0, units: 12, outside: 3, ..PolicySums::default() };
    sums.add(&PolicySums { tokens: 4, clipped: 3.0, units: 4, outside: 3, ..PolicySums::default() });
    let loss = ppo();
    let step = Step { version: WeightVersion(0), sums, ..step(&groups, &[0.0; 16], &loss) };
    let metrics = step.metrics();
    for name in ["rollout/solved_rate", "train/clip_fraction", "train/correction_outside"] {
        assert_eq!(metrics[name], 0.375, "{name}");
    }
}

#[test]
fn batches_that_are_masked_whole_are_counted_in_a_row() {
    let correction = |mode| Correction { level: CorrectionLevel::Token, mode, low: 0.5, high: 2.0 };
    let mask = correction(CorrectionMode::Mask);
    let seen = |outside, units| PolicySums { outside, units, ..PolicySums::default() };
    let mut summary = Summary::default();
    for (sums, want) in [
        (seen(999, 1000), 1),
        (seen(4, 4), 2),
        (seen(998, 1000), 0),
        (seen(1, 1), 1),
        (seen(0, 0), 0),
        (seen(1, 1), 1),
    ] {
        let note = summary.add_correction(Some(&mask), &sums);
        assert_eq!(summary.masked_in_a_row, want);
        assert_eq!(note.is_some(), want > 0);
    }
    // What is clipped is learnt from, however much it is.
    assert_eq!(summary.add_correction(Some(&correction(CorrectionMode::Clip)), &seen(1, 1)), None);
    assert_eq!(summary.masked_in_a_row, 0);
}

#[test]
fn without_on_policy_tokens_there_is_no_gap() {
    let groups = [group(0, &[(Reward::Scored { value: 1.0, solved: true }, 1, 4)])];
    let loss = ppo();
    let sums = PolicySums { tokens: 1, ..PolicySums::default() };
    let step = Step { sums, ..step(&groups, &[1.0], &loss) };
    assert!(!step.metrics().keys().any(|name| name.contains("gap")));
}

/// A teacher says all that is to be learnt, and what nothing scored is no reward of 0.
#[test]
fn without_scores_there_is_no_reward() {
    let groups = [group(0, &[(Reward::Scored { value: 0.0, solved: false }, 1, 4)])];
    let loss = ppo();
    let sums = PolicySums { tokens: 4, ..PolicySums::default() };
    let times =
        Times { advantages: Duration::from_secs(1), train: Duration::from_secs(1), ..Times::default() };
    let (census, buckets) = (Census::default(), Buckets { unseen: 1, ..Buckets::default() });
    let shaped = Some(Shaped::default());
    let step = Step {
        is_scored: false,
        census: Some(&census),
        buckets: Some(buckets),
        shaped,
        sums,
        times,
        ..step(&groups, &[0.0], &loss)
    };
    let mut metrics = step.metrics();
    let of_scores =
        |name: &str| name.contains("reward_") || name.contains("solved") || name.contains("curriculum");
    assert!(!metrics.keys().any(|name| of_scores(name)), "{metrics:?}");
    assert!(is_of_scores("source/a/solved_rate") && !is_of_scores("plugin/a/solved_rate"));
    assert!(metrics.contains_key("rollout/truncated_rate") && metrics.contains_key("reward/math"));
    metrics.insert("train/kl_reference".to_owned(), 0.25);
    assert_eq!(step.line(&metrics), "kl 0.2500 2 tok/s advantages 50% train 50%");
    // A critic warms up.
    let step = Step { sums: PolicySums::default(), ..step };
    assert_eq!(step.line(&metrics), "kl 0.2500 advantages 50% train 50%");
}

/// What a loss cannot do has no share of tokens to which it was done.
#[test]
fn a_loss_without_a_bound_has_no_share_of_clipped_tokens() {
    let groups = [group(0, &[(Reward::Scored { value: 1.0, solved: true }, 1, 4)])];
    let sums = PolicySums { tokens: 1, ..PolicySums::default() };
    let of = |surrogate| {
        let loss = PolicyLoss { surrogate, ..ppo() };
        let metrics = Step { sums, ..step(&groups, &[1.0], &loss) }.metrics();
        ["train/clip_fraction", "train/dual_clip_fraction"].map(|name| metrics.contains_key(name))
    };
    let (low, high) = (0.2, 0.2);
    assert_eq!(of(None), [false, false], "of a plugin it is not known");
    assert_eq!(of(Some(Surrogate::Importance)), [false, false]);
    assert_eq!(of(Some(Surrogate::Cispo { high })), [true, false]);
    assert_eq!(of(Some(Surrogate::Ppo { low, high, dual: None })), [true, false]);
    assert_eq!(of(Some(Surrogate::Ppo { low, high, dual: Some(3.0) })), [true, true]);
}

#[test]
fn first_and_last_are_the_tenths_at_the_ends() {
    let mut summary = Summary::default();
    for step in 0..20 {
        // Steps of different sizes: the mean is over rollouts, not over steps.
        let rewards = vec![f64::from(step); if step % 2 == 0 { 1 } else { 3 }];
        let kl = (step < 19).then(|| f64::from(step));
        summary.add_step(&PolicySums { tokens: 2, ..PolicySums::default() }, &rewards, kl);
    }
    assert_eq!((summary.steps, summary.tokens), (20, 40));
    assert_eq!((summary.reward_first, summary.reward_last), (Some(0.75), Some(18.75)));
    assert_eq!((summary.kl_first, summary.kl_last), (Some(0.5), Some(18.0)), "a step may have none");
    assert_eq!(summary.logprob_gap_max, None, "no token was on-policy");
}

#[test]
fn numbers_for_people() {
    for (value, want) in [(0.4, "0"), (999.0, "999"), (1830.2, "1,830"), (1_234_567.0, "1,234,567")] {
        assert_eq!(thousands(value), want);
    }
}
