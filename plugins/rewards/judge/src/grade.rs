//! The grade in what a judge wrote.

/// Words that a grade follows.
const WORDS: [&str; 3] = ["grade", "score", "rating"];

/// The last grade that `text` names, on a scale from 0 to `best`: `Grade: 7`, `**Score:** 7.5/10`, `rating is 3 out of
/// 5`, or a number that is all of the text. None if there is none, or if it is not on its scale.
pub fn find(text: &str, best: f64) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    // Not the end of another word, such as "upgrade".
    let alone_at =
        |(at, word): (usize, &str)| (!lower[..at].ends_with(char::is_alphabetic)).then_some(at + word.len());
    let mut places: Vec<usize> =
        WORDS.iter().flat_map(|word| lower.match_indices(word).filter_map(alone_at)).collect();
    places.sort_unstable();
    let named = places.iter().rev().find_map(|&after| number(between(&lower[after..])));
    let (grade, rest) = named.or_else(|| alone(lower.trim()))?;
    let scale = scale(rest).map_or(best, |(scale, _)| scale);
    (scale > 0.0 && (0.0..=scale).contains(&grade)).then(|| grade / scale * best)
}

/// A number, perhaps with its scale, that is all of `text`.
fn alone(text: &str) -> Option<(f64, &str)> {
    let (grade, rest) = number(text)?;
    let end = scale(rest).map_or(rest, |(_, end)| end);
    end.trim_matches(['.', ' ']).is_empty().then_some((grade, rest))
}

/// What comes after marks and the words that may stand between a grade and its name.
fn between(text: &str) -> &str {
    let marks: &[_] = &[' ', '\t', '\n', ':', '=', '*', '_', '`', '[', '(', '"', '$', '|', '#'];
    let mut text = text.trim_start_matches(marks);
    for word in ["is ", "of ", "\\boxed{"] {
        text = text.strip_prefix(word).unwrap_or(text).trim_start_matches(marks);
    }
    text
}

/// The number that `text` begins with, and what follows it.
fn number(text: &str) -> Option<(f64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    // A full stop that ends the sentence is no part of the number.
    let number = text[..digits].trim_end_matches('.');
    Some((number.parse().ok()?, &text[number.len()..]))
}

/// The scale that follows a grade, as in `/10` and `out of 10`, and what comes after.
fn scale(rest: &str) -> Option<(f64, &str)> {
    let rest = rest.trim_start_matches(['*', '_', ']', ')', '`', '}', ' ']);
    let scale = rest.strip_prefix('/').or_else(|| rest.strip_prefix("out of"))?;
    number(scale.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_grade_counts_in_whatever_dress() {
        for (text, grade) in [
            ("Grade: 7", 7.0),
            ("First I thought grade: 2.\nGrade: 9.", 9.0),
            ("**Grade:** 7.5/10", 7.5),
            ("**Score: 4/5**", 8.0),
            ("The rating is 3 out of 4", 7.5),
            ("GRADE = [10]", 10.0),
            ("grade of 6 because ...", 6.0),
            ("Grade: \\boxed{8}", 8.0),
            ("Grade:\n\n0", 0.0),
            (" 8 ", 8.0),
            ("8/10.", 8.0),
            ("Grade: 3. This grade reflects the missing unit.", 3.0),
            ("Grade: 9. Upgrade 2 lines.", 9.0),
            ("Grade: 9. The underscore 3 is a typo.", 9.0),
            ("(score 6) élite-grade 5", 5.0),
        ] {
            assert_eq!(find(text, 10.0), Some(grade), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_grade_is_none() {
        for text in [
            "",
            "Grade: good",
            "Grade: 11",
            "Grade: -1",
            "Grade: 7/0",
            "Grade: 6/5",
            "8 apples",
            "I like 7",
            "downgrade 7",
            "égrade 7",
            "grade",
            "Grade: NaN",
            "Grade: inf",
            "Grade: 1.2.3",
            "Grade: .",
            "٣",
        ] {
            assert_eq!(find(text, 10.0), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_and_a_grade_is_on_the_scale(text in "(?i)[grade score:0-9./ éİ*]{0,40}") {
            if let Some(grade) = find(&text, 10.0) {
                prop_assert!((0.0..=10.0).contains(&grade));
            }
        }
    }
}
