//! The batch in flight: sequences join and leave between decoding steps.
//!
//! A row of the cache holds all tokens of its sequence but the last, which the next step feeds in. So there is
//! one place where tokens are sampled, and a prompt that another row holds only has to be copied.

use crate::admission::{admit, prefilled};
use crate::engine::{Command, Reply, Shared};
use crate::sample;
use crate::stop::StopText;
use crate::{Generation, GeneratorError, Request, WeightUpdate};
use molt_core::ids::{Token, WeightVersion};
use molt_core::sampling::{Finish, Sampling};
use molt_core::trajectory::{Routing, Sampled};
use molt_model::{Decoder, KvCache, Tokenizer};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;
use tch::{Kind, Tensor};

/// Greedy sampling aside: by less, the logits divide to what is infinite, and one such sequence costs all of them.
const COLDEST: f32 = 0.01;

/// Everything that the engine's thread owns.
pub(crate) struct Batch {
    pub(crate) decoder: Decoder,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) version: WeightVersion,
    pub(crate) cache: KvCache,
    /// Tokens of a sequence at most, prompt included.
    pub(crate) context: usize,
    /// Padded tokens of one prefill at most.
    pub(crate) prefill_tokens: usize,
    pub(crate) waiting: VecDeque<(Request, Reply)>,
    /// Sequence `i` is in row `i` of the cache.
    pub(crate) running: Vec<Sequence>,
    pub(crate) shared: Arc<Shared>,
}

/// A turn being sampled.
pub(crate) struct Sequence {
    /// Prompt and turn.
    tokens: Vec<Token>,
    /// Where tokens of the prompt went when they were first computed.
    routing: Option<Routing>,
    sampled: Vec<Sampled>,
    sampling: Sampling,
    stop: StopText,
    rng: ChaCha8Rng,
    reply: Reply,
}

