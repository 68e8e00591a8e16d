//! Tool calls in the text of a turn, in the format of Hermes and Qwen models:
//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use molt_sandbox::ToolCall;
use serde::Deserialize;
use serde_json::Value;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

#[derive(Deserialize)]
struct Call {
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// The complete and well-formed tool calls of a turn, in order. A call that was cut off or is not valid JSON
/// is none: it stays visible in the text, where the environment can answer it.
pub(crate) fn parse(text: &str) -> Vec<ToolCall> {
    let blocks = text.split(OPEN).skip(1).filter_map(|rest| rest.split_once(CLOSE));
    blocks.filter_map(|(json, _)| call(json)).collect()
}

fn call(json: &str) -> Option<ToolCall> {
    let Call { name, arguments } = serde_json::from_str(json.trim()).ok()?;
    let arguments_json = match arguments {
        Value::Null => "{}".to_string(),
        // Some models write the arguments as JSON text within the JSON.
        Value::String(text) if serde_json::from_str::<Value>(&text).is_ok_and(|v| v.is_object()) => text,
        other => other.to_string(),
    };
    (!name.is_empty()).then_some(ToolCall { name, arguments_json })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text).into_iter().map(|call| (call.name, call.arguments_json)).collect()
    }

    fn one(name: &str, arguments: &str) -> Vec<(String, String)> {
        vec![(name.into(), arguments.into())]
    }

    #[test]
    fn calls_are_found_in_order_and_keep_their_arguments() {
        let text = "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": [2, \"é\"]}}\n\
                    </tool_call>\nand <tool_call>{\"name\":\"now\"}</tool_call>";
        let expected = [one("add", "{\"b\":1,\"a\":[2,\"é\"]}"), one("now", "{}")].concat();
        assert_eq!(parsed(text), expected);
    }

    #[test]
    fn arguments_as_text_are_unwrapped() {
        let text = r#"<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}</tool_call>"#;
        assert_eq!(parsed(text), one("f", "{\"x\": 1}"));
        let text = r#"<tool_call>{"name": "f", "arguments": "word"}</tool_call>"#;
        assert_eq!(parsed(text), one("f", "\"word\""));
    }

    #[test]
    fn what_is_cut_off_or_malformed_is_no_call() {
        for text in [
            "",
            "no call",
            "<tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}",
            "<tool_call>{\"name\": \"f\", </tool_call>",
            "<tool_call>{\"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"\"}</tool_call>",
            "<tool_call>[]</tool_call>",
            "</tool_call>{\"name\": \"f\"}<tool_call>",
        ] {
            assert_eq!(parsed(text), [], "{text}");
        }
        let healed = "<tool_call>{\"name\": \"lost\" <tool_call>{\"name\": \"f\"}</tool_call>";
        assert_eq!(parsed(healed), one("f", "{}"));
    }
}
