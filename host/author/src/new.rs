//! `molt plugin new`.

use crate::error::{AuthorError, OrAuthor};
use crate::present::{print, program};
use crate::project::{Kind, Lang, check_name};
use crate::{bindings, embedded};
use std::fs;
use std::path::{Path, PathBuf};

/// Make a project that builds at once
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What the plugin is called
    name: String,
    /// What it does; for a loss, the template is in Rust
    #[arg(long, value_enum)]
    kind: Kind,
    #[arg(long, value_enum, default_value_t = Lang::Rust)]
    lang: Lang,
    /// The directory to make [default: NAME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Files in which the template's name stands for the project's. Source code never speaks of it.
const NAMED: [&str; 6] =
    ["molt.toml", "Cargo.toml", "package.json", "pyproject.toml", "README.md", ".gitignore"];

pub(crate) fn run(args: Args) -> Result<u8, AuthorError> {
    check_name(&args.name)?;
    let dir = args.dir.unwrap_or_else(|| PathBuf::from(&args.name));
    make(&args.name, args.kind, args.lang, &dir)?;
    let place = dir.display();
    print(&format!(
        "{place} is a new {kind} in {lang}. Next:\n\
         \x20 {program} build {place}    writes {place}/{name}.wasm\n\
         \x20 {program} check {place}    whether it keeps the contract\n\
         \x20 {program} test {place}     the cases in {place}/cases.toml\n",
        program = program(),
        kind = args.kind,
        lang = args.lang,
        name = args.name,
    ))?;
    Ok(0)
}

/// Makes `dir`, which must not exist or be empty.
fn make(name: &str, kind: Kind, lang: Lang, dir: &Path) -> Result<(), AuthorError> {
    let Some(template) = embedded::template(kind, lang) else {
        let kinds: Vec<String> = embedded::kinds(lang).iter().map(ToString::to_string).collect();
        let help = if kinds.is_empty() {
            "use another language".into()
        } else {
            format!("it has {}", kinds.join(", "))
        };
        return Err(AuthorError::user(format!("there is no template of kind {kind} in {lang}"), help));
    };
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) || dir.is_file() {
        return Err(AuthorError::user(format!("{} is there already", dir.display()), "give another --dir"));
    }
    for (path, contents) in template.into_iter().chain(embedded::support(lang)) {
        let named =
            path.parent() == Some(Path::new("")) && NAMED.iter().any(|named| path == Path::new(named));
        let text = std::str::from_utf8(contents).ok().filter(|_| named);
        match text {
            Some(text) => write(&dir.join(path), rename(text, name).as_bytes())?,
            None => write(&dir.join(path), contents)?,
        }
    }
    if lang == Lang::Rust {
        bindings::write_out(dir)?;
        write(&dir.join("Cargo.lock"), embedded::CARGO_LOCK.as_bytes())?;
    }
    Ok(())
}

fn write(path: &Path, contents: &[u8]) -> Result<(), AuthorError> {
    let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
    parent
        .and_then(|()| fs::write(path, contents))
        .or_failed(format!("cannot write {}", path.display()), "free space there, or give another --dir")
}

/// The word `example`, and no longer word that contains it, becomes `name`.
fn rename(text: &str, name: &str) -> String {
    const WORD: &str = "example";
    let within = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(WORD) {
        let (before, after) = (&rest[..at], &rest[at + WORD.len()..]);
        let whole = !before.ends_with(within) && !after.starts_with(within);
        renamed.push_str(before);
        renamed.push_str(if whole { name } else { WORD });
        rest = after;
    }
    renamed + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_renamed() {
        let text = "name = \"example\" # examples, an-example, example.wasm";
        assert_eq!(rename(text, "brevity"), "name = \"brevity\" # examples, an-example, brevity.wasm");
    }
}
