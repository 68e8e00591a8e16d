//! What does not change an answer, taken away.

use crate::extract::{group, last_box};
use std::borrow::Cow;

/// An answer without box, escapes, currency and closing punctuation.
pub fn clean(text: &str) -> String {
    let text = last_box(text).flatten().unwrap_or(text);
    let mut text: Cow<'_, str> = unescaped(text.trim());
    let replace = [
        ("−", "-"),
        ("–", "-"),
        ("\\$", ""),
        ("$", ""),
        ("€", ""),
        ("£", ""),
        ("**", "^"),
        ("，", ","),
        (",\\! ", ","),
        (",\\!", ","),
        ("\\!", ""),
        ("\\left.", ""),
        ("\\right.", ""),
    ];
    // A label or an answer in bold.
    if let Some(inside) = text.strip_prefix("**").and_then(|text| text.strip_suffix("**")) {
        text = inside.to_owned().into();
    }
    for (from, to) in replace {
        if text.contains(from) {
            text = text.replace(from, to).into();
        }
    }
    without_braced_commas(&text).trim().trim_end_matches(['.', ',', ';', '\\', '。', ' ']).to_owned()
}

/// `14,916` of `14{,}916`, `14 {, }916` and `14, 916` whose comma was followed by a negative space.
fn without_braced_commas(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        match from[1..].trim_start().strip_prefix(',').and_then(|after| after.trim_start().strip_prefix('}'))
        {
            Some(after) => {
                plain.push_str(before.trim_end());
                plain.push(',');
                rest = after.trim_start();
            }
            None => {
                plain.push_str(&rest[..=at]);
                rest = &from[1..];
            }
        }
    }
    plain + rest
}

/// With one backslash for two, as in a text that was escaped once too often. Where a matrix begins with a single one,
/// two end a row.
fn unescaped(text: &str) -> Cow<'_, str> {
    let rows = text.match_indices("\\begin").any(|(at, _)| !text[..at].ends_with('\\'));
    if rows || !text.contains("\\\\") { text.into() } else { text.replace("\\\\", "\\").into() }
}

/// Words and signs alone, in small letters, for answers that are no mathematics.
pub fn plain(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        words.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        match name {
            "" => {
                // `\,` and the like are spaces; `\{` is a sign.
                let sign = rest.chars().next();
                words.push(sign.filter(|sign| "{}%|\\".contains(*sign)).unwrap_or(' '));
                rest = &rest[sign.map_or(0, char::len_utf8)..];
            }
            "left" | "right" | "displaystyle" | "quad" | "qquad" => rest = after,
            _ if name.starts_with("text") || name.starts_with("math") || name == "mbox" => {
                rest = after;
                if let Some((inside, after)) = rest.starts_with('{').then(|| group(rest)).flatten() {
                    words.extend([" ", inside]);
                    rest = after;
                }
            }
            "dfrac" | "tfrac" | "cfrac" => {
                words.push_str("\\frac");
                rest = after;
            }
            _ => {
                words.extend(["\\", name]);
                rest = after;
            }
        }
    }
    words.push_str(rest);
    let lower = words.to_lowercase();
    compact(lower.trim().trim_end_matches(['.', ',']))
}

/// No spaces but between two digits, and no braces around a single character.
fn compact(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
        if digit(joined.chars().next_back()) && digit(word.chars().next()) {
            joined.push(' ');
        }
        joined.push_str(word);
    }
    let characters: Vec<char> = joined.chars().collect();
    let mut compact = String::with_capacity(joined.len());
    let mut at = 0;
    while at < characters.len() {
        match characters[at..] {
            ['{', inside, '}', ..] => {
                compact.push(inside);
                at += 3;
            }
            [character, ..] => {
                compact.push(character);
                at += 1;
            }
            [] => break,
        }
    }
    compact
}

/// `3:45` of `3:45 p.m.`, and whether it is before noon.
pub fn without_half(text: &str) -> (&str, Option<bool>) {
    let lower = text.to_ascii_lowercase();
    let half = [("am", true), ("a.m", true), ("pm", false), ("p.m", false)].into_iter().find_map(
        |(half, morning)| {
            let time = text[..lower.strip_suffix(half)?.len()].trim_end();
            time.ends_with(|c: char| c.is_ascii_digit()).then_some((time, Some(morning)))
        },
    );
    half.unwrap_or((text, None))
}
