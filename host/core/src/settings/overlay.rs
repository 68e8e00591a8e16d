//! Where settings come from: the defaults, a TOML file over them, flags over both.

use super::keys::{Key, Kind, keys, nearest};
use super::{Problem, Settings, SettingsError};
use std::collections::HashMap;
use std::path::Path;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// The settings of a command from the text of a TOML file (with its path, for messages) and from flags
/// (dotted name and value, in order; a later one wins over an earlier one and over the file).
///
/// # Errors
/// Every unknown key and every value of the wrong type, all at once.
pub fn load<S: Settings>(
    file: Option<(&Path, &str)>,
    flags: &[(String, String)],
) -> Result<S, SettingsError> {
    let keys = keys::<S>();
    let mut problems = Vec::new();
    let mut table = match file {
        Some((path, text)) => read_file((&keys, &S::also_in_files()), path, text, &mut problems),
        None => Table::new(),
    };
    for (name, text) in flags {
        let place = format!("--{name}");
        let Some((key, path)) = keys.iter().find_map(|k| Some((k, k.path_of(name)?))) else {
            let given: Vec<String> = name.split('.').map(str::to_owned).collect();
            let names = keys.iter().map(|key| key.path_like(&given).join(".")).collect();
            problems.push(unknown(keys.as_slice(), names, &given, place));
            continue;
        };
        match parse(&key.kind, text) {
            Some(value) => put(&mut table, &path, value),
            None => problems.push(Problem::Type {
                place,
                key: name.clone(),
                value: format!("{text:?}"),
                expected: key.kind.to_string(),
            }),
        }
    }
    if !problems.is_empty() {
        return Err(SettingsError { problems });
    }
    let settings: S = serde_path_to_error::deserialize(table.clone()).map_err(|error| {
        let key = error.path().to_string();
        SettingsError { problems: vec![Problem::Invalid { key, sentence: error.inner().to_string() }] }
    })?;
    Ok(settings.resolved(|key| is_given(&table, key)))
}

/// Whether the table has the dotted name.
fn is_given(table: &Table, key: &str) -> bool {
    match key.split_once('.') {
        Some((section, rest)) => {
            table.get(section).and_then(Value::as_table).is_some_and(|table| is_given(table, rest))
        }
        None => table.contains_key(key),
    }
}

/// The TOML text that [`load`] reads back as the same settings.
///
/// # Errors
/// A path that is not UTF-8.
pub(super) fn write<S: Settings>(settings: &S) -> Result<String, SettingsError> {
    toml::to_string_pretty(settings).map_err(|error| SettingsError {
        problems: vec![Problem::Invalid { key: "settings".into(), sentence: error.to_string() }],
    })
}

/// Parses a file into a table that holds only keys of the command, with values of the right type. Keys of `others` may be
/// there, and are left out.
fn read_file((own, others): (&[Key], &[Key]), path: &Path, text: &str, problems: &mut Vec<Problem>) -> Table {
    let parsed = DeTable::parse(text).and_then(|lines| Ok((lines, toml::from_str::<Table>(text)?)));
    let (spans, table) = match parsed {
        Ok(both) => both,
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let place = format!("{}:{line}", path.display());
            problems.push(Problem::Syntax { place, detail: error.message().to_owned() });
            return Table::new();
        }
    };
    let mut lines = HashMap::new();
    note_lines(text, spans.get_ref(), &mut Vec::new(), &mut lines);
    let place =
        |path_in: &[String]| format!("{}:{}", path.display(), lines.get(path_in).copied().unwrap_or(1));
    let known: Vec<Key> = own.iter().chain(others).cloned().collect();
    let mut table = check(&known, table, &mut Vec::new(), &place, problems);
    // In a file of the other command the directory is that of its run.
    let is_of_other = left_out(own, &mut table, &mut Vec::new());
    if is_of_other && let Some(Value::Table(run)) = table.get_mut("run") {
        run.remove("dir");
    }
    table
}

/// Takes out what is not one of `keys`, and says whether there was any.
fn left_out(keys: &[Key], table: &mut Table, path: &mut Vec<String>) -> bool {
    let before = table.len();
    let mut inner_is_left_out = false;
    table.retain(|name, value| {
        path.push(name.to_owned());
        let is_known = keys.iter().any(|key| key.starts_with(path));
        if is_known && let Value::Table(inner) = value {
            inner_is_left_out |= left_out(keys, inner, path);
        }
        path.pop();
        is_known
    });
    inner_is_left_out || table.len() < before
}

fn check(
    keys: &[Key],
    table: Table,
    path: &mut Vec<String>,
    place: &dyn Fn(&[String]) -> String,
    problems: &mut Vec<Problem>,
) -> Table {
    let mut good = Table::new();
    for (name, value) in table {
        path.push(name.clone());
        let dotted = path.join(".");
        let found = keys.iter().find(|k| k.starts_with(path));
        match (found, value) {
            (None, _) => {
                // In a file, a section may be misspelt as well.
                let all: Vec<Vec<String>> = keys.iter().map(|key| key.path_like(path)).collect();
                let sections = all.iter().map(|k| k[..k.len().min(path.len())].join("."));
                let names = sections.chain(all.iter().map(|k| k.join("."))).collect();
                problems.push(unknown(keys, names, path, place(path)));
            }
            (Some(key), Value::Table(inner)) if key.path.len() > path.len() => {
                good.insert(name, Value::Table(check(keys, inner, path, place, problems)));
            }
            (Some(key), value) => {
                let section = key.path.len() > path.len();
                match fit(&key.kind, &value).filter(|_| !section) {
                    Some(value) => drop(good.insert(name, value)),
                    None => problems.push(Problem::Type {
                        place: place(path),
                        key: dotted,
                        value: value.to_string(),
                        expected: if section { "a section of settings".into() } else { key.kind.to_string() },
                    }),
                }
            }
        }
        path.pop();
    }
    good
}

