//! Which part of a text is its final answer.

use crate::lex::lex;
use crate::markup::clean;
use crate::{parse, unit};

/// Bytes of a text that may be one answer as it stands.
const SHORT: usize = 300;

/// Characters between two boxes that make one answer.
const JOIN: usize = 20;

/// Boxes that make one answer.
const MOST_BOXES: usize = 32;

/// Words with digits in them that are passed over on the way to a number.
const MOST_TRIES: usize = 32;

/// The final answer of `text` after its thinking: the last box, or boxes joined by words like "and"; else what follows
/// the last "answer is", "answer:" or `####`; else the text itself if it is nothing else, its last formula or its last
/// number. None if there is none, if the last box never closes, or if `boxed` and there is no box.
pub fn final_answer(text: &str, boxed: bool) -> Option<String> {
    let text = after_thinking(text)?;
    match last_box(text) {
        Some(None) => None,
        Some(Some(_)) => Some(boxes(text)),
        None if boxed => None,
        None => within(after_phrase(text).unwrap_or(text)),
    }
}

/// What a label says the answer is: what it marks as one, or else all of it.
pub fn expected(label: &str) -> String {
    match last_box(label) {
        Some(Some(_)) => boxes(label),
        _ => after_phrase(label).filter(|answer| !answer.is_empty()).unwrap_or(label).to_owned(),
    }
}

/// What follows the thinking; None if it never ends.
pub fn after_thinking(text: &str) -> Option<&str> {
    match text.rsplit_once("</think>") {
        Some((_, answer)) => Some(answer),
        None => (!text.contains("<think>")).then_some(text),
    }
}

/// The last `\boxed{…}` or `\fbox{…}`: None without one, Some(None) if it never closes.
pub fn last_box(text: &str) -> Option<Option<&str>> {
    let at = last_opening(text)?;
    Some(group(text[at..].trim_start_matches(|c| c != '{')).map(|(inside, _)| inside))
}

/// Where the last box begins.
fn last_opening(text: &str) -> Option<usize> {
    let opened = |name: &str| {
        let opens = |at: &usize| text[at + name.len()..].trim_start().starts_with('{');
        text.rmatch_indices(name).map(|(at, _)| at).find(opens)
    };
    opened("\\boxed").max(opened("\\fbox"))
}

/// The last box, and those before it that are joined with it, parted by commas.
fn boxes(text: &str) -> String {
    let mut found: Vec<&str> = vec![];
    let mut rest = text;
    while let Some(at) = last_opening(rest).filter(|_| found.len() < MOST_BOXES) {
        let Some((inside, after)) = group(rest[at..].trim_start_matches(|c| c != '{')) else { break };
        if !found.is_empty() && !joins(after) {
            break;
        }
        found.push(inside);
        rest = &rest[..at];
    }
    found.reverse();
    found.join(", ")
}

/// Whether what stands between two boxes makes them one answer.
fn joins(between: &str) -> bool {
    let words: String = between.replace("\\quad", " ").replace("\\text", " ");
    let words = words.trim_matches(|c: char| c.is_whitespace() || "${}\\[]".contains(c));
    words.chars().count() <= JOIN
        && !words.contains(['.', '=', '\n', ':'])
        && !words.contains(|c: char| c.is_numeric())
}

/// The inside of the braces that `text` begins with, and what follows them.
pub fn group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' if depth <= 1 => return (depth == 1).then(|| (&text[1..at], &text[at + 1..])),
            b'}' => depth -= 1,
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// What follows the last phrase that announces an answer, to the end of the sentence.
fn after_phrase(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    // Not "answer isn't" or "answer issued".
    let ends = |end: &usize| !lower[*end..].starts_with(|c: char| c.is_alphabetic());
    let end = |phrase: &str| lower.rmatch_indices(phrase).map(|(at, _)| at + phrase.len()).find(ends);
    let chinese =
        ["答案：", "答案:", "答案是"].iter().filter_map(|phrase| Some(text.rfind(phrase)? + phrase.len()));
    let english = ["answer is", "answer:", "answer:**", "####"].into_iter().filter_map(end);
    let from = english.chain(chinese).max()?;
    let rest = text[from..].trim_start_matches([':', ' ', '*', '\n']);
    for (open, close) in [("\\[", "\\]"), ("$$", "$$")] {
        if let Some((inside, _)) = rest.strip_prefix(open).and_then(|rest| rest.split_once(close)) {
            return Some(inside.trim());
        }
    }
    let line = rest.lines().next().unwrap_or("");
    Some(line.split(". ").next().unwrap_or(line).trim_end_matches(['.', '*', ' ', '!', '。']))
}

/// The answer in a text without a mark: all of it, or its last formula or number.
fn within(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let short = text.len() <= SHORT;
    if short
        && text.len() > 1
        && text.strip_prefix('$').is_some_and(|rest| rest.find('$') == Some(rest.len() - 1))
    {
        return Some(text.to_owned());
    }
    if short && !is_prose(text) && parse::answer(&clean(text)).is_some() {
        return Some(text.to_owned());
    }
    let number = last_number(text);
    if let Some((end, formula)) = last_formula(text) {
        let later = number.is_none_or(|(start, _)| start < end);
        if later && formula.len() <= SHORT && parse::answer(&clean(formula)).is_some() {
            return Some(formula.to_owned());
        }
    }
    match number {
        Some((_, number)) => Some(number.to_owned()),
        None => (short && !text.contains('\n')).then(|| text.to_owned()),
    }
}

