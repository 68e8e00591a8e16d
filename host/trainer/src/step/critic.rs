//! The critic: a model whose head gives a value to the state in which a token was chosen.
//!
//! The value of an action token is read where its log-probability is: from the hidden state of the token before it. So
//! it knows the context and nothing of the token itself, as a baseline must. No temperature has to do with it.

use super::pass::{Objective, Seen, Slopes};
use super::{Learner, PolicyRow, Row, Target};
use crate::error::TrainError;
use crate::loss::value::value_loss;
use crate::optim::Update;
use crate::ranks::{Order, OwnedValueRow};
use crate::shards::sums;
use molt_core::trajectory::Segment;

/// A segment, and what the critic is to learn of each of its action tokens.
#[derive(Debug, Clone)]
pub struct ValueRow<'a> {
    pub segment: &'a Segment,
    /// Their values before the update.
    pub values: Vec<f32>,
    /// What their values should be.
    pub returns: Vec<f32>,
}

/// What a step of the critic saw: sums over its action tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ValueSums {
    pub tokens: usize,
    pub loss: f64,
    /// Those whose values have moved by more than the bound.
    pub clipped: f64,
    /// Of the values as they are now.
    pub value: f64,
}

impl ValueSums {
    /// Takes in another step.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.loss += other.loss;
        self.clipped += other.clipped;
        self.value += other.value;
    }
}

