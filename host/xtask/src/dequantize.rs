//! The numbers in a GGUF tensor, by the block formats of ggml.

use anyhow::{Result, bail};

/// How a tensor's numbers are stored. Quantised kinds hold 32 numbers per block along the last axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    /// Scale and minimum in float16, then 16 bytes of which the low halves are numbers 0–15 and the high
    /// halves 16–31: `x = scale * q + minimum`.
    Q4_1,
    /// Scale in float16, then 32 signed bytes: `x = scale * q`.
    Q8_0,
    BF16,
}

impl Kind {
    /// From the type number in a GGUF tensor entry.
    pub(crate) fn from_number(number: u32) -> Result<Kind> {
        Ok(match number {
            0 => Kind::F32,
            1 => Kind::F16,
            3 => Kind::Q4_1,
            8 => Kind::Q8_0,
            30 => Kind::BF16,
            _ => bail!("tensor type {number} is not supported (F32, F16, BF16, Q4_1 and Q8_0 are)"),
        })
    }

    /// Numbers and bytes of one block.
    fn block(self) -> (usize, usize) {
        match self {
            Kind::F32 => (1, 4),
            Kind::F16 | Kind::BF16 => (1, 2),
            Kind::Q4_1 => (32, 20),
            Kind::Q8_0 => (32, 34),
        }
    }

    /// Bytes of `numbers` numbers, if they fill whole blocks.
    pub(crate) fn bytes(self, numbers: usize) -> Option<usize> {
        let (per_block, bytes) = self.block();
        numbers.is_multiple_of(per_block).then(|| (numbers / per_block).checked_mul(bytes)).flatten()
    }

    /// All numbers of `data`; a block that is cut short at the end is left out.
    pub(crate) fn dequantize(self, data: &[u8]) -> Vec<f32> {
        let (numbers, bytes) = self.block();
        let mut out = Vec::with_capacity(data.len() / bytes * numbers);
        for block in data.chunks_exact(bytes) {
            match (self, block) {
                (Kind::F32, &[a, b, c, d]) => out.push(f32::from_le_bytes([a, b, c, d])),
                (Kind::F16, &[a, b]) => out.push(half(a, b)),
                (Kind::BF16, &[a, b]) => out.push(f32::from_le_bytes([0, 0, a, b])),
                (Kind::Q4_1, &[a, b, c, d, ref q @ ..]) => {
                    let (scale, minimum) = (half(a, b), half(c, d));
                    let numbers = q.iter().map(|q| q & 15).chain(q.iter().map(|q| q >> 4));
                    out.extend(numbers.map(|q| scale * f32::from(q) + minimum));
                }
                (Kind::Q8_0, &[a, b, ref q @ ..]) => {
                    let scale = half(a, b);
                    out.extend(q.iter().map(|q| scale * f32::from(q.cast_signed())));
                }
                _ => unreachable!("invariant: a chunk has the size of a block"),
            }
        }
        out
    }
}

/// An IEEE 754 binary16 number, given by its two little-endian bytes.
fn half(low: u8, high: u8) -> f32 {
    let bits = u32::from(u16::from_le_bytes([low, high]));
    let (sign, exponent, fraction) = ((bits >> 15) << 31, (bits >> 10) & 31, bits & 1023);
    match exponent {
        // Zero and subnormal numbers: fraction times 2^-24, exact in float32.
        0 => f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

/// The nearest bfloat16, ties to even, as its two little-endian bytes. NaN stays NaN.
pub(crate) fn bfloat16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = if value.is_nan() { (bits >> 16) | 64 } else { (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 };
    (rounded as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_matches_the_table_of_ieee_754() {
        for (bits, value) in [
            (0x3c00_u16, 1.0_f32),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0400, 6.103_515_6e-5),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x3555, 0.333_251_95),
            (0x7c00, f32::INFINITY),
            (0x8000, -0.0),
        ] {
            let [low, high] = bits.to_le_bytes();
            assert_eq!(half(low, high).to_bits(), value.to_bits(), "{bits:#06x}");
        }
        assert!(half(0x01, 0x7e).is_nan());
    }

    #[test]
    fn bfloat16_rounds_to_nearest_even() {
        for (bits, rounded) in [
            (0x3f80_0000_u32, 0x3f80_u16),
            (0x3f80_8000, 0x3f80), // a tie, down to even
            (0x3f81_8000, 0x3f82), // a tie, up to even
            (0x3f80_8001, 0x3f81),
            (0x7f7f_ffff, 0x7f80), // the largest float32 is beyond the largest bfloat16
            (0xbf80_ffff, 0xbf81),
        ] {
            assert_eq!(bfloat16(f32::from_bits(bits)), rounded.to_le_bytes(), "{bits:#010x}");
        }
        assert!(Kind::BF16.dequantize(&bfloat16(f32::NAN))[0].is_nan());
    }

    #[test]
    fn a_q8_0_block_by_hand() {
        let mut block = vec![0x00, 0x38]; // 0.5
        block.extend((0..32).map(|i| if i == 1 { 0x80 } else { i }));
        let numbers = Kind::Q8_0.dequantize(&block);
        assert_eq!(numbers.len(), 32);
        assert_eq!((numbers[0], numbers[1], numbers[2], numbers[31]), (0.0, -64.0, 1.0, 15.5));
    }

    #[test]
    fn a_q4_1_block_by_hand() {
        let mut block = vec![0x00, 0x34, 0x00, 0xbc]; // scale 0.25, minimum -1
        block.extend((0..16).map(|i| i | (15 - i) << 4));
        let numbers = Kind::Q4_1.dequantize(&block);
        assert_eq!(numbers.len(), 32);
        // Low halves count up, high halves count down.
        assert_eq!((numbers[0], numbers[1], numbers[15]), (-1.0, -0.75, 2.75));
        assert_eq!((numbers[16], numbers[30], numbers[31]), (2.75, -0.75, -1.0));
    }

    #[test]
    fn quantised_tensors_are_whole_blocks() {
        assert_eq!(Kind::Q4_1.bytes(64), Some(40));
        assert_eq!(Kind::Q8_0.bytes(33), None);
        assert_eq!(Kind::F32.bytes(3), Some(12));
        assert!(Kind::from_number(12).is_err());
    }
}