/// Keys of the rollouts that are trained which there are not, however near another is.
const UNTRUNCATED: [&str; 3] = ["rollout.top_p", "rollout.top_k", "rollout.min_p"];

/// Why.
const WHY_UNTRUNCATED: &str = "is no setting: training samples from the whole distribution, since the log-probability that \
                               a token is trained with is that of the whole, and in a truncated one it has another. Leave \
                               it out; rollout.temperature makes likely tokens likelier, in sampling and in training \
                               alike, and eval.top_p truncates in evaluation, where nothing is trained";

/// Why there is no such key among those of a command, where that is worth a sentence: one that begins with "is no setting".
pub fn why_absent(keys: &[Key], name: &str) -> Option<&'static str> {
    let has_rollouts =
        keys.iter().any(|known| known.path.first().is_some_and(|section| section == "rollout"));
    (UNTRUNCATED.contains(&name) && has_rollouts).then_some(WHY_UNTRUNCATED)
}

/// A key that is near to none of `names` may be meant for a map of its section.
fn unknown(keys: &[Key], names: Vec<String>, path: &[String], place: String) -> Problem {
    let key = path.join(".");
    if let Some(sentence) = why_absent(keys, &key) {
        return Problem::Absent { place, key, sentence };
    }
    let nearest = nearest(&key, names.iter().map(String::as_str));
    let nearest = nearest.or_else(|| keys.iter().find_map(|key| key.in_map(path)));
    Problem::Unknown { place, key, nearest }
}

/// A value of a TOML file as its key wants it. A single value stands for a list of one.
fn fit(kind: &Kind, value: &Value) -> Option<Value> {
    match (kind, value) {
        (Kind::Switch, Value::Boolean(_)) | (Kind::Text, Value::String(_)) => Some(value.clone()),
        (Kind::Number, Value::Float(_)) => Some(value.clone()),
        (Kind::Number, Value::Integer(i)) => Some(Value::Float(*i as f64)),
        (Kind::Count { max }, Value::Integer(i)) => (0..=*max).contains(i).then(|| value.clone()),
        (Kind::Choice(words), Value::String(s)) => words.contains(s).then(|| value.clone()),
        (Kind::List(of), Value::Array(items)) => {
            items.iter().map(|item| fit(of, item)).collect::<Option<Vec<_>>>().map(Value::Array)
        }
        (Kind::List(of), single) => Some(Value::Array(vec![fit(of, single)?])),
        (Kind::Parameter, Value::Integer(i)) => Some(Value::Float(*i as f64)),
        (Kind::Parameter, Value::Boolean(_) | Value::Float(_) | Value::String(_)) => Some(value.clone()),
        _ => None,
    }
}

/// A flag's text as its key wants it. A list is separated by commas, or written as in TOML: `["a,b"]`.
fn parse(kind: &Kind, text: &str) -> Option<Value> {
    let value = match kind {
        Kind::Switch => Value::Boolean(text.parse().ok()?),
        Kind::Count { .. } => Value::Integer(text.parse().ok()?),
        Kind::Number => Value::Float(text.parse().ok()?),
        Kind::Text | Kind::Choice(_) => Value::String(text.to_owned()),
        Kind::List(_) if text.starts_with('[') => {
            toml::from_str::<Table>(&format!("list = {text}")).ok()?.remove("list")?
        }
        Kind::List(_) if text.is_empty() => Value::Array(Vec::new()),
        Kind::List(of) => Value::Array(text.split(',').map(|t| parse(of, t)).collect::<Option<_>>()?),
        Kind::Parameter => match (text.parse(), text.parse()) {
            (Ok(switch), _) => Value::Boolean(switch),
            (_, Ok(number)) => Value::Float(number),
            _ => Value::String(text.to_owned()),
        },
    };
    fit(kind, &value)
}

fn put(table: &mut Table, path: &[String], value: Value) {
    let Some((name, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        table.insert(name.clone(), value);
        return;
    }
    let entry = table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(inner) = entry {
        put(inner, rest, value);
    }
}

fn note_lines(
    text: &str,
    table: &DeTable<'_>,
    path: &mut Vec<String>,
    lines: &mut HashMap<Vec<String>, usize>,
) {
    for (name, value) in table {
        path.push(name.get_ref().to_string());
        lines.insert(path.clone(), line_of(text, Spanned::span(name).start));
        if let DeValue::Table(inner) = value.get_ref() {
            note_lines(text, inner, path, lines);
        }
        path.pop();
    }
}

/// The line, from 1, that byte `at` of `text` is on.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|b| *b == b'\n').count()
}
