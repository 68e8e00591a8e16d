//! Which part of a text is its final answer, and when two answers are the same.

use crate::number::Rational;
use crate::unit::without_unit;
use std::borrow::Cow;

/// Bytes of an answer that are looked at as mathematics; a longer one is compared as it stands.
const LONGEST: usize = 4096;

/// The final answer of `text`: the last box; else what follows the last "answer is" or `####`; else the last
/// number. None if there is none, or if the last box never closes.
pub fn final_answer(text: &str) -> Option<&str> {
    match last_box(text) {
        Some(inside) => inside,
        None => marked(text).or_else(|| last_number(text)),
    }
}

/// What is marked as the answer: the inside of the last box, or what follows "answer is" or `####`.
pub fn marked(text: &str) -> Option<&str> {
    last_box(text).unwrap_or_else(|| after_phrase(text)).map(str::trim).filter(|answer| !answer.is_empty())
}

/// Whether two answers are the same number, or the same text after normalisation. A percentage is equal to
/// its number of hundredths and to the number before the sign, since people write either. Likewise a time of day is
/// equal to itself without "am" or "pm".
pub fn equal(answer: &str, expected: &str) -> bool {
    if answer.len() > LONGEST || expected.len() > LONGEST {
        return answer.trim() == expected.trim();
    }
    let (answer, expected) = (Normal::of(answer), Normal::of(expected));
    if answer.morning.zip(expected.morning).is_some_and(|(a, b)| a != b) {
        return false;
    }
    match (answer.number(), expected.number()) {
        (Some(a), Some(b)) => {
            a == b
                || (answer.percent && !expected.percent && a.percent() == b)
                || (expected.percent && !answer.percent && b.percent() == a)
        }
        (None, None) => !answer.text.is_empty() && answer.text.to_lowercase() == expected.text.to_lowercase(),
        _ => false,
    }
}

/// The last `\boxed{…}` or `\fbox{…}`: None without one, Some(None) if it never closes.
fn last_box(text: &str) -> Option<Option<&str>> {
    let opened = |name: &str| {
        text.rmatch_indices(name).find_map(|(at, name)| {
            let rest = text[at + name.len()..].trim_start();
            rest.starts_with('{').then_some(rest)
        })
    };
    // The shorter rest is the later box.
    let rest = [opened("\\boxed"), opened("\\fbox")].into_iter().flatten().min_by_key(|rest| rest.len())?;
    Some(group(rest).map(|(inside, _)| inside))
}

/// The inside of the braces that `text` begins with, and what follows them.
fn group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' if depth <= 1 => return (depth == 1).then(|| (&text[1..at], &text[at + 1..])),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// What follows the last "answer is" or `####`, to the end of the sentence.
fn after_phrase(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    // Not "answer isn't" or "answer issued".
    let ends = |end: &usize| !lower[*end..].starts_with(|c: char| c.is_alphabetic());
    let end = |phrase: &str| lower.rmatch_indices(phrase).map(|(at, _)| at + phrase.len()).find(ends);
    let from = end("answer is").max(end("####"))?;
    let rest = text[from..].trim_start_matches([':', ' ', '*']);
    let line = rest.lines().next().unwrap_or("");
    Some(line.split(". ").next().unwrap_or(line).trim_end_matches(['.', '*', ' ', '!']))
}

/// The last number of a text with its sign, its fraction bar or `\frac`, and its percent sign.
fn last_number(text: &str) -> Option<&str> {
    let last = text.rfind(|c: char| c.is_ascii_digit())?;
    let mut end = last + 1;
    let mut start = match text[..end].rfind("\\frac") {
        Some(at) if fraction_end(&text[at..]).is_some_and(|length| at + length > last) => {
            end = at + fraction_end(&text[at..])?;
            at
        }
        _ => {
            let before =
                text[..end].trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '/'));
            // What the run begins with is punctuation, but for the point of a decimal.
            let run = text[before.len()..end].trim_start_matches([',', '/']);
            end - run.len()
        }
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
    Some(&text[start..end])
}

/// Length of `\frac` with its two arguments in braces.
fn fraction_end(text: &str) -> Option<usize> {
    let (_, rest) = group(text.strip_prefix("\\frac")?)?;
    let (_, rest) = group(rest)?;
    Some(text.len() - rest.len())
}

/// An answer without what does not change its meaning.
struct Normal {
    text: String,
    percent: bool,
    /// Which half of the day, if it said "am" or "pm".
    morning: Option<bool>,
}

impl Normal {
    fn of(text: &str) -> Self {
        let text = last_box(text).flatten().unwrap_or(text);
        let mut text = without_markup(text);
        let percent = text.contains('%')
            || ["percent", "percentage", "pct"].iter().any(|w| text.trim_end().ends_with(w));
        text.retain(|c| c != '%');
        let text = text.trim().trim_end_matches(['.', ',', '\\']);
        let (text, morning) = without_half(without_name(text));
        Self { text: compact(without_unit(text)), percent, morning }
    }

