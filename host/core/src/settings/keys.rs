//! The list of all keys of a command, read off the schema of its settings.

use super::Settings;
use serde_json::Value as Json;
use std::fmt;

/// Stands for any name in the path of a key, as in `plugins.only.NAME.cpu_ms`.
pub const ANY: &str = "NAME";

/// One setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// The segments of the dotted name; [`ANY`] matches every segment.
    pub path: Vec<String>,
    pub kind: Kind,
    /// As a flag would give it; `None` where nothing is set.
    pub default: Option<String>,
    /// The doc comment.
    pub doc: String,
}

/// What a value has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Switch,
    /// A whole number from 0 to `max`.
    Count {
        max: i64,
    },
    Number,
    Text,
    /// One of these words.
    Choice(Vec<String>),
    /// Any number of values of one kind.
    List(Box<Kind>),
    /// A number, a switch or a word: what it has to be, a plugin says.
    Parameter,
}

impl Key {
    /// The dotted name.
    pub fn name(&self) -> String {
        self.path.join(".")
    }

    /// The path with the segments of `given` where [`ANY`] stands, as somebody who gave `given` would write it.
    pub(super) fn path_like(&self, given: &[String]) -> Vec<String> {
        let like = |(at, segment): (usize, &String)| {
            given.get(at).filter(|_| segment == ANY).unwrap_or(segment).clone()
        };
        self.path.iter().enumerate().map(like).collect()
    }

    /// This key with the last segment of `path` for its name, if it is of a map in the section that `path` names.
    pub fn in_map(&self, path: &[String]) -> Option<String> {
        match (self.path.as_slice(), path) {
            ([section, map, any], [given, name]) if any == ANY && section == given => {
                Some(format!("{section}.{map}.{name}"))
            }
            _ => None,
        }
    }

    /// Whether `path` is the path of this key, or the beginning of it.
    pub(super) fn starts_with(&self, path: &[String]) -> bool {
        path.len() <= self.path.len() && path.iter().zip(&self.path).all(|(p, k)| k == ANY || p == k)
    }

    /// The path that the dotted `name` gives for this key. What stands for [`ANY`] may contain dots.
    pub fn path_of(&self, name: &str) -> Option<Vec<String>> {
        let Some(any) = self.path.iter().position(|segment| segment == ANY) else {
            return (self.name() == name).then(|| self.path.clone());
        };
        let ends =
            |segments: &[String]| segments.iter().map(|segment| format!(".{segment}")).collect::<String>();
        let (before, after) = (self.path[..any].join("."), ends(&self.path[any + 1..]));
        let given = name.strip_prefix(&format!("{before}."))?.strip_suffix(&after)?;
        let mut path = self.path.clone();
        path[any] = (!given.is_empty()).then(|| given.to_owned())?;
        Some(path)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Switch => f.write_str("true or false"),
            Kind::Count { max: i64::MAX } => f.write_str("a whole number of at least 0"),
            Kind::Count { max } => write!(f, "a whole number from 0 to {max}"),
            Kind::Number => f.write_str("a number"),
            Kind::Text => f.write_str("a string"),
            Kind::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Kind::List(of) => write!(f, "a list, each {of}"),
            Kind::Parameter => f.write_str("a number, true or false, or a word"),
        }
    }
}

/// All keys of a command, section by section in alphabetical order.
pub fn keys<S: Settings>() -> Vec<Key> {
    let schema = schemars::schema_for!(S).to_value();
    let defaults = serde_json::to_value(S::default()).unwrap_or(Json::Null);
    let mut keys = Vec::new();
    collect(&schema, &schema, &mut Vec::new(), Some(&defaults), "", &mut keys);
    keys
}

/// Walks one node of the schema `root`: a section recurses, a value becomes a key.
fn collect(
    root: &Json,
    node: &Json,
    path: &mut Vec<String>,
    default: Option<&Json>,
    doc: &str,
    keys: &mut Vec<Key>,
) {
    let doc = node["description"].as_str().filter(|_| doc.is_empty()).unwrap_or(doc);
    let target = follow(root, node);
    if let Some(properties) = target["properties"].as_object() {
        for (name, property) in properties {
            path.push(name.clone());
            collect(root, property, path, default.and_then(|d| d.get(name)), "", keys);
            path.pop();
        }
    } else if target["additionalProperties"].is_object() {
        path.push(ANY.to_owned());
        collect(root, &target["additionalProperties"], path, None, doc, keys);
        path.pop();
    } else {
        keys.push(Key {
            path: path.clone(),
            kind: kind(root, target),
            default: default.and_then(text),
            doc: doc.replace('\n', " "),
        });
    }
}

/// The definition that a `$ref` names, or the node itself.
fn follow<'a>(root: &'a Json, node: &'a Json) -> &'a Json {
    let pointer = node["$ref"].as_str().and_then(|r| r.strip_prefix('#'));
    pointer.and_then(|p| root.pointer(p)).unwrap_or(node)
}

