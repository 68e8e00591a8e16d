//! `cargo xtask …`: set-up, demo and tests. Set-up and demo need Rust, a C++ compiler and Python's pip (the client
//! that fetches libtorch). The tests also build a plugin in each language: pip fetches the compilers of C and Go and
//! what makes components of Python, npm those of JavaScript; apt-get fetches a registry server.

mod audit;
mod bench;
mod cache;
mod demo;
mod dequantize;
mod doctor;
mod fetch;
mod fuzz;
mod gguf;
mod interpreters;
mod learning;
mod peer;
mod plugins;
mod process;
mod registry;
mod setup;
mod smollm2;
mod test;

use anyhow::{Result, bail};
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask COMMAND

  demo [--model tiny|smollm2] [--seed N] [--run-dir DIR]
           set up, build, and watch a language model learn
  test     set up, build the plugins, check formatting and lints, run every test
  setup    fetch libtorch into the cache and write .cargo/local.toml
  plugins  build the WebAssembly components
  registry fetch the registry server that the tests of push and pull start, and print where it is
  audit    check the licences, sources and known advisories of all dependencies
  bench sandbox [PART…]
           what the boundary costs, against limits and peers; a part is rewards, steps, episodes, estimates or first-use
  bench train [PART…]
           training steps beside PyTorch's fully_shard, which the first call installs into the cache; a part is speed or
           memory
  bench learning [ESTIMATOR…]
           the demo's task with every estimator and three seeds: a table of held-out accuracy
  fuzz [--seconds N] [calls|files|texts]
           look for inputs that the host does not survive, 60 seconds without being told
  smollm2  fetch SmolLM2-135M-Instruct into the cache and print where it is
  doctor   say what is missing on this machine and how to get it";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some((command, rest)) = arguments.split_first() else {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    if ["help", "--help", "-h"].contains(&command.as_str()) || rest.iter().any(|r| r == "--help" || r == "-h")
    {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    if !["bench", "demo", "fuzz"].contains(&command.as_str())
        && let Some(extra) = rest.first()
    {
        bail!("`cargo xtask {command}` takes no argument, found {extra:?}");
    }
    match command.as_str() {
        "setup" => setup::setup().map(|_| ExitCode::SUCCESS),
        "plugins" => {
            let place = setup::setup()?;
            plugins::build(&place)?;
            interpreters::build(&place).map(|()| ExitCode::SUCCESS)
        }
        "smollm2" => {
            println!("{}", smollm2::model(&setup::setup()?)?.display());
            Ok(ExitCode::SUCCESS)
        }
        "registry" => {
            println!("{}", registry::registry(&cache::Cache::locate()?)?.display());
            Ok(ExitCode::SUCCESS)
        }
        "audit" => audit::audit().map(|()| ExitCode::SUCCESS),
        "bench" => bench::bench(rest).map(|()| ExitCode::SUCCESS),
        "fuzz" => fuzz::fuzz(&fuzz::Options::parse(rest)?).map(|()| ExitCode::SUCCESS),
        "test" => test::test().map(|()| ExitCode::SUCCESS),
        "doctor" => doctor::doctor(),
        "demo" => demo::demo(&demo::Options::parse(rest)?).map(|()| ExitCode::SUCCESS),
        _ => bail!("no command called {command:?}\n\n{USAGE}"),
    }
}
