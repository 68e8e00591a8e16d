//! Tensors of which every rank of a group holds some rows: gathered, and summed back to where the rows are.

use crate::error::TorchError;
use crate::ffi::shim;
use crate::group::{ALL_GATHER, Group, Output, Pending, REDUCE_SCATTER};
use crate::vjp::addresses;
use std::ops::Range;
use tch::Tensor;

/// The rows of so many that rank `rank` of `size` holds, as FSDP2 cuts dimension 0: `⌈rows / size⌉` from
/// `rank · ⌈rows / size⌉` on, the last ranks fewer or none.
pub fn rows(rows: i64, rank: usize, size: usize) -> Range<i64> {
    let most = (rows + size as i64 - 1) / size as i64;
    (most * rank as i64).min(rows)..(most * (rank as i64 + 1)).min(rows)
}

/// The elements of a flat tensor of this shape that are in [`rows`].
pub fn extent(shape: &[i64], rank: usize, size: usize) -> Range<i64> {
    let row: i64 = shape.iter().skip(1).product();
    let held = rows(shape.first().copied().unwrap_or(1), rank, size);
    held.start * row..held.end * row
}

impl Group {
    /// The tensor of this shape whose [`extent`] is what each rank has as `own`, flat. A rank sends its own to each
    /// other: `own · (size - 1)`. Of a group of one rank it is `own` itself.
    ///
    /// # Errors
    /// If the shape has no dimension or `own` is not as long as its rows, or it cannot be started.
    pub fn gather_rows(&self, own: &Tensor, shape: &[i64]) -> Result<Pending<'_>, TorchError> {
        let own = own.contiguous();
        let (me, size) = (self.rank(), self.size());
        if shape.is_empty() || own.numel() as i64 != extent(shape, me, size).count() as i64 {
            return Err(self.no_rows(ALL_GATHER));
        }
        let whole = if size == 1 {
            own.view(shape)
        } else {
            let whole = Tensor::empty(shape, (own.kind(), own.device()));
            within(&whole, me, size).copy_(&own);
            whole
        };
        let give = self.others().map(|rank| (rank, own.shallow_clone()));
        let take = self.others().map(|rank| (rank, within(&whole, rank, size)));
        let work = self.messages(false, give, take);
        let collective = format!("{ALL_GATHER} of {shape:?} {:?}", own.kind());
        self.started(work, collective, Output::Whole(whole), Some(own))
    }

    /// This rank's rows of the sum of what all have as `whole`, flat. A rank sends to each other the rows which that
    /// holds: `whole - own`. Of a group of one rank it is `whole` itself.
    ///
    /// # Errors
    /// If `whole` has no dimension, or it cannot be started.
    pub fn scatter_rows(&self, whole: &Tensor) -> Result<Pending<'_>, TorchError> {
        let whole = whole.contiguous();
        if whole.dim() == 0 {
            return Err(self.no_rows(REDUCE_SCATTER));
        }
        let own = within(&whole, self.rank(), self.size());
        let part = |rank| if rank == self.rank() { own.shallow_clone() } else { own.empty_like() };
        let addends: Vec<Tensor> = (0..self.size()).map(part).collect();
        let give = self.others().map(|rank| (rank, within(&whole, rank, self.size())));
        let take = self.others().map(|rank| (rank, addends[rank].shallow_clone()));
        let work = self.messages(true, give, take);
        let collective = format!("{REDUCE_SCATTER} of {:?} {:?}", whole.size(), whole.kind());
        self.started(work, collective, Output::Sum(addends, self.rank()), Some(whole))
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let me = self.rank();
        (0..self.size()).filter(move |rank| *rank != me)
    }

    fn messages(
        &self,
        scatters: bool,
        give: impl Iterator<Item = (usize, Tensor)>,
        take: impl Iterator<Item = (usize, Tensor)>,
    ) -> Result<cxx::UniquePtr<shim::Work>, cxx::Exception> {
        // Where there are no rows nobody waits for any.
        let some = |(rank, tensor): (usize, Tensor)| (tensor.numel() > 0).then_some((rank as i32, tensor));
        let (to, give): (Vec<i32>, Vec<Tensor>) = give.filter_map(some).unzip();
        let (from, take): (Vec<i32>, Vec<Tensor>) = take.filter_map(some).unzip();
        // SAFETY: each tensor has its rank and is contiguous, as parts of contiguous ones are; c10d keeps what it works
        // on, and `Pending` gives nothing out before it is done.
        unsafe { shim::messages(&self.inner, scatters, &addresses(&give), &to, &addresses(&take), &from) }
    }
}

