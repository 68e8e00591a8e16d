//! What chat templates expect of Python: its JSON form, its dates, its `None`.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use time::OffsetDateTime;

/// `value | tojson(indent, ensure_ascii, separators, sort_keys)` as `json.dumps` writes it: keys in insertion
/// order, non-ASCII text kept, nothing escaped for HTML.
pub(crate) fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(value) => Some(value),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|value| !value.is_none()) {
        Some(value) => Some(usize::try_from(value)?),
        None => None,
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators is a pair of strings")),
    };
    let style = Style {
        indent,
        item,
        key,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, "cannot be written as JSON").with_source(error)
    })?;
    let mut out = String::new();
    style.write(&json, 0, &mut out);
    Ok(out)
}

struct Style<'a> {
    indent: Option<usize>,
    item: &'a str,
    key: &'a str,
    ascii: bool,
    sort: bool,
}

impl Style<'_> {
    fn write(&self, value: &serde_json::Value, level: usize, out: &mut String) {
        use serde_json::Value as Json;
        match value {
            Json::Array(items) if items.is_empty() => out.push_str("[]"),
            Json::Object(fields) if fields.is_empty() => out.push_str("{}"),
            Json::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.before_item(index, level, out);
                    self.write(item, level + 1, out);
                }
                self.line(level, out);
                out.push(']');
            }
            Json::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort {
                    fields.sort_by(|a, b| a.0.cmp(b.0));
                }
                out.push('{');
                for (index, (name, item)) in fields.into_iter().enumerate() {
                    self.before_item(index, level, out);
                    self.text(name, out);
                    out.push_str(self.key);
                    self.write(item, level + 1, out);
                }
                self.line(level, out);
                out.push('}');
            }
            Json::String(text) => self.text(text, out),
            Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => out.push_str(&repr(float)),
                None => out.push_str(&number.to_string()),
            },
            Json::Bool(_) | Json::Null => out.push_str(&value.to_string()),
        }
    }

    fn before_item(&self, index: usize, level: usize, out: &mut String) {
        if index > 0 {
            out.push_str(self.item);
        }
        self.line(level + 1, out);
    }

    fn line(&self, level: usize, out: &mut String) {
        if let Some(width) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * level));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ascii {
            return out.push_str(&quoted);
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}

/// `repr(float)`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
fn repr(float: f64) -> String {
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{float:?}")
}

/// `value | string`, that is `str(value)`.
pub(crate) fn string(value: &Value) -> String {
    if value.is_none() { "None".to_owned() } else { value.to_string() }
}

/// `value | e`, with the entities of markupsafe.
pub(crate) fn escape(value: &Value) -> String {
    let mut out = String::new();
    for c in string(value).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `now.strftime(format)` in the C locale. A directive that is not known stays as it is written.
pub(crate) fn strftime(now: OffsetDateTime, format: &str) -> String {
    let (month, weekday) = (now.month().to_string(), now.weekday().to_string());
    let hour12 = (now.hour() + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let bare = chars.next_if_eq(&'-').is_some();
        let number = |value: u32, width: usize| match bare {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        let text = match chars.next() {
            Some('d') => number(now.day().into(), 2),
            Some('m') => number(u8::from(now.month()).into(), 2),
            Some('y') => number(now.year().rem_euclid(100).unsigned_abs(), 2),
            Some('Y') => now.year().to_string(),
            Some('B') => month.clone(),
            Some('b') => month.chars().take(3).collect(),
            Some('A') => weekday.clone(),
            Some('a') => weekday.chars().take(3).collect(),
            Some('H') => number(now.hour().into(), 2),
            Some('I') => number(hour12.into(), 2),
            Some('p') => if now.hour() < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => number(now.minute().into(), 2),
            Some('S') => number(now.second().into(), 2),
            Some('j') => number(now.ordinal().into(), 3),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{}{other}", if bare { "-" } else { "" }),
            None => "%".to_owned(),
        };
        out.push_str(&text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn floats_as_python_writes_them() {
        // repr() of CPython 3.12.
        for (float, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (123_456_789_012_345.0, "123456789012345.0"),
            (0.0001, "0.0001"),
            (-0.0, "-0.0"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(repr(float), text);
        }
    }

    #[test]
    fn dates_as_python_writes_them() {
        let now = datetime!(2026-07-04 15:06:07 UTC);
        assert_eq!(strftime(now, "%d %b %Y"), "04 Jul 2026");
        assert_eq!(
            strftime(now, "%A, %B %-d at %I:%M:%S %p, day %j, 100%% %Q"),
            "Saturday, July 4 at 03:06:07 PM, day 185, 100% %Q"
        );
    }
}
