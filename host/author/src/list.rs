//! `molt plugin list`.

use crate::args::SearchPath;
use crate::error::{AuthorError, chain};
use crate::present::{print, short_digest, table, warn};
use molt_sandbox::{Info, Library};

/// List the plugins that are found by name
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    search: SearchPath,
}

/// Prints every plugin on the search path. A file that cannot be read is told, and is no failure.
pub(crate) fn run(args: &Args) -> Result<u8, AuthorError> {
    let found = Library::new(&args.search.path).list();
    let (good, bad): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
    let infos: Vec<Info> = good.into_iter().flatten().collect();
    if infos.is_empty() {
        eprintln!("no plugins are found; --plugins.path, MOLT_PLUGIN_PATH or ./plugins say where they are");
    } else {
        print(&rows(&infos))?;
    }
    for error in bad.into_iter().filter_map(Result::err) {
        warn(&chain(&error).join(": "));
    }
    Ok(0)
}

fn rows(infos: &[Info]) -> String {
    let head = ["NAME", "KIND", "VERSION", "CONTRACT", "DIGEST", "PATH"].map(String::from).to_vec();
    let row = |info: &Info| {
        vec![
            info.name.clone(),
            info.kind.to_string(),
            info.version.clone().unwrap_or_else(|| "-".into()),
            info.contract.clone(),
            short_digest(&info.digest),
            info.path.display().to_string(),
        ]
    };
    table(&std::iter::once(head).chain(infos.iter().map(row)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_sandbox::Kind;

    #[test]
    fn a_list_has_aligned_columns() {
        let info = Info {
            name: "grpo".into(),
            kind: Kind::Estimator,
            version: Some("0.1.0".into()),
            description: None,
            contract: "0.1.0".into(),
            digest: "sha256:0123456789abcdef".into(),
            size: 42,
            path: "p/grpo.wasm".into(),
            imports: vec![],
        };
        assert_eq!(
            rows(&[info]),
            "NAME  KIND       VERSION  CONTRACT  DIGEST        PATH\n\
             grpo  estimator  0.1.0    0.1.0     0123456789ab  p/grpo.wasm\n"
        );
    }
}
