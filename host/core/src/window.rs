//! The share of the latest rollouts that failed in a plugin.

use std::collections::VecDeque;

/// A window over the latest rollouts.
#[derive(Debug, Clone)]
pub struct ErrorWindow {
    size: usize,
    latest: VecDeque<bool>,
}

impl ErrorWindow {
    /// A window over `window` rollouts, or over all `planned` rollouts of a run that has fewer: a run too
    /// short to fill the window is still judged, at its end. At least one rollout.
    pub fn new(window: usize, planned: u64) -> Self {
        let planned = usize::try_from(planned).unwrap_or(usize::MAX);
        Self { size: window.min(planned).max(1), latest: VecDeque::new() }
    }

    /// Takes in one more rollout.
    pub fn push(&mut self, failed: bool) {
        if self.latest.len() == self.size {
            self.latest.pop_front();
        }
        self.latest.push_back(failed);
    }

    /// The share that failed, in 0 to 1. None until the window is full, so that one early failure is not
    /// taken for a rate.
    pub fn rate(&self) -> Option<f64> {
        let failed = self.latest.iter().filter(|failed| **failed).count();
        (self.latest.len() == self.size).then(|| failed as f64 / self.size as f64)
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
