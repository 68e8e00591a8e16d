//! Choosing one token from log-probabilities.

use molt_core::ids::Token;

/// The most likely token, the lowest id among equals. `None` if a log-probability is not a number.
pub(crate) fn greedy(logprobs: &[f32]) -> Option<Token> {
    let mut best = 0;
    for (id, logprob) in logprobs.iter().enumerate() {
        if logprob.is_nan() {
            return None;
        }
        if *logprob > logprobs[best] {
            best = id;
        }
    }
    (!logprobs.is_empty()).then_some(best as Token)
}

/// The token at `uniform`, in `0..1`, of the distribution that `logprobs` and `top_p` make, and its
/// log-probability there: the inverse of the cumulative distribution over ascending ids, in float64.
///
/// `top_p` below 1 keeps the smallest set of most likely tokens, lower ids first among equals, whose mass
/// reaches it, and scales that mass to 1 (Holtzman et al. 2020). `None` if the distribution is not finite.
pub(crate) fn draw(logprobs: &[f32], top_p: f64, uniform: f64) -> Option<(Token, f32)> {
    let weights: Vec<f64> = logprobs.iter().map(|logprob| f64::from(*logprob).exp()).collect();
    let total: f64 = weights.iter().sum();
    if !(total.is_finite() && total > 0.0) {
        return None;
    }
    if top_p >= 1.0 {
        let id = at(weights.iter().copied().enumerate(), uniform * total)?;
        return Some((id as Token, logprobs[id]));
    }
    let kept = nucleus(&weights, total, top_p);
    let mass: f64 = kept.iter().map(|id| weights[*id]).sum();
    let id = at(kept.iter().map(|id| (*id, weights[*id])), uniform * mass)?;
    Some((id as Token, (f64::from(logprobs[id]) - mass.ln()) as f32))
}

/// The first id at which the running sum exceeds `target`; the last possible one if rounding keeps it below.
fn at(weights: impl Iterator<Item = (usize, f64)>, target: f64) -> Option<usize> {
    let mut sum = 0.0;
    let mut last = None;
    for (id, weight) in weights.filter(|(_, weight)| *weight > 0.0) {
        sum += weight;
        last = Some(id);
        if sum > target {
            break;
        }
    }
    last
}

