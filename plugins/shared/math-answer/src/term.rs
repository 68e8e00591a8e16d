//! Tokens into the expression of one value.

use crate::lex::{Lexeme, Token};
use crate::parse::Parser;
use crate::value::{Decimal, Expr, Function};

/// Levels of nesting that are read.
const DEEPEST: u32 = 48;

/// Signs after one value: `x!!`, `50%`.
const MOST_SIGNS: usize = 8;

/// How deep the parser is.
#[derive(Debug, Default)]
pub(crate) struct Depth(u32);

impl Depth {
    pub(crate) fn enter(&mut self) -> Option<()> {
        (self.0 < DEEPEST).then(|| self.0 += 1)
    }

    pub(crate) fn leave(&mut self) {
        self.0 -= 1;
    }
}

impl Parser {
    pub(crate) fn sum(&mut self) -> Option<Expr> {
        self.within(Self::sum_here)
    }

    fn sum_here(&mut self) -> Option<Expr> {
        let mut terms = vec![];
        loop {
            let sign = self.peek_sign();
            if !matches!(sign, Some('-' | '+' | '±')) && !terms.is_empty() {
                return balanced(terms, Expr::Sum);
            }
            self.at += usize::from(matches!(sign, Some('-' | '+' | '±')));
            let term = self.product()?;
            terms.push(match sign {
                Some('-') => Expr::Negative(term.into()),
                Some('±') => Expr::PlusMinus(Expr::integer(0).into(), term.into()),
                _ => term,
            });
        }
    }

    fn product(&mut self) -> Option<Expr> {
        let (mut above, mut below) = (vec![self.signed()?], vec![]);
        loop {
            match self.peek_sign() {
                Some('*') => {
                    self.at += 1;
                    above.push(self.signed()?);
                }
                Some('/') => {
                    self.at += 1;
                    below.push(self.signed()?);
                }
                _ if self.begins_factor() => above.push(self.power()?),
                _ => break,
            }
        }
        let above = balanced(above, Expr::Product)?;
        Some(match balanced(below, Expr::Product) {
            Some(below) => Expr::quotient(above, below),
            None => above,
        })
    }

