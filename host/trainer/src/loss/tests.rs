use super::*;
use molt_core::settings::{CorrectionLevel, CorrectionMode, KlEstimator};
use proptest::prelude::*;
use tch::{Kind, Tensor};

// What labs-molt 0.1.6 was run on: two sequences of four tokens, of which the last and the first are no actions.
const LOGPROBS: [f64; 8] = [-1.0, -0.5, -2.0, -0.1, -0.7, -1.2, -0.3, -3.0];
const OLD: [f64; 8] = [-1.3, -0.5, -1.6, -0.1, -0.7, -1.0, -0.9, -2.5];
const SAMPLED: [f64; 8] = [-1.2, -0.6, -1.6, -0.3, -0.9, -1.0, -0.7, -2.5];
const ADVANTAGES: [f64; 8] = [1.0, -1.0, 0.5, 2.0, -0.5, 0.25, -2.0, 1.0];
const ACTIONS: [&[usize]; 2] = [&[0, 1, 2], &[5, 6, 7]];

const PPO: Surrogate = Surrogate::Ppo { low: 0.2, high: 0.2, dual: None };

fn plain(surrogate: Surrogate) -> PolicyLoss {
    PolicyLoss {
        surrogate: Some(surrogate),
        importance: Importance::Old,
        correction: None,
        aggregation: Aggregation::TokenMean,
        max_length: 4.0,
        entropy_coef: 0.0,
        kl: None,
    }
}

fn token(logprob: f64, old: f64, sampled: f64, advantage: f64) -> Token {
    Token { logprob, sampled, old: Some(old), advantage, ..Token::default() }
}

/// Both sequences of the golden numbers.
fn golden() -> Vec<Vec<Token>> {
    let of = |&at: &usize| token(LOGPROBS[at], OLD[at], SAMPLED[at], ADVANTAGES[at]);
    ACTIONS.iter().map(|actions| actions.iter().map(of).collect()).collect()
}

/// Loss, its derivative by every log-probability, and what was clipped and outside.
#[derive(Debug, Default, PartialEq)]
struct Found {
    loss: f64,
    slopes: Vec<f64>,
    clipped: usize,
    dual_clipped: usize,
    outside: usize,
}

fn run(loss: &PolicyLoss, sequences: &[Vec<Token>]) -> Found {
    let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
    let mut found = Found::default();
    for (tokens, weight) in sequences.iter().zip(loss.weights(&lengths)) {
        let sequence = loss.sequence(tokens);
        for token in tokens {
            let of_token = loss.token(token, &sequence);
            found.loss += weight * of_token.loss;
            found.slopes.push(weight * of_token.slope);
            found.clipped += usize::from(of_token.policy.is_clipped);
            found.dual_clipped += usize::from(of_token.policy.is_dual_clipped);
            found.outside += usize::from(of_token.is_outside);
        }
    }
    found
}

fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-6, "got {got:?}, want {want:?}");
    }
}

fn corrected(level: CorrectionLevel, mode: CorrectionMode, low: f64, high: f64) -> PolicyLoss {
    PolicyLoss { correction: Some(Correction { level, mode, low, high }), ..plain(PPO) }
}

