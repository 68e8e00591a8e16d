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
    line.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_on_one_line() {
        assert_eq!(beginning(" a\n\tb\x1b[31m "), "a b[31m");
        let long = format!("{}z", "é".repeat(1 << 16));
        assert_eq!(beginning(&long), "é".repeat(LENGTH));
        assert_eq!(end(&long), format!("{}z", "é".repeat(LENGTH - 1)));
    }
}
