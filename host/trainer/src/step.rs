//! One optimiser step: micro-batches forward and backward, then one update.

use crate::error::TrainError;
use crate::loss::PolicyLoss;
use crate::optim::{AdamW, Update};
use crate::ranks::{Order, Orders, Ranks};
use crate::shards::{Gathering, Scattering, Shards, largest, sums};
use molt_core::ids::{Token, WeightVersion};
use molt_core::microbatch::micro_batches;
use molt_core::settings::{Fsdp, Optim};
use molt_core::trajectory::Segment;
use molt_model::{Config, Decoder, Network, Unit};
use molt_torch::{Group, vjp};
use tch::{Device, Kind, Tensor};

/// Logits that are alive at once at most, as a number of elements: 64 MiB in float32, a few times over.
const MAX_LOGITS: usize = 1 << 24;

/// One token sequence of an optimiser step.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    pub tokens: &'a [Token],
    /// Positions in `tokens` that are trained, ascending, each at least 1: a token is predicted from those
    /// before it.
    pub targets: Vec<usize>,
}

/// A trained token: target `nth` of row `row` of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub row: usize,
    pub nth: usize,
}

/// A segment, and the advantage of each of its action tokens.
#[derive(Debug, Clone)]
pub struct PolicyRow<'a> {
    pub segment: &'a Segment,
    pub advantages: Vec<f32>,
}

/// What a policy step saw: sums over its action tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PolicySums {
    pub tokens: usize,
    /// Sum of the token losses over the number of tokens.
    pub loss: f64,
    pub clipped: f64,
    pub ratio: f64,
    pub kl: f64,
    /// Tokens that were sampled by exactly the weights that this step trains.
    pub on_policy: usize,
    /// Sum and maximum of `|log π_train − log π_rollout|` over the on-policy tokens.
    pub gap: f64,
    pub gap_max: f64,
}

impl PolicySums {
    /// Takes in another step: `loss` becomes the mean over the tokens of both.
    pub fn add(&mut self, other: &Self) {
        let tokens = self.tokens + other.tokens;
        let weighted = self.loss * self.tokens as f64 + other.loss * other.tokens as f64;
        self.loss = weighted / tokens.max(1) as f64;
        self.tokens = tokens;
        self.clipped += other.clipped;
        self.ratio += other.ratio;
        self.kl += other.kl;
        self.on_policy += other.on_policy;
        self.gap += other.gap;
        self.gap_max = larger(self.gap_max, other.gap_max);
    }
}

impl PolicySums {
    /// What all ranks saw together, of which this is this rank's part; `tokens` is the number of all already.
    fn over(self, ranks: Option<&Group>) -> Result<Self, TrainError> {
        let own = [self.loss, self.clipped, self.ratio, self.kl, self.on_policy as f64, self.gap];
        let all = sums(ranks, &own)?;
        let most = largest(ranks, &[self.gap_max])?[0];
        let [loss, clipped, ratio, kl, on_policy, gap] = all[..] else { unreachable!("six sums") };
        // A maximum over ranks may lose a NaN; a sum does not.
        let gap_max = if gap.is_nan() { gap } else { most };
        Ok(Self {
            tokens: self.tokens,
            loss,
            clipped,
            ratio,
            kl,
            on_policy: on_policy as usize,
            gap,
            gap_max,
        })
    }
}

/// The larger of two gaps; unlike `f64::max`, a NaN is the largest.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// The model being trained and its optimiser. With ranks, each holds a part: rank 0 leads, and what is asked of its
/// learner the others do too, in [`Learner::follow`], until it is dropped.
///
/// A forward pass walks the chain of the model's units and gathers the parameters of each just before it is
/// needed; no graph of autograd spans two of them. The backward pass walks it the other way, computes a layer
/// again where its graph was not kept, and scatters the gradient of each unit to those who hold it. That is what
/// FSDP2 does with hooks.
#[derive(Debug)]
pub struct Learner {
    network: Network,
    shards: Shards,
    optimiser: AdamW,
    layout: Layout,
    temperature: f64,
    /// What the leader sends its orders by.
    orders: Option<Orders>,
}

