//! Exact rational numbers out of text.

use crate::natural::Natural;

/// A number with more digits than this is compared as text.
const MAX_DIGITS: usize = 400;

/// ± numerator / denominator, not reduced; the denominator is not zero.
#[derive(Debug, Clone)]
pub struct Rational {
    negative: bool,
    numerator: Natural,
    denominator: Natural,
}

impl PartialEq for Rational {
    fn eq(&self, other: &Self) -> bool {
        let zero = self.numerator.is_zero();
        (zero == other.numerator.is_zero())
            && (zero || self.negative == other.negative)
            && self.numerator.times(&other.denominator) == other.numerator.times(&self.denominator)
    }
}

impl Rational {
    /// A number that is all of `text`: `-1,234.5`, `3/4`, `\frac{3}{4}`, `-\frac12`, `2\frac12`, `2 1/2`.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, text) = sign(text);
        let number = Self::unsigned(text)?;
        Some(Self { negative: negative != number.negative, ..number })
    }

    fn unsigned(text: &str) -> Option<Self> {
        if let Some(at) = text.find("\\frac") {
            let (whole, fraction) = (&text[..at], &text[at + "\\frac".len()..]);
            let (top, rest) = argument(fraction)?;
            let (bottom, rest) = argument(rest)?;
            let fraction = Self::parse(top)?.over(&Self::parse(bottom)?)?;
            return match (rest, whole) {
                ("", "") => Some(fraction),
                ("", whole) if !fraction.negative => Some(fraction.plus_whole(whole)?),
                _ => None,
            };
        }
        if let Some((whole, fraction)) = text.split_once(' ') {
            let fraction = fraction.contains('/').then(|| Self::unsigned(fraction)).flatten()?;
            return if fraction.negative { None } else { fraction.plus_whole(whole) };
        }
        if let Some((top, bottom)) = text.split_once('/') {
            let (negative, bottom) = sign(unwrap(bottom));
            let ratio = Self::decimal(unwrap(top))?.over(&Self::decimal(bottom)?)?;
            return Some(Self { negative, ..ratio });
        }
        Self::decimal(text)
    }

    /// Digits with an optional point, and commas between groups of three before it.
    fn decimal(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let whole = ungroup(whole)?;
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let digits = whole + part;
        if digits.is_empty() || digits.len() > MAX_DIGITS || !is_digits(&digits) {
            return None;
        }
        let denominator = format!("1{}", "0".repeat(part.len()));
        Some(Self {
            negative: false,
            numerator: Natural::from_digits(digits.as_bytes()),
            denominator: Natural::from_digits(denominator.as_bytes()),
        })
    }

    fn over(&self, other: &Self) -> Option<Self> {
        (!other.numerator.is_zero()).then(|| Self {
            negative: self.negative != other.negative,
            numerator: self.numerator.times(&other.denominator),
            denominator: self.denominator.times(&other.numerator),
        })
    }

    /// `whole` and this fraction as a mixed number. Only for a fraction of plain digits.
    fn plus_whole(&self, whole: &str) -> Option<Self> {
        let whole: u64 = whole.parse().ok().filter(|&whole| whole < 1_000_000_000)?;
        let whole = Natural::from_digits(whole.to_string().as_bytes());
        let numerator = whole.times(&self.denominator).plus(&self.numerator);
        Some(Self { numerator, ..self.clone() })
    }

    /// A hundredth of this number: what a percentage stands for.
    pub fn percent(&self) -> Self {
        let hundred = Natural::from_digits(b"100");
        Self { denominator: self.denominator.times(&hundred), ..self.clone() }
    }
}

/// A leading sign, and what follows it.
fn sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// `text` without one pair of braces or parentheses around it.
fn unwrap(text: &str) -> &str {
    let inside = |open, close| text.strip_prefix(open).and_then(|text| text.strip_suffix(close));
    inside('{', '}').or_else(|| inside('(', ')')).unwrap_or(text)
}

/// A macro's next argument, which is a group in braces or one character, and what follows it.
fn argument(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    match text.strip_prefix('{') {
        Some(inside) => inside.split_once('}'),
        None => text.chars().next().map(|first| text.split_at(first.len_utf8())),
    }
}

/// Digits without the commas between groups of three; None if the commas are elsewhere.
fn ungroup(text: &str) -> Option<String> {
    let mut groups = text.split(',');
    let first = groups.next()?;
    let mut digits = first.to_owned();
    for group in groups {
        if group.len() != 3 || first.is_empty() || first.len() > 3 {
            return None;
        }
        digits.push_str(group);
    }
    Some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(a: &str, b: &str) -> bool {
        match (Rational::parse(a), Rational::parse(b)) {
            (Some(a), Some(b)) => a == b,
            (a, b) => panic!("{a:?} and {b:?}"),
        }
    }

    #[test]
    fn ways_to_write_a_number() {
        for (a, b) in [
            ("1,234,567.50", "1234567.5"),
            (".5", "\\frac{1}{2}"),
            ("-1/2", "\\frac{-1}2"),
            ("-\\frac12", "1/-2"),
            ("2\\frac12", "2.5"),
            ("-2\\frac{1}{2}", "-2.5"),
            ("-2 1/2", "-\\frac 5 2"),
            ("+7", "007.0"),
            ("-0", "0"),
            ("\\frac{1.5}{3}", "0.5"),
            ("{1}/{3}", "2/6"),
        ] {
            assert!(same(a, b), "{a} and {b}");
        }
        assert!(!same("0.333333333333333333333333", "1/3"));
        assert!(!same("-1", "1"));
        assert!(!same("100000000000000000000000000000001", "100000000000000000000000000000000"));
    }

    #[test]
    fn what_is_not_a_number() {
        for text in [
            "",
            "-",
            ".",
            "1/0",
            "\\frac{1}{0}",
            "12,34",
            "1,2345",
            "1.2.3",
            "1e5",
            "--1",
            "x",
            "1/2/3",
            "1,000,00",
            "\\frac",
            "\\frac1",
            "\\frac{1}{2}x",
            "٣",
        ] {
            assert!(Rational::parse(text).is_none(), "{text:?}");
        }
        assert!(Rational::parse(&"9".repeat(MAX_DIGITS + 1)).is_none());
    }

    proptest! {
        #[test]
        fn fractions_are_equal_when_their_cross_products_are(a in -999i64..999, b in 1i64..999, c in -999i64..999, d in 1i64..999) {
            let (left, right) = (format!("{a}/{b}"), format!("\\frac{{{c}}}{{{d}}}"));
            prop_assert_eq!(same(&left, &right), a * d == c * b);
        }

        #[test]
        fn any_text_is_taken(text in "[-+0-9.,/{}()\\\\frac ]{0,40}") {
            let _ = Rational::parse(&text);
        }
    }
}
