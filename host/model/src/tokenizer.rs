//! Text to token ids and back, exactly as the reference implementation does.

use crate::text_error::TextError;
use molt_core::ids::Token;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// A model's tokenizer and what its configuration says about special tokens. Never truncates, never pads,
/// never adds a token by itself.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: Vec<(String, String)>,
    control: Vec<String>,
    stop: Vec<Token>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and what `tokenizer_config.json`, `special_tokens_map.json`, `config.json` and
    /// `generation_config.json` say of special tokens, where present.
    ///
    /// # Errors
    /// A missing or malformed file, or a tokenizer that cannot encode text outside its vocabulary.
    pub fn load(dir: &Path) -> Result<Self, TextError> {
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| TextError::Read { path: path.clone(), source })?;
        let broken =
            |error: tokenizers::Error| TextError::Tokenizer { path: path.clone(), detail: error.to_string() };
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(broken)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(broken)?;
        // A vocabulary without an unknown token fails on the first text it does not cover: find out now.
        inner.encode_fast("\u{10FFFD}", false).map_err(broken)?;

        let mut special = Vec::new();
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            named_tokens(&json(&dir.join(name))?, &mut special);
        }
        let mut stop = BTreeSet::new();
        for name in ["config.json", "generation_config.json"] {
            token_ids(&json(&dir.join(name))?["eos_token_id"], &mut stop);
        }
        stop.extend(
            special.iter().filter(|(n, _)| n == "eos_token").filter_map(|(_, text)| inner.token_to_id(text)),
        );

        let mut control: Vec<String> = inner
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| token.special && !token.content.is_empty())
            .map(|token| token.content)
            .collect();
        control.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        Ok(Self { inner, special, control, stop: stop.into_iter().collect() })
    }

    /// The ids of `text`. Special tokens written out in the text become their ids; none are added.
    ///
    /// # Errors
    /// A tokenizer whose own rules fail on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>, TextError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| TextError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a special token's text, read as ordinary text.
    pub(crate) fn encode_ordinary(&self, control: &str) -> Result<Vec<Token>, TextError> {
        let (first, rest) = control.split_at(control.chars().next().map_or(0, char::len_utf8));
        Ok([self.encode(first)?, self.encode(rest)?].concat())
    }

    /// The text of `tokens`; bytes that are not UTF-8 show as U+FFFD, ids outside the vocabulary as nothing.
    pub fn decode(&self, tokens: &[Token], skip_special: bool) -> String {
        self.inner.decode(tokens, skip_special).unwrap_or_else(|_| {
            tokens.iter().filter_map(|token| self.inner.id_to_token(*token)).collect::<String>()
        })
    }

    /// What ends a turn of the model, ascending: the end-of-sequence ids of `config.json` and
    /// `generation_config.json`, and the `eos_token` of `tokenizer_config.json`.
    pub fn stop_tokens(&self) -> &[Token] {
        &self.stop
    }

    /// How the vocabulary spells a token.
    pub fn token_text(&self, token: Token) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// One more than the largest id, added tokens included: ids may have gaps.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// The first token that `other` spells in another way or does not know; None if both have the same vocabulary.
    pub fn first_difference(&self, other: &Self) -> Option<Token> {
        let most = self.vocab_size().max(other.vocab_size()) as Token;
        (0..most).find(|&token| self.token_text(token) != other.token_text(token))
    }

    /// Special tokens by the names that templates use, e.g. `bos_token`.
    pub(crate) fn special_tokens(&self) -> &[(String, String)] {
        &self.special
    }

    /// The texts that [`Tokenizer::encode`] reads as control tokens, longest first.
    pub(crate) fn control_texts(&self) -> &[String] {
        &self.control
    }
}

/// The JSON value in a file, `null` if there is no file.
pub(crate) fn json(path: &Path) -> Result<Value, TextError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(source) => return Err(TextError::Read { path: path.into(), source }),
    };
    serde_json::from_slice(&bytes).map_err(|source| TextError::Json { path: path.into(), source })
}

/// Adds the `*_token` entries of a configuration that are not there yet: a string, or an object with `content`.
fn named_tokens(config: &Value, into: &mut Vec<(String, String)>) {
    for (name, value) in config.as_object().into_iter().flatten() {
        if !name.ends_with("_token") || into.iter().any(|(known, _)| known == name) {
            continue;
        }
        if let Some(text) = value.as_str().or_else(|| value["content"].as_str()) {
            into.push((name.clone(), text.to_owned()));
        }
    }
}

/// Adds an id, or each of a list of ids.
fn token_ids(value: &Value, into: &mut BTreeSet<Token>) {
    let single = std::slice::from_ref(value);
    let values = value.as_array().map_or(single, Vec::as_slice);
    into.extend(values.iter().filter_map(|id| Token::try_from(id.as_u64()?).ok()));
}
