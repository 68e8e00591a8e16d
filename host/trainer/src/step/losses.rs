//! Losses over a whole optimiser step: every one of them, in any layout and on any number of ranks.

use super::pass::MicroBatch;
use super::ranks::{flat, own, ranks, together, with_store};
use super::tests::{
    LOSS, alone, config, decoder, gradient, layout, of_kind, optim, rebuilt, relative_difference, segment,
    shapes, trajectory,
};
use super::*;
use crate::loss::correction::Correction;
use crate::loss::kl::KlLoss;
use crate::loss::surrogate::Surrogate;
use crate::loss::tests::losses;
use crate::loss::{Given, PolicyLoss};
use crate::ranks::Ranks;
use crate::shape::without_truncated;
use molt_core::chat::Task;
use molt_core::ids::{GroupId, RolloutId};
use molt_core::outcome::{Group, Outcome};
use molt_core::settings::{Aggregation, CorrectionLevel, CorrectionMode, Importance, KlEstimator};
use molt_core::trajectory::{Reward, Segment, Trajectory};
use molt_model::Weights;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tch::Kind;

/// Rows of which everything is known; if not, nothing of the weights that training on their batch began with.
fn known(segments: &[(Segment, Vec<f32>)], is_old_known: bool) -> Vec<PolicyRow<'_>> {
    let near = |segment: &Segment, step: f32| -> Vec<f32> {
        let actions = segment.actions().iter().enumerate();
        actions.map(|(nth, action)| action.logprob + step * ((nth * 7 + 3) % 5) as f32 - 0.1).collect()
    };
    segments
        .iter()
        .map(|(segment, advantages)| PolicyRow {
            old: is_old_known.then(|| near(segment, 0.15)),
            reference: Some(near(segment, -0.2)),
            ..PolicyRow::new(segment, advantages.clone())
        })
        .collect()
}

/// That two layouts saw the same.
fn same(found: &PolicySums, expected: &PolicySums) -> Result<(), TestCaseError> {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs().max(1.0);
    let numbers = |sums: &PolicySums| {
        let PolicySums { loss, clipped, dual_clipped, advantage, ratio, kl, kl_reference, entropy, .. } =
            *sums;
        [loss, clipped, dual_clipped, advantage, ratio, kl, kl_reference, entropy]
    };
    for (a, b) in numbers(found).into_iter().zip(numbers(expected)) {
        prop_assert!(near(a, b), "{a} is not {b}: {found:?}, {expected:?}");
    }
    prop_assert_eq!((found.units, found.outside), (expected.units, expected.outside));
    Ok(())
}

