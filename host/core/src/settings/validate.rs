//! What can be wrong with settings that needs no I/O to see.

mod access;
mod algo;

use super::*;
use std::collections::BTreeSet;
use std::path::Path;

/// The problems so far.
pub(super) type Found = Vec<Problem>;

impl TrainSettings {
    /// Every problem of these settings; empty if they can be run.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Found::new();
        self.run.check(&mut found);
        required(&mut found, "model.path", &self.model.path, "a Hugging Face model directory");
        required(&mut found, "data.prompts", &self.data.prompts, "a file with one JSON object per line");
        count(&mut found, "data.passes", self.data.passes);
        self.data.curriculum.check(&mut found, self.data.passes);
        name(&mut found, "data.prompt_key", &self.data.prompt_key);
        name(&mut found, "data.label_key", &self.data.label_key);
        self.agent.check(&mut found);
        self.reward.check(&mut found);
        if self.teacher.model.is_none() {
            scored(&mut found, &self.agent, &self.reward.name);
        }
        self.check_overlong(&mut found);
        self.plugins.check(&mut found);
        self.judge.check(&mut found, &self.plugins);
        self.rollout.check(&mut found);
        self.generator.check(&mut found);
        self.algo.check(&mut found);
        self.check_models(&mut found);
        self.train.check(&mut found);
        self.replay.check(&mut found, self.train.sync);
        self.fsdp.check(&mut found);
        self.moe.check(&mut found);
        self.optim.check(&mut found, "optim");
        self.lora.check(&mut found);
        self.ckpt.check(&mut found);
        self.eval.check(&mut found);
        count(&mut found, "log.trajectories_every", self.log.trajectories_every);
        self.check_policy_version(&mut found);

        if self.eval.prompts.is_none() {
            for key in self.eval.given() {
                let sentence = "is set, and does nothing without eval.prompts: name what to evaluate on";
                say(&mut found, &format!("eval.{key}"), sentence);
            }
        }
        if self.train.eval_every.is_some() && self.eval.prompts.is_none() {
            say(&mut found, "train.eval_every", "is set, so eval.prompts must name what to evaluate on");
        }
        if let Some(metric) = &self.train.keep_best {
            let k_of = |name: &str| metric.strip_prefix(name).and_then(|k| k.parse().ok());
            let given = |k: &u32| self.eval.k.contains(k);
            let known = ["accuracy", "reward_mean"].contains(&metric.as_str())
                || k_of("pass@").is_some_and(|k| k == 1 || given(&k))
                || k_of("maj@").is_some_and(|k| k > 1 && given(&k));
            if !known {
                let sentence = format!(
                    "is {metric}, but must be accuracy, reward_mean, or pass@K or maj@K with a K of eval.k"
                );
                say(&mut found, "train.keep_best", sentence);
            }
            if self.eval.prompts.is_none() {
                say(&mut found, "train.keep_best", "is set, so eval.prompts must name what to evaluate on");
            }
        }
        let steps = [
            ("train.steps_per_batch", self.train.steps_per_batch),
            ("critic.steps_per_batch", self.critic.steps_per_batch),
        ];
        let prompts = self.rollout.batch_size;
        for (key, steps) in steps.into_iter().filter(|(_, steps)| *steps > prompts) {
            let sentence =
                format!("is {steps}, more than the {prompts} prompts of a batch (rollout.batch_size)");
            say(&mut found, key, sentence);
        }
        found
    }

    /// A penalty that begins before the first token would be one for every rollout.
    fn check_overlong(&self, found: &mut Found) {
        let most = self.rollout.max_new_tokens;
        if let Some(cache) = self.reward.overlong_cache.filter(|cache| !(1..=most).contains(cache)) {
            let sentence = format!("is {cache}, but must be from 1 to rollout.max_new_tokens, {most}");
            say(found, "reward.overlong_cache", sentence);
        }
        if self.reward.overlong_cache.is_some() != self.reward.overlong_penalty.is_some() {
            let sentence = "and reward.overlong_cache go together: how much is subtracted at the limit, and over how \
                            many tokens before it";
            say(found, "reward.overlong_penalty", sentence);
        }
    }

    /// Whether tokens may be trained that were sampled by older weights than those that training on their batch begins with.
    pub fn trains_older_tokens(&self) -> bool {
        let waits = self.train.sync || self.train.async_queue_size == 0;
        !waits || self.replay.groups_per_batch > 0
    }

    /// Invariant: tokens of older weights are trained only with a correction for their age.
    fn check_policy_version(&self, found: &mut Found) {
        let is_replayed = self.replay.groups_per_batch > 0;
        let is_corrected = self.algo.correction.level != CorrectionLevel::Off;
        if self.algo.importance == Importance::Old && self.trains_older_tokens() && !is_corrected {
            let sentence = format!(
                "is old, but with {} tokens of older weights are trained, which needs a correction: set \
                 algo.correction.level, or use algo.importance sampled, or train.sync without replay",
                match is_replayed {
                    true => "replay.groups_per_batch".to_owned(),
                    false => format!("train.async_queue_size {}", self.train.async_queue_size),
                }
            );
            say(found, "algo.importance", sentence);
        }
        if self.train.sync && self.train.async_queue_size > 1 {
            let sentence = format!(
                "cannot go with train.async_queue_size {}: a synchronous run never generates ahead; leave one \
                 of them out",
                self.train.async_queue_size
            );
            say(found, "train.sync", sentence);
        }
    }
}

