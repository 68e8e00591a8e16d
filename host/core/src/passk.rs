//! The unbiased estimate of pass@k.

/// The chance that at least one of `k` rollouts solves the task, estimated from `samples` rollouts of which
/// `solved` did: 1 − C(n−c, k) / C(n, k), written as a product so that no binomial overflows
/// (Chen et al. 2021, arXiv 2107.03374, equation 1).
///
/// None where it is not defined: `k` is 0 or above `samples`, or `solved` is above `samples`.
pub fn pass_at_k(samples: u32, solved: u32, k: u32) -> Option<f64> {
    if k == 0 || k > samples || solved > samples {
        return None;
    }
    let failed = samples - solved;
    if k > failed {
        return Some(1.0);
    }
    let all_fail: f64 = (failed + 1..=samples).map(|i| 1.0 - f64::from(k) / f64::from(i)).product();
    Some(1.0 - all_fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_count_over_all_subsets() {
        for n in 1..=9u32 {
            for c in 0..=n {
                for k in 1..=n {
                    // The first c of the n samples are the solved ones.
                    let subsets: Vec<u32> = (0u32..1 << n).filter(|set| set.count_ones() == k).collect();
                    let hit = subsets.iter().filter(|set| **set & ((1 << c) - 1) != 0).count();
                    let expected = hit as f64 / subsets.len() as f64;
                    let got = pass_at_k(n, c, k).expect("defined");
                    assert!((got - expected).abs() < 1e-12, "n {n} c {c} k {k}: {got} instead of {expected}");
                }
            }
        }
    }

    #[test]
    fn large_counts_do_not_overflow() {
        // 1 − C(9990, 100) / C(10000, 100), computed with exact integers in Python.
        let got = pass_at_k(10_000, 10, 100).expect("defined");
        assert!((got - 0.095_659_058_517_309_94).abs() < 1e-12, "{got}");
    }

    #[test]
    fn undefined_is_none() {
        assert_eq!(pass_at_k(4, 1, 0), None);
        assert_eq!(pass_at_k(4, 1, 5), None);
        assert_eq!(pass_at_k(4, 5, 1), None);
        assert_eq!(pass_at_k(0, 0, 1), None);
    }
}
