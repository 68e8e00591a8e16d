//! REINFORCE: the loss of a token is minus its advantage times its log-probability.

use molt_plugin::loss::{Batch, Loss, Losses};

pub struct Reinforce;

impl Loss for Reinforce {
    fn compute(batch: Batch) -> Result<Losses, String> {
        let tokens = batch.logprobs.iter().zip(&batch.advantages);
        let (losses, slopes) = tokens.map(|(&logprob, &advantage)| token(logprob, advantage)).unzip();
        Ok(Losses { losses, slopes })
    }
}

/// The loss of a token, and its derivative by the token's log-probability.
fn token(logprob: f32, advantage: f32) -> (f32, f32) {
    (-advantage * logprob, -advantage)
}

molt_plugin::export_loss!(Reinforce);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_the_loss() {
        for (logprob, advantage) in [(-0.5, 1.0), (-3.0, -2.0), (-1.0, 0.0)] {
            let step = 1.0 / 64.0;
            let by_difference = (token(logprob + step, advantage).0 - token(logprob, advantage).0) / step;
            assert_eq!(token(logprob, advantage).1, by_difference);
        }
    }
}
