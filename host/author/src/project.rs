//! A plugin's source: a directory with a `molt.toml`.

use crate::error::{AuthorError, OrAuthor};
use clap::ValueEnum;
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// What a project builds. Each is a world of the contract; those without a template are not shown to be chosen for a
/// new project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Scores one finished rollout
    Reward,
    /// Scores the rollouts of one prompt together
    GroupReward,
    /// A reward that asks a model, which the run must grant
    #[value(hide = true)]
    Judge,
    /// A reward that has code run by an interpreter, which the run must grant
    #[value(hide = true)]
    CodeReward,
    /// Answers the model's turns
    Environment,
    /// An environment that has code run by an interpreter, which the run must grant
    #[value(hide = true)]
    CodeEnvironment,
    /// Turns rewards into advantages
    Estimator,
    /// Gives the policy loss of tokens
    Loss,
    /// Runs code for environments
    #[value(hide = true)]
    Interpreter,
}

impl Kind {
    /// The world in the contract's WIT.
    pub(crate) fn world(self) -> &'static str {
        match self {
            Kind::Reward => "reward-plugin",
            Kind::GroupReward => "group-reward-plugin",
            Kind::Judge => "judge-plugin",
            Kind::CodeReward => "code-reward-plugin",
            Kind::Environment => "environment-plugin",
            Kind::CodeEnvironment => "code-environment-plugin",
            Kind::Estimator => "estimator-plugin",
            Kind::Loss => "loss-plugin",
            Kind::Interpreter => "interpreter-plugin",
        }
    }
}

impl Kind {
    /// The interface in the contract's WIT that it exports.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Kind::Reward | Kind::Judge | Kind::CodeReward => "reward",
            Kind::GroupReward => "group-reward",
            Kind::Environment | Kind::CodeEnvironment => "environment",
            Kind::Estimator => "estimator",
            Kind::Loss => "loss",
            Kind::Interpreter => "code",
        }
    }
}

/// What a project is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lang {
    Rust,
    Python,
    #[value(name = "js")]
    Js,
    #[value(name = "ts")]
    Ts,
    C,
    Go,
}

impl Lang {
    /// The folder under `sdk/`: the SDK of JavaScript serves TypeScript too.
    pub(crate) fn sdk(self) -> &'static str {
        match self {
            Lang::Rust => "rust",
            Lang::Python => "python",
            Lang::Js | Lang::Ts => "js",
            Lang::C => "c",
            Lang::Go => "go",
        }
    }

    /// The folder of templates under the SDK's: one folder per kind.
    pub(crate) fn templates(self) -> &'static str {
        if self == Lang::Ts { "template-ts" } else { "template" }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}

impl fmt::Display for Lang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}

/// The word that the command line takes.
fn value_name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    value.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
}

/// A project, as its `molt.toml` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Project {
    pub(crate) dir: PathBuf,
    /// The plugin goes by it: `build` writes `NAME.wasm`.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) lang: Lang,
    pub(crate) version: String,
    pub(crate) description: String,
}

/// The file. Rust has version and description in `Cargo.toml`, which every Rust package has anyway.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    kind: Kind,
    lang: Lang,
    version: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    package: Package,
}

#[derive(Deserialize)]
struct Package {
    version: Option<String>,
    #[serde(default)]
    description: String,
}

const EXAMPLE: &str = "it is like this:\nname = \"brevity\"\nkind = \"reward\"\nlang = \"rust\"\n\
                       and, unless Cargo.toml has them, version = \"0.1.0\" and description = \"…\"";

impl Project {
    /// Reads `DIR/molt.toml`.
    ///
    /// # Errors
    /// It is missing or not well-formed, or the name cannot be a file's.
    pub(crate) fn read(dir: &Path) -> Result<Self, AuthorError> {
        let path = dir.join("molt.toml");
        let refused = format!("{} is not a project that can be built", dir.display());
        let text = std::fs::read_to_string(&path)
            .map_err(|source| std::io::Error::new(source.kind(), format!("{}: {source}", path.display())))
            .or_user(&*refused, "`molt plugin new` makes one; in an existing one, write molt.toml")?;
        let file: File = toml::from_str(&text).or_user(&*refused, EXAMPLE)?;
        check_name(&file.name)?;
        let (version, description) = if file.lang == Lang::Rust {
            if file.version.is_some() || file.description.is_some() {
                let help = "remove them from molt.toml";
                let error = "in Rust, version and description are in Cargo.toml";
                return Err(AuthorError::user(error, help));
            }
            cargo_package(dir, &refused)?
        } else {
            (file.version, file.description.unwrap_or_default())
        };
        let Some(version) = version.filter(|version| semver::Version::parse(version).is_ok()) else {
            return Err(AuthorError::user(
                refused,
                "give a version of three numbers, such as version = \"0.1.0\"",
            ));
        };
        Ok(Self {
            dir: dir.to_owned(),
            name: file.name,
            kind: file.kind,
            lang: file.lang,
            version,
            description,
        })
    }

    /// The file that `build` writes.
    pub(crate) fn component(&self) -> PathBuf {
        self.dir.join(format!("{}.wasm", self.name))
    }

    /// The contract's WIT inside the project.
    pub(crate) fn wit(&self) -> PathBuf {
        self.dir.join("molt/wit").join(crate::embedded::CONTRACT)
    }

    /// The SDK inside the project.
    pub(crate) fn sdk(&self) -> PathBuf {
        self.dir.join("molt/sdk").join(self.lang.sdk())
    }
}

fn cargo_package(dir: &Path, refused: &str) -> Result<(Option<String>, String), AuthorError> {
    let path = dir.join("Cargo.toml");
    let help = "a plugin in Rust is a package with version and description in Cargo.toml";
    let text = std::fs::read_to_string(&path)
        .map_err(|source| std::io::Error::new(source.kind(), format!("{}: {source}", path.display())))
        .or_user(refused, help)?;
    let manifest: Manifest = toml::from_str(&text).or_user(refused, help)?;
    Ok((manifest.package.version, manifest.package.description))
}

/// Words that cargo refuses as the name of a library, and the SDK's own package.
const RESERVED: &str = "abstract as async await become box break const continue core crate do dyn else enum \
    extern false final fn for gen if impl in let loop macro match mod molt molt-plugin move \
    mut override priv proc-macro pub ref return self static std struct super test trait true \
    try type typeof unsafe unsized use virtual where while yield alloc";

/// Whether a plugin, and a package in every language, may have this name.
///
/// # Errors
/// It may not.
pub(crate) fn check_name(name: &str) -> Result<(), AuthorError> {
    let well_formed = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !name.ends_with('-')
        && !name.contains("--")
        && name.len() <= 64;
    if well_formed && RESERVED.split(' ').all(|word| word != name) {
        return Ok(());
    }
    Err(AuthorError::user(
        format!("a plugin cannot be called {name:?}"),
        "use small letters, digits and single hyphens, beginning with a letter, and no word that a language reserves",
    ))
}
