//! The `molt` command: arguments, wiring, exit codes, and nothing else.

mod args;
mod eval;
mod init;
mod interrupt;
mod launch;
mod plugin;
mod present;
mod ranks;
mod sft;
mod stop;
mod train;
mod wiring;

use args::Request;
use std::io::IsTerminal;
use std::process::ExitCode;
use stop::Stop;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    log_to_stderr();
    let result = match args::parse(std::env::args_os()) {
        Ok(request) => run(request),
        Err(args::Refusal::Usage(error)) => {
            // Help and version are printed to standard output and are no failure.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { stop::USER } else { 0 });
        }
        Err(args::Refusal::Settings(stop)) => Err(stop),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(stop) => {
            eprintln!("{stop}");
            ExitCode::from(stop.code)
        }
    }
}

/// Does what is asked; the result is the exit code.
fn run(request: Request) -> Result<u8, Stop> {
    match request {
        Request::Train(settings) => train::run(*settings)?,
        Request::Sft(settings) => sft::run(*settings)?,
        Request::Eval(settings) => eval::run(*settings)?,
        Request::Init { from, to, seed } => init::run(&from, &to, seed)?,
        Request::Launch { ranks, args } => return launch::run(ranks, &args),
        Request::Plugin(matches) => return plugin::run(&matches),
    }
    Ok(0)
}

/// `MOLT_LOG` filters what is told, e.g. `molt_rollout=debug`; warnings by default.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("MOLT_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).compact();
    log.with_writer(|| molt_observe::LogWriter).init();
}
