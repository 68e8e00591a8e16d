//! Rotary position embedding in the half-rotation form of Hugging Face checkpoints.

use tch::{Device, Kind, Tensor};

use crate::config::{Config, RopeScaling};

/// The angle per position of every pair of a head's dimensions.
#[derive(Debug)]
pub(crate) struct Rope {
    /// `[head_dim / 2]`, radians per position.
    frequencies: Tensor,
}

/// Cosines and signed sines, `[B, T, 1, head_dim]`, of the positions of one forward pass.
#[derive(Debug)]
pub(crate) struct Rotation {
    cos: Tensor,
    sin: Tensor,
    half: i64,
}

impl Rope {
    /// Frequencies in float32 from the first operation on, as transformers computes them: at long positions
    /// the rounding of a frequency decides the fourth digit of an angle.
    pub(crate) fn new(config: &Config) -> Rope {
        let dim = config.head_dim as i64;
        let exponents = Tensor::arange_start_step(0, dim, 2, (Kind::Float, Device::Cpu)) / dim as f64;
        let plain = Tensor::pow_scalar(config.rope_theta, &exponents).reciprocal();
        let frequencies = match config.rope_scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                // Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended.
                let context = original_context as f64;
                let wavelength = plain.reciprocal() * (2.0 * std::f64::consts::PI);
                let turns = wavelength.reciprocal() * context;
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - &keep) * &plain / factor + keep * plain
            }
        };
        Rope { frequencies }
    }

    /// `positions` is `[B, T]`, any number kind.
    pub(crate) fn at(&self, positions: &Tensor) -> Rotation {
        let angles = positions.to_kind(Kind::Float).unsqueeze(-1).unsqueeze(-1) * &self.frequencies;
        let (cos, sin) = (angles.cos(), angles.sin());
        Rotation {
            cos: Tensor::cat(&[&cos, &cos], -1),
            sin: Tensor::cat(&[&sin.neg(), &sin], -1),
            half: angles.size().last().copied().unwrap_or_default(),
        }
    }
}

impl Rotation {
    /// Rotates `[B, T, heads, head_dim]`: dimension `i` is paired with `i + head_dim / 2`. In float32 at least, rounded
    /// after every operation, as transformers does.
    pub(crate) fn apply(&self, heads: &Tensor) -> Tensor {
        (heads * &self.cos + heads.roll([self.half], [-1]) * &self.sin).to_kind(heads.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn frequencies_are_those_of_transformers() {
        let reference: Value =
            serde_json::from_str(include_str!("../testdata/rope.json")).expect("written by reference.py");
        let cases = reference["cases"].as_array().expect("cases");
        assert_eq!(cases.len(), 3);
        for case in cases {
            let config = Config::parse(&case["config"].to_string()).expect("supported");
            let found = Vec::<f32>::try_from(Rope::new(&config).frequencies).expect("one dimension");
            let expected = case["frequencies"].as_array().expect("frequencies");
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                let expected = expected.as_f64().expect("a number");
                let error = (f64::from(*found) - expected).abs() / expected;
                assert!(error < 1e-6, "{:?}: {found} for {expected}", config.rope_scaling);
            }
        }
    }

    #[test]
    fn position_zero_stays_and_lengths_are_kept() {
        let text = r#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2}"#;
        let rope = Rope::new(&Config::parse(text).expect("complete"));
        let heads = Tensor::arange(32, (Kind::Float, Device::Cpu)).view([1, 2, 2, 8]);
        let turned = rope.at(&Tensor::from_slice(&[0_i64, 5]).unsqueeze(0)).apply(&heads);
        assert_eq!(turned.get(0).get(0), heads.get(0).get(0));
        assert_ne!(turned.get(0).get(1), heads.get(0).get(1));
        let length = |x: &Tensor| x.square().sum_dim_intlist(-1_i64, false, None::<Kind>);
        assert!(length(&turned).allclose(&length(&heads), 1e-5, 0.0, false));
    }
}
