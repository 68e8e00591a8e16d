//! `molt plugin push`.

use crate::error::{AuthorError, OrAuthor};
use crate::oci::{self, Access, Reference, Registry};
use crate::{open, present};
use molt_sandbox::inspect;
use std::path::Path;

/// Upload a plugin to an OCI registry
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The plugin: a .wasm file, or a project's directory
    file: String,
    /// Where to: HOST/REPOSITORY:TAG
    reference: String,
    #[command(flatten)]
    access: Access,
}

pub(crate) fn run(args: Args) -> Result<u8, AuthorError> {
    let refused = || format!("{} cannot be pushed to {}", args.file, args.reference);
    let reference = Reference::parse(&args.reference).map_err(|error| error.told(refused()))?;
    if reference.tag().is_none() || reference.digest().is_some() {
        let help = "end the reference with a tag such as :0.1.0; the digest is known when it is there";
        return Err(AuthorError::user(refused(), help));
    }
    let file = open::target(&args.file)?;
    let path = Path::new(&file);
    let info = inspect(path).or_user(refused(), "push a plugin that `molt plugin inspect` takes")?;
    let bytes = std::fs::read(path).or_user(refused(), "check the file")?;
    if oci::sha256(&bytes) != info.digest {
        return Err(AuthorError::user(format!("{file} changed while it was read"), "push it again"));
    }
    let artifact = oci::Artifact::of(&info, &bytes)?;
    let registry = Registry::of(&reference, &args.access).map_err(|error| error.told(refused()))?;
    let pushed = oci::drive(refused, oci::push(&registry, &reference, (&info, bytes, artifact)))?;
    let did = if pushed.present { "was there already" } else { "pushed" };
    present::print(&format!(
        "{did}: {} {} as {reference}\nplugin    {}\nreference {}\n",
        info.name,
        info.version.as_deref().unwrap_or("(no version)"),
        info.digest,
        reference.at(&pushed.manifest),
    ))?;
    Ok(0)
}
