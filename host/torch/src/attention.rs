//! Attention of sequences of any lengths that lie one after the other, without padding.

use crate::error::TorchError;
use crate::ffi::shim;
use crate::vjp::{address, owned};
use std::ops::Range;
use tch::Tensor;

/// A sequence of a stream of tokens, or what is there of its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The tokens that attend.
    pub queries: Range<usize>,
    /// The tokens of the sequence up to the last of these: as many or more.
    pub keys: Range<usize>,
}

/// Attention (Vaswani et al. 2017, eq. 1) of every token to itself and those before it in its own sequence, in memory
/// that grows with the number of tokens alone; a span with earlier keys than queries takes a mask of both besides.
///
/// `query` is `[1, T, heads, head_dim]`, `key` and `value` `[1, S, kv_heads, head_dim]`, of which `heads / kv_heads` in
/// a row share one; each span is a place in `T` and one in `S`, behind those of the span before. The result is like
/// `query`, and zero where there is no span. Differentiable.
///
/// # Errors
/// If shapes or kinds do not fit together, or a span is not in them, or shares tokens with another.
pub fn packed_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    spans: &[Span],
) -> Result<Tensor, TorchError> {
    let sizes = [query, key, value].map(Tensor::size);
    let refused = || {
        Err(TorchError::Attention(format!(
            "query {:?} {:?}, key {:?} {:?} and value {:?} {:?} do not fit together with {} spans",
            query.kind(),
            sizes[0],
            key.kind(),
            sizes[1],
            value.kind(),
            sizes[2],
            spans.len()
        )))
    };
    let ([1, queries, heads, head_dim], [1, keys, kv_heads, key_dim]) = (&sizes[0][..], &sizes[1][..]) else {
        return refused();
    };
    let is_one_kind = [key, value].iter().all(|t| (t.kind(), t.device()) == (query.kind(), query.device()));
    let is_grouped = *kv_heads > 0 && heads % kv_heads == 0 && *head_dim > 0 && head_dim == key_dim;
    let is_in = |range: &Range<usize>, of: i64| {
        range.start <= range.end && i64::try_from(range.end).is_ok_and(|end| end <= of)
    };
    let fits = |span: &Span| {
        is_in(&span.queries, *queries) && is_in(&span.keys, *keys) && span.keys.len() >= span.queries.len()
    };
    // Threads write the gradients of spans side by side.
    let follows = |pair: &[Span]| {
        pair[0].queries.end <= pair[1].queries.start && pair[0].keys.end <= pair[1].keys.start
    };
    let are_apart = spans.windows(2).all(follows);
    if sizes[1] != sizes[2] || !is_one_kind || !is_grouped || !spans.iter().all(fits) || !are_apart {
        return refused();
    }
    let numbers = |span: &Span| {
        [span.queries.start, span.queries.len(), span.keys.start, span.keys.len()].map(|number| number as i64)
    };
    let flat: Vec<i64> = spans.iter().filter(|span| !span.queries.is_empty()).flat_map(numbers).collect();
    // SAFETY: the tensors are borrowed until the call has returned, and all that the kernels go by was compared.
    let made = unsafe { shim::attention(address(query), address(key), address(value), &flat) };
    let made = made.map_err(|error| TorchError::Attention(error.what().to_owned()))?;
    owned(made).ok_or_else(|| TorchError::Attention("there is no result".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vjp::vjp;
    use tch::{Device, Kind};

    /// Numbers that differ from each other, the same in every run.
    fn numbers(shape: &[i64], salt: f64) -> Tensor {
        let line = Tensor::arange(shape.iter().product::<i64>(), (Kind::Double, Device::Cpu));
        ((line * 1.7 + salt).sin() * 1.3).view(shape).set_requires_grad(true)
    }

    /// Softmax of the products of a query with each key that it may see, head by head: the definition.
    fn by_definition([query, key, value]: [&Tensor; 3], spans: &[Span]) -> Tensor {
        let (heads, groups) = (query.size()[2], query.size()[2] / key.size()[2]);
        let rows = (0..query.size()[1]).map(|at| {
            let Some(span) = spans.iter().find(|span| span.queries.contains(&(at as usize))) else {
                return query.get(0).get(0).zeros_like();
            };
            let (start, end) = (span.keys.start as i64, (span.keys.end - span.queries.end) as i64 + at + 1);
            let head = |head: i64| {
                let seen = |t: &Tensor| t.get(0).select(1, head / groups).narrow(0, start, end - start);
                let query = query.get(0).get(at).get(head);
                let scores = seen(key).mv(&query) / (query.size()[0] as f64).sqrt();
                seen(value).tr().mv(&scores.softmax(0, None))
            };
            Tensor::stack(&(0..heads).map(head).collect::<Vec<_>>(), 0)
        });
        Tensor::stack(&rows.collect::<Vec<_>>(), 0).unsqueeze(0)
    }

    fn spans(of: &[(Range<usize>, Range<usize>)]) -> Vec<Span> {
        of.iter().map(|(queries, keys)| Span { queries: queries.clone(), keys: keys.clone() }).collect()
    }

    #[test]
    fn every_sequence_attends_to_itself_alone_as_the_definition_says() {
        let short: Vec<_> = (0..20).map(|nth| (3 * nth..3 * nth + 3, 3 * nth..3 * nth + 3)).collect();
        for (queries, keys, [heads, kv_heads, dim], spans) in [
            (9, 9, [4, 2, 6], spans(&[(0..5, 0..5), (5..6, 5..6), (6..9, 6..9)])),
            // The end of one sequence, another, and the beginning of a third; what is behind belongs to none.
            (8, 14, [3, 3, 4], spans(&[(0..2, 1..8), (2..5, 8..11), (5..6, 11..12)])),
            (60, 60, [2, 1, 8], spans(&short)),
            (3, 3, [2, 1, 8], spans(&[])),
        ] {
            let query = numbers(&[1, queries, heads, dim], 0.1);
            let [key, value] = [0.2, 0.3].map(|salt| numbers(&[1, keys, kv_heads, dim], salt));
            let all = [&query, &key, &value];
            let gradient = numbers(&[1, queries, heads, dim], 0.4).detach();
            let found = packed_attention(&query, &key, &value, &spans).expect("they fit");
            let expected = by_definition(all, &spans);
            let near = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]) < 1e-12;
            assert!(near(&found, &expected), "{spans:?}");
            let found = vjp(&[&found], &all, &[&gradient]).expect("a gradient");
            if spans.is_empty() {
                assert!(found.iter().flatten().all(|found| near(found, &found.zeros_like())));
                continue;
            }
            let expected = vjp(&[&expected], &all, &[&gradient]).expect("a gradient");
            for (found, expected) in found.into_iter().flatten().zip(expected.into_iter().flatten()) {
                assert!(near(&found, &expected), "{spans:?}");
            }
        }
    }

    /// In bfloat16 results are off by a few roundings of 2^-9 of the largest.
    #[test]
    fn bfloat16_is_the_definition_to_its_precision() {
        let spans = spans(&[(0..2, 1..8), (2..5, 8..11), (5..6, 11..12)]);
        let of = |shape: [i64; 4], salt| numbers(&shape, salt).detach().to_kind(Kind::BFloat16);
        let all = [of([1, 8, 4, 6], 0.1), of([1, 14, 2, 6], 0.2), of([1, 14, 2, 6], 0.3)];
        let gradient = of([1, 8, 4, 6], 0.4);
        let leaves = |kind| all.each_ref().map(|t| t.to_kind(kind).copy().set_requires_grad(true));
        let (half, exact) = (leaves(Kind::BFloat16), leaves(Kind::Double));
        let found = packed_attention(&half[0], &half[1], &half[2], &spans).expect("they fit");
        assert_eq!(found.kind(), Kind::BFloat16);
        let expected = by_definition(exact.each_ref(), &spans);
        let near = |a: &Tensor, b: &Tensor| {
            (a.to_kind(Kind::Double) - b).abs().max().double_value(&[])
                <= 4.0 / 512.0 * b.abs().max().double_value(&[])
        };
        assert!(near(&found, &expected));
        let found = vjp(&[&found], &half.each_ref(), &[&gradient]).expect("a gradient");
        let expected = vjp(&[&expected], &exact.each_ref(), &[&gradient.to_kind(Kind::Double)]);
        for (found, expected) in found.into_iter().zip(expected.expect("a gradient")) {
            assert!(near(&found.expect("a gradient"), &expected.expect("a gradient")));
        }
    }

    /// Whatever stands in one sequence, no bit of another changes, there and back.
    #[test]
    fn a_neighbour_is_not_seen() {
        for kind in [Kind::Double, Kind::Float, Kind::BFloat16] {
            a_neighbour_is_not_seen_in(kind);
        }
    }

    fn a_neighbour_is_not_seen_in(kind: Kind) {
        let spans = spans(&[(0..4, 0..4), (4..9, 4..9), (9..11, 9..11)]);
        let run = |garbage: Option<f64>| {
            let all = [2, 1, 1].map(|heads| {
                let values = numbers(&[1, 11, heads, 8], heads as f64).detach().to_kind(kind);
                if let Some(garbage) = garbage {
                    let _ = values.narrow(1, 4, 5).fill_(garbage);
                }
                values.set_requires_grad(true)
            });
            let output = packed_attention(&all[0], &all[1], &all[2], &spans).expect("they fit");
            let gradient = output.detach().cos();
            let found = vjp(&[&output], &[&all[0], &all[1], &all[2]], &[&gradient]).expect("a gradient");
            let others = |t: &Tensor| Tensor::cat(&[t.narrow(1, 0, 4), t.narrow(1, 9, 2)], 1).detach();
            let mut own = vec![others(&output)];
            own.extend(found.iter().flatten().map(others));
            own
        };
        let expected = run(None);
        assert_eq!(expected.len(), 4);
        for garbage in [f64::NAN, f64::INFINITY, 1e30] {
            assert!(run(Some(garbage)).iter().zip(&expected).all(|(a, b)| a.equal(b)), "{garbage}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let query = numbers(&[1, 4, 4, 8], 0.1);
        let key = numbers(&[1, 4, 2, 8], 0.2);
        let whole = spans(&[(0..4, 0..4)]);
        let odd = numbers(&[1, 4, 3, 8], 0.3);
        let float = key.to_kind(Kind::Float);
        let rows = numbers(&[2, 4, 2, 8], 0.1);
        for (key, value, spans) in [
            (&key, &odd, &whole),
            (&odd, &odd, &whole),
            (&float, &float, &whole),
            (&rows, &rows, &whole),
            (&key, &key, &spans(&[(0..5, 0..5)])),
            (&key, &key, &spans(&[(0..3, 2..4)])),
            (&key, &key, &spans(&[(0..2, 0..2), (1..3, 2..4)])),
            (&key, &key, &spans(&[(0..1, 0..2), (1..2, 1..3)])),
            (&key, &key, &spans(&[(2..4, 2..4), (0..2, 0..2)])),
            (&key, &key, &spans(&[(0..usize::MAX, 0..usize::MAX)])),
        ] {
            let error = packed_attention(&query, key, value, spans).expect_err("it does not fit");
            assert!(error.to_string().contains("do not fit together"), "{error}");
        }
    }
}