#[test]
fn golden_numbers() {
    use CorrectionLevel::{Geo, Seq, Token};
    use CorrectionMode::{Clip, Mask, Trunc};
    let ppo = |low, high, dual| plain(Surrogate::Ppo { low, high, dual });
    let cases: [(PolicyLoss, f64, f64, f64, [f64; 6]); 13] = [
        (plain(PPO), 0.382977, 0.166667, 0.0, GRADIENT),
        (ppo(0.2, 0.28, None), 0.369644, 0.166667, 0.0, GRADIENT),
        (ppo(0.2, 0.2, Some(1.1)), 0.142271, 0.166667, 0.0, with(4, 0.0)),
        (
            plain(Surrogate::Gspo { low: 0.2, high: 0.2 }),
            0.040301,
            0.0,
            0.0,
            [-0.161203, 0.161203, -0.080601, -0.040301, 0.322405, -0.161203],
        ),
        (
            plain(Surrogate::Cispo { high: 0.2 }),
            0.452589,
            0.333333,
            0.0,
            [-0.2, 0.166667, -0.055860, -0.034114, 0.4, -0.101088],
        ),
        (
            corrected(Token, Mask, 0.85, 1.15),
            -0.187835,
            0.166667,
            0.166667,
            [0.0, 0.184195, -0.055860, -0.034114, 0.0, -0.101088],
        ),
        (
            corrected(Token, Clip, 0.9, 1.1),
            0.357939,
            0.166667,
            0.333333,
            [0.0, 0.183333, -0.055860, -0.034114, 0.546636, -0.101088],
        ),
        (
            corrected(Token, Trunc, 0.9, 1.1),
            0.308578,
            0.166667,
            0.166667,
            [0.0, 0.183333, -0.055860, -0.034114, 0.497275, -0.101088],
        ),
        // Of sequences, the share that is outside is half of the tokens too, since both have three.
        (corrected(Seq, Mask, 0.9, 1.1), -0.052632, 0.166667, 0.5, [0.0, 0.184195, -0.055860, 0.0, 0.0, 0.0]),
        (
            corrected(Seq, Mask, 0.8, 1.3),
            0.309440,
            0.166667,
            0.0,
            [0.0, 0.184195, -0.055860, -0.034114, 0.497275, -0.101088],
        ),
        (
            corrected(Geo, Mask, 0.98, 1.02),
            -0.052632,
            0.166667,
            0.5,
            [0.0, 0.184195, -0.055860, 0.0, 0.0, 0.0],
        ),
        (
            PolicyLoss { aggregation: Aggregation::SeqMeanTokenSum, ..plain(PPO) },
            1.148932,
            0.166667,
            0.0,
            GRADIENT.map(|g| 3.0 * g),
        ),
        (
            PolicyLoss { aggregation: Aggregation::Constant, ..plain(PPO) },
            0.287233,
            0.166667,
            0.0,
            GRADIENT.map(|g| 0.75 * g),
        ),
    ];
    for (loss, total, clipped, outside, gradient) in cases {
        let found = run(&loss, &golden());
        let shares = [found.loss, found.clipped as f64 / 6.0, found.outside as f64 / 6.0];
        assert!(
            shares.iter().zip([total, clipped, outside]).all(|(got, want)| (got - want).abs() < 1e-6),
            "{loss:?}: {shares:?}"
        );
        // The numbers have six digits, so three times them is right to 3e-6.
        let wrong = found.slopes.iter().zip(gradient).find(|(got, want)| (**got - want).abs() > 2e-6);
        assert_eq!(wrong, None, "{loss:?}: {found:?}");
        let dual = usize::from(matches!(loss.surrogate, Some(Surrogate::Ppo { dual: Some(_), .. })));
        assert_eq!(found.dual_clipped, dual);
    }
}

/// Part of a step of 50 tokens. labs-molt 0.1.6 multiplies by its 4 ranks, over which gradients are averaged; here they
/// add up, so that it is a quarter of that.
#[test]
fn a_part_of_a_step_has_the_denominator_of_the_whole() {
    let mut lengths = vec![3, 3];
    lengths.extend([11; 4]);
    let loss = plain(PPO);
    let weights = loss.weights(&lengths);
    let (mut total, mut slopes) = (0.0, Vec::new());
    for (tokens, weight) in golden().iter().zip(weights) {
        for token in tokens {
            let of_token = loss.token(token, &loss.sequence(tokens));
            total += weight * of_token.loss;
            slopes.push(4.0 * weight * of_token.slope);
        }
    }
    close(&[4.0 * total], &[0.183829]);
    close(&slopes, &GRADIENT.map(|g| 0.48 * g));
}

