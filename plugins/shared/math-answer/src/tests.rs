use crate::{Choices, equal as equal_by, final_answer as found};
use proptest::prelude::*;

fn equal(a: &str, b: &str) -> bool {
    equal_by(a, b, &Choices::default())
}

fn final_answer(text: &str) -> Option<String> {
    found(text, false)
}

#[test]
fn answers_that_are_equal() {
    for (a, b) in [
        ("1,000", "1000.0"),
        ("\\dfrac{1}{2}", "0.5"),
        ("\\frac 1 2", "1/2"),
        ("1 1/2", "1.5"),
        ("−5", "-5"),
        ("+5", "5"),
        ("\\$16,\\!386.20", "16386.2"),
        ("14{,}916", "14916"),
        ("50\\%", "50"),
        ("50%", "0.5"),
        ("36^{\\circ}", "36 degrees"),
        ("12 square feet", "12cm"),
        ("12\\text{ m}^2", "12"),
        ("x = 7", "7"),
        ("[90]", "90"),
        ("\\frac{1}{3} \\text{ of it}", "1/3"),
        ("\\text{Evelyn}", "evelyn"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("\\left(x-2\\right)", "(x - 2)"),
        ("10^{7}", "10^7"),
        ("f(x) = 7", "7"),
        ("x_{1} = 7", "7"),
        ("AB=7 cm", "7"),
        ("(1)/(2)", "0.5"),
        ("5 pm", "5"),
        ("3:45 p.m.", "3:45 PM"),
        ("3:45\\text{ pm}", "3:45"),
        ("50 percent", "50"),
        ("2^3", "8"),
        ("x=y=5", "5"),
        ("1 1/2 cups", "1.5"),
        ("10^7 meters", "10^{7}"),
        ("10^{7} meters", "10^{7}"),
        ("\\frac{9\\pi}{2}\\text{ inches}", "\\frac{9\\pi}{2}"),
        ("\\frac{1}{2} m", "0.5"),
        ("60 miles/hour", "60 miles per hour"),
        ("9 m/s", "9"),
        ("3 kg", "3"),
        ("-4 points", "-4"),
    ] {
        assert!(equal(a, b) && equal(b, a), "{a:?} and {b:?}");
    }
}

#[test]
fn answers_that_differ() {
    for (a, b) in [
        ("2x", "2"),
        ("12 x", "12"),
        ("3 pi", "3"),
        ("1 12", "112"),
        ("5.001", "5"),
        ("50%", "5"),
        ("0.5%", "50%"),
        ("1/0", "0"),
        ("", ""),
        ("$", "\\,"),
        ("36", "360"),
        ("-1", "1"),
        ("4\\sqrt{2}", "4"),
        ("x^2+y^2=25", "x^2-y^2=25"),
        ("x^2+y^2=25", "25"),
        ("x<=5", "x>=5"),
        ("x<=5", "5"),
        ("x!=5", "5"),
        ("(0,100)", "[0,100]"),
        ("(0,100)", "100"),
        ("(2,345)", "2345"),
        ("{2,345}", "2345"),
        ("(2,345) cm", "2345"),
        ("3:45 pm", "3:45 am"),
        ("3:45 p.m.", "3:45am"),
        ("5 pm", "5 am"),
        ("3:45 pm", "3:46 pm"),
        ("5 million", "5 thousand"),
        ("5 million", "5"),
        ("5\\text{ million dollars}", "5"),
        ("2 thirds", "2"),
        ("5 squared", "5"),
        ("6 xy", "6"),
        ("6 x y", "6"),
        ("6 abc", "6"),
        ("2 sin x", "2"),
        ("2 sin theta", "2"),
        ("2 theta", "2"),
        ("4 < m", "4 < s"),
        ("2 + 3 m", "2 + 3"),
        ("2 + \\frac{1}{2} m", "2 + \\frac{1}{2}"),
    ] {
        assert!(!equal(a, b) && !equal(b, a), "{a:?} and {b:?}");
    }
}

#[test]
fn a_megabyte_of_anything_is_answered() {
    for unit in [
        "9",
        "{",
        "\\boxed{",
        "\\frac{",
        "-",
        "1,",
        "answer is ",
        "(",
        "\\text{",
        "$",
        "\\(",
        "$$ ",
        "\\boxed{1}",
        "X1",
        "\\\\",
        "A ",
        "**",
        "<think>",
    ] {
        let text = unit.repeat((1 << 20) / unit.len());
        let answer = final_answer(&text);
        assert!(!answer.is_some_and(|answer| equal(&answer, "7")), "{unit:?}");
    }
    let long = "9".repeat(5000);
    assert!(equal(&long, &long));
    assert!(equal(&"9".repeat(1000), &"9".repeat(1000)) && !equal(&"9".repeat(1000), &"9".repeat(999)));
}

proptest! {
    #[test]
    fn any_text_is_taken(a in any::<String>(), b in "[-−\\\\{}()$%0-9a-z.,/ =^²]{0,60}") {
        for text in [&a, &b] {
            let _ = final_answer(text);
            let _ = equal(text, &b);
        }
    }

    #[test]
    fn equality_is_symmetric(a in "[-0-9.,/%cm ]{0,12}", b in "[-0-9.,/%cm ]{0,12}") {
        prop_assert_eq!(equal(&a, &b), equal(&b, &a));
    }

    #[test]
    fn a_boxed_integer_is_found(number: i64, noise in "[a-z0-9 .]{0,40}") {
        let text = format!("{noise} \\boxed{{{number}}} {noise}");
        prop_assert!(final_answer(&text).is_some_and(|answer| equal(&answer, &number.to_string())));
    }
}
