//! What an expression is worth, in one kind of number or another.

use crate::value::{Decimal, Expr, Function};

/// A kind of number. None where an operation has no result in it.
pub trait Algebra {
    type Number: Clone;

    fn decimal(&self, decimal: &Decimal) -> Option<Self::Number>;
    fn symbol(&self, name: &str) -> Option<Self::Number>;
    fn sum(&self, a: &Self::Number, b: &Self::Number) -> Option<Self::Number>;
    fn negative(&self, a: &Self::Number) -> Self::Number;
    fn product(&self, a: &Self::Number, b: &Self::Number) -> Option<Self::Number>;
    fn inverse(&self, a: &Self::Number) -> Option<Self::Number>;
    /// `exponent` is the expression, since not every kind of number has it.
    fn power(&self, base: &Self::Number, exponent: &Expr) -> Option<Self::Number>;
    fn root(&self, radicand: &Self::Number, degree: &Expr) -> Option<Self::Number>;
    fn function(&self, function: Function, a: &Self::Number) -> Option<Self::Number>;
}

pub fn evaluate<A: Algebra>(algebra: &A, expr: &Expr) -> Option<A::Number> {
    let value = |expr: &Expr| evaluate(algebra, expr);
    match expr {
        Expr::Number(decimal) => algebra.decimal(decimal),
        Expr::Symbol(name) => algebra.symbol(name),
        Expr::Negative(a) => Some(algebra.negative(&value(a)?)),
        Expr::Sum(a, b) => algebra.sum(&value(a)?, &value(b)?),
        Expr::Product(a, b) => algebra.product(&value(a)?, &value(b)?),
        Expr::Quotient(a, b) => algebra.product(&value(a)?, &algebra.inverse(&value(b)?)?),
        Expr::Power(a, b) => algebra.power(&value(a)?, b),
        Expr::Root(a, b) => algebra.root(&value(a)?, b),
        Expr::Function(function, a) => algebra.function(*function, &value(a)?),
        Expr::Log(base, a) => {
            let [base, a] = [value(base)?, value(a)?].map(|x| algebra.function(Function::Ln, &x));
            algebra.product(&a?, &algebra.inverse(&base?)?)
        }
        Expr::Binomial(n, k) => {
            let (n, k) = (crate::small::integer(n)?, crate::small::integer(k)?);
            let digits = binomial(n, k)?.to_string();
            algebra.decimal(&Decimal { digits, places: 0, base: 10 })
        }
        Expr::PlusMinus(..) => None,
        Expr::Percent(a) => {
            let hundred = algebra.decimal(&Decimal { digits: "100".into(), places: 0, base: 10 })?;
            algebra.product(&value(a)?, &algebra.inverse(&hundred)?)
        }
        Expr::Degrees(a) => {
            let half = Decimal { digits: "180".into(), places: 0, base: 10 };
            let degree =
                algebra.product(&algebra.symbol("\\pi")?, &algebra.inverse(&algebra.decimal(&half)?)?)?;
            algebra.product(&value(a)?, &degree)
        }
    }
}

fn binomial(n: i128, k: i128) -> Option<i128> {
    if !(0..=1000).contains(&n) || !(0..=n).contains(&k) {
        return None;
    }
    (0..k.min(n - k)).try_fold(1_i128, |value, at| Some(value.checked_mul(n - at)? / (at + 1)))
}