/// How the work of a step is cut. None of it changes the result beyond rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Tokens of one forward and backward at most, padding included.
    pub micro_batch_tokens: usize,
    /// The last so many layers keep their parameters and graph for the backward pass; the others are gathered
    /// and computed again.
    pub keep_layers: usize,
    /// Logits that are alive at once at most, as a number of elements.
    pub max_logits: usize,
}

impl Layout {
    /// Every layer keeps its graph unless `fsdp.keep_layers` says how many.
    pub fn new(micro_batch_tokens: usize, fsdp: &Fsdp) -> Self {
        let keep_layers = fsdp.keep_layers.unwrap_or(usize::MAX);
        Self { micro_batch_tokens, keep_layers, max_logits: MAX_LOGITS }
    }
}

/// Rows that go through the model together.
struct MicroBatch {
    /// `[B, T]`
    ids: Tensor,
    targets: Vec<Target>,
    /// Of each target, the place in `B·T` of the token before it, and `[n, 1]` its own id.
    places: Tensor,
    labels: Tensor,
}

/// What a layer leaves for the backward pass.
struct Kept {
    input: Tensor,
    /// Its parameters and output, with the graph between.
    graph: Option<(Vec<Tensor>, Tensor)>,
}

impl Learner {
    /// `temperature` divides the logits; `total_steps` is where the learning-rate schedule ends. The decoder is
    /// the same on all ranks, of which this one leads.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn new(
        decoder: Decoder,
        ranks: Option<Ranks>,
        optim: &Optim,
        total_steps: u64,
        layout: Layout,
        temperature: f64,
    ) -> Result<Self, TrainError> {
        let (group, mut orders) = ranks.map(|ranks| (ranks.group, ranks.orders)).unzip();
        if let Some(orders) = &mut orders {
            orders.send(&Order::Begin { total_steps })?;
        }
        let mut learner = Self::part(decoder, group, optim, total_steps, layout, temperature);
        learner.orders = orders;
        Ok(learner)
    }

    /// What the leader's learner does, on another rank, until the leader's is dropped.
    ///
    /// # Errors
    /// As those of the leader, and if the leader is lost.
    pub fn follow(
        decoder: Decoder,
        ranks: Ranks,
        optim: &Optim,
        layout: Layout,
        temperature: f64,
        loss: Option<&PolicyLoss>,
    ) -> Result<(), TrainError> {
        let Ranks { group, mut orders } = ranks;
        let Order::Begin { total_steps } = orders.receive()? else {
            return Err(TrainError::Order("the first is not the beginning".to_owned()));
        };
        let mut learner = Self::part(decoder, Some(group), optim, total_steps, layout, temperature);
        let out_of_turn = |what: &str| TrainError::Order(format!("{what} comes out of turn"));
        loop {
            match orders.receive()? {
                Order::Policy(rows) => {
                    let loss = loss.ok_or_else(|| out_of_turn("a step of the policy"))?;
                    let rows: Vec<PolicyRow<'_>> = rows
                        .iter()
                        .map(|(segment, advantages)| PolicyRow { segment, advantages: advantages.clone() })
                        .collect();
                    learner.policy_step(&rows, loss)?;
                }
                Order::Supervised(rows) => {
                    let rows: Vec<Row<'_>> =
                        rows.iter().map(|(tokens, at)| Row { tokens, targets: at.clone() }).collect();
                    learner.supervised_step(&rows)?;
                }
                // Only the leader keeps them; here no more than a unit is whole at a time.
                Order::Parameters => {
                    for unit in learner.network.units() {
                        learner.shards.gather(unit)?.wait()?;
                    }
                }
                Order::Begin { .. } => return Err(out_of_turn("the beginning")),
                Order::End => return Ok(()),
            }
        }
    }

    /// This rank's part. Every rank calls each method together, with the same arguments.
    fn part(
        decoder: Decoder,
        group: Option<Group>,
        optim: &Optim,
        total_steps: u64,
        layout: Layout,
        temperature: f64,
    ) -> Self {
        let (network, parameters) = decoder.into_parts();
        let shards = Shards::new(&network, parameters, group);
        let optimiser = AdamW::new(shards.parameters(&network), optim, total_steps);
        Self { network, shards, optimiser, layout, temperature, orders: None }
    }

    /// The leader's errors name the ranks that do not answer.
    fn explained(&self, error: TrainError) -> TrainError {
        match &self.orders {
            Some(orders) => orders.explained(error),
            None => error,
        }
    }

    fn order(&mut self, order: impl FnOnce() -> Order) -> Result<(), TrainError> {
        self.orders.as_mut().map_or(Ok(()), |orders| orders.send(&order()))
    }

    pub fn config(&self) -> &Config {
        self.network.config()
    }

    /// Copies of all parameters, whole and sorted by name.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn parameters(&mut self) -> Result<Vec<(String, Tensor)>, TrainError> {
        self.order(|| Order::Parameters)?;
        let whole = || {
            let mut all = Vec::new();
            for unit in self.network.units() {
                let named = self.shards.gather(unit)?.named()?;
                all.extend(named.into_iter().map(|(name, tensor)| (name, tensor.copy())));
            }
            all.sort_by(|(a, _), (b, _)| a.cmp(b));
            Ok(all)
        };
        whole().map_err(|error| self.explained(error))
    }

    /// The version of the weights as they are now.
    pub fn version(&self) -> WeightVersion {
        WeightVersion(self.optimiser.steps())
    }

    /// One step of the policy gradient over `rows`.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub fn policy_step(
        &mut self,
        rows: &[PolicyRow<'_>],
        loss: &PolicyLoss,
    ) -> Result<(PolicySums, Update), TrainError> {
        self.order(|| {
            let own = |row: &PolicyRow<'_>| (row.segment.clone(), row.advantages.clone());
            Order::Policy(rows.iter().map(own).collect())
        })?;
        let sums = self.policy_gradient(rows, loss).map_err(|error| self.explained(error))?;
        Ok((sums, self.update()?))
    }

    /// One step of maximum likelihood over the targets of `rows`. Returns the mean of `−log π` over them too.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub fn supervised_step(&mut self, rows: &[Row<'_>]) -> Result<(f64, Update), TrainError> {
        self.order(|| {
            Order::Supervised(rows.iter().map(|row| (row.tokens.to_vec(), row.targets.clone())).collect())
        })?;
        let tokens: usize = rows.iter().map(|row| row.targets.len()).sum();
        let mut mean = 0.0;
        self.gradient(rows, |_, logprobs| {
            let loss = -logprobs.sum(logprobs.kind()) / tokens as f64;
            mean += loss.double_value(&[]);
            loss
        })
        .map_err(|error| self.explained(error))?;
        let mean = sums(self.shards.ranks(), &[mean])?;
        Ok((mean[0], self.update()?))
    }

    fn update(&mut self) -> Result<Update, TrainError> {
        let ranks = self.shards.ranks();
        self.optimiser.update(|squares| Ok(sums(ranks, &[squares])?[0]))
    }

    /// The gradient of the policy loss over all action tokens of `rows`.
    fn policy_gradient(&self, rows: &[PolicyRow<'_>], loss: &PolicyLoss) -> Result<PolicySums, TrainError> {
        let layout: Vec<Row<'_>> = rows
            .iter()
            .map(|row| Row {
                tokens: row.segment.tokens(),
                targets: row.segment.actions().iter().map(|action| action.position).collect(),
            })
            .collect();
        let tokens = layout.iter().map(|row| row.targets.len()).sum();
        let version = self.version();
        let mut own = PolicySums { tokens, ..PolicySums::default() };
        self.gradient(&layout, |targets, logprobs| {
            let actions: Vec<_> = targets.iter().map(|t| rows[t.row].segment.actions()[t.nth]).collect();
            let sampled: Vec<f32> = actions.iter().map(|action| action.logprob).collect();
            let advantages: Vec<f32> = targets.iter().map(|t| rows[t.row].advantages[t.nth]).collect();
            let (sampled, advantages) = (Tensor::from_slice(&sampled), Tensor::from_slice(&advantages));
            let output = loss.compute(logprobs, &sampled, &advantages, tokens as f64);
            let logprobs = logprobs.detach().to_kind(Kind::Double);
            let logprobs = Vec::<f64>::try_from(logprobs).expect("a vector of float64");
            for (action, logprob) in actions.iter().zip(logprobs).filter(|(a, _)| a.version == version) {
                let gap = (logprob - f64::from(action.logprob)).abs();
                own.on_policy += 1;
                own.gap += gap;
                own.gap_max = larger(own.gap_max, gap);
            }
            own.loss += output.loss.double_value(&[]);
            own.clipped += output.clipped;
            own.ratio += output.ratio;
            own.kl += output.kl;
            output.loss
        })?;
        own.over(self.shards.ranks())
    }

    /// Runs every row through the model and makes the gradient that of the sum of `loss`. `loss` gets targets and
    /// their log-probabilities, shape `[n]`, each target once over all ranks, and returns a scalar: their share of
    /// a sum over all targets, however they are split.
    fn gradient(
        &self,
        rows: &[Row<'_>],
        mut loss: impl FnMut(&[Target], &Tensor) -> Tensor,
    ) -> Result<(), TrainError> {
        self.shards.zero_grad();
        // What follows the last target predicts nothing that is trained.
        let lengths: Vec<usize> = rows.iter().map(|row| row.targets.last().copied().unwrap_or(0)).collect();
        let trained: Vec<usize> = (0..rows.len()).filter(|&row| lengths[row] > 0).collect();
        let of_trained: Vec<usize> = trained.iter().map(|&row| lengths[row]).collect();
        let batches = micro_batches(&of_trained, self.layout.micro_batch_tokens);
        let (rank, size) = self.shards.ranks().map_or((0, 1), |ranks| (ranks.rank(), ranks.size()));
        // Longest first, dealt in turn: at a time, the ranks have micro-batches of about the same size. One that
        // has none left still gathers and scatters with the others.
        for round in batches.chunks(size) {
            let batch = round.get(rank).map(|batch| {
                let batch: Vec<usize> = batch.iter().map(|&index| trained[index]).collect();
                MicroBatch::new(rows, &lengths, &batch)
            });
            self.pass(batch.as_ref(), &mut loss)?;
        }
        Ok(())
    }

    /// One forward and backward, whose gradient is added to what the shards have.
    fn pass(
        &self,
        batch: Option<&MicroBatch>,
        loss: &mut impl FnMut(&[Target], &Tensor) -> Tensor,
    ) -> Result<(), TrainError> {
        let layers = self.network.config().num_hidden_layers;
        let is_kept = |layer: usize| layer + self.layout.keep_layers.min(layers) >= layers;
        let rotation = batch.map(|batch| {
            let tokens = batch.ids.size()[1];
            self.network.rotation(&Tensor::arange(tokens, (Kind::Float, Device::Cpu)).unsqueeze(0))
        });
        let run = batch.zip(rotation.as_ref());

        let embedding = self.shards.gather(Unit::Embedding)?.wait()?;
        let mut next = self.shards.gather(Unit::Layer(0))?;
        let mut x = run.map(|(batch, _)| tch::no_grad(|| self.network.embed(&embedding[0], &batch.ids)));
        drop(embedding);
        let mut kept = Vec::with_capacity(layers);
        for layer in 0..layers {
            let parameters = next.wait()?;
            next =
                self.shards.gather(if layer + 1 < layers { Unit::Layer(layer + 1) } else { Unit::Head })?;
            let Some((input, (_, rotation))) = x.take().zip(run) else { continue };
            let graph = if is_kept(layer) {
                let graph = self.graph(parameters, &input, rotation);
                x = Some(graph.1.detach());
                Some(graph)
            } else {
                x = Some(tch::no_grad(|| self.network.layer(&parameters, &input, rotation)));
                None
            };
            kept.push(Kept { input, graph });
        }

        let mut scatters = Scatters { shards: &self.shards, last: None };
        let mut g = self.head(next, x.zip(batch), &mut scatters, loss)?;

        let again = |layer: Option<usize>| {
            layer
                .filter(|&layer| !is_kept(layer))
                .map(|layer| self.shards.gather(Unit::Layer(layer)))
                .transpose()
        };
        let mut next = again(layers.checked_sub(1))?;
        for layer in (0..layers).rev() {
            let gathered = next.take().map(Gathering::wait).transpose()?;
            next = again(layer.checked_sub(1))?;
            let gradients = match (kept.pop(), g.take(), run) {
                (Some(Kept { input, graph }), Some(gradient), Some((_, rotation))) => {
                    let (parameters, output) = match (graph, gathered) {
                        (Some(graph), _) => graph,
                        (None, Some(parameters)) => self.graph(parameters, &input, rotation),
                        (None, None) => unreachable!("a layer was kept or is gathered again"),
                    };
                    let inputs: Vec<&Tensor> = std::iter::once(&input).chain(&parameters).collect();
                    let mut found = vjp(&[&output], &inputs, &[&gradient])?;
                    let own = found.split_off(1);
                    g = found.pop().flatten();
                    own
                }
                _ => Vec::new(),
            };
            scatters.start(Unit::Layer(layer), &gradients)?;
        }
        let embedding = run.zip(g).map(|((batch, _), gradient)| {
            let vocabulary = self.network.config().vocab_size as i64;
            Tensor::embedding_dense_backward(&gradient, &batch.ids, vocabulary, -1, false)
        });
        scatters.start(Unit::Embedding, &[embedding])?;
        scatters.finish()
    }

    /// A layer's parameters and output, with the graph between; `input` becomes a leaf of it.
    fn graph(
        &self,
        parameters: Vec<Tensor>,
        input: &Tensor,
        rotation: &molt_model::Rotation,
    ) -> (Vec<Tensor>, Tensor) {
        let _ = input.set_requires_grad(true);
        let parameters: Vec<Tensor> = parameters.iter().map(leaf).collect();
        let output = self.network.layer(&parameters, input, rotation);
        (parameters, output)
    }

    /// Last norm, logits and loss of the hidden states `[B, T, d]`. Gives back the gradient by them.
    ///
    /// The head is differentiated chunk by chunk, so that only one chunk of logits is alive.
    fn head<'s>(
        &'s self,
        unit: Gathering<'s>,
        batch: Option<(Tensor, &MicroBatch)>,
        scatters: &mut Scatters<'s>,
        loss: &mut impl FnMut(&[Target], &Tensor) -> Tensor,
    ) -> Result<Option<Tensor>, TrainError> {
        let is_tied = self.network.config().tie_word_embeddings;
        let mut parameters = unit.wait()?;
        if is_tied {
            parameters.extend(self.shards.gather(Unit::Embedding)?.wait()?);
        }
        let (mut gradients, mut gradient) = (vec![None, None], None);
        if let Some((hidden, batch)) = batch {
            let [norm, head] = [leaf(&parameters[0]), leaf(&parameters[1])];
            let flat = hidden.flatten(0, 1);
            let rows = flat.index_select(0, &batch.places);
            let chunk = (self.layout.max_logits / self.network.config().vocab_size).max(1);
            let mut parts = Vec::new();
            for start in (0..batch.targets.len()).step_by(chunk) {
                let count = chunk.min(batch.targets.len() - start);
                let part = |t: &Tensor| t.narrow(0, start as i64, count as i64);
                let input = leaf(&part(&rows));
                let logits = self.network.logits(&head, &self.network.norm(&norm, &input)) / self.temperature;
                let logprobs =
                    logits.log_softmax(-1, None).gather(1, &part(&batch.labels), false).squeeze_dim(1);
                let value = loss(&batch.targets[start..start + count], &logprobs);
                let found = vjp(&[&value], &[&input, &norm, &head], &[&value.ones_like()])?;
                let mut found = found.into_iter();
                parts.push(found.next().flatten().unwrap_or_else(|| input.zeros_like()));
                for (sum, found) in gradients.iter_mut().zip(found) {
                    add(sum, found);
                }
            }
            let g = flat.zeros_like().index_copy(0, &batch.places, &Tensor::cat(&parts, 0));
            gradient = Some(g.view(hidden.size().as_slice()));
        }
        drop(parameters);
        let head = if is_tied { gradients.pop().flatten() } else { None };
        scatters.start(Unit::Head, &gradients)?;
        if is_tied {
            scatters.start(Unit::Embedding, &[head])?;
        }
        Ok(gradient)
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        // However the run ended, the others need not wait; if they cannot be told, they are lost anyway.
        let _ = self.order(|| Order::End);
    }
}