impl Batch {
    /// Serves `commands` until their senders are gone.
    pub(crate) fn run(&mut self, commands: &Receiver<Command>) {
        let _no_grad = tch::no_grad_guard();
        loop {
            if self.waiting.is_empty() && self.running.is_empty() {
                match commands.recv() {
                    Ok(command) => self.handle(command),
                    Err(_) => return,
                }
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.handle(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let start = Instant::now();
            self.forget_cancelled();
            self.admit();
            self.step();
            self.shared.count_busy(start.elapsed());
        }
    }

    /// A reply that nobody waits for any more is no error.
    fn handle(&mut self, command: Command) {
        match command {
            Command::Generate(request, reply) => match self.check(&request) {
                Err(error) => {
                    let _ = reply.send(Err(error));
                }
                Ok(()) if request.sampling.max_tokens == 0 => {
                    let _ = reply.send(Ok(Generation {
                        sampled: Vec::new(),
                        finish: Finish::Length,
                        routing: None,
                    }));
                }
                Ok(()) => self.waiting.push_back((request, reply)),
            },
            Command::Load(update, reply) => {
                let start = Instant::now();
                let loaded = self.load(&update);
                let changed = loaded.is_ok();
                let _ = reply.send(loaded);
                if changed {
                    self.forget_cancelled();
                    self.refill();
                }
                self.shared.count_busy(start.elapsed());
            }
        }
    }

    fn check(&self, request: &Request) -> Result<(), GeneratorError> {
        let Request { prompt, sampling, routing, .. } = request;
        let vocab = self.decoder.config().vocab_size;
        let invalid = |what: String| Err(GeneratorError::Invalid(what));
        if prompt.len() >= self.context {
            return Err(GeneratorError::PromptTooLong { prompt: prompt.len(), context: self.context });
        }
        if prompt.is_empty() {
            return invalid("the prompt holds no token".into());
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= vocab) {
            return invalid(format!("the prompt holds token {token}, the model knows {vocab}"));
        }
        let temperature = sampling.temperature;
        if !(temperature == 0.0 || temperature.is_finite() && temperature as f32 >= COLDEST) {
            return invalid(format!("a temperature of {temperature}, which is not 0 or at least {COLDEST}"));
        }
        if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return invalid(format!("a top-p of {}, which is not above 0 and at most 1", sampling.top_p));
        }
        if sampling.stop_strings.iter().any(String::is_empty) {
            return invalid("an empty stop string".into());
        }
        let experts = self.decoder.config().experts.as_ref();
        if routing.as_ref().is_some_and(|routing| !experts.is_some_and(|experts| experts.holds(routing))) {
            return invalid("experts that the model does not have".into());
        }
        Ok(())
    }

    /// Takes over new weights whole or not at all. What is in flight goes on under them, once it is refilled.
    fn load(&mut self, update: &WeightUpdate) -> Result<(), GeneratorError> {
        self.decoder.load_parameters(&update.parameters).map_err(|error| GeneratorError::Weights {
            version: update.version,
            detail: error.to_string(),
        })?;
        self.version = update.version;
        Ok(())
    }

    /// Computes the cache of all running sequences anew.
    ///
    /// It starts from an empty cache: a number that is not finite, left behind anywhere, would spread to the
    /// other rows, since what attention masks it still multiplies by zero.
    fn refill(&mut self) {
        self.cache = KvCache::new(&self.decoder, self.cache.rows());
        self.prefill(0..self.running.len());
    }

    /// Frees the place of every turn whose caller is gone.
    fn forget_cancelled(&mut self) {
        self.waiting.retain(|(_, reply)| !reply.is_closed());
        for row in (0..self.running.len()).rev() {
            if self.running[row].reply.is_closed() {
                self.remove(row);
            }
        }
    }

    /// Takes a sequence out; the last one moves into its row.
    fn remove(&mut self, row: usize) -> Sequence {
        let last = self.running.len() - 1;
        self.cache.copy_row(last, row, prefilled(&self.running[last].tokens));
        self.running.swap_remove(row)
    }

    /// Lets waiting turns join.
    fn admit(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        // What goes where it went before is not what another prompt of the same tokens needs.
        let running =
            self.running.iter().map(|s| if s.routing.is_none() { s.tokens.as_slice() } else { &[] });
        let running: Vec<&[Token]> = running.collect();
        let waiting =
            self.waiting.iter().map(|(request, _)| (request.prompt.as_slice(), request.routing.is_none()));
        let plan = admit(waiting, &running, self.cache.rows() - running.len(), self.prefill_tokens);
        let mut joining: Vec<_> = self.waiting.drain(..plan.taken).map(Some).collect();
        let mut join =
            |index: usize| joining[index].take().map(|(request, reply)| Sequence::new(request, reply));

        let first = self.running.len();
        self.running.extend(plan.prefill.iter().filter_map(|index| join(*index)));
        self.prefill(first..self.running.len());
        for (index, row) in plan.copies {
            if let Some(sequence) = join(index) {
                self.cache.copy_row(row, self.running.len(), prefilled(&sequence.tokens));
                self.running.push(sequence);
            }
        }
    }

    /// Fills the cache of `rows` from their first tokens, all but the last of each.
    fn prefill(&mut self, rows: Range<usize>) {
        let mut start = rows.start;
        while start < rows.end {
            let mut end = start;
            let mut longest = 0;
            for row in start..rows.end {
                let padded = longest.max(prefilled(&self.running[row].tokens));
                if end > start && padded * (row + 1 - start) > self.prefill_tokens {
                    break;
                }
                (longest, end) = (padded, row + 1);
            }
            if longest > 0 {
                let mut ids = vec![0i64; (end - start) * longest];
                for (line, sequence) in ids.chunks_mut(longest).zip(&self.running[start..end]) {
                    let known = &sequence.tokens[..prefilled(&sequence.tokens)];
                    line.iter_mut().zip(known).for_each(|(id, token)| *id = i64::from(*token));
                    self.shared.count_prefilled(known.len());
                }
                let ids = Tensor::from_slice(&ids).view([-1, longest as i64]);
                let starts = vec![0; end - start];
                let recorded = self.recorded(start..end, longest);
                let _ =
                    self.decoder.hidden_cached(&ids, &mut self.cache, start..end, &starts, recorded.as_ref());
            }
            start = end;
        }
    }

    /// Samples one token for every running sequence.
    fn step(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let (logprobs, vocab) = self.logprobs();
        let mut broken = false;
        for row in (0..self.running.len()).rev() {
            let sequence = &mut self.running[row];
            let Some(sampled) = sequence.draw(&logprobs[row * vocab..][..vocab], self.version) else {
                broken = true;
                let error =
                    GeneratorError::NotFinite { tokens: sequence.tokens.len(), version: self.version };
                let _ = self.remove(row).reply.send(Err(error));
                continue;
            };
            self.shared.count_generated(1);
            let tokenizer = &self.tokenizer;
            if let Some(finish) =
                sequence.push(sampled, self.context, |tokens| tokenizer.decode(tokens, false))
            {
                let routing = self.routing(row);
                let Sequence { sampled, reply, .. } = self.remove(row);
                let _ = reply.send(Ok(Generation { sampled, finish, routing }));
            }
        }
        if broken {
            self.refill();
        }
    }

    /// The records of `rows` that are of the weights that will compute them.
    fn recorded(&self, rows: Range<usize>, positions: usize) -> Option<Tensor> {
        let routings = self.running[rows].iter().map(|sequence| sequence.routing.as_ref());
        let rows: Vec<(Option<&Routing>, usize)> = routings
            .map(|routing| (routing.filter(|routing| routing.version() == self.version), positions))
            .collect();
        let recorded = self.decoder.config().experts.as_ref()?.recorded(&rows)?;
        Some(recorded.view([rows.len() as i64, positions as i64, -1]))
    }

    /// Where the tokens of a sequence went, as far as they are in the cache.
    fn routing(&self, row: usize) -> Option<Routing> {
        let experts = self.decoder.config().experts.as_ref()?;
        let tokens = prefilled(&self.running[row].tokens);
        Some(Routing::new(self.version, experts.width(), self.cache.experts(row, tokens)))
    }

    /// The log-probabilities of the next token of every row, `[rows * vocab]`, at each row's temperature.
    /// The order of operations is the trainer's.
    fn logprobs(&mut self) -> (Vec<f32>, usize) {
        let rows = self.running.len();
        let starts: Vec<usize> = self.running.iter().map(|s| prefilled(&s.tokens)).collect();
        let last: Vec<i64> =
            self.running.iter().filter_map(|s| s.tokens.last()).map(|t| i64::from(*t)).collect();
        let temperatures: Vec<f32> = self.running.iter().map(Sequence::divisor).collect();
        let ids = Tensor::from_slice(&last).view([-1, 1]);
        let hidden = self.decoder.hidden_cached(&ids, &mut self.cache, 0..rows, &starts, None);
        let logits = self.decoder.logits(&hidden.squeeze_dim(1));
        let temperatures = Tensor::from_slice(&temperatures).view([-1, 1]);
        let logprobs = (logits / temperatures).log_softmax(-1, Kind::Float).contiguous();
        let vocab = self.decoder.config().vocab_size;
        let mut out = vec![0f32; rows * vocab];
        let length = out.len();
        logprobs.copy_data(&mut out, length);
        (out, vocab)
    }
}

impl Sequence {
    fn new(request: Request, reply: Reply) -> Self {
        let Request { prompt, sampling, seed, routing } = request;
        Self {
            tokens: prompt,
            routing,
            sampled: Vec::new(),
            stop: StopText::new(sampling.stop_strings.clone()),
            sampling,
            rng: ChaCha8Rng::seed_from_u64(seed),
            reply,
        }
    }

