//! Stop strings in text that is decoded token by token.

use molt_core::ids::Token;

/// Looks for strings in the text of a growing turn.
///
/// A character may be spread over tokens, so text that ends in the middle of one is held back; and a token's
/// text may depend on the token before it, so tokens are decoded with those that came with the text before.
#[derive(Debug)]
pub(crate) struct StopText {
    strings: Vec<String>,
    tokens: Vec<Token>,
    /// `tokens[..known]` are the text that was already looked at; they only give context.
    known: usize,
    /// The end of the text that was looked at, as long as part of a stop string can be in it.
    tail: String,
}

impl StopText {
    /// `strings` are not empty.
    pub(crate) fn new(strings: Vec<String>) -> Self {
        Self { strings, tokens: Vec::new(), known: 0, tail: String::new() }
    }

    /// Adds a token; true if it completes a stop string. `decode` shows an unfinished character as U+FFFD.
    pub(crate) fn push(&mut self, token: Token, decode: impl Fn(&[Token]) -> String) -> bool {
        if self.strings.is_empty() {
            return false;
        }
        self.tokens.push(token);
        let known = decode(&self.tokens[..self.known]).len();
        let decoded = decode(&self.tokens);
        let whole = decoded.trim_end_matches('\u{FFFD}');
        let text = format!("{}{}", self.tail, whole.get(known..).unwrap_or_default());
        if self.strings.iter().any(|string| text.contains(string)) {
            return true;
        }
        if whole.len() == decoded.len() {
            let longest = self.strings.iter().map(String::len).max().unwrap_or_default();
            let mut start = (text.len() + 1).saturating_sub(longest);
            while !text.is_char_boundary(start) {
                start -= 1;
            }
            self.tail = text[start..].to_owned();
            self.tokens.drain(..self.known);
            self.known = self.tokens.len();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One byte per token.
    fn bytes(tokens: &[Token]) -> String {
        String::from_utf8_lossy(&tokens.iter().map(|t| *t as u8).collect::<Vec<_>>()).into_owned()
    }

    fn stops_after(strings: &[&str], text: &[u8]) -> Option<usize> {
        let mut stop = StopText::new(strings.iter().map(|s| (*s).to_owned()).collect());
        text.iter().position(|byte| stop.push(Token::from(*byte), bytes)).map(|index| index + 1)
    }

    #[test]
    fn a_string_over_several_tokens_stops_at_its_last() {
        assert_eq!(stops_after(&["</answer>"], b"<answer>4</answer> rest"), Some(18));
        assert_eq!(stops_after(&["x", "</"], b"ab</x"), Some(4));
        assert_eq!(stops_after(&["abc"], b"ababab"), None);
        assert_eq!(stops_after(&[], b"abc"), None);
    }

    #[test]
    fn characters_over_several_tokens_are_whole() {
        let text = "ok 🦀é!";
        assert_eq!(stops_after(&["🦀"], text.as_bytes()), Some(7));
        assert_eq!(stops_after(&["é!"], text.as_bytes()), Some(text.len()));
        // Half a crab and bytes that are no text at all do not hide what follows them.
        assert_eq!(stops_after(&["end"], b"\xF0\x9F\xFF\xFEend"), Some(7));
    }

    #[test]
    fn a_token_with_the_string_and_half_a_character_stops_at_once() {
        let pieces: [&[u8]; 3] = [b"a", b"end\xF0\x9F", b"\xA6\x80"];
        let decode = |tokens: &[Token]| {
            let joined: Vec<u8> = tokens.iter().flat_map(|t| pieces[*t as usize]).copied().collect();
            String::from_utf8_lossy(&joined).into_owned()
        };
        let mut stop = StopText::new(vec!["end".into()]);
        assert!(!stop.push(0, decode));
        assert!(stop.push(1, decode));
    }

    proptest! {
        #[test]
        fn stops_exactly_where_the_text_first_holds_a_string(
            text in "[ab🦀]{0,24}",
            strings in prop::collection::vec("[ab🦀]{1,4}", 1..3),
        ) {
            let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
            let expected = strings.iter().filter_map(|s| text.find(s).map(|at| at + s.len())).min();
            prop_assert_eq!(stops_after(&strings, text.as_bytes()), expected);
        }
    }
}
