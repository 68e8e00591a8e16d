//! Which rows go through the model together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Splits rows into micro-batches of at most `budget` tokens each, about as many in each; a row that is longer than the
/// budget gets a micro-batch of its own. Each of `teams` can have as many micro-batches as the others, if there are rows
/// enough; it is the smallest such number that was found. Returns row indices: every row once, the largest
/// micro-batch first, and in each the longest row.
pub fn micro_batches(lengths: &[usize], budget: usize, teams: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| Reverse(lengths[row]));
    let (budget, teams) = (budget.max(1), teams.max(1));
    let least: usize = lengths.iter().map(|&length| length.min(budget)).sum();
    let mut count = least.div_ceil(budget).max(1).next_multiple_of(teams);
    loop {
        let batches = dealt(&order, lengths, count.min(order.len()));
        let fits = |(tokens, rows): &(usize, Vec<usize>)| *tokens <= budget || rows.len() == 1;
        if batches.iter().all(fits) {
            return batches.into_iter().map(|(_, rows)| rows).collect();
        }
        count += teams;
    }
}

/// Gives each row, the longest first, to the micro-batch with the fewest tokens so far (Graham 1969). With their tokens,
/// the largest first.
fn dealt(order: &[usize], lengths: &[usize], count: usize) -> Vec<(usize, Vec<usize>)> {
    let mut batches = vec![(0, Vec::new()); count];
    let mut open: BinaryHeap<_> = (0..count).map(|batch| Reverse((0, batch))).collect();
    for &row in order {
        let Some(Reverse((tokens, batch))) = open.pop() else { break };
        let tokens = tokens + lengths[row];
        batches[batch].0 = tokens;
        batches[batch].1.push(row);
        open.push(Reverse((tokens, batch)));
    }
    batches.sort_by_key(|(tokens, _)| Reverse(*tokens));
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_of_any_lengths_share_a_micro_batch() {
        assert_eq!(micro_batches(&[3, 10, 4, 3, 30], 100, 1), [vec![4, 1, 2, 0, 3]]);
        // A row that is too long has its own; 20 tokens are twice 10.
        assert_eq!(micro_batches(&[3, 10, 4, 3, 30], 12, 1), [vec![4], vec![1], vec![2, 0, 3]]);
        // Each of two teams has one, though all would fit into one.
        assert_eq!(micro_batches(&[3, 10, 4, 3], 100, 2), [vec![1], vec![2, 0, 3]]);
        assert_eq!(micro_batches(&[], 12, 2), Vec::<Vec<usize>>::new());
    }

    /// Numbers of labs-molt 0.1.6, which has as many parts as ranks, and bins of a budget.
    #[test]
    fn golden_parts() {
        let parts = |lengths: &[usize], budget, teams| {
            let mut parts = micro_batches(lengths, budget, teams);
            parts.iter_mut().for_each(|part| part.sort_unstable());
            parts.sort();
            parts
        };
        let eight = [10, 9, 8, 7, 6, 5, 4, 3];
        assert_eq!(parts(&eight, 1000, 4), [vec![0, 7], vec![1, 6], vec![2, 5], vec![3, 4]]);
        assert_eq!(parts(&[5, 3, 7, 2, 6], 1000, 3), [vec![0, 1], vec![2], vec![3, 4]]);
        assert_eq!(parts(&[100, 1, 1, 1], 1000, 2), [vec![0], vec![1, 2, 3]]);
        for (lengths, budget, bins) in
            [(&[5, 3, 7, 2, 6][..], 10, 3), (&[5, 3, 7, 2, 6], 20, 2), (&[25, 3], 10, 2)]
        {
            assert_eq!(micro_batches(lengths, budget, 1).len(), bins, "{lengths:?} in {budget}");
        }
    }

    proptest! {
        #[test]
        fn every_row_once_within_the_budget_and_no_micro_batch_much_larger_than_another(
            lengths in prop::collection::vec(1usize..60, 0..50), budget in 1usize..200, teams in 1usize..5,
        ) {
            let batches = micro_batches(&lengths, budget, teams);
            let tokens = |batch: &Vec<usize>| batch.iter().map(|&row| lengths[row]).sum::<usize>();
            let sizes: Vec<usize> = batches.iter().map(tokens).collect();
            for (batch, &size) in batches.iter().zip(&sizes) {
                prop_assert!(batch.len() == 1 || size <= budget);
                prop_assert!(batch.windows(2).all(|pair| lengths[pair[0]] >= lengths[pair[1]]));
            }
            prop_assert!(sizes.windows(2).all(|pair| pair[0] >= pair[1]));
            let longest = lengths.iter().max().copied().unwrap_or(0);
            prop_assert!(sizes.iter().max().zip(sizes.iter().min()).is_none_or(|(a, b)| a - b <= longest));
            prop_assert!(batches.len().is_multiple_of(teams) || batches.len() == lengths.len());
            let mut rows = batches.concat();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..lengths.len()).collect::<Vec<_>>());
        }

        /// A micro-batch is at least half full if rows fit into it at all and teams do not ask for more.
        #[test]
        fn the_budget_is_used(
            lengths in prop::collection::vec(1usize..60, 2..50), budget in 60usize..200,
        ) {
            let count = micro_batches(&lengths, budget, 1).len();
            let total = lengths.iter().sum::<usize>();
            prop_assert!(count == 1 || total * 2 > (count - 1) * budget, "{count} for {total}");
        }
    }
}
