//! Sequences of any lengths in one stream of tokens.

use molt_torch::Span;
use std::ops::Range;
use tch::Tensor;

use crate::rope::{Rope, Rotation};

/// Where the sequences of a stream are: each begins at position 0, and sees nothing of the others.
#[derive(Debug)]
pub struct Sequences {
    pub(crate) rotation: Rotation,
    /// Queries counted from the first token that this rank attends for, keys from the first of the stream.
    pub(crate) spans: Vec<Span>,
}

impl Sequences {
    /// Of these lengths, one after the other; of the tokens `own` of the stream, some of which may belong to none.
    pub(crate) fn new(rope: &Rope, lengths: &[usize], own: Range<usize>) -> Self {
        let (mut spans, mut positions) = (Vec::new(), vec![0.0_f32; own.len()]);
        let mut start = 0;
        for &length in lengths {
            let (first, end) = (start.max(own.start), (start + length).min(own.end));
            if first < end {
                let queries = first - own.start..end - own.start;
                for (position, at) in positions[queries.clone()].iter_mut().zip(first - start..) {
                    *position = at as f32;
                }
                spans.push(Span { queries, keys: start..end });
            }
            start += length;
        }
        let positions = Tensor::from_slice(&positions).unsqueeze(0);
        Self { rotation: rope.at(&positions), spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn of(lengths: &[usize], own: Range<usize>) -> Vec<(Range<usize>, Range<usize>)> {
        let config = r#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2}"#;
        let rope = Rope::new(&Config::parse(config).expect("complete"));
        let found = Sequences::new(&rope, lengths, own);
        found.spans.into_iter().map(|span| (span.queries, span.keys)).collect()
    }

    #[test]
    fn a_part_of_the_stream_attends_to_the_beginnings_of_its_sequences() {
        // 0..5, 5..6, 6..10; what is behind belongs to none.
        let lengths = [5, 1, 4];
        assert_eq!(of(&lengths, 0..12), [(0..5, 0..5), (5..6, 5..6), (6..10, 6..10)]);
        assert_eq!(of(&lengths, 0..4), [(0..4, 0..4)]);
        assert_eq!(of(&lengths, 4..8), [(0..1, 0..5), (1..2, 5..6), (2..4, 6..8)]);
        assert_eq!(of(&lengths, 8..12), [(0..2, 6..10)]);
        assert!(of(&[], 0..3).is_empty());
    }
}
