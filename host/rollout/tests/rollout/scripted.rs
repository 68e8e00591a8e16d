//! A scripted generator, and real plugins, tokenizer and chat template around it.

use molt_core::chat::{Message, Role, Task};
use molt_core::ids::WeightVersion;
use molt_core::sampling::{Finish, Sampling};
use molt_core::settings::{Access, Limits};
use molt_core::trajectory::Sampled;
use molt_core::window::ErrorLimit;
use molt_generator::{Generation, Generator, GeneratorError, Request, WeightUpdate};
use molt_model::Chat;
use molt_rollout::{Driver, Measure, Plan, Prompts, TurnSettings, WeightedReward};
use molt_sandbox::{Environment, Library, Reward, Sandbox};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// What the model says: a function of the last message of the prompt and the seed of the turn.
pub(crate) type Script = fn(&str, u64) -> String;

/// A generator that follows a script. What it samples depends on prompt and seed alone; `salt` decides how
/// often it lets others go first, and so in which order turns end.
pub(crate) struct Scripted {
    chat: Arc<Chat>,
    script: Script,
    pub(crate) salt: u64,
    pub(crate) version: AtomicU64,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) requests: Mutex<Vec<Request>>,
    /// Stops with an error at this request.
    pub(crate) stops_at: Option<usize>,
}

impl Scripted {
    pub(crate) fn new(chat: Arc<Chat>, script: Script) -> Self {
        Self {
            chat,
            script,
            salt: 0,
            version: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            requests: Mutex::default(),
            stops_at: None,
        }
    }
}

struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn scramble(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z ^= z >> 29;
    z.wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (z >> 32)
}

impl Generator for Scripted {
    async fn generate(&self, request: Request) -> Result<Generation, GeneratorError> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let _in_flight = InFlight(&self.in_flight);
        let count = {
            let mut requests = self.requests.lock().unwrap();
            requests.push(request.clone());
            requests.len()
        };
        if self.stops_at.is_some_and(|at| count >= at) {
            return Err(GeneratorError::Stopped("the script says so".into()));
        }
        let tokenizer = self.chat.tokenizer();
        let text = tokenizer.decode(&request.prompt, false);
        let last = text.rsplit("<|im_start|>").nth(1).unwrap_or(&text);
        let last = last.split_once('\n').map_or(last, |(_, content)| content);
        let last = last.split("<|im_end|>").next().unwrap_or(last);
        let mut tokens = tokenizer.encode(&(self.script)(last, request.seed)).unwrap();
        tokens.push(tokenizer.encode("<|im_end|>").unwrap()[0]);
        let finish = if tokens.len() > request.sampling.max_tokens { Finish::Length } else { Finish::Stop };
        tokens.truncate(request.sampling.max_tokens);
        let mut sampled = Vec::new();
        for (index, token) in tokens.into_iter().enumerate() {
            let bits = scramble(request.seed, index as u64) >> 40;
            let version = WeightVersion(self.version.load(Ordering::SeqCst));
            sampled.push(Sampled { token, logprob: -(bits as f32) / 16_777_216.0, version });
            for _ in 0..scramble(request.seed ^ self.salt, index as u64) % 4 {
                tokio::task::yield_now().await;
            }
        }
        Ok(Generation { sampled, finish, routing: None })
    }

    async fn load_weights(&self, update: WeightUpdate) -> Result<(), GeneratorError> {
        self.version.store(update.version.0, Ordering::SeqCst);
        Ok(())
    }
}

/// Plugins as `cargo xtask plugins` built them.
pub(crate) fn library() -> Library {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let places: Vec<PathBuf> = ["plugins", "plugins-test"].map(|name| target.join(name)).into();
    assert!(places[0].is_dir(), "{} is missing: run `cargo xtask plugins`", places[0].display());
    Library::new(&places)
}

static SANDBOX: LazyLock<Sandbox> = LazyLock::new(|| Sandbox::new(None).unwrap());

