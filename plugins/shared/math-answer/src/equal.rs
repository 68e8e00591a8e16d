//! When two answers are equal.

use crate::choices::Choices;
use crate::markup::{clean, plain, without_half};
use crate::value::{Expr, Function, Value};
use crate::{number, parse, unit};

/// Bytes of an answer that are looked at as mathematics; a longer one is compared as it stands.
const LONGEST: usize = 4096;

/// Pairs of values that are compared; larger answers are compared as text.
const MOST_PAIRS: usize = 20_000;

/// Whether two answers are the same value, or the same text.
///
/// A percentage is equal to its number of hundredths and to the number before the sign, since people write either, and
/// an angle in degrees to its number. Likewise a time of day is equal to itself without "am" or "pm".
pub fn equal(answer: &str, expected: &str, choices: &Choices) -> bool {
    if answer.len() > LONGEST || expected.len() > LONGEST {
        return answer.trim() == expected.trim();
    }
    // What has no value, such as a unit alone, is still the same as itself.
    let is_same = answer.trim() == expected.trim() && answer.contains(char::is_alphanumeric);
    let (answer, expected) = (clean(answer), clean(expected));
    let ((answer, a_half), (expected, b_half)) = (without_half(&answer), without_half(&expected));
    if a_half.zip(b_half).is_some_and(|(a, b)| a != b) {
        return false;
    }
    let texts = [answer, expected].map(|text| plain(unit::without_unit(text)));
    if texts[0] == texts[1] {
        return is_same || !texts[0].is_empty();
    }
    if texts.iter().all(|text| is_time(text)) {
        return false;
    }
    let read = |text| parse::answer(unit::without_unit(text)).or_else(|| parse::answer(text)).map(expanded);
    if let (Some(a), Some(b)) = (read(answer), read(expected))
        && a.size() * b.size() <= MOST_PAIRS
        && same(&a, &b, choices)
    {
        return true;
    }
    decimal_comma(answer, expected) || decimal_comma(expected, answer)
}

/// `3:45`, which is no ratio.
fn is_time(text: &str) -> bool {
    text.split_once(':').is_some_and(|(hours, minutes)| {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        (1..=2).contains(&hours.len()) && minutes.len() == 2 && digits(hours) && digits(minutes)
    })
}

/// Whether `text` is `1,25` where the other is `1.25`.
fn decimal_comma(text: &str, other: &str) -> bool {
    let decimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
    text.matches(',').count() == 1
        && !text.contains([' ', '.'])
        && other.contains('.')
        && decimal(other)
        && decimal(&text.replace(',', "."))
        && matches!(
            (parse::answer(&text.replace(',', ".")), parse::answer(other)),
            (Some(Value::Expr(a)), Some(Value::Expr(b))) if number::equal(&a, &b, &Choices::default())
        )
}

/// Without brackets around one value, and with both signs of `±` as two values.
fn expanded(value: Value) -> Value {
    let all = |items: Vec<Value>| items.into_iter().map(expanded).collect::<Vec<_>>();
    let flat = |items: Vec<Value>| {
        let mut flat = vec![];
        for item in all(items) {
            match item {
                Value::List(inner) if inner.iter().all(|value| matches!(value, Value::Expr(_))) => {
                    flat.extend(inner)
                }
                other => flat.push(other),
            }
        }
        flat
    };
    match value {
        Value::Expr(expr) => match expr.both_signs() {
            Some((plus, minus)) => Value::List(vec![Value::Expr(plus), Value::Expr(minus)]),
            None => Value::Expr(expr),
        },
        Value::Tuple(open, items, close) => Value::Tuple(open, all(items), close),
        Value::Set(items) => Value::Set(flat(items)),
        Value::List(items) => Value::List(flat(items)),
        Value::Union(items) => Value::Union(all(items)),
        Value::Matrix(rows) => Value::Matrix(rows.into_iter().map(all).collect()),
        Value::Relation(sides, signs) => {
            let mut sides = all(sides);
            // `x = 1 ± 2` is two equations.
            if let ([name, Value::List(values)], ['=']) = (&mut sides[..], &signs[..]) {
                let equation = |value| Value::Relation(vec![name.clone(), value], vec!['=']);
                return Value::List(std::mem::take(values).into_iter().map(equation).collect());
            }
            Value::Relation(sides, signs)
        }
    }
}

