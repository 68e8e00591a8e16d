//! What the model is told: of the tool, and of what came out of it.

use molt_plugin::code::{Output, Stopped};
use molt_plugin::types::{Message, Role};

/// Characters of a result that the model gets to see; the middle of a longer one is left out.
const SHOWN: usize = 4000;

/// In the tags that models with tools are trained on.
const TOOL: &str = r#"You can run Python to calculate. The tool, as JSON within XML tags:
<tools>
{"type": "function", "function": {"name": "python", "description": "Runs Python 3 with its standard library, without files, network or other packages. Shows what the code prints and the value of its last expression. Names stay defined from call to call.", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}
</tools>"#;

/// How a call looks.
pub(crate) const FORMAT: &str = r#"Call it with one JSON object within tags, in which line breaks of the code are \n, and then stop:
<tool_call>
{"name": "python", "arguments": {"code": "x = 2 + 3\nprint(x)"}}
</tool_call>"#;

/// How the answer looks.
const ANSWER: &str = "A turn without a call is your final answer. End it with the result in \\boxed{}.";

/// With the result of the last but one turn.
pub(crate) const LAST_TURN: &str = "This was the last call. Give your final answer in \\boxed{} now.";

/// The messages of the row, with what the model has to know in the system message.
pub(crate) fn prompt(mut messages: Vec<Message>) -> Vec<Message> {
    let tool = format!("{TOOL}\n{FORMAT}\n{ANSWER}");
    match messages.first_mut() {
        Some(first) if first.role == Role::System => {
            first.content = format!("{}\n\n{tool}", first.content.trim_end());
        }
        _ => messages.insert(0, Message::new(Role::System, tool)),
    }
    messages
}

/// What code did: what it printed, then the value of its last expression or its error.
pub(crate) fn output(output: &Output) -> String {
    let mut text = output.printed.clone();
    for part in [&output.value, &output.error].into_iter().flatten() {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(part);
    }
    let text = text.trim_end();
    if text.is_empty() { "The code ran, and printed nothing.".into() } else { shortened(text) }
}

/// Why code was stopped.
pub(crate) fn stopped(stopped: &Stopped) -> String {
    let why = match stopped {
        Stopped::Time(ms) => format!("it ran for more than {ms} ms"),
        Stopped::Memory(mib) => format!("it needed more than {mib} MiB of memory"),
        Stopped::Output(kib) => format!("it printed more than {kib} KiB"),
        Stopped::Crashed(why) => format!("the interpreter crashed ({})", shortened(why)),
    };
    format!("The code was stopped: {why}. All names are undefined again.")
}

fn shortened(text: &str) -> String {
    let length = text.chars().count();
    if length <= SHOWN {
        return text.to_owned();
    }
    let head: String = text.chars().take(SHOWN / 2).collect();
    let tail: String = text.chars().skip(length - SHOWN / 2).collect();
    format!("{head}\n… {} characters left out …\n{tail}", length - SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(printed: &str, value: Option<&str>, error: Option<&str>) -> String {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        output(&Output { printed: printed.into(), value: owned(value), error: owned(error) })
    }

    #[test]
    fn a_result_reads_like_a_terminal() {
        assert_eq!(told("a\n", Some("2"), None), "a\n2");
        assert_eq!(told("a", None, Some("Error: x")), "a\nError: x");
        assert_eq!(told("", Some("2"), None), "2");
        assert_eq!(told("\n", None, None), "The code ran, and printed nothing.");
    }

    #[test]
    fn the_middle_of_a_long_result_is_left_out() {
        let text = told(&format!("{}b", "é".repeat(5000)), None, None);
        assert!(
            text.starts_with("éé") && text.ends_with('b') && text.contains("1001 characters left out"),
            "{text}"
        );
        assert!(text.chars().count() < SHOWN + 50);
    }

    #[test]
    fn the_tool_is_in_the_system_message() {
        let messages = prompt(vec![Message::user("1 + 1?")]);
        assert_eq!((messages.len(), messages[0].role), (2, Role::System));
        assert!(messages[0].content.contains("<tools>") && messages[0].content.contains("<tool_call>"));
        let messages = prompt(vec![Message::new(Role::System, "Be brief.\n"), Message::user("1 + 1?")]);
        assert_eq!(messages.len(), 2);
        assert!(
            messages[0].content.starts_with("Be brief.\n\nYou can run Python"),
            "{}",
            messages[0].content
        );
    }

    #[test]
    fn what_models_are_shown_is_json() {
        let json = |text: &str, open: &str, close: &str| {
            let inside =
                text.split_once(open).and_then(|(_, rest)| rest.split_once(close)).map(|(json, _)| json);
            serde_json::from_str::<serde_json::Value>(inside.expect("tags")).expect("JSON")
        };
        assert_eq!(json(TOOL, "<tools>", "</tools>")["function"]["name"], "python");
        assert_eq!(json(FORMAT, "<tool_call>", "</tool_call>")["arguments"]["code"], "x = 2 + 3\nprint(x)");
    }

    #[test]
    fn being_stopped_is_told_with_its_limit() {
        assert!(stopped(&Stopped::Time(500)).contains("500 ms"));
        assert!(stopped(&Stopped::Memory(64)).contains("64 MiB"));
        assert!(stopped(&Stopped::Output(9)).contains("9 KiB"));
        assert!(stopped(&Stopped::Crashed("stack".into())).contains("(stack)"));
    }
}
