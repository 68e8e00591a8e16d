//! Natural numbers of any size: as much of their arithmetic as comparing two fractions takes.

/// Limbs hold nine decimal digits each.
const BASE: u64 = 1_000_000_000;

/// Limbs from the lowest; none of the highest is zero, so equal numbers are equal vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Natural(Vec<u64>);

impl Natural {
    /// From decimal digits; anything else among them is a bug of the caller and counts as zero.
    pub fn from_digits(digits: &[u8]) -> Self {
        let limb = |chunk: &[u8]| {
            chunk.iter().fold(0, |value, digit| value * 10 + u64::from(digit.wrapping_sub(b'0') % 10))
        };
        Self(digits.rchunks(9).map(limb).collect()).trimmed()
    }

    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// The product, in time proportional to the product of the lengths.
    pub fn times(&self, other: &Self) -> Self {
        let mut limbs = vec![0; self.0.len() + other.0.len()];
        for (i, a) in self.0.iter().enumerate() {
            let mut carry = 0;
            for (limb, b) in limbs[i..].iter_mut().zip(other.0.iter().chain(std::iter::once(&0))) {
                // At most 1e9 + (1e9)² + 1e9 < 2⁶⁴.
                let sum = *limb + a * b + carry;
                *limb = sum % BASE;
                carry = sum / BASE;
            }
        }
        Self(limbs).trimmed()
    }

    pub fn plus(&self, other: &Self) -> Self {
        let mut carry = 0;
        let limbs = (0..=self.0.len().max(other.0.len())).map(|at| {
            let limb = |number: &Self| number.0.get(at).copied().unwrap_or(0);
            let sum = limb(self) + limb(other) + carry;
            carry = sum / BASE;
            sum % BASE
        });
        Self(limbs.collect()).trimmed()
    }

    fn trimmed(mut self) -> Self {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn natural(value: u128) -> Natural {
        Natural::from_digits(value.to_string().as_bytes())
    }

    #[test]
    fn leading_zeros_do_not_count() {
        assert_eq!(natural(12), Natural::from_digits(b"000000000000012"));
        assert!(Natural::from_digits(b"0000000000000").is_zero());
        assert!(Natural::from_digits(b"").is_zero());
    }

    proptest! {
        #[test]
        fn products_are_exact(a: u64, b: u64) {
            let product = u128::from(a) * u128::from(b);
            prop_assert_eq!(natural(a.into()).times(&natural(b.into())), natural(product));
        }

        #[test]
        fn sums_are_exact(a: u64, b: u64) {
            let sum = u128::from(a) + u128::from(b);
            prop_assert_eq!(natural(a.into()).plus(&natural(b.into())), natural(sum));
        }

        #[test]
        fn different_numbers_differ(a: u128, b: u128) {
            prop_assert_eq!(natural(a) == natural(b), a == b);
        }
    }
}
