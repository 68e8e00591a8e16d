//! The exact expectation of maj@k.

/// Rollouts of one prompt that gave the same answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// How many gave it; at least 1.
    pub votes: u32,
    /// How many of these are solved.
    pub solved: u32,
}

/// The chance that the answer with the most votes among `k` of `samples` rollouts, drawn without replacement, is right:
/// the mean over all subsets of `k`. Rollouts without an answer are drawn and do not vote. Among answers with equally
/// many votes each is as likely to be taken; a subset without an answer is wrong. An answer is right to the share of its
/// rollouts that are solved.
///
/// It sums over the votes `t` of the winner. For each `t` the answers are gone through one by one, with the weight of
/// all ways in which so many rollouts are drawn so far, no answer has more than `t` votes and so many have exactly `t`.
/// A way is weighted by what it has if every rollout is drawn by itself with the same chance: so the weights stay near
/// 1 where binomial coefficients would overflow, and their quotients are the same.
///
/// None where it is not defined: `k` is 0 or above `samples`, or the answers are more than the rollouts.
pub fn majority_at_k(samples: u32, answers: &[Answer], k: u32) -> Option<f64> {
    let votes: u64 = answers.iter().map(|answer| u64::from(answer.votes)).sum();
    let whole = answers.iter().all(|answer| answer.votes > 0 && answer.solved <= answer.votes);
    if k == 0 || k > samples || votes > u64::from(samples) || !whole {
        return None;
    }
    let (n, k) = (samples as usize, k as usize);
    let chances = Chances::new(n, k);
    let silent = n - votes as usize;
    let largest = answers.iter().map(|answer| answer.votes as usize).max().unwrap_or(0);
    let mut total = 0.0;
    for most in 1..=largest.min(k) {
        let ties = k / most;
        // By the number of tied answers and of rollouts drawn: the weight, and that times the right ones of the tied.
        let at = |tied: usize, drawn: usize| tied * (k + 1) + drawn;
        let mut ways = vec![(0.0, 0.0); (ties + 1) * (k + 1)];
        ways[at(0, 0)] = (1.0, 0.0);
        for answer in answers {
            let own = answer.votes as usize;
            let right = f64::from(answer.solved) / f64::from(answer.votes);
            let mut next = vec![(0.0, 0.0); ways.len()];
            for tied in 0..=ties {
                for drawn in 0..=k {
                    let (weight, gain) = ways[at(tied, drawn)];
                    if weight == 0.0 {
                        continue;
                    }
                    for votes in 0..=own.min(most).min(k - drawn) {
                        let chance = chances.of(own, votes);
                        let is_tied = votes == most;
                        if is_tied && tied == ties {
                            continue;
                        }
                        let cell = &mut next[at(tied + usize::from(is_tied), drawn + votes)];
                        cell.0 += weight * chance;
                        cell.1 += (gain + if is_tied { right * weight } else { 0.0 }) * chance;
                    }
                }
            }
            ways = next;
        }
        for tied in 1..=ties {
            for drawn in (k - silent.min(k))..=k {
                total += ways[at(tied, drawn)].1 / tied as f64 * chances.of(silent, k - drawn);
            }
        }
    }
    Some(total / chances.of(n, k))
}

/// Binomial chances with `p` near `k / n`, and never 0 or 1.
struct Chances {
    /// Logarithms of factorials.
    factorials: Vec<f64>,
    drawn: f64,
    left: f64,
}

impl Chances {
    fn new(n: usize, k: usize) -> Self {
        let p = (k as f64 + 0.5) / (n as f64 + 1.0);
        let mut factorials = vec![0.0; n + 1];
        for i in 1..=n {
            factorials[i] = factorials[i - 1] + (i as f64).ln();
        }
        Self { factorials, drawn: p.ln(), left: (1.0 - p).ln() }
    }