impl SftSettings {
    /// Every problem of these settings; empty if they can be run.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Found::new();
        self.run.check(&mut found);
        required(&mut found, "model.path", &self.model.path, "a Hugging Face model directory");
        let data = &self.data;
        let what = "is required: a file with one JSON object per line, or several";
        if data.conversations.is_empty() || data.conversations.iter().any(|path| is_empty(path)) {
            say(&mut found, "data.conversations", what);
        }
        let (files, weights) = (data.conversations.len(), data.weight.len());
        if weights > 0 && weights != files {
            let sentence = format!(
                "has length {weights}, but data.conversations has length {files}: give one weight for each, or none for 1 each"
            );
            say(&mut found, "data.weight", sentence);
        }
        for weight in &data.weight {
            number(
                &mut found,
                "data.weight",
                *weight,
                |w| w > 0.0 && w <= 1e6,
                "above 0 and at most 1000000",
            );
        }
        name(&mut found, "data.prompt_key", &data.prompt_key);
        name(&mut found, "data.reply_key", &data.reply_key);
        count(&mut found, "sft.passes", self.sft.passes);
        count(&mut found, "sft.batch_size", self.sft.batch_size as u64);
        count(&mut found, "sft.max_tokens_per_rank", self.sft.max_tokens_per_rank as u64);
        context(&mut found, "sft.max_context", self.sft.max_context);
        maybe_count(&mut found, "sft.max_steps", self.sft.max_steps);
        maybe_count(&mut found, "eval.every", self.eval.every);
        if self.eval.conversations.as_deref().is_some_and(is_empty) {
            say(&mut found, "eval.conversations", "is empty: name a file, or leave it out");
        }
        if self.eval.every.is_some() && self.eval.conversations.is_none() {
            say(
                &mut found,
                "eval.every",
                "is set, so eval.conversations must name what the loss is computed on",
            );
        }
        self.fsdp.check(&mut found);
        self.moe.check(&mut found);
        self.optim.check(&mut found, "optim");
        self.lora.check(&mut found);
        self.ckpt.check(&mut found);
        found
    }
}

impl EvalSettings {
    /// Every problem of these settings; empty if they can be run.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Found::new();
        self.run.check(&mut found);
        required(&mut found, "model.path", &self.model.path, "a Hugging Face model directory");
        name(&mut found, "data.prompt_key", &self.data.prompt_key);
        name(&mut found, "data.label_key", &self.data.label_key);
        self.agent.check(&mut found);
        rewards(&mut found, &self.reward.name, &self.reward.weight);
        scored(&mut found, &self.agent, &self.reward.name);
        self.plugins.check(&mut found);
        self.judge.check(&mut found, &self.plugins);
        self.generator.check(&mut found);
        if self.eval.prompts.is_none() {
            say(&mut found, "eval.prompts", "is required: a file with one JSON object per line");
        }
        self.eval.check(&mut found);
        found
    }
}

impl Run {
    fn check(&self, found: &mut Found) {
        if self.dir.as_deref().is_some_and(is_empty) {
            say(found, "run.dir", "is empty: name a directory, or leave it out");
        }
        // TOML has no larger integer, and the settings must be readable from the run directory.
        if i64::try_from(self.seed).is_err() {
            say(found, "run.seed", format!("is {}, but at most {} is allowed", self.seed, i64::MAX));
        }
    }
}

impl Agent {
    fn check(&self, found: &mut Found) {
        name(found, "agent.name", &self.name);
        count(found, "agent.max_turns", self.max_turns.into());
    }
}

impl Reward {
    fn check(&self, found: &mut Found) {
        rewards(found, &self.name, &self.weight);
        // Estimators see rewards as f32.
        let finite = |x: f64| (x as f32).is_finite();
        number(found, "reward.lowest", self.lowest, finite, "a finite number of 32 bits");
        for (key, bound) in [("reward.clip_low", self.clip_low), ("reward.clip_high", self.clip_high)] {
            if let Some(bound) = bound {
                number(found, key, bound, finite, "a finite number of 32 bits");
            }
        }
        if let (Some(low), Some(high)) = (self.clip_low, self.clip_high)
            && low >= high
        {
            say(found, "reward.clip_low", format!("is {low}, but must be below reward.clip_high, {high}"));
        }
        if let Some(penalty) = self.overlong_penalty {
            number(found, "reward.overlong_penalty", penalty, |p| p > 0.0 && finite(p), "above 0");
        }
    }
}

