//! Talking to a session of the interpreter.

use molt_plugin::code::{Session, Stopped};

/// Runs code; whether it ended in an error.
pub fn run(session: &Session, code: &str) -> Result<bool, Stopped> {
    session.run(code).map(|output| output.error.is_some())
}

/// Characters of a part; a shorter one is the last.
const PART: usize = 16_000;

/// What `_molt` has to give back, part by part; None if it is more than `longest` bytes.
pub fn taken(session: &Session, longest: usize) -> Result<Option<String>, Stopped> {
    let mut text = String::new();
    while text.len() <= longest {
        let part = session.run("_molt")?.value.unwrap_or_default();
        text.push_str(&part);
        if part.chars().count() < PART {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// A Python string with this text, in ASCII.
pub fn literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('\'');
    for character in text.chars() {
        match character {
            '\'' | '\\' => literal.extend(['\\', character]),
            ' '..='~' => literal.push(character),
            _ => literal.push_str(&format!("\\U{:08x}", u32::from(character))),
        }
    }
    literal.push('\'');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_ascii() {
        assert_eq!(literal("it's a \\ \n é"), "'it\\'s a \\\\ \\U0000000a \\U000000e9'");
    }
}
