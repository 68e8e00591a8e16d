//! Evaluation with a scripted model and real plugins.

use crate::scripted::*;
use molt_core::passk::pass_at_k;
use molt_core::seed::{Purpose, derive};
use molt_core::window::ErrorLimit;
use molt_rollout::{Measure, Prompts, RolloutError, evaluate};
use std::sync::Arc;

/// Right in two of three cases.
fn answer(last: &str, seed: u64) -> String {
    if scramble(seed, 1).is_multiple_of(3) { "wrong".into() } else { last.into() }
}

#[tokio::test]
async fn pass_at_k_is_over_all_rows_and_a_dropped_rollout_is_not_solved() {
    let driver = driver(single_turn(), exact_match(), answer);
    let prompts = prompts(20, |n| n == 3);
    let report = evaluate(&driver, &prompts, measure(4, &[2, 4])).await.unwrap();
    let solved = |row: usize| {
        let right = |sample| {
            let seed = derive(5, Purpose::Eval { row: row as u64, sample, turn: 0 });
            row != 3 && answer("right", seed) == "right"
        };
        (0..4).filter(|sample| right(*sample)).count() as u32
    };
    for (row, got) in report.rows.iter().enumerate() {
        assert_eq!((got.id.as_str(), got.solved), (row.to_string().as_str(), solved(row)));
    }
    for k in [1, 2, 4] {
        let mean = (0..20).map(|row| pass_at_k(4, solved(row), k).unwrap()).sum::<f64>() / 20.0;
        assert!((report.all.pass_at[&k] - mean).abs() < 1e-12);
    }
    assert_eq!(report.all.dropped, [("infra".to_owned(), 4)].into());
    assert_eq!(report.rows[3].dropped.len(), 4);
    let right: u32 = (0..20).map(solved).sum();
    assert_eq!(report.all.mean_reward, Some(f64::from(right) / 76.0));
    assert_eq!(report.groups.iter().map(|group| group.outcomes.len()).sum::<usize>(), 80);
}

#[tokio::test]
async fn the_order_in_which_rollouts_end_changes_nothing() {
    let mut reports = Vec::new();
    for salt in 0..3 {
        let mut driver = driver(single_turn(), exact_match(), answer);
        Arc::get_mut(&mut driver.generator).unwrap().salt = salt;
        let prompts = prompts(30, |_| false);
        // As a task of its own, which the trainer makes of it.
        reports.push(
            tokio::spawn(async move { evaluate(&driver, &prompts, measure(3, &[])).await })
                .await
                .unwrap()
                .unwrap(),
        );
    }
    assert!(reports.iter().all(|report| *report == reports[0]));
}

#[tokio::test]
async fn a_k_beyond_the_samples_is_refused() {
    let driver = driver(single_turn(), exact_match(), answer);
    let error = evaluate(&driver, &prompts(1, |_| false), measure(2, &[1, 3])).await.unwrap_err();
    assert!(matches!(error, RolloutError::PassAtK { k: 3, samples: 2 }), "{error}");
    let none = Prompts { rows: vec![], skipped: 0 };
    let report = evaluate(&driver, &none, measure(2, &[])).await.unwrap();
    assert!(report.all.pass_at.is_empty() && report.all.mean_reward.is_none());
}

#[tokio::test]
async fn a_grader_that_fails_too_often_ends_it() {
    let driver = driver(single_turn(), hostile(), |_, _| "trap".into());
    let limit = ErrorLimit { max_rate: 0.5, window: 6 };
    let error = evaluate(&driver, &prompts(10, |_| true), Measure { errors: limit, ..measure(2, &[]) })
        .await
        .unwrap_err();
    assert!(matches!(error, RolloutError::ErrorRate { window: 6, .. }), "{error}");
}

/// A source in which rollouts fail is no better for it, and says how many did.
#[tokio::test]
async fn sources_are_reported_apart_and_what_failed_is_not_solved() {
    let driver = driver(single_turn(), exact_match(), answer);
    // Rows 0 to 5: even ones of "a", odd ones of "b", 5 of none; row 2 has no label, so it cannot be graded.
    let rows = (0..6).map(|n: usize| {
        let name = n.to_string();
        let source = [("data_source", if n.is_multiple_of(2) { "a" } else { "b" })];
        task(&name, (n != 2).then_some(&*name), if n == 5 { &[] } else { &source })
    });
    let prompts = Prompts { rows: rows.collect(), skipped: 0 };
    let report = evaluate(&driver, &prompts, measure(4, &[4])).await.unwrap();
    assert_eq!(report.sources.keys().collect::<Vec<_>>(), ["a", "b"]);
    let solved = |rows: &[usize]| rows.iter().map(|row| report.rows[*row].solved).sum::<u32>();
    let (a, b) = (&report.sources["a"], &report.sources["b"]);
    assert_eq!((a.prompts, a.finished, b.prompts, b.finished), (3, 8, 2, 8));
    assert_eq!((&a.dropped, &b.dropped), (&[("infra".to_owned(), 4)].into(), &[].into()));
    assert!((a.pass_at[&1] - f64::from(solved(&[0, 2, 4])) / 12.0).abs() < 1e-12);
    assert_eq!(a.solved_of_finished, Some(f64::from(solved(&[0, 4])) / 8.0));
    assert!((b.pass_at[&1] - f64::from(solved(&[1, 3])) / 8.0).abs() < 1e-12);
    assert_eq!((report.all.prompts, report.all.finished), (6, 20));
    // All four vote: the majority of what they wrote, and half of a tie.
    let majority = |row: usize| match report.rows[row].solved {
        0 | 1 => 0.0,
        2 => 0.5,
        _ => 1.0,
    };
    assert!((b.maj_at[&4] - (majority(1) + majority(3)) / 2.0).abs() < 1e-12);
    assert!((a.maj_at[&4] - (majority(0) + majority(4)) / 3.0).abs() < 1e-12, "nobody votes for row 2");
    assert!(!report.all.maj_at.contains_key(&1));
}