/// Refuses rollouts that nothing scores. Only an agent of another name may give a reward itself.
fn scored(found: &mut Found, agent: &Agent, rewards: &[String]) {
    if !agent.is_scored(rewards) {
        let sentence = format!(
            "is required with agent.name {}, which gives no reward: name a reward plugin, such as math",
            agent.name
        );
        say(found, "reward.name", sentence);
    }
}

/// The names of reward plugins and their weights.
fn rewards(found: &mut Found, names: &[String], weights: &[f64]) {
    if names.iter().any(String::is_empty) {
        say(found, "reward.name", "holds an empty name");
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        say(found, "reward.name", format!("holds {twice} twice; give it once, with the sum of the weights"));
    }
    if !weights.is_empty() && weights.len() != names.len() {
        let sentence = format!(
            "has length {}, but reward.name has length {}: give one weight for each, or none for 1 each",
            weights.len(),
            names.len()
        );
        say(found, "reward.weight", sentence);
    }
    for weight in weights {
        number(found, "reward.weight", *weight, |w| (w as f32).is_finite(), "finite numbers of 32 bits");
    }
}

impl Rollout {
    fn check(&self, found: &mut Found) {
        count(found, "rollout.batch_size", self.batch_size as u64);
        count(found, "rollout.samples_per_prompt", self.samples_per_prompt.into());
        // At temperature 0 a token has no probability to take a gradient of.
        number(
            found,
            "rollout.temperature",
            self.temperature,
            |t| (0.01..=100.0).contains(&t),
            "from 0.01 to 100",
        );
        count(found, "rollout.max_new_tokens", self.max_new_tokens as u64);
        context(found, "rollout.max_context", self.max_context);
        stops(found, "rollout.stop", &self.stop);
        let samples = self.samples_per_prompt;
        if let Some(least) = self.min_group.filter(|least| !(1..=samples).contains(least)) {
            let sentence = format!("is {least}, but must be from 1 to rollout.samples_per_prompt, {samples}");
            say(found, "rollout.min_group", sentence);
        }
        self.filter.check(found, samples);
    }
}

impl Generator {
    fn check(&self, found: &mut Found) {
        count(found, "generator.max_sequences", self.max_sequences as u64);
        count(found, "generator.prefill_tokens", self.prefill_tokens as u64);
    }
}

impl Train {
    fn check(&self, found: &mut Found) {
        count(found, "train.steps_per_batch", self.steps_per_batch as u64);
        count(found, "train.epochs_per_batch", self.epochs_per_batch as u64);
        count(found, "train.max_tokens_per_rank", self.max_tokens_per_rank as u64);
        maybe_count(found, "train.max_steps", self.max_steps);
        if let Some(gap) = self.max_logprob_gap {
            number(found, "train.max_logprob_gap", gap, |g| g > 0.0, "above 0");
        }
        maybe_count(found, "train.eval_every", self.eval_every);
    }
}

impl Fsdp {
    fn check(&self, found: &mut Found) {
        count(found, "fsdp.tensor_parallel", self.tensor_parallel as u64);
        count(found, "fsdp.context_parallel", self.context_parallel as u64);
        count(found, "fsdp.expert_parallel", self.expert_parallel as u64);
        count(found, "fsdp.timeout_s", self.timeout_s);
    }
}

impl Optim {
    /// `section` is where these settings are.
    pub(super) fn check(&self, found: &mut Found, section: &str) {
        let key = |name: &str| format!("{section}.{name}");
        number(found, &key("lr"), self.lr, |x| x > 0.0, "above 0");
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            number(found, &key(name), beta, |b| (0.0..1.0).contains(&b), "at least 0 and below 1");
        }
        number(found, &key("eps"), self.eps, |x| x > 0.0, "above 0");
        number(found, &key("weight_decay"), self.weight_decay, |x| x >= 0.0, "at least 0");
        number(found, &key("max_grad_norm"), self.max_grad_norm, |x| x >= 0.0, "at least 0");
        rate(found, &key("min_lr_ratio"), self.min_lr_ratio);
        if self.freeze.iter().any(String::is_empty) {
            say(found, &key("freeze"), "holds an empty pattern, which is in every name");
        }
    }
}