/// Whether words of a language stand in the text, other than those of an answer.
fn is_prose(text: &str) -> bool {
    let mut after_number = false;
    text.split_whitespace().any(|word| {
        let bare = word.trim_matches(|c: char| c.is_ascii_punctuation());
        let letters = bare.len() > 1 && bare.chars().all(char::is_alphabetic) && !word.starts_with('\\');
        let known =
            matches!(bare, "and" | "or" | "pi" | "infinity") || (after_number && unit::is_unit(bare, true));
        let known = known || lex(bare).is_some_and(|tokens| tokens.len() == 1);
        after_number = word.ends_with(|c: char| c.is_ascii_digit()) || (after_number && known);
        letters && !known && bare.chars().any(char::is_lowercase)
    })
}

/// The last formula between dollars, `\( \)` or `\[ \]`, and where it ends.
fn last_formula(text: &str) -> Option<(usize, &str)> {
    let (mut open, mut last) = (None, None);
    let mut at = 0;
    while let Some(step) = text[at..].find(['$', '\\']) {
        at += step;
        let found =
            ["$$", "$", "\\(", "\\)", "\\[", "\\]"].into_iter().find(|sign| text[at..].starts_with(sign));
        let Some(sign) = found else {
            // `\$` is no dollar that opens.
            at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8);
            continue;
        };
        open = match (open, sign) {
            (Some((from, opened)), close) if closes(opened, close) => {
                last = Some((at, &text[from..at]));
                None
            }
            (opened, "\\)" | "\\]") => opened,
            (_, sign) => Some((at + sign.len(), sign)),
        };
        at += sign.len();
    }
    last
}

fn closes(open: &str, close: &str) -> bool {
    matches!((open, close), ("$", "$") | ("$$", "$$") | ("\\(", "\\)") | ("\\[", "\\]"))
}

/// The last number of a text with its sign, its fraction bar or `\frac`, and its percent sign, and where it begins.
fn last_number(text: &str) -> Option<(usize, &str)> {
    let digit = |c: char| c.is_ascii_digit();
    let mut end = text.rfind(digit)? + 1;
    let mut tries = 0;
    let mut start = loop {
        tries += 1;
        if tries > MOST_TRIES {
            return None;
        }
        let frac = text[..end].rfind("\\frac").map(|at| (at, fraction_end(&text[at..])));
        if let Some((at, Some(length))) = frac
            && at + length >= end
        {
            end = at + length;
            break at;
        }
        let before =
            text[..end].trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '/'));
        // What the run begins with is punctuation, but for the point of a decimal.
        let run = text[before.len()..end].trim_start_matches([',', '/']);
        // Digits within a word are no number.
        if !before.ends_with(|c: char| c.is_ascii_alphabetic()) || before.ends_with("\\n") {
            break end - run.len();
        }
        end = before.rfind(digit)? + 1;
    };
    for minus in ["-", "−"] {
        if let Some(before) = text[..start].strip_suffix(minus) {
            // After a letter, a digit or a bracket it is a subtraction or a hyphen.
            if !before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, ')' | '}')) {
                start = before.len();
            }
        }
    }
    for sign in ["%", "\\%"] {
        if text[end..].starts_with(sign) {
            end += sign.len();
        }
    }
    Some((start, &text[start..end]))
}

/// Length of `\frac` with its two arguments in braces.
fn fraction_end(text: &str) -> Option<usize> {
    let (_, rest) = group(text.strip_prefix("\\frac")?)?;
    let (_, rest) = group(rest)?;
    Some(text.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_answer_is() {
        for (text, answer) in [
            ("\\boxed{1} then, on another day, \\boxed{\\frac{1}{2}}.", Some("\\frac{1}{2}")),
            ("\\boxed{1} and \\boxed{2", None),
            ("\\boxed{-2} \\quad \\text{and} \\quad \\boxed{1}", Some("-2, 1")),
            ("\\boxed{3}. Check: \\boxed{4}", Some("4")),
            ("The answer is 3. \\boxed{\\{1, 2\\}}", Some("\\{1, 2\\}")),
            ("\\fbox {7} in a \\boxed thing", Some("7")),
            ("<think>\\boxed{1}</think> It is \\boxed{2}", Some("2")),
            ("<think>\\boxed{1}", None),
            ("The answer is 3. No, the Answer is: **4**.", Some("4")),
            ("9 * 2 = 18\n#### 18", Some("18")),
            ("Answer is $x = 2.5$. Easy", Some("$x = 2.5$")),
            ("The answer is\n\\[ x^2 + 1 \\]\nas claimed in 1999", Some("x^2 + 1")),
            ("The answer isn't 4 but 5", Some("5")),
            ("The answer is 4. At least the answer isn't 5", Some("4")),
            ("The answer is4", Some("4")),
            ("We find that $x \\lt 3$.", Some("x \\lt 3")),
            ("With $n$ it is 34.", Some("34")),
            ("1 + 1 = 2, so 3 - 1 = 2.", Some("2")),
            ("it fell to -1,234.50%", Some("-1,234.50%")),
            ("that is 3-4", Some("4")),
            ("so −\\frac{3}{4}$.", Some("−\\frac{3}{4}")),
            ("about 3/4 of it", Some("3/4")),
            ("it costs 3 and the code is X7Y", Some("3")),
            ("12 cm", Some("12 cm")),
            ("I do not know", Some("I do not know")),
            ("", None),
        ] {
            assert_eq!(final_answer(text, false).as_deref(), answer, "{text:?}");
        }
        assert_eq!(final_answer("The answer is 4", true), None);
        assert_eq!(final_answer("\\boxed{4}", true).as_deref(), Some("4"));
    }

    #[test]
    fn a_label_is_what_it_marks_or_all_of_it() {
        assert_eq!(expected("16 - 3 = 13, 13 + 5 = 18\n#### 18"), "18");
        assert_eq!(expected("Hence $\\boxed{7}$ it is"), "7");
        assert_eq!(expected("x and y"), "x and y");
    }
}
