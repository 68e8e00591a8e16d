//! Which plugin a command is about, and the sandbox that it runs in.

use crate::args::SearchPath;
use crate::built;
use crate::error::{AuthorError, OrAuthor, chain, harmless};
use crate::present::{program, warn};
use crate::project::Project;
use molt_core::settings::{self, Access, EvalSettings, GrantedModel, Judge, Plugins, TrainSettings};
use molt_sandbox::{
    Environment, Estimator, Info, Interpreter, JudgeEndpoint, Kind, Library, LoadError, Loss, Reward, Sandbox,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::runtime::Runtime;

/// A plugin that was compiled before is loaded in less.
const PATIENCE: Duration = Duration::from_secs(1);

/// A plugin to run, and what it may use.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// A project's directory, a path to a .wasm file, or a name
    #[arg(default_value = ".")]
    pub(crate) plugin: String,
    /// Settings of a run: the plugin gets the limits and grants that it would have there
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) search: SearchPath,
}

/// A plugin that was found, and everything to run it with.
pub(crate) struct Opened {
    pub(crate) info: Info,
    pub(crate) access: Access,
    pub(crate) sandbox: Sandbox,
    pub(crate) runtime: Runtime,
    /// The project, if the plugin was given as one.
    pub(crate) project: Option<Project>,
    library: Library,
    name: String,
}

/// A plugin that can be called.
pub(crate) enum Loaded {
    Reward(Reward),
    Environment(Environment),
    Estimator(Estimator),
    Interpreter(Interpreter),
    Loss(Loss),
}

impl Target {
    /// Finds the plugin and starts a sandbox; nothing is compiled yet.
    pub(crate) fn open(&self) -> Result<Opened, AuthorError> {
        let (plugins, judge) = self.config.as_deref().map_or_else(|| Ok(Default::default()), read_config)?;
        let (name, project) = find(&self.plugin)?;
        let library = Library::new(&[&self.search.path[..], &plugins.path].concat());
        let help = "give a project's directory, a .wasm file, or a name that `molt plugin list` shows";
        let refused = || format!("plugin {name} cannot be used");
        let file = library.find(&name).or_user(refused(), help)?;
        let info = molt_sandbox::inspect(&file).or_user(refused(), help)?;
        let access = plugins.access_of(&info.name);
        let mut sandbox = sandbox()?;
        if built::here(&info.digest) {
            sandbox = sandbox.with_source_lines_of(&info.digest);
        }
        if judge.url.is_some() {
            let help = "judge.url and judge.key_env say where it is, and which variable holds its key";
            let endpoint = JudgeEndpoint::new(&judge).or_user("the judge cannot be asked", help)?;
            sandbox.provide(GrantedModel::Judge, Arc::new(endpoint));
        }
        Ok(Opened { info, access, sandbox, runtime: runtime()?, project, library, name })
    }
}

impl Opened {
    /// Compiles the plugin, unless that was done before, and links it. Whoever waits is told why.
    pub(crate) fn load(&self) -> Result<Loaded, AuthorError> {
        let (done, waiting) = mpsc::channel::<()>();
        let name = self.info.name.clone();
        let telling = thread::spawn(move || {
            if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("compiling {}, once per version of it …", harmless(&name));
            }
        });
        let loaded = self.load_in(&self.sandbox);
        drop(done);
        // It cannot panic, and would only have told.
        let _ = telling.join();
        loaded
    }

    /// As [`load`](Self::load), in another sandbox.
    pub(crate) fn load_in(&self, sandbox: &Sandbox) -> Result<Loaded, AuthorError> {
        let (library, name, access) = (&self.library, &self.name, self.access.clone());
        let loaded = match self.info.kind {
            Kind::Reward => sandbox.reward(library, name, access).map(Loaded::Reward),
            Kind::Environment => sandbox.environment(library, name, access).map(Loaded::Environment),
            Kind::Estimator => sandbox.estimator(library, name, access).map(Loaded::Estimator),
            Kind::Interpreter => sandbox.interpreter(library, name, access).map(Loaded::Interpreter),
            Kind::Loss => sandbox.loss(library, name, access).map(Loaded::Loss),
            Kind::ChatAgent => {
                let help = "write an environment, whose model loop is the host's";
                return Err(AuthorError::user(
                    format!("{name} is a chat agent, which cannot be run yet"),
                    help,
                ));
            }
        };
        let help = match &loaded {
            Err(LoadError::NotGranted { import, .. }) if is_granted_by_name(import) => {
                "write that into a TOML file, and give it with --config"
            }
            Err(LoadError::NotGranted { .. }) => "no grant covers it: build the plugin without it",
            Err(LoadError::NotFound { .. }) => "--plugins.path adds directories to look in",
            Err(LoadError::Grant { .. }) => "look at plugins.grant in the file that --config gives",
            _ => "build it again, with this version's `molt plugin build`",
        };
        loaded.or_user(format!("plugin {name} cannot be loaded"), help)
    }
}

/// Whether a plugin has an import only if a run grants it. WASI's other interfaces are there for all, and
/// refuse what is not granted when it is asked for.
pub(crate) fn is_granted_by_name(import: &str) -> bool {
    ["molt:plugin/model@", "molt:plugin/code@", "wasi:http/"].iter().any(|prefix| import.starts_with(prefix))
}

