//! JavaScript and TypeScript: esbuild makes one module of the source and what it imports, and
//! componentize-qjs makes a component of that and the QuickJS engine.

use super::tools;
use crate::error::{AuthorError, OrAuthor};
use crate::project::{Lang, Project};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names the installed tools; the versions are in `js/package-lock.json`.
pub(super) const TOOLS: (&str, &str) = ("componentize-qjs", "0.4.5");

/// What npm installs.
pub(super) const PACKAGES: [(&str, &str); 2] = [
    ("package.json", include_str!("js/package.json")),
    ("package-lock.json", include_str!("js/package-lock.json")),
];

/// What a build works with, in a directory of its own.
const SCRIPTS: [(&str, &str); 6] = [
    ("build.mjs", include_str!("js/build.mjs")),
    ("prelude.js", include_str!("js/prelude.js")),
    ("world.wit", include_str!("js/world.wit")),
    ("wasi-cli.wit", include_str!("js/wasi-cli.wit")),
    ("wasi-io.wit", include_str!("js/wasi-io.wit")),
    ("wasi-random.wit", include_str!("js/wasi-random.wit")),
];

pub(super) fn build(project: &Project, out: &Path) -> Result<(), AuthorError> {
    let extension = if project.lang == Lang::Ts { "ts" } else { "js" };
    let entry = super::entry(project, &format!("{}.{extension}", project.kind.interface()))?;
    let tool = tools::npm(TOOLS.0, TOOLS.1, &PACKAGES)?;
    let help = "free space in the directory for temporary files, or set TMPDIR";
    let scratch = tempfile::tempdir().or_failed("the build has no place to work in", help)?;
    for (name, contents) in SCRIPTS {
        fs::write(scratch.path().join(name), contents)
            .or_failed("the build has no place to work in", help)?;
    }
    let mut node = Command::new("node");
    node.arg(scratch.path().join("build.mjs")).arg(&tool.dir).arg(&entry).arg(project.wit());
    node.arg(project.kind.world()).arg(out);
    let output = node
        .stdin(Stdio::null())
        .output()
        .or_user("node cannot be started", "install Node.js 20 or newer")?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).trim().to_owned();
    if output.status.success() {
        if !printed.is_empty() {
            eprintln!("{printed}");
        }
        return Ok(());
    }
    Err(AuthorError {
        because: vec![printed],
        ..AuthorError::failed(
            format!("{} cannot be built", project.name),
            "correct the source; what it needs of npm goes into its own node_modules",
        )
    })
}
