//! What a stranger's file is called, and what it says of itself, is no command to the terminal.

use crate::home::{Home, plugin};

/// Clears the screen, and its short form in one character.
const NAME: &str = "evil\x1b[2J\u{9b}1A\r";

#[test]
fn names_of_files_are_shown_without_control_characters() {
    let home = Home::new();
    let good = home.write(&format!("plugins/{NAME}.wasm"), &plugin(Some("1\x1b[1A"), "a"));
    let bad = home.write(&format!("plugins/bad{NAME}.wasm"), b"hello");
    let two_lines = home.write("plugins/two\nlines.wasm", &plugin(None, "b"));
    for (arguments, code, told) in [
        (vec!["list"], 0, "two lines.wasm"),
        (vec!["list"], 0, "warning: plugins/badevil[2J1A.wasm is not a WebAssembly file"),
        (vec!["inspect", &good], 0, "plugins/evil[2J1A.wasm"),
        (vec!["inspect", &two_lines], 0, "plugins/two lines.wasm"),
        (vec!["inspect", &bad], 2, "badevil[2J1A.wasm cannot be inspected"),
        (vec!["inspect", NAME], 0, "evil[2J1A"),
        (vec!["add", &good], 0, "reward evil[2J1A"),
        (vec!["add", &bad], 2, "badevil[2J1A.wasm cannot be added"),
        (vec!["run", &bad], 2, "badevil[2J1A.wasm cannot be used"),
        (vec!["check", &bad], 2, "badevil[2J1A.wasm cannot be used"),
    ] {
        let ran = home.molt(&arguments);
        assert_eq!(ran.code, code, "{arguments:?}: {}", ran.text);
        assert!(ran.text.contains(told), "{arguments:?}: {:?} lacks {told}", ran.text);
        let shown = ran.text.chars().all(|c| c == '\n' || !c.is_control());
        assert!(shown, "{arguments:?}: {:?}", ran.text);
    }
}
