//! What an answer is made of, once it is read.

/// An expression of one value.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    Number(Decimal),
    /// A variable or a constant: `x`, `x_1`, `\theta`, `\pi`, `e`, `i`, `\infty`.
    Symbol(String),
    Negative(Box<Expr>),
    Sum(Box<Expr>, Box<Expr>),
    Product(Box<Expr>, Box<Expr>),
    Quotient(Box<Expr>, Box<Expr>),
    /// Base and exponent.
    Power(Box<Expr>, Box<Expr>),
    /// Radicand and degree.
    Root(Box<Expr>, Box<Expr>),
    Function(Function, Box<Expr>),
    /// Base and argument.
    Log(Box<Expr>, Box<Expr>),
    Binomial(Box<Expr>, Box<Expr>),
    /// Either of `a + b` and `a - b`.
    PlusMinus(Box<Expr>, Box<Expr>),
    Percent(Box<Expr>),
    Degrees(Box<Expr>),
}

/// A decimal as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decimal {
    /// Without the point.
    pub digits: String,
    /// How many of them stand after the point.
    pub places: usize,
    /// The base of `digits`, 2 to 36; ten unless a subscript says otherwise.
    pub base: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Sin,
    Cos,
    Tan,
    Sec,
    Csc,
    Cot,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Tanh,
    Ln,
    Exp,
    Absolute,
    Factorial,
    Floor,
    Ceiling,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Expr(Expr),
    /// Ordered, between these brackets: a point, a vector or an interval.
    Tuple(char, Vec<Value>, char),
    Set(Vec<Value>),
    /// Several answers.
    List(Vec<Value>),
    Union(Vec<Value>),
    Matrix(Vec<Vec<Value>>),
    /// Sides, and what stands between them: one of `= ≠ < > ≤ ≥ ≈ ∈`.
    Relation(Vec<Value>, Vec<char>),
}

impl Expr {
    pub fn integer(value: u64) -> Self {
        Self::Number(Decimal { digits: value.to_string(), places: 0, base: 10 })
    }

    pub fn product(a: Self, b: Self) -> Self {
        Self::Product(a.into(), b.into())
    }

    pub fn quotient(a: Self, b: Self) -> Self {
        Self::Quotient(a.into(), b.into())
    }

    /// What it is made of.
    pub fn parts(&self) -> Vec<&Expr> {
        match self {
            Self::Number(_) | Self::Symbol(_) => vec![],
            Self::Negative(a) | Self::Function(_, a) | Self::Percent(a) | Self::Degrees(a) => vec![a],
            Self::Sum(a, b)
            | Self::Product(a, b)
            | Self::Quotient(a, b)
            | Self::Power(a, b)
            | Self::Root(a, b)
            | Self::Log(a, b)
            | Self::Binomial(a, b)
            | Self::PlusMinus(a, b) => vec![a, b],
        }
    }

    /// Whether it has a symbol that stands for any number.
    pub fn has_variables(&self) -> bool {
        match self {
            Self::Symbol(name) => !matches!(name.as_str(), "\\pi" | "e" | "i" | "\\infty"),
            _ => self.parts().into_iter().any(Self::has_variables),
        }
    }

    /// A name of something: symbols alone, side by side, as a ratio, or of an argument.
    pub fn is_name(&self) -> bool {
        match self {
            Self::Symbol(_) => true,
            Self::Product(a, b) => a.is_name() && (b.is_name() || matches!(**b, Self::Number(_))),
            Self::Quotient(a, b) => a.is_name() && b.is_name(),
            Self::Function(Function::Absolute, a) => a.is_name(),
            _ => false,
        }
    }

    /// With every `±` read as plus, and as minus; None without one.
    pub fn both_signs(&self) -> Option<(Self, Self)> {
        self.has_sign_choice().then(|| (self.with_sign(true), self.with_sign(false)))
    }

    fn has_sign_choice(&self) -> bool {
        matches!(self, Self::PlusMinus(..)) || self.parts().into_iter().any(Self::has_sign_choice)
    }

    fn with_sign(&self, plus: bool) -> Self {
        let one = |a: &Expr| Box::new(a.with_sign(plus));
        match self {
            Self::Number(_) | Self::Symbol(_) => self.clone(),
            Self::PlusMinus(a, b) if plus => Self::Sum(one(a), one(b)),
            Self::PlusMinus(a, b) => Self::Sum(one(a), Self::Negative(one(b)).into()),
            Self::Negative(a) => Self::Negative(one(a)),
            Self::Function(function, a) => Self::Function(*function, one(a)),
            Self::Percent(a) => Self::Percent(one(a)),
            Self::Degrees(a) => Self::Degrees(one(a)),
            Self::Sum(a, b) => Self::Sum(one(a), one(b)),
            Self::Product(a, b) => Self::Product(one(a), one(b)),
            Self::Quotient(a, b) => Self::Quotient(one(a), one(b)),
            Self::Power(a, b) => Self::Power(one(a), one(b)),
            Self::Root(a, b) => Self::Root(one(a), one(b)),
            Self::Log(a, b) => Self::Log(one(a), one(b)),
            Self::Binomial(a, b) => Self::Binomial(one(a), one(b)),
        }
    }
}

impl Value {
    /// Number of expressions and brackets: what comparing it costs.
    pub fn size(&self) -> usize {
        let all = |items: &[Value]| 1 + items.iter().map(Value::size).sum::<usize>();
        match self {
            Self::Expr(_) => 1,
            Self::Tuple(_, items, _)
            | Self::Set(items)
            | Self::List(items)
            | Self::Union(items)
            | Self::Relation(items, _) => all(items),
            Self::Matrix(rows) => rows.iter().map(|row| all(row)).sum(),
        }
    }
}