/// The ids kept by `top_p`, ascending.
fn nucleus(weights: &[f64], total: f64, top_p: f64) -> Vec<usize> {
    // All tokens below this weight together hold less than 1 - top_p, so none of them is needed.
    let floor = total * (1.0 - top_p) / weights.len() as f64;
    let mut ids: Vec<usize> = (0..weights.len()).filter(|id| weights[*id] >= floor).collect();
    ids.sort_unstable_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
    let mut mass = 0.0;
    let enough = ids.iter().position(|id| {
        mass += weights[*id];
        mass >= top_p * total
    });
    ids.truncate(enough.map_or(ids.len(), |last| last + 1));
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
    use super::*;
    use proptest::prelude::*;

    /// What `draw` computes, written out: all tokens sorted, no shortcut.
    fn slow(logprobs: &[f32], top_p: f64, uniform: f64) -> (Token, f64) {
        let p: Vec<f64> = logprobs.iter().map(|l| f64::from(*l).exp()).collect();
        let total: f64 = p.iter().sum();
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*b].partial_cmp(&p[*a]).unwrap().then(a.cmp(b)));
        let mut kept = vec![top_p >= 1.0; p.len()];
        let mut mass = 0.0;
        for id in order {
            if mass < top_p * total {
                kept[id] = true;
                mass += p[id];
            }
        }
        let mass: f64 = (0..p.len()).filter(|id| kept[*id]).map(|id| p[id]).sum();
        let mut sum = 0.0;
        let mut chosen = 0;
        for id in (0..p.len()).filter(|id| kept[*id] && p[*id] > 0.0) {
            sum += p[id];
            chosen = id;
            if sum > uniform * mass {
                break;
            }
        }
        (chosen as Token, (p[chosen] / mass).ln())
    }

    fn log_softmax(logits: &[f32]) -> Vec<f32> {
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = logits.iter().map(|l| (l - max).exp()).sum();
        logits.iter().map(|l| l - max - sum.ln()).collect()
    }

    proptest! {
        #[test]
        fn draws_as_the_definition_says(
            logits in prop::collection::vec(-12f32..12.0, 1..60),
            top_p in prop_oneof![Just(1.0), 0.01f64..1.0],
            uniform in 0f64..1.0,
        ) {
            let logprobs = log_softmax(&logits);
            let (token, logprob) = draw(&logprobs, top_p, uniform).unwrap();
            let (expected, expected_logprob) = slow(&logprobs, top_p, uniform);
            prop_assert_eq!(token, expected);
            prop_assert!((f64::from(logprob) - expected_logprob).abs() < 1e-5);
        }

        #[test]
        fn every_token_gets_its_share(
            logits in prop::collection::vec(-3f32..3.0, 2..6),
            top_p in 0.3f64..=1.0,
        ) {
            // A fine even grid of uniforms meets each token in proportion to its probability.
            const GRID: usize = 4000;
            let logprobs = log_softmax(&logits);
            let mut count = vec![0usize; logits.len()];
            let mut share = vec![0f64; logits.len()];
            for i in 0..GRID {
                let (token, logprob) = draw(&logprobs, top_p, (i as f64 + 0.5) / GRID as f64).unwrap();
                count[token as usize] += 1;
                share[token as usize] = f64::from(logprob).exp();
            }
            prop_assert!((share.iter().sum::<f64>() - 1.0).abs() < 1e-4);
            for (count, share) in count.iter().zip(&share) {
                prop_assert!((*count as f64 / GRID as f64 - share).abs() < 2.0 / GRID as f64);
            }
        }
    }

    #[test]
    fn equals_are_broken_by_id() {
        let even = [0.25f32.ln(); 4];
        assert_eq!(greedy(&even), Some(0));
        // Mass 0.5 is reached by two of four: the two lowest ids, each with probability 1/2.
        for (uniform, token) in [(0.0, 0), (0.49, 0), (0.51, 1), (0.999, 1)] {
            let (drawn, logprob) = draw(&even, 0.5, uniform).unwrap();
            assert_eq!(drawn, token);
            assert!((logprob - 0.5f32.ln()).abs() < 1e-6);
        }
    }

    /// TRL 6789: of .5, .3, .15 and .05 a top-p of .8 keeps two, and the first has .5 of .8 then, not .5. (A little less than
    /// .8, which the logarithms of both do not quite add up to.)
    #[test]
    fn a_truncated_distribution_is_another() {
        let logprobs = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln);
        for (top_p, want) in [(0.7999, -0.470_004), (1.0, 0.5_f32.ln())] {
            let (token, logprob) = draw(&logprobs, top_p, 0.0).unwrap();
            assert_eq!(token, 0);
            assert!((logprob - want).abs() < 1e-6, "{logprob} is not {want}");
        }
    }

    #[test]
    fn what_is_impossible_is_never_drawn() {
        let logprobs = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        for uniform in [0.0, 0.5, 1.0 - f64::EPSILON] {
            assert_eq!(draw(&logprobs, 1.0, uniform), Some((1, 0.0)));
            assert_eq!(draw(&logprobs, 0.1, uniform), Some((1, 0.0)));
        }
    }

    #[test]
    fn what_is_not_a_distribution_is_refused() {
        for broken in [&[f32::NAN, 0.0][..], &[f32::NEG_INFINITY; 2], &[f32::INFINITY, 0.0], &[]] {
            assert_eq!(draw(broken, 1.0, 0.5), None);
            assert_eq!(draw(broken, 0.5, 0.5), None);
        }
        assert_eq!(greedy(&[0.0, f32::NAN]), None);
        assert_eq!(greedy(&[]), None);
    }
}
