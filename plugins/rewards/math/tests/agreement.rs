//! How often the reward says what the public test suites of 14 graders say; `cases.tsv` names the source and the
//! licence of each case, and what math-verify 0.9.0 answers.

#![allow(clippy::unwrap_used, reason = "tests")]

use math_answer::{Choices, equal, is_right};
use std::collections::BTreeMap;

/// Cases that agree. Raise it with every case that is gained.
const AGREE: usize = 375;

struct Case {
    id: String,
    kind: String,
    gold: String,
    answer: String,
    expected: bool,
    math_verify: bool,
}

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().skip(1).map(|line| line.split('\t').collect())
}

fn unescaped(text: &str) -> String {
    let mut characters = text.chars();
    let mut plain = String::new();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap(),
            },
            other => other,
        });
    }
    plain
}

fn cases() -> Vec<Case> {
    let case = |row: Vec<&str>| Case {
        id: row[0].into(),
        kind: row[1].into(),
        gold: unescaped(row[2]),
        answer: unescaped(row[3]),
        expected: row[4] == "1",
        math_verify: row[5] == row[4],
    };
    rows(include_str!("cases.tsv")).map(case).collect()
}

fn agrees(case: &Case, choices: &Choices) -> bool {
    let verdict = match case.kind.as_str() {
        "equiv" | "normalise" => equal(&case.answer, &case.gold, choices),
        _ => is_right(&case.answer, &case.gold, choices),
    };
    verdict == case.expected
}

#[test]
fn public_cases_agree_but_for_a_list_with_reasons() {
    let cases = cases();
    let found: Vec<&Case> = cases.iter().filter(|case| !agrees(case, &Choices::default())).collect();
    let theirs = cases.iter().filter(|case| case.math_verify).count();
    let ours = cases.len() - found.len();
    let percent = |count: usize| 100.0 * count as f64 / cases.len() as f64;
    println!(
        "{ours} of {} agree: {:.1}%; math-verify 0.9.0: {:.1}%",
        cases.len(),
        percent(ours),
        percent(theirs)
    );
    let reasons: BTreeMap<&str, (&str, &str)> =
        rows(include_str!("disagreements.tsv")).map(|row| (row[0], (row[1], row[2]))).collect();
    for case in &found {
        let id = case.id.as_str();
        assert!(
            reasons.contains_key(id),
            "{id} is not listed: {} {:?} {:?}",
            case.expected,
            case.gold,
            case.answer
        );
    }
    for (id, (choices, reason)) in &reasons {
        assert!(reason.len() > 10, "{id} has no reason");
        let case = found.iter().find(|case| case.id == *id);
        let case = case.unwrap_or_else(|| panic!("{id} agrees by now: take it off the list"));
        let choices = Choices::parse(choices).unwrap();
        assert_eq!(agrees(case, &choices), choices != Choices::default(), "{id} under its choice");
    }
    assert!(ours >= AGREE, "{ours} agree");
    assert!(ours > theirs);
}