impl Learner {
    /// The value of every action token of `segments`, which change nothing.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn values(&mut self, segments: &[&Segment]) -> Result<Vec<Vec<f32>>, TrainError> {
        self.order(|| Order::Values(segments.iter().map(|&segment| segment.clone()).collect()))?;
        self.of_actions(segments)
    }

    /// One step of the value loss over `rows`: its mean over all their action tokens. Values are clipped at `clip`, or
    /// not at all if that is 0.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub fn value_step(
        &mut self,
        rows: &[ValueRow<'_>],
        clip: f64,
    ) -> Result<(ValueSums, Update), TrainError> {
        self.order(|| Order::Value { rows: rows.iter().map(OwnedValueRow::from).collect(), clip })?;
        let sums = self.value_gradient(rows, clip).map_err(|error| self.explained(error))?;
        Ok((sums, self.update()?))
    }

    /// The gradient of the value loss over all action tokens of `rows`.
    pub(super) fn value_gradient(&self, rows: &[ValueRow<'_>], clip: f64) -> Result<ValueSums, TrainError> {
        let layout: Vec<Row<'_>> = rows.iter().map(|row| self.row(row.segment)).collect();
        let tokens: usize = layout.iter().map(|row| row.targets.len()).sum();
        let weight = 1.0 / tokens as f64;
        let (mut loss, mut clipped, mut value) = (0.0, 0.0, 0.0);
        let mut of_targets = |targets: &[Target], seen: &Seen| {
            let of = |(target, &now): (&Target, &f64)| {
                let row = &rows[target.row];
                let (old, target) = (row.values[target.nth].into(), row.returns[target.nth].into());
                let found = value_loss(now, old, target, clip);
                loss += found.loss;
                clipped += f64::from(u8::from(found.is_clipped));
                value += now;
                weight * found.slope
            };
            Slopes { by_score: targets.iter().zip(&seen.scores).map(of).collect(), by_entropy: None }
        };
        self.gradient(&layout, &mut Objective { needs_entropy: false, loss: &mut of_targets })?;
        let all = sums(self.shards.ranks(), &[loss, clipped, value])?;
        let [loss, clipped, value] = all[..] else { unreachable!("three sums") };
        Ok(ValueSums { tokens, loss, clipped, value })
    }

    /// A segment as a row of this model. Where the policy sent its tokens is of the policy's weights.
    pub(super) fn row<'a>(&self, segment: &'a Segment) -> Row<'a> {
        let row = PolicyRow::layout(segment);
        if self.role == crate::ranks::Role::Policy { row } else { Row { routing: None, ..row } }
    }

    /// What the head says of every action token: its log-probability, or of a critic its value.
    pub(super) fn of_actions(&self, segments: &[&Segment]) -> Result<Vec<Vec<f32>>, TrainError> {
        let layout: Vec<Row<'_>> = segments.iter().map(|segment| self.row(segment)).collect();
        let all = self.of_targets(&layout).map_err(|error| self.explained(error))?;
        Ok(all.iter().map(|row| row.iter().map(|&score| score as f32).collect()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Mesh;
    use crate::step::Layout;
    use crate::step::ranks::{flat, ranks};
    use crate::step::tests::{
        config, converted, layout, model, optim, relative_difference, segment, shapes, trained,
    };
    use molt_model::Weights;
    use molt_torch::Group;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tch::{Kind, Tensor};

    const CLIP: f64 = 0.2;

    fn critic(kind: Kind, is_tied: bool, group: Option<Group>, layout: Layout) -> Learner {
        let weights = Weights::from(converted(model("0.3", is_tied), kind)).with_value_head(3);
        let groups = group.map(Into::into);
        Learner::part(weights, groups, &optim(), 20, layout, 1.0).expect("settings that fit")
    }

    /// What the critic is to learn of segments: values and returns are functions of the token's place.
    fn rows(segments: &[Segment]) -> Vec<ValueRow<'_>> {
        let row = |segment| {
            let numbers = |scale: f32| -> Vec<f32> {
                let places = (0..Segment::actions(segment).len()).map(|nth| (nth * 5 + 2) % 7);
                places.map(|n| n as f32 / 7.0 * scale - 0.3).collect()
            };
            ValueRow { segment, values: numbers(0.4), returns: numbers(1.5) }
        };
        segments.iter().map(row).collect()
    }

    fn segments(shapes: &[(u32, u32, u32, u32, u32)]) -> Vec<Segment> {
        shapes.iter().map(|&(salt, p, a, b, c)| segment(salt, [p, a, b, c]).0).collect()
    }

    /// Every parameter's gradient by name, of the rows that this rank holds.
    fn gradients(learner: &Learner) -> BTreeMap<String, Vec<f64>> {
        let flat =
            |t: &Tensor| Vec::<f64>::try_from(t.flatten(0, -1).to_kind(Kind::Double)).expect("float64");
        trained(learner).into_iter().map(|(p, gradient)| (p.name, flat(&gradient))).collect()
    }

    /// The rows of whole gradients that a rank holds.
    fn own(whole: &BTreeMap<String, Vec<f64>>, learner: &Learner) -> Vec<f64> {
        let (rank, mesh) = learner.shards.place();
        let of = |(name, shape): (String, Vec<i64>)| {
            let held = molt_torch::extent(&shape, rank, mesh.ranks);
            whole[&name][held.start as usize..held.end as usize].to_vec()
        };
        learner.shapes().into_iter().flat_map(of).collect()
    }

    /// Row by row, with autograd over the whole model: the definition. The loss, and its gradients by name.
    fn by_definition(rows: &[ValueRow<'_>], is_tied: bool) -> (f64, BTreeMap<String, Tensor>) {
        let mut decoder = converted(model("0.3", is_tied), Kind::Double);
        decoder.requires_grad(true);
        let whole = Weights::from(converted(model("0.3", is_tied), Kind::Double)).with_value_head(3);
        let head = whole
            .rows("score.weight", 0..1)
            .expect("in memory")
            .to_kind(Kind::Double)
            .set_requires_grad(true);
        let tokens: usize = rows.iter().map(|row| row.segment.actions().len()).sum();
        let mut total = Tensor::from(0.0_f64);
        for row in rows {
            let ids: Vec<i64> = row.segment.tokens().iter().map(|&token| i64::from(token)).collect();
            let hidden = decoder.hidden(&Tensor::from_slice(&ids).unsqueeze(0)).squeeze_dim(0);
            for (nth, action) in row.segment.actions().iter().enumerate() {
                let value = hidden.get(action.position as i64 - 1).dot(&head.get(0));
                let [old, target] = [row.values[nth], row.returns[nth]].map(f64::from);
                let held = (&value - old).clamp(-CLIP, CLIP) + old;
                total += (value - target).square().maximum(&(held - target).square()) / 2.0;
            }
        }
        let loss = total / tokens as f64;
        loss.backward();
        let mut all: BTreeMap<String, Tensor> =
            decoder.parameters().into_iter().map(|(n, p)| (n, p.grad())).collect();
        all.insert("score.weight".to_owned(), head.grad());
        (loss.double_value(&[]), all)
    }

    #[test]
    fn agrees_with_the_definition() {
        let segments = segments(&[(1, 3, 4, 2, 3), (2, 5, 1, 0, 0), (3, 1, 7, 4, 6)]);
        let rows = rows(&segments);
        for is_tied in [true, false] {
            let (loss, expected) = by_definition(&rows, is_tied);
            let ours = critic(Kind::Double, is_tied, None, layout(24));
            let sums = ours.value_gradient(&rows, CLIP).expect("a gradient");
            assert_eq!(sums.tokens, 21);
            assert!((sums.loss / 21.0 - loss).abs() < 1e-12, "{} is not {loss}", sums.loss / 21.0);
            assert!(sums.clipped > 0.0 && sums.clipped < 21.0, "the case should clip some values: {sums:?}");
            for (name, gradient) in gradients(&ours) {
                let expected = Vec::<f64>::try_from(expected[&name].flatten(0, -1)).expect("float64");
                let difference = relative_difference(&gradient, &expected);
                assert!(difference < 1e-12, "{name}: {difference:e}");
            }
        }
    }

    #[test]
    fn a_value_is_of_the_state_before_its_token() {
        let (first, _) = segment(4, [3, 4, 0, 0]);
        let mut changed = Segment::new(first.tokens()[..3].to_vec());
        let mut sampled: Vec<_> = first
            .actions()
            .iter()
            .map(|a| molt_core::trajectory::Sampled {
                token: first.tokens()[a.position],
                logprob: a.logprob,
                version: a.version,
            })
            .collect();
        sampled[2].token = (sampled[2].token + 1) % 61;
        changed.push_turn(0, &sampled);
        let mut critic = critic(Kind::Float, true, None, layout(64));
        let values = critic.values(&[&first, &changed]).expect("values");
        assert_eq!(values[0][..3], values[1][..3], "the token itself is not known");
        assert_ne!(values[0][3], values[1][3], "those before are");
        // Logits are divided by a temperature, values are not.
        critic.temperature = 0.1;
        assert_eq!(critic.values(&[&first, &changed]).expect("values"), values);
    }

    #[test]
    fn values_come_near_the_returns() {
        let segments = segments(&[(1, 3, 4, 2, 3), (2, 5, 3, 0, 0)]);
        let mut critic = critic(Kind::Float, true, None, layout(64));
        let losses: Vec<f64> = (0..12)
            .map(|_| critic.value_step(&rows(&segments), 0.0).expect("a finite gradient").0.loss)
            .collect();
        assert!(losses[11] < 0.2 * losses[0], "{losses:?}");
    }

    proptest! {
        #![proptest_config(config(12))]

        /// In float64 nothing is left of micro-batches, their order, layers that are computed again and ranks but
        /// rounding.
        #[test]
        fn layout_and_ranks_do_not_matter(
            shapes in shapes(), size in 1_usize..4, budget in 1_usize..120, keep_layers in 0_usize..3,
            rotate in 0_usize..6, is_tied: bool,
        ) {
            let mut segments = segments(&shapes);
            let mut one = critic(Kind::Double, is_tied, None, layout(100_000));
            let expected = one.value_gradient(&rows(&segments), CLIP).expect("a gradient");
            let whole = gradients(&one);
            let values = one.values(&segments.iter().collect::<Vec<_>>()).expect("values");
            segments.rotate_left(rotate % shapes.len());
            let layout = Layout { keep_layers, ..layout(budget) };
            let found = ranks(size, |group| {
                let mut learner = critic(Kind::Double, is_tied, Some(group), layout);
                let sums = learner.value_gradient(&rows(&segments), CLIP).expect("a gradient");
                let gradient: Vec<f64> = gradients(&learner).into_values().flatten().collect();
                let difference = relative_difference(&gradient, &own(&whole, &learner));
                let mut values = learner.values(&segments.iter().collect::<Vec<_>>()).expect("values");
                values.rotate_right(rotate % shapes.len());
                (sums, difference, values)
            });
            for (sums, difference, own) in found {
                prop_assert!((sums.loss - expected.loss).abs() <= 1e-11 * expected.loss.abs().max(1.0));
                prop_assert!((sums.value - expected.value).abs() <= 1e-11 * expected.value.abs().max(1.0));
                prop_assert_eq!((sums.tokens, sums.clipped), (expected.tokens, expected.clipped));
                prop_assert!(difference <= 1e-10, "gradients differ by {:e}", difference);
                for (a, b) in own.concat().iter().zip(values.concat()) {
                    prop_assert!((a - b).abs() <= 1e-6);
                }
            }
        }
    }

    /// A checkpoint of two ranks goes on with one and with three, the head included, of which one rank has all.
    #[test]
    fn a_checkpoint_goes_on_with_any_number_of_ranks() {
        let segments = segments(&[(1, 3, 4, 2, 3), (2, 5, 3, 0, 2), (5, 2, 6, 1, 1)]);
        let steps = |learner: &mut Learner, count| {
            for _ in 0..count {
                learner.value_step(&rows(&segments), CLIP).expect("a step");
            }
        };
        let mut whole = critic(Kind::Float, true, None, layout(40));
        steps(&mut whole, 5);
        let expected = flat(&whole.parameters().expect("nobody is lost"));
        let dir = tempfile::tempdir().expect("a directory");
        ranks(2, |group| {
            let mut learner = critic(Kind::Float, true, Some(group), layout(40));
            steps(&mut learner, 3);
            learner.save(dir.path()).expect("a part");
        });
        for size in [1, 3] {
            let found = ranks(size, |group| {
                let mut learner = critic(Kind::Float, true, Some(group), layout(40));
                learner.restore(dir.path(), Mesh::of(2), 3).expect("the parts");
                steps(&mut learner, 2);
                flat(&learner.parameters().expect("all ranks are here"))
            });
            let difference = relative_difference(&found[0], &expected);
            assert!(difference <= 1e-5, "{size} ranks: {difference:e}");
        }
    }
}
