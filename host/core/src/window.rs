//! The share of the latest rollouts that failed.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// When failing rollouts end a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorLimit {
    /// The share of the latest rollouts that may fail, in 0 to 1.
    pub max_rate: f64,
    /// How many of the latest rollouts it is taken over.
    pub window: usize,
}

/// A window over the latest rollouts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorWindow {
    size: usize,
    latest: VecDeque<bool>,
    /// How many of `latest` failed.
    failed: usize,
}

impl ErrorWindow {
    /// A window over `window` rollouts, or over all `planned` rollouts of a run that has fewer: a run too
    /// short to fill the window is still judged, at its end. At least one rollout.
    pub fn new(window: usize, planned: u64) -> Self {
        let planned = usize::try_from(planned).unwrap_or(usize::MAX);
        Self { size: window.min(planned).max(1), latest: VecDeque::new(), failed: 0 }
    }

    /// Takes in one more rollout.
    pub fn push(&mut self, failed: bool) {
        if self.latest.len() == self.size {
            self.failed -= usize::from(self.latest.pop_front() == Some(true));
        }
        self.latest.push_back(failed);
        self.failed += usize::from(failed);
    }

    /// The share that failed, in 0 to 1. None until the window is full, so that one early failure is not
    /// taken for a rate.
    pub fn rate(&self) -> Option<f64> {
        (self.latest.len() == self.size).then(|| self.failed as f64 / self.size as f64)
    }

    /// Rollouts that the rate is taken over.
    pub fn size(&self) -> usize {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_until_full_then_sliding() {
        let mut window = ErrorWindow::new(4, 100);
        for failed in [true, true, false] {
            window.push(failed);
            assert_eq!(window.rate(), None);
        }
        window.push(false);
        assert_eq!(window.rate(), Some(0.5));
        window.push(false);
        assert_eq!(window.rate(), Some(0.25));
        window.push(true);
        assert_eq!(window.rate(), Some(0.25));
    }

    #[test]
    fn a_short_run_is_judged_at_its_end() {
        let mut window = ErrorWindow::new(64, 2);
        window.push(true);
        assert_eq!(window.rate(), None);
        window.push(true);
        assert_eq!((window.rate(), window.size()), (Some(1.0), 2));
    }
}