fn same(a: &Value, b: &Value, choices: &Choices) -> bool {
    match (a, b) {
        (Value::Expr(a), Value::Expr(b)) => number::equal(a, b, choices),
        (Value::Relation(a, a_signs), Value::Relation(b, b_signs)) => {
            relations((a, a_signs), (b, b_signs), choices)
                || (subject(a) == subject(b)
                    && matches!((region(a, a_signs), region(b, b_signs)), (Some(a), Some(b)) if same(&a, &b, choices)))
        }
        (Value::Relation(sides, signs), other) | (other, Value::Relation(sides, signs)) => {
            values(sides, signs).into_iter().any(|value| same(value, other, choices))
                || region(sides, signs).is_some_and(|region| same(&region, other, choices))
        }
        // One solution in several unknowns.
        (Value::List(items), Value::Tuple('(', values, ')'))
        | (Value::Tuple('(', values, ')'), Value::List(items))
            if items.iter().all(|item| matches!(item, Value::Relation(..))) =>
        {
            in_order(items, values, choices)
        }
        (Value::List(a), Value::List(b)) if choices.ordered => in_order(a, b, choices),
        (Value::Set(_) | Value::List(_), _) | (_, Value::Set(_) | Value::List(_)) => {
            let (a, b) = (elements(a), elements(b));
            let within = |a: &[Value], b: &[Value]| a.iter().all(|a| b.iter().any(|b| same(a, b, choices)));
            within(a, b) && within(b, a)
        }
        (Value::Tuple(a_open, a, a_close), Value::Tuple(b_open, b, b_close)) => {
            a_open == b_open && a_close == b_close && in_order(a, b, choices)
        }
        (Value::Union(a), Value::Union(b)) => {
            let within = |a: &[Value], b: &[Value]| a.iter().all(|a| b.iter().any(|b| same(a, b, choices)));
            within(a, b) && within(b, a)
        }
        (Value::Matrix(a), Value::Matrix(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| in_order(a, b, choices))
        }
        (Value::Matrix(rows), Value::Tuple(_, items, _))
        | (Value::Tuple(_, items, _), Value::Matrix(rows)) => {
            let vector = rows.len() == 1 || rows.iter().all(|row| row.len() == 1);
            vector && in_order(&rows.concat(), items, choices)
        }
        _ => false,
    }
}

fn in_order(a: &[Value], b: &[Value], choices: &Choices) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, choices))
}

fn elements(value: &Value) -> &[Value] {
    match value {
        Value::Set(items) | Value::List(items) => items,
        other => std::slice::from_ref(other),
    }
}

/// The values that a chain of equations gives its name.
fn values<'a>(sides: &'a [Value], signs: &[char]) -> Vec<&'a Value> {
    let [first, .., before, last] = sides else {
        let ([first, last], [sign]) = (sides, signs) else { return vec![] };
        return match sign {
            '∈' => vec![last],
            '=' if is_name(first) || is_computed(first, last) => vec![last],
            '≈' if is_name(first) => vec![last],
            '≈' => vec![first, last],
            _ => vec![],
        };
    };
    let equations = signs.iter().all(|sign| matches!(sign, '=' | '≈'));
    if equations && (is_name(first) || is_name(before) || is_computed(first, last)) {
        vec![last]
    } else {
        vec![]
    }
}

fn is_name(value: &Value) -> bool {
    match value {
        Value::Expr(expr) => expr.is_name(),
        Value::Tuple(_, items, _) => items.iter().all(is_name),
        _ => false,
    }
}

/// Whether `first` is what was asked for, and `last` the number that it is.
fn is_computed(first: &Value, last: &Value) -> bool {
    let number = matches!(last, Value::Expr(expr) if !expr.has_variables());
    number && matches!(first, Value::Expr(expr) if !expr.has_variables() || has_bounds(expr))
}

fn has_bounds(expr: &Expr) -> bool {
    let bound =
        |name: &str| ["\\lim", "\\sum", "\\int", "\\prod"].iter().any(|bound| name.starts_with(bound));
    matches!(expr, Expr::Symbol(name) if bound(name)) || expr.parts().into_iter().any(has_bounds)
}

