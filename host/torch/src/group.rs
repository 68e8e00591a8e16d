//! Collectives: operations that every rank of a group calls in the same order.

use crate::error::TorchError;
use crate::ffi::shim;
use crate::progress::Progress;
use crate::store::{Store, millis};
use crate::vjp::address;
use cxx::UniquePtr;
use std::fmt;
use std::iter::Sum;
use std::time::Duration;
use tch::Tensor;

/// Ranks that compute together, and this process as one of them.
pub struct Group {
    pub(crate) inner: UniquePtr<shim::Group>,
    name: String,
    rank: usize,
    size: usize,
}

// SAFETY: whichever thread starts a collective, one at a time does, and its work runs on threads of c10d. It is not
// Sync, as ranks would not agree on the order of what two threads start.
unsafe impl Send for Group {}

/// How the values of the ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    Sum,
    Max,
}

/// Bytes that this rank had to send to others, by kind of collective: what the collective needs, whatever
/// algorithm carries it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub all_gather: u64,
    pub reduce_scatter: u64,
    pub all_reduce: u64,
    pub broadcast: u64,
    pub all_to_all: u64,
}

impl Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            all_gather: a.all_gather + b.all_gather,
            reduce_scatter: a.reduce_scatter + b.reduce_scatter,
            all_reduce: a.all_reduce + b.all_reduce,
            broadcast: a.broadcast + b.broadcast,
            all_to_all: a.all_to_all + b.all_to_all,
        })
    }
}

pub(crate) const ALL_GATHER: &str = "all-gather";
pub(crate) const REDUCE_SCATTER: &str = "reduce-scatter";
pub(crate) const ALL_TO_ALL: &str = "all-to-all";

/// A collective that goes on. Its tensors must not be touched before [`Pending::wait`] has given back the result. If it is
/// dropped before, nothing that these ranks send after it arrives.
#[must_use = "the result is there after wait(), and other ranks wait for it"]
pub struct Pending<'g> {
    work: UniquePtr<shim::Work>,
    group: &'g Group,
    collective: String,
    output: Output,
    /// What the collective reads, held until it is done.
    _input: Option<Tensor>,
}

pub(crate) enum Output {
    Whole(Tensor),
    /// What this rank got of each, whose sum in the order of the ranks is the result, and which of them is its own.
    Sum(Vec<Tensor>, usize),
}

impl Group {
    /// Joins the group `name` of `size` ranks over Gloo. Every rank calls it, and it returns when all have.
    /// `interface` is the network device to use; without one, the address of this machine's name, or the
    /// loopback device if `local`. A collective that takes longer than `timeout` fails.
    ///
    /// # Errors
    /// If a rank does not come in time or cannot be reached.
    pub fn gloo(
        store: &Store,
        name: &str,
        (rank, size): (usize, usize),
        (interface, local): (Option<&str>, bool),
        timeout: Duration,
    ) -> Result<Self, TorchError> {
        assert!(rank < size, "rank {rank} of {size}");
        let host = if local { "127.0.0.1" } else { "" };
        let inner = shim::gloo(
            store.inner(),
            name,
            interface.unwrap_or_default(),
            host,
            rank as i32,
            size as i32,
            millis(timeout),
        )
        .map_err(|error| TorchError::Collective {
            collective: "joining".to_owned(),
            group: name.to_owned(),
            rank,
            size,
            reason: error.what().to_owned(),
        })?;
        Ok(Self { inner, name: name.to_owned(), rank, size })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// What was sent since the group was made.
    pub fn traffic(&self) -> Traffic {
        let [all_gather, reduce_scatter, all_reduce, broadcast, all_to_all] = shim::sent(&self.inner);
        Traffic { all_gather, reduce_scatter, all_reduce, broadcast, all_to_all }
    }

    /// The `input`s of all ranks, all of one shape, one after the other on dimension 0.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn all_gather(&self, input: &Tensor) -> Result<Pending<'_>, TorchError> {
        let input = input.contiguous();
        let mut shape = input.size();
        let Some(rows) = shape.first_mut() else { return Err(self.no_rows(ALL_GATHER)) };
        *rows *= self.size as i64;
        let output = Tensor::empty(&shape, (input.kind(), input.device()));
        // SAFETY: both tensors live until the call has returned, and c10d keeps what it works on.
        let work = unsafe { shim::all_gather(&self.inner, address(&output), address(&input)) };
        self.pending(work, ALL_GATHER, output, Some(input))
    }

