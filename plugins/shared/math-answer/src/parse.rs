//! Tokens into answers: what several values are made of. What one value is made of is in `term`.

use crate::lex::{Lexeme, Token, lex};
use crate::term::Depth;
use crate::value::{Expr, Value};

/// Reads an answer; None if it is no mathematics.
pub fn answer(text: &str) -> Option<Value> {
    let tokens = lex(text)?;
    let pairs = pairs(&tokens)?;
    let mut parser = Parser { tokens, pairs, at: 0, depth: Depth::default(), in_bars: false };
    let value = parser.answers()?;
    (parser.at == parser.tokens.len()).then_some(value)
}

/// What an opening bracket has to do with the rest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pair {
    /// Where it closes.
    pub(crate) close: usize,
    /// Whether a comma stands directly inside.
    pub(crate) comma: bool,
}

/// The pair of every opening bracket; None if they do not match. `(` and `[` close each other, as in intervals.
fn pairs(tokens: &[Lexeme]) -> Option<Vec<Pair>> {
    let mut pairs = vec![Pair::default(); tokens.len()];
    let mut open: Vec<(usize, char)> = vec![];
    for (at, lexeme) in tokens.iter().enumerate() {
        match lexeme.token {
            Token::Sign(sign @ ('(' | '[' | '{' | '⟨')) => open.push((at, sign)),
            Token::Sign(sign @ (')' | ']' | '}' | '⟩')) => {
                let (from, opened) = open.pop()?;
                let fits = match sign {
                    '}' => opened == '{',
                    '⟩' => opened == '⟨',
                    _ => matches!(opened, '(' | '['),
                };
                if !fits {
                    return None;
                }
                pairs[from].close = at;
            }
            Token::Sign(',' | ';') | Token::And => {
                if let Some(&(from, _)) = open.last() {
                    pairs[from].comma = true;
                }
            }
            _ => {}
        }
    }
    open.is_empty().then_some(pairs)
}

pub(crate) struct Parser {
    pub(crate) tokens: Vec<Lexeme>,
    pairs: Vec<Pair>,
    pub(crate) at: usize,
    pub(crate) depth: Depth,
    /// Whether a `|` closes.
    pub(crate) in_bars: bool,
}

