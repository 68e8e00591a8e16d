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

/// By hand: what mathematics says, or what a grader must accept by the conventions in `README.md` of the rewards.
#[test]
fn one_value_in_two_notations() {
    for (a, b) in [
        ("1.5\\times 10^{3}", "1500"),
        ("2.5e-3", "0.0025"),
        ("6.02E23", "6.02 \\cdot 10^{23}"),
        ("2^{10}", "1024"),
        ("2**10", "1024"),
        ("\\sqrt{12}", "2\\sqrt{3}"),
        ("\\sqrt[3]{-8}", "-2"),
        ("\\sqrt{2 + \\sqrt{3}}", "\\frac{\\sqrt{6} + \\sqrt{2}}{2}"),
        ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
        ("2\\pi", "6.28319"),
        ("e^{i\\pi}", "-1"),
        ("(1+i)^2", "2i"),
        ("\\sin 30^\\circ", "1/2"),
        ("\\cos\\frac{\\pi}{3}", "0.5"),
        ("\\log_2 8", "3"),
        ("\\ln e^2", "2"),
        ("5!", "120"),
        ("\\binom{6}{2}", "15"),
        ("|{-3}|", "3"),
        ("\\lfloor 7/2 \\rfloor", "3"),
        ("1101_2", "13"),
        ("x^2 - 1", "(x-1)(x+1)"),
        ("\\frac{x^2-1}{x-1}", "x + 1"),
        ("2x + 3y", "3y + 2x"),
        ("\\sin^2 x + \\cos^2 x", "1"),
        ("y = 2x + 1", "2x - y + 1 = 0"),
        ("x > 3", "(3, \\infty)"),
        ("-1 \\le x < 2", "[-1, 2)"),
        ("x \\in (-\\infty, 1]", "x \\leq 1"),
        ("x < 3", "3 > x"),
        ("\\{1, 2, 3\\}", "3, 1, 2"),
        ("1 \\text{ or } 2", "\\{1,2\\}"),
        ("x = 1, x = 2", "1 and 2"),
        ("\\pm 3", "3, -3"),
        ("2 \\pm \\sqrt{3}", "2 + \\sqrt3, 2 - \\sqrt3"),
        ("(1, 2) \\cup (3, 4]", "(3, 4] \\cup (1, 2)"),
        ("\\left\\langle 1, 2 \\right\\rangle", "(1, 2)"),
        (
            "\\begin{pmatrix} 1 & 0.5 \\\\ 0 & 1 \\end{pmatrix}",
            "\\begin{bmatrix}1&\\frac12\\\\0&1\\end{bmatrix}",
        ),
        ("3:4", "3/4"),
        ("\\text{(B)}", "B"),
        ("½", "0.5"),
        ("3²", "9"),
        ("2√3", "\\sqrt{12}"),
        ("\\emptyset", "\\{\\}"),
        ("50\\%", "\\frac{1}{2}"),
        ("1{,}234{,}567", "1234567"),
        ("January 5, 2020", "january 5,  2020"),
    ] {
        assert!(equal(a, b) && equal(b, a), "{a:?} and {b:?}");
    }
}

#[test]
fn two_values_that_look_alike() {
    for (a, b) in [
        ("1.5e3", "1500.1"),
        ("2^{100}", "2^{100} + 1"),
        ("\\sqrt{x^2}", "x"),
        ("x^2 + 1", "x^2 - 1"),
        ("\\sqrt{2}", "1.41"),
        ("\\frac{1}{3}", "0.33"),
        ("\\frac{1}{3}", "0.3334"),
        ("\\sqrt[3]{8}", "-2"),
        ("(1, 2)", "(2, 1)"),
        ("(1, 2)", "[1, 2]"),
        ("(1, 2)", "\\{1, 2\\}"),
        ("1, 2", "1, 2, 3"),
        ("1", "1, 2"),
        ("x > 3", "x \\ge 3"),
        ("x > 3", "x < 3"),
        ("y = 2x + 1", "y = 2x + 2"),
        ("x^2 = 4", "x = 2"),
        ("\\pm 3", "3"),
        ("1101_2", "1101"),
        ("12:30", "2:05"),
        ("i", "1"),
        ("\\infty", "-\\infty"),
        ("\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        ("\\text{yes}", "no"),
        ("A", "B"),
        ("January 5, 2020", "January 6, 2020"),
    ] {
        assert!(!equal(a, b) && !equal(b, a), "{a:?} and {b:?}");
    }
}

#[test]
fn what_would_take_for_ever_is_answered() {
    let radicals = format!("{}2{}", "\\sqrt{1+".repeat(40), "}".repeat(40));
    let powers = "9^{".repeat(40) + "9" + &"}".repeat(40);
    let telescope: Vec<String> = (0..400).map(|n| format!("x^{{{n}}}")).collect();
    let telescope = telescope.join("+");
    let list = "1/3,".repeat(800);
    for text in [
        "9**9**9**9",
        "9^{9^{9^{9}}}",
        "10^{1000000000}",
        "99999999999!",
        "\\binom{999999999}{5000000}",
        "\\sqrt[0]{5}",
        "0^{-1}",
        "\\log_1 5",
        "\\tan 90^\\circ",
        "\\u{0}\\",
        "٣ + ४",
        "\\0",
        "cm",
        &radicals,
        &powers,
        &list,
        &"(".repeat(2000),
        &"-".repeat(2000),
        &"x!".repeat(1000),
        &"\\frac".repeat(500),
        &"{1,".repeat(1000),
        &"1_".repeat(1000),
        &"|x".repeat(1000),
    ] {
        assert!(equal(text, text), "{text}");
        assert!(!equal(text, "7"), "{text}");
    }
    assert!(equal(&telescope, "\\frac{x^{400}-1}{x-1}"));
    assert!(!equal(&telescope, "\\frac{x^{401}-1}{x-1}"));
}

proptest! {
    #[test]
    fn a_number_is_itself_in_every_format(whole in 0u64..10_000_000, part in 0u32..1000, minus: bool) {
        let sign = if minus { "-" } else { "" };
        let grouped = whole.to_string().as_bytes().rchunks(3).rev().map(|three| String::from_utf8_lossy(three).into_owned())
            .collect::<Vec<_>>().join(",");
        let decimal = format!("{sign}{whole}.{part:03}");
        for other in [
            format!("{sign}{grouped}.{part:03}"),
            format!("\\boxed{{{sign}{whole}.{part:03}00}}"),
            format!("{sign}\\frac{{{}}}{{1000}}", whole * 1000 + u64::from(part)),
            format!("{sign}{}/1000", whole * 1000 + u64::from(part)),
            format!("{sign}{} \\times 10^{{-3}}", whole * 1000 + u64::from(part)),
            format!("${sign}{whole}.{part:03}$ cm"),
        ] {
            prop_assert!(equal(&decimal, &other) && equal(&other, &decimal), "{} {}", decimal, other);
        }
        let next = format!("{sign}{whole}.{:03}1", part);
        prop_assert!(!equal(&decimal, &next));
    }

    #[test]
    fn verdicts_are_symmetric_and_everything_is_itself(a in "[-+*/^_!%=<,0-9a-cx(){}|\\[\\]\\\\ ]{1,24}", b in "[-+*/^=,0-9x()\\\\ ]{1,12}") {
        prop_assert_eq!(equal(&a, &b), equal(&b, &a));
        prop_assert!(equal(&a, &a) || !a.contains(|c: char| c.is_ascii_alphanumeric()));
    }
}