impl Ckpt {
    fn check(&self, found: &mut Found) {
        if self.every == Some(0) {
            say(found, "ckpt.every", "is 0, but at least 1 is needed; leave it out for no checkpoints");
        }
        if self.load.as_deref().is_some_and(is_empty) {
            say(found, "ckpt.load", "is empty: name a run directory or a checkpoint, or leave it out");
        }
        count(found, "ckpt.keep", self.keep as u64);
        if let Some(gib) = self.keep_gib {
            number(found, "ckpt.keep_gib", gib, |gib| gib > 0.0, "above 0");
        }
        let unused = [
            ("ckpt.keep", self.keep != Self::default().keep),
            ("ckpt.keep_gib", self.keep_gib.is_some()),
            ("ckpt.export", self.export),
        ];
        for (key, _) in unused.into_iter().filter(|(_, set)| *set && self.every.is_none()) {
            say(found, key, "is set, so ckpt.every must say how often a checkpoint is written");
        }
    }
}

impl Lora {
    fn check(&self, found: &mut Found) {
        maybe_count(found, "lora.rank", self.rank.map(|rank| rank as u64));
        if let Some(alpha) = self.alpha {
            number(found, "lora.alpha", alpha, |a| a > 0.0, "above 0");
        }
        let is_set = [("lora.alpha", self.alpha.is_some()), ("lora.targets", !self.targets.is_empty())];
        for (key, _) in is_set.into_iter().filter(|(_, is_set)| *is_set && self.rank.is_none()) {
            say(found, key, "is set, and does nothing without lora.rank: give a rank, such as 16");
        }
    }
}

impl Eval {
    /// What is not as it is by default.
    fn given(&self) -> Vec<&'static str> {
        let usual = Self::default();
        let keys = [
            ("samples", self.samples != usual.samples),
            ("k", self.k != usual.k),
            ("temperature", self.temperature != usual.temperature),
            ("top_p", self.top_p != usual.top_p),
            ("max_new_tokens", self.max_new_tokens != usual.max_new_tokens),
            ("max_context", self.max_context.is_some()),
            ("stop", !self.stop.is_empty()),
        ];
        keys.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }

    fn check(&self, found: &mut Found) {
        if self.prompts.as_deref().is_some_and(is_empty) {
            say(found, "eval.prompts", "is empty: name a file, or leave it out");
        }
        count(found, "eval.samples", self.samples.into());
        if self.k.is_empty() {
            say(found, "eval.k", "is empty: give at least one k, such as 1");
        }
        for k in &self.k {
            if *k == 0 || *k > self.samples {
                let sentence =
                    format!("holds {k}, but each k is from 1 to eval.samples, which is {}", self.samples);
                say(found, "eval.k", sentence);
            }
        }
        let sampled = |t: f64| t == 0.0 || (0.01..=100.0).contains(&t);
        number(found, "eval.temperature", self.temperature, sampled, "0, or from 0.01 to 100");
        number(found, "eval.top_p", self.top_p, |p| p > 0.0 && p <= 1.0, "above 0 and at most 1");
        count(found, "eval.max_new_tokens", self.max_new_tokens as u64);
        context(found, "eval.max_context", self.max_context);
        stops(found, "eval.stop", &self.stop);
    }
}

pub(super) fn say(found: &mut Found, key: &str, sentence: impl Into<String>) {
    found.push(Problem::Invalid { key: key.to_owned(), sentence: sentence.into() });
}

pub(super) fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

fn required(found: &mut Found, key: &str, path: &Path, what: &str) {
    if is_empty(path) {
        say(found, key, format!("is required: {what}"));
    }
}

fn name(found: &mut Found, key: &str, value: &str) {
    if value.is_empty() {
        say(found, key, "is empty: it must name something");
    }
}

pub(super) fn count(found: &mut Found, key: &str, value: u64) {
    if value == 0 {
        say(found, key, "is 0, but at least 1 is needed");
    }
}

fn maybe_count(found: &mut Found, key: &str, value: Option<u64>) {
    if value == Some(0) {
        say(found, key, "is 0, but at least 1 is needed; leave it out for no bound");
    }
}

/// One token to condition on and one to sample are the least.
fn context(found: &mut Found, key: &str, value: Option<usize>) {
    if let Some(tokens @ 0..=1) = value {
        say(
            found,
            key,
            format!("is {tokens}, but at least 2 tokens are needed; leave it out for the model's own"),
        );
    }
}

fn rate(found: &mut Found, key: &str, value: f64) {
    number(found, key, value, |r| (0.0..=1.0).contains(&r), "from 0 to 1");
}

/// Not a number and infinities are always refused.
pub(super) fn number(found: &mut Found, key: &str, value: f64, good: impl Fn(f64) -> bool, range: &str) {
    if !value.is_finite() || !good(value) {
        say(found, key, format!("is {value}, but must be {range}"));
    }
}

fn stops(found: &mut Found, key: &str, stops: &[String]) {
    if stops.iter().any(String::is_empty) {
        say(found, key, "holds an empty string, which would end every turn at once");
    }
}