proptest! {
    #![proptest_config(config(48))]

    /// In float64 nothing is left of the layout but rounding, whatever the loss, its aggregation and its correction.
    #[test]
    fn no_loss_depends_on_the_layout(
        loss in losses(), is_old_known: bool, shapes in shapes(), budget in 1_usize..120, logit_rows in 1_usize..7,
        keep_layers in 0_usize..3, rotate in 0_usize..6,
    ) {
        let segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        let mut shuffled = segments.clone();
        shuffled.rotate_left(rotate % segments.len());
        shuffled.reverse();
        let double = || of_kind(Kind::Double, "0.3");
        let whole = alone(double(), layout(100_000));
        let split = alone(double(), Layout { max_tokens_per_rank: budget, keep_layers, logit_rows, ..layout(1) });
        let expected = whole.policy_gradient(&known(&segments, is_old_known), &loss).expect("a gradient");
        let found = split.policy_gradient(&known(&shuffled, is_old_known), &loss).expect("a gradient");
        same(&found, &expected)?;
        let difference = relative_difference(&gradient(&split), &gradient(&whole));
        prop_assert!(difference <= 1e-11, "gradients differ by {difference:e}");
    }

    /// In float32, in which runs compute; without what may leave nothing but small numbers of the gradient. A ratio is as
    /// exact as the log-probabilities that it is of, whose last digit is 5e-7.
    #[test]
    fn the_layout_is_rounding_in_float32(
        loss in losses(), shapes in shapes(), budget in 1_usize..120, logit_rows in 1_usize..7,
    ) {
        let loss = PolicyLoss { correction: None, kl: None, entropy_coef: 0.0, ..loss };
        let segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        let [whole, split] = [(100_000, 256), (budget, logit_rows)].map(|(max_tokens_per_rank, logit_rows)| {
            alone(decoder("0.02"), Layout { max_tokens_per_rank, logit_rows, ..layout(0) })
        });
        for learner in [&whole, &split] {
            learner.policy_gradient(&known(&segments, false), &loss).expect("a gradient");
        }
        let difference = relative_difference(&gradient(&split), &gradient(&whole));
        prop_assert!(difference <= 3e-6, "gradients differ by {difference:e}");
    }

    #[test]
    fn no_loss_depends_on_the_number_of_ranks(
        loss in losses(), is_old_known: bool, shapes in shapes(), size in 2_usize..4, budget in 1_usize..120,
    ) {
        let segments: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        let one = alone(of_kind(Kind::Double, "0.3"), layout(100_000));
        let expected = one.policy_gradient(&known(&segments, is_old_known), &loss).expect("a gradient");
        let whole = gradient(&one);
        let found = ranks(size, |group| {
            let learner = together(group, Kind::Double, layout(budget));
            let sums = learner.policy_gradient(&known(&segments, is_old_known), &loss).expect("a gradient");
            (sums, relative_difference(&gradient(&learner), &own(&learner, decoder("0.3"), &whole)))
        });
        for (sums, difference) in found {
            same(&sums, &expected)?;
            prop_assert!(difference <= 1e-11, "gradients differ by {:e}", difference);
        }
    }
}

proptest! {
    #![proptest_config(config(48))]

    /// What `train.mask_truncated` leaves out is not there: whatever its tokens were sampled with, their advantages, and
    /// what older weights and a reference say of them, not a bit of the loss or of its gradient changes.
    #[test]
    fn masked_rollouts_cannot_be_seen(
        loss in losses(), shapes in shapes(), masked: u32,
        poison in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(1e9_f32), Just(-1e9_f32)],
    ) {
        let is_masked = |nth: usize| masked >> nth & 1 == 1;
        prop_assume!((0..shapes.len()).any(|nth| !is_masked(nth)));
        let clean: Vec<_> = shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c])).collect();
        let spoilt = |(nth, (segment, advantages)): (usize, &(Segment, Vec<f32>))| match is_masked(nth) {
            // A log-probability when it was sampled is always finite.
            true => (rebuilt(segment, |_| if poison.is_finite() { poison } else { -1e9 }, || 3), vec![poison; advantages.len()]),
            false => (segment.clone(), advantages.clone()),
        };
        let spoilt: Vec<_> = clean.iter().enumerate().map(spoilt).collect();
        let of = |segments: &[(Segment, Vec<f32>)], is_spoilt: bool| {
            let groups = [truncated(segments, is_masked)];
            let mut rows = known(segments, true);
            for (_, row) in rows.iter_mut().enumerate().filter(|(nth, _)| is_spoilt && is_masked(*nth)) {
                (row.old, row.reference) = (Some(row.advantages.clone()), Some(row.advantages.clone()));
            }
            let rows = without_truncated(&groups, rows);
            let learner = alone(of_kind(Kind::Double, "0.3"), layout(100_000));
            let sums = learner.policy_gradient(&rows, &loss).expect("a gradient");
            (sums.loss.to_bits(), gradient(&learner).into_iter().map(f64::to_bits).collect::<Vec<_>>())
        };
        prop_assert!(of(&spoilt, true) == of(&clean, false));
    }
}

/// A group of one rollout for each segment.
fn truncated(segments: &[(Segment, Vec<f32>)], is_truncated: impl Fn(usize) -> bool) -> Group {
    let task = Task { id: "1".into(), messages: Vec::new(), label: None, fields: Vec::new() };
    let rollout = |(nth, (segment, _)): (usize, &(Segment, Vec<f32>))| {
        let rollout = RolloutId { group: GroupId(0), member: nth as u32 };
        let reward = Reward::Scored { value: 0.0, solved: false };
        let bare = trajectory(rollout, &task, vec![segment.clone()], reward);
        Outcome::Finished(Box::new(Trajectory { truncated: is_truncated(nth), ..bare }))
    };
    let outcomes = segments.iter().enumerate().map(rollout).collect();
    Group { id: GroupId(0), task: task.clone(), outcomes }
}