    /// Replaces `tensor` by the sum or maximum over all ranks.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Pending<'_>, TorchError> {
        // SAFETY: as in `all_gather`.
        let work = unsafe { shim::all_reduce(&self.inner, address(tensor), reduce == Reduce::Max) };
        self.pending(work, "all-reduce", tensor.shallow_clone(), None)
    }

    /// Replaces `tensor` by that of rank `root`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Pending<'_>, TorchError> {
        // SAFETY: as in `all_gather`.
        let work = unsafe { shim::broadcast(&self.inner, address(tensor), root as i32) };
        self.pending(work, "broadcast", tensor.shallow_clone(), None)
    }

    /// Sends the next `give[r]` rows of `input` to rank `r`, and returns the `take[r]` rows that rank `r` sends,
    /// ordered by rank.
    ///
    /// # Errors
    /// If the counts are not one per rank and the rows of `input`, or it cannot be started.
    pub fn all_to_all(&self, input: &Tensor, give: &[i64], take: &[i64]) -> Result<Pending<'_>, TorchError> {
        let input = input.contiguous();
        let mut shape = input.size();
        match shape.first_mut() {
            Some(rows) if self.is_exchange(&input, give, take) => *rows = take.iter().sum(),
            _ => return Err(self.no_rows(ALL_TO_ALL)),
        }
        let output = Tensor::empty(&shape, (input.kind(), input.device()));
        // SAFETY: as in `all_gather`.
        let work = unsafe { shim::all_to_all(&self.inner, address(&output), address(&input), take, give) };
        self.pending(work, ALL_TO_ALL, output, Some(input))
    }

    fn pending(
        &self,
        work: Result<UniquePtr<shim::Work>, cxx::Exception>,
        name: &str,
        output: Tensor,
        input: Option<Tensor>,
    ) -> Result<Pending<'_>, TorchError> {
        let collective = format!("{name} of {:?} {:?}", output.size(), output.kind());
        self.started(work, collective, Output::Whole(output), input)
    }

    pub(crate) fn started(
        &self,
        work: Result<UniquePtr<shim::Work>, cxx::Exception>,
        collective: String,
        output: Output,
        input: Option<Tensor>,
    ) -> Result<Pending<'_>, TorchError> {
        self.begin(&collective);
        let work = work.map_err(|error| self.failed(&collective, error.what()))?;
        Ok(Pending { work, group: self, collective, output, _input: input })
    }

    pub(crate) fn begin(&self, collective: &str) {
        Progress::own().begin(format!("{collective} of group `{}`", self.name));
    }

    pub(crate) fn is_exchange(&self, rows: &Tensor, give: &[i64], take: &[i64]) -> bool {
        let has_counts = give.len() == self.size && take.len() == self.size;
        has_counts && rows.size().first() == Some(&give.iter().sum())
    }

    pub(crate) fn no_rows(&self, collective: &str) -> TorchError {
        self.failed(collective, "the rows of the tensor do not divide among the ranks as they should")
    }

    pub(crate) fn failed(&self, collective: &str, reason: &str) -> TorchError {
        TorchError::Collective {
            collective: collective.to_owned(),
            group: self.name.clone(),
            rank: self.rank,
            size: self.size,
            reason: plain(reason),
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}, rank {} of {})", self.name, self.rank, self.size)
    }
}

impl fmt::Debug for Pending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", self.collective)
    }
}

impl Pending<'_> {
    /// The result, when it is there.
    ///
    /// # Errors
    /// If a rank was lost or did not come in time.
    pub fn wait(self) -> Result<Tensor, TorchError> {
        match shim::wait(&self.work) {
            Ok(true) => Ok(self.output.tensor()),
            Ok(false) => Err(self.group.failed(&self.collective, "it was aborted")),
            Err(error) => Err(self.group.failed(&self.collective, error.what())),
        }
    }
}

impl Output {
    fn tensor(self) -> Tensor {
        match self {
            Self::Whole(tensor) => tensor,
            Self::Sum(mut addends, own) if addends.len() > 1 => {
                // The first two make the same sum either way round, and this rank's own part stays as it is.
                let mut sum = addends.remove(usize::from(own == 0));
                for addend in &addends {
                    let _ = sum.g_add_(addend);
                }
                sum
            }
            Self::Sum(addends, _) => addends[0].shallow_clone(),
        }
    }
}