/// Of plain PPO, without what is no action.
const GRADIENT: [f64; 6] = [0.0, 0.166667, -0.055860, -0.034114, 0.607373, -0.101088];

fn with(at: usize, value: f64) -> [f64; 6] {
    let mut gradient = GRADIENT;
    gradient[at] = value;
    gradient
}

/// Tokens of advantage 1 that the old policy was sure of.
fn sure(logprobs: &[f64], sampled: &[f64]) -> Vec<Token> {
    logprobs.iter().zip(sampled).map(|(&logprob, &sampled)| token(logprob, 0.0, sampled, 1.0)).collect()
}

#[test]
fn numbers_from_the_tests_of_the_original() {
    use CorrectionLevel::{Geo, Token};
    use CorrectionMode::{Clip, Mask, Trunc};
    let (ln3, ln10) = (3_f64.ln(), 10_f64.ln());
    let two = |loss: PolicyLoss, sampled: [f64; 2], want: f64, outside: usize| {
        let found = run(&loss, &[sure(&[0.0, 0.0], &sampled)]);
        assert!((found.loss - want).abs() < 1e-9, "{loss:?} gave {found:?}");
        assert_eq!(found.outside, outside);
    };
    two(corrected(Geo, Mask, 0.5, 2.0), [-ln3, ln3], -(3.0 + 1.0 / 3.0) / 2.0, 0);
    two(corrected(Token, Trunc, 0.5, 2.0), [ln10, -ln10], -(0.1 + 2.0) / 2.0, 1);
    two(corrected(Token, Clip, 0.5, 2.0), [-ln3, ln3], -(2.0 + 0.5) / 2.0, 2);
    two(corrected(Token, Trunc, 0.5, 2.0), [-1000.0, -1000.0], -2.0, 2);
    two(corrected(Geo, Mask, 0.5, 2.0), [-1000.0, -1000.0], 0.0, 2);
    two(plain(PPO), [-1000.0, 1000.0], -1.0, 0);

    let cispo = plain(Surrogate::Cispo { high: 0.2 });
    let found = run(&cispo, &[sure(&[0.5, -0.5], &[0.0; 2])]);
    close(&[found.loss], &[-(1.2 * 0.5 + (-0.5_f64).exp() * -0.5) / 2.0]);
    assert_eq!(run(&cispo, &[sure(&[0.5, -0.5, 0.5], &[0.0; 3])]).clipped, 2);
    close(&run(&cispo, &[sure(&[0.0, 0.0], &[0.0; 2])]).slopes, &[-0.5, -0.5]);

    let gspo = plain(Surrogate::Gspo { low: 0.2, high: 0.2 });
    let found = run(&gspo, &[sure(&[0.3, -0.1], &[0.0; 2])]);
    close(&[found.loss], &[-(0.1_f64).exp()]);
    close(&found.slopes, &[-(0.1_f64).exp() / 2.0; 2]);
    let found = run(&gspo, &[sure(&[1.0, -1.0], &[0.0; 2])]);
    close(&[found.loss], &[-1.0]);
    assert_eq!(found.clipped, 0);
    let found = run(&plain(PPO), &[sure(&[1.0, -1.0], &[0.0; 2])]);
    close(&[found.loss], &[-(1.2 + (-1.0_f64).exp()) / 2.0]);
    assert_eq!(found.clipped, 1);
}

