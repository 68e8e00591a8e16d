//! `molt plugin …`: the author's tools, and what they lack without libtorch: an episode with a real model.

use crate::stop::{OrStop, Stop};
use crate::{present, wiring};
use clap::{Arg, ArgMatches, Command, value_parser};
use molt_author::Tried;
use molt_core::ids::GroupId;
use molt_core::settings::{EvalSettings, load};
use molt_rollout::readable;
use std::path::{Path, PathBuf};

pub(crate) fn command() -> Command {
    let model = Arg::new("model")
        .long("model")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .conflicts_with_all(["script", "completions", "batch"])
        .help("Let this model play an environment's episode, sampled as --config says under `eval`");
    molt_author::command().mut_subcommand("run", |run| run.arg(model))
}

/// The result is the exit code: a check that found something is no error.
pub(crate) fn run(matches: &ArgMatches) -> Result<u8, Stop> {
    if let Some(("run", matches)) = matches.subcommand()
        && let Some(model) = matches.get_one::<PathBuf>("model")
    {
        return play(molt_author::tried(matches)?, model).map(|()| 0);
    }
    molt_author::run(matches)
}

/// Has a model play one episode, and shows it.
fn play(tried: Tried, model: &Path) -> Result<(), Stop> {
    let mut settings = read(tried.config.as_deref())?;
    settings.model.path = model.to_owned();
    settings.agent.name = tried.plugin;
    settings.plugins.path.splice(0..0, tried.path);
    let mut plugins = wiring::Plugins::new(&settings.plugins, &settings.judge)?;
    let environment = plugins.environment(&settings.agent)?;
    let model = wiring::Model::open(&settings.model)?;
    let turn = wiring::eval_turn(&settings.eval, &settings.agent, &model)?;
    let engine = wiring::engine(model.weights()?, &model, &settings.generator);
    plugins.provide_policy(&engine, &model.chat, &turn);
    let driver = wiring::driver(&engine, &model, (&environment, &[]), turn, tried.seed);
    let played = wiring::runtime()?.block_on(driver.group(GroupId(0), &tried.task, 0..1));
    let group = played.or_failed("the episode cannot be played", "look at the model")?;
    present::print(&readable::group(&group))
}

fn read(config: Option<&Path>) -> Result<EvalSettings, Stop> {
    let text = config.map(std::fs::read_to_string).transpose();
    let text = text.or_user("cannot read the settings", "give --config a TOML file")?;
    let settings = load(config.zip(text.as_deref()), &[]);
    settings.map_err(|error| Stop {
        because: error.problems.iter().map(ToString::to_string).collect(),
        ..Stop::user("these settings cannot be used", error.help("eval"))
    })
}
