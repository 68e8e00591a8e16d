//! LaTeX and plain text into tokens.

use crate::unit;
use crate::value::Function;

/// Commands that change how something looks, and not what it is.
const STYLE: &str = "displaystyle textstyle mathbf mathbb mathcal mathit boldsymbol bm vec overline overrightarrow \
    hat bar widehat tilde underline operatorname limits nolimits left right big Big bigg Bigg bigl bigr Bigl Bigr \
    mathopen mathclose phantom hspace vspace boxed fbox ensuremath rm bf it";

/// Commands with words in their argument.
const TEXT: &str = "text textbf textit textrm textnormal texttt textsf mathrm mathsf mathtt mbox hbox";

const GREEK: &str = "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho \
    sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell angle \
    triangle hbar";

/// Commands whose bounds belong to their name.
const BOUND: &str = "sum prod int lim iint oint";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// Digits, with a point perhaps.
    Number(String),
    /// `1.5e-3`: digits and exponent.
    Scientific(String, String),
    Symbol(String),
    /// A command that takes its bounds into its name: `\sum`.
    Bound(String),
    Function(Function),
    Log,
    Frac,
    Sqrt,
    Binomial,
    Begin(String),
    End(String),
    /// "and", "or".
    And,
    /// Words, which after a value are its unit.
    Words,
    Degree,
    /// Any other sign: of an operation, a relation, a bracket. `⟨` is `\{`, `⟩` is `\}`, `&` parts columns and `↵` rows.
    Sign(char),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lexeme {
    pub token: Token,
    /// Whether a space stands before it.
    pub spaced: bool,
}

/// The tokens of `text`; None if something in it is no mathematics.
pub fn lex(text: &str) -> Option<Vec<Lexeme>> {
    let mut lexer = Lexer { rest: text, found: vec![], spaced: false, brackets: vec![] };
    while !lexer.rest.is_empty() {
        lexer.step()?;
    }
    Some(lexer.found)
}

struct Lexer<'a> {
    rest: &'a str,
    found: Vec<Lexeme>,
    spaced: bool,
    /// Of each open bracket, whether commas within part values.
    brackets: Vec<bool>,
}

impl<'a> Lexer<'a> {
    fn push(&mut self, token: Token) {
        self.found.push(Lexeme { token, spaced: self.spaced });
        self.spaced = false;
    }

    fn sign(&mut self, sign: char) {
        match sign {
            '(' | '[' | '⟨' => self.brackets.push(true),
            '{' => {
                let alone = matches!(
                    self.found.last().map(|last| &last.token),
                    None | Some(Token::Sign('=' | ',' | '∈'))
                );
                self.brackets.push(alone);
            }
            ')' | ']' | '⟩' | '}' => {
                self.brackets.pop();
            }
            _ => {}
        }
        self.push(Token::Sign(sign));
    }

    fn step(&mut self) -> Option<()> {
        let first = self.rest.chars().next()?;
        if first.is_ascii_digit()
            || (first == '.' && self.rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            return self.number();
        }
        if first.is_ascii_alphabetic() {
            let end = self.rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            return self.word(word);
        }
        if first == '\\' {
            return self.command();
        }
        let two = self.rest.get(..2).unwrap_or("");
        let pair = match two {
            "**" => '^',
            "<=" => '≤',
            ">=" => '≥',
            "!=" => '≠',
            "==" => '=',
            _ => '\0',
        };
        if pair != '\0' {
            self.rest = &self.rest[2..];
            self.sign(pair);
            return Some(());
        }
        self.rest = &self.rest[first.len_utf8()..];
        match first {
            c if c.is_whitespace() => self.spaced = true,
            '$' => {}
            '+' | '-' | '*' | '/' | '^' | '_' | '!' | '%' | ',' | ':' | '=' | '<' | '>' | '(' | ')' | '['
            | ']' | '{' | '}' | '|' | '&' | ';' | '≤' | '≥' | '≠' | '≈' | '∈' | '∪' | '±' => {
                self.sign(first)
            }
            '×' | '·' | '⋅' | '∗' => self.sign('*'),
            '÷' | '⁄' => self.sign('/'),
            '⩽' => self.sign('≤'),
            '⩾' => self.sign('≥'),
            '√' => self.push(Token::Sqrt),
            '°' => self.push(Token::Degree),
            'π' => self.push(Token::Symbol("\\pi".into())),
            '∞' => self.push(Token::Symbol("\\infty".into())),
            '∅' => self.empty_set(),
            '²' | '³' => {
                self.sign('^');
                self.push(Token::Number(if first == '²' { "2" } else { "3" }.into()));
            }
            '½' => {
                self.sign('(');
                self.push(Token::Number("1".into()));
                self.sign('/');
                self.push(Token::Number("2".into()));
                self.sign(')');
            }
            c if ('Α'..='ω').contains(&c) => {
                self.push(Token::Symbol(c.to_string()));
            }
            _ => return None,
        }
        Some(())
    }

    fn empty_set(&mut self) {
        self.sign('⟨');
        self.sign('⟩');
    }

