//! Exact arithmetic with rational expressions: modulo a prime, with random numbers for symbols.
//!
//! Two expressions that are equal as rational functions are equal here; two that are not differ but for a chance
//! of about degree / 2⁶¹ (Schwartz 1980, Zippel 1979).

use crate::algebra::Algebra;
use crate::small;
use crate::value::{Decimal, Expr, Function};

/// Primes below 2⁶¹ that are 1 modulo 4, so that -1 has a square root, and that root.
const PRIMES: [(u64, u64); 2] = [
    (2_305_843_009_213_693_921, 583_529_827_753_931_384),
    (2_305_843_009_213_693_693, 966_685_122_347_009_555),
];

/// A prime, and a choice of numbers for the symbols.
pub struct Field {
    prime: u64,
    root_of_minus_one: u64,
    point: u64,
}

impl Field {
    /// The fields and points to look at.
    pub fn all() -> impl Iterator<Item = Self> {
        PRIMES.into_iter().flat_map(|(prime, root)| {
            [(root, 1), (prime - root, 2)].map(|(root_of_minus_one, point)| Self {
                prime,
                root_of_minus_one,
                point,
            })
        })
    }

    fn times(&self, a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b) % u128::from(self.prime);
        u64::try_from(product).unwrap_or(0)
    }

    fn raised(&self, mut base: u64, mut exponent: u128) -> u64 {
        let mut power = 1;
        while exponent > 0 {
            if exponent & 1 == 1 {
                power = self.times(power, base);
            }
            base = self.times(base, base);
            exponent >>= 1;
        }
        power
    }
}

impl Algebra for Field {
    type Number = u64;

    fn decimal(&self, decimal: &Decimal) -> Option<u64> {
        let base = u64::from(decimal.base);
        let mut value = 0;
        for digit in decimal.digits.chars() {
            value = (self.times(value, base) + u64::from(digit.to_digit(decimal.base)?)) % self.prime;
        }
        let below = self.raised(base, decimal.places as u128);
        Some(self.times(value, self.inverse(&below)?))
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        if name == "i" {
            return Some(self.root_of_minus_one);
        }
        // FNV-1a of the name, from another start at each point.
        let start = 0xcbf2_9ce4_8422_2325_u64 ^ self.point.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash =
            name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Some((hash ^ (hash >> 29)) % self.prime)
    }

    fn sum(&self, a: &u64, b: &u64) -> Option<u64> {
        Some((a + b) % self.prime)
    }

    fn negative(&self, a: &u64) -> u64 {
        (self.prime - a) % self.prime
    }

    fn product(&self, a: &u64, b: &u64) -> Option<u64> {
        Some(self.times(*a, *b))
    }

    fn inverse(&self, a: &u64) -> Option<u64> {
        (*a != 0).then(|| self.raised(*a, u128::from(self.prime) - 2))
    }

    fn power(&self, base: &u64, exponent: &Expr) -> Option<u64> {
        let exponent = small::integer(exponent)?;
        let power = self.raised(*base, exponent.unsigned_abs());
        if exponent < 0 { self.inverse(&power) } else { Some(power) }
    }

    fn root(&self, _radicand: &u64, _degree: &Expr) -> Option<u64> {
        None
    }

    fn function(&self, function: Function, a: &u64) -> Option<u64> {
        match function {
            Function::Factorial if *a <= 10_000 => {
                Some((1..=*a).fold(1, |value, next| self.times(value, next)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primes_are_prime_and_the_roots_square_to_minus_one() {
        for field in Field::all() {
            assert_eq!(field.times(field.root_of_minus_one, field.root_of_minus_one), field.prime - 1);
            // Miller and Rabin with bases that decide every number below 2⁶⁴.
            let odd = (field.prime - 1) >> (field.prime - 1).trailing_zeros();
            for base in [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37] {
                let mut power = field.raised(base, u128::from(odd));
                let mut passes = power == 1;
                for _ in 0..(field.prime - 1).trailing_zeros() {
                    passes |= power == field.prime - 1;
                    power = field.times(power, power);
                }
                assert!(passes, "{base}");
            }
        }
    }
}
