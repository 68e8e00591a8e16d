//! Tables, digests and messages for people.

use crate::error::{AuthorError, OrAuthor, harmless};
use molt_core::chat::{Message, Role};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The first twelve digits of a `sha256:…` digest.
pub fn short_digest(digest: &str) -> String {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    hex.chars().take(12).collect()
}

/// Writes `text` to standard output, without control characters: it quotes plugins and the names of their files.
/// A reader who has seen enough, like `head`, is no failure.
///
/// # Errors
/// Standard output cannot be written for another reason.
pub fn print(text: &str) -> Result<(), AuthorError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(harmless(text).as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error)
            .or_failed("standard output cannot be written", "free space there, or send it to another place"),
        _ => Ok(()),
    }
}

/// How the person called these commands: `molt plugin`, or the program that is only them.
pub(crate) fn program() -> &'static str {
    let called = std::env::args_os().next().map(PathBuf::from);
    let alone = called.as_deref().and_then(Path::file_stem).is_some_and(|name| name == "molt-plugin");
    if alone { "molt-plugin" } else { "molt plugin" }
}

/// Writes a warning to standard error, without control characters.
pub(crate) fn warn(text: &str) {
    eprintln!("warning: {}", harmless(text));
}

/// Lines with aligned columns. Every row is one line, whatever its cells hold.
pub fn table(rows: &[Vec<String>]) -> String {
    let one_line = |cell: &String| harmless(cell).replace(['\n', '\t'], " ");
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(one_line).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A message on one line.
pub(crate) fn message(message: &Message) -> String {
    format!("{} {}", role(message.role), quoted(&message.content))
}

/// Who said a message.
pub(crate) fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

/// The beginning of a text in quotes, on one line.
pub(crate) fn quoted(text: &str) -> String {
    const LENGTH: usize = 200;
    let beginning: String = text.chars().take(LENGTH).collect();
    format!("{beginning:?}{}", if beginning.len() < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["NAME", "KIND", "PATH"], ["grpo", "estimator", "p/grpo.wasm"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(String::from).to_vec()).collect();
        assert_eq!(table(&rows), "NAME  KIND       PATH\ngrpo  estimator  p/grpo.wasm\n");
    }

    #[test]
    fn a_digest_is_cut() {
        assert_eq!(short_digest("sha256:0123456789abcdef"), "0123456789ab");
    }
}