    /// Digits, with commas between groups of three unless they stand in brackets, a point, and an exponent.
    fn number(&mut self) -> Option<()> {
        let bytes = self.rest.as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut end = digits(0);
        if !self.brackets.contains(&true) && (1..=3).contains(&end) {
            let mut grouped = end;
            while bytes.get(grouped) == Some(&b',') && digits(grouped + 1) == 3 {
                grouped += 4;
            }
            // "1,234,5" is a list.
            if bytes.get(grouped) != Some(&b',') || !bytes.get(grouped + 1).is_some_and(u8::is_ascii_digit) {
                end = grouped;
            }
        }
        if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
        }
        let number: String = self.rest[..end].chars().filter(|&c| c != ',').collect();
        self.rest = &self.rest[end..];
        let exponent = self.rest.strip_prefix(['e', 'E']).and_then(|rest| {
            let unsigned = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            let length = unsigned.bytes().take_while(u8::is_ascii_digit).count();
            let end = rest.len() - unsigned.len() + length;
            let ends = !rest[end..].starts_with(|c: char| c.is_alphanumeric());
            (length > 0 && ends).then(|| rest.split_at(end))
        });
        let token = match exponent {
            Some((exponent, rest)) => {
                self.rest = rest;
                Token::Scientific(number, exponent.into())
            }
            None => Token::Number(number),
        };
        self.push(token);
        Some(())
    }

    /// Letters: a function, a unit, or variables side by side.
    fn word(&mut self, word: &str) -> Option<()> {
        let lower = word.to_ascii_lowercase();
        let after_value = matches!(
            self.found.last().map(|last| &last.token),
            Some(Token::Number(_) | Token::Sign(')' | '}' | ']') | Token::Words)
        );
        if word.len() > 1 && self.named(&lower) {
            return Some(());
        }
        if listed(GREEK, word) {
            self.push(Token::Symbol(format!("\\{word}")));
        } else if word.len() > 1 && after_value && unit::is_unit(word, self.spaced) {
            self.push(Token::Words);
            self.rest =
                self.rest.trim_start_matches("^2").trim_start_matches("^3").trim_start_matches(['²', '³']);
        } else if word.len() <= 3 || (word.len() <= 6 && word.bytes().all(|byte| byte.is_ascii_uppercase())) {
            for letter in word.chars() {
                self.push(Token::Symbol(letter.into()));
            }
        } else {
            return None;
        }
        Some(())
    }

    /// A name that is the same with and without a backslash.
    fn named(&mut self, name: &str) -> bool {
        let function = match name {
            "sin" => Function::Sin,
            "cos" => Function::Cos,
            "tan" | "tg" => Function::Tan,
            "sec" => Function::Sec,
            "csc" | "cosec" => Function::Csc,
            "cot" | "ctg" => Function::Cot,
            "arcsin" | "asin" => Function::Arcsin,
            "arccos" | "acos" => Function::Arccos,
            "arctan" | "atan" | "arctg" => Function::Arctan,
            "sinh" => Function::Sinh,
            "cosh" => Function::Cosh,
            "tanh" => Function::Tanh,
            "ln" => Function::Ln,
            "exp" => Function::Exp,
            "abs" => Function::Absolute,
            "floor" => Function::Floor,
            "ceil" => Function::Ceiling,
            _ => {
                let token = match name {
                    "log" | "lg" => Token::Log,
                    "sqrt" => Token::Sqrt,
                    "pi" => Token::Symbol("\\pi".into()),
                    "inf" | "infty" | "infinity" | "oo" => Token::Symbol("\\infty".into()),
                    "and" | "or" => Token::And,
                    "deg" | "degree" | "degrees" => Token::Degree,
                    "percent" | "percentage" | "pct" => Token::Sign('%'),
                    _ => return false,
                };
                self.push(token);
                return true;
            }
        };
        self.push(Token::Function(function));
        true
    }

    fn command(&mut self) -> Option<()> {
        let rest = &self.rest[1..];
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        if end == 0 {
            let sign = rest.chars().next();
            self.rest = &rest[sign.map_or(0, char::len_utf8)..];
            match sign {
                Some('\\') => self.sign('↵'),
                Some('{') => self.sign('⟨'),
                Some('}') => self.sign('⟩'),
                Some('%') => self.sign('%'),
                Some('|') => self.sign('|'),
                Some(' ' | ',' | ';' | ':' | '!' | '\n') => self.spaced = true,
                Some('$' | '(' | ')' | '[' | ']') | None => {}
                Some(_) => return None,
            }
            return Some(());
        }
        let (name, rest) = rest.split_at(end);
        self.rest = rest;
        self.call(name)
    }

    fn call(&mut self, name: &str) -> Option<()> {
        let sign = match name {
            "cdot" | "times" | "ast" => '*',
            "div" => '/',
            "pm" | "mp" => '±',
            "le" | "leq" | "leqslant" | "leqq" => '≤',
            "ge" | "geq" | "geqslant" | "geqq" => '≥',
            "lt" => '<',
            "gt" => '>',
            "ne" | "neq" => '≠',
            "approx" | "simeq" | "sim" | "doteq" => '≈',
            "in" => '∈',
            "cup" | "bigcup" => '∪',
            "langle" | "lparen" => '(',
            "rangle" | "rparen" => ')',
            "lbrace" => '⟨',
            "rbrace" => '⟩',
            "lbrack" => '[',
            "rbrack" => ']',
            "vert" | "lvert" | "rvert" | "mid" => '|',
            "colon" => ':',
            _ => '\0',
        };
        if sign != '\0' {
            self.sign(sign);
            return Some(());
        }
        match name {
            "frac" | "dfrac" | "tfrac" | "cfrac" => self.push(Token::Frac),
            "binom" | "dbinom" | "tbinom" => self.push(Token::Binomial),
            "circ" | "degree" => self.push(Token::Degree),
            "begin" | "end" => {
                let environment = self.argument()?.trim_end_matches('*').to_owned();
                if name == "begin" && environment == "array" {
                    self.argument()?;
                }
                let token = if name == "begin" { Token::Begin } else { Token::End };
                self.push(token(environment));
            }
            "lfloor" | "lceil" => {
                self.push(Token::Function(if name == "lfloor" {
                    Function::Floor
                } else {
                    Function::Ceiling
                }));
                self.sign('(');
            }
            "rfloor" | "rceil" => self.sign(')'),
            "emptyset" | "varnothing" => self.empty_set(),
            _ if name.starts_with("quad") || name.starts_with("qquad") => {
                // `\quadx` is a slip that people read as meant.
                let word = name.trim_start_matches('q').trim_start_matches("uad");
                self.spaced = true;
                if !word.is_empty() {
                    return self.word(word);
                }
            }
            _ if listed(TEXT, name) => {
                let text = self.argument()?;
                self.words(text)?;
            }
            _ if self.named(name) || listed(STYLE, name) => {}
            _ if listed(BOUND, name) => self.push(Token::Bound(format!("\\{name}"))),
            _ => self.push(Token::Symbol(format!("\\{name}"))),
        }
        Some(())
    }

    /// The words in a `\text{}`: a separator, a short name, or a unit.
    fn words(&mut self, text: &'a str) -> Option<()> {
        let words = text.trim().trim_matches([',', ' ']);
        match words {
            "" => self.spaced = true,
            "and" | "or" => self.push(Token::And),
            _ if words.len() <= 3
                && words.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"()".contains(&byte)) =>
            {
                let unit = words.len() > 1 || text.starts_with(' ');
                let after_value = matches!(
                    self.found.last().map(|last| &last.token),
                    Some(Token::Number(_) | Token::Sign(')' | '}'))
                );
                if unit && after_value && words.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                    self.push(Token::Words);
                } else {
                    let (outer, spaced) = (self.rest, self.spaced);
                    self.rest = words;
                    while !self.rest.is_empty() {
                        self.step()?;
                    }
                    (self.rest, self.spaced) = (outer, spaced);
                }
            }
            _ => match words {
                "percent" | "%" => self.sign('%'),
                "degrees" | "degree" => self.push(Token::Degree),
                _ if unit::changes_value(words) => return None,
                _ => self.push(Token::Words),
            },
        }
        // A unit's own power: `\text{m}^2`.
        if matches!(self.found.last().map(|last| &last.token), Some(Token::Words)) {
            let rest = self.rest.trim_start();
            for power in ["^2", "^3", "^{2}", "^{3}"] {
                if let Some(rest) = rest.strip_prefix(power) {
                    self.rest = rest;
                    break;
                }
            }
        }
        Some(())
    }

    /// The inside of the braces that follow.
    fn argument(&mut self) -> Option<&'a str> {
        let (inside, rest) = crate::extract::group(self.rest.trim_start())?;
        self.rest = rest;
        Some(inside)
    }
}

