//! `molt train`: reinforcement learning.

use crate::ranks::{self, Follower};
use crate::stop::{OrStop, Stop};
use crate::{interrupt, present, wiring};
use molt_core::settings::{Data, TrainSettings};
use molt_generator::Engine;
use molt_model::Weights;
use molt_observe::Panel;
use molt_rollout::{Prompts, counts};
use molt_trainer::End;
use molt_trainer::advantage::check_estimator;
use molt_trainer::checkpoint::Identity;
use molt_trainer::given::check_loss;
use molt_trainer::held_out::HeldOut;
use molt_trainer::report::{Kept, Summary};
use molt_trainer::rl::{Training, train};
use molt_trainer::shape::min_group;
use std::sync::Arc;

/// The panels of the run's curves: what it learns by comes first.
fn panels(settings: &TrainSettings, has_critic: bool) -> Vec<Panel> {
    let mut panels = Vec::new();
    if settings.is_scored() {
        panels.push(wiring::panel("Reward", &[("mean of a step", "rollout/reward_mean")]));
        let mut accuracy =
            wiring::panel("Accuracy", &[("training", "rollout/solved_rate"), ("held-out", "eval/accuracy")]);
        let most = settings.eval.k.iter().copied().max().filter(|&k| k > 1);
        accuracy.series.extend(most.map(|k| (format!("held-out, pass@{k}"), format!("eval/pass@{k}"))));
        panels.push(accuracy);
    }
    if settings.reference().is_some() {
        panels.push(wiring::panel(
            &format!("Divergence from the {}", beside(settings)),
            &[("per token", "train/kl_reference")],
        ));
    }
    if has_critic {
        let variance = ("explained variance", "critic/explained_variance");
        panels.push(wiring::panel("Critic", &[variance, ("loss", "critic/loss")]));
    }
    panels.push(wiring::panel(
        "|log p(train) - log p(rollout)| of on-policy tokens",
        &[("max", "train/logprob_gap_max"), ("mean", "train/logprob_gap_mean")],
    ));
    panels.push(wiring::panel("Turn length", &[("tokens", "rollout/length_mean")]));
    panels
}

pub(crate) fn run(settings: TrainSettings) -> Result<(), Stop> {
    let runtime = wiring::runtime()?;
    let rank = ranks::read()?;
    if let Some(env) = rank.as_ref().filter(|env| env.rank > 0) {
        let model = wiring::Model::open(&settings.model)?;
        let follower = Follower {
            settings: &settings,
            fsdp: &settings.fsdp,
            optim: &settings.optim,
            lora: (&settings.lora, settings.run.seed),
            max_tokens_per_rank: settings.train.max_tokens_per_rank,
            temperature: settings.rollout.temperature,
            data: vec![&settings.data.prompts],
            train: Some(&settings),
        };
        return follower.run(env, &model, runtime.handle());
    }
    let (path, lock) = wiring::run_dir(&settings.run, Some(&settings.ckpt), "train")?;

    let mut plugins = wiring::Plugins::new(&settings.plugins, &settings.judge)?;
    let environment = plugins.environment(&settings.agent)?;
    let rewards = plugins.rewards(&settings.reward.weighted())?;
    let estimator = plugins.estimator(&settings.algo)?;
    let loss = plugins.loss(&settings.algo)?;
    plugins.check_names()?;
    let traits = runtime.block_on(estimator.traits()).or_user(
        format!("algo.estimator {} cannot be used", settings.algo.estimator),
        "it fails before it is given anything: look at its `describe`, and at plugins.limits",
    )?;
    let parameters = check_estimator(&settings, &traits).or_user(
        "the estimator does not go with these settings",
        format!("`molt plugin inspect {}` shows what it needs and takes", settings.algo.estimator),
    )?;
    if let Some(loss) = &loss {
        runtime.block_on(check_loss(&settings, loss)).or_user(
            "the loss does not go with these settings",
            format!("`molt plugin check {}` tries what a loss must be able to do", settings.algo.loss),
        )?;
    }
    let min_group = min_group(&settings.rollout, &settings.algo.estimator, traits.needs_group).or_user(
        "the estimator does not go with these settings",
        "leave rollout.min_group out, or raise it",
    )?;

    let data = &settings.data;
    let load = |key, file| {
        let Data { prompt_key, label_key, on_bad_row, columns, .. } = data;
        wiring::prompts(key, file, prompt_key, label_key, *on_bad_row, columns)
    };
    let prompts = load("data.prompts", &data.prompts)?;
    let held_out = settings.eval.prompts.as_ref().map(|file| load("eval.prompts", file)).transpose()?;
    let all: Vec<&Prompts> = [Some(&prompts), held_out.as_ref()].into_iter().flatten().collect();
    wiring::sources(&all, data.source_key.is_some(), data.source_key())?;

    let model = wiring::Model::open(&settings.model)?;
    let turn = wiring::training_turn(&settings, &model)?;
    let eval_turn = wiring::eval_turn(&settings.eval, &settings.agent, &model)?;
    let (weights, copy) =
        (model.policy(&settings.optim, &settings.lora, settings.run.seed)?, model.weights()?);
    let reference = wiring::beside::reference(&settings, &model)?;
    let critic = traits.needs_values.then(|| wiring::beside::critic(&settings, &model)).transpose()?;

    let components = plugins.components();
    let data = [&*settings.data.prompts];
    let identity = Identity::new("train", &data, components.clone(), wiring::toml(&settings)?)
        .or_user("the data cannot be read", "look at data.prompts")?;
    // What is in no checkpoint.
    let fixed = critic.iter().filter(|_| !settings.critic.optim.freeze.is_empty()).chain(&reference);
    let fixed: Vec<&Weights> = fixed.collect();
    let identity = wiring::frozen(identity, (&settings.optim, &settings.lora), &weights, &fixed)?;
    let from =
        wiring::from(&settings.ckpt, &path, identity, &settings, (weights.shapes(), critic.is_some()))?;
    let others = ranks::beside(&settings, reference.as_ref(), critic.as_ref());
    let alike = ranks::alike(&settings, Some(&from.identity.data), plugins.digests())?;
    let ranks = ranks::others(rank.as_ref(), &settings.fsdp, alike, (&weights, &others))?;
    let parts = (&components, Some(&*plugins.lock()?));
    let mut run_dir = wiring::record(
        (&path, lock),
        "train",
        (&settings, &settings.implied(min_group)),
        parts,
        Some(&from),
    )?;
    eprintln!("model     {}", model.describe());
    if let Some(path) = settings.reference() {
        let what = if settings.teacher.model.is_some() { "teacher  " } else { "reference" };
        eprintln!("{what} {}", path.display());
    }
    if critic.is_some() {
        let path = settings.critic.model.as_ref().unwrap_or(&settings.model.path);
        eprintln!("critic    from {}", path.display());
    }
    let mut data = format!("{} to train on", prompts.rows.len());
    if let Some(held_out) = &held_out {
        data += &format!(", {} held out", held_out.rows.len());
    }
    let skipped = prompts.skipped + held_out.as_ref().map_or(0, |prompts| prompts.skipped);
    eprintln!("prompts   {data}{}", present::skipped(skipped));
    if settings.is_scored() {
        wiring::note_labels(&prompts, &settings.data.label_key);
    }
    if settings.eval.prompts.as_ref() == Some(&settings.data.prompts) {
        eprintln!("warning: eval.prompts is data.prompts: what is evaluated is trained");
    }
    plugins.describe().iter().for_each(|line| eprintln!("{line}"));
    match rewards.is_empty() {
        true if settings.is_scored() => {
            eprintln!("reward    none (reward.name): the agent itself must score")
        }
        true => eprintln!("reward    none: all that is learnt is from the teacher"),
        false => {}
    }
    if let Some(env) = &rank {
        eprintln!("ranks     {env}");
    }
    eprintln!("run       {}", run_dir.path().display());

    let panels = panels(&settings, critic.is_some());
    let told = Told { beside: beside(&settings), max_steps: settings.train.max_steps };
    let stop = interrupt::on_ctrl_c(runtime.handle());
    let engine = wiring::engine(copy, &model, &settings.generator);
    plugins.provide_policy(&engine, &model.chat, &turn);
    let parts = (&environment, &rewards[..]);
    let seed = settings.run.seed;
    let driver = |turn| wiring::driver(&engine, &model, parts, turn, seed);
    let training: Training<Engine> = Training {
        driver: Arc::new(driver(turn)),
        held_out: held_out.map(|prompts| HeldOut { driver: driver(eval_turn), prompts }),
        prompts: Arc::new(prompts),
        settings,
        weights,
        reference,
        critic,
        ranks,
        estimator,
        traits,
        parameters,
        loss,
        from,
    };
    let result = train(training, &mut run_dir, runtime.handle(), &stop);
    let place = run_dir.path().to_owned();
    let curves = wiring::draw(&place, &panels);
    let (summary, end) =
        result.or_failed("the run failed", format!("what the run reached is in {}", place.display()))?;
    eprint!("{}", tell(&summary, &told));
    eprintln!("curves    {}", curves?.display());
    if end == End::Interrupted { Err(interrupt::told(&place)) } else { Ok(()) }
}