impl Parser {
    pub(crate) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|lexeme| &lexeme.token)
    }

    pub(crate) fn peek_sign(&self) -> Option<char> {
        match self.peek() {
            Some(&Token::Sign(sign)) => Some(sign),
            _ => None,
        }
    }

    pub(crate) fn eat(&mut self, sign: char) -> bool {
        let eaten = self.peek_sign() == Some(sign);
        self.at += usize::from(eaten);
        eaten
    }

    pub(crate) fn pair(&self) -> Pair {
        self.pairs.get(self.at).copied().unwrap_or_default()
    }

    /// Answers side by side. Parts that are each several equations, as in `x=1, y=2; x=3, y=4`, stay together.
    fn answers(&mut self) -> Option<Value> {
        let mut parts = vec![vec![self.relation()?]];
        loop {
            let comma = self.eat(',');
            let parted = matches!(self.peek(), Some(Token::And | Token::Sign(';')));
            while matches!(self.peek(), Some(Token::And | Token::Sign(';' | ','))) {
                self.at += 1;
            }
            if !comma && !parted {
                break;
            }
            if self.peek().is_none() {
                break;
            }
            let value = self.relation()?;
            match parts.last_mut() {
                Some(part) if !parted => part.push(value),
                _ => parts.push(vec![value]),
            }
        }
        let length = parts[0].len();
        let equations = |part: &Vec<Value>| part.iter().all(|value| matches!(value, Value::Relation(..)));
        if parts.len() > 1 && length > 1 && parts.iter().all(|part| part.len() == length && equations(part)) {
            return Some(Value::List(parts.into_iter().map(Value::List).collect()));
        }
        let mut values: Vec<Value> = parts.into_iter().flatten().collect();
        if values.len() == 1 { values.pop() } else { Some(Value::List(values)) }
    }

    fn relation(&mut self) -> Option<Value> {
        let first = self.union()?;
        let (mut sides, mut signs) = (vec![first], vec![]);
        while let Some(sign @ ('=' | '≠' | '<' | '>' | '≤' | '≥' | '≈' | '∈')) = self.peek_sign() {
            self.at += 1;
            signs.push(sign);
            sides.push(self.union()?);
        }
        if signs.is_empty() { sides.pop() } else { Some(Value::Relation(sides, signs)) }
    }

    fn union(&mut self) -> Option<Value> {
        let mut values = vec![self.ratio()?];
        while self.eat('∪') {
            values.push(self.ratio()?);
        }
        if values.len() == 1 { values.pop() } else { Some(Value::Union(values)) }
    }

    /// `a : b` is the quotient, and binds less than everything else within a value.
    fn ratio(&mut self) -> Option<Value> {
        let mut value = self.value()?;
        while self.eat(':') {
            let Value::Expr(left) = value else { return None };
            value = Value::Expr(Expr::quotient(left, self.sum()?));
        }
        Some(value)
    }

    fn value(&mut self) -> Option<Value> {
        let pair = self.pair();
        match self.peek()? {
            Token::Sign(open @ ('(' | '[' | '⟨' | '{')) if pair.comma || *open == '⟨' => {
                self.items(*open, pair.close)
            }
            // A box or a pair of braces around all of a value.
            Token::Sign('{') if self.ends_value(pair.close + 1) => {
                self.at += 1;
                let inside = self.within(Self::relation)?;
                self.eat('}').then_some(inside)
            }
            Token::Sign('(') if self.begins_environment() && self.ends_value(pair.close + 1) => {
                self.at += 1;
                let inside = self.within(Self::value)?;
                self.eat(')').then_some(inside)
            }
            Token::Begin(_) => self.matrices(),
            _ => Some(Value::Expr(self.sum()?)),
        }
    }

    fn begins_environment(&self) -> bool {
        matches!(self.tokens.get(self.at + 1).map(|lexeme| &lexeme.token), Some(Token::Begin(_)))
    }

    fn ends_value(&self, at: usize) -> bool {
        match self.tokens.get(at).map(|lexeme| &lexeme.token) {
            None | Some(Token::And) => true,
            Some(Token::Sign(sign)) => matches!(sign, ',' | ';' | '=' | '∪' | '&' | '↵' | '}' | ')' | ']'),
            Some(_) => false,
        }
    }

    /// Calls `read` one level deeper.
    pub(crate) fn within<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth.enter()?;
        let found = read(self);
        self.depth.leave();
        found
    }

    /// The values between two brackets.
    fn items(&mut self, open: char, close: usize) -> Option<Value> {
        self.at += 1;
        let mut items = vec![];
        while self.at < close {
            items.push(self.within(Self::relation)?);
            while self.at < close && matches!(self.peek(), Some(Token::And | Token::Sign(',' | ';'))) {
                self.at += 1;
            }
        }
        let closed = self.peek_sign()?;
        self.at += 1;
        self.unit();
        Some(match (open, closed) {
            ('{' | '⟨', '}' | '⟩') => Value::Set(items),
            _ => Value::Tuple(open, items, closed),
        })
    }

    /// Words after a value.
    pub(crate) fn unit(&mut self) {
        while self.peek() == Some(&Token::Words) {
            self.at += 1;
        }
    }

    /// One matrix, or the product of several.
    fn matrices(&mut self) -> Option<Value> {
        let mut value = self.matrix()?;
        while matches!(self.peek(), Some(Token::Begin(_))) {
            let next = self.matrix()?;
            let (Value::Matrix(left), Value::Matrix(right)) = (value, next) else { return None };
            value = Value::Matrix(multiplied(&left, &right)?);
        }
        Some(value)
    }

    fn matrix(&mut self) -> Option<Value> {
        let Some(Token::Begin(environment)) = self.peek().cloned() else { return None };
        self.at += 1;
        let (mut rows, mut row) = (vec![], vec![]);
        loop {
            match self.peek()? {
                Token::End(end) if *end == environment => break,
                Token::Sign('&') => self.at += 1,
                Token::Sign('↵') => {
                    self.at += 1;
                    rows.push(std::mem::take(&mut row));
                }
                Token::Sign(',') if environment == "cases" => self.at += 1,
                _ => row.push(self.within(Self::relation)?),
            }
        }
        self.at += 1;
        if !row.is_empty() {
            rows.push(row);
        }
        rows.retain(|row| !row.is_empty());
        match environment.as_str() {
            "cases" | "aligned" | "align" | "gathered" => {
                Some(Value::List(rows.into_iter().flatten().collect()))
            }
            "pmatrix" | "bmatrix" | "matrix" | "smallmatrix" | "array" | "Bmatrix" => {
                Some(Value::Matrix(rows))
            }
            "vmatrix" => determinant(&rows).map(Value::Expr),
            _ => None,
        }
    }
}

/// By the first row, of at most four.
fn determinant(rows: &[Vec<Value>]) -> Option<Expr> {
    if rows.len() > 4 || rows.iter().any(|row| row.len() != rows.len()) {
        return None;
    }
    let (first, below) = rows.split_first()?;
    if below.is_empty() {
        return if let [Value::Expr(expr)] = &first[..] { Some(expr.clone()) } else { None };
    }
    let term = |(column, value): (usize, &Value)| {
        let Value::Expr(factor) = value else { return None };
        let minor = |row: &Vec<Value>| [&row[..column], &row[column + 1..]].concat();
        let minor = determinant(&below.iter().map(minor).collect::<Vec<_>>())?;
        let term = Expr::product(factor.clone(), minor);
        Some(if column % 2 == 0 { term } else { Expr::Negative(term.into()) })
    };
    let terms: Option<Vec<Expr>> = first.iter().enumerate().map(term).collect();
    terms?.into_iter().reduce(|a, b| Expr::Sum(a.into(), b.into()))
}

fn multiplied(left: &[Vec<Value>], right: &[Vec<Value>]) -> Option<Vec<Vec<Value>>> {
    let columns = right.first()?.len();
    let fits =
        left.iter().all(|row| row.len() == right.len()) && right.iter().all(|row| row.len() == columns);
    // Larger products are nobody's answer.
    if !fits || left.len().max(right.len()).max(columns) > 6 {
        return None;
    }
    let entry = |row: &Vec<Value>, column: usize| {
        let terms = row.iter().zip(right).map(|(a, b)| match (a, &b[column]) {
            (Value::Expr(a), Value::Expr(b)) => Some(Expr::product(a.clone(), b.clone())),
            _ => None,
        });
        let terms: Option<Vec<Expr>> = terms.collect();
        let sum = terms?.into_iter().reduce(|a, b| Expr::Sum(a.into(), b.into()))?;
        (sum.nodes() <= 10_000).then_some(Value::Expr(sum))
    };
    left.iter().map(|row| (0..columns).map(|column| entry(row, column)).collect()).collect()
}
