//! What a turn of the model is: calls of the tool, readable or not, or an answer.

use molt_plugin::environment::Action;
use molt_plugin::types::ToolCall;
use serde::Deserialize;
use serde_json::Value;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Calls(Vec<Call>),
    /// No call in it: the final answer.
    Answer,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Code to run.
    Python(String),
    /// What is wrong with it, in a sentence for the model.
    Malformed(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    code: String,
}

impl Turn {
    /// The host hands over the calls that it could read; of the others only the text tells.
    pub(crate) fn read(action: &Action) -> Self {
        if !action.tool_calls.is_empty() {
            return Turn::Calls(action.tool_calls.iter().map(Call::read).collect());
        }
        match action.text.rsplit_once(OPEN) {
            Some((_, rest)) => Turn::Calls(vec![Call::Malformed(why_unreadable(rest, action.truncated))]),
            None => Turn::Answer,
        }
    }
}

impl Call {
    fn read(call: &ToolCall) -> Self {
        if call.name != "python" {
            return Call::Malformed(format!(
                "There is no tool called {:?}; the only one is python.",
                call.name
            ));
        }
        match serde_json::from_str::<Arguments>(&call.arguments_json) {
            Ok(Arguments { code }) => Call::Python(code),
            Err(error) => Call::Malformed(format!("The arguments of the call cannot be used: {error}.")),
        }
    }
}

/// Why what follows the beginning of a call is none.
fn why_unreadable(rest: &str, truncated: bool) -> String {
    let Some((json, _)) = rest.split_once(CLOSE) else {
        return if truncated {
            "The call was cut off, because the turn was too long.".into()
        } else {
            format!("The call does not end in {CLOSE}.")
        };
    };
    match serde_json::from_str::<Value>(json.trim()) {
        Err(error) => format!("The call is not valid JSON: {error}."),
        Ok(_) => "The call has no name of a tool.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, truncated: bool) -> Turn {
        Turn::read(&Action { text: text.into(), tool_calls: vec![], truncated })
    }

    fn call(name: &str, arguments: &str) -> Call {
        Call::read(&ToolCall { name: name.into(), arguments_json: arguments.into() })
    }

    #[test]
    fn a_turn_without_a_call_is_the_answer() {
        assert_eq!(read("The answer is 4.", false), Turn::Answer);
        assert_eq!(read("", true), Turn::Answer);
    }

    #[test]
    fn the_code_of_a_call_is_its_argument() {
        assert_eq!(call("python", r#"{"code": "print(1)\n"}"#), Call::Python("print(1)\n".into()));
    }

    #[test]
    fn what_is_wrong_with_a_call_is_told() {
        for (call, expected) in [
            (call("Python", "{}"), "no tool called \"Python\""),
            (call("python", "{}"), "missing field `code`"),
            (call("python", r#"{"code": 1}"#), "expected a string"),
            (call("python", r#"{"code": "", "input": ""}"#), "unknown field `input`"),
        ] {
            assert!(matches!(&call, Call::Malformed(why) if why.contains(expected)), "{call:?} {expected}");
        }
        for (text, truncated, expected) in [
            ("<tool_call>{\"name\": \"python\"", true, "cut off"),
            ("<tool_call>{\"name\": \"python\"}", false, "does not end"),
            ("<tool_call>{\"name\": python}</tool_call>", false, "not valid JSON: expected value at line 1"),
            ("<tool_call>{\"code\": \"1\"}</tool_call> and so on", false, "no name"),
        ] {
            let Turn::Calls(calls) = read(text, truncated) else { panic!("{text} is an answer") };
            assert!(
                matches!(&calls[..], [Call::Malformed(why)] if why.contains(expected)),
                "{calls:?} {expected}"
            );
        }
    }
}
