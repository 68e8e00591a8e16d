//! Which rows go through the model together.

/// Splits rows into micro-batches of at most `budget` tokens each, padding included; a row that is longer than
/// the budget gets a micro-batch of its own. Returns row indices: every row once, longest first.
pub fn micro_batches(lengths: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(lengths[row]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for row in order {
        match batches.last_mut() {
            // The first row of a micro-batch is its longest, to which the others are padded.
            Some(batch) if (batch.len() + 1) * lengths[batch[0]] <= budget => batch.push(row),
            _ => batches.push(vec![row]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn similar_lengths_share_a_micro_batch() {
        assert_eq!(micro_batches(&[3, 10, 4, 3, 30], 12), [vec![4], vec![1], vec![2, 0, 3]]);
        assert_eq!(micro_batches(&[], 12), Vec::<Vec<usize>>::new());
    }

    proptest! {
        #[test]
        fn every_row_once_within_the_budget(
            lengths in prop::collection::vec(1usize..60, 0..50), budget in 1usize..200,
        ) {
            let batches = micro_batches(&lengths, budget);
            for batch in &batches {
                let longest = batch.iter().map(|&row| lengths[row]).max().unwrap_or(0);
                prop_assert!(batch.len() == 1 || batch.len() * longest <= budget);
            }
            let mut rows = batches.concat();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..lengths.len()).collect::<Vec<_>>());
        }

        #[test]
        fn no_micro_batch_has_room_for_the_next_row(
            lengths in prop::collection::vec(1usize..60, 0..50), budget in 1usize..200,
        ) {
            for pair in micro_batches(&lengths, budget).windows(2) {
                prop_assert!((pair[0].len() + 1) * lengths[pair[0][0]] > budget);
            }
        }
    }
}
