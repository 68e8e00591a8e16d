//! Fractions that fit into machine words: exponents, factorials.

use crate::algebra::{Algebra, evaluate};
use crate::value::{Decimal, Expr, Function};

/// Numerator and denominator in lowest terms, the denominator positive.
type Fraction = (i128, i128);

pub fn fraction(expr: &Expr) -> Option<Fraction> {
    evaluate(&Small, expr)
}

pub fn integer(expr: &Expr) -> Option<i128> {
    fraction(expr).and_then(|(value, below)| (below == 1).then_some(value))
}

struct Small;

impl Algebra for Small {
    type Number = Fraction;

    fn decimal(&self, decimal: &Decimal) -> Option<Fraction> {
        let value = i128::from_str_radix(&decimal.digits, decimal.base).ok()?;
        let places = u32::try_from(decimal.places).ok()?;
        reduced(value, i128::from(decimal.base).checked_pow(places)?)
    }

    fn symbol(&self, _name: &str) -> Option<Fraction> {
        None
    }

    fn sum(&self, a: &Fraction, b: &Fraction) -> Option<Fraction> {
        let sum = a.0.checked_mul(b.1)?.checked_add(b.0.checked_mul(a.1)?)?;
        reduced(sum, a.1.checked_mul(b.1)?)
    }

    fn negative(&self, a: &Fraction) -> Fraction {
        (-a.0, a.1)
    }

    fn product(&self, a: &Fraction, b: &Fraction) -> Option<Fraction> {
        reduced(a.0.checked_mul(b.0)?, a.1.checked_mul(b.1)?)
    }

    fn inverse(&self, a: &Fraction) -> Option<Fraction> {
        reduced(a.1, a.0)
    }

    fn power(&self, base: &Fraction, exponent: &Expr) -> Option<Fraction> {
        let exponent = integer(exponent)?;
        let times = u32::try_from(exponent.checked_abs()?).ok()?;
        let power = (base.0.checked_pow(times)?, base.1.checked_pow(times)?);
        if exponent < 0 { reduced(power.1, power.0) } else { Some(power) }
    }

    fn root(&self, _radicand: &Fraction, _degree: &Expr) -> Option<Fraction> {
        None
    }

    fn function(&self, function: Function, a: &Fraction) -> Option<Fraction> {
        match function {
            Function::Absolute => Some((a.0.checked_abs()?, a.1)),
            Function::Factorial if a.1 == 1 && (0..=30).contains(&a.0) => Some(((1..=a.0).product(), 1)),
            Function::Floor => Some((a.0.div_euclid(a.1), 1)),
            Function::Ceiling => Some((-(-a.0).div_euclid(a.1), 1)),
            _ => None,
        }
    }
}

/// In lowest terms; None of a denominator that is zero, or of numbers at the edge.
fn reduced(above: i128, below: i128) -> Option<Fraction> {
    let (above, below) =
        if below < 0 { (above.checked_neg()?, below.checked_neg()?) } else { (above, below) };
    let (mut a, mut b) = (above.checked_abs()?, below);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (below != 0 && a != 0 && above > i128::MIN / 2).then(|| (above / a, below / a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::answer;
    use crate::value::Value;

    fn value(text: &str) -> Option<Fraction> {
        let Some(Value::Expr(expr)) = answer(text) else { panic!("{text}") };
        fraction(&expr)
    }

    #[test]
    fn small_fractions_are_exact_and_large_ones_are_none() {
        for (text, expected) in [
            ("2/6", Some((1, 3))),
            ("-1.25", Some((-5, 4))),
            ("2^{-3}", Some((1, 8))),
            ("4!", Some((24, 1))),
            ("\\binom{5}{2}", Some((10, 1))),
            ("\\lfloor -2.5 \\rfloor", Some((-3, 1))),
            ("1/0", None),
            ("9^9^9", None),
            ("30!", Some((265_252_859_812_191_058_636_308_480_000_000, 1))),
            ("99!", None),
            ("x", None),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }
}