    /// What divides the logits. Greedy sampling needs no division.
    fn divisor(&self) -> f32 {
        if self.sampling.temperature == 0.0 { 1.0 } else { self.sampling.temperature as f32 }
    }

    /// The next token, from one uniform number; a greedy token has probability 1.
    fn draw(&mut self, logprobs: &[f32], version: WeightVersion) -> Option<Sampled> {
        let (token, logprob) = if self.sampling.temperature == 0.0 {
            (sample::greedy(logprobs)?, 0.0)
        } else {
            // The 53 high bits, as many as an f64 holds.
            let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            sample::draw(logprobs, self.sampling.top_p, uniform)?
        };
        Some(Sampled { token, logprob, version })
    }

    /// Appends a token; says whether the turn ends with it.
    fn push(
        &mut self,
        sampled: Sampled,
        context: usize,
        decode: impl Fn(&[Token]) -> String,
    ) -> Option<Finish> {
        self.tokens.push(sampled.token);
        self.sampled.push(sampled);
        if self.sampling.stop_tokens.contains(&sampled.token) || self.stop.push(sampled.token, decode) {
            return Some(Finish::Stop);
        }
        let spent = self.sampled.len() >= self.sampling.max_tokens || self.tokens.len() >= context;
        spent.then_some(Finish::Length)
    }
}
