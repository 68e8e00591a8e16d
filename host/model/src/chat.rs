//! Conversations as tokens: a tokenizer and the chat template of its model.
//!
//! What a model sampled is never tokenised again. Everything around it is text of the template, and the text
//! that follows a sampled turn is found by rendering the conversation with a marker in place of that turn.
//! So a history keeps what was sampled, also where the template would drop it (reasoning of earlier turns).
//! Such a piece of text is tokenised by itself.
//!
//! The text of a special token inside a message of a user or a tool is shown to the model as ordinary text:
//! unlike with `transformers`, a message cannot end itself or open another. What the template, the system
//! prompt and the assistant write is read with special tokens.

use crate::guard::Guard;
use crate::template::Template;
use crate::text_error::TextError;
use crate::tokenizer::{Tokenizer, json};
use molt_core::chat::{Message, Role};
use molt_core::ids::Token;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use time::OffsetDateTime;

/// Files beside the weights that say how text becomes tokens, and when a turn ends.
const FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
];

/// Tokenizer and chat template.
#[derive(Debug)]
pub struct Chat {
    tokenizer: Arc<Tokenizer>,
    template: Template,
}

impl Chat {
    /// Reads the tokenizer and `template_override`, else `chat_template.jinja`, else the `chat_template` of
    /// `tokenizer_config.json`: a string, or a list with one named `default`. `strftime_now` tells the time
    /// of this call in UTC, so that one run sees one date.
    ///
    /// # Errors
    /// Unreadable files, no template, a template that does not compile, or one that a rollout could not use:
    /// it is tried on a short conversation here, before anything runs.
    pub fn load(model_dir: &Path, template_override: Option<&Path>) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::load(model_dir)?;
        let own = model_dir.join("chat_template.jinja");
        let file = template_override.or_else(|| own.exists().then_some(own.as_path()));
        let source = match file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| TextError::Read { path: path.into(), source })?,
            None => configured(&json(&model_dir.join("tokenizer_config.json"))?["chat_template"])
                .ok_or_else(|| TextError::NoTemplate(model_dir.into()))?,
        };
        Self::new(tokenizer, &source, OffsetDateTime::now_utc())
    }

    pub(crate) fn new(tokenizer: Tokenizer, source: &str, now: OffsetDateTime) -> Result<Self, TextError> {
        let chat = Self { tokenizer: Arc::new(tokenizer), template: Template::compile(source, now)? };
        let user = [Message::new(Role::User, "a")];
        chat.prompt(&user)?;
        let history = [user[0].clone(), Message::new(Role::Assistant, "b")];
        chat.after_turn(&history, &user, true)?;
        Ok(chat)
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The tokens of `messages`, up to where the assistant's next turn begins.
    ///
    /// # Errors
    /// Messages that the template refuses, with its reason.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, TextError> {
        let guard = Guard::new(self.tokenizer.control_texts(), messages);
        let text = self.render(&guard, messages, true)?;
        guard.encode(&self.tokenizer, &text)
    }

    /// The context tokens between a sampled turn and the next: whatever the template closes the turn with,
    /// the messages of `observation`, and the next generation prompt.
    ///
    /// `history` ends with the assistant's turn just sampled; `last_sampled` are its tokens. If they end with
    /// a stop token, the stop token that the template would close the turn with is left out: a turn is closed once.
    ///
    /// # Errors
    /// Messages that the template refuses, or a template that does not show the turn exactly once.
    pub fn seam(
        &self,
        history: &[Message],
        last_sampled: &[Token],
        observation: &[Message],
    ) -> Result<Vec<Token>, TextError> {
        let mut tail = self.after_turn(history, observation, true)?;
        let closed = last_sampled.last().is_some_and(|token| self.tokenizer.stop_tokens().contains(token));
        if let Some(stop) = self.closing_stop(&tail).filter(|_| closed) {
            tail.drain(..=stop);
        }
        Ok(tail)
    }

    /// A row of supervised learning: the tokens that a rollout with these turns of the assistant would have,
    /// and which of them the assistant wrote, the stop token that closes each of its turns included.
    /// The row ends with the last turn of the assistant; what follows it teaches nothing.
    ///
    /// # Errors
    /// No message of the assistant, messages that the template refuses, or a template that closes a turn with
    /// none of the model's stop tokens.
    pub fn supervised(&self, messages: &[Message]) -> Result<(Vec<Token>, Vec<bool>), TextError> {
        let turns: Vec<usize> =
            (0..messages.len()).filter(|i| messages[*i].role == Role::Assistant).collect();
        let first = *turns.first().ok_or(TextError::NothingToLearn)?;
        let mut tokens = self.prompt(&messages[..first])?;
        let mut learned = vec![false; tokens.len()];
        for (index, &turn) in turns.iter().enumerate() {
            // A last turn is closed as if the conversation went on, as templates may end the text differently.
            let next = turns.get(index + 1);
            let follow_up = [Message::new(Role::User, "a")];
            let observation = next.map_or(&follow_up[..], |next| &messages[turn + 1..*next]);
            let tail = self.after_turn(&messages[..=turn], observation, next.is_some())?;
            let stop = self.closing_stop(&tail).ok_or_else(|| self.no_stop(&tail))?;
            tokens.extend(self.tokenizer.encode(&messages[turn].content)?);
            tokens.extend(&tail[..=stop]);
            learned.resize(tokens.len(), true);
            if next.is_some() {
                tokens.extend(&tail[stop + 1..]);
                learned.resize(tokens.len(), false);
            }
        }
        Ok((tokens, learned))
    }

    /// Copies the files that say how text becomes tokens, as far as `from` has them.
    ///
    /// # Errors
    /// A file that exists and cannot be copied.
    pub fn copy_files(from: &Path, to: &Path) -> Result<(), TextError> {
        for name in FILES {
            let (source, target) = (from.join(name), to.join(name));
            if source.exists() {
                std::fs::copy(source, &target).map_err(|source| TextError::Write { path: target, source })?;
            }
        }
        Ok(())
    }

    /// The tokens after the last message of `history`, which is shown as a marker.
    fn after_turn(
        &self,
        history: &[Message],
        observation: &[Message],
        generation: bool,
    ) -> Result<Vec<Token>, TextError> {
        let mut messages = [history, observation].concat();
        let marker = (0..)
            .map(|n| format!("molt-turn-{n}"))
            .find(|marker| messages.iter().all(|m| !m.content.contains(marker)))
            .unwrap_or_default();
        if let Some(turn) = history.len().checked_sub(1) {
            messages[turn].content.clone_from(&marker);
        }
        let guard = Guard::new(self.tokenizer.control_texts(), &messages);
        let text = self.render(&guard, &messages, generation)?;
        match text.split(&marker).collect::<Vec<_>>()[..] {
            [_, tail] => guard.encode(&self.tokenizer, tail),
            ref parts => Err(TextError::Seam { found: parts.len() - 1 }),
        }
    }

    /// The text of `messages` with control texts of users and tools guarded.
    fn render(&self, guard: &Guard, messages: &[Message], generation: bool) -> Result<String, TextError> {
        let Some(guarded) = guard.messages(messages) else {
            return self.template.render(&self.context(messages, generation));
        };
        let text = self.template.render(&self.context(&guarded, generation))?;
        // A template that looks into the text would see something else than the message.
        let unguarded = self.template.render(&self.context(messages, generation))?;
        if guard.reveal(&text) != unguarded {
            return Err(TextError::EditedSpecial(guard.texts_in(&text).join(" ")));
        }
        Ok(text)
    }

    /// What a template sees: what `transformers` gives it for a conversation without tools and documents.
    fn context(&self, messages: &[Message], generation: bool) -> Value {
        let mut context = json!({
            "messages": messages,
            "tools": null,
            "documents": null,
            "add_generation_prompt": generation,
        });
        for (name, text) in self.tokenizer.special_tokens() {
            context[name] = text.as_str().into();
        }
        context
    }

    /// Where the stop token is that closes a turn: the first one, with at most white space before it.
    fn closing_stop(&self, tail: &[Token]) -> Option<usize> {
        let stop = tail.iter().position(|token| self.tokenizer.stop_tokens().contains(token))?;
        self.tokenizer.decode(&tail[..stop], false).trim().is_empty().then_some(stop)
    }

    fn no_stop(&self, tail: &[Token]) -> TextError {
        let stop = self.tokenizer.stop_tokens().iter().filter_map(|token| self.tokenizer.token_text(*token));
        let closing: String = self.tokenizer.decode(tail, false).chars().take(40).collect();
        TextError::NoStop { closing, stop: stop.collect() }
    }
}

/// The template in a `chat_template` entry.
fn configured(entry: &Value) -> Option<String> {
    let named = |list: &Vec<Value>| {
        let default = list.iter().find(|template| template["name"] == "default");
        default.and_then(|template| template["template"].as_str()).map(str::to_owned)
    };
    entry.as_str().map(str::to_owned).or_else(|| entry.as_array().and_then(named))
}

#[cfg(test)]
mod tests;