    fn number(&self) -> Option<Rational> {
        let inside = |open, close| self.text.strip_prefix(open).and_then(|text| text.strip_suffix(close));
        Rational::parse(&self.text).or_else(|| {
            let text = inside('(', ')').or_else(|| inside('[', ']')).or_else(|| inside('{', '}'))?;
            // A comma between brackets parts two numbers.
            if text.contains(',') { None } else { Rational::parse(text) }
        })
    }
}

/// LaTeX's spacing, sizing, dollar signs and fonts taken away, and variants of one symbol made the same.
fn without_markup(text: &str) -> String {
    let mut text: Cow<'_, str> = text.trim().into();
    let replace = [
        ("\\dfrac", "\\frac"),
        ("\\tfrac", "\\frac"),
        ("\\cfrac", "\\frac"),
        ("{,}", ","),
        ("−", "-"),
        ("–", "-"),
        ("\\left", ""),
        ("\\right", ""),
        ("\\!", ""),
        ("\\,", ""),
        ("\\;", ""),
        ("\\:", ""),
        ("\\quad", " "),
        ("\\ ", " "),
        ("~", " "),
        ("\\$", ""),
        ("$", ""),
        ("€", ""),
        ("£", ""),
        ("\\(", ""),
        ("\\)", ""),
        ("\\[", ""),
        ("\\]", ""),
        ("\\%", "%"),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("\\circ", ""),
        ("°", ""),
        ("\\degree", ""),
        ("\\text", "\\mathrm"),
        ("\\mathrmbf", "\\mathrm"),
        ("\\mathrmit", "\\mathrm"),
        ("\\mathbf", "\\mathrm"),
        ("\\mbox", "\\mathrm"),
    ];
    for (from, to) in replace {
        if text.contains(from) {
            text = text.replace(from, to).into();
        }
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some(at) = rest.find("\\mathrm") {
        plain.push_str(&rest[..at]);
        rest = &rest[at + "\\mathrm".len()..];
        if let Some((inside, after)) = rest.starts_with('{').then(|| group(rest)).flatten() {
            // The space keeps a unit apart from its number.
            plain.extend([" ", inside]);
            rest = after;
        }
    }
    plain + rest
}

/// `5` of `x = 5`: a single equation whose left side is a name.
fn without_name(text: &str) -> &str {
    match text.split_once('=') {
        Some((name, value)) if !value.contains('=') && name.trim().len() <= 12 => {
            let name = name.trim();
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "_{}()".contains(c));
            if is_name { value.trim() } else { text }
        }
        _ => text,
    }
}

/// `3:45` of `3:45 p.m.`, and whether it is before noon.
fn without_half(text: &str) -> (&str, Option<bool>) {
    let lower = text.to_ascii_lowercase();
    let half = [("am", true), ("a.m", true), ("pm", false), ("p.m", false)].into_iter().find_map(
        |(half, morning)| {
            let time = text[..lower.strip_suffix(half)?.len()].trim_end();
            time.ends_with(|c: char| c.is_ascii_digit()).then_some((time, Some(morning)))
        },
    );
    half.unwrap_or((text, None))
}

