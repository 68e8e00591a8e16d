//! Forward and backward: the chain of the model's units, walked there and back.

use super::balance::Balance;
use super::{Learner, Row, Target};
use crate::error::TrainError;
use crate::mesh::{Mesh, Place};
use crate::shards::{Gathering, Scattering, Shards};
use molt_core::microbatch::micro_batches;
use molt_core::trajectory::Routing;
use molt_model::{Network, Sequences, Unit};
use molt_torch::vjp;
use tch::{Kind, Tensor};

/// Rows that go through the model together, one after the other in a stream of tokens without padding: this rank's part
/// of the stream.
pub(super) struct MicroBatch {
    /// `[1, n]`
    pub(super) ids: Tensor,
    /// Where the rows are, of the tokens that this rank attends for.
    pub(super) sequences: Sequences,
    /// `[1, n, 1]`: 1 for a token of a row, and 0 for what makes the parts of a stream equal.
    pub(super) real: Tensor,
    pub(super) targets: Vec<Target>,
    /// Of each of these `m` targets, the place in `n` of the token before it, and `[m, 1]` its own id.
    pub(super) places: Tensor,
    pub(super) labels: Tensor,
    /// Where tokens are to go, as [`molt_model::Experts::recorded`] makes it.
    recorded: Option<Tensor>,
}

/// What the model says of some targets.
pub(super) struct Seen {
    /// Log-probabilities, or of a critic values.
    pub(super) scores: Vec<f64>,
    /// Of the distributions that they were drawn from; empty if they are not needed.
    pub(super) entropies: Vec<f64>,
}

/// How a loss changes with what the model says of some targets.
pub(super) struct Slopes {
    pub(super) by_score: Vec<f64>,
    pub(super) by_entropy: Option<Vec<f64>>,
}

/// A sum over targets, to be differentiated.
pub(super) struct Objective<'o> {
    pub(super) needs_entropy: bool,
    /// Gets each target once over all ranks, however they are split.
    pub(super) loss: &'o mut dyn FnMut(&[Target], &Seen) -> Slopes,
}

/// What a layer leaves for the backward pass.
struct Kept {
    input: Tensor,
    /// Where its tokens went, if it has experts: computed again, they must go there again.
    experts: Option<Tensor>,
    graph: Option<Graph>,
}

/// A layer's parameters and what it makes, with the graph between.
struct Graph {
    parameters: Vec<Tensor>,
    output: Tensor,
    /// `[1, n, E]`, of a layer with experts.
    probabilities: Option<Tensor>,
}

