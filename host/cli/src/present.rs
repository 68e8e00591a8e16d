//! Numbers and tables for people.

pub(crate) use molt_author::{print, short_digest, table};

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

/// What is said of rows that were left out; nothing if there are none.
pub(crate) fn skipped(rows: usize) -> String {
    if rows == 0 { String::new() } else { format!(", {rows} malformed skipped") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        let texts = [0, 999, 1200, 260_032, 134_515_008, 1_235_814_400].map(quantity);
        assert_eq!(texts, ["0", "999", "1.2K", "260K", "135M", "1.2B"]);
    }
}
