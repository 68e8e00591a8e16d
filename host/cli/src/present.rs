//! Numbers and tables for people.

use crate::stop::{OrStop, Stop};
use std::io::{ErrorKind, Write};

/// A count in at most four characters of digits: 512, 1.2K, 135M.
pub(crate) fn quantity(count: usize) -> String {
    let count = count as f64;
    for (size, unit) in [(1e9, "B"), (1e6, "M"), (1e3, "K")] {
        if count >= size {
            let value = count / size;
            return if value < 10.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") };
        }
    }
    format!("{count}")
}

/// The first twelve digits of a `sha256:…` digest.
pub(crate) fn short_digest(digest: &str) -> String {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    hex.chars().take(12).collect()
}

/// Writes `text` to standard output. A reader who has seen enough, like `head`, is no failure.
pub(crate) fn print(text: &str) -> Result<(), Stop> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error)
            .or_failed("standard output cannot be written", "free space there, or send it to another place"),
        _ => Ok(()),
    }
}

/// What is said of rows that were left out; nothing if there are none.
pub(crate) fn skipped(rows: usize) -> String {
    if rows == 0 { String::new() } else { format!(", {rows} malformed skipped") }
}

/// Lines with aligned columns.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        let texts = [0, 999, 1200, 260_032, 134_515_008, 1_235_814_400].map(quantity);
        assert_eq!(texts, ["0", "999", "1.2K", "260K", "135M", "1.2B"]);
    }

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
