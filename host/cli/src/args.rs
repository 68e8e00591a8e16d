//! The command line: one long flag per setting, made from the settings' own schema.

use crate::plugin;
use crate::stop::Stop;
use clap::builder::{RangedU64ValueParser, Str};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use molt_core::settings::{
    ANY, EvalSettings, Key, Kind, Settings, SettingsError, SftSettings, TrainSettings, keys, load, nearest,
    why_absent,
};
use std::ffi::OsString;
use std::path::PathBuf;

/// What to do. Settings are validated.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    Train(Box<TrainSettings>),
    Sft(Box<SftSettings>),
    Eval(Box<EvalSettings>),
    Init {
        from: PathBuf,
        to: PathBuf,
        seed: u64,
    },
    Plugin(Box<ArgMatches>),
    /// The same command, without `--nproc`, as this many processes.
    Launch {
        ranks: usize,
        args: Vec<OsString>,
    },
}

/// Why there is nothing to do.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Help, version, or arguments that clap refuses.
    Usage(clap::Error),
    Settings(Stop),
}

pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Request, Refusal> {
    let args: Vec<OsString> = args.into_iter().collect();
    let matches = command(&args).try_get_matches_from(&args).map_err(|error| usage(error, &args))?;
    match matches.subcommand() {
        Some(("train", m)) => settings("train", m).map(|s| launch(m, &args, Request::Train(Box::new(s)))),
        Some(("sft", m)) => settings("sft", m).map(|s| launch(m, &args, Request::Sft(Box::new(s)))),
        Some(("eval", m)) => settings("eval", m).map(|s| Request::Eval(Box::new(s))),
        Some(("init", m)) => {
            Ok(Request::Init { from: path(m, "from"), to: path(m, "to"), seed: *one(m, "seed") })
        }
        Some(("plugin", m)) => Ok(Request::Plugin(Box::new(m.clone()))),
        _ => unreachable!("clap requires a subcommand"),
    }
}

/// The request, or several processes that have it.
fn launch(matches: &ArgMatches, args: &[OsString], request: Request) -> Request {
    let ranks = *one::<usize>(matches, NPROC);
    if ranks < 2 {
        return request;
    }
    let mut rest = args.iter().skip(1).cloned();
    let mut args = Vec::new();
    while let Some(arg) = rest.next() {
        match arg.to_str().and_then(|arg| arg.strip_prefix("--nproc")) {
            Some("") => drop(rest.next()),
            Some(value) if value.starts_with('=') => {}
            _ => args.push(arg),
        }
    }
    Request::Launch { ranks, args }
}

const NPROC: &str = "nproc";

/// `--nproc N`, of the commands that train.
fn nproc() -> Arg {
    Arg::new(NPROC)
        .long(NPROC)
        .value_name("N")
        .value_parser(RangedU64ValueParser::<usize>::new().range(1..=1024))
        .default_value("1")
        .help("Ranks to start on this machine, each of which holds a part of the model")
}

fn command(args: &[OsString]) -> Command {
    Command::new("molt")
        .about("Reinforcement learning for language models, with everything that you edit in a sandbox")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            with_settings::<TrainSettings>("train", "Train a model by reinforcement learning", args)
                .arg(nproc()),
        )
        .subcommand(
            with_settings::<SftSettings>("sft", "Fine-tune a model on conversations", args).arg(nproc()),
        )
        .subcommand(with_settings::<EvalSettings>("eval", "Measure a model: pass@1 and pass@k", args))
        .subcommand(
            Command::new("init")
                .about("Make a model with random weights")
                .arg(
                    Arg::new("from")
                        .value_name("FROM")
                        .required(true)
                        .help("A directory with config.json and tokenizer files"),
                )
                .arg(Arg::new("to").value_name("TO").required(true).help("The directory to make"))
                .arg(
                    Arg::new("seed")
                        .long("seed")
                        .value_name("N")
                        .value_parser(value_parser!(u64))
                        .default_value("0")
                        .help("The seed that the weights derive from"),
                )
                .mut_args(
                    |arg| if arg.is_positional() { arg.value_parser(value_parser!(PathBuf)) } else { arg },
                ),
        )
        .subcommand(plugin::command())
}

/// A command whose flags are all settings of `S`.
fn with_settings<S: Settings>(name: &'static str, about: &'static str, args: &[OsString]) -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .action(ArgAction::Append)
        .help("A TOML file with settings; flags win over it");
    let all = keys::<S>();
    // A flag given again wins: scripts append theirs to a base command.
    let command = Command::new(name).about(about).args_override_self(true).arg(config);
    command.args(all.iter().map(flag)).args(named_flags(&all, args))
}