    /// That `some` of `all` are drawn.
    fn of(&self, all: usize, some: usize) -> f64 {
        let rest = all - some;
        let ways = self.factorials[all] - self.factorials[some] - self.factorials[rest];
        (ways + some as f64 * self.drawn + rest as f64 * self.left).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passk::pass_at_k;

    /// Goes through all subsets. `rollouts` are the answer of each, or none, and whether it is solved.
    fn slow(rollouts: &[(Option<usize>, bool)], k: u32) -> f64 {
        let (mut sum, mut subsets) = (0.0, 0.0);
        for set in (0_u32..1 << rollouts.len()).filter(|set| set.count_ones() == k) {
            let of = |name: usize| {
                rollouts
                    .iter()
                    .enumerate()
                    .filter(move |(i, r)| set & (1 << i) != 0 && r.0 == Some(name))
                    .count()
            };
            let most = (0..rollouts.len()).map(of).max().unwrap_or(0);
            let tied: Vec<usize> = (0..rollouts.len()).filter(|name| most > 0 && of(*name) == most).collect();
            let right = |name: usize| {
                let all: Vec<bool> = rollouts.iter().filter(|r| r.0 == Some(name)).map(|r| r.1).collect();
                all.iter().filter(|solved| **solved).count() as f64 / all.len() as f64
            };
            sum += tied.iter().map(|name| right(*name)).sum::<f64>() / tied.len().max(1) as f64;
            subsets += 1.0;
        }
        sum / subsets
    }

    fn answers(rollouts: &[(Option<usize>, bool)]) -> Vec<Answer> {
        let of = |name: usize| {
            let all = rollouts.iter().filter(|r| r.0 == Some(name));
            let (votes, solved) = (all.clone().count() as u32, all.filter(|r| r.1).count() as u32);
            (votes > 0).then_some(Answer { votes, solved })
        };
        (0..rollouts.len()).filter_map(of).collect()
    }

    #[test]
    fn equals_the_mean_over_all_subsets() {
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..60 {
            let count = 1 + draw(8) as usize;
            let names = 1 + draw(4);
            let rollout = |_| {
                let name = draw(names + 1).checked_sub(1).map(|name| name as usize);
                // Mostly an answer is right or wrong, sometimes a grader says now this, now that.
                (name, if round % 3 == 0 { draw(2) == 0 } else { name == Some(0) })
            };
            let rollouts: Vec<_> = (0..count).map(rollout).collect();
            for k in 1..=count as u32 {
                let got = majority_at_k(count as u32, &answers(&rollouts), k).expect("defined");
                let want = slow(&rollouts, k);
                assert!((got - want).abs() < 1e-12, "{rollouts:?} at {k}: {got} is not {want}");
            }
        }
    }

    #[test]
    fn one_vote_is_pass_at_1_and_all_votes_are_the_plain_majority() {
        let answers =
            [Answer { votes: 3, solved: 3 }, Answer { votes: 4, solved: 0 }, Answer { votes: 1, solved: 0 }];
        let at = |k| majority_at_k(10, &answers, k).expect("defined");
        assert!((at(1) - pass_at_k(10, 3, 1).expect("defined")).abs() < 1e-12);
        assert!(at(10).abs() < 1e-12, "the wrong answer has most votes");
        let split = [Answer { votes: 2, solved: 2 }, Answer { votes: 2, solved: 0 }];
        assert!((majority_at_k(4, &split, 4).expect("defined") - 0.5).abs() < 1e-12, "a tie is drawn");
        assert_eq!(majority_at_k(4, &[], 2), Some(0.0), "nobody votes");
    }

    #[test]
    fn many_rollouts_do_not_overflow() {
        // By symmetry: of two answers with as many votes, one right, either wins as often.
        let split = [Answer { votes: 600, solved: 600 }, Answer { votes: 600, solved: 0 }];
        for k in [1, 8, 64] {
            assert!((majority_at_k(1200, &split, k).expect("defined") - 0.5).abs() < 1e-9, "{k}");
        }
    }

    #[test]
    fn undefined_is_none() {
        let one = [Answer { votes: 2, solved: 1 }];
        assert_eq!((majority_at_k(4, &one, 0), majority_at_k(4, &one, 5)), (None, None));
        assert_eq!(majority_at_k(1, &one, 1), None, "more answers than rollouts");
        assert_eq!(majority_at_k(4, &[Answer { votes: 1, solved: 2 }], 1), None);
    }
}
