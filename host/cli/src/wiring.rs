//! From validated settings to the parts of a run: everything is loaded and checked before anything starts.

mod begin;
pub(crate) mod beside;
mod plugins;

pub(crate) use begin::{from, frozen, record, run_dir, toml};
pub(crate) use plugins::{Plugins, digests};

use crate::stop::{OrStop, Stop};
use molt_core::ids::WeightVersion;
use molt_core::sampling::Sampling;
use molt_core::settings::{self, BadRow, EvalData, Parameters};
use molt_generator::Engine;
use molt_model::{Chat, Config, Decoder, Weights};
use molt_observe::Panel;
use molt_rollout::{Driver, Prompts, TurnSettings, WeightedReward};
use molt_sandbox::Environment;
use molt_trainer::freeze::trained;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};

/// The threads that rollouts run on.
pub(crate) fn runtime() -> Result<Runtime, Stop> {
    let built = Builder::new_multi_thread().enable_all().build();
    built.or_failed("cannot start the threads of the run", "look at the limits of this machine (ulimit -u)")
}

/// A model directory that is there, with its text side.
pub(crate) struct Model {
    path: PathBuf,
    compute: settings::Compute,
    pub(crate) config: Config,
    pub(crate) chat: Arc<Chat>,
}

impl Model {
    pub(crate) fn open(model: &settings::Model) -> Result<Self, Stop> {
        let path = &model.path;
        let unusable = || format!("the model in {} cannot be used", path.display());
        let config = Config::load(&path.join("config.json")).or_user(
            unusable(),
            "model.path must be a Hugging Face directory of the Llama, Qwen3 or Qwen3-MoE family",
        )?;
        let chat = Chat::load(path, model.chat_template.as_deref()).or_user(
            unusable(),
            "a model needs tokenizer.json and a chat template; model.chat_template gives another template",
        )?;
        let vocabulary = chat.tokenizer().vocab_size();
        if vocabulary > config.vocab_size {
            let error = format!(
                "{}: its tokenizer has {vocabulary} tokens, and its weights have only {}",
                unusable(),
                config.vocab_size
            );
            return Err(Stop::user(error, "tokenizer.json and config.json must be of the same model"));
        }
        Ok(Self { path: path.clone(), compute: model.compute, config, chat: Arc::new(chat) })
    }

    /// Reads the weights to decode with; every call gives a copy of its own.
    pub(crate) fn weights(&self) -> Result<Decoder, Stop> {
        Decoder::load(&self.path)
            .map(|decoder| decoder.in_numbers(self.compute))
            .or_user(self.unusable(), "fetch the files again, or give another model.path")
    }

    /// The weights to train, of which every rank reads its part, with an adapter if one is asked for.
    pub(crate) fn policy(
        &self,
        optim: &settings::Optim,
        lora: &settings::Lora,
        seed: u64,
    ) -> Result<Weights, Stop> {
        let mut weights = Weights::open(&self.path)
            .map(|weights| weights.in_numbers(self.compute))
            .or_user(self.unusable(), "fetch the files again, or give another model.path")?;
        if let Some((rank, alpha)) = lora.size() {
            weights = weights
                .with_adapter(rank, alpha, &lora.targets, seed)
                .or_user("the adapter does not fit the model", "change lora.targets or lora.rank")?;
        }
        trained(weights.network(), &optim.freeze)
            .or_user("these parameters cannot be frozen", "change optim.freeze")?;
        Ok(weights)
    }

    fn unusable(&self) -> String {
        format!("the model in {} cannot be used", self.path.display())
    }

    /// Refuses a setting that only a mixture of experts can have.
    pub(crate) fn has_experts_for(&self, key: &str, is_set: bool) -> Result<(), Stop> {
        if is_set && self.config.experts.is_none() {
            let error = format!("{key} is set, and no layer of the model has experts");
            return Err(Stop::user(error, format!("leave {key} out, or train a mixture of experts")));
        }
        Ok(())
    }

    /// Tokens per rollout at most: what is asked for under `key`, else all that the model can take.
    pub(crate) fn context(&self, key: &str, asked: Option<usize>) -> Result<usize, Stop> {
        let most = self.config.max_position_embeddings;
        match asked {
            Some(tokens) if tokens > most => {
                let error = format!("{key} is {tokens}, and the model was made for {most} tokens at most");
                Err(Stop::user(error, format!("lower {key}, or leave it out")))
            }
            Some(tokens) => Ok(tokens),
            None => Ok(most),
        }
    }

    /// The family and the number of parameters, for people.
    pub(crate) fn describe(&self) -> String {
        let parameters = self.config.parameter_count();
        let family = match (&self.config.experts, self.config.qk_norm) {
            (Some(_), _) => "qwen3_moe",
            (None, true) => "qwen3",
            (None, false) => "llama",
        };
        format!("{}, {family}, {} parameters", self.path.display(), crate::present::quantity(parameters))
    }
}