impl MicroBatch {
    /// The rows of `batch`, the longest of which is first, padded on the right to its length.
    fn new(rows: &[Row<'_>], lengths: &[usize], batch: &[usize]) -> Self {
        let width = lengths[batch[0]];
        let mut ids = vec![0_i64; batch.len() * width];
        let (mut targets, mut places, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for (line, &row) in batch.iter().enumerate() {
            let tokens = rows[row].tokens;
            for (id, &token) in ids[line * width..].iter_mut().zip(&tokens[..lengths[row]]) {
                *id = i64::from(token);
            }
            for (nth, &position) in rows[row].targets.iter().enumerate() {
                targets.push(Target { row, nth });
                places.push((line * width + position - 1) as i64);
                labels.push(i64::from(tokens[position]));
            }
        }
        Self {
            ids: Tensor::from_slice(&ids).view([batch.len() as i64, width as i64]),
            targets,
            places: Tensor::from_slice(&places),
            labels: Tensor::from_slice(&labels).unsqueeze(1),
        }
    }
}

/// The scatters of a pass, of which one goes on while the next gradient is computed.
struct Scatters<'s> {
    shards: &'s Shards,
    last: Option<Scattering<'s>>,
}

impl Scatters<'_> {
    fn start(&mut self, unit: Unit, gradients: &[Option<Tensor>]) -> Result<(), TrainError> {
        let next = self.shards.scatter(unit, gradients)?;
        self.last.take().map_or(Ok(()), Scattering::wait)?;
        self.last = next;
        Ok(())
    }

    fn finish(self) -> Result<(), TrainError> {
        self.last.map_or(Ok(()), Scattering::wait)
    }
}

/// The same values as a leaf of a new graph.
fn leaf(tensor: &Tensor) -> Tensor {
    tensor.detach().set_requires_grad(true)
}

/// Adds what there is.
fn add(sum: &mut Option<Tensor>, value: Option<Tensor>) {
    match (sum.as_mut(), value) {
        (Some(sum), Some(value)) => {
            let _ = sum.g_add_(&value);
        }
        (None, Some(value)) => *sum = Some(value),
        (_, None) => {}
    }
}

#[cfg(test)]
mod ranks;
#[cfg(test)]
mod tests;