static PLUGINS: LazyLock<(Environment, Environment, Reward, Reward)> = LazyLock::new(|| {
    let (library, limits) = (library(), Limits { cpu_ms: 200, memory_mib: 16, ..Limits::default() });
    (
        SANDBOX.environment(&library, "single-turn", limits).unwrap(),
        SANDBOX.environment(&library, "guess-number", limits).unwrap(),
        SANDBOX.reward(&library, "exact-match", limits).unwrap(),
        SANDBOX.reward(&library, "hostile", limits).unwrap(),
    )
});

pub(crate) fn single_turn() -> Environment {
    PLUGINS.0.clone()
}

pub(crate) fn guess_number() -> Environment {
    PLUGINS.1.clone()
}

pub(crate) fn exact_match() -> Vec<WeightedReward> {
    vec![WeightedReward { plugin: PLUGINS.2.clone(), weight: 1.0 }]
}

/// A reward that does what the completion says: loop, trap, …, or score its length.
pub(crate) fn hostile() -> Vec<WeightedReward> {
    vec![WeightedReward { plugin: PLUGINS.3.clone(), weight: 1.0 }]
}

/// A reward plugin by name, with this weight and access.
pub(crate) fn reward(name: &str, weight: f64, access: impl Into<Access>) -> WeightedReward {
    WeightedReward { plugin: SANDBOX.reward(&library(), name, access).unwrap(), weight }
}

/// An environment by name.
pub(crate) fn environment(name: &str) -> Environment {
    limited_environment(name, Limits::default())
}

pub(crate) fn limited_environment(name: &str, limits: Limits) -> Environment {
    SANDBOX.environment(&library(), name, limits).unwrap()
}

pub(crate) fn chatml() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/testdata/chatml")
}

pub(crate) fn chat() -> Arc<Chat> {
    Arc::new(Chat::load(&chatml(), None).unwrap())
}

pub(crate) fn driver(
    environment: Environment,
    rewards: Vec<WeightedReward>,
    script: Script,
) -> Driver<Scripted> {
    let chat = chat();
    let sampling = Sampling {
        temperature: 1.0,
        top_p: 1.0,
        max_tokens: 200,
        stop_tokens: chat.tokenizer().stop_tokens().to_vec(),
        stop_strings: vec![],
    };
    let turn = TurnSettings { sampling, max_context: 4000, max_turns: 10, record_routing: false };
    let generator = Arc::new(Scripted::new(chat.clone(), script));
    Driver { generator, chat, environment, rewards, turn, seed: 5 }
}

pub(crate) fn task(prompt: &str, label: Option<&str>, fields: &[(&str, &str)]) -> Task {
    Task {
        id: prompt.into(),
        messages: vec![Message::new(Role::User, prompt)],
        label: label.map(str::to_owned),
        fields: fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
    }
}

/// Rows 0, 1, … whose prompt is their number, and their label too unless `unlabelled` says otherwise.
pub(crate) fn prompts(count: usize, unlabelled: impl Fn(usize) -> bool) -> Arc<Prompts> {
    let row = |n: usize| task(&n.to_string(), (!unlabelled(n)).then(|| n.to_string()).as_deref(), &[]);
    Arc::new(Prompts { rows: (0..count).map(row).collect(), skipped: 0 })
}

/// No share of failures ends a run.
pub(crate) const LENIENT: ErrorLimit = ErrorLimit { max_rate: 1.0, window: 16 };

pub(crate) fn plan(prompts: Arc<Prompts>, batch_size: usize) -> Plan {
    Plan {
        prompts,
        passes: 1,
        shuffle: true,
        seed: 5,
        batch_size,
        samples: 3,
        min_finished: 2,
        filter: None,
        errors: LENIENT,
    }
}

/// An evaluation that no share of failures ends.
pub(crate) fn measure(samples: u32, ks: &[u32]) -> Measure<'_> {
    Measure { samples, ks, source_key: "data_source", errors: LENIENT }
}

/// How often each item occurs.
pub(crate) fn count<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    for item in items {
        *counts.entry(item).or_insert(0) += 1;
    }
    counts
}
