//! Licence expressions of SPDX, as `license` in a manifest has them.

use std::collections::BTreeSet;

/// Whether one may choose licences from `allowed` that satisfy the expression. `/` is the old way to write OR.
pub(super) fn permitted(expression: &str, allowed: &BTreeSet<String>) -> Result<bool, String> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = Words { words: spaced.split_whitespace().collect(), allowed };
    words.words.reverse();
    let permitted = words.any()?;
    match words.words.last() {
        None => Ok(permitted),
        Some(word) => Err(format!("{word} is unexpected")),
    }
}

/// What is left of an expression, the next word last.
struct Words<'a> {
    words: Vec<&'a str>,
    allowed: &'a BTreeSet<String>,
}

impl Words<'_> {
    /// Alternatives.
    fn any(&mut self) -> Result<bool, String> {
        let mut permitted = self.all()?;
        while self.take("OR") {
            permitted |= self.all()?;
        }
        Ok(permitted)
    }

    /// Licences that hold together; AND binds tighter than OR.
    fn all(&mut self) -> Result<bool, String> {
        let mut permitted = self.one()?;
        while self.take("AND") {
            permitted &= self.one()?;
        }
        Ok(permitted)
    }

    fn one(&mut self) -> Result<bool, String> {
        match self.words.pop() {
            Some("(") => {
                let permitted = self.any()?;
                if self.take(")") { Ok(permitted) } else { Err("a parenthesis is open".into()) }
            }
            Some(word) if !["AND", "OR", "WITH", ")"].contains(&word) => {
                if self.take("WITH") {
                    let exception = self.words.pop().ok_or("WITH is followed by nothing")?;
                    return Ok(self.allowed.contains(&format!("{word} WITH {exception}")));
                }
                Ok(self.allowed.contains(word))
            }
            Some(word) => Err(format!("{word} is unexpected")),
            None => Err("a licence is missing".into()),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let next = self.words.last() == Some(&word);
        if next {
            self.words.pop();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_mean_what_spdx_says() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
        let allowed: BTreeSet<String> = allowed.map(String::from).into();
        for (text, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("GPL-3.0 AND ISC OR MIT", true),
            ("GPL-3.0 AND (ISC OR MIT)", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ] {
            assert_eq!(permitted(text, &allowed), Ok(expected), "{text}");
        }
        for text in ["", "MIT OR", "MIT GPL-3.0", "(MIT", "MIT)", "AND MIT", "MIT WITH"] {
            assert!(permitted(text, &allowed).is_err(), "{text:?}");
        }
    }
}