/// A sequence without action tokens is nothing that a correction could find outside its band, or inside.
#[test]
fn a_sequence_without_tokens_is_no_unit_of_a_correction() {
    let segments = [segment(1, [3, 4, 2, 3]), (Segment::new(vec![1, 2, 3]), Vec::new())];
    let rows: Vec<PolicyRow<'_>> =
        segments.iter().map(|(segment, advantages)| PolicyRow::new(segment, advantages.clone())).collect();
    for (level, band, outside) in [
        (CorrectionLevel::Geo, (0.0, 1e9), 0),
        (CorrectionLevel::Geo, (1.0, 1.0), 1),
        (CorrectionLevel::Seq, (1.0, 1.0), 1),
    ] {
        let correction = Correction { level, mode: CorrectionMode::Mask, low: band.0, high: band.1 };
        let loss = PolicyLoss { correction: Some(correction), importance: Importance::Old, ..LOSS };
        let learner = alone(of_kind(Kind::Double, "0.3"), layout(100_000));
        let sums = learner.policy_gradient(&rows, &loss).expect("a gradient");
        assert_eq!((sums.units, sums.outside), (1, outside), "{level:?} {band:?}");
    }
}

/// What was learnt before does not move the weights again, which could keep every later batch outside as well.
#[test]
fn a_step_of_which_all_is_outside_the_band_is_no_step() {
    let segments = [segment(1, [3, 4, 2, 3]), segment(2, [5, 1, 0, 0])];
    let rows = known(&segments, true);
    let mut learner = alone(decoder("0.3"), layout(100_000));
    let step = |learner: &mut Learner, high| {
        let correction =
            Correction { level: CorrectionLevel::Token, mode: CorrectionMode::Mask, low: 0.0, high };
        // Neither of which may train what is left out.
        let kl = Some(KlLoss { estimator: KlEstimator::K2, coef: 0.5 });
        let correction = Some(correction);
        let loss = PolicyLoss { correction, importance: Importance::Old, entropy_coef: 0.3, kl, ..LOSS };
        let (sums, update) = learner.policy_step(&rows, &loss).expect("a step");
        let weights = flat(&learner.parameters().expect("alone"));
        (sums.outside == sums.units, update.grad_norm == 0.0, learner.version().0, weights)
    };
    let (outside, still, version, learnt) = step(&mut learner, 1e9);
    assert!(!outside && !still && version == 1);
    let (outside, still, version, after) = step(&mut learner, 0.0);
    assert!(outside && still && version == 1 && after == learnt);
    let (_, _, version, after) = step(&mut learner, 1e9);
    assert!(version == 2 && after != learnt);
}

