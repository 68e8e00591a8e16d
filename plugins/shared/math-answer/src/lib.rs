//! Grades final answers: what the `math` reward and the `python-math` environment have in common.

mod answer;
mod natural;
mod number;
mod unit;

pub use answer::{equal, final_answer};

/// Whether the final answer of `text` is the one that the label says. A label may be a worked solution that ends
/// in its answer, as in many datasets.
pub fn is_right(text: &str, label: &str) -> bool {
    let expected = answer::marked(label).unwrap_or(label);
    final_answer(text).is_some_and(|answer| equal(answer, expected))
}
