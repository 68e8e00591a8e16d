//! The learning rate as a pure function of the step.

use crate::settings::{Optim, Schedule};

/// The learning rate of optimiser step `step`, counted from 1, of `total`.
///
/// Linear warm-up `lr · step / warmup_steps`, then with `p` from 0 to 1 a constant, `1 − p` or the half cosine
/// `(1 + cos πp) / 2` (Loshchilov, Hutter 2017, SGDR eq. 5), scaled to end at `min_lr_ratio · lr`.
/// `p` would reach 1 one step after the last, so every step moves the weights even if the ratio is 0.
pub fn learning_rate(optim: &Optim, step: u64, total: u64) -> f64 {
    if step < optim.warmup_steps {
        return optim.lr * step as f64 / optim.warmup_steps as f64;
    }
    let peak = optim.warmup_steps.max(1);
    let decay_steps = total.saturating_add(1).saturating_sub(peak).max(1);
    let progress = (step.saturating_sub(peak) as f64 / decay_steps as f64).min(1.0);
    let share = match optim.schedule {
        Schedule::Constant => return optim.lr,
        Schedule::Linear => 1.0 - progress,
        Schedule::Cosine => (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0,
    };
    optim.lr * (optim.min_lr_ratio + (1.0 - optim.min_lr_ratio) * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn optim(schedule: Schedule, warmup_steps: u64, min_lr_ratio: f64) -> Optim {
        Optim { lr: 2.0, schedule, warmup_steps, min_lr_ratio, ..Optim::default() }
    }

    #[test]
    fn the_warm_up_ends_at_the_peak() {
        let optim = optim(Schedule::Constant, 4, 0.1);
        let rates: Vec<_> = (1..=6).map(|step| learning_rate(&optim, step, 6)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn linear_and_cosine_shapes() {
        // By hand: total 4 without warm-up, p = 0, 1/4, 2/4, 3/4; cos(π/4) = 0.7071068.
        let linear: Vec<_> = (1..=5).map(|s| learning_rate(&optim(Schedule::Linear, 0, 0.2), s, 4)).collect();
        for (got, want) in linear.iter().zip([2.0, 1.6, 1.2, 0.8, 0.4]) {
            assert!((got - want).abs() < 1e-12, "{linear:?}");
        }
        let cosine: Vec<_> = (1..=4).map(|s| learning_rate(&optim(Schedule::Cosine, 0, 0.0), s, 4)).collect();
        for (got, want) in cosine.iter().zip([2.0, 1.707_106_8, 1.0, 0.292_893_2]) {
            assert!((got - want).abs() < 1e-6, "{cosine:?}");
        }
    }

    #[test]
    fn no_step_is_lost_at_either_end() {
        // 220 steps of which 22 warm up, decaying to nothing: the reported off-by-ones were at 1 and 219.
        for schedule in [Schedule::Linear, Schedule::Cosine] {
            let optim = optim(schedule, 22, 0.0);
            assert!(learning_rate(&optim, 1, 220) > 0.0);
            assert!(learning_rate(&optim, 219, 220) > learning_rate(&optim, 220, 220));
            assert!(learning_rate(&optim, 220, 220) > 0.0);
        }
    }

    proptest! {
        #[test]
        fn positive_within_the_run_and_never_above_the_peak(
            total in 1u64..400, warmup in 0u64..500, ratio in 0.0f64..=1.0, kind in 0usize..3,
        ) {
            let schedule = [Schedule::Constant, Schedule::Linear, Schedule::Cosine][kind];
            let optim = optim(schedule, warmup, ratio);
            let mut before = 0.0;
            for step in 1..=total {
                let rate = learning_rate(&optim, step, total);
                prop_assert!(rate > 0.0 && rate <= 2.0 + 1e-12);
                let rising = step <= warmup.max(1);
                prop_assert!((rising && rate >= before) || (!rising && rate <= before), "step {}", step);
                before = rate;
            }
        }
    }
}