#[test]
fn the_entropy_and_its_gradient_are_those_of_autograd() {
    let segments = [segment(1, [3, 4, 2, 3]), segment(2, [5, 1, 0, 0]), segment(3, [1, 7, 4, 6])];
    let rows = known(&segments, false);
    // Nothing but the entropy: no advantage, and weights far from uniform.
    let silent: Vec<PolicyRow<'_>> = rows
        .iter()
        .map(|row| PolicyRow { advantages: vec![0.0; row.advantages.len()], ..row.clone() })
        .collect();
    let loss = PolicyLoss { entropy_coef: 0.3, ..LOSS };
    let learner = alone(of_kind(Kind::Double, "0.3"), Layout { logit_rows: 4, ..layout(24) });
    let sums = learner.policy_gradient(&silent, &loss).expect("a gradient");

    let mut decoder = of_kind(Kind::Double, "0.3");
    decoder.requires_grad(true);
    let (mut total, mut tokens) = (Tensor::from(0.0_f64), 0);
    for row in &rows {
        let ids: Vec<i64> = row.segment.tokens().iter().map(|&token| i64::from(token)).collect();
        let logits =
            decoder.logits(&decoder.hidden(&Tensor::from_slice(&ids).unsqueeze(0))).squeeze_dim(0) / 0.7;
        for action in row.segment.actions() {
            let softmax = logits.get(action.position as i64 - 1).softmax(-1, Kind::Double);
            total -= (&softmax * softmax.log()).sum(Kind::Double);
            tokens += 1;
        }
    }
    let loss = &total * (-0.3 / f64::from(tokens));
    loss.backward();
    let entropy = total.double_value(&[]);
    assert!((sums.entropy - entropy).abs() < 1e-10 * entropy, "{} is not {entropy}", sums.entropy);
    assert!((sums.loss - loss.double_value(&[])).abs() < 1e-12);
    let (network, parameters) = decoder.into_parts();
    let names = network.units().into_iter().flat_map(|unit| network.names(unit));
    let expected: Vec<f64> = names
        .flat_map(|name| Vec::<f64>::try_from(parameters[&name].grad().flatten(0, -1)).expect("float64"))
        .collect();
    let difference = relative_difference(&gradient(&learner), &expected);
    assert!(difference < 1e-11, "{difference:e}");
}

/// Golden numbers made by running labs-molt 0.1.6.
#[test]
fn log_probability_and_entropy_of_known_logits() {
    let tokens = [0, 2];
    let row = Row { tokens: &tokens, targets: vec![1], routing: None };
    for (logits, temperature, logprob, entropy) in [
        ([1.0_f32, 2.0, 3.0], 1.0, -0.407606, 0.832396),
        ([0.0, 0.0, 0.0], 1.0, -1.098612, 1.098612),
        ([1.0, 2.0, 3.0], 0.5, -0.142931, f64::NAN),
    ] {
        let mut learner = alone(decoder("0.02"), layout(8));
        learner.temperature = temperature;
        let batch = MicroBatch::new(
            std::slice::from_ref(&row),
            &[1],
            &[0],
            &learner.network,
            (0, crate::mesh::Mesh::of(1)),
        );
        // The hidden state picks the column of the head.
        let (normed, head) =
            (Tensor::from_slice(&[1.0_f32]).unsqueeze(0), Tensor::from_slice(&logits).unsqueeze(1));
        let mut seen = None;
        let mut loss = |_: &[Target], of: &Seen| {
            seen = Some((of.scores[0], of.entropies[0]));
            Slopes { by_score: vec![0.0], by_entropy: None }
        };
        let mut objective = Objective { needs_entropy: true, loss: &mut loss };
        let _ = learner.logits(&normed, &head, &batch, &mut objective).expect("a gradient");
        let seen = seen.expect("one target");
        assert!((seen.0 - logprob).abs() < 1e-6, "{seen:?}");
        assert!(entropy.is_nan() || (seen.1 - entropy).abs() < 1e-6, "{seen:?}");
    }
}

#[test]
fn log_probabilities_are_those_that_a_step_sees() {
    let segments: Vec<_> = (0..5).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let bare: Vec<&Segment> = segments.iter().map(|(segment, _)| segment).collect();
    let mut one = alone(decoder("0.3"), layout(30));
    let all = one.logprobs(&bare).expect("logits");
    // Compared with themselves, nothing has changed.
    let rows: Vec<PolicyRow<'_>> = known(&segments, true)
        .into_iter()
        .zip(&all)
        .map(|(row, own)| PolicyRow { old: Some(own.clone()), ..row })
        .collect();
    let loss = PolicyLoss { importance: Importance::Old, ..LOSS };
    let sums = one.policy_gradient(&rows, &loss).expect("a gradient");
    assert!((sums.ratio / sums.tokens as f64 - 1.0).abs() < 1e-6 && sums.clipped == 0.0, "{sums:?}");
    for found in ranks(2, |group| together(group, Kind::Float, layout(20)).logprobs(&bare).expect("logits")) {
        for (a, b) in found.concat().iter().zip(all.concat()) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} is not {b}");
        }
    }
}

