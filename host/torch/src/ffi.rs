//! The bridge to `shim.cc`. Nothing outside this crate sees it.

#![allow(unreachable_pub, reason = "cxx generates public items")]

#[cxx::bridge(namespace = "molt")]
pub(crate) mod shim {
    /// The numbers of one step of AdamW.
    struct AdamW {
        step: f64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        /// What the gradients are divided by, in place; 1 leaves them alone.
        divisor: f64,
    }

    unsafe extern "C++" {
        include!("molt-torch/src/shim.h");

        type Store;
        type Group;
        type Work;

        /// # Safety
        /// Addresses are of live tensors.
        unsafe fn vjp(outputs: &[usize], inputs: &[usize], gradients: &[usize]) -> Result<Vec<usize>>;

        /// # Safety
        /// Addresses are of live tensors: as many of each, of the same kinds and sizes, contiguous.
        unsafe fn adamw(
            numbers: &AdamW,
            values: &[usize],
            gradients: &[usize],
            first: &[usize],
            second: &[usize],
        ) -> Result<()>;

        /// # Safety
        /// Addresses are of live tensors, of the shapes that `packed_attention` takes, with spans within them.
        unsafe fn attention(query: usize, key: usize, value: usize, spans: &[i64]) -> Result<usize>;

        fn store(host: &str, port: u16, serve: bool, timeout_ms: u64) -> Result<UniquePtr<Store>>;
        fn store_port(store: &Store) -> u16;
        fn store_set(store: &Store, key: &str, value: &[u8]) -> Result<()>;
        fn store_delete(store: &Store, key: &str) -> Result<()>;
        fn store_timeout(store: &Store, timeout_ms: u64);
        fn store_get(store: &Store, key: &str) -> Result<Vec<u8>>;

        fn gloo(
            store: &Store,
            name: &str,
            interface: &str,
            host: &str,
            rank: i32,
            size: i32,
            timeout_ms: u64,
        ) -> Result<UniquePtr<Group>>;

        /// # Safety
        /// Addresses are of live tensors.
        unsafe fn all_gather(group: &Group, output: usize, input: usize) -> Result<UniquePtr<Work>>;
        /// # Safety
        /// Addresses are of live tensors, contiguous, which nobody touches before the work is done; there is a rank of
        /// the group for each.
        unsafe fn messages(
            group: &Group,
            scatters: bool,
            give: &[usize],
            to: &[i32],
            take: &[usize],
            from: &[i32],
        ) -> Result<UniquePtr<Work>>;
        /// # Safety
        /// Addresses are of live tensors.
        unsafe fn all_reduce(group: &Group, tensor: usize, maximum: bool) -> Result<UniquePtr<Work>>;
        /// # Safety
        /// Addresses are of live tensors.
        unsafe fn broadcast(group: &Group, tensor: usize, root: i32) -> Result<UniquePtr<Work>>;
        /// # Safety
        /// Addresses are of live tensors.
        unsafe fn all_to_all(
            group: &Group,
            output: usize,
            input: usize,
            output_counts: &[i64],
            input_counts: &[i64],
        ) -> Result<UniquePtr<Work>>;

        fn sent(group: &Group) -> [u64; 5];

        fn wait(work: &Work) -> Result<bool>;

        /// # Safety
        /// The address is of a live tensor.
        unsafe fn gathered(group: &Group, input: usize, dim: i64) -> Result<usize>;
        /// # Safety
        /// The address is of a live tensor.
        unsafe fn scattered(group: &Group, input: usize, dim: i64) -> Result<usize>;
        /// # Safety
        /// The address is of a live tensor.
        unsafe fn exchanged(group: &Group, input: usize, give: &[i64], take: &[i64]) -> Result<usize>;
    }
}
