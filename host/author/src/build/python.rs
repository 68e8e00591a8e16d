//! Python: componentize-py runs the source's imports once, and makes a component of CPython as it then is.

use super::tools;
use crate::error::{AuthorError, OrAuthor};
use crate::project::{Kind, Project};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Name, version, and the requirements of pip with the hashes of its files.
pub(super) const PINNED: (&str, &str, &str) =
    ("componentize-py", "0.25.1", include_str!("python/requirements.txt"));

/// The Python that the tool has inside.
const PYTHON: &str = "3.14";

const NO_PLACE: &str = "the build has no directory for temporary files to work in";

/// What is loaded first; the plugin's source follows from it.
const ENTRY: &str = include_str!("python/molt_entry.py");

pub(super) fn build(project: &Project, out: &Path) -> Result<(), AuthorError> {
    let module = project.kind.interface().replace('-', "_");
    super::entry(project, &format!("{module}.py"))?;
    let tool = tools::pinned(PINNED)?;
    let packages = packages(project)?;
    let place = || tempfile::tempdir().or_failed(NO_PLACE, "free space there, or set TMPDIR");
    let (scratch, empty) = (place()?, place()?);
    // The tool runs elsewhere: a module of the project must not stand in for one of Python's.
    let absolute = |path: &Path| {
        path.canonicalize().or_failed(format!("cannot read {}", path.display()), "look at its permissions")
    };
    let (dir, wit) = (absolute(&project.dir)?, absolute(&project.wit())?);
    let out = absolute(out)?;
    for (name, contents) in
        [("molt_entry.py", ENTRY), ("molt_plugin_source.py", &constants(project.kind, &module))]
    {
        fs::write(scratch.path().join(name), contents)
            .or_failed(NO_PLACE, "free space there, or set TMPDIR")?;
    }
    let componentize = |arguments: &[&str]| {
        let mut command = tool.python(empty.path());
        command.args(["-c", "import componentize_py; componentize_py.script()", "--quiet"]);
        command.arg("--wit-path").arg(&wit);
        command.arg("--world").arg(project.kind.world()).args(arguments);
        // Its own stack says nothing to an author.
        command.env("RUST_BACKTRACE", "0").env_remove("VIRTUAL_ENV").stdin(Stdio::null());
        command
    };
    // For editors and for tests in plain Python. They appear with the first build, even one that fails.
    let bindings = dir.join("molt/bindings");
    if bindings.is_dir() {
        fs::remove_dir_all(&bindings)
            .or_failed(format!("{} cannot be replaced", bindings.display()), "make it writable")?;
    }
    run(project, componentize(&["bindings"]).arg(&bindings))?;
    let mut command = componentize(&["componentize", "molt_entry"]);
    command.arg("--output").arg(out);
    command.arg("--python-path").arg(&dir).arg("--python-path").arg(scratch.path());
    if let Some(packages) = packages {
        command.arg("--python-path").arg(packages);
    }
    run(project, &mut command)
}

/// What the entry has to know: componentize-py mounts the first directory of the path as `/0`.
fn constants(kind: Kind, module: &str) -> String {
    let class = match kind {
        Kind::Reward | Kind::Judge | Kind::CodeReward => "Reward",
        Kind::GroupReward => "GroupReward",
        Kind::Environment | Kind::CodeEnvironment => "Episode",
        Kind::Estimator => "Estimator",
        Kind::Loss => "Loss",
        Kind::Interpreter => "Session",
    };
    format!("ROOT = \"/0\"\nMODULE = \"{module}\"\nCLASS = \"{class}\"\n")
}

fn run(project: &Project, command: &mut Command) -> Result<(), AuthorError> {
    let output = command.output().or_user("python3 cannot be started", "install Python 3.10 or newer")?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [output.stdout, output.stderr].concat();
    Err(AuthorError {
        because: vec![readable(&String::from_utf8_lossy(&printed))],
        ..AuthorError::failed(
            format!("{} cannot be built", project.name),
            "correct the source; it was imported with nothing but itself, the standard library and \
             requirements.txt at hand",
        )
    })
}

