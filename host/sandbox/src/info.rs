//! What a component says about itself, read from its bytes: nothing is compiled and nothing is run.

use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use wasmparser::{ComponentExternalKind, Encoding, Parser, Payload};

use crate::effort::{self, Unfit};
use crate::error::LoadError;
use crate::quote;

/// Size of a plugin file at most: a large language runtime has 20 MiB, and all of it is read and compiled.
const FILE_MIB: u64 = 64;

/// Modules and components in each other: compilers make three. To validate and compile more takes time that grows
/// with the square.
const NESTED: usize = 50;

/// What a plugin does, which is the interface that it exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Answers the model's turns; the host samples.
    Environment,
    /// Scores finished rollouts.
    Reward,
    /// Turns rewards into advantages.
    Estimator,
    /// Gives the policy loss of tokens.
    Loss,
    /// Owns its loop and calls the model.
    ChatAgent,
    /// Runs code that a model wrote, for an environment that was granted it.
    Interpreter,
}

impl Kind {
    fn of_interface(name: &str) -> Option<Self> {
        match name {
            "environment" => Some(Kind::Environment),
            "reward" | "group-reward" => Some(Kind::Reward),
            "estimator" => Some(Kind::Estimator),
            "loss" => Some(Kind::Loss),
            "agent" => Some(Kind::ChatAgent),
            "code" => Some(Kind::Interpreter),
            _ => None,
        }
    }

    pub(crate) fn with_article(self) -> String {
        let article =
            if matches!(self, Kind::Environment | Kind::Estimator | Kind::Interpreter) { "an" } else { "a" };
        format!("{article} {self}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Environment => "environment",
            Kind::Reward => "reward",
            Kind::Estimator => "estimator",
            Kind::Loss => "loss",
            Kind::ChatAgent => "chat agent",
            Kind::Interpreter => "interpreter",
        })
    }
}

/// A plugin file, as `molt plugin inspect` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The file's name without `.wasm`, up to an `@`.
    pub name: String,
    pub kind: Kind,
    /// The plugin's own version: the custom section `version`.
    pub version: Option<String>,
    /// One sentence: the custom section `description`.
    pub description: Option<String>,
    /// The version of `molt:plugin` that it was built against.
    pub contract: String,
    /// `sha256:` and the hexadecimal digest of the file.
    pub digest: String,
    /// Size of the file in bytes.
    pub size: u64,
    pub path: PathBuf,
    /// What it asks the host for, sorted.
    pub imports: Vec<String>,
}

/// Reads what the plugin at `path` is.
///
/// # Errors
/// The file is missing, larger than 64 MiB, not a component, damaged, or not a Molt plugin.
pub fn inspect(path: &Path) -> Result<Info, LoadError> {
    read(path).map(|(info, _)| info)
}

/// The name of the plugin in a file: `grpo` of `grpo.wasm`, and of `grpo@0.1.0.wasm`, which is kept beside it.
pub(crate) fn plugin_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.split_once('@').map_or(&*stem, |(name, _)| name).to_owned()
}

/// Reads a plugin file; the bytes are the ones that the digest is of.
pub(crate) fn read(path: &Path) -> Result<(Info, Vec<u8>), LoadError> {
    let bytes = read_bytes(path)?;
    let surface = Surface::of(&bytes).map_err(|bad| bad.at(path))?;
    let Some((kind, contract)) = surface.exported else {
        return Err(LoadError::NotPlugin { path: path.to_owned(), exports: surface.others });
    };
    let info = Info {
        name: plugin_name(path),
        kind,
        version: surface.version,
        description: surface.description,
        contract,
        digest: digest(&bytes),
        size: bytes.len() as u64,
        path: path.to_owned(),
        imports: surface.imports,
    };
    Ok((info, bytes))
}