/// What a run's settings say of plugins.
fn read_config(path: &Path) -> Result<(Plugins, Judge), AuthorError> {
    let text = std::fs::read_to_string(path)
        .or_user(format!("cannot read the settings in {}", path.display()), "give --config a TOML file")?;
    let file = Some((path, text.as_str()));
    let train = settings::load::<TrainSettings>(file, &[]).map(|s| (s.plugins, s.judge));
    // The settings of an evaluation have sections of their own.
    let either = train.or_else(|error| {
        settings::load::<EvalSettings>(file, &[]).map(|s| (s.plugins, s.judge)).map_err(|_| error)
    });
    either.map_err(|error| AuthorError {
        because: error.problems.iter().map(ToString::to_string).collect(),
        ..AuthorError::user("these settings cannot be used", error.help("train"))
    })
}

/// A sandbox that keeps compiled plugins in the user's cache directory, or anew in every process if it cannot.
pub fn sandbox() -> Result<Sandbox, AuthorError> {
    let sandbox = Sandbox::new(cache_dir().map(|cache| cache.join("compiled")).as_deref());
    let sandbox = sandbox.or_else(|error| match error {
        LoadError::Cache { .. } => {
            warn(&format!("plugins are compiled anew: {}", chain(&error).join(": ")));
            Sandbox::new(None)
        }
        other => Err(other),
    });
    sandbox.or_user("plugins cannot be run", "look at the limits of this machine (ulimit -v)")
}

/// `${XDG_CACHE_HOME:-~/.cache}/molt`.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("molt"))
}

/// Drives calls of plugins.
pub(crate) fn runtime() -> Result<Runtime, AuthorError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.or_user(
        "the threads for plugins cannot be started",
        "look at the limits of this machine (ulimit -u)",
    )
}

/// What the library finds for a plugin that was given on the command line, without anything to run it.
pub(crate) fn target(given: &str) -> Result<String, AuthorError> {
    find(given).map(|(name, _)| name)
}

/// What the library finds, and the project: a project's directory stands for the file that `build` wrote.
fn find(given: &str) -> Result<(String, Option<Project>), AuthorError> {
    let dir = Path::new(given);
    if !dir.join("molt.toml").is_file() {
        // A single word is a name, also where a folder is called so.
        if dir.is_dir() && (given.contains('/') || given.starts_with('.')) {
            let help = "give a directory with molt.toml, a .wasm file, or a name";
            return Err(AuthorError::user(format!("{given} is a directory without molt.toml"), help));
        }
        return Ok((given.to_owned(), None));
    }
    let project = Project::read(dir)?;
    let file = project.component();
    let Ok(built) = file.metadata().and_then(|file| file.modified()) else {
        let help = format!("build it first: {} build {given}", program());
        return Err(AuthorError::user(format!("{} is not there", file.display()), help));
    };
    if let Some(source) = newer(dir, built) {
        let (file, source) = (file.display(), source.display());
        warn(&format!("{file} is older than {source}; `{} build {given}` renews it", program()));
    }
    let file = file
        .into_os_string()
        .into_string()
        .map_err(|_| AuthorError::user(format!("the path of {given} is not UTF-8"), "move the project"))?;
    Ok((file, Some(project)))
}

/// A file of the project's source that was changed after `built`.
fn newer(dir: &Path, built: SystemTime) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        let name = path.file_name()?.to_str()?;
        if name.starts_with('.') || ["target", "node_modules", "molt", "gen"].contains(&name) {
            return None;
        }
        if path.is_dir() {
            return newer(&path, built);
        }
        let source = ["rs", "py", "js", "ts", "c", "h", "go"].map(std::ffi::OsStr::new);
        let changed = path.extension().is_some_and(|e| source.contains(&e))
            && path.metadata().and_then(|file| file.modified()).is_ok_and(|changed| changed > built);
        changed.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_any_kind_says_what_a_plugin_gets() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("run.toml");
        let text = "[plugins.only.judge]\ncpu_ms = 7\n[plugins.grant.judge]\nmodel = \"judge\"\n";
        for section in ["[train]\nsync = true\n", "[eval]\nsamples = 3\n"] {
            std::fs::write(&file, format!("{section}{text}")).expect("writable");
            let (plugins, _) = read_config(&file).expect("well-formed");
            let access = plugins.access_of("judge");
            assert_eq!(access.limits.cpu_ms, 7);
            assert!(access.grants.model.is_some());
        }
        std::fs::write(&file, "[plugins]\npaht = []\n").expect("writable");
        let error = read_config(&file).expect_err("a misspelt key").to_string();
        assert!(error.contains("run.toml:2") && error.contains("plugins.path"), "{error}");
    }

    #[test]
    fn a_directory_that_is_no_project_is_told() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let given = dir.path().to_str().expect("UTF-8");
        assert!(find(given).expect_err("no project").to_string().contains("without molt.toml"));
        // This crate has such a folder.
        assert!(Path::new("tests").is_dir());
        let found = find("tests").map(|(name, project)| (name, project.is_some()));
        assert_eq!(found, Ok(("tests".into(), false)));
    }
}
