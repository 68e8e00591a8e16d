//! Slopes of a loss, beside what differences of its losses say of them.

use crate::check::Findings;
use crate::failure;
use molt_sandbox::{Failure, Loss, LossBatch, Losses};

/// How far a log-probability is moved. Large steps are little rounded, and small ones stay on one side of a bound that
/// is near: one that agrees is enough.
const STEPS: [f32; 3] = [1e-2, 1e-3, 1e-4];

/// How far a slope may be from the difference, relative to the larger one.
const SHARE: f64 = 1e-2;

/// How much of a slope rounding may hide for an agreement to count where no larger step has shown a difference.
const ROUGH: f64 = 0.2;

/// How far a loss may be off, relative to it, where it is computed in 32 bits and rounded to them.
const ROUNDED: f64 = 1e-6;

/// Of a batch of more tokens nothing is compared: each token takes two calls or more.
const MOST: usize = 32;

/// Tokens whose slopes are shown.
const SHOWN: usize = 3;

/// What differences say of a token's slope.
#[derive(Debug, PartialEq)]
enum Seen {
    Same,
    /// To either side of the token's log-probability the losses change otherwise, so that there is no one slope; or it is
    /// lost in rounding.
    Unclear,
    /// It should be this.
    Other(f64),
}

/// Whether slopes can be compared on `batch` within reason, and are not all 0.
pub(super) fn is_of_use(batch: &LossBatch) -> bool {
    let tokens = batch.logprobs.len();
    (1..=MOST).contains(&tokens) && batch.advantages.iter().any(|&advantage| advantage != 0.0)
}

pub(super) async fn check(loss: &Loss, batches: &[(&str, LossBatch)], findings: &mut Findings) {
    const CHECK: &str = "slopes";
    if batches.is_empty() {
        return;
    }
    let (mut compared, mut unclear) = (0, 0);
    let (mut other, mut failed, mut opposite) = (Vec::new(), Vec::new(), 0);
    for (name, batch) in batches {
        let tokens = match compare(batch, async |batch: &LossBatch| loss.compute(batch).await).await {
            Ok(tokens) => tokens,
            Err(problem) => {
                let told = failure::told(&problem, loss.info());
                failed.push(format!("{name}, with one log-probability moved: {told}"));
                continue;
            }
        };
        for (at, (slope, seen)) in tokens.into_iter().enumerate() {
            match seen {
                Seen::Unclear => unclear += 1,
                Seen::Same => compared += 1,
                Seen::Other(due) => {
                    compared += 1;
                    opposite += usize::from(slope * due < 0.0);
                    let (slope, due) = (short(slope), short(due));
                    other.push(format!("{name}: token {at} has slope {slope}; by differences it is {due}"));
                }
            }
        }
    }
    if !failed.is_empty() {
        return findings.all(CHECK, "", failed, "a loss is due for every step that a run may make");
    }
    let left = match unclear {
        0 => String::new(),
        unclear => format!("; {unclear} at a kink, or lost in rounding, are left out"),
    };
    match other.len() {
        0 if compared == 0 => findings.failed(
            CHECK,
            format!("no token's slope can be compared with differences of the losses{left}"),
            "let the losses have a slope: they change evenly with a log-probability, but for the bounds of a clip",
        ),
        0 => findings.ok(CHECK, format!("{compared} tokens have those of their losses, by differences{left}")),
        differ => {
            other.truncate(SHOWN);
            other.push(format!("{differ} of {compared} tokens differ{left}"));
            let all = other.join("\n");
            if opposite == differ {
                // No factor that is held constant turns every sign.
                let help = "a slope is the derivative of the loss, and what is minimised goes against it: turn the sign";
                return findings.failed(CHECK, format!("{all}\nall of these have the opposite sign"), help);
            }
            findings.warned(
                CHECK,
                all,
                "a slope is the derivative of the sum of all losses by the token's log π: mend it, \
                 unless a factor is meant to have no gradient, as in CISPO",
            );
        }
    }
}