fn flag(key: &Key) -> Arg {
    let default = key.default.as_ref().map(|d| format!(" [default: {d}]")).unwrap_or_default();
    let arg = Arg::new(Str::from(key.name()))
        .long(Str::from(key.name()))
        .help(format!("{}{default}", key.doc))
        .help_heading(Str::from(key.path[0].clone()))
        .value_name(Str::from(value_name(&key.kind)))
        .allow_negative_numbers(true);
    match key.kind {
        Kind::Switch => arg.num_args(0..=1).default_missing_value("true"),
        _ => arg,
    }
}

/// Flags such as `--plugins.only.math.cpu_ms`, whose name is partly the user's.
fn named_flags(all: &[Key], args: &[OsString]) -> Vec<Arg> {
    let mut names: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()?.strip_prefix("--")).collect();
    names.iter_mut().for_each(|name| *name = name.split('=').next().unwrap_or(name));
    names.sort_unstable();
    names.dedup();
    let open: Vec<&Key> = all.iter().filter(|key| key.path.iter().any(|segment| segment == ANY)).collect();
    let matching = names.into_iter().filter_map(|name| {
        let key = open.iter().find(|key| key.name() != name && key.path_of(name).is_some())?;
        let named = Str::from(name.to_owned());
        Some(flag(key).id(named.clone()).long(named).hide(true))
    });
    matching.collect()
}

fn value_name(kind: &Kind) -> String {
    match kind {
        Kind::Switch => "true|false".into(),
        Kind::Count { .. } => "N".into(),
        Kind::Number => "NUMBER".into(),
        Kind::Text => "TEXT".into(),
        Kind::Choice(words) => words.join("|"),
        Kind::List(of) => format!("{},…", value_name(of)),
        Kind::Parameter => "VALUE".into(),
    }
}

/// Reads the file, lays the flags over it, and validates the result.
fn settings<S: Settings>(command: &str, matches: &ArgMatches) -> Result<S, Refusal> {
    let flags: Vec<(String, String)> = matches
        .ids()
        .filter(|id| !["config", NPROC].contains(&id.as_str()))
        .filter_map(|id| Some((id.to_string(), matches.get_one::<String>(id.as_str())?.clone())))
        .collect();
    let files: Vec<&PathBuf> = matches.get_many("config").into_iter().flatten().collect();
    let file = match files[..] {
        [] => None,
        [_, _, ..] => {
            let error =
                format!("--config is given {} times, and a run has one file of settings", files.len());
            let help = "put all into one file, or give what differs as flags, which win over it";
            return Err(Refusal::Settings(Stop::user(error, help)));
        }
        [path] => Some((
            path.as_path(),
            std::fs::read_to_string(path).map_err(|error| {
                let stop = Stop::user(
                    format!("cannot read the settings in {}", path.display()),
                    "give --config a TOML file",
                );
                Refusal::Settings(stop.because(&error))
            })?,
        )),
    };
    let file = file.as_ref().map(|(path, text)| (*path, text.as_str()));
    let refuse = |error: SettingsError| {
        let because = error.problems.iter().map(ToString::to_string).collect();
        Refusal::Settings(Stop {
            because,
            ..Stop::user("these settings cannot be used", error.help(command))
        })
    };
    let settings: S = load(file, &flags).map_err(refuse)?;
    settings.validate().map_err(refuse)?;
    Ok(settings)
}

/// An unknown flag is told like an unknown key of a file; the rest is clap's to tell.
fn usage(error: clap::Error, args: &[OsString]) -> Refusal {
    let command = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let known = match command {
        "train" => keys::<TrainSettings>(),
        "sft" => keys::<SftSettings>(),
        "eval" => keys::<EvalSettings>(),
        _ => return Refusal::Usage(error),
    };
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(given))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return Refusal::Usage(error);
    };
    let Some(name) = given.strip_prefix("--") else { return Refusal::Usage(error) };
    let names: Vec<String> = known.iter().map(Key::name).chain(["config".to_owned()]).collect();
    let path: Vec<String> = name.split('.').map(str::to_owned).collect();
    if let Some(why) = why_absent(&known, name) {
        let help = format!("`molt {command} --help` lists every setting");
        return Refusal::Settings(Stop::user(format!("{name} {why}"), help));
    }
    let near = nearest(name, names.iter().map(String::as_str));
    let help = match near.or_else(|| known.iter().find_map(|key| key.in_map(&path))) {
        Some(near) => format!("did you mean --{near}?"),
        None => format!("`molt {command} --help` lists every setting"),
    };
    Refusal::Settings(Stop::user(format!("there is no setting {name}"), help))
}

/// An argument that is required or has a default, so that clap has it.
fn one<'a, T: Clone + Send + Sync + 'static>(matches: &'a ArgMatches, id: &str) -> &'a T {
    matches.get_one(id).expect("clap requires this argument or gives its default")
}

fn path(matches: &ArgMatches, id: &str) -> PathBuf {
    one::<PathBuf>(matches, id).clone()
}

#[cfg(test)]
mod tests;
