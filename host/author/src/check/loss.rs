//! Losses: numbers are finite and the same every time, the order of segments does not matter, and slopes are those of
//! the losses.

mod slopes;

use super::{Findings, answer};
use crate::failure;
use molt_sandbox::{Loss, LossBatch, Losses};

/// How far numbers may differ when segments change places.
const TOLERANCE: f64 = 1e-5;

/// A token: its log-probability, that when it was sampled, the old one, and its advantage.
type Token = [f32; 4];

pub(super) async fn check(loss: &Loss, findings: &mut Findings) {
    let batches = batches();
    let (mut failed, mut unsteady, mut moved) = (Vec::new(), Vec::new(), Vec::new());
    let mut small = Vec::new();
    for (name, segments) in &batches {
        let batch = flat(segments);
        let found = loss.compute(&batch).await;
        if answer(&found) != answer(&loss.compute(&batch).await) {
            unsteady.push(format!("{name}: two answers differ"));
        }
        let found = match found {
            Ok(found) => found,
            Err(problem) => {
                failed.push((*name, problem));
                continue;
            }
        };
        if slopes::is_of_use(&batch) {
            small.push((*name, batch));
        }
        let backwards: Vec<Vec<Token>> = segments.iter().rev().cloned().collect();
        match loss.compute(&flat(&backwards)).await {
            Ok(other) if is_same(segments, &found, &other) => {}
            Ok(_) => {
                moved.push(format!("{name}: tokens have other losses when the segments are in another order"))
            }
            Err(problem) => {
                moved.push(format!("{name}, backwards: {}", failure::told(&problem, loss.info())))
            }
        }
    }
    let failed: Vec<_> = failed.iter().map(|(name, problem)| (*name, problem)).collect();
    let good = format!("{} batches, also far from the sampling policy and without tokens", batches.len());
    let help = "a loss is due for every step that a run may make";
    if !findings.calls("finiteness", good, (&failed, batches.len()), (loss.info(), help)) {
        return;
    }
    findings.all(
        "determinism",
        "the same batch gives the same bits",
        unsteady,
        "let nothing but the batch decide: no time, no randomness, no order of a hash table",
    );
    findings.all(
        "permutation",
        "segments that change places take their losses along",
        moved,
        "let a loss depend on its segment, not on where that is in the batch",
    );
    slopes::check(loss, &small, findings).await;
}

/// Whether `other`, of the segments backwards, says of each what `found` says of it.
fn is_same(segments: &[Vec<Token>], found: &Losses, other: &Losses) -> bool {
    let near = |a: &[f32], b: &[f32]| {
        let mut pairs = a.iter().zip(b).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        a.len() == b.len() && pairs.all(|(a, b)| (a - b).abs() <= TOLERANCE * a.abs().max(1.0))
    };
    let mut end = found.losses.len();
    let mut begin = 0;
    segments.iter().all(|segment| {
        let here = begin..begin + segment.len();
        let there = end - segment.len()..end;
        (begin, end) = (here.end, there.start);
        let pairs = [(&found.losses, &other.losses), (&found.slopes, &other.slopes)];
        pairs.iter().all(|(a, b)| {
            let (a, b) = (a.get(here.clone()), b.get(there.clone()));
            a.zip(b).is_some_and(|(a, b)| near(a, b))
        })
    })
}

/// Made-up segments, `near` the policy that sampled them or far from it.
fn segments(lengths: &[usize], apart: f32, advantage: f32) -> Vec<Vec<Token>> {
    let token = |at: usize| {
        let wave = |period: usize| ((at * 31) % period) as f32 / period as f32;
        let logprob = -0.1 - 3.0 * wave(23);
        let near = |period: usize| (logprob + apart * (wave(period) - 0.5)).min(0.0);
        [logprob, near(13), near(17), advantage * (wave(7) - 0.4)]
    };
    let mut at = 0..;
    lengths.iter().map(|&length| at.by_ref().take(length).map(token).collect()).collect()
}

fn batches() -> Vec<(&'static str, Vec<Vec<Token>>)> {
    vec![
        ("of the policy itself", segments(&[5, 1, 8], 0.0, 1.0)),
        ("near it", segments(&[3, 7, 2, 4], 0.5, 2.0)),
        ("far from it", segments(&[6, 6], 100.0, 1.0)),
        ("large advantages", segments(&[4, 9], 0.5, 1e6)),
        ("no advantage", segments(&[4, 4], 0.5, 0.0)),
        ("segments without tokens", segments(&[0, 3, 0, 2, 0], 0.5, 1.0)),
        ("no token at all", segments(&[0, 0], 0.5, 1.0)),
        ("a long segment", segments(&[20_000, 3], 0.5, 1.0)),
    ]
}

/// The arrays of the contract.
fn flat(segments: &[Vec<Token>]) -> LossBatch {
    let mut batch = LossBatch { segment_offsets: vec![0], ..LossBatch::default() };
    for segment in segments {
        for [logprob, sampled, old, advantage] in segment {
            batch.logprobs.push(*logprob);
            batch.sampled.push(*sampled);
            batch.old.push(*old);
            batch.advantages.push(*advantage);
        }
        batch.segment_offsets.push(batch.logprobs.len() as u32);
    }
    batch
}

/// A step of a usual size: 64 segments of 256 action tokens.
pub(crate) fn usual() -> LossBatch {
    flat(&segments(&[256; 64], 0.5, 1.0))
}
