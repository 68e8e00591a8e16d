//! C: zig's clang and C library make the core module.

use super::component::{self, World};
use super::{lines, tools};
use crate::error::{AuthorError, OrAuthor};
use crate::project::Project;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const TOOL: &str = "ziglang";

/// Name, version, and the requirements of pip with the hashes of its files.
pub(super) const PINNED: (&str, &str, &str) = (TOOL, "0.17.1", include_str!("c/requirements.txt"));

pub(super) fn build(project: &Project, out: &Path) -> Result<(), AuthorError> {
    let dir = &project.dir;
    let entry = format!("{}.c", project.kind.interface());
    super::entry(project, &entry)?;
    let tool = tools::pinned(PINNED)?;

    let world = World::of(project)?;
    let generated = Path::new("molt/build");
    world.generate(options(&world).build(), &dir.join(generated), <[u8]>::to_vec)?;

    let scratch = component::scratch()?;
    // The module has its name from the file's.
    let core = scratch.path().join("core.wasm");
    // Not through Python, which would look for its modules in the project first.
    let mut zig = Command::new(tool.dir.join(TOOL).join("zig"));
    zig.current_dir(dir).args(["cc", "--target=wasm32-wasi", "-mexec-model=reactor"]);
    // zig leaves `assert` out of optimized code.
    zig.arg("-UNDEBUG");
    zig.args(["-std=c17", "-O3", "-Wall", "-Wextra", "-gline-tables-only"]);
    // In a backtrace, files are relative to the project, whoever built it and where.
    let here = dir.canonicalize().or_failed(format!("cannot read {}", dir.display()), "")?;
    zig.arg(format!("-ffile-prefix-map={}={}", here.display(), lines::HERE));
    zig.arg(format!("-ffile-prefix-map={}={TOOL}", tool.dir.display()));
    // zig would take 16 MiB. The stack lies below the data: one that is too deep ends the call.
    zig.arg("-Wl,-z,stack-size=1048576");
    zig.arg("-I").arg(generated).arg("-I").arg("molt/sdk/c").args(sources(dir)?);
    zig.arg(generated.join("molt.c")).arg(generated.join("molt_component_type.o")).arg("-o").arg(&core);
    // The C library is built once.
    let cache = tool.dir.join("cache");
    zig.env("ZIG_GLOBAL_CACHE_DIR", &cache).env("ZIG_LOCAL_CACHE_DIR", &cache);
    let help = format!(
        "the compiler says above what is wrong; an undefined symbol `exports_…` is a function of the contract that \
         {entry} must have"
    );
    component::compile(project, zig.stdout(Stdio::null()), &help)?;

    let core = fs::read(&core).or_failed("the compiler wrote nothing", "")?;
    let core = lines::own(&core).or_failed("the compiler's module is not as expected", "")?;
    fs::write(out, component::component(&core, "import no function that the contract does not have")?)
        .or_failed(format!("cannot write {}", out.display()), "free space there")
}

/// Names such as `molt_sample_t` and `exports_reward_score`, whatever world it is.
fn options(world: &World) -> wit_bindgen_c::Opts {
    let renamed = |(full, name): (String, String)| {
        (full, if name == "types" { "molt".into() } else { name.replace('-', "_") })
    };
    wit_bindgen_c::Opts {
        rename_world: Some("molt".into()),
        rename: world.interfaces().into_iter().map(renamed).collect(),
        ..Default::default()
    }
}

/// The names of the C files that lie directly in the project, sorted.
fn sources(dir: &Path) -> Result<Vec<OsString>, AuthorError> {
    let read = || -> std::io::Result<Vec<OsString>> {
        let mut sources = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            if Path::new(&name).extension().is_some_and(|extension| extension == "c") {
                sources.push(name);
            }
        }
        sources.sort();
        Ok(sources)
    };
    read().or_failed(format!("cannot read {}", dir.display()), "")
}