/// The file's bytes, unless there are too many, or it is no regular file, whose end might never come.
fn read_bytes(path: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(std::io::Error::other("it is not a regular file")));
    }
    let limit = FILE_MIB << 20;
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(LoadError::TooLarge { path: path.to_owned(), limit_mib: FILE_MIB });
    }
    Ok(bytes)
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The outside of a component.
#[derive(Debug, Default)]
struct Surface {
    exported: Option<(Kind, String)>,
    /// What it exports besides.
    others: Vec<String>,
    imports: Vec<String>,
    version: Option<String>,
    description: Option<String>,
}

enum Bad {
    NotWasm,
    CoreModule,
    Corrupt(String),
    TooMuch(String),
}

impl Bad {
    fn at(self, path: &Path) -> LoadError {
        let path = path.to_owned();
        match self {
            Bad::NotWasm => LoadError::NotWasm { path },
            Bad::CoreModule => LoadError::CoreModule { path },
            Bad::Corrupt(reason) => LoadError::Corrupt { path, reason },
            Bad::TooMuch(what) => LoadError::TooMuch { path, what },
        }
    }
}

/// Whether more is nested than any compiler nests. What cannot be read is for the validator to tell.
fn is_deep(bytes: &[u8]) -> bool {
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes).map_while(Result::ok) {
        match payload {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTED {
            return true;
        }
    }
    false
}

impl Surface {
    fn of(bytes: &[u8]) -> Result<Self, Bad> {
        if !bytes.starts_with(b"\0asm") {
            return Err(Bad::NotWasm);
        }
        if Parser::is_core_wasm(bytes) {
            return Err(Bad::CoreModule);
        }
        if is_deep(bytes) {
            return Err(Bad::Corrupt(format!("it has more than {NESTED} components in each other")));
        }
        let corrupt =
            |error: wasmparser::BinaryReaderError| Bad::Corrupt(quote::beginning(&error.to_string()));
        effort::check(bytes).map_err(|unfit| match unfit {
            Unfit::Invalid(error) => corrupt(error),
            Unfit::TooMuch(what) => Bad::TooMuch(what),
        })?;
        let mut surface = Surface::default();
        // The parser goes into nested modules and components; only the outermost one has the plugin's surface.
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload.map_err(corrupt)? {
                Payload::Version { encoding: Encoding::Module | Encoding::Component, .. } => depth += 1,
                Payload::End(_) => depth -= 1,
                Payload::ComponentImportSection(section) if depth == 1 => {
                    for import in section {
                        surface.import(import.map_err(corrupt)?.name.name);
                    }
                }
                Payload::ComponentExportSection(section) if depth == 1 => {
                    for export in section {
                        let export = export.map_err(corrupt)?;
                        let is_instance = export.kind == ComponentExternalKind::Instance;
                        surface.export(export.name.name, is_instance);
                    }
                }
                Payload::CustomSection(section) => surface.custom(section.name(), section.data()),
                _ => {}
            }
        }
        surface.imports.sort();
        Ok(surface)
    }

    fn import(&mut self, name: &str) {
        // The contract's own records: a component imports their types to speak of them, and calls nothing.
        if !name.starts_with("molt:plugin/types@") {
            self.imports.push(quote::beginning(name));
        }
    }

    fn export(&mut self, name: &str, is_instance: bool) {
        let interface = name.strip_prefix("molt:plugin/").and_then(|rest| rest.split_once('@'));
        let found = interface.filter(|_| is_instance);
        match found.and_then(|(interface, version)| Some((Kind::of_interface(interface)?, version))) {
            Some((kind, version)) => {
                self.exported.get_or_insert((kind, quote::beginning(version)));
            }
            None => self.others.push(quote::beginning(name)),
        }
    }

    fn custom(&mut self, name: &str, data: &[u8]) {
        let field = match name {
            "version" => &mut self.version,
            "description" => &mut self.description,
            _ => return,
        };
        if let (None, Ok(text)) = (&field, std::str::from_utf8(data)) {
            *field = Some(quote::beginning(text));
        }
    }
}
