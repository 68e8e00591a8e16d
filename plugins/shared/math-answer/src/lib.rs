//! Grades final answers: what the `math` reward and the `python-math` environment have in common.
//!
//! Two answers are compared as mathematics. Rational expressions are compared exactly, modulo primes with random
//! numbers for symbols (`field`), others in floating point (`complex`), where points below zero are looked at too.
//! What is no mathematics is compared as text. Nothing is evaluated as code, and every answer is read in bounded time:
//! its length, its nesting and the number of comparisons have limits.

mod algebra;
mod choice;
mod choices;
mod complex;
mod equal;
mod extract;
mod field;
mod lex;
mod markup;
mod number;
mod parse;
mod small;
mod term;
#[cfg(test)]
mod tests;
mod unit;
mod value;

pub use choices::Choices;
pub use equal::equal;
pub use extract::final_answer;

/// Whether the final answer of `text` is the one that the label says. A label may be a worked solution that ends
/// in its answer, as in many datasets, or the letter of a choice.
pub fn is_right(text: &str, label: &str, choices: &Choices) -> bool {
    let expected = extract::expected(label);
    let found = final_answer(text, choices.boxed);
    if found.as_deref().is_some_and(|found| equal(found, &expected, choices)) {
        return true;
    }
    match choice::letter(&expected) {
        Some(letter) => (found.is_some() || !choices.boxed) && choice::chosen(text) == Some(letter),
        // A label may say more than the letter.
        None => {
            let letter = found.as_deref().and_then(choice::letter);
            letter.is_some() && letter == choice::leading(&expected)
        }
    }
}