    /// Whether what comes is multiplied with what was, without a sign between them.
    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Sign('|')) => !self.in_bars,
            Some(Token::Sign('(' | '[' | '{')) => !self.pair().comma,
            Some(
                Token::Symbol(_)
                | Token::Bound(_)
                | Token::Function(_)
                | Token::Log
                | Token::Frac
                | Token::Sqrt
                | Token::Binomial,
            ) => true,
            _ => false,
        }
    }

    fn signed(&mut self) -> Option<Expr> {
        if self.eat('-') {
            return Some(Expr::Negative(self.within(Self::signed)?.into()));
        }
        self.eat('+');
        self.power()
    }

    fn power(&mut self) -> Option<Expr> {
        let mut base = self.primary()?;
        for _ in 0..MOST_SIGNS {
            match self.peek() {
                Some(Token::Sign('^')) => {
                    self.at += 1;
                    if self.degree_sign() {
                        base = Expr::Degrees(base.into());
                        continue;
                    }
                    let exponent = self.within(Self::signed)?;
                    base = Expr::Power(base.into(), exponent.into());
                }
                Some(Token::Degree) => {
                    self.at += 1;
                    base = Expr::Degrees(base.into());
                }
                Some(Token::Sign('%')) => {
                    self.at += 1;
                    base = Expr::Percent(base.into());
                }
                Some(Token::Sign('!')) => {
                    self.at += 1;
                    base = Expr::Function(Function::Factorial, base.into());
                }
                Some(Token::Words) => self.unit(),
                _ => return Some(base),
            }
        }
        None
    }

    /// `\circ` or `{\circ}`, as an exponent.
    fn degree_sign(&mut self) -> bool {
        let braced = usize::from(self.peek_sign() == Some('{'));
        let found = matches!(self.tokens.get(self.at + braced), Some(Lexeme { token: Token::Degree, .. }));
        if found {
            self.at += 1 + 2 * braced;
        }
        found
    }

    fn primary(&mut self) -> Option<Expr> {
        let token = self.peek()?.clone();
        self.at += 1;
        match token {
            Token::Number(digits) => self.number(&digits),
            Token::Scientific(digits, exponent) => {
                let exponent = match exponent.strip_prefix('-') {
                    Some(digits) => Expr::Negative(decimal(digits).into()),
                    None => decimal(exponent.trim_start_matches('+')),
                };
                Some(Expr::product(decimal(&digits), Expr::Power(Expr::integer(10).into(), exponent.into())))
            }
            Token::Symbol(name) => self.symbol(name),
            Token::Bound(name) => {
                let mut name = name;
                while let Some(sign @ ('_' | '^')) = self.peek_sign() {
                    self.at += 1;
                    name.push(sign);
                    name.push_str(&self.subscript()?);
                }
                Some(Expr::Symbol(name))
            }
            Token::Function(function) => self.function(function),
            Token::Log => {
                let base = if self.eat('_') { self.argument()? } else { Expr::integer(10) };
                let argument = self.function_argument()?;
                Some(Expr::Log(base.into(), argument.into()))
            }
            Token::Frac => Some(Expr::quotient(self.argument()?, self.argument()?)),
            Token::Binomial => Some(Expr::Binomial(self.argument()?.into(), self.argument()?.into())),
            Token::Sqrt => {
                let degree = if self.peek_sign() == Some('[') {
                    self.at += 1;
                    let degree = self.sum()?;
                    self.eat(']').then_some(degree)?
                } else {
                    Expr::integer(2)
                };
                let radicand = self.argument()?;
                Some(Expr::Root(radicand.into(), degree.into()))
            }
            Token::Sign('|') => {
                let outer = std::mem::replace(&mut self.in_bars, true);
                let inside = self.sum();
                self.in_bars = outer;
                let inside = inside?;
                self.eat('|').then(|| Expr::Function(Function::Absolute, inside.into()))
            }
            Token::Sign(open @ ('(' | '[' | '{')) => {
                let outer = std::mem::replace(&mut self.in_bars, false);
                let inside = self.sum();
                self.in_bars = outer;
                let close = match open {
                    '(' => ')',
                    '[' => ']',
                    _ => '}',
                };
                let inside = inside?;
                self.eat(close).then_some(inside)
            }
            _ => None,
        }
    }

    /// A number, with its base, or with the fraction that makes it a mixed number.
    fn number(&mut self, digits: &str) -> Option<Expr> {
        if self.eat('_') {
            let base: u32 = self.subscript()?.parse().ok().filter(|base| (2..=36).contains(base))?;
            let fits = digits.bytes().all(|digit| digit == b'.' || u32::from(digit - b'0') < base);
            let (number, places) = split(digits);
            return fits.then_some(Expr::Number(Decimal { digits: number, places, base }));
        }
        let whole = decimal(digits);
        let fraction = if digits.contains('.') { None } else { self.fraction() };
        Some(match fraction {
            Some(fraction) => Expr::Sum(whole.into(), fraction.into()),
            None => whole,
        })
    }

    /// A proper fraction of plain digits directly after a whole number.
    fn fraction(&mut self) -> Option<Expr> {
        let digits = |at: usize| match &self.tokens.get(at)?.token {
            Token::Number(digits) if !digits.contains('.') => Some(digits.as_str()),
            _ => None,
        };
        let sign = |at: usize, sign: char| matches!(self.tokens.get(at), Some(Lexeme { token: Token::Sign(found), .. }) if *found == sign);
        let braced = |at: usize| sign(at, '{') && sign(at + 2, '}');
        let (top, bottom, end) = match self.peek()? {
            Token::Frac if braced(self.at + 1) && braced(self.at + 4) => {
                (digits(self.at + 2)?, digits(self.at + 5)?, self.at + 7)
            }
            // `\frac12` is one number to the lexer.
            Token::Frac => match digits(self.at + 1)? {
                both if both.len() == 2 => (&both[..1], &both[1..], self.at + 2),
                one if one.len() == 1 => {
                    (one, digits(self.at + 2).filter(|digits| digits.len() == 1)?, self.at + 3)
                }
                _ => return None,
            },
            Token::Number(_) if self.tokens[self.at].spaced && sign(self.at + 1, '/') => {
                (digits(self.at)?, digits(self.at + 2)?, self.at + 3)
            }
            _ => return None,
        };
        let (numerator, denominator): (u64, u64) = (top.parse().ok()?, bottom.parse().ok()?);
        if numerator >= denominator {
            return None;
        }
        self.at = end;
        Some(Expr::quotient(Expr::integer(numerator), Expr::integer(denominator)))
    }

    fn symbol(&mut self, name: String) -> Option<Expr> {
        if self.eat('_') {
            let below = self.subscript()?;
            return Some(Expr::Symbol(format!("{name}_{below}")));
        }
        Some(Expr::Symbol(name))
    }

    /// A subscript as text: a group in braces, or one token.
    fn subscript(&mut self) -> Option<String> {
        let end = if self.peek_sign() == Some('{') { self.pair().close + 1 } else { self.at + 1 };
        let inside = self.tokens.get(self.at..end)?;
        let mut text = String::new();
        for lexeme in inside {
            match &lexeme.token {
                Token::Sign('{' | '}') => {}
                Token::Sign(sign) => text.push(*sign),
                Token::Number(digits) => text.push_str(digits),
                Token::Symbol(name) => text.push_str(name),
                other => text.push_str(&format!("{other:?}")),
            }
        }
        self.at = end;
        Some(text)
    }

    /// The argument of a command: a group, one digit of a number, or one other factor.
    fn argument(&mut self) -> Option<Expr> {
        let one_digit = match self.tokens.get_mut(self.at) {
            Some(Lexeme { token: Token::Number(digits), .. })
                if digits.len() > 1 && !digits.contains('.') =>
            {
                let rest = digits.split_off(1);
                Some(std::mem::replace(digits, rest))
            }
            _ => None,
        };
        match one_digit {
            Some(digit) => Some(decimal(&digit)),
            None => self.within(Self::primary),
        }
    }

    fn function(&mut self, function: Function) -> Option<Expr> {
        let power = if self.eat('^') { Some(self.argument()?) } else { None };
        let argument = self.function_argument()?;
        let applied = |function| Expr::Function(function, argument.clone().into());
        Some(match (power, function) {
            (Some(Expr::Negative(_)), Function::Sin) => applied(Function::Arcsin),
            (Some(Expr::Negative(_)), Function::Cos) => applied(Function::Arccos),
            (Some(Expr::Negative(_)), Function::Tan) => applied(Function::Arctan),
            (Some(power), _) => Expr::Power(applied(function).into(), power.into()),
            (None, _) => applied(function),
        })
    }

    /// What a function is of: a group in brackets, or the factors up to the next function or sign.
    fn function_argument(&mut self) -> Option<Expr> {
        if let Some('(' | '[' | '{' | '|') = self.peek_sign() {
            return self.within(Self::power);
        }
        let mut factors = vec![self.within(Self::signed)?];
        while matches!(self.peek(), Some(Token::Symbol(_) | Token::Frac | Token::Sqrt)) {
            factors.push(self.within(Self::power)?);
        }
        balanced(factors, Expr::Product)
    }
}

impl Expr {
    /// Number of operations.
    pub(crate) fn nodes(&self) -> usize {
        1 + self.parts().into_iter().map(Self::nodes).sum::<usize>()
    }
}

/// One expression of many, as flat as can be, so that it is walked without a deep stack; None of none.
fn balanced(mut terms: Vec<Expr>, join: impl Fn(Box<Expr>, Box<Expr>) -> Expr) -> Option<Expr> {
    while terms.len() > 1 {
        let mut pairs = terms.into_iter();
        terms = vec![];
        while let Some(first) = pairs.next() {
            terms.push(match pairs.next() {
                Some(second) => join(first.into(), second.into()),
                None => first,
            });
        }
    }
    terms.pop()
}

fn split(digits: &str) -> (String, usize) {
    match digits.split_once('.') {
        Some((whole, part)) => (format!("{whole}{part}"), part.len()),
        None => (digits.to_owned(), 0),
    }
}

fn decimal(digits: &str) -> Expr {
    let (digits, places) = split(digits);
    Expr::Number(Decimal { digits, places, base: 10 })
}