fn kind(root: &Json, node: &Json) -> Kind {
    let words = |list: &Json, of: fn(&Json) -> &Json| -> Option<Vec<String>> {
        list.as_array()?.iter().map(|item| of(item).as_str().map(str::to_owned)).collect()
    };
    if let Some(words) = words(&node["enum"], |v| v).or_else(|| words(&node["oneOf"], |v| &v["const"])) {
        return Kind::Choice(words);
    }
    // An optional word is any of its definition and null; another optional value has the type ["integer", "null"].
    if let Some(some) = node["anyOf"].as_array().and_then(|any| any.iter().find(|of| of["type"] != "null")) {
        return kind(root, follow(root, some));
    }
    let types = &node["type"];
    if types.as_array().is_some_and(|types| types.len() > 2) {
        return Kind::Parameter;
    }
    match types.as_str().or_else(|| types[0].as_str()) {
        Some("boolean") => Kind::Switch,
        Some("integer") => {
            let narrow = node["format"] == "uint32";
            Kind::Count { max: if narrow { i64::from(u32::MAX) } else { i64::MAX } }
        }
        Some("number") => Kind::Number,
        Some("array") => Kind::List(Box::new(kind(root, follow(root, &node["items"])))),
        _ => Kind::Text,
    }
}

/// A default as a flag would give it, `None` where it says that nothing is set.
fn text(default: &Json) -> Option<String> {
    match default {
        Json::Null => None,
        Json::String(s) => (!s.is_empty()).then(|| s.clone()),
        Json::Array(items) if items.is_empty() => None,
        Json::Array(items) => Some(items.iter().filter_map(text).collect::<Vec<_>>().join(",")),
        other => Some(other.to_string()),
    }
}

/// The known name that `given` most likely meant.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let last = |name: &'a str| name.rsplit('.').next().unwrap_or(name);
    let score = |name: &'a str| {
        let whole = strsim::normalized_damerau_levenshtein(given, name);
        let given_last = given.rsplit('.').next().unwrap_or(given);
        // The right word in the wrong section, or without one, counts almost as much.
        whole.max(0.9 * strsim::normalized_damerau_levenshtein(given_last, last(name)))
    };
    let best = known
        .into_iter()
        .map(|name| (score(name), name))
        // Of two that are as near, the one with fewer sections is meant more often.
        .max_by(|a, b| {
            a.0.total_cmp(&b.0).then_with(|| b.1.matches('.').count().cmp(&a.1.matches('.').count()))
        })?;
    (best.0 >= 0.6).then(|| best.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{EvalSettings, SftSettings, TrainSettings};

    fn find(name: &str) -> Key {
        keys::<TrainSettings>().into_iter().find(|k| k.name() == name).expect(name)
    }

    #[test]
    fn keys_have_kind_default_and_doc() {
        let queue = find("train.async_queue_size");
        assert_eq!(queue.kind, Kind::Count { max: i64::MAX });
        assert_eq!(queue.default.as_deref(), Some("1"));
        assert!(queue.doc.starts_with("Training batches that generation may run ahead"), "{}", queue.doc);
        assert_eq!(find("algo.importance").kind, Kind::Choice(vec!["sampled".into(), "old".into()]));
        let optional = find("algo.kl.estimator").kind;
        assert_eq!(optional, Kind::Choice(vec!["k1".into(), "k2".into(), "k3".into()]));
        assert!(find("algo.importance").doc.starts_with("What a token's probability is compared with"));
        assert_eq!(find("optim.schedule").default.as_deref(), Some("constant"));
        assert_eq!(
            find("eval.k").kind,
            Kind::List(Box::new(Kind::Count { max: i64::from(u32::MAX) })),
            "a u32 keeps its range"
        );
        assert_eq!(find("eval.k").default.as_deref(), Some("1"));
        assert_eq!(find("run.dir").default, None);
        assert_eq!(find("model.path").default, None);
        assert_eq!(find("plugins.only.NAME.cpu_ms").kind, Kind::Count { max: i64::MAX });
        assert_eq!(find("plugins.limits.cpu_ms").default.as_deref(), Some("2000"));
        assert_eq!(find("algo.parameters.NAME").kind, Kind::Parameter);
    }

    #[test]
    fn every_key_of_every_command_has_a_doc() {
        let all = [keys::<TrainSettings>(), keys::<SftSettings>(), keys::<EvalSettings>()].concat();
        for key in all {
            assert!(key.path.len() >= 2, "{} is in no section", key.name());
            // A bare enum's default names the words; everything else must be documented.
            assert!(!key.doc.is_empty(), "{} has no doc comment", key.name());
        }
    }

    #[test]
    fn the_nearest_name_is_found_across_sections() {
        let names: Vec<String> = keys::<TrainSettings>().iter().map(Key::name).collect();
        let near = |given| nearest(given, names.iter().map(String::as_str));
        assert_eq!(near("train.async_queue_sz").as_deref(), Some("train.async_queue_size"));
        assert_eq!(near("async_queue_size").as_deref(), Some("train.async_queue_size"));
        assert_eq!(near("estimator").as_deref(), Some("algo.estimator"));
        assert_eq!(near("train.lr").as_deref(), Some("optim.lr"));
        assert_eq!(near("zzzzzz"), None);
    }

    #[test]
    fn a_name_in_a_map_may_contain_dots() {
        let key = find("plugins.only.NAME.cpu_ms");
        let path = key.path_of("plugins.only.my.plugin.cpu_ms").expect("matches");
        assert_eq!(path, ["plugins", "only", "my.plugin", "cpu_ms"]);
        let parameter = find("algo.parameters.NAME");
        assert_eq!(
            parameter.path_of("algo.parameters.gamma").expect("matches"),
            ["algo", "parameters", "gamma"]
        );
        assert_eq!(
            (parameter.path_of("algo.parameters"), parameter.path_of("algo.parameters.")),
            (None, None)
        );
        assert_eq!(key.path_of("plugins.only..cpu_ms"), None);
        assert_eq!(key.path_of("plugins.only.cpu_ms"), None);
    }
}