/// What the end of a run is told with.
struct Told {
    /// What the policy is compared with.
    beside: &'static str,
    max_steps: Option<u64>,
}

/// What `algo.kl` compares the policy with.
fn beside(settings: &TrainSettings) -> &'static str {
    if settings.teacher.model.is_some() { "teacher" } else { "reference" }
}

/// The end of a run, for people.
fn tell(summary: &Summary, told: &Told) -> String {
    let tokens = present::quantity(summary.tokens);
    let of = told.max_steps.filter(|max| summary.steps < *max).map(|max| format!(" of {max} at most"));
    let of = of.unwrap_or_default();
    let mut text =
        format!("steps     {}{of} in {:.0} s, {tokens} action tokens\n", summary.steps, summary.wall_s);
    if summary.idle_steps > 0 {
        text += &format!(
            "idle      {} steps had nothing to learn from: rewards of each prompt alike, or all left out\n",
            summary.idle_steps
        );
    }
    if let (Some(first), Some(last)) = (summary.reward_first, summary.reward_last) {
        text += &format!(
            "reward    {first:.3} -> {last:.3}, means of the first and the last tenth of the steps\n"
        );
    }
    if let (Some(first), Some(last)) = (summary.kl_first, summary.kl_last) {
        text += &format!(
            "kl        {first:.4} -> {last:.4} per token from the {}, means of the first and the last tenth of the steps\n",
            told.beside
        );
    }
    if let Some(after) = summary.held_out_accuracy_after {
        let before = summary.held_out_accuracy_before;
        let before = before.map_or_else(String::new, |share| format!("{:.1}% -> ", 100.0 * share));
        text += &format!("held-out  {before}{:.1}% solved\n", 100.0 * after);
    }
    if let Some(Kept { metric, value, step }) = &summary.best {
        text += &format!("best      {metric} {value:.3} at step {step}, in best/\n");
    }
    text += &match summary.logprob_gap_max {
        Some(gap) => format!(
            "gap       {gap:.1e} at most between rollout and training log-probabilities of on-policy tokens\n"
        ),
        None => {
            "gap       not known: no token was trained by the weights that it was sampled with\n".to_owned()
        }
    };
    text + &format!("dropped   {}\n", counts(&summary.dropped))
}
