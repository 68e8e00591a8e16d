//! Dynamic sampling with a scripted model: groups that are all right or all wrong are replaced by fresh prompts.

use crate::batches::{all, answer, assert_accounted, go_on, salted, some};
use crate::scripted::*;
use molt_core::outcome::{DropReason, Dropped};
use molt_core::settings::FilterBy;
use molt_core::window::ErrorLimit;
use molt_rollout::{Batch, Batches, GroupFilter, Plan, RolloutError};

/// No failure is allowed at all, and a filtered group is none.
fn filtering(plan: Plan, max_refills: usize) -> Plan {
    let filter = GroupFilter { by: FilterBy::PassRate, low: 0.0, high: 1.0, lowest: 0.0, max_refills };
    Plan { filter: Some(filter), errors: ErrorLimit { max_rate: 0.0, window: 4 }, ..plan }
}

/// Every group that was filtered was counted and is of no use, and every other one is.
fn assert_filtered(batches: &[Batch], rest: &[Dropped]) {
    for group in batches.iter().flat_map(|batch| &batch.groups) {
        let solved = group.finished().filter(|trajectory| trajectory.reward.solved()).count();
        assert!((1..3).contains(&solved), "{solved} of {:?} are solved", group.id);
    }
    for batch in batches {
        assert!(batch.dropped.iter().all(|dropped| dropped.reason == DropReason::Filtered));
        let given_up = count(batch.dropped.iter().map(|dropped| dropped.rollout.group));
        assert!(given_up.values().all(|rollouts| *rollouts == 3));
        assert_eq!(batch.census.filtered, given_up.len());
        assert_eq!(batch.census.all_solved + batch.census.none_solved, given_up.len());
    }
    assert!(
        rest.iter().all(|dropped| dropped.reason == DropReason::Filtered && !dropped.reason.is_failure())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filtered_prompt_is_replaced_by_the_next() {
    let plan = filtering(Plan { passes: 3, ..plan(prompts(11, |_| false), 3) }, 100);
    let sync_driver = salted(0, driver(single_turn(), exact_match(), answer));
    let expected = all(&sync_driver, &mut Batches::sync(sync_driver.clone(), plan.clone())).await;
    assert_accounted(&plan, &expected.0, &expected.1);
    assert_filtered(&expected.0, &expected.1);
    assert!(expected.0.iter().any(|batch| batch.census.filtered > 0), "nothing was filtered");
    for salt in 1..4 {
        let driver = salted(salt, driver(single_turn(), exact_match(), answer));
        let got = all(&driver, &mut Batches::streaming(driver.clone(), plan.clone(), 0)).await;
        assert_eq!(got, expected, "without a queue it is the same");
        for queue in 1..3 {
            let (batches, rest) =
                all(&driver, &mut Batches::streaming(driver.clone(), plan.clone(), queue)).await;
            assert_accounted(&plan, &batches, &rest);
            assert_filtered(&batches, &rest);
        }
    }
}

#[tokio::test]
async fn a_run_goes_on_with_the_same_filtered_prompts() {
    let plan = filtering(Plan { passes: 2, ..plan(prompts(11, |_| false), 2) }, 100);
    let driver = salted(0, driver(single_turn(), exact_match(), answer));
    let whole = all(&driver, &mut Batches::sync(driver.clone(), plan.clone())).await;
    for steps in 0..=whole.0.len() {
        driver.generator.version.store(0, std::sync::atomic::Ordering::SeqCst);
        let (mut got, position) = some(&driver, Batches::sync(driver.clone(), plan.clone()), steps).await;
        let mut rest = go_on(&driver, &plan, 0, &position);
        while let Some(batch) = rest.next().await.unwrap() {
            got.push(batch);
            driver.generator.version.store(got.len() as u64, std::sync::atomic::Ordering::SeqCst);
        }
        assert_eq!((got, rest.take_dropped()), whole, "interrupted after {steps} steps");
    }
    for queue in 0..3 {
        let (mut got, mut position) =
            some(&driver, Batches::streaming(driver.clone(), plan.clone(), queue), 1).await;
        loop {
            let (more, at) = some(&driver, go_on(&driver, &plan, queue, &position), 1).await;
            position = at;
            if more.is_empty() {
                break;
            }
            got.extend(more);
        }
        let mut end = go_on(&driver, &plan, queue, &position);
        assert!(end.next().await.unwrap().is_none());
        let rest = end.take_dropped();
        assert_accounted(&plan, &got, &rest);
        assert_filtered(&got, &rest);
    }
}

#[tokio::test]
async fn a_run_of_which_all_is_filtered_ends() {
    for streaming in [false, true] {
        let start = |max_refills| {
            let driver = salted(0, driver(single_turn(), exact_match(), |_, _| "wrong".into()));
            let plan = filtering(plan(prompts(20, |_| false), 2), max_refills);
            match streaming {
                true => Batches::streaming(driver, plan, 1),
                false => Batches::sync(driver, plan),
            }
        };
        // With the data: 20 prompts may be filtered.
        let mut batches = start(20);
        assert!(batches.next().await.unwrap().is_none());
        assert_eq!(batches.take_dropped().len(), 60);
        // Or at the bound, with a sentence.
        let mut batches = start(7);
        let error = batches.next().await.unwrap_err();
        assert!(matches!(error, RolloutError::Filtered { filtered: 8, max: 7 }), "{error}");
        let dropped = batches.take_dropped();
        assert!(dropped.len() >= 8 * 3 && dropped.iter().all(|d| d.reason == DropReason::Filtered));
    }
}
