//! Which waiting turns join the batch, and how their prompts get into the cache.

use molt_core::ids::Token;

/// The first `taken` of the waiting turns join.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Admission {
    pub(crate) taken: usize,
    /// Waiting turns, by index, to prefill into consecutive rows behind the running ones.
    pub(crate) prefill: Vec<usize>,
    /// Waiting turns and the row that already holds their prompt, for the rows behind those.
    pub(crate) copies: Vec<(usize, usize)>,
}

/// Admits `waiting` prompts in order into at most `free` rows; each with whether it is shared.
///
/// A shared prompt that a `running` row's tokens begin with, or that was admitted just before as another shared
/// one, is copied: the samples of one group are prefilled once. The others cost the longest of them times their
/// number, padding included, and stay within `budget` tokens; a single one is admitted whatever it costs.
/// A running row that lends nothing has no tokens here.
pub(crate) fn admit<'a>(
    waiting: impl IntoIterator<Item = (&'a [Token], bool)>,
    running: &[&[Token]],
    free: usize,
    budget: usize,
) -> Admission {
    let mut plan = Admission::default();
    let mut new: Vec<&[Token]> = Vec::new();
    let mut longest = 0;
    for (index, (prompt, is_shared)) in waiting.into_iter().enumerate().take(free) {
        let holder = running.iter().position(|tokens| tokens.starts_with(prompt));
        let holder = holder.or_else(|| Some(running.len() + new.iter().position(|other| *other == prompt)?));
        if let Some(row) = holder.filter(|_| is_shared) {
            plan.copies.push((index, row));
        } else {
            let padded = longest.max(prefilled(prompt));
            if !new.is_empty() && padded * (new.len() + 1) > budget {
                break;
            }
            longest = padded;
            new.push(if is_shared { prompt } else { &[] });
            plan.prefill.push(index);
        }
        plan.taken = index + 1;
    }
    plan
}

/// How many tokens of a sequence are in the cache before it is decoded: all but the last.
pub(crate) fn prefilled(tokens: &[Token]) -> usize {
    tokens.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(waiting: &[&[Token]], running: &[&[Token]], free: usize, budget: usize) -> Admission {
        admit(waiting.iter().map(|prompt| (*prompt, true)), running, free, budget)
    }

    #[test]
    fn a_group_is_prefilled_once() {
        let (a, b): (&[Token], &[Token]) = (&[1, 2, 3], &[1, 2]);
        let got = plan(&[a, a, b, a, b], &[&[9, 9]], 8, 100);
        assert_eq!(got, Admission { taken: 5, prefill: vec![0, 2], copies: vec![(1, 1), (3, 1), (4, 2)] });
    }

    #[test]
    fn a_running_row_lends_its_prompt() {
        let got = plan(&[&[1, 2], &[1, 2, 3, 4]], &[&[5], &[1, 2, 3]], 8, 100);
        assert_eq!(got, Admission { taken: 2, prefill: vec![1], copies: vec![(0, 1)] });
    }

    #[test]
    fn rows_and_budget_bound_what_joins() {
        let (long, short): (&[Token], &[Token]) = (&[7; 11], &[8; 2]);
        assert_eq!(plan(&[short, long], &[], 1, 100).taken, 1);
        assert_eq!(plan(&[short, long], &[], 2, 19).taken, 1);
        assert_eq!(plan(&[short, long], &[], 2, 20).taken, 2);
        // One too long for the budget still joins, alone.
        assert_eq!(plan(&[long, short], &[], 2, 5).prefill, [0]);
        assert_eq!(plan(&[long], &[], 0, 100), Admission::default());
    }

    proptest! {
        #[test]
        fn every_turn_that_joins_has_one_place(
            waiting in prop::collection::vec(prop::collection::vec(0u32..2, 1..5), 0..12),
            running in prop::collection::vec(prop::collection::vec(0u32..2, 1..7), 0..4),
            free in 0usize..8,
            budget in 0usize..30,
        ) {
            let running: Vec<&[Token]> = running.iter().map(Vec::as_slice).collect();
            let prompts = waiting.iter().enumerate().map(|(n, prompt)| (prompt.as_slice(), n % 5 > 0));
            let got = admit(prompts, &running, free, budget);
            prop_assert!(got.copies.iter().all(|(index, _)| index % 5 > 0));
            let mut placed = got.prefill.clone();
            placed.extend(got.copies.iter().map(|(index, _)| *index));
            placed.sort_unstable();
            prop_assert_eq!(placed, (0..got.taken).collect::<Vec<_>>());
            prop_assert!(got.taken <= free.min(waiting.len()));
            prop_assert!(got.taken > 0 || free == 0 || waiting.is_empty());
            for (index, row) in &got.copies {
                let fresh = || waiting[got.prefill[row - running.len()]].as_slice();
                prop_assert!(*row < running.len() || !(got.prefill[row - running.len()]).is_multiple_of(5));
                let source = running.get(*row).copied().unwrap_or_else(fresh);
                prop_assert!(source.starts_with(&waiting[*index]));
            }
            let longest = got.prefill.iter().map(|i| waiting[*i].len() - 1).max().unwrap_or(0);
            prop_assert!(got.prefill.len() <= 1 || longest * got.prefill.len() <= budget);
        }
    }
}