/// Without older log-probabilities, a step is the first on its batch: old ones and the present ones are the same.
#[test]
fn the_first_step_of_a_batch_needs_no_old_log_probabilities() {
    let segments: Vec<_> = (0..4).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let bare: Vec<&Segment> = segments.iter().map(|(segment, _)| segment).collect();
    for level in [CorrectionLevel::Token, CorrectionLevel::Seq, CorrectionLevel::Geo] {
        let correction = Correction { level, mode: CorrectionMode::Mask, low: 0.3, high: 3.0 };
        for surrogate in [LOSS.surrogate, Some(Surrogate::Gspo { low: 0.1, high: 0.1 })] {
            let loss = PolicyLoss {
                surrogate,
                importance: Importance::Old,
                correction: Some(correction),
                aggregation: Aggregation::SeqMeanTokenMean,
                ..LOSS
            };
            let mut learner = alone(of_kind(Kind::Double, "0.3"), layout(30));
            let old = learner.logprobs(&bare).expect("logits");
            let mut rows = known(&segments, false);
            let without = learner.policy_gradient(&rows, &loss).expect("a gradient");
            let gradient_without = gradient(&learner);
            for (row, old) in rows.iter_mut().zip(old) {
                row.old = Some(old);
            }
            let with = learner.policy_gradient(&rows, &loss).expect("a gradient");
            // Old log-probabilities are kept in float32.
            assert!((with.loss - without.loss).abs() < 1e-6, "{with:?}, {without:?}");
            assert_eq!(with.outside, without.outside);
            assert!(relative_difference(&gradient(&learner), &gradient_without) < 1e-5);
        }
    }
}

/// What the leader alone knows, such as the losses that a plugin gave, goes to the others with the rows: they need no
/// settings and no plugins.
#[test]
fn the_other_ranks_are_told_all_that_a_step_needs() {
    let segments: Vec<_> = (0..5).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
    let bare: Vec<&Segment> = segments.iter().map(|(segment, _)| segment).collect();
    let loss = PolicyLoss {
        surrogate: None,
        importance: Importance::Old,
        correction: Some(Correction {
            level: CorrectionLevel::Geo,
            mode: CorrectionMode::Mask,
            low: 0.1,
            high: 10.0,
        }),
        aggregation: Aggregation::SeqMeanTokenMean,
        entropy_coef: 0.1,
        kl: Some(KlLoss { estimator: KlEstimator::K3, coef: 0.2 }),
        ..LOSS
    };
    let steps = |mut learner: Learner| {
        let old = learner.logprobs(&bare).expect("logits");
        for _ in 0..2 {
            let given = |row: &PolicyRow<'_>, nth: usize| Given {
                loss: f64::from(row.advantages[nth]),
                slope: 0.5 - f64::from(row.advantages[nth]),
            };
            let rows: Vec<PolicyRow<'_>> = known(&segments, false)
                .into_iter()
                .zip(&old)
                .map(|(row, old)| PolicyRow {
                    old: Some(old.clone()),
                    given: Some((0..row.advantages.len()).map(|nth| given(&row, nth)).collect()),
                    ..row
                })
                .collect();
            let (sums, _) = learner.policy_step(&rows, &loss).expect("a step");
            assert_eq!(sums.units, 5);
        }
        flat(&learner.parameters().expect("all ranks are here"))
    };
    let double = || Weights::from(of_kind(Kind::Double, "0.3"));
    let expected = steps(Learner::new(double(), None, &optim(), 20, layout(30), 0.7).expect("in memory"));
    let found = with_store(2, |store, group| {
        let place = (group.rank(), group.size());
        let ranks = Ranks::at(store.port(), place);
        if place.0 > 0 {
            let optim = optim();
            let models = Models { policy: (double(), &optim), reference: None, critic: None };
            Learner::follow(models, ranks, layout(30), 0.7).expect("a whole run");
            return None;
        }
        Some(steps(Learner::new(double(), Some(ranks), &optim(), 20, layout(30), 0.7).expect("ranks")))
    });
    let difference = relative_difference(found[0].as_ref().expect("the leader's"), &expected);
    assert!(difference < 1e-7, "{difference:e}");
}