#[test]
fn a_far_ratio_stays_finite() {
    // As far up with a positive advantage: clipped.
    let found = run(&plain(Surrogate::Gspo { low: 0.2, high: 0.2 }), &[vec![token(1000.0, 0.0, 0.0, 1.0)]]);
    assert_eq!((found.loss, found.slopes, found.clipped), (-1.2, vec![0.0], 1));
    // exp(30) = 1.0686e13, as labs-molt 0.1.6 gives for PPO; its GSPO is infinite.
    for (surrogate, slope) in [
        (PPO, 0.0),
        (Surrogate::Gspo { low: 0.2, high: 0.2 }, 0.0),
        (Surrogate::Importance, 0.0),
        (Surrogate::Cispo { high: 0.2 }, 1.2),
    ] {
        let found = run(&plain(surrogate), &[vec![token(1000.0, 0.0, 0.0, -1.0)]]);
        let want = if slope == 0.0 { 30_f64.exp() } else { 1200.0 };
        assert!((found.loss / want - 1.0).abs() < 1e-9, "{surrogate:?}: {found:?}");
        assert_eq!(found.slopes, [slope]);
        let found = run(&plain(surrogate), &[vec![token(f64::NAN, 0.0, 0.0, 1.0)]]);
        assert!(found.loss.is_nan() && found.slopes[0].is_nan(), "never silently without a gradient");
    }
}

#[test]
fn on_policy_every_loss_is_reinforce() {
    // Ratio 1, nothing clipped, and the gradient −A/N: also where nothing older than the present is known.
    let of = |old, importance| {
        move |surrogate| {
            let mut sequences = golden();
            for token in sequences.iter_mut().flatten() {
                token.old = old;
                if importance == Importance::Sampled {
                    token.sampled = token.logprob;
                }
            }
            run(&PolicyLoss { importance, ..plain(surrogate) }, &sequences)
        }
    };
    let want: Vec<f64> = golden().concat().iter().map(|token| -token.advantage / 6.0).collect();
    let surrogates =
        [PPO, Surrogate::Gspo { low: 0.2, high: 0.2 }, Surrogate::Cispo { high: 0.2 }, Surrogate::Importance];
    for surrogate in surrogates {
        for found in [of(None, Importance::Old)(surrogate), of(Some(9.0), Importance::Sampled)(surrogate)] {
            close(&found.slopes, &want);
            assert_eq!(found.clipped, 0);
        }
    }
}

#[test]
fn short_and_long_sequences_weigh_as_the_aggregation_says() {
    // Sequences of 2 and 6 tokens with losses 1 and 3 per token, and one without tokens, which does not count.
    let sequence = |count: usize, advantage: f64| vec![token(-1.0, -1.0, -1.0, advantage); count];
    let sequences = [sequence(2, -1.0), Vec::new(), sequence(6, -3.0)];
    for (aggregation, want) in [
        (Aggregation::TokenMean, (2.0 + 18.0) / 8.0),
        (Aggregation::SeqMeanTokenMean, (1.0 + 3.0) / 2.0),
        (Aggregation::SeqMeanTokenSum, (2.0 + 18.0) / 2.0),
        (Aggregation::Constant, (2.0 + 18.0) / 2.0 / 4.0),
    ] {
        let found = run(&PolicyLoss { aggregation, ..plain(PPO) }, &sequences);
        close(&[found.loss], &[want]);
    }
    let nothing = plain(PPO).weights(&[0, 0]);
    assert_eq!(nothing, [0.0, 0.0]);
}

#[test]
fn what_is_dropped_stays_in_the_denominator_and_nowhere_else() {
    let kl = Some(KlLoss { estimator: KlEstimator::K2, coef: 0.5 });
    let loss = PolicyLoss { kl, ..corrected(CorrectionLevel::Token, CorrectionMode::Mask, 0.5, 2.0) };
    let mut sequence = sure(&[0.0, 0.0], &[0.0, 50.0]);
    for token in &mut sequence {
        token.reference = Some(-0.4);
    }
    // The second has a ratio of e^−50: neither a policy loss nor, like the first, 0.5 · 0.4²/2 of divergence.
    let found = run(&loss, &[sequence]);
    close(&[found.loss], &[(-1.0 + 0.04) / 2.0]);
    close(&found.slopes, &[(-1.0 + 0.2) / 2.0, 0.0]);
    assert_eq!(found.outside, 1);
    // What is masked cannot spoil the rest.
    let weight =
        Correction { level: CorrectionLevel::Token, mode: CorrectionMode::Mask, low: 0.5, high: 2.0 };
    let far = Token { advantage: f64::NAN, ..token(0.0, 0.0, 50.0, 1.0) };
    let masked = PolicyLoss { correction: Some(weight), ..plain(PPO) }.token(&far, &Sequence::default());
    assert_eq!((masked.loss, masked.slope), (0.0, 0.0));
}

