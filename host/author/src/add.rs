//! `molt plugin add`.

use crate::error::{AuthorError, OrAuthor};
use crate::oci::{self, Access, Reference, Registry};
use crate::{open, present};
use molt_sandbox::{Info, Library, inspect};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Install a plugin into the search path, so that runs find it by name
///
/// It goes into molt/plugins in the user's data directory. A plugin of the same name and another version that is
/// there already is kept as NAME@VERSION.wasm, and found by NAME@VERSION.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A .wasm file, a project's directory, or a reference to a registry: HOST/REPOSITORY:TAG
    plugin: String,
    /// Replace a plugin of the same name and version that has another digest
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    access: Access,
}

pub(crate) fn run(args: Args) -> Result<u8, AuthorError> {
    let refused = || format!("{} cannot be added", args.plugin);
    let Some(home) = Library::home() else {
        return Err(AuthorError::user(refused(), "set HOME or XDG_DATA_HOME to an absolute path"));
    };
    let help = format!("free space in {}, or set XDG_DATA_HOME to another place", home.display());
    fs::create_dir_all(&home).or_user(refused(), &help)?;
    let (info, file) = if Reference::names_host(&args.plugin) && !Path::new(&args.plugin).exists() {
        let reference = Reference::parse(&args.plugin).map_err(|error| error.told(refused()))?;
        let registry = Registry::of(&reference, &args.access).map_err(|error| error.told(refused()))?;
        let pulled = oci::drive(refused, oci::pull(&registry, &reference, &home))?;
        (pulled.info, pulled.file)
    } else {
        copy(&open::target(&args.plugin)?, &home, refused)?
    };
    let kept = install(&home, &info, file, args.force)?;
    let mut told = format!(
        "added: {} {} {}\nplugin    {}\nfile      {}\n",
        info.kind,
        info.name,
        info.version.as_deref().unwrap_or("(no version)"),
        info.digest,
        home.join(format!("{}.wasm", info.name)).display()
    );
    if let Some(kept) = kept {
        told += &format!("kept      {}\n", kept.display());
    }
    if let Some(first) = Library::new(&[]).find(&info.name).ok().filter(|first| !first.starts_with(&home)) {
        told += &format!("note      {} comes first in the search path\n", first.display());
    }
    present::print(&told)?;
    Ok(0)
}

/// A copy of the file in `folder`, and what the copy is.
fn copy(
    file: &str,
    folder: &Path,
    refused: impl Fn() -> String,
) -> Result<(Info, NamedTempFile), AuthorError> {
    let path = Path::new(file);
    let named = inspect(path).or_user(refused(), "add a plugin that `molt plugin inspect` takes")?;
    let copied = (|| {
        let mut copy = oci::partial(&named.name, folder)?;
        io::copy(&mut fs::File::open(path)?, copy.as_file_mut())?;
        copy.as_file_mut().flush()?;
        copy.as_file().sync_all()?;
        Ok::<_, io::Error>(copy)
    })();
    let copied = copied.or_user(refused(), "free space there, or set XDG_DATA_HOME to another place")?;
    let info = inspect(copied.path()).or_user(refused(), "it changed while it was read; add it again")?;
    Ok((Info { name: named.name, ..info }, copied))
}

/// Makes `file` the plugin of its name in `home`. Another version that is there is kept by its version, and
/// returned.
fn install(
    home: &Path,
    info: &Info,
    file: NamedTempFile,
    force: bool,
) -> Result<Option<PathBuf>, AuthorError> {
    let refused = || format!("{} cannot be added", info.name);
    let help = "look at the permissions of the folder";
    // Between a look at what is there and its replacement nobody else replaces it.
    let lock = fs::File::open(home).or_user(refused(), help)?;
    lock.lock().or_user(refused(), help)?;
    let target = home.join(format!("{}.wasm", info.name));
    // What cannot be read as a plugin is another one, too.
    let present = target.exists().then(|| inspect(&target).ok());
    let mut kept = None;
    match present {
        None => {}
        Some(Some(old)) if old.digest == info.digest => {}
        Some(Some(old)) if old.version.is_some() && old.version != info.version => {
            let place = home.join(format!("{}@{}.wasm", info.name, file_part(old.version.as_deref())));
            keep(&old, &place, force)?;
            kept = Some(place);
        }
        Some(old) if !force => {
            let has = old.map_or("is no plugin".into(), |old| format!("has digest {}", old.digest));
            return Err(AuthorError::user(
                format!(
                    "{} {has}, and the new one of the same version has {}",
                    target.display(),
                    info.digest
                ),
                "--force replaces it; a new version in its manifest keeps both",
            ));
        }
        Some(_) => {}
    }
    oci::keep(file, &target).or_user(refused(), help)?;
    Ok(kept)
}

/// A second name for the plugin that is about to be replaced.
fn keep(old: &Info, place: &Path, force: bool) -> Result<(), AuthorError> {
    let there = place.exists().then(|| inspect(place).ok());
    match there {
        Some(Some(there)) if there.digest == old.digest => return Ok(()),
        Some(_) if !force => {
            let error = format!("{} is another plugin than {}", place.display(), old.path.display());
            return Err(AuthorError::user(error, "move one of them away, or replace it with --force"));
        }
        Some(_) => fs::remove_file(place),
        None => Ok(()),
    }
    .and_then(|()| fs::hard_link(&old.path, place))
    .or_user(format!("{} cannot be kept", old.path.display()), "look at the permissions of the folder")
}

/// A version as a part of a file name: a plugin may call its version anything.
fn file_part(version: Option<&str>) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    version.unwrap_or_default().chars().map(|c| if fits(c) { c } else { '_' }).take(100).collect()
}
