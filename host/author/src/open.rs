//! The sandbox that the commands run plugins in, and which file a command is about.

use crate::error::{AuthorError, OrAuthor, chain};
use crate::project::Project;
use molt_sandbox::{LoadError, Sandbox};
use std::path::{Path, PathBuf};

/// A sandbox that keeps compiled plugins in the user's cache directory, or anew in every process if it cannot.
pub(crate) fn sandbox() -> Result<Sandbox, AuthorError> {
    let sandbox = Sandbox::new(cache_dir().map(|cache| cache.join("compiled")).as_deref());
    let sandbox = sandbox.or_else(|error| match error {
        LoadError::Cache { .. } => {
            eprintln!("warning: plugins are compiled anew: {}", chain(&error).join(": "));
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
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, AuthorError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.or_user(
        "the threads for plugins cannot be started",
        "look at the limits of this machine (ulimit -u)",
    )
}

/// What the library finds: a project's directory stands for the file that `build` wrote.
pub(crate) fn target(given: &str) -> Result<String, AuthorError> {
    let dir = Path::new(given);
    if !dir.join("molt.toml").is_file() {
        return Ok(given.to_owned());
    }
    let project = Project::read(dir)?;
    let file = dir.join(format!("{}.wasm", project.name));
    if !file.is_file() {
        let help = format!("build it first: molt plugin build {given}");
        return Err(AuthorError::user(format!("{} is not there", file.display()), help));
    }
    file.into_os_string()
        .into_string()
        .map_err(|_| AuthorError::user(format!("the path of {given} is not UTF-8"), "move the project"))
}