/// What Python said, without the frames of the tool and of the entry, and with the paths that the author knows.
fn readable(printed: &str) -> String {
    let (_, said) = printed.split_once("AssertionError: ").unwrap_or(("", printed));
    let said = said.split("\n\nCaused by:").next().unwrap_or(said);
    let mut kept = String::new();
    let mut skipping = false;
    for line in said.lines() {
        if line.trim_start().starts_with("File \"") {
            skipping = line.contains("/molt_entry.py\"") || line.contains("<frozen importlib");
        } else if !line.starts_with("    ") {
            skipping = false;
        }
        if !skipping {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept.replace("\"/0/", "\"").trim().to_owned()
}

/// What requirements.txt asks for, installed once for all projects that ask for the same.
fn packages(project: &Project) -> Result<Option<PathBuf>, AuthorError> {
    let Ok(requirements) = fs::read_to_string(project.dir.join("requirements.txt")) else { return Ok(None) };
    let wanted = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines: Vec<&str> = requirements.lines().map(str::trim).filter(wanted).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    if let Some(file) = lines.iter().find(|line| names_file(line)) {
        return Err(AuthorError::user(
            format!("requirements.txt has `{file}`, and what lies in other files could change unseen"),
            "write the packages themselves, best with their versions; modules of your own lie in the project",
        ));
    }
    let digest = Sha256::digest(format!("{PYTHON}\n{requirements}"));
    let version: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // Only what has no compiled part: there is no machine that it would be compiled for.
    let only_python =
        ["--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi", "none"];
    let requirements = project.dir.join("requirements.txt");
    let requirements = std::path::absolute(&requirements)
        .or_failed(format!("cannot read {}", requirements.display()), "look at its permissions")?;
    let mut arguments: Vec<&str> = only_python.to_vec();
    arguments.extend(["--python-version", PYTHON, "--requirement"]);
    let requirements = requirements.to_string_lossy();
    arguments.push(&requirements);
    let tool = tools::packages("python-packages", &version, &arguments).map_err(|error| AuthorError {
        help:
            "give packages of pure Python in requirements.txt: compiled ones, such as numpy, do not run here"
                .into(),
        ..error
    })?;
    Ok(Some(tool.dir))
}

/// Whether a line of requirements.txt sends pip to another file, of which the name of the installed packages would
/// not speak.
fn names_file(line: &str) -> bool {
    let option = line.split([' ', '=']).next().unwrap_or(line);
    let files = ["-r", "--requirement", "-c", "--constraint", "-e", "--editable"];
    let short = ["-r", "-c", "-e"].iter().any(|name| line.starts_with(name));
    short || files.contains(&option) || line.starts_with(['.', '/', '~']) || line.contains("file:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_packages_and_no_files() {
        for file in
            ["-r other.txt", "-rother.txt", "-e .", "--constraint=c.txt", "./local", "a @ file:///tmp/a"]
        {
            assert!(names_file(file), "{file}");
        }
        for package in ["sympy==1.14", "a>=2; python_version > '3'", "--index-url https://example.org/simple"]
        {
            assert!(!names_file(package), "{package}");
        }
    }

    #[test]
    fn an_error_of_the_source_is_told_as_python_tells_it() {
        let printed = "Traceback (most recent call last):\n  File \"bin/componentize-py\", line 8\n    \
                       sys.exit(script())\nAssertionError:   File \"/0/reward.py\", line 4\n    \
                       def score(self, s)\n                      ^\nSyntaxError: expected ':'\n\n\n\
                       Caused by:\n    SyntaxError: expected ':' (reward.py, line 4)\n";
        assert_eq!(
            readable(printed),
            "File \"reward.py\", line 4\n    def score(self, s)\n                      ^\nSyntaxError: expected ':'"
        );
        assert_eq!(readable("No module named componentize_py\n"), "No module named componentize_py");
    }

    #[test]
    fn frames_that_are_not_the_authors_are_left_out() {
        let printed = "AssertionError: Traceback (most recent call last):\n  File \"/1/molt_entry.py\", line 17, in <module>\n    \
                       specification.loader.exec_module(module)\n    ~~~~^^^^\n  File \"<frozen importlib._bootstrap_external>\", line 759, in exec_module\n  \
                       File \"/0/reward.py\", line 3, in <module>\n    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero\n\n\nCaused by: x";
        assert_eq!(
            readable(printed),
            "Traceback (most recent call last):\n  File \"reward.py\", line 3, in <module>\n    1 / 0\n    ~~^~~\n\
             ZeroDivisionError: division by zero"
        );
    }
}