impl Learner {
    /// Runs every row through the model and makes the gradient that of the objective. The load-balancing loss is
    /// added, and its value before the coefficient comes back; 0 without one.
    pub(super) fn gradient(
        &self,
        rows: &[Row<'_>],
        objective: &mut Objective<'_>,
    ) -> Result<f64, TrainError> {
        let balance = self.balance(rows)?;
        self.shards.forget_gradients();
        self.deal(rows, &mut |batch| self.pass(batch, balance.as_ref(), objective))?;
        Ok(balance.map_or(0.0, |balance| balance.mean))
    }

    /// Cuts rows into micro-batches and runs `each` with this rank's, one after the other: as often on every rank.
    pub(super) fn deal(
        &self,
        rows: &[Row<'_>],
        each: &mut impl FnMut(Option<&MicroBatch>) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let experts = self.network.config().experts.as_ref();
        let fits = |routing: &Routing| experts.is_some_and(|experts| experts.holds(routing));
        if !rows.iter().all(|row| row.routing.is_none_or(fits)) {
            return Err(TrainError::Routing);
        }
        // What follows the last target predicts nothing that is trained.
        let lengths: Vec<usize> = rows.iter().map(|row| row.targets.last().copied().unwrap_or(0)).collect();
        let trained: Vec<usize> = (0..rows.len()).filter(|&row| lengths[row] > 0).collect();
        let of_trained: Vec<usize> = trained.iter().map(|&row| lengths[row]).collect();
        let (rank, mesh) = self.shards.place();
        let team = mesh.team(rank);
        // Those of a context group share the tokens of a stream.
        let budget = self.layout.max_tokens_per_rank.saturating_mul(mesh.context);
        let batches = micro_batches(&of_trained, budget, team.of);
        // Largest first, dealt in turn: at a time, the ranks have micro-batches of about the same size. One that
        // has none left still gathers and scatters with the others; if its experts are needed by others, it goes
        // through the layers too, with a token that belongs to no row.
        for round in batches.chunks(team.of) {
            let batch = round.get(team.index).map(Vec::as_slice).or((mesh.expert > 1).then_some(&[]));
            let batch = batch.map(|batch| {
                let batch: Vec<usize> = batch.iter().map(|&index| trained[index]).collect();
                MicroBatch::new(rows, &lengths, &batch, &self.network, (rank, mesh))
            });
            each(batch.as_ref())?;
        }
        Ok(())
    }

    /// One forward and backward, whose gradient is added to what the shards have.
    fn pass(
        &self,
        batch: Option<&MicroBatch>,
        balance: Option<&Balance>,
        objective: &mut Objective<'_>,
    ) -> Result<(), TrainError> {
        let layers = self.network.config().num_hidden_layers;
        let learns = |unit: Unit| self.shards.trained(unit).any(|is_trained| is_trained);
        // Below the lowest trained unit nothing is differentiated.
        let lowest = match learns(Unit::Embedding) {
            true => 0,
            false => (0..layers).find(|&layer| learns(Unit::Layer(layer))).unwrap_or(layers),
        };
        let is_kept = |layer: usize| layer + self.layout.keep_layers.min(layers) >= layers;

        let embedding = self.shards.gather(Unit::Embedding)?.wait()?;
        let mut next = self.ahead(Unit::Layer(0))?;
        let mut x = batch.map(|batch| tch::no_grad(|| self.network.embed(&embedding[0], &batch.ids)));
        drop(embedding);
        let mut kept = Vec::with_capacity(layers);
        for layer in 0..layers {
            let parameters = next.wait()?;
            next = self.ahead(if layer + 1 < layers { Unit::Layer(layer + 1) } else { Unit::Head })?;
            let Some((input, batch)) = x.take().zip(batch) else { continue };
            let recorded = self.recorded(batch, layer);
            let (experts, graph) = if layer >= lowest && is_kept(layer) {
                let graph = self.graph(layer, parameters, &input, batch, recorded.as_ref())?;
                x = Some(graph.output.detach());
                (None, Some(graph))
            } else {
                let (output, routed) = tch::no_grad(|| {
                    self.network.layer(layer, &parameters, &input, &batch.sequences, recorded.as_ref())
                })?;
                x = Some(output);
                (routed.map(|routed| routed.experts), None)
            };
            if layer >= lowest {
                kept.push(Kept { input, experts, graph });
            }
        }

        let mut scatters = Scatters { shards: &self.shards, prefetch: self.layout.prefetch, last: None };
        let (mut g, by_head) = self.head(next, x.zip(batch), &mut scatters, objective)?.unzip();

        let again = |layer: Option<usize>| {
            layer
                .filter(|&layer| layer >= lowest && !is_kept(layer))
                .map(|layer| self.ahead(Unit::Layer(layer)))
                .transpose()
        };
        let mut next = again(layers.checked_sub(1))?;
        for layer in (lowest..layers).rev() {
            let gathered = next.take().map(Gathering::wait).transpose()?;
            next = again(layer.checked_sub(1))?;
            let gradients = match (kept.pop(), g.take(), batch) {
                (Some(Kept { input, experts, graph }), Some(gradient), Some(batch)) => {
                    let Graph { parameters, output, probabilities } = match (graph, gathered) {
                        (Some(graph), _) => graph,
                        (None, Some(parameters)) => {
                            self.graph(layer, parameters, &input, batch, experts.as_ref())?
                        }
                        (None, None) => unreachable!("a layer was kept or is gathered again"),
                    };
                    let inputs: Vec<&Tensor> = std::iter::once(&input).chain(&parameters).collect();
                    let (mut outputs, mut gradients) = (vec![&output], vec![&gradient]);
                    let by_probabilities =
                        probabilities.as_ref().zip(balance).map(|(probabilities, balance)| {
                            let place = self.network.config().expert_layer(layer).unwrap_or(0);
                            balance.by(probabilities, place, &batch.real)
                        });
                    outputs.extend(probabilities.as_ref().filter(|_| balance.is_some()));
                    gradients.extend(&by_probabilities);
                    let mut found = partial(&outputs, &inputs, &gradients)?;
                    let own = found.split_off(1);
                    g = found.pop().flatten();
                    own
                }
                _ => Vec::new(),
            };
            scatters.start(Unit::Layer(layer), gradients)?;
        }
        // A tied embedding has both gradients in one tensor, which is sent once.
        let learnt = batch.zip(g).filter(|_| learns(Unit::Embedding));
        let learnt = learnt.map(|(batch, gradient)| (batch, wide(&gradient)));
        let embedding = learnt.map(|(batch, gradient)| match by_head.flatten() {
            Some(mut sum) => sum.index_add_(0, &batch.ids.flatten(0, -1), &gradient.flatten(0, 1)),
            None => {
                let vocabulary = self.network.config().vocab_size as i64;
                Tensor::embedding_dense_backward(&gradient, &batch.ids, vocabulary, -1, false)
            }
        });
        scatters.start(Unit::Embedding, vec![embedding])?;
        scatters.finish()
    }

    /// A unit that is needed after the next one has been computed with: on its way meanwhile, or with
    /// `fsdp.prefetch` false not before it is waited for.
    pub(super) fn ahead(&self, unit: Unit) -> Result<Gathering<'_>, TrainError> {
        if self.layout.prefetch { self.shards.gather(unit) } else { Ok(Gathering::Later(&self.shards, unit)) }
    }

    /// Where the tokens of a micro-batch are to go in this layer.
    pub(super) fn recorded(&self, batch: &MicroBatch, layer: usize) -> Option<Tensor> {
        self.network.config().experts.as_ref()?.of_layer(batch.recorded.as_ref()?, layer)
    }

    /// A layer over a new graph, of which `input` and what is trained become leaves.
    fn graph(
        &self,
        layer: usize,
        parameters: Vec<Tensor>,
        input: &Tensor,
        batch: &MicroBatch,
        experts: Option<&Tensor>,
    ) -> Result<Graph, TrainError> {
        let _ = input.set_requires_grad(true);
        let parameters = self.leaves(Unit::Layer(layer), parameters);
        let (output, routed) = self.network.layer(layer, &parameters, input, &batch.sequences, experts)?;
        Ok(Graph { parameters, output, probabilities: routed.map(|routed| routed.probabilities) })
    }

    /// The parameters of a unit, of which the trained ones are leaves of a graph.
    fn leaves(&self, unit: Unit, parameters: Vec<Tensor>) -> Vec<Tensor> {
        let of = |(tensor, is_trained)| if is_trained { leaf(&tensor) } else { tensor };
        parameters.into_iter().zip(self.shards.trained(unit)).map(of).collect()
    }

    /// Last norm, logits and loss of the hidden states `[1, n, d]`. Gives back the gradient by them, and that by
    /// the head if it is the embedding.
    fn head<'s>(
        &'s self,
        unit: Gathering<'s>,
        batch: Option<(Tensor, &MicroBatch)>,
        scatters: &mut Scatters<'s>,
        objective: &mut Objective<'_>,
    ) -> Result<Option<(Tensor, Option<Tensor>)>, TrainError> {
        let is_tied = self.network.is_tied();
        let mut parameters = self.leaves(Unit::Head, unit.wait()?);
        if is_tied {
            let embedding = self.shards.gather(Unit::Embedding)?.wait()?;
            parameters.extend(self.leaves(Unit::Embedding, embedding));
        }
        let Some((hidden, batch)) = batch else {
            scatters.start(Unit::Head, Vec::new())?;
            return Ok(None);
        };
        let flat = hidden.flatten(0, 1);
        let [norm, head] = [&parameters[0], &parameters[1]];
        let input = leaf(&flat.index_select(0, &batch.places));
        let normed = self.network.norm(norm, &input);
        let (by_normed, mut by_head) = match self.network.is_critic() {
            false => self.logits(&normed.detach(), head, batch, objective)?,
            true => self.valued(&normed.detach(), head, batch, objective),
        };
        let mut found = partial(&[&normed], &[&input, norm], &[&by_normed.to_kind(normed.kind())])?;
        drop(parameters);
        let by_norm = found.pop().flatten();
        let by_input = found.pop().flatten().unwrap_or_else(|| input.zeros_like());
        let by_embedding = if is_tied { by_head.take() } else { None };
        scatters.start(Unit::Head, vec![by_norm, by_head])?;
        let g = flat.zeros_like().index_copy(0, &batch.places, &by_input).view(hidden.size().as_slice());
        Ok(Some((g, by_embedding)))
    }