#[test]
fn an_equal_group_keeps_its_divergence_and_nothing_else() {
    let kl = Some(KlLoss { estimator: KlEstimator::K2, coef: 0.1 });
    let loss = PolicyLoss { kl, ..plain(PPO) };
    let of = |logprob: f64, reference: f64| Token {
        reference: Some(reference),
        ..token(logprob, logprob, logprob, 0.0)
    };
    let found = run(&loss, &[vec![of(-1.0, -1.5), of(-2.0, -1.0)]]);
    close(&found.slopes, &[0.1 * 0.5 / 2.0, -0.1 / 2.0]);
}

#[test]
fn a_sequence_without_tokens_is_kept() {
    for level in [CorrectionLevel::Seq, CorrectionLevel::Geo] {
        assert!(corrected(level, CorrectionMode::Mask, 0.98, 1.02).sequence(&[]).is_kept);
    }
}

#[test]
fn a_plugin_gives_value_and_slope() {
    let loss = PolicyLoss { surrogate: None, ..plain(PPO) };
    let given = |loss, slope| Token { given: Some(Given { loss, slope }), ..token(-1.0, -1.5, -1.0, 7.0) };
    let found = run(&loss, &[vec![given(2.0, -1.0), given(4.0, 0.5)]]);
    close(&[found.loss], &[3.0]);
    close(&found.slopes, &[-0.5, 0.25]);
    // One who gives nothing trains nothing.
    assert!(run(&loss, &[vec![token(-1.0, -1.0, -1.0, 1.0)]]).loss.is_nan());
}

