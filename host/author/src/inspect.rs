//! `molt plugin inspect`.

use crate::args::SearchPath;
use crate::error::{AuthorError, OrAuthor};
use crate::open;
use crate::present::{print, table};
use molt_core::settings::Limits;
use molt_sandbox::{Info, Kind, Library, Parameter, Traits};

/// Show everything about one plugin
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name, name@version, a path to a .wasm file, or a project's directory
    name: String,
    #[command(flatten)]
    search: SearchPath,
}

/// Prints everything about one plugin: what its file says also when it cannot be run.
pub(crate) fn run(args: &Args) -> Result<u8, AuthorError> {
    let name = open::target(&args.name)?;
    let library = Library::new(&args.search.path);
    let help = "`molt plugin list` shows the plugins that are found; --plugins.path adds directories";
    let refused = || format!("plugin {name} cannot be inspected");
    let file = library.find(&name).or_user(refused(), help)?;
    let info = molt_sandbox::inspect(&file).or_user(refused(), help)?;
    let traits = (info.kind == Kind::Estimator).then(|| traits(&library, &name)).transpose();
    print(&describe(&info, traits.as_ref().ok().and_then(Option::as_ref)))?;
    traits.map(|_| 0)
}

/// Asks an estimator what it needs.
fn traits(library: &Library, name: &str) -> Result<Traits, AuthorError> {
    let estimator = open::sandbox()?
        .estimator(library, name, Limits::default())
        .or_user(format!("plugin {name} cannot be loaded"), "build it against this version's contract")?;
    open::runtime()?
        .block_on(estimator.traits())
        .or_user(format!("plugin {name} cannot say what it needs"), "look at its `describe`")
}

fn describe(info: &Info, traits: Option<&Traits>) -> String {
    let unset = || "-".to_owned();
    let mut rows = vec![
        ("name", info.name.clone()),
        ("kind", info.kind.to_string()),
        ("version", info.version.clone().unwrap_or_else(unset)),
        ("description", info.description.clone().unwrap_or_else(unset)),
        ("contract", format!("molt:plugin@{}", info.contract)),
        ("digest", info.digest.clone()),
        ("size", format!("{} bytes", info.size)),
        ("path", info.path.display().to_string()),
    ];
    let yes = |holds: bool| (if holds { "yes" } else { "no" }).to_owned();
    if let Some(Traits { needs_group, needs_values, uses_kl, whiten, parameters }) = traits {
        rows.push(("needs group", yes(*needs_group)));
        rows.push(("needs values", yes(*needs_values)));
        rows.push(("uses KL", yes(*uses_kl)));
        rows.push(("whiten", yes(*whiten)));
        if parameters.is_empty() {
            rows.push(("parameters", "none".to_owned()));
        }
        rows.extend(parameters.iter().enumerate().map(|(i, parameter)| {
            let Parameter { name, doc, kind } = parameter;
            let text = format!("{name} = {}, {kind}: {doc}", parameter.default_text());
            (if i == 0 { "parameters" } else { "" }, text)
        }));
    }
    if info.imports.is_empty() {
        rows.push(("imports", "nothing".to_owned()));
    }
    let imports = info.imports.iter().enumerate();
    rows.extend(imports.map(|(i, import)| (if i == 0 { "imports" } else { "" }, import.clone())));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_sandbox::ParameterKind;

    #[test]
    fn a_plugin_is_told_with_all_its_imports() {
        let info = Info {
            name: "grpo".into(),
            kind: Kind::Estimator,
            version: Some("0.1.0".into()),
            description: None,
            contract: "0.1.0".into(),
            digest: "sha256:0123456789abcdef".into(),
            size: 42,
            path: "p/grpo.wasm".into(),
            imports: vec!["wasi:cli/stderr@0.2.6".into(), "wasi:io/error@0.2.6".into()],
        };
        let text = describe(&info, Some(&Traits { needs_group: true, ..Traits::default() }));
        assert!(text.contains("parameters    none\n"), "{text}");
        let gamma = Parameter {
            name: "gamma".into(),
            doc: "discount".into(),
            kind: ParameterKind::Float { default: 1.0, min: 0.0, max: 1.0 },
        };
        let over = Parameter {
            name: "over".into(),
            doc: "what is counted".into(),
            kind: ParameterKind::Choice { words: vec!["tokens".into(), "rollouts".into()] },
        };
        let traits = Traits { needs_group: true, parameters: vec![gamma, over], ..Traits::default() };
        let text = describe(&info, Some(&traits));
        let parameters = "parameters    gamma = 1, a number from 0 to 1: discount\n              \
                          over = tokens, one of tokens, rollouts: what is counted\n";
        assert!(text.contains(parameters), "{text}");
        assert!(text.contains("description   -\n") && text.contains("needs group   yes\n"), "{text}");
        let imports = "imports       wasi:cli/stderr@0.2.6\n              wasi:io/error@0.2.6\n";
        assert!(text.ends_with(imports), "{text}");
    }
}
