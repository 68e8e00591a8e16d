//! Whitening of advantages.

/// Shifts and scales `values` to mean 0 and variance 1: `(x − μ) / √max(σ², 1e-8)` with the population variance,
/// in two passes in float64. Equal values become 0.
///
/// The values are all action tokens of a batch, so a long rollout weighs more than a short one, as it does in
/// the loss (REINFORCE++, Hu 2025, normalises over the batch in this way).
pub fn whiten(values: &mut [f32]) {
    let count = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    let deviation = variance.max(1e-8).sqrt();
    for x in values {
        *x = ((f64::from(*x) - mean) / deviation) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(mut values: Vec<f32>, expected: &[f32]) {
        whiten(&mut values);
        for (got, want) in values.iter().zip(expected) {
            assert!((got - want).abs() < 2e-6, "{values:?}");
        }
    }

    #[test]
    fn golden_numbers() {
        // Made by running labs-molt 0.1.6 (its reinforce returns at gamma 0.9, and GAE at lambda 0.95).
        close(
            vec![0.644417, 0.72713, 0.97, -0.4369, -0.441, -0.49],
            &[0.770016, 0.902114, 1.289995, -0.956924, -0.963472, -1.041728],
        );
        close(vec![0.38465, 1.247, 0.26, 0.8], &[-0.744713, 1.483129, -1.06674, 0.328325]);
    }

    #[test]
    fn longer_rollouts_weigh_more() {
        // Rewards 1 and 0 less the mean, on four tokens and on one: by hand, and labs-molt 0.1.6.
        close(vec![0.5, 0.5, 0.5, 0.5, -0.5], &[0.5, 0.5, 0.5, 0.5, -2.0]);
    }

    #[test]
    fn equal_values_become_zero() {
        for values in [vec![], vec![0.3], vec![0.1; 1000], vec![-1e8; 7]] {
            let mut whitened = values.clone();
            whiten(&mut whitened);
            assert!(whitened.iter().all(|&x| x == 0.0), "{whitened:?}");
        }
    }
}