/// What Gloo says without its place in the source, and without its guesses.
fn plain(reason: &str) -> String {
    let reason = match reason.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((place, rest)) if place.contains(".cc:") => rest,
        _ => reason,
    };
    reason.split(". This is typically").next().unwrap_or(reason).trim_end_matches('.').to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tch::{Device, Kind};

    /// Runs `body` as every rank of a group, each on a thread of its own, and gives back what each returns.
    pub(crate) fn ranks<T: Send>(size: usize, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
        let wait = Duration::from_secs(60);
        let server = Store::serve("127.0.0.1", 0, wait).expect("a port");
        std::thread::scope(|scope| {
            let start = |rank| {
                let (port, body) = (server.port(), &body);
                scope.spawn(move || {
                    let store = Store::connect("127.0.0.1", port, wait).expect("a store");
                    body(&Group::gloo(&store, "all", (rank, size), (None, true), wait).expect("a group"))
                })
            };
            let all: Vec<_> = (0..size).map(start).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    fn row(values: &[i64]) -> Tensor {
        Tensor::from_slice(values)
    }

    fn numbers(pending: Result<Pending<'_>, TorchError>) -> Vec<i64> {
        Vec::try_from(pending.and_then(Pending::wait).expect("a result").flatten(0, -1)).expect("numbers")
    }

    #[test]
    fn every_collective_moves_what_it_says() {
        for size in 1..=4 {
            let n = size as i64;
            let all = ranks(size, |group| {
                let me = group.rank() as i64;
                let gathered = numbers(group.all_gather(&row(&[me, 10 * me])));
                let all_rows: Vec<i64> = (0..n).map(|r| me + 100 * r).collect();
                let scattered = numbers(group.scatter_rows(&row(&all_rows)));
                let sum = numbers(group.all_reduce(&row(&[me, 1]), Reduce::Sum));
                let max = numbers(group.all_reduce(&row(&[me]), Reduce::Max));
                let from_last = numbers(group.broadcast(&row(&[me]), size - 1));
                // Rank r gets r + 1 rows of everyone.
                let give: Vec<i64> = (1..=n).collect();
                let rows = Tensor::full([give.iter().sum(), 1], me, (Kind::Int64, Device::Cpu));
                let exchanged = numbers(group.all_to_all(&rows, &give, &vec![me + 1; size]));
                let begun = Progress::own().begun();
                assert_eq!(begun, (6, format!("all-to-all of [{}, 1] Int64 of group `all`", n * (me + 1))));
                (gathered, scattered, sum, max, from_last, exchanged, group.traffic())
            });
            let total: i64 = (0..n).sum();
            for ((gathered, scattered, sum, max, from_last, exchanged, traffic), me) in
                all.into_iter().zip(0..)
            {
                assert_eq!(gathered, (0..n).flat_map(|r| [r, 10 * r]).collect::<Vec<_>>());
                assert_eq!(scattered, [total + 100 * n * me]);
                assert_eq!(sum, [total, n]);
                assert_eq!(max, [n - 1]);
                assert_eq!(from_last, [n - 1]);
                let expected: Vec<i64> = (0..n).flat_map(|r| vec![r; me as usize + 1]).collect();
                assert_eq!(exchanged, expected);
                let others = n as u64 - 1;
                assert_eq!(traffic.all_gather, 16 * others);
                assert_eq!(traffic.reduce_scatter, 8 * others);
                let own_rows = me as u64 + 1;
                assert_eq!(traffic.all_to_all, 8 * ((1..=n as u64).sum::<u64>() - own_rows));
                assert_eq!(traffic.broadcast, if me == n - 1 { 8 * others } else { 0 });
            }
        }
    }

    /// Compiles only as long as threads cannot share a group: if it were Sync, either implementation would fit.
    #[test]
    fn threads_do_not_share_a_group() {
        trait Shared<Which> {
            const NEVER: bool = true;
        }
        struct IfSync;
        impl<T> Shared<()> for T {}
        impl<T: Sync> Shared<IfSync> for T {}
        const { assert!(<Group as Shared<_>>::NEVER) };
    }

    #[test]
    fn shapes_that_do_not_divide_are_errors() {
        ranks(2, |group| {
            for refused in [
                group.scatter_rows(&Tensor::from(1_i64)),
                group.gather_rows(&row(&[1]), &[3, 2]),
                group.all_gather(&Tensor::from(1_i64)),
                group.all_to_all(&row(&[1, 2]), &[1, 2], &[1, 1]),
            ] {
                let said = refused.expect_err("it does not divide").to_string();
                assert!(said.contains("of group `all`") && said.contains("of 2"), "{said}");
            }
        });
    }

    #[test]
    fn a_rank_that_does_not_come_is_an_error_in_time() {
        let server = Store::serve("127.0.0.1", 0, Duration::from_secs(60)).expect("a port");
        let soon = Duration::from_millis(300);
        let error = Group::gloo(&server, "all", (0, 2), (None, true), soon).expect_err("nobody came");
        assert!(error.to_string().starts_with("joining of group `all` failed on rank 0 of 2"), "{error}");
    }

    #[test]
    fn a_rank_that_leaves_is_an_error() {
        let results = ranks(2, |group| {
            (group.rank() == 0).then(|| group.all_gather(&row(&[1])).and_then(Pending::wait).map(|_| ()))
        });
        let error = results[0].as_ref().expect("rank 0 tried").as_ref().expect_err("rank 1 left");
        let said = error.to_string();
        assert!(said.starts_with("all-gather of [2] Int64 of group `all` failed on rank 0 of 2: "), "{said}");
        assert!(!said.contains(".cc:") && !said.contains("typically"), "{said}");
    }
}
