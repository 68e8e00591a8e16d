//! Complex numbers in floating point, for what is not rational.

use crate::algebra::{Algebra, evaluate};
use crate::small;
use crate::value::{Decimal, Expr, Function};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Complex {
    pub re: f64,
    pub im: f64,
}

fn real(re: f64) -> Complex {
    Complex { re, im: 0.0 }
}

impl Complex {
    pub fn is_finite(self) -> bool {
        self.re.is_finite() && self.im.is_finite()
    }

    pub fn is_real(self) -> bool {
        self.im.abs() <= 1e-9 * self.re.abs() + 1e-12
    }

    pub fn size(self) -> f64 {
        self.re.hypot(self.im)
    }

    pub fn minus(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }

    pub fn times(self, other: Self) -> Self {
        Self { re: self.re * other.re - self.im * other.im, im: self.re * other.im + self.im * other.re }
    }

    fn over(self, other: Self) -> Option<Self> {
        let square = other.re * other.re + other.im * other.im;
        let above = self.times(Self { re: other.re, im: -other.im });
        (square != 0.0).then_some(Self { re: above.re / square, im: above.im / square })
    }

    fn exp(self) -> Self {
        let size = self.re.exp();
        if self.im == 0.0 { real(size) } else { Self { re: size * self.im.cos(), im: size * self.im.sin() } }
    }

    fn ln(self) -> Option<Self> {
        (self.size() != 0.0).then(|| Self { re: self.size().ln(), im: self.im.atan2(self.re) })
    }

    fn to_the(self, exponent: Self) -> Option<Self> {
        if self.size() == 0.0 {
            return (exponent.re > 0.0).then_some(real(0.0));
        }
        if self.im == 0.0 && self.re > 0.0 && exponent.im == 0.0 {
            return Some(real(self.re.powf(exponent.re)));
        }
        Some(self.ln()?.times(exponent).exp())
    }
}

/// A choice of numbers for the symbols.
pub struct Floats {
    pub point: u64,
    /// Some symbols are below zero.
    pub negative: bool,
}

impl Algebra for Floats {
    type Number = Complex;

    fn decimal(&self, decimal: &Decimal) -> Option<Complex> {
        if decimal.base == 10 {
            let (whole, part) = decimal.digits.split_at(decimal.digits.len().checked_sub(decimal.places)?);
            return format!("{whole}.{part}0")
                .parse()
                .ok()
                .or_else(|| format!("0.{part}").parse().ok())
                .map(real);
        }
        let base = f64::from(decimal.base);
        let digit = |digit: char| digit.to_digit(decimal.base).map(f64::from);
        let whole = decimal.digits.chars().try_fold(0.0, |value, next| Some(value * base + digit(next)?))?;
        Some(real(whole / base.powi(i32::try_from(decimal.places).ok()?)))
    }

    fn symbol(&self, name: &str) -> Option<Complex> {
        Some(match name {
            "\\pi" => real(std::f64::consts::PI),
            "e" => real(std::f64::consts::E),
            "i" => Complex { re: 0.0, im: 1.0 },
            "\\infty" => real(1.0e5 / 7.0),
            _ => {
                let start = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(self.point + 3);
                let hash = name
                    .bytes()
                    .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
                let bits = u32::try_from((hash ^ (hash >> 32)) & 0xffff_ffff).unwrap_or(0);
                let size = 0.3 + 2.0 * f64::from(bits) / f64::from(u32::MAX);
                real(if self.negative && bits & 1 == 0 { -size } else { size })
            }
        })
    }

    fn sum(&self, a: &Complex, b: &Complex) -> Option<Complex> {
        Some(Complex { re: a.re + b.re, im: a.im + b.im })
    }

    fn negative(&self, a: &Complex) -> Complex {
        Complex { re: -a.re, im: -a.im }
    }

    fn product(&self, a: &Complex, b: &Complex) -> Option<Complex> {
        Some(a.times(*b))
    }

    fn inverse(&self, a: &Complex) -> Option<Complex> {
        real(1.0).over(*a)
    }

    fn power(&self, base: &Complex, exponent: &Expr) -> Option<Complex> {
        if let Some(times) = small::integer(exponent).and_then(|times| i32::try_from(times).ok()) {
            if base.im == 0.0 {
                return Some(real(base.re.powi(times)));
            }
            if times.abs() <= 64 {
                let power = (0..times.abs()).fold(real(1.0), |power, _| power.times(*base));
                return if times < 0 { real(1.0).over(power) } else { Some(power) };
            }
        }
        base.to_the(evaluate(self, exponent)?)
    }

    fn root(&self, radicand: &Complex, degree: &Expr) -> Option<Complex> {
        let degree = evaluate(self, degree)?;
        let odd = degree.im == 0.0 && degree.re % 2.0 == 1.0;
        if radicand.im == 0.0 {
            if degree == real(2.0) {
                let root = radicand.re.abs().sqrt();
                return Some(if radicand.re < 0.0 { Complex { re: 0.0, im: root } } else { real(root) });
            }
            // The real root of a negative number, as in schools.
            if odd && radicand.re < 0.0 {
                return Some(real(-(-radicand.re).powf(1.0 / degree.re)));
            }
        }
        radicand.to_the(real(1.0).over(degree)?)
    }

    fn function(&self, function: Function, a: &Complex) -> Option<Complex> {
        match function {
            Function::Ln => return a.ln(),
            Function::Exp => return Some(a.exp()),
            Function::Absolute => return Some(real(a.size())),
            _ => {}
        }
        // Of others, only real arguments.
        let x = if a.im == 0.0 { a.re } else { return None };
        let inside = |x: f64| (x.abs() <= 1.0).then_some(x);
        Some(real(match function {
            Function::Sin => x.sin(),
            Function::Cos => x.cos(),
            Function::Tan => x.tan(),
            Function::Sec => 1.0 / x.cos(),
            Function::Csc => 1.0 / x.sin(),
            Function::Cot => 1.0 / x.tan(),
            Function::Arcsin => inside(x)?.asin(),
            Function::Arccos => inside(x)?.acos(),
            Function::Arctan => x.atan(),
            Function::Sinh => x.sinh(),
            Function::Cosh => x.cosh(),
            Function::Tanh => x.tanh(),
            Function::Floor => x.floor(),
            Function::Ceiling => x.ceil(),
            Function::Factorial if (0.0..=170.0).contains(&x) && x.fract() == 0.0 => {
                let mut value = 1.0;
                let mut next = x;
                while next > 1.0 {
                    value *= next;
                    next -= 1.0;
                }
                value
            }
            Function::Factorial | Function::Ln | Function::Exp | Function::Absolute => return None,
        }))
    }
}
