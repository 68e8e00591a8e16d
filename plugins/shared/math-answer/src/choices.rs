//! What graders disagree on, and a dataset may choose.

/// How answers are compared. The default is what most of the public suites say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choices {
    /// Only a box is an answer.
    pub boxed: bool,
    /// Several answers must come in the label's order.
    pub ordered: bool,
    /// A fraction must be in lowest terms.
    pub reduced: bool,
    /// A percentage is its number of hundredths, and not the number before the sign.
    pub percent: bool,
    /// A decimal with a point and this many significant digits is equal to what it is rounded from; 0: none is.
    pub digits: usize,
}

impl Default for Choices {
    fn default() -> Self {
        Self { boxed: false, ordered: false, reduced: false, percent: false, digits: 4 }
    }
}

impl Choices {
    /// Reads words such as `ordered reduced digits=6`.
    ///
    /// # Errors
    /// A word that is not known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut choices = Self::default();
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            match word {
                "boxed" => choices.boxed = true,
                "ordered" => choices.ordered = true,
                "reduced" => choices.reduced = true,
                "percent" => choices.percent = true,
                "exact" => choices.digits = 0,
                _ => match word.strip_prefix("digits=").and_then(|digits| digits.parse().ok()) {
                    Some(digits) => choices.digits = digits,
                    None => {
                        let known = "boxed, ordered, reduced, percent, exact and digits=N";
                        return Err(format!("{word:?} is no choice; known are {known}"));
                    }
                },
            }
        }
        Ok(choices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_words() {
        assert_eq!(Choices::parse(" "), Ok(Choices::default()));
        let all = Choices { boxed: true, ordered: true, reduced: true, percent: true, digits: 6 };
        assert_eq!(Choices::parse("boxed ordered,reduced percent digits=6"), Ok(all));
        assert_eq!(Choices::parse("exact").map(|choices| choices.digits), Ok(0));
        assert!(Choices::parse("sorted").is_err_and(|why| why.contains("ordered")));
        assert!(Choices::parse("digits=-1").is_err());
    }
}