fn relations(a: (&[Value], &[char]), b: (&[Value], &[char]), choices: &Choices) -> bool {
    if a.1 == b.1 && in_order(a.0, b.0, choices) {
        return true;
    }
    let equations = |signs: &[char]| signs.iter().all(|&sign| sign == '=');
    if let ([a_first, .., a_last], [b_first, .., b_last]) = (a.0, b.0)
        && equations(a.1)
        && equations(b.1)
        && is_name(a_first)
        && same(a_first, b_first, choices)
        && same(a_last, b_last, choices)
    {
        return true;
    }
    let backwards: Vec<char> = b.1.iter().rev().map(|&sign| turned(sign)).collect();
    let reversed: Vec<Value> = b.0.iter().rev().cloned().collect();
    if a.1 == backwards && in_order(a.0, &reversed, choices) {
        return true;
    }
    let ([Value::Expr(a0), Value::Expr(a1)], [a_sign]) = a else { return false };
    let ([Value::Expr(b0), Value::Expr(b1)], [b_sign]) = b else { return false };
    let difference = |left: &Expr, right: &Expr| {
        Expr::Sum(left.clone().into(), Expr::Negative(right.clone().into()).into())
    };
    let variables = [a0, a1, b0, b1].iter().any(|side| side.has_variables());
    let ratio =
        if variables { number::constant_ratio(&difference(a0, a1), &difference(b0, b1)) } else { None };
    ratio.is_some_and(|sign| if sign > 0.0 { a_sign == b_sign } else { *a_sign == turned(*b_sign) })
}

fn turned(sign: char) -> char {
    match sign {
        '<' => '>',
        '>' => '<',
        '≤' => '≥',
        '≥' => '≤',
        same => same,
    }
}

/// What a relation is about.
fn subject(sides: &[Value]) -> Option<&Expr> {
    sides.iter().find_map(|side| match side {
        Value::Expr(Expr::Function(Function::Absolute, name)) if name.is_name() => Some(&**name),
        Value::Expr(expr) if expr.is_name() => Some(expr),
        _ => None,
    })
}

/// The set that inequalities of one name describe.
fn region(sides: &[Value], signs: &[char]) -> Option<Value> {
    let infinity = Expr::Symbol("\\infty".into());
    let name = |value: &Value| matches!(value, Value::Expr(expr) if expr.is_name());
    let interval = |open: char, low: &Value, high: &Value, close: char| {
        let bracket = |sign: char, strict: char, closed: char| if sign == '<' { strict } else { closed };
        let items = vec![low.clone(), high.clone()];
        Value::Tuple(bracket(open, '(', '['), items, bracket(close, ')', ']'))
    };
    match (sides, signs) {
        ([_, set], ['∈']) => Some(set.clone()),
        ([x, bound], [sign @ ('<' | '≤')]) if name(x) && !name(bound) => {
            let low = Value::Expr(Expr::Negative(infinity.into()));
            Some(interval('<', &low, bound, *sign))
        }
        ([x, bound], [sign @ ('>' | '≥')]) if name(x) && !name(bound) => {
            Some(interval(turned(*sign), bound, &Value::Expr(infinity), '<'))
        }
        ([bound, x], [sign]) if name(x) && !name(bound) => {
            region(&[x.clone(), bound.clone()], &[turned(*sign)])
        }
        (
            [low, Value::Expr(Expr::Function(Function::Absolute, x)), high],
            [a @ ('<' | '≤'), b @ ('<' | '≤')],
        ) if x.is_name() => {
            let minus = |value: &Value| match value {
                Value::Expr(expr) => Some(Value::Expr(Expr::Negative(expr.clone().into()))),
                _ => None,
            };
            let mirrored = interval(*b, &minus(high)?, &minus(low)?, *a);
            Some(Value::Union(vec![mirrored, interval(*a, low, high, *b)]))
        }
        ([low, x, high], [a @ ('<' | '≤'), b @ ('<' | '≤')]) if name(x) => {
            Some(interval(*a, low, high, *b))
        }
        ([high, x, low], [a @ ('>' | '≥'), b @ ('>' | '≥')]) if name(x) => {
            Some(interval(turned(*b), low, high, turned(*a)))
        }
        _ => None,
    }
}