/// The definition, with tensors: what is a constant is detached, and the rest is autograd's.
fn definition(loss: &PolicyLoss, sequences: &[Vec<Token>]) -> (f64, Vec<f64>) {
    let column = |of: fn(&Token) -> f64| {
        let all: Vec<f64> = sequences.iter().flatten().map(of).collect();
        Tensor::from_slice(&all)
    };
    let logprobs = column(|token| token.logprob).set_requires_grad(true);
    let (old, sampled) = (column(|token| token.old.expect("known")), column(|token| token.sampled));
    let (reference, advantages) =
        (column(|token| token.reference.expect("known")), column(|token| token.advantage));
    let lengths: Vec<i64> = sequences.iter().map(|tokens| tokens.len() as i64).collect();
    let means = |values: &Tensor| {
        let parts = values.split_with_sizes(&lengths[..], 0);
        let means =
            parts.iter().zip(&lengths).map(|(part, &length)| part.mean(Kind::Double).expand([length], false));
        Tensor::cat(&means.collect::<Vec<_>>(), 0)
    };
    let counts: Vec<f64> = lengths.iter().flat_map(|&n| std::iter::repeat_n(n as f64, n as usize)).collect();
    let counts = Tensor::from_slice(&counts);
    let against = if loss.importance == Importance::Old { &old } else { &sampled };
    let log_ratio = &logprobs - against;
    let clipped = |ratio: &Tensor, low: f64, high: f64, dual: Option<f64>| {
        let gain = (ratio * &advantages).minimum(&(ratio.clamp(1.0 - low, 1.0 + high) * &advantages));
        match dual {
            None => -gain,
            Some(dual) => {
                let bounded = gain.maximum(&(&advantages * dual));
                -bounded.where_self(&advantages.lt(0.0), &gain)
            }
        }
    };
    let mut of_tokens = match loss.surrogate.expect("a loss of the host") {
        Surrogate::Ppo { low, high, dual } => clipped(&log_ratio.exp(), low, high, dual),
        Surrogate::Gspo { low, high } => {
            let of_sequence = means(&log_ratio.detach());
            clipped(&(&logprobs - logprobs.detach() + of_sequence).exp(), low, high, None)
        }
        Surrogate::Cispo { high } => {
            -log_ratio.exp().detach().clamp_max(1.0 + high) * &advantages * &logprobs
        }
        Surrogate::Importance => -log_ratio.exp() * &advantages,
    };
    let mut is_there = Tensor::ones_like(&old);
    if let Some(Correction { level, mode, low, high }) = loss.correction {
        let log_weight = &old - &sampled;
        let weight = log_weight.exp();
        let unit = match level {
            CorrectionLevel::Geo => means(&log_weight).exp(),
            CorrectionLevel::Seq => (means(&log_weight) * &counts).exp(),
            _ => weight.copy(),
        };
        let inside = unit.ge(low).logical_and(&unit.le(high)).to_kind(Kind::Double);
        if mode == CorrectionMode::Mask {
            is_there = inside.copy();
        }
        of_tokens *= match mode {
            CorrectionMode::Mask => weight * inside,
            CorrectionMode::Clip => weight.clamp(low, high),
            CorrectionMode::Trunc => weight.clamp_max(high),
        };
    }
    if let Some(kl) = loss.kl {
        let d = &logprobs - &reference;
        of_tokens += kl.coef
            * is_there
            * match kl.estimator {
                KlEstimator::K1 => d,
                KlEstimator::K2 => &d * &d / 2.0,
                KlEstimator::K3 => (-&d).exp() - 1.0 + &d,
            };
    }
    let count = lengths.len() as f64;
    let total = match loss.aggregation {
        Aggregation::TokenMean => of_tokens.mean(Kind::Double),
        Aggregation::SeqMeanTokenMean => {
            let parts = of_tokens.split_with_sizes(&lengths[..], 0);
            parts.iter().map(|part| part.mean(Kind::Double)).fold(Tensor::from(0.0), |sum, part| sum + part)
                / count
        }
        Aggregation::SeqMeanTokenSum => of_tokens.sum(Kind::Double) / count,
        Aggregation::Constant => of_tokens.sum(Kind::Double) / count / loss.max_length,
    };
    total.backward();
    (total.double_value(&[]), Vec::<f64>::try_from(logprobs.grad()).expect("float64"))
}

/// Every loss with every correction, divergence and aggregation.
pub(crate) fn losses() -> impl Strategy<Value = PolicyLoss> {
    let surrogate =
        prop_oneof![
            (0.05..0.9, 0.05..0.9, prop::option::of(1.01..3.0))
                .prop_map(|(low, high, dual)| Surrogate::Ppo { low, high, dual }),
            (0.001..0.9, 0.001..0.9).prop_map(|(low, high)| Surrogate::Gspo { low, high }),
            (0.05..4.0).prop_map(|high| Surrogate::Cispo { high }),
            Just(Surrogate::Importance),
        ];
    let correction = prop_oneof![
        Just((CorrectionLevel::Token, CorrectionMode::Mask)),
        Just((CorrectionLevel::Token, CorrectionMode::Clip)),
        Just((CorrectionLevel::Token, CorrectionMode::Trunc)),
        Just((CorrectionLevel::Seq, CorrectionMode::Mask)),
        Just((CorrectionLevel::Geo, CorrectionMode::Mask)),
    ];
    let correction = (correction, 0.1..0.95, 1.05..4.0).prop_map(|((level, mode), low, high)| Correction {
        level,
        mode,
        low,
        high,
    });
    let aggregation = prop_oneof![
        Just(Aggregation::TokenMean),
        Just(Aggregation::SeqMeanTokenMean),
        Just(Aggregation::SeqMeanTokenSum),
        Just(Aggregation::Constant),
    ];
    let kl = (prop_oneof![Just(KlEstimator::K1), Just(KlEstimator::K2), Just(KlEstimator::K3)], 0.01..1.0)
        .prop_map(|(estimator, coef)| KlLoss { estimator, coef });
    let importance = prop_oneof![Just(Importance::Sampled), Just(Importance::Old)];
    let entropy = prop_oneof![Just(0.0), 0.01..0.5];
    (surrogate, importance, prop::option::of(correction), aggregation, prop::option::of(kl), entropy)
        .prop_map(|(surrogate, importance, correction, aggregation, kl, entropy_coef)| PolicyLoss {
            surrogate: Some(surrogate),
            importance,
            correction,
            aggregation,
            max_length: 7.0,
            entropy_coef,
            kl,
        })
}

