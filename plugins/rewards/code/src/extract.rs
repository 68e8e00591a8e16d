//! The code in a text.

/// The inside of the last fenced block that is closed, or of one that is not; else all of `text`.
pub fn code(text: &str) -> String {
    fenced(text).unwrap_or(text).to_owned()
}

/// The last fenced block.
fn fenced(text: &str) -> Option<&str> {
    let mut last = None;
    let mut open: Option<usize> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if line.trim_start().starts_with("```") {
            match open.take() {
                Some(from) => last = Some(&text[from..at]),
                None => open = Some(end),
            }
        }
        at = end;
    }
    last.or_else(|| open.map(|from| &text[from..]))
}

/// Whether `code` defines the function or class that `entry` begins with.
pub fn defines(code: &str, entry: &str) -> bool {
    let name = entry.split(['(', '.']).next().unwrap_or("");
    !name.is_empty()
        && code.lines().any(|line| {
            let defined = ["def ", "async def ", "class "].iter().find_map(|word| line.strip_prefix(word));
            let defined = defined.or_else(|| {
                line.strip_prefix(name).filter(|rest| rest.trim_start().starts_with('=')).map(|_| name)
            });
            defined
                .and_then(|rest| rest.trim_start().strip_prefix(name))
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
}

/// What is run one after the other, so that the model's code is there: it is the whole of it, or goes on where the prompt
/// ends.
pub fn programs(setup: &str, prompt: &str, completion: &str, entry: &str) -> Vec<String> {
    let code = code(completion);
    if prompt.is_empty() || defines(&code, entry) {
        return vec![setup.to_owned(), prompt.to_owned(), code];
    }
    vec![setup.to_owned(), format!("{prompt}{}{code}", if prompt.ends_with('\n') { "" } else { "\n" })]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_is_the_code() {
        assert_eq!(code("Try\n```python\na = 1\n```\nNo:\n```py\nb = 2\n```\nDone"), "b = 2\n");
        assert_eq!(code("```\nx\n```\n```python\ny = 1"), "x\n");
        assert_eq!(code("```python\ny = 1"), "y = 1");
        assert_eq!(code("    return 1\n"), "    return 1\n");
    }

    #[test]
    fn a_completion_is_whole_or_goes_on() {
        let prompt = "import math\ndef area(r):\n    \"\"\"Of a circle.\"\"\"\n";
        assert_eq!(programs("", prompt, "    return r", "area")[1], format!("{prompt}    return r"));
        let whole = "def area(r):\n    return r";
        assert_eq!(programs("s", prompt, whole, "area"), ["s", prompt, whole]);
        assert_eq!(programs("", "", "x = 1", "f"), ["", "", "x = 1"]);
    }

    #[test]
    fn what_defines_a_name() {
        assert!(defines("class Solution:\n    pass", "Solution().solve"));
        assert!(defines("f = lambda x: x", "f"));
        assert!(!defines("def area2(): pass", "area"));
        assert!(!defines("    def area(): pass", "area"));
        assert!(!defines("x = 1", ""));
    }
}
