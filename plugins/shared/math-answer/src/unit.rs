//! Units: words after a number that do not change it.

use crate::parse;
use crate::value::{Expr, Value};

/// Units that may be written without a space after their number. Other letters there are variables.
const ATTACHED: [&str; 16] = [
    "cm", "mm", "km", "dm", "kg", "mg", "ml", "mL", "hz", "Hz", "deg", "degrees", "cents", "dollars",
    "units", "percent",
];

/// Words of up to three letters that are units, or stand among them. Any other may be a product of variables.
const SHORT: &str = "m g s h l L N J cm mm km dm kg mg ml mL hz Hz ft in sq yd yds mi oz lb lbs hr hrs min sec day \
    yr yrs mph kph gal cup box way man men deg pct of it the per any all";

/// Longer words that change the number before them, or are no unit but a function or a letter.
const NO_UNITS: &str = "hundred thousand million billion trillion dozen half halve third fourth quarter fifth sixth \
    seventh eighth ninth tenth hundredth thousandth squared cubed factorial infinity plus minus times \
    divided over choose modulo sinh cosh tanh arcsin arccos arctan sine cosine tangent alpha beta gamma delta epsilon \
    zeta theta iota kappa lambda sigma upsilon omega";

/// `12` of `12 cm`, `12cm`, `12 square feet`, `12 m^2`: a number and then words.
pub fn without_unit(text: &str) -> &str {
    let fraction = text.contains("\\frac").then(|| text.rfind('}').map(|at| at + 1));
    let at = match fraction {
        // A fraction's own name is letters.
        Some(at) => at,
        None => text.find(|c: char| c.is_ascii_alphabetic()).filter(|&at| is_plain(&text[..at])),
    };
    let Some((number, unit)) = at.map(|at| text.split_at(at)) else { return text };
    let spaced = number.ends_with(' ') || unit.starts_with(' ');
    let unit = unit.trim().trim_end_matches(['²', '³']);
    let unit = unit.strip_suffix("^2").or_else(|| unit.strip_suffix("^3")).unwrap_or(unit);
    // After a sum, a single letter is a variable.
    let known = match spaced {
        true => are_words(unit) && (unit.len() > 1 || is_plain(number)),
        false => ATTACHED.contains(&unit),
    };
    if known { number.trim_end() } else { text }
}

/// Whether `text` is one number, a power perhaps: no sum, comparison, pair or time of day.
fn is_plain(text: &str) -> bool {
    let unsigned = text.trim().trim_start_matches(['-', '+']);
    !unsigned.contains(['+', '-', ':'])
        && matches!(parse::answer(unsigned), Some(Value::Expr(expr)) if is_number(&expr))
}

fn is_number(expr: &Expr) -> bool {
    match expr {
        Expr::Number(_) => true,
        Expr::Sum(..) | Expr::Quotient(..) | Expr::Power(..) => expr.parts().into_iter().all(is_number),
        _ => false,
    }
}

/// Whether `word` after a value is a unit, with a space between them or without.
pub fn is_unit(word: &str, spaced: bool) -> bool {
    if spaced { is_word(word) } else { ATTACHED.contains(&word) }
}

/// Whether one of these words is no unit: "million" changes the number.
pub fn changes_value(words: &str) -> bool {
    words.split([' ', '/', '.']).filter(|word| word.chars().count() > 3).any(|word| {
        let lower = word.to_lowercase();
        let listed = |word: &str| NO_UNITS.split_whitespace().any(|listed| listed == word);
        listed(&lower) || listed(lower.strip_suffix('s').unwrap_or(&lower))
    })
}

fn are_words(unit: &str) -> bool {
    let mut words = unit.split([' ', '/', '.']).filter(|word| !word.is_empty()).peekable();
    words.peek().is_some() && words.all(is_word)
}

fn is_word(word: &str) -> bool {
    let lower = word.to_lowercase();
    let listed = |list: &str, word: &str| list.split_whitespace().any(|listed| listed == word);
    if word.chars().count() <= 3 {
        return listed(SHORT, word) || (word.len() > 1 && listed(SHORT, &lower));
    }
    word.chars().all(char::is_alphabetic)
        && lower.contains(['a', 'e', 'i', 'o', 'u'])
        && !listed(NO_UNITS, lower.strip_suffix('s').unwrap_or(&lower))
        && !listed(NO_UNITS, &lower)
}
