//! When two expressions are equal.

use crate::algebra::evaluate;
use crate::choices::Choices;
use crate::complex::{Complex, Floats};
use crate::field::Field;
use crate::small;
use crate::value::{Decimal, Expr};

/// How far floating point may be off, in proportion.
const NEAR: f64 = 1e-9;

/// How far it may be off near zero.
const NEAR_ZERO: f64 = 1e-12;

pub fn equal(a: &Expr, b: &Expr, choices: &Choices) -> bool {
    let ((a, a_percent), (b, b_percent)) = (without_percent(a), without_percent(b));
    if a_percent == b_percent {
        return same(&a, &b, choices);
    }
    let (percent, other) = if a_percent { (a, b) } else { (b, a) };
    (!choices.percent && same(&percent, &other, choices))
        || same(&Expr::quotient(percent, Expr::integer(100)), &other, choices)
}

/// The number before a percent sign, and whether there was one.
fn without_percent(expr: &Expr) -> (Expr, bool) {
    match expr {
        Expr::Percent(a) => ((**a).clone(), true),
        Expr::Negative(a) => {
            let (a, percent) = without_percent(a);
            (Expr::Negative(a.into()), percent)
        }
        _ => (expr.clone(), false),
    }
}

/// An angle's number of degrees.
fn without_degrees(expr: &Expr) -> &Expr {
    if let Expr::Degrees(a) = expr { a } else { expr }
}

fn same(a: &Expr, b: &Expr, choices: &Choices) -> bool {
    let (bare_a, bare_b) = (without_degrees(a), without_degrees(b));
    if choices.reduced
        && let (Some(a), Some(b)) = (fraction(bare_a), fraction(bare_b))
    {
        return a == b;
    }
    if let (Some(a), Some(b)) = (digits(bare_a), digits(bare_b)) {
        return a == b;
    }
    are_one(bare_a, bare_b)
        || (bare_a != a || bare_b != b) && are_one(a, b)
        || is_rounded(bare_a, bare_b, choices)
        || is_rounded(bare_b, bare_a, choices)
}

/// Numerator and denominator as they are written.
fn fraction(expr: &Expr) -> Option<(i128, i128)> {
    match expr {
        Expr::Negative(a) => fraction(a).map(|(above, below)| (-above, below)),
        Expr::Quotient(a, b) => match (&**a, &**b) {
            (Expr::Number(a), Expr::Number(b)) if a.places == 0 && b.places == 0 => {
                Some((a.digits.parse().ok()?, b.digits.parse().ok()?))
            }
            _ => None,
        },
        _ => None,
    }
}

/// A decimal's sign, its digits without zeros that say nothing, and how many stand after the point.
fn digits(expr: &Expr) -> Option<(bool, &str, usize)> {
    match expr {
        Expr::Number(Decimal { digits, places, base: 10 }) => {
            let (mut digits, mut places) = (digits.trim_start_matches('0'), *places);
            while let (Some(shorter), true) = (digits.strip_suffix('0'), places > 0) {
                (digits, places) = (shorter, places - 1);
            }
            Some(if digits.is_empty() { (false, "", 0) } else { (false, digits, places) })
        }
        Expr::Negative(a) => {
            let (negative, digits, places) = digits(a)?;
            Some((!negative && !digits.is_empty(), digits, places))
        }
        _ => None,
    }
}

/// Whether they are equal wherever both are defined.
fn are_one(a: &Expr, b: &Expr) -> bool {
    let mut exact = false;
    for field in Field::all() {
        if let (Some(a), Some(b)) = (evaluate(&field, a), evaluate(&field, b)) {
            if a != b {
                return false;
            }
            exact = true;
        }
    }
    if exact {
        return true;
    }
    let mut agreed = false;
    for point in points(a.has_variables() || b.has_variables()) {
        let (Some(a), Some(b)) = (finite(&point, a), finite(&point, b)) else { continue };
        let near = a.minus(b).size() <= NEAR * a.size().max(b.size()) + NEAR_ZERO;
        // Below zero a root may be any of several.
        if !near && (!point.negative || (a.is_real() && b.is_real())) {
            return false;
        }
        agreed |= near;
    }
    agreed
}

/// Where to look at expressions in floating point.
fn points(variables: bool) -> impl Iterator<Item = Floats> {
    let all = (0..8).map(|point| Floats { point, negative: point >= 4 });
    all.take(if variables { 8 } else { 1 })
}

fn finite(point: &Floats, expr: &Expr) -> Option<Complex> {
    evaluate(point, expr).filter(|value| value.is_finite())
}

/// Whether `decimal` is what `exact`, which is none, is rounded to.
fn is_rounded(decimal: &Expr, exact: &Expr, choices: &Choices) -> bool {
    let Some((half, significant)) = precision(decimal) else { return false };
    if choices.digits == 0
        || significant < choices.digits
        || precision(exact).is_some()
        || exact.has_variables()
    {
        return false;
    }
    let at = Floats { point: 0, negative: false };
    match (finite(&at, decimal), finite(&at, exact)) {
        (Some(a), Some(b)) => digits(exact).is_none() && a.minus(b).size() <= half + NEAR_ZERO * a.size(),
        _ => false,
    }
}

/// Half a unit of the last place of a decimal with a point, and its significant digits.
fn precision(expr: &Expr) -> Option<(f64, usize)> {
    match expr {
        Expr::Number(Decimal { digits, places, base: 10 }) if *places > 0 => {
            let places = i32::try_from(*places).ok()?;
            Some((0.5 * 10_f64.powi(-places), digits.trim_start_matches('0').len()))
        }
        Expr::Negative(a) => precision(a),
        Expr::Product(a, power) => match &**power {
            Expr::Power(ten, exponent) if **ten == Expr::integer(10) => {
                let exponent = i32::try_from(small::integer(exponent)?).ok()?;
                precision(a).map(|(half, digits)| (half * 10_f64.powi(exponent), digits))
            }
            _ => None,
        },
        _ => None,
    }
}

/// The sign of `a / b` if that is one number wherever both are defined and `b` is not zero.
pub fn constant_ratio(a: &Expr, b: &Expr) -> Option<f64> {
    let mut ratio: Option<f64> = None;
    let mut seen = 0;
    for point in points(true) {
        let (Some(a), Some(b)) = (finite(&point, a), finite(&point, b)) else { continue };
        if !a.is_real() || !b.is_real() || b.re == 0.0 {
            continue;
        }
        let here = a.re / b.re;
        if here == 0.0 || ratio.is_some_and(|ratio| (ratio - here).abs() > 1e-7 * ratio.abs()) {
            return None;
        }
        ratio = Some(here);
        seen += 1;
    }
    ratio.filter(|_| seen >= 3).map(f64::signum)
}