/// The slope of each token, and what differences say of it. `compute` is the plugin.
async fn compare(
    batch: &LossBatch,
    compute: impl AsyncFn(&LossBatch) -> Result<Losses, Failure>,
) -> Result<Vec<(f64, Seen)>, Failure> {
    let here = compute(batch).await?;
    let mut tokens = Vec::new();
    for (at, &slope) in here.slopes.iter().enumerate() {
        let slope = f64::from(slope);
        let mut seen = Seen::Unclear;
        for step in STEPS {
            let (below, above) = (moved(batch, at, -step), moved(batch, at, step));
            let (low, high) = (compute(&below).await?, compute(&above).await?);
            let is_other = matches!(seen, Seen::Other(_));
            match judge(at, slope, [(&below, &low), (batch, &here), (&above, &high)]) {
                (Seen::Same, hidden) if hidden <= SHARE || hidden <= ROUGH && !is_other => {
                    seen = Seen::Same;
                    break;
                }
                (Seen::Other(due), _) => seen = Seen::Other(due),
                _ => {}
            }
        }
        tokens.push((slope, seen));
    }
    Ok(tokens)
}

/// The batch with another log-probability of one token.
fn moved(batch: &LossBatch, at: usize, step: f32) -> LossBatch {
    let mut batch = batch.clone();
    batch.logprobs.iter_mut().skip(at).take(1).for_each(|logprob| *logprob += step);
    batch
}

/// What the losses below, at and above a token's log-probability say of its slope, and the share of it that rounding may
/// hide.
fn judge(at: usize, slope: f64, [low, here, high]: [(&LossBatch, &Losses); 3]) -> (Seen, f64) {
    let (both, error) = difference(at, low, high);
    let (left, left_error) = difference(at, low, here);
    let (right, right_error) = difference(at, here, high);
    let near = |a: f64, b: f64, error: f64| (a - b).abs() <= SHARE * a.abs().max(b.abs()) + error;
    let seen = if near(slope, both, error) {
        Seen::Same
    } else if near(left, right, left_error + right_error) {
        Seen::Other(both)
    } else {
        Seen::Unclear
    };
    let size = slope.abs().max(both.abs());
    // Where nothing changes at all nothing is hidden.
    (seen, if size > 0.0 { error / size } else { 0.0 })
}

/// How fast the sum of all losses changes between two log-probabilities of a token, and how far rounding may put
/// that off.
fn difference(at: usize, low: (&LossBatch, &Losses), high: (&LossBatch, &Losses)) -> (f64, f64) {
    let logprob = |batch: &LossBatch| batch.logprobs.get(at).map_or(0.0, |&logprob| f64::from(logprob));
    let width = logprob(high.0) - logprob(low.0);
    let (mut change, mut size) = (0.0, 0.0);
    for (token, (&before, &after)) in low.1.losses.iter().zip(&high.1.losses).enumerate() {
        // A loss that the token has no part in is rounded alike before and after.
        if token == at || before != after {
            change += f64::from(after) - f64::from(before);
            size += f64::from(before.abs()) + f64::from(after.abs());
        }
    }
    (change / width, ROUNDED * size / width)
}