    /// What [`Learner::logits`] is for a critic: a value is one number, so all are made at once.
    fn valued(
        &self,
        normed: &Tensor,
        head: &Tensor,
        batch: &MicroBatch,
        objective: &mut Objective<'_>,
    ) -> (Tensor, Option<Tensor>) {
        let _no_grad = tch::no_grad_guard();
        let (learns, head) = (head.requires_grad(), self.network.head(head));
        let normed = normed.to_kind(head.kind());
        let values = self.network.logits(&head, &normed);
        let seen = Seen { scores: numbers(&values.squeeze_dim(1)), entropies: Vec::new() };
        let Slopes { by_score, .. } = (objective.loss)(&batch.targets, &seen);
        let by_values = Tensor::from_slice(&by_score).to_kind(normed.kind()).unsqueeze(1);
        let by_head = learns.then(|| by_values.tr().matmul(&normed));
        (by_values.matmul(&head), by_head)
    }

    /// The gradients of the loss by the normed states `[m, d]` of the targets and by the head.
    ///
    /// Chunk by chunk, so that few logits are alive, and by hand, as autograd would keep five tensors of their size.
    /// Of the logits over the temperature, with the softmax p: the derivative of a log-probability is 1 at its token,
    /// less p, and that of the entropy H is −p (log p + H).
    pub(super) fn logits(
        &self,
        normed: &Tensor,
        head: &Tensor,
        batch: &MicroBatch,
        objective: &mut Objective<'_>,
    ) -> Result<(Tensor, Option<Tensor>), TrainError> {
        let _no_grad = tch::no_grad_guard();
        let chunk = self.layout.logit_rows;
        let (learns, head) = (head.requires_grad(), self.network.head(head));
        let normed = normed.to_kind(head.kind());
        // None of the targets may be in this rank's part of the tokens.
        let (mut parts, mut by_head) = (vec![normed.narrow(0, 0, 0)], None);
        for start in (0..batch.targets.len()).step_by(chunk) {
            let count = chunk.min(batch.targets.len() - start);
            let part = |t: &Tensor| t.narrow(0, start as i64, count as i64);
            let (input, labels) = (part(&normed), part(&batch.labels));
            let mut logits = self.network.logits(&head, &input);
            if self.temperature != 1.0 {
                let _ = logits.g_div_scalar_(self.temperature);
            }
            // In its own place: two of this size would be alive.
            let mut logprobs = logits.log_softmax_int_out(&logits, -1, None);
            let of_targets = of_labels(&logprobs, &labels);
            let (mut softmax, products) = match objective.needs_entropy {
                false => (logprobs.exp_(), None),
                true => {
                    let softmax = logprobs.exp();
                    let products = logprobs.g_mul_(&softmax);
                    (softmax, Some(products))
                }
            };
            let entropies = products.as_ref().map(|products| -products.sum_dim_intlist(-1, true, None));
            let seen = Seen {
                scores: of_targets,
                entropies: entropies
                    .as_ref()
                    .map(|entropies| numbers(&entropies.squeeze_dim(1)))
                    .unwrap_or_default(),
            };
            let Slopes { by_score, by_entropy } =
                (objective.loss)(&batch.targets[start..start + count], &seen);
            let column = |values: &[f64]| {
                (Tensor::from_slice(values) / self.temperature).to_kind(normed.kind()).unsqueeze(1)
            };
            let by_own = column(&by_score);
            let mut by_softmax = by_own.neg();
            let by_entropy =
                by_entropy.zip(products.zip(entropies)).map(|(by_entropy, (mut products, entropies))| {
                    let by_entropy = column(&by_entropy);
                    by_softmax -= &by_entropy * entropies;
                    products.g_mul_(&by_entropy)
                });
            let mut by_logits = softmax.g_mul_(&by_softmax).scatter_add_(1, &labels, &by_own);
            if let Some(by_entropy) = by_entropy {
                by_logits -= by_entropy;
            }
            parts.push(by_logits.matmul(&head));
            if learns {
                by_head = Some(match by_head {
                    None => by_logits.tr().matmul(&input),
                    Some(mut sum) => Tensor::addmm_(&mut sum, &by_logits.tr(), &input),
                });
            }
        }
        Ok((Tensor::cat(&parts, 0), by_head))
    }
}

