//! The way of an author who writes Python, JavaScript or TypeScript: from `new` to a component that keeps the
//! contract, and what is said when the source is wrong.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Whether it succeeded, and what it printed.
fn molt_plugin(args: &[&str], dir: &Path) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_molt-plugin")).args(args).current_dir(dir).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(printed).unwrap())
}

#[track_caller]
fn succeeds(args: &[&str], dir: &Path) -> String {
    let (success, printed) = molt_plugin(args, dir);
    assert!(success, "{args:?}: {printed}");
    printed
}

#[track_caller]
fn fails(args: &[&str], dir: &Path, expected: &[&str]) {
    let (success, printed) = molt_plugin(args, dir);
    assert!(!success, "{args:?}: {printed}");
    for expected in expected {
        assert!(printed.contains(expected), "{args:?}: {expected:?} is not in\n{printed}");
    }
}

fn project(kind: &str, lang: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    succeeds(&["new", "brevity", "--kind", kind, "--lang", lang], dir.path());
    dir
}

/// Puts `line` before every line that begins with `before`.
fn insert(file: &Path, before: &str, line: &str) -> String {
    let good = fs::read_to_string(file).unwrap();
    let bad = good.replace(before, &format!("{line}\n{before}"));
    assert_ne!(good, bad);
    fs::write(file, bad).unwrap();
    good
}

#[test]
fn python() {
    let dir = project("reward", "python");
    let source = dir.path().join("brevity/reward.py");
    let good = insert(&source, "        answer =", "        this is no Python");
    fails(
        &["build", "brevity"],
        dir.path(),
        &["File \"reward.py\", line ", "this is no Python", "SyntaxError"],
    );

    fs::write(&source, &good).unwrap();
    insert(&source, "        answer =", "        import decimal\n        assert sample.completion != \"ab\"");
    succeeds(&["build", "brevity"], dir.path());
    let run =
        |completion: &str| ["run", "brevity", "--label", "4", "--completion", completion].map(str::to_owned);
    let run = |completion: &str| molt_plugin(&run(completion).each_ref().map(String::as_str), dir.path()).1;
    let too_late = run("4");
    assert!(too_late.contains("No module named 'decimal' here: import it at the top"), "{too_late}");
    assert!(too_late.contains("import decimal"), "the line of the source: {too_late}");
    assert!(too_late.contains("[printed]   File \"reward.py\", line "), "{too_late}");
    assert_eq!(too_late.matches("No module named").count(), 1, "{too_late}");
    fs::write(&source, good.replace("        answer =", "        return 1.0\n        answer =")).unwrap();
    succeeds(&["build", "brevity"], dir.path());
    let told = run("4");
    assert!(told.contains("not of the contract's type") && told.contains("float"), "{told}");
    assert!(!told.contains("PyErr") && !told.contains("RUST_BACKTRACE"), "{told}");

    fs::write(&source, good).unwrap();
    fs::write(dir.path().join("brevity/requirements.txt"), "# nothing yet\n").unwrap();
    // The build's own Python does not take a module of the project for one of its own.
    fs::write(dir.path().join("brevity/types.py"), "raise SystemExit('evil')\n").unwrap();
    succeeds(&["build", "."], &dir.path().join("brevity"));
    fs::remove_file(dir.path().join("brevity/types.py")).unwrap();
    succeeds(&["build", "brevity"], dir.path());
    succeeds(&["check", "brevity"], dir.path());
    succeeds(&["test", "brevity"], dir.path());
    assert!(dir.path().join("brevity/molt/bindings/wit_world/imports/types.py").is_file());
    assert!(!dir.path().join("brevity/__pycache__").exists());
}

#[test]
fn typescript() {
    let dir = project("environment", "ts");
    let source = dir.path().join("brevity/environment.ts");
    let good = insert(&source, "    this.guesses++", "    this is no TypeScript");
    fails(&["build", "brevity"], dir.path(), &["environment.ts:", "this is no TypeScript"]);

    fs::write(&source, &good).unwrap();
    insert(
        &source,
        "    this.guesses++",
        "    console.log(\"said\", { text: action.text });\n    lost(action);",
    );
    fs::write(
        &source,
        fs::read_to_string(&source).unwrap() + "\nfunction lost(x: any) {\n  x.not.there;\n}\n",
    )
    .unwrap();
    let lines = fs::read_to_string(&source).unwrap();
    let place = lines.lines().position(|line| line.contains("x.not.there")).unwrap() + 1;
    succeeds(&["build", "brevity"], dir.path());
    fs::write(dir.path().join("turns.txt"), "50\n").unwrap();
    let (_, printed) = molt_plugin(&["run", "brevity", "--script", "turns.txt"], dir.path());
    for expected in ["said {\"text\":\"50\"}", &format!("at lost (environment.ts:{place})"), "of undefined"] {
        assert!(printed.contains(expected), "{expected:?} is not in\n{printed}");
    }

    fs::write(&source, good.replace("export const environment", "export const environments")).unwrap();
    fails(&["build", "brevity"], dir.path(), &["environment.ts", "No matching export", "\"environment\""]);

    fs::write(&source, format!("import \"node:fs\";\nimport \"absent\";\n{good}")).unwrap();
    fails(&["build", "brevity"], dir.path(), &["runs without Node.js", "`npm install absent`"]);

    // A name of the prelude is the author's to use.
    fs::write(&source, good + "\nexport const random = 1, stderr = 2, lines = 3;\n").unwrap();
    succeeds(&["build", "brevity"], dir.path());
    succeeds(&["check", "brevity"], dir.path());
    succeeds(&["test", "brevity"], dir.path());
}

#[test]
fn javascript() {
    let dir = project("estimator", "js");
    let source = dir.path().join("brevity/estimator.js");
    let good = fs::read_to_string(&source).unwrap();
    fs::write(&source, good.replace("  describe() {", "  described() {")).unwrap();
    fails(&["build", "brevity"], dir.path(), &["exports `estimator` without", "`describe`"]);

    // Code in files of one's own, and what npm puts into node_modules.
    let package = dir.path().join("brevity/node_modules/sums");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("package.json"), r#"{"name": "sums", "main": "index.js"}"#).unwrap();
    fs::write(package.join("index.js"), "exports.zero = 0;\n").unwrap();
    fs::write(
        dir.path().join("brevity/alone.js"),
        "import { zero } from \"sums\";\nexport const ALONE = zero;\n",
    )
    .unwrap();
    let split = format!("import {{ ALONE }} from \"./alone.js\";\n{}", good.replace(": 0;", ": ALONE;"));
    assert!(split.contains(": ALONE;"));
    fs::write(&source, split).unwrap();
    succeeds(&["build", "brevity"], dir.path());
    succeeds(&["check", "brevity"], dir.path());
    succeeds(&["test", "brevity"], dir.path());
}