/// The part of a contiguous tensor that a rank holds, flat.
fn within(whole: &Tensor, rank: usize, size: usize) -> Tensor {
    let part = extent(&whole.size(), rank, size);
    whole.view([-1]).narrow(0, part.start, part.end - part.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::ranks;
    use proptest::prelude::*;
    use tch::{Device, Kind};

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.flatten(0, -1)).expect("numbers")
    }

    /// As the rank `rank` has it: each element is another, on each rank.
    fn whole(shape: &[i64], rank: usize) -> Tensor {
        let count = shape.iter().product::<i64>();
        (Tensor::arange(count, (Kind::Int64, Device::Cpu)) + 1000 * rank as i64).view(shape)
    }

    #[test]
    fn the_last_ranks_have_fewer_rows_or_none() {
        assert_eq!([0, 1, 2].map(|rank| rows(5, rank, 3)), [0..2, 2..4, 4..5]);
        assert_eq!([0, 1, 2, 3].map(|rank| rows(5, rank, 4)), [0..2, 2..4, 4..5, 5..5]);
        assert_eq!([0, 1].map(|rank| rows(0, rank, 2)), [0..0, 0..0]);
        assert_eq!(extent(&[5, 3], 1, 3), 6..12);
        assert_eq!(extent(&[3], 1, 2), 2..3);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

        /// Shapes that do not divide, with fewer rows than ranks and with none. What is sent is what others lack.
        #[test]
        fn rows_are_gathered_and_scattered(shape in prop::collection::vec(0_i64..6, 1..4), size in 1_usize..5) {
            let found = ranks(size, |group| {
                let me = group.rank();
                let own = within(&whole(&shape, 0), me, size);
                let gathered = group.gather_rows(&own, &shape).and_then(Pending::wait).expect("all rows");
                let gradient = whole(&shape, me);
                let sum = group.scatter_rows(&gradient).and_then(Pending::wait).expect("a sum");
                assert_eq!(numbers(&gradient), numbers(&whole(&shape, me)), "what is sent stays as it is");
                (gathered, sum, group.traffic())
            });
            let total: Tensor = (0..size).map(|rank| whole(&shape, rank)).reduce(|a, b| a + b).expect("a rank");
            let bytes = 8 * shape.iter().product::<i64>() as u64;
            for (rank, (gathered, sum, traffic)) in found.into_iter().enumerate() {
                prop_assert_eq!(gathered.size(), &shape[..]);
                prop_assert_eq!(numbers(&gathered), numbers(&whole(&shape, 0)));
                prop_assert_eq!(numbers(&sum), numbers(&within(&total, rank, size)));
                let own = 8 * extent(&shape, rank, size).count() as u64;
                prop_assert_eq!(traffic.all_gather, own * (size as u64 - 1));
                prop_assert_eq!(traffic.reduce_scatter, bytes - own);
            }
        }
    }

    /// Several go on at once, and each gets its own.
    #[test]
    fn what_goes_on_at_once_is_kept_apart() {
        ranks(3, |group| {
            let shapes: Vec<Vec<i64>> = (1..40).map(|n| vec![n, 3]).collect();
            let starts = |salt: usize| {
                let start = |shape: &Vec<i64>| {
                    let own = within(&whole(shape, salt + shape[0] as usize), group.rank(), 3);
                    group.gather_rows(&own, shape).expect("a start")
                };
                shapes.iter().map(start).collect::<Vec<_>>()
            };
            let (first, second) = (starts(0), starts(50));
            let sums: Vec<_> =
                shapes.iter().map(|shape| group.scatter_rows(&whole(shape, 0)).expect("a start")).collect();
            for (shape, ((first, second), sum)) in shapes.iter().zip(first.into_iter().zip(second).zip(sums))
            {
                let salted = |salt| whole(shape, salt + shape[0] as usize);
                assert_eq!(first.wait().expect("all rows"), salted(0));
                assert_eq!(second.wait().expect("all rows"), salted(50));
                let expected = within(&(whole(shape, 0) * 3), group.rank(), 3);
                assert_eq!(sum.wait().expect("a sum"), expected);
            }
        });
    }

    #[test]
    fn a_rank_that_leaves_is_an_error() {
        let results = ranks(2, |group| {
            let own = within(&whole(&[4], 0), group.rank(), 2);
            (group.rank() == 0).then(|| group.gather_rows(&own, &[4]).and_then(Pending::wait).map(drop))
        });
        let said = results[0].as_ref().expect("rank 0 tried").as_ref().expect_err("rank 1 left").to_string();
        assert!(said.starts_with("all-gather of [4] Int64 of group `all` failed on rank 0 of 2: "), "{said}");
    }
}