/// The log-probabilities of the labels `[n, 1]` among those of all tokens `[n, V]`.
pub(super) fn of_labels(logprobs: &Tensor, labels: &Tensor) -> Vec<f64> {
    numbers(&logprobs.gather(1, labels, false).squeeze_dim(1))
}

/// A vector, exactly.
pub(super) fn numbers(vector: &Tensor) -> Vec<f64> {
    Vec::try_from(vector.to_kind(Kind::Double)).expect("a vector of float64")
}

impl MicroBatch {
    /// This rank's part of the rows of `batch`. At the end of the stream may be a few tokens that belong to no row, so
    /// that the parts are equal, and not empty.
    pub(super) fn new(
        rows: &[Row<'_>],
        lengths: &[usize],
        batch: &[usize],
        network: &Network,
        (rank, mesh): (usize, Mesh),
    ) -> Self {
        let (part, attended) = (mesh.part(rank), mesh.attended(rank));
        let tokens: usize = batch.iter().map(|&row| lengths[row]).sum();
        let width = tokens.max(1).next_multiple_of(part.of);
        let share = |place: Place| {
            let share = width / place.of;
            place.index * share..(place.index + 1) * share
        };
        let own = share(part);
        let mut ids = Vec::with_capacity(width);
        let (mut targets, mut places, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for &row in batch {
            let start = ids.len();
            let predicted = rows[row].targets.iter().enumerate();
            for (nth, &position) in predicted.filter(|(_, position)| own.contains(&(start + **position - 1)))
            {
                targets.push(Target { row, nth });
                places.push((start + position - 1 - own.start) as i64);
                labels.push(i64::from(rows[row].tokens[position]));
            }
            ids.extend(rows[row].tokens[..lengths[row]].iter().map(|&token| i64::from(token)));
        }
        ids.resize(width, 0);
        let mut real = vec![1_f32; width];
        real[tokens..].fill(0.0);
        let of_part = |t: &Tensor| t.narrow(1, own.start as i64, own.len() as i64);
        let lengths: Vec<usize> = batch.iter().map(|&row| lengths[row]).collect();
        Self {
            ids: of_part(&Tensor::from_slice(&ids).unsqueeze(0)),
            sequences: network.sequences(&lengths, share(attended)),
            real: of_part(&Tensor::from_slice(&real).view([1, width as i64, 1])),
            targets,
            places: Tensor::from_slice(&places),
            labels: Tensor::from_slice(&labels).unsqueeze(1),
            recorded: network.config().experts.as_ref().and_then(|experts| {
                let of_rows = batch.iter().map(|&row| rows[row].routing).zip(lengths);
                let all: Vec<_> = of_rows.chain([(None, width - tokens)]).collect();
                experts.recorded(&all).map(|recorded| of_part(&recorded))
            }),
        }
    }
}

/// The scatters of a pass, of which one goes on while the next gradient is computed, or with `fsdp.prefetch` false none.
struct Scatters<'s> {
    shards: &'s Shards,
    prefetch: bool,
    last: Option<Scattering<'s>>,
}

impl Scatters<'_> {
    fn start(&mut self, unit: Unit, gradients: Vec<Option<Tensor>>) -> Result<(), TrainError> {
        // One at a time: what two send would be in memory together.
        self.finish()?;
        self.last = self.shards.scatter(unit, gradients)?;
        if self.prefetch { Ok(()) } else { self.finish() }
    }

    fn finish(&mut self) -> Result<(), TrainError> {
        self.last.take().map_or(Ok(()), Scattering::wait)
    }
}

/// For sums over tokens: float32 at least.
fn wide(tensor: &Tensor) -> Tensor {
    if tensor.kind() == Kind::BFloat16 { tensor.to_kind(Kind::Float) } else { tensor.shallow_clone() }
}

/// The same values as a leaf of a new graph.
fn leaf(tensor: &Tensor) -> Tensor {
    tensor.detach().set_requires_grad(true)
}

/// The gradients of `Σ outputs[i] · gradients[i]` by those of `inputs` that are leaves of its graph.
fn partial(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    gradients: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, TrainError> {
    let leaves: Vec<&Tensor> = inputs.iter().copied().filter(|input| input.requires_grad()).collect();
    let mut found = vjp(outputs, &leaves, gradients)?.into_iter();
    Ok(inputs.iter().map(|input| if input.requires_grad() { found.next().flatten() } else { None }).collect())
}
