//! A guest's words in messages to people: short, on one line, without control characters.

/// Characters of a guest's text that a message quotes at most.
const LENGTH: usize = 400;

/// The beginning of `text`.
pub(crate) fn beginning(text: &str) -> String {
    // Ten times the length leaves room for white space that is folded.
    let text: String = text.chars().take(10 * LENGTH).collect();
    line(&text).chars().take(LENGTH).collect()
}

/// The end of `text`.
pub(crate) fn end(text: &str) -> String {
    let line = line(text);
    line.chars().skip(line.chars().count().saturating_sub(LENGTH)).collect()
}

fn line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|&c| !c.is_control() && !reorders(c)).collect()
}

/// Marks by which a text could have the sentence around it shown in another order.
fn reorders(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_on_one_line() {
        assert_eq!(beginning(" a\n\tb\x1b[31m\u{202e}c "), "a b[31mc");
        let long = format!("{}z", "é".repeat(1 << 16));
        assert_eq!(beginning(&long), "é".repeat(LENGTH));
        assert_eq!(end(&long), format!("{}z", "é".repeat(LENGTH - 1)));
    }
}