/// The number to four digits: a difference has no more.
fn short(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::super::{flat, segments};
    use super::*;

    /// What is seen of a loss that looks at log-ratios to the sampling policy and at advantages, of one segment.
    async fn seen(
        batch: &LossBatch,
        loss: impl Fn(&[f64], &[f64]) -> (Vec<f64>, Vec<f64>),
    ) -> Vec<(f64, Seen)> {
        let compute = async |batch: &LossBatch| {
            let pairs = batch.logprobs.iter().zip(&batch.sampled);
            let ratios: Vec<f64> = pairs.map(|(&p, &q)| f64::from(p) - f64::from(q)).collect();
            let advantages: Vec<f64> = batch.advantages.iter().map(|&a| f64::from(a)).collect();
            let (losses, slopes) = loss(&ratios, &advantages);
            let round =
                |numbers: Vec<f64>| numbers.into_iter().map(|number| number as f32).collect::<Vec<f32>>();
            Ok::<_, Failure>(Losses { losses: round(losses), slopes: round(slopes) })
        };
        compare(batch, compute).await.expect("it cannot fail")
    }

    /// PPO's clipped loss, with the slope times `factor`.
    fn clipped(factor: f64) -> impl Fn(&[f64], &[f64]) -> (Vec<f64>, Vec<f64>) {
        move |ratios: &[f64], advantages: &[f64]| {
            let token = |(ratio, advantage): (&f64, &f64)| {
                let (gain, bound) = (ratio.exp() * advantage, ratio.exp().clamp(0.8, 1.2) * advantage);
                if bound < gain { (-bound, 0.0) } else { (-gain, -gain * factor) }
            };
            ratios.iter().zip(advantages).map(token).unzip()
        }
    }

    #[tokio::test]
    async fn slopes_of_a_clipped_loss_are_right_also_near_its_bounds() {
        for (apart, advantage) in [(0.0, 1.0), (0.5, 2.0), (0.5, 1e6), (20.0, 1.0)] {
            let seen = seen(&flat(&segments(&[16], apart, advantage)), clipped(1.0)).await;
            assert!(seen.iter().all(|(_, seen)| *seen == Seen::Same), "{apart}: {seen:?}");
        }
    }

    #[tokio::test]
    async fn a_slope_that_is_off_is_seen_with_what_it_should_be() {
        for factor in [-1.0, 0.5, 1.05] {
            let seen = seen(&flat(&segments(&[16], 0.0, 1.0)), clipped(factor)).await;
            for (slope, seen) in &seen {
                let Seen::Other(due) = seen else { panic!("{factor}: {slope} is {seen:?}") };
                assert!((due * factor - slope).abs() < 1e-2 * slope.abs(), "{factor}: {slope}, {due}");
            }
        }
    }

    /// Beside a large constant a loss of 32 bits does not show how it changes: nothing is said of its slope then.
    #[tokio::test]
    async fn a_slope_that_is_lost_in_rounding_is_not_taken_for_right() {
        let batch = flat(&segments(&[16], 0.0, 1.0));
        for (offset, factor) in [(1e6, -1.0), (1e6, 1.0), (1e4, -1.0)] {
            let offset_by = |ratios: &[f64], advantages: &[f64]| {
                let (losses, slopes) = clipped(factor)(ratios, advantages);
                (losses.into_iter().map(|loss| loss + offset).collect(), slopes)
            };
            let seen = seen(&batch, offset_by).await;
            assert!(seen.iter().all(|(_, seen)| *seen != Seen::Same), "{offset}, {factor}: {seen:?}");
        }
    }

    #[tokio::test]
    async fn a_token_at_a_bound_has_no_slope_to_compare() {
        let batch = LossBatch {
            logprobs: vec![-1.0, -1.0],
            sampled: vec![-1.0 - 1.2_f32.ln(), -1.0],
            old: vec![-1.0; 2],
            advantages: vec![1.0; 2],
            segment_offsets: vec![0, 2],
        };
        for factor in [1.0, -1.0] {
            let seen = seen(&batch, clipped(factor)).await;
            assert_eq!(seen.first().map(|(_, seen)| seen), Some(&Seen::Unclear), "{factor}: {seen:?}");
        }
    }

    #[tokio::test]
    async fn a_token_may_change_the_losses_of_its_whole_segment() {
        // The ratio of the segment, times each token's advantage; with a bound that the largest steps cross.
        let whole = |shared: bool| {
            move |ratios: &[f64], advantages: &[f64]| {
                let length = ratios.len() as f64;
                let ratio = (ratios.iter().sum::<f64>() / length).exp();
                let losses: Vec<f64> =
                    advantages.iter().map(|advantage| -ratio.clamp(0.9997, 1.0004) * advantage).collect();
                let sum: f64 = losses.iter().sum();
                let slopes = losses.iter().map(|loss| if shared { sum / length } else { loss / length });
                let slopes: Vec<f64> = slopes.collect();
                (losses, slopes)
            }
        };
        let batch = flat(&segments(&[8], 0.0, 1.0));
        let right = seen(&batch, whole(true)).await;
        assert!(right.iter().all(|(_, seen)| *seen == Seen::Same), "{right:?}");
        let wrong = seen(&batch, whole(false)).await;
        assert!(wrong.iter().filter(|(_, seen)| matches!(seen, Seen::Other(_))).count() > 4, "{wrong:?}");
    }

    #[test]
    fn numbers_are_short_and_batches_of_a_size() {
        assert_eq!([0.399_996_3, -0.0, 123_456.0].map(short), [0.4, 0.0, 123_500.0]);
        let of = |lengths: &[usize], advantage| is_of_use(&flat(&segments(lengths, 0.5, advantage)));
        assert_eq!(
            [of(&[4], 1.0), of(&[4], 0.0), of(&[0], 1.0), of(&[40], 1.0)],
            [true, false, false, false]
        );
    }
}