fn tokens() -> impl Strategy<Value = Vec<Vec<Token>>> {
    let token = (-4.0..-0.01, -1.0..1.0, -1.0..1.0, -2.0..2.0, -2.0..2.0).prop_map(
        |(logprob, old, sampled, reference, advantage): (f64, f64, f64, f64, f64)| Token {
            reference: Some(logprob + reference),
            ..token(logprob, logprob + old, logprob + sampled, advantage)
        },
    );
    prop::collection::vec(prop::collection::vec(token, 1..6), 1..5)
}

proptest! {
    #![proptest_config(crate::step::tests::config(400))]

    #[test]
    fn it_is_the_definition_by_autograd(loss in losses(), sequences in tokens()) {
        let found = run(&loss, &sequences);
        let (want, gradient) = definition(&loss, &sequences);
        prop_assert!((found.loss - want).abs() <= 1e-11 * want.abs().max(1.0), "{} is not {want}", found.loss);
        for (got, want) in found.slopes.iter().zip(&gradient) {
            prop_assert!((got - want).abs() <= 1e-11 * want.abs().max(1.0), "{got} is not {want}");
        }
    }

    /// What a correction masks is not there: whatever its advantage is, and however far it is outside, not a bit of the
    /// loss or of its gradient changes. (A ratio that is no number is never masked: it makes the step fail.)
    #[test]
    fn what_is_masked_cannot_be_seen(
        loss in losses(), sequences in tokens(), low in 0.7..1.0, high in 1.0..1.3,
        level in prop_oneof![Just(CorrectionLevel::Token), Just(CorrectionLevel::Seq), Just(CorrectionLevel::Geo)],
        poison in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(1e9), Just(-1e9)],
    ) {
        let correction = Some(Correction { level, mode: CorrectionMode::Mask, low, high });
        // As with every correction: settings refuse the sum of both.
        let loss = PolicyLoss { correction, importance: Importance::Old, ..loss };
        let mut poisoned = sequences.clone();
        for (tokens, others) in sequences.iter().zip(&mut poisoned) {
            let sequence = loss.sequence(tokens);
            for (token, other) in tokens.iter().zip(others) {
                if loss.token(token, &sequence).is_outside {
                    other.advantage = poison;
                    if poison == -1e9 {
                        other.sampled = poison;
                    }
                }
            }
        }
        let bits = |found: Found| {
            let slopes: Vec<u64> = found.slopes.into_iter().map(f64::to_bits).collect();
            (found.loss.to_bits(), slopes, found.outside)
        };
        prop_assert_eq!(bits(run(&loss, &poisoned)), bits(run(&loss, &sequences)));
    }

    /// The order of sequences and of tokens, and sequences that are not trained, change nothing.
    #[test]
    fn order_does_not_matter(loss in losses(), sequences in tokens(), rotate in 0_usize..5) {
        let found = run(&loss, &sequences);
        let mut other = sequences.clone();
        other.push(Vec::new());
        other.rotate_left(rotate % sequences.len());
        other.iter_mut().for_each(|tokens| tokens.reverse());
        let again = run(&loss, &other);
        prop_assert!((found.loss - again.loss).abs() <= 1e-12 * found.loss.abs().max(1.0));
        prop_assert_eq!((found.clipped, found.outside), (again.clipped, again.outside));
    }
}
