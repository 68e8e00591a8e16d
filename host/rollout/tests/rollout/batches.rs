//! Synchronous and streaming batches with a scripted model and real plugins.

use crate::scripted::*;
use molt_core::ids::WeightVersion;
use molt_core::outcome::{DropReason, Dropped};
use molt_core::settings::Curriculum;
use molt_core::window::ErrorLimit;
use molt_generator::GeneratorError;
use molt_rollout::{Batch, Batches, Driver, Plan, RolloutError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Mostly right.
pub(crate) fn answer(last: &str, seed: u64) -> String {
    if scramble(seed, 1).is_multiple_of(4) { "wrong".into() } else { last.into() }
}

/// Right, or what the reward of that name does.
fn hostile_answer(_: &str, seed: u64) -> String {
    ["loop", "trap", "nan", "read /etc/passwd", "fine", "fine", "fine", "fine"]
        [(scramble(seed, 2) % 8) as usize]
        .into()
}

pub(crate) fn salted(salt: u64, mut driver: Driver<Scripted>) -> Arc<Driver<Scripted>> {
    Arc::get_mut(&mut driver.generator).unwrap().salt = salt;
    Arc::new(driver)
}

/// Trains on every batch, which is to publish a version.
pub(crate) async fn all(
    driver: &Driver<Scripted>,
    batches: &mut Batches<Scripted>,
) -> (Vec<Batch>, Vec<Dropped>) {
    let mut got = Vec::new();
    while let Some(batch) = batches.next().await.unwrap() {
        got.push(batch);
        let version = got.len() as u64;
        driver.generator.version.store(version, Ordering::SeqCst);
        batches.published(WeightVersion(version));
    }
    assert!(batches.next().await.unwrap().is_none(), "the end stays the end");
    (got, batches.take_dropped())
}

/// Every row once per pass, every rollout with one outcome, no short batch but the last.
pub(crate) fn assert_accounted(plan: &Plan, batches: &[Batch], rest: &[Dropped]) {
    let trained = batches.iter().flat_map(|batch| &batch.groups);
    let given_up = batches.iter().flat_map(|batch| &batch.dropped).chain(rest).map(|d| d.rollout.group);
    let shipped = count(trained.clone().map(|group| group.id));
    assert!(shipped.values().all(|times| *times == 1));
    let lost = count(given_up.filter(|group| !shipped.contains_key(group)));
    assert!(lost.values().all(|rollouts| *rollouts == plan.samples as usize), "{lost:?}");
    let mut ids: Vec<u64> = shipped.keys().chain(lost.keys()).map(|group| group.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..plan.groups()).collect::<Vec<_>>());
    let rows = count(trained.clone().map(|group| &group.task.id));
    assert!(rows.values().all(|times| *times as u64 <= plan.passes));
    for group in trained {
        assert_eq!(group.outcomes.len(), plan.samples as usize);
        assert!(group.finished().count() >= plan.min_finished as usize);
    }
    let full = batches.len().saturating_sub(1);
    assert!(batches[..full].iter().all(|batch| batch.groups.len() == plan.batch_size));
    assert!(batches.iter().all(|batch| !batch.groups.is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn without_a_queue_streaming_equals_sync_whatever_the_timing() {
    let plan = Plan { passes: 2, ..plan(prompts(11, |n| n % 4 == 1), 3) };
    let sync_driver = salted(0, driver(single_turn(), exact_match(), answer));
    let expected = all(&sync_driver, &mut Batches::sync(sync_driver.clone(), plan.clone())).await;
    assert_accounted(&plan, &expected.0, &expected.1);
    let given_up =
        |batch: &Batch| batch.dropped.iter().any(|d| batch.groups.iter().all(|g| g.id != d.rollout.group));
    assert!(expected.0.iter().any(given_up), "no group was given up");
    for salt in 1..6 {
        let driver = salted(salt, driver(single_turn(), exact_match(), answer));
        let got = all(&driver, &mut Batches::streaming(driver.clone(), plan.clone(), 0)).await;
        assert_eq!(got, expected);
    }
}

/// Trains on `steps` batches and gives back where the source was then, as bytes.
pub(crate) async fn some(
    driver: &Driver<Scripted>,
    mut batches: Batches<Scripted>,
    steps: usize,
) -> (Vec<Batch>, Vec<u8>) {
    let mut got = Vec::new();
    for _ in 0..steps {
        let Some(batch) = batches.next().await.unwrap() else { break };
        got.push(batch);
        let version = driver.generator.version.fetch_add(1, Ordering::SeqCst) + 1;
        batches.published(WeightVersion(version));
    }
    let position = batches.position().await.unwrap();
    (got, postcard::to_allocvec(&position).unwrap())
}

/// A new source at the position of another one.
pub(crate) fn go_on(
    driver: &Arc<Driver<Scripted>>,
    plan: &Plan,
    queue: usize,
    position: &[u8],
) -> Batches<Scripted> {
    Batches::resume(driver.clone(), plan.clone(), queue, postcard::from_bytes(position).unwrap())
}

#[tokio::test]
async fn a_synchronous_source_goes_on_as_if_never_interrupted() {
    let easy_first =
        Curriculum { easy_share: 0.5, hard_share: 0.5, easy_first: true, ..Curriculum::default() };
    for curriculum in [None, Some(easy_first)] {
        let plan = Plan { passes: 2, curriculum, ..plan(prompts(11, |n| n % 4 == 1), 3) };
        let driver = salted(0, driver(single_turn(), exact_match(), answer));
        let whole = all(&driver, &mut Batches::sync(driver.clone(), plan.clone())).await;
        for steps in 0..=whole.0.len() {
            driver.generator.version.store(0, Ordering::SeqCst);
            let (mut got, position) = some(&driver, Batches::sync(driver.clone(), plan.clone()), steps).await;
            let mut rest = go_on(&driver, &plan, 0, &position);
            while let Some(batch) = rest.next().await.unwrap() {
                got.push(batch);
                driver.generator.version.store(got.len() as u64, Ordering::SeqCst);
            }
            assert_eq!((got, rest.take_dropped()), whole, "interrupted after {steps} steps");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prompt_is_trained_once_however_often_a_stream_is_interrupted() {
    for (salt, queue) in [(1, 0), (2, 1), (3, 2), (4, 3)] {
        let plan = Plan { passes: 2, ..plan(prompts(13, |n| n % 5 == 1), 2) };
        let driver = salted(salt, driver(single_turn(), exact_match(), answer));
        let (mut got, mut position) =
            some(&driver, Batches::streaming(driver.clone(), plan.clone(), queue), 1).await;
        loop {
            let steps = 1 + scramble(salt, got.len() as u64) as usize % 3;
            let (more, at) = some(&driver, go_on(&driver, &plan, queue, &position), steps).await;
            position = at;
            if more.is_empty() {
                break;
            }
            got.extend(more);
        }
        let mut end = go_on(&driver, &plan, queue, &position);
        assert!(end.next().await.unwrap().is_none());
        assert_accounted(&plan, &got, &end.take_dropped());
        for (version, batch) in got.iter().enumerate() {
            let rollouts = batch.groups.iter().flat_map(|group| group.finished());
            let actions = rollouts.flat_map(|t| &t.segments).flat_map(|segment| segment.actions());
            let oldest = actions.map(|action| action.version.0).min().unwrap();
            assert!(version as u64 - oldest <= queue as u64, "queue {queue}, batch {version}: {oldest}");
        }
    }
}

#[tokio::test]
async fn no_token_is_older_than_the_queue_allows() {
    for queue_size in 1..4 {
        let mut ahead = BTreeMap::new();
        for salt in 0..4 {
            let plan = Plan { passes: 3, ..plan(prompts(13, |n| n % 5 == 1), 2) };
            let driver = salted(salt, driver(single_turn(), exact_match(), answer));
            let (batches, rest) =
                all(&driver, &mut Batches::streaming(driver.clone(), plan.clone(), queue_size)).await;
            assert_accounted(&plan, &batches, &rest);
            for (version, batch) in batches.iter().enumerate() {
                let rollouts = batch.groups.iter().flat_map(|group| group.finished());
                let actions = rollouts.flat_map(|t| &t.segments).flat_map(|segment| segment.actions());
                let oldest = actions.map(|action| action.version.0).min();
                let staleness = version as u64 - oldest.unwrap();
                assert!(staleness <= queue_size as u64, "queue {queue_size}, batch {version}: {staleness}");
                *ahead.entry(staleness).or_insert(0) += 1;
            }
        }
        assert!(ahead.contains_key(&(queue_size as u64)), "generation runs ahead: {ahead:?}");
    }
}

#[tokio::test]
async fn the_end_of_the_data_is_the_end_whatever_fails() {
    // Prompts and batch size for which pools are known to hang at the end of the data, or to lose groups.
    for (count, batch_size) in [(10, 3), (50, 16), (65, 8), (9, 3)] {
        for (queue_size, failing) in [(0, 0), (1, 3), (2, 1), (3, 2)] {
            let plan = plan(prompts(count, |n| failing > 0 && n % failing == 0), batch_size);
            let driver = salted(queue_size as u64, driver(single_turn(), exact_match(), answer));
            let (batches, rest) =
                all(&driver, &mut Batches::streaming(driver.clone(), plan.clone(), queue_size)).await;
            assert_accounted(&plan, &batches, &rest);
            let usable = (0..count).filter(|n| failing == 0 || n % failing != 0).count();
            assert_eq!(batches.iter().map(|batch| batch.groups.len()).sum::<usize>(), usable);
            let dropped = batches.iter().flat_map(|batch| &batch.dropped).chain(&rest);
            assert_eq!(
                dropped.filter(|d| d.reason == DropReason::Plugin("infra".into())).count(),
                3 * (count - usable)
            );
        }
    }
}

#[tokio::test]
async fn hostile_plugins_are_counted_and_the_run_goes_on() {
    let plan = Plan { min_finished: 1, ..plan(prompts(12, |_| true), 3) };
    let driver = salted(1, driver(single_turn(), hostile(), hostile_answer));
    let (batches, rest) = all(&driver, &mut Batches::streaming(driver.clone(), plan.clone(), 1)).await;
    assert_accounted(&plan, &batches, &rest);
    let dropped = batches.iter().flat_map(|batch| &batch.dropped).chain(&rest);
    let reasons = count(dropped.map(|dropped| dropped.reason.label()));
    assert_eq!(reasons.keys().copied().collect::<Vec<_>>(), ["cpu-limit", "denied", "not-finite", "trap"]);
    let finished: usize = batches.iter().flat_map(|b| &b.groups).map(|group| group.finished().count()).sum();
    assert_eq!(finished + reasons.values().sum::<usize>(), 12 * 3);
}

#[tokio::test]
async fn past_the_error_rate_the_run_stops_with_the_last_failure() {
    for streaming in [false, true] {
        let plan = Plan { errors: ErrorLimit { max_rate: 0.5, window: 8 }, ..plan(prompts(40, |_| true), 3) };
        let driver = salted(0, driver(single_turn(), hostile(), |_, _| "trap".into()));
        let mut batches = match streaming {
            true => Batches::streaming(driver, plan, 1),
            false => Batches::sync(driver, plan),
        };
        let error = batches.next().await.unwrap_err();
        let RolloutError::ErrorRate { rate, window, max, last } = &error else { panic!("{error}") };
        assert_eq!((*rate, *window, *max), (1.0, 8, 0.5));
        assert!(last.contains("hostile") && last.contains("crashed"), "{last}");
        assert!(error.to_string().starts_with("8 of the last 8 rollouts failed, more than"), "{error}");
        let dropped = batches.take_dropped();
        assert!(dropped.len() >= 8, "{dropped:?}");
        assert!(
            dropped.iter().all(|dropped| dropped.reason == DropReason::Plugin("trap".into())),
            "{dropped:?}"
        );
    }
}

/// A run of many passes does not make all of them to find that no prompt is of use.
#[tokio::test]
async fn a_pass_of_nothing_but_unusable_groups_ends_the_run() {
    let errors = ErrorLimit { max_rate: 1.0, window: 8 };
    let plan = Plan { passes: 1000, errors, ..plan(prompts(12, |_| true), 3) };
    for streaming in [false, true] {
        let driver = salted(0, driver(single_turn(), exact_match(), answer));
        let mut batches = match streaming {
            true => Batches::streaming(driver, plan.clone(), 1),
            false => Batches::sync(driver, plan.clone()),
        };
        let error = batches.next().await.unwrap_err();
        assert!(matches!(&error, RolloutError::Barren { groups: 13, .. }), "{error}");
        assert!(error.to_string().contains("infra 39; run.log says why"), "{error}");
        assert!(batches.take_dropped().len() >= 39);
    }
}

#[tokio::test]
async fn a_run_shorter_than_the_window_is_judged_at_its_end() {
    let plan = Plan { errors: ErrorLimit { max_rate: 0.5, window: 1000 }, ..plan(prompts(4, |_| true), 2) };
    let driver = salted(0, driver(single_turn(), exact_match(), answer));
    let error = Batches::streaming(driver, plan, 1).next().await.unwrap_err();
    assert!(matches!(error, RolloutError::ErrorRate { window: 12, .. }), "{error}");
}

#[tokio::test]
async fn too_few_finished_rollouts_give_the_whole_group_up() {
    // One rollout of each group can be scored, so none can be compared.
    let script = |_: &str, seed: u64| {
        if scramble(seed, 2).is_multiple_of(3) { "fine".into() } else { "infra".to_string() }
    };
    let plan = Plan { min_finished: 3, ..plan(prompts(10, |_| true), 2) };
    let driver = salted(0, driver(single_turn(), hostile(), script));
    let (batches, rest) = all(&driver, &mut Batches::sync(driver.clone(), plan.clone())).await;
    assert_accounted(&plan, &batches, &rest);
    let unusable = batches
        .iter()
        .flat_map(|b| &b.dropped)
        .chain(&rest)
        .filter(|d| d.reason == DropReason::GroupUnusable);
    assert!(unusable.count() > 0);
}

#[tokio::test]
async fn a_generator_that_stops_ends_the_run_with_its_reason() {
    for streaming in [false, true] {
        let mut driver = driver(single_turn(), exact_match(), answer);
        Arc::get_mut(&mut driver.generator).unwrap().stops_at = Some(20);
        let driver = Arc::new(driver);
        let plan = plan(prompts(40, |_| false), 2);
        let mut batches = match streaming {
            true => Batches::streaming(driver, plan, 1),
            false => Batches::sync(driver, plan),
        };
        let mut version = 0;
        let error = loop {
            match batches.next().await {
                Ok(batch) => assert!(batch.is_some(), "an error must not look like the end"),
                Err(error) => break error,
            }
            version += 1;
            batches.published(WeightVersion(version));
        };
        assert!(matches!(error, RolloutError::Generator(GeneratorError::Stopped(_))), "{error}");
    }
}

#[tokio::test]
async fn dropping_the_batches_cancels_every_rollout() {
    let driver = salted(0, driver(single_turn(), exact_match(), answer));
    let mut batches = Batches::streaming(driver.clone(), plan(prompts(40, |_| false), 4), 1);
    batches.next().await.unwrap().unwrap();
    while driver.generator.in_flight.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    drop(batches);
    // The runtime drops cancelled tasks when it next comes to them.
    let mut turns = 0;
    while Arc::strong_count(&driver) > 1 {
        turns += 1;
        assert!(turns < 1000, "something still holds the driver");
        tokio::task::yield_now().await;
    }
    assert_eq!(driver.generator.in_flight.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_batch_that_is_not_published_holds_its_slots() {
    let driver = salted(0, driver(single_turn(), exact_match(), answer));
    let mut batches = Batches::streaming(driver.clone(), plan(prompts(40, |_| false), 2), 1);
    for _ in 0..2 {
        batches.next().await.unwrap().unwrap();
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    // Two batches of two groups of three rollouts were generated, and nothing beyond.
    assert_eq!(driver.generator.requests.lock().unwrap().len(), 12);
    batches.published(WeightVersion(1));
    batches.next().await.unwrap().unwrap();
    assert_eq!(driver.generator.requests.lock().unwrap().len(), 18);
}
