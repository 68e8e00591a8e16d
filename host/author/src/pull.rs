//! `molt plugin pull`.

use crate::error::{AuthorError, OrAuthor};
use crate::oci::{self, Access, Reference, Registry};
use crate::present;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Download a plugin from an OCI registry
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where from: HOST/REPOSITORY:TAG, or HOST/REPOSITORY@sha256:… with the digest of its manifest
    reference: String,
    /// The file to write [default: the repository's last part and .wasm]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it is another plugin
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    access: Access,
}

pub(crate) fn run(args: Args) -> Result<u8, AuthorError> {
    let refused = || format!("{} cannot be pulled", args.reference);
    let reference = Reference::parse(&args.reference).map_err(|error| error.told(refused()))?;
    let output = args.output.clone().unwrap_or_else(|| format!("{}.wasm", reference.name()).into());
    let folder = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let registry = Registry::of(&reference, &args.access).map_err(|error| error.told(refused()))?;
    let pulled = oci::drive(refused, oci::pull(&registry, &reference, folder))?;
    let help = "look at its permissions, or choose another place with -o";
    let present = present(&output).or_user(format!("{} cannot be read", output.display()), help)?;
    if let Some(bytes) = present
        && oci::sha256(&bytes) != pulled.info.digest
        && !args.force
    {
        let error = format!("{} is there, and is another file than {reference}", output.display());
        return Err(AuthorError::user(error, "--force replaces it, -o FILE writes another one"));
    }
    oci::keep(pulled.file, &output)
        .or_user(refused(), "free space there, or choose another place with -o")?;
    present::print(&format!(
        "pulled: {} {} into {}\nplugin    {}\nreference {}\n",
        pulled.info.kind,
        pulled.info.version.as_deref().unwrap_or("(no version)"),
        output.display(),
        pulled.info.digest,
        reference.at(&pulled.manifest),
    ))?;
    Ok(0)
}

/// The file's bytes, as far as a plugin could have them; None if there is no such file.
fn present(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take((oci::PLUGIN_MIB << 20) + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
