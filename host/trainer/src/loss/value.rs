//! The loss of a critic: a pure function of a value, what it was, and what it should have been.

/// The loss of one token, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueLoss {
    pub loss: f64,
    /// Its derivative by the value.
    pub slope: f64,
    /// The value has moved by more than the bound.
    pub is_clipped: bool,
}

/// `½ max((v − R)², (v′ − R)²)` with `v′ = v_old + clip(v − v_old, ±clip)`, for the value `v`, the value `v_old` before
/// the update, and the return `R` (the value loss of OpenAI Baselines' PPO; Engstrom et al. 2020, Implementation Matters
/// in Deep Policy Gradients, section 3). With `clip` 0 it is `½ (v − R)²`.
pub fn value_loss(value: f64, old: f64, target: f64, clip: f64) -> ValueLoss {
    let error = value - target;
    let free = ValueLoss { loss: error * error / 2.0, slope: error, is_clipped: false };
    if clip == 0.0 {
        return free;
    }
    let held = old + (value - old).clamp(-clip, clip) - target;
    let is_clipped = (value - old).abs() > clip;
    // Where the clipped value is the worse one, the loss does not change with the value.
    match held * held / 2.0 {
        loss if is_clipped && loss > free.loss => ValueLoss { loss, slope: 0.0, is_clipped },
        _ => ValueLoss { is_clipped, ..free },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn mean(of: &[[f64; 3]], clip: f64) -> (f64, f64) {
        let all: Vec<ValueLoss> =
            of.iter().map(|&[value, old, target]| value_loss(value, old, target, clip)).collect();
        let count = all.len() as f64;
        let clipped = all.iter().filter(|loss| loss.is_clipped).count() as f64;
        (all.iter().map(|loss| loss.loss).sum::<f64>() / count, clipped / count)
    }

    /// Made by running labs-molt 0.1.6.
    #[test]
    fn golden_numbers() {
        let rows = [[1.0, 0.5, 0.8], [0.5, 0.4, 1.0], [-0.2, 0.0, 0.3]];
        let (loss, clipped) = mean(&rows, 0.2);
        assert!((loss - 0.09).abs() < 1e-12 && (clipped - 1.0 / 3.0).abs() < 1e-12, "{loss} {clipped}");
        let (loss, clipped) = mean(&rows[..2], 0.0);
        assert!((loss - 0.0725).abs() < 1e-12 && clipped == 0.0, "{loss} {clipped}");
    }

    /// `testdata/value_loss.json` holds losses and the gradients that PyTorch's autograd finds, made by
    /// `testdata/value_loss.py`.
    #[test]
    fn agrees_with_autograd() {
        let golden: Value =
            serde_json::from_str(include_str!("../../testdata/value_loss.json")).expect("valid JSON");
        let cases = golden["cases"].as_array().expect("cases");
        assert!(cases.len() > 100);
        for case in cases {
            let f = |key: &str| case[key].as_f64().expect("a number");
            let found = value_loss(f("value"), f("old"), f("target"), f("clip"));
            assert!((found.loss - f("loss")).abs() < 1e-9, "{case}: {found:?}");
            assert!((found.slope - f("slope")).abs() < 1e-9, "{case}: {found:?}");
        }
    }
}
