//! Letters that stand for one of several given answers.

use crate::extract::{after_thinking, last_box};

const LETTERS: std::ops::RangeInclusive<char> = 'A'..='J';

/// The letter that is all of a label, in brackets or not.
pub fn letter(text: &str) -> Option<char> {
    let bare = text.trim().trim_matches(['(', ')', '.', ' ', '$']);
    let mut characters = bare.chars();
    let letter = characters.next().filter(|letter| LETTERS.contains(letter))?;
    characters.next().is_none().then_some(letter)
}

/// The letter that a text begins with: `(D) Alina`, `C Cecile`.
pub fn leading(text: &str) -> Option<char> {
    let mut characters = text.trim().trim_start_matches(['(', '*', '$']).chars();
    let letter = characters.next().filter(|letter| LETTERS.contains(letter))?;
    (!characters.next().is_some_and(char::is_alphanumeric)).then_some(letter)
}

/// The letter that a model chose: in the last box, else at the beginning with a sign after it, else the last one of
/// which it does not say "not".
pub fn chosen(text: &str) -> Option<char> {
    let text = after_thinking(text)?;
    match last_box(text) {
        Some(inside) => {
            let inside = inside?.replace("\\text", "").replace("\\mathrm", "").replace(['{', '}'], "");
            return leading(&inside);
        }
        None => {
            let start = text.trim_start().trim_start_matches(['(', '*']);
            let sign = start.chars().nth(1).is_none_or(|c| !c.is_ascii_alphanumeric() && !c.is_whitespace());
            if let Some(letter) = start.chars().next().filter(|letter| LETTERS.contains(letter) && sign) {
                return Some(letter);
            }
        }
    }
    let mut last = None;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        let rest = &text[at + letter.len_utf8()..];
        let alone = !before.is_ascii_alphanumeric()
            && !matches!(before, '\'' | '’')
            && !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '\'' | '’'));
        before = letter;
        // "A dog" and "I think" are no choices.
        let article =
            matches!(letter, 'A' | 'I') && rest.trim_start().starts_with(|c: char| c.is_ascii_lowercase());
        if alone && LETTERS.contains(&letter) && !article && !is_negated(&text[..at]) {
            last = Some(letter);
        }
    }
    last
}

fn is_negated(before: &str) -> bool {
    let before = before.trim_end_matches([' ', '(', '*']);
    ["not", "n't be", "non", "不是", " isn't"].iter().any(|not| before.ends_with(not))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letter_that_was_chosen() {
        for (text, letter) in [
            ("It's not A because it makes no sense, so I think it's B", Some('B')),
            ("D. it can't be A", Some('D')),
            ("(C) Cecile", Some('C')),
            ("réponse est C non A", Some('C')),
            ("B不是 A", Some('B')),
            ("\\boxed{\\text{(E)}}", Some('E')),
            ("A train leaves at 5", None),
            ("I think", None),
            ("\\boxed{B} or C", Some('B')),
            ("\\boxed{B", None),
            ("", None),
        ] {
            assert_eq!(chosen(text), letter, "{text:?}");
        }
        assert_eq!(letter("(B)"), Some('B'));
        assert_eq!(letter("Bob"), None);
        assert_eq!(leading("C Cecile"), Some('C'));
        assert_eq!(leading("Cecile"), None);
    }
}