fn listed(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|listed| listed == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        lex(text).unwrap().into_iter().map(|lexeme| lexeme.token).collect()
    }

    #[test]
    fn commas_group_digits_only_outside_of_brackets() {
        let number = |text: &str| Token::Number(text.into());
        assert_eq!(tokens("1,234.50"), [number("1234.50")]);
        assert_eq!(tokens("1,23"), [number("1"), Token::Sign(','), number("23")]);
        assert_eq!(tokens("1,234,5").len(), 5);
        assert_eq!(tokens("1, 234").len(), 3);
        assert_eq!(tokens("(1,234)").len(), 5);
    }

    #[test]
    fn exponents_are_part_of_a_number_and_letters_are_not() {
        assert_eq!(tokens("1.5e-3"), [Token::Scientific("1.5".into(), "-3".into())]);
        assert_eq!(tokens("2e"), [Token::Number("2".into()), Token::Symbol("e".into())]);
        assert_eq!(tokens("2e3x").len(), 4);
    }

    #[test]
    fn words_are_units_after_a_value_and_nothing_elsewhere() {
        assert_eq!(tokens("12 miles").last(), Some(&Token::Words));
        assert_eq!(tokens("3\\text{ m}^2").len(), 2);
        assert_eq!(lex("miles"), None);
        assert_eq!(lex("5 million"), None);
        assert_eq!(lex("５"), None);
    }
}