/// No spaces but between two digits, and no braces around a single character.
fn compact(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut joined = String::with_capacity(text.len());
    for word in words {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn where_the_answer_is() {
        for (text, answer) in [
            ("\\boxed{1} then \\boxed{\\frac{1}{2}}.", Some("\\frac{1}{2}")),
            ("\\boxed{1} and \\boxed{2", None),
            ("The answer is 3. \\boxed{\\{1, 2\\}}", Some("\\{1, 2\\}")),
            ("\\fbox {7} in a \\boxed thing", Some("7")),
            ("The answer is 3. No, the Answer is: **4**.", Some("4")),
            ("9 * 2 = 18\n#### 18", Some("18")),
            ("Answer is $x = 2.5$. Easy", Some("$x = 2.5$")),
            ("The answer isn't 4 but 5", Some("5")),
            ("The answer is 4. At least the answer isn't 5", Some("4")),
            ("The answer is4", Some("4")),
            ("1 + 1 = 2, so 3 - 1 = 2.", Some("2")),
            ("it fell to -1,234.50%", Some("-1,234.50%")),
            ("that is 3-4", Some("4")),
            ("so −\\frac{3}{4}$.", Some("−\\frac{3}{4}")),
            ("about 3/4 of it", Some("3/4")),
            ("I do not know", None),
            ("", None),
        ] {
            assert_eq!(final_answer(text), answer, "{text:?}");
        }
    }

    #[test]
    fn answers_that_are_equal() {
        for (a, b) in [
            ("1,000", "1000.0"),
            ("\\dfrac{1}{2}", "0.5"),
            ("\\frac 1 2", "1/2"),
            ("1 1/2", "1.5"),
            ("−5", "-5"),
            ("+5", "5"),
            ("\\$16,\\!386.20", "16386.2"),
            ("14{,}916", "14916"),
            ("50\\%", "50"),
            ("50%", "0.5"),
            ("36^{\\circ}", "36 degrees"),
            ("12 square feet", "12cm"),
            ("12\\text{ m}^2", "12"),
            ("x = 7", "7"),
            ("[90]", "90"),
            ("\\frac{1}{3} \\text{ of it}", "1/3"),
            ("\\text{Evelyn}", "evelyn"),
            ("\\sqrt3", "\\sqrt{3}"),
            ("\\left(x-2\\right)", "(x - 2)"),
            ("10^{7}", "10^7"),
            ("f(x) = 7", "7"),
            ("x_{1} = 7", "7"),
            ("AB=7 cm", "7"),
            ("(1)/(2)", "0.5"),
            ("5 pm", "5"),
            ("3:45 p.m.", "3:45 PM"),
            ("3:45\\text{ pm}", "3:45"),
            ("50 percent", "50"),
            ("1 1/2 cups", "1.5"),
            ("10^7 meters", "10^{7}"),
            ("10^{7} meters", "10^{7}"),
            ("\\frac{9\\pi}{2}\\text{ inches}", "\\frac{9\\pi}{2}"),
            ("\\frac{1}{2} m", "0.5"),
            ("60 miles/hour", "60 miles per hour"),
            ("9 m/s", "9"),
            ("3 kg", "3"),
            ("-4 points", "-4"),
        ] {
            assert!(equal(a, b) && equal(b, a), "{a:?} and {b:?}");
        }
    }

    #[test]
    fn answers_that_differ() {
        for (a, b) in [
            ("2x", "2"),
            ("12 x", "12"),
            ("3 pi", "3"),
            ("1 12", "112"),
            ("5.001", "5"),
            ("50%", "5"),
            ("0.5%", "50%"),
            ("1/0", "0"),
            ("", ""),
            ("$", "\\,"),
            ("36", "360"),
            ("-1", "1"),
            ("2^3", "8"),
            ("4\\sqrt{2}", "4"),
            ("x^2+y^2=25", "x^2-y^2=25"),
            ("x^2+y^2=25", "25"),
            ("x<=5", "x>=5"),
            ("x<=5", "5"),
            ("x!=5", "5"),
            ("x=y=5", "5"),
            ("(0,100)", "[0,100]"),
            ("(0,100)", "100"),
            ("(2,345)", "2345"),
            ("{2,345}", "2345"),
            ("(2,345) cm", "2345"),
            ("3:45 pm", "3:45 am"),
            ("3:45 p.m.", "3:45am"),
            ("5 pm", "5 am"),
            ("3:45 pm", "3:46 pm"),
            ("5 million", "5 thousand"),
            ("5 million", "5"),
            ("5\\text{ million dollars}", "5"),
            ("2 thirds", "2"),
            ("5 squared", "5"),
            ("6 xy", "6"),
            ("6 x y", "6"),
            ("6 abc", "6"),
            ("2 sin x", "2"),
            ("2 sin theta", "2"),
            ("2 theta", "2"),
            ("4 < m", "4 < s"),
            ("2 + 3 m", "2 + 3"),
            ("2 + \\frac{1}{2} m", "2 + \\frac{1}{2}"),
        ] {
            assert!(!equal(a, b) && !equal(b, a), "{a:?} and {b:?}");
        }
    }

    #[test]
    fn a_megabyte_of_anything_is_answered() {
        for unit in ["9", "{", "\\boxed{", "\\frac{", "-", "1,", "answer is ", "(", "\\text{", "$"] {
            let text = unit.repeat((1 << 20) / unit.len());
            let answer = final_answer(&text);
            assert!(!answer.is_some_and(|answer| equal(answer, "7")), "{unit:?}");
        }
        let long = "9".repeat(5000);
        assert!(equal(&long, &long));
        assert!(equal(&"9".repeat(1000), &"9".repeat(1000)) && !equal(&"9".repeat(1000), &"9".repeat(999)));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(a in any::<String>(), b in "[-−\\\\{}()$%0-9a-z.,/ =^²]{0,60}") {
            for text in [&a, &b] {
                let _ = final_answer(text);
                let _ = equal(text, &b);
            }
        }

        #[test]
        fn equality_is_symmetric(a in "[-0-9.,/%cm ]{0,12}", b in "[-0-9.,/%cm ]{0,12}") {
            prop_assert_eq!(equal(&a, &b), equal(&b, &a));
        }

        #[test]
        fn a_boxed_integer_is_found(number: i64, noise in "[a-z0-9 .]{0,40}") {
            let text = format!("{noise} \\boxed{{{number}}} {noise}");
            prop_assert!(final_answer(&text).is_some_and(|answer| equal(answer, &number.to_string())));
        }
    }
}
