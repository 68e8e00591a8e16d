//! `molt plugin build`: from a project's source to one component file.

mod c;
mod clock;
mod component;
mod go;
mod js;
mod lines;
mod python;
mod rust;
mod sections;
mod tools;

use crate::built;
use crate::error::{AuthorError, OrAuthor};
use crate::present::{print, short_digest, warn};
use crate::project::{Lang, Project};
use molt_sandbox::Info;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Build a project into one .wasm file
///
/// Crashes of what is built here are told with lines of the source; those of other files only with functions.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The project
    #[arg(default_value = ".")]
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<u8, AuthorError> {
    let start = Instant::now();
    let project = Project::read(&args.dir)?;
    let (out, info) = build(&project)?;
    if let Err(error) = built::note(&info.digest) {
        warn(&format!("crashes will be told without source lines: {error}"));
    }
    print(&format!(
        "{}  {} KB  {}  {:.1} s\n",
        out.display(),
        info.size.div_ceil(1000),
        short_digest(&info.digest),
        start.elapsed().as_secs_f64()
    ))?;
    Ok(0)
}

/// Builds `DIR/NAME.wasm`; returns its path and what it is. The file appears whole, and as a plugin, or not at all.
fn build(project: &Project) -> Result<(PathBuf, Info), AuthorError> {
    let out = project.component();
    let help = "free space there, or make the directory writable";
    let unwritable = || format!("cannot write {}", out.display());
    // Bindings and what else a build writes into the project are one build's at a time.
    let lock = File::open(&project.dir).or_failed(unwritable(), help)?;
    lock.lock().or_failed(unwritable(), help)?;
    let part = crate::oci::partial(&project.name, &project.dir).or_failed(unwritable(), help)?;
    match project.lang {
        Lang::Rust => rust::build(project, part.path())?,
        Lang::Python => python::build(project, part.path())?,
        Lang::Js | Lang::Ts => js::build(project, part.path())?,
        Lang::C => c::build(project, part.path())?,
        Lang::Go => go::build(project, part.path())?,
    }
    describe(project, part.path()).or_failed(unwritable(), help)?;
    let info = molt_sandbox::inspect(part.path()).or_failed(
        format!("what was built of {} is not a plugin", project.dir.display()),
        "look at what the source exports",
    )?;
    crate::oci::keep(part, &out).or_failed(unwritable(), help)?;
    Ok((out, info))
}

/// The path of the source file that a project of this kind and language begins with.
fn entry(project: &Project, name: &str) -> Result<PathBuf, AuthorError> {
    let path = project.dir.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(AuthorError::user(
        format!("{} is not there", path.display()),
        format!("the source of a plugin of kind {} in {} begins there", project.kind, project.lang),
    ))
}

/// Puts the project's version and description into the file, where `inspect` reads them without running
/// anything. The Rust SDK has the compiler do so.
fn describe(project: &Project, file: &Path) -> std::io::Result<()> {
    if project.lang == Lang::Rust {
        return Ok(());
    }
    let mut component = fs::read(file)?;
    sections::append(&mut component, "version", &project.version);
    sections::append(&mut component, "description", &project.description);
    fs::write(file, component)
}
