//! The loss of rows that are not learnt: the chain of units, walked forward only.

use super::pass::{MicroBatch, numbers, of_labels};
use super::{Learner, Row, Target, owned};
use crate::error::TrainError;
use crate::ranks::Order;
use crate::shards::{Gathering, sums};
use molt_core::trajectory::Segment;
use molt_model::{Routed, Unit};

impl Learner {
    /// The sum of `−log π` over the targets of `rows`, which change nothing.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn loss(&mut self, rows: &[Row<'_>]) -> Result<f64, TrainError> {
        self.order(|| Order::Loss(owned(rows)))?;
        let mut own = 0.0;
        let mut add = |_: &[Target], logprobs: &[f64]| own -= logprobs.iter().sum::<f64>();
        let mut each = |batch: Option<&MicroBatch>| self.forward(batch, &mut add);
        let all = self.deal(rows, &mut each).and_then(|()| Ok(sums(self.shards.ranks(), &[own])?[0]));
        all.map_err(|error| self.explained(error))
    }

    /// The log-probability of every action token of `segments`, which change nothing.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn logprobs(&mut self, segments: &[&Segment]) -> Result<Vec<Vec<f32>>, TrainError> {
        self.order(|| Order::Logprobs(segments.iter().map(|&segment| segment.clone()).collect()))?;
        self.of_actions(segments)
    }

    /// What the head says of every target of every row: its log-probability, or of a critic its value.
    pub(super) fn of_targets(&self, rows: &[Row<'_>]) -> Result<Vec<Vec<f64>>, TrainError> {
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.targets.len();
            Some(*end)
        });
        let begins: Vec<usize> = std::iter::once(0).chain(ends).collect();
        let mut own = vec![0.0; begins[rows.len()]];
        let mut put = |targets: &[Target], scores: &[f64]| {
            for (target, &score) in targets.iter().zip(scores) {
                own[begins[target.row] + target.nth] = score;
            }
        };
        self.deal(rows, &mut |batch| self.forward(batch, &mut put))?;
        // Each target is on one rank, and 0 on the others.
        let all = sums(self.shards.ranks(), &own)?;
        Ok(begins.windows(2).map(|ends| all[ends[0]..ends[1]].to_vec()).collect())
    }

    /// One forward pass, in which every rank takes part also without a micro-batch; `each` gets targets and their
    /// log-probabilities, or of a critic their values.
    fn forward(
        &self,
        batch: Option<&MicroBatch>,
        each: &mut impl FnMut(&[Target], &[f64]),
    ) -> Result<(), TrainError> {
        let _no_grad = tch::no_grad_guard();
        let (head, x) = self.layers(batch, &mut |_, _| ())?;
        let mut parameters = head.wait()?;
        if self.network.is_tied() {
            parameters.extend(self.shards.gather(Unit::Embedding)?.wait()?);
        }
        let Some((hidden, batch)) = x.zip(batch) else { return Ok(()) };
        let normed = self.network.norm(&parameters[0], &hidden.flatten(0, 1).index_select(0, &batch.places));
        let head = self.network.head(&parameters[1]);
        if self.network.is_critic() {
            each(&batch.targets, &numbers(&self.network.logits(&head, &normed).squeeze_dim(1)));
            return Ok(());
        }
        let chunk = self.layout.logit_rows;
        let parts = normed.split(chunk as i64, 0).into_iter().zip(batch.labels.split(chunk as i64, 0));
        for (targets, (normed, labels)) in batch.targets.chunks(chunk).zip(parts) {
            let logits = self.network.logits(&head, &normed) / self.temperature;
            each(targets, &of_labels(&logits.log_softmax_int_out(&logits, -1, None), &labels));
        }
        Ok(())
    }

    /// The hidden states `[1, n, d]` after the last layer, without a graph; `seen` gets how every layer with experts
    /// routed them. The head is on its way.
    pub(super) fn layers(
        &self,
        batch: Option<&MicroBatch>,
        seen: &mut impl FnMut(usize, Routed),
    ) -> Result<(Gathering<'_>, Option<tch::Tensor>), TrainError> {
        let _no_grad = tch::no_grad_guard();
        let layers = self.network.config().num_hidden_layers;
        let embedding = self.shards.gather(Unit::Embedding)?.wait()?;
        let mut next = self.ahead(Unit::Layer(0))?;
        let mut x = batch.map(|batch| self.network.embed(&embedding[0], &batch.ids));
        drop(embedding);
        for layer in 0..layers {
            let parameters = next.wait()?;
            next = self.ahead(if layer + 1 < layers { Unit::Layer(layer + 1) } else { Unit::Head })?;
            if let Some((input, batch)) = x.take().zip(batch) {
                let recorded = self.recorded(batch, layer);
                let (output, routed) =
                    self.network.layer(layer, &parameters, &input, &batch.sequences, recorded.as_ref())?;
                if let Some(routed) = routed {
                    seen(layer, routed);
                }
                x = Some(output);
            }
        }
        Ok((next, x))
    }
}

#[cfg(test)]
mod tests {
    use crate::step::ranks::{ranks, together};
    use crate::step::tests::{alone, layout, of_kind, segment};
    use crate::step::{Layout, PolicyRow, Row};
    use molt_core::trajectory::Segment;
    use tch::Kind;

    #[test]
    fn it_is_the_loss_of_a_supervised_step_on_any_number_of_ranks() {
        let segments: Vec<Segment> = (0..7).map(|n| segment(n, [3 + n, 4, n % 3, 5]).0).collect();
        let rows: Vec<Row<'_>> = segments.iter().map(PolicyRow::layout).collect();
        let tokens: usize = rows.iter().map(|row| row.targets.len()).sum();
        let mut one = alone(of_kind(Kind::Double, "0.3"), layout(30));
        let sum = one.loss(&rows).expect("a loss");
        assert_eq!(sum, one.loss(&rows).expect("a loss"), "nothing has changed");
        let (mean, _) = one.supervised_step(&rows).expect("a step");
        assert!((sum / tokens as f64 - mean).abs() <= 1e-12 * mean, "{sum} is not {tokens} times {mean}");
        for size in [2, 3] {
            let layout = Layout { logit_rows: 2, ..layout(25) };
            for own in ranks(size, |group| together(group, Kind::Double, layout).loss(&rows).expect("a loss"))
            {
                assert!((own - sum).abs() <= 1e-12 * sum, "{own} is not {sum}");
            }
        }
    }
}
