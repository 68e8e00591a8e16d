//! What a run is made of.

use molt_core::chat::{Message, Role, Task};
use molt_core::sampling::Sampling;
use molt_core::settings::{Algo, Limits, Optim, TrainSettings};
use molt_generator::Generator;
use molt_model::{Chat, Config, Decoder, Weights};
use molt_observe::RunDir;
use molt_rollout::{Driver, Prompts, TurnSettings, WeightedReward};
use molt_sandbox::{Estimator, Library, Loss, Sandbox};
use molt_trainer::TrainError;
use molt_trainer::advantage::check_estimator;
use molt_trainer::checkpoint::From;
use molt_trainer::held_out::HeldOut;
use molt_trainer::report::Summary;
use molt_trainer::rl::{Training, train};
use proptest::test_runner::{Config as ProptestConfig, RngSeed};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

/// The same cases in every run, and no file of failures in the source tree.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(20);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A model directory: random weights over the vocabulary of the ChatML test tokenizer.
pub(crate) fn model(dir: &Path) -> PathBuf {
    let config = r#"{
        "model_type": "llama", "vocab_size": 266, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
        "hidden_act": "silu", "initializer_range": 0.05
    }"#;
    let path = dir.join("model");
    saved(&Decoder::random(Config::parse(config).unwrap(), 11), path)
}

/// Saves a model with the ChatML test tokenizer.
pub(crate) fn saved(decoder: &Decoder, path: PathBuf) -> PathBuf {
    decoder.save(&path).unwrap();
    let chatml = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/testdata/chatml");
    Chat::copy_files(&chatml, &path).unwrap();
    path
}

static LIBRARY: LazyLock<(Library, Sandbox)> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let places = ["plugins", "plugins-test"].map(|name| target.join(name));
    assert!(places[0].is_dir(), "{} is missing: run `cargo xtask plugins`", places[0].display());
    // What one run compiled, the others find.
    let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    (Library::new(&places), Sandbox::new(Some(&compiled)).unwrap())
});

pub(crate) fn estimator(name: &str) -> Estimator {
    LIBRARY.1.estimator(&LIBRARY.0, name, Limits::default()).unwrap()
}

pub(crate) fn loss(name: &str) -> Loss {
    LIBRARY.1.loss(&LIBRARY.0, name, Limits::default()).unwrap()
}

pub(crate) fn driver<G: Generator>(settings: &TrainSettings, generator: Arc<G>) -> Driver<G> {
    let (library, sandbox) = (&LIBRARY.0, &LIBRARY.1);
    let chat = Arc::new(Chat::load(&settings.model.path, None).unwrap());
    let sampling = Sampling {
        temperature: settings.rollout.temperature,
        top_p: 1.0,
        max_tokens: settings.rollout.max_new_tokens,
        stop_tokens: chat.tokenizer().stop_tokens().to_vec(),
        stop_strings: Vec::new(),
    };
    let rewards = settings.reward.weighted().into_iter().map(|(name, weight)| WeightedReward {
        plugin: sandbox.reward(library, name, Limits::default()).unwrap(),
        weight,
    });
    Driver {
        generator,
        chat,
        environment: sandbox.environment(library, &settings.agent.name, Limits::default()).unwrap(),
        rewards: rewards.collect(),
        turn: TurnSettings {
            sampling,
            max_context: 128,
            max_turns: settings.agent.max_turns,
            record_routing: settings.train.replay_routing,
            reward_is_optional: settings.teacher.model.is_some(),
        },
        seed: settings.run.seed,
    }
}

/// Rows `q0`, `q1`, … that all have this answer.
pub(crate) fn prompts(count: usize, answer: &str) -> Prompts {
    let row = |n: usize| Task {
        id: n.to_string(),
        messages: vec![Message::new(Role::User, format!("q{}", n % 4))],
        label: Some(answer.to_owned()),
        fields: Vec::new(),
    };
    Prompts { rows: (0..count).map(row).collect(), skipped: 0 }
}

pub(crate) fn settings(model: &Path) -> TrainSettings {
    let mut settings = TrainSettings::default();
    settings.model.path = model.to_owned();
    settings.run.seed = 3;
    settings.agent.max_turns = 1;
    settings.reward.name = vec!["exact-match".to_owned()];
    settings.rollout.batch_size = 4;
    settings.rollout.samples_per_prompt = 8;
    settings.rollout.max_new_tokens = 2;
    settings.train.max_tokens_per_rank = 256;
    settings.optim = Optim { lr: 5e-3, ..Optim::default() };
    settings
}

/// Every step moves the weights, also one from whose rewards nothing is learnt, so that versions can be counted.
pub(crate) fn moving(settings: TrainSettings) -> TrainSettings {
    TrainSettings { algo: Algo { entropy_coef: 0.01, ..settings.algo }, ..settings }
}

/// Trains and gives back the run's result and its directory.
pub(crate) fn run<G: Generator>(
    settings: TrainSettings,
    generator: Arc<G>,
    prompts: (Prompts, Option<Prompts>),
    dir: &Path,
    stop: &CancellationToken,
) -> (Result<Summary, TrainError>, PathBuf) {
    run_from(From::default(), settings, generator, prompts, (dir, stop))
}

/// As [`run`], from where another run was.
pub(crate) fn run_from<G: Generator>(
    from: From,
    settings: TrainSettings,
    generator: Arc<G>,
    (train_on, held_out): (Prompts, Option<Prompts>),
    (dir, stop): (&Path, &CancellationToken),
) -> (Result<Summary, TrainError>, PathBuf) {
    go(training(from, settings, generator, (train_on, held_out)), dir, stop)
}

pub(crate) fn go<G: Generator>(
    training: Training<G>,
    dir: &Path,
    stop: &CancellationToken,
) -> (Result<Summary, TrainError>, PathBuf) {
    let mut run_dir = RunDir::create(dir, "train").unwrap();
    let result = train(training, &mut run_dir, runtime().handle(), stop);
    (result.map(|(summary, _)| summary), run_dir.path().to_owned())
}

/// All that a run is made of.
pub(crate) fn training<G: Generator>(
    from: From,
    settings: TrainSettings,
    generator: Arc<G>,
    (train_on, held_out): (Prompts, Option<Prompts>),
) -> Training<G> {
    let estimator = estimator(&settings.algo.estimator);
    let traits = runtime().block_on(estimator.traits()).unwrap();
    let open = |path: &Path| Weights::open(path).unwrap().in_numbers(settings.model.compute);
    Training {
        weights: open(&settings.model.path),
        reference: settings.reference().map(open),
        critic: traits.needs_values.then(|| {
            let path = settings.critic.model.as_ref().unwrap_or(&settings.model.path);
            open(path).with_value_head(settings.run.seed)
        }),
        ranks: None,
        driver: Arc::new(driver(&settings, Arc::clone(&generator))),
        prompts: Arc::new(train_on),
        held_out: held_out.map(|prompts| HeldOut { driver: driver(&settings, generator), prompts }),
        parameters: check_estimator(&settings, &traits).unwrap(),
        traits,
        estimator,
        loss: settings.algo.native_loss().is_none().then(|| loss(&settings.algo.loss)),
        settings,
        from,
    }
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub(crate) fn weights(run_dir: &Path) -> Vec<u8> {
    std::fs::read(run_dir.join("model/model.safetensors")).unwrap()
}
