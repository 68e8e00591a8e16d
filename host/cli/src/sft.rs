//! `molt sft`: supervised fine-tuning.

use crate::ranks::{self, Follower};
use crate::stop::{OrStop, Stop};
use crate::{interrupt, wiring};
use molt_core::settings::SftSettings;
use molt_trainer::End;
use molt_trainer::checkpoint::Identity;
use molt_trainer::conversations::Source;
use molt_trainer::{conversations, sft};
use serde_json::json;
use std::path::{Path, PathBuf};

pub(crate) fn run(settings: SftSettings) -> Result<(), Stop> {
    let runtime = wiring::runtime()?;
    let rank = ranks::read()?;
    let model = wiring::Model::open(&settings.model)?;
    if let Some(env) = rank.as_ref().filter(|env| env.rank > 0) {
        let follower = Follower {
            settings: &settings,
            fsdp: &settings.fsdp,
            optim: &settings.optim,
            lora: (&settings.lora, settings.run.seed),
            max_tokens_per_rank: settings.sft.max_tokens_per_rank,
            temperature: 1.0,
            data: settings.data.conversations.iter().map(PathBuf::as_path).collect(),
            train: None,
        };
        return follower.run(env, &model, runtime.handle());
    }
    let (path, lock) = wiring::run_dir(&settings.run, Some(&settings.ckpt), "sft")?;
    model.has_experts_for("moe.router_aux_coef", settings.moe.router_aux_coef > 0.0)?;
    let context = model.context("sft.max_context", settings.sft.max_context)?;
    let help = "each line is an object such as {\"prompt\": \"2+3?\", \"answer\": \"5\"}; data.prompt_key and \
                data.reply_key name the columns";
    let sources = conversations::load(&settings.data, &model.chat, context)
        .or_user("data.conversations cannot be used", help)?;
    let read = |path| conversations::read_file(path, &settings.data, &model.chat, context);
    let held_out = settings.eval.conversations.as_deref().map(read).transpose();
    let held_out = held_out.or_user("eval.conversations cannot be used", help)?;
    let weights = model.policy(&settings.optim, &settings.lora, settings.run.seed)?;

    let components = json!({ "molt": env!("CARGO_PKG_VERSION"), "plugins": [] });
    let data: Vec<&Path> = settings.data.conversations.iter().map(PathBuf::as_path).collect();
    let identity = Identity::new("sft", &data, components.clone(), wiring::toml(&settings)?)
        .or_user("the data cannot be read", "look at data.conversations")?;
    let identity = wiring::frozen(identity, (&settings.optim, &settings.lora), &weights, &[])?;
    let from = wiring::from(&settings.ckpt, &path, identity, &settings, (weights.shapes(), false))?;
    let alike = ranks::alike(&settings, Some(&from.identity.data), [])?;
    let ranks = ranks::others(rank.as_ref(), &settings.fsdp, alike, (&weights, &[]))?;
    let parts = (&components, None);
    let mut run_dir = wiring::record((&path, lock), "sft", (&settings, &[]), parts, Some(&from))?;
    eprintln!("model     {}", model.describe());
    let count = |of: fn(&Source) -> usize| sources.iter().map(of).sum::<usize>();
    let mut said = format!("{} conversations", count(|source| source.rows.len()));
    if let Some(held_out) = &held_out {
        said += &format!(", {} held out", held_out.rows.len());
    }
    let skipped = count(|source| source.skipped) + held_out.as_ref().map_or(0, |rows| rows.skipped);
    eprintln!("data      {said}{}", crate::present::skipped(skipped));
    if let Some(env) = &rank {
        eprintln!("ranks     {env}");
    }
    eprintln!("run       {}", run_dir.path().display());

    let stop = interrupt::on_ctrl_c(runtime.handle());
    let data = sft::Data { sources: &sources, held_out: held_out.as_ref().map(|rows| &rows.rows[..]) };
    let result = sft::train(&settings, (weights, ranks), &data, &from, &mut run_dir, &stop);
    let place = run_dir.path();
    let (summary, end) =
        result.or_failed("the run failed", format!("what the run reached is in {}", place.display()))?;
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
    eprintln!("steps     {} in {:.0} s", summary.steps, summary.wall_s);
    eprintln!("loss      {} -> {}", number(summary.loss_first), number(summary.loss_last));
    if let (before, Some(after)) = (summary.held_out_loss_before, summary.held_out_loss_after) {
        eprintln!("held-out  {} -> {after:.3}", number(before));
    }
    let curves = wiring::draw(
        place,
        &[
            wiring::panel("Loss", &[("per token", "train/loss"), ("held-out", "eval/loss")]),
            wiring::panel("Gradient norm", &[("L2", "train/grad_norm")]),
        ],
    )?;
    eprintln!("curves    {}", curves.display());
    if end == End::Interrupted { Err(interrupt::told(place)) } else { Ok(()) }
}
