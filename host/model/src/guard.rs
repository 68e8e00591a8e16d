//! Keeps the text of special tokens inside messages from becoming special tokens.
//!
//! Each such text is replaced by one private-use character before the template is rendered, and encoded as
//! ordinary text after it.

use crate::text_error::TextError;
use crate::tokenizer::Tokenizer;
use molt_core::chat::{Message, Role};
use molt_core::ids::Token;

/// Private-use characters (plane 16) that stand for the control texts in one set of messages.
pub(crate) struct Guard<'a> {
    texts: Vec<&'a str>,
    first: u32,
}

/// Whether a message comes from outside: anyone may have written it.
fn foreign(message: &Message) -> bool {
    matches!(message.role, Role::User | Role::Tool)
}

impl<'a> Guard<'a> {
    /// Stand-ins for those of `control`, longest first, that users or tools wrote.
    pub(crate) fn new(control: &'a [String], messages: &[Message]) -> Self {
        let written = |text: &&str| messages.iter().any(|m| foreign(m) && m.content.contains(*text));
        let texts: Vec<&str> = control.iter().map(String::as_str).filter(written).collect();
        // The stand-ins are the first run of characters that no message contains.
        let mut first = 0x10_0000;
        let mut used: Vec<u32> = messages.iter().flat_map(|m| m.content.chars()).map(u32::from).collect();
        used.retain(|c| *c >= first);
        used.sort_unstable();
        for c in used {
            if (c as usize) < first as usize + texts.len() {
                first = c + 1;
            }
        }
        Self { texts, first }
    }

    /// The messages with stand-ins; `None` if nothing needs one.
    pub(crate) fn messages(&self, messages: &[Message]) -> Option<Vec<Message>> {
        let stand_ins = (self.first..).map_while(char::from_u32);
        let pairs: Vec<(&str, char)> = self.texts.iter().copied().zip(stand_ins).collect();
        let guarded = messages.iter().map(|message| {
            let mut message = message.clone();
            if foreign(&message) {
                for (text, stand_in) in &pairs {
                    message.content = message.content.replace(text, stand_in.encode_utf8(&mut [0; 4]));
                }
            }
            message
        });
        (!pairs.is_empty()).then(|| guarded.collect())
    }

    /// The text with control texts in place of their stand-ins.
    pub(crate) fn reveal(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match self.text_of(c) {
                Some(control) => out.push_str(control),
                None => out.push(c),
            }
        }
        out
    }

    /// The control texts whose stand-ins are in `text`.
    pub(crate) fn texts_in(&self, text: &str) -> Vec<&'a str> {
        text.chars().filter_map(|c| self.text_of(c)).collect()
    }

    /// The tokens of a rendered text: stand-ins as ordinary text, the rest with special tokens.
    pub(crate) fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<Token>, TextError> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some((at, c, control)) =
            rest.char_indices().find_map(|(at, c)| Some((at, c, self.text_of(c)?)))
        {
            tokens.extend(tokenizer.encode(&rest[..at])?);
            tokens.extend(tokenizer.encode_ordinary(control)?);
            rest = &rest[at + c.len_utf8()..];
        }
        tokens.extend(tokenizer.encode(rest)?);
        Ok(tokens)
    }

    fn text_of(&self, c: char) -> Option<&'a str> {
        let index = u32::from(c).checked_sub(self.first)?;
        self.texts.get(usize::try_from(index).ok()?).copied()
    }
}