/// The prompts under `path`.
pub(crate) fn prompts(
    key: &str,
    path: &Path,
    prompt_key: &str,
    label_key: &str,
    on_bad_row: BadRow,
    columns: &Parameters,
) -> Result<Prompts, Stop> {
    let unusable = || format!("{key} {} cannot be used", path.display());
    let prompts = Prompts::load(path, prompt_key, label_key, on_bad_row, columns).or_user(
        unusable(),
        "each line is an object such as {\"prompt\": \"2+3?\", \"answer\": \"5\"}; data.prompt_key and \
         data.label_key name the columns",
    )?;
    // The usual column may be missing: not every reward and agent wants a label.
    if label_key != EvalData::default().label_key && has_no_label(&prompts) {
        let error =
            format!("{}: data.label_key is {label_key}, and no row has a value in that column", unusable());
        let help = match first_columns(&prompts) {
            None => "leave data.label_key out if there are no expected answers".to_owned(),
            Some(has) => format!(
                "leave data.label_key out if there are no expected answers, or name one of the columns that the first row has: {has}"
            ),
        };
        return Err(Stop::user(error, help));
    }
    Ok(prompts)
}

fn has_no_label(prompts: &Prompts) -> bool {
    prompts.rows.iter().all(|row| row.label.is_none())
}

/// The columns of the first row beside its prompt and label, if it has any.
fn first_columns(prompts: &Prompts) -> Option<String> {
    let names: Vec<&str> = prompts.rows.first()?.fields.iter().map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Says so if no prompt has a label: most rewards compare with one.
pub(crate) fn note_labels(prompts: &Prompts, label_key: &str) {
    if has_no_label(prompts) {
        let has = first_columns(prompts).map_or_else(String::new, |has| format!("; the first row has {has}"));
        eprintln!(
            "warning: no row has an expected answer in a column {label_key}, and most rewards need one: \
             data.label_key names the column{has}"
        );
    }
}

/// Sources that metrics are kept apart for at most.
const SOURCES: usize = 100;

/// Refuses a column of sources that no row has, and one that tells every row from every other.
pub(crate) fn sources(all: &[&Prompts], is_given: bool, key: &str) -> Result<(), Stop> {
    let sources: BTreeSet<&str> = all.iter().flat_map(|prompts| prompts.sources(key)).collect();
    if is_given && sources.is_empty() {
        let error = format!("data.source_key is {key}, and no row has that column");
        return Err(Stop::user(error, "name a column of the data, or leave data.source_key out"));
    }
    if sources.len() > SOURCES {
        let error = format!(
            "the column {key} names {} sources, and {SOURCES} at most can be told apart",
            sources.len()
        );
        return Err(Stop::user(
            error,
            "name another column with data.source_key, one that few rows differ in",
        ));
    }
    Ok(())
}

/// The sampling of training rollouts.
pub(crate) fn training_turn(settings: &settings::TrainSettings, model: &Model) -> Result<TurnSettings, Stop> {
    let rollout = &settings.rollout;
    model.has_experts_for("train.replay_routing", settings.train.replay_routing)?;
    model.has_experts_for("moe.router_aux_coef", settings.moe.router_aux_coef > 0.0)?;
    Ok(TurnSettings {
        sampling: Sampling {
            temperature: rollout.temperature,
            top_p: 1.0,
            max_tokens: rollout.max_new_tokens,
            stop_tokens: model.chat.tokenizer().stop_tokens().to_vec(),
            stop_strings: rollout.stop.clone(),
        },
        max_context: model.context("rollout.max_context", rollout.max_context)?,
        max_turns: settings.agent.max_turns,
        record_routing: settings.train.replay_routing,
        // A teacher says all that is to be learnt.
        reward_is_optional: settings.teacher.model.is_some(),
    })
}

/// The sampling of evaluation rollouts.
pub(crate) fn eval_turn(
    eval: &settings::Eval,
    agent: &settings::Agent,
    model: &Model,
) -> Result<TurnSettings, Stop> {
    Ok(TurnSettings {
        sampling: Sampling {
            temperature: eval.temperature,
            top_p: eval.top_p,
            max_tokens: eval.max_new_tokens,
            stop_tokens: model.chat.tokenizer().stop_tokens().to_vec(),
            stop_strings: eval.stop.clone(),
        },
        max_context: model.context("eval.max_context", eval.max_context)?,
        max_turns: agent.max_turns,
        record_routing: false,
        reward_is_optional: false,
    })
}

/// Starts the embedded engine with weights of its own.
pub(crate) fn engine(decoder: Decoder, model: &Model, settings: &settings::Generator) -> Arc<Engine> {
    let context = model.config.max_position_embeddings;
    let tokenizer = Arc::clone(model.chat.tokenizer());
    Arc::new(Engine::start(decoder, tokenizer, WeightVersion(0), settings, context))
}

/// What rollouts of one run share.
pub(crate) fn driver(
    generator: &Arc<Engine>,
    model: &Model,
    (environment, rewards): (&Environment, &[WeightedReward]),
    turn: TurnSettings,
    seed: u64,
) -> Driver<Engine> {
    Driver {
        generator: Arc::clone(generator),
        chat: Arc::clone(&model.chat),
        environment: environment.clone(),
        rewards: rewards.to_vec(),
        turn,
        seed,
    }
}

/// A diagram of some metrics, each with its label.
pub(crate) fn panel(title: &str, series: &[(&str, &str)]) -> Panel {
    let series = series.iter().map(|(label, metric)| ((*label).to_owned(), (*metric).to_owned()));
    Panel { title: title.to_owned(), series: series.collect() }
}

/// Draws the panels of `curves.svg` from metrics that the run may have.
pub(crate) fn draw(run_dir: &Path, panels: &[Panel]) -> Result<PathBuf, Stop> {
    let svg = run_dir.join("curves.svg");
    molt_observe::draw_curves(&run_dir.join("metrics.jsonl"), &svg, panels)
        .or_failed("the curves cannot be drawn", "everything else of the run is in its directory")?;
    Ok(svg)
}
