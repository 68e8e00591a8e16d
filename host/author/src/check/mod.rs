//! `molt plugin check`: whether a plugin keeps the contract, by reading it and by running it on what is hard.

mod environment;
mod estimator;
mod inputs;
mod interpreter;
pub(crate) mod loss;
mod reward;

use crate::error::{AuthorError, FAILED};
use crate::failure;
use crate::open::{Loaded, Opened, Target, is_granted_by_name};
use crate::present::print;
use molt_sandbox::{Cause, Failure, Info, Kind};
use serde::Serialize;
use std::path::PathBuf;

/// Whether a plugin keeps the contract: its version and imports, and how it behaves on what is hard
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Cases whose inputs are tried too, for a reward or an environment [default: cases.toml of the project]
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// What one check found.
#[derive(Debug, Serialize)]
struct Finding {
    check: String,
    ok: bool,
    /// Worth a look, though it may be meant.
    warning: bool,
    detail: String,
    /// What to do; empty if there is nothing to be done.
    help: String,
}

impl Finding {
    /// One that is good.
    fn new(check: &str, detail: impl Into<String>, help: &str) -> Self {
        Self { check: check.into(), ok: true, warning: false, detail: detail.into(), help: help.into() }
    }
}

/// What all checks found, in order.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, check: &str, detail: impl Into<String>) {
        self.0.push(Finding::new(check, detail, ""));
    }

    fn failed(&mut self, check: &str, detail: impl Into<String>, help: &str) {
        self.0.push(Finding { ok: false, ..Finding::new(check, detail, help) });
    }

    /// What breaks no contract, and is a mistake more often than not.
    fn warned(&mut self, check: &str, detail: impl Into<String>, help: &str) {
        self.0.push(Finding { warning: true, ..Finding::new(check, detail, help) });
    }

    /// One finding for many trials: the first problem, or how it is if there is none.
    fn all(&mut self, check: &str, good: impl Into<String>, problems: Vec<String>, help: &str) {
        match problems.as_slice() {
            [] => self.ok(check, good),
            [first] => self.failed(check, first, help),
            [first, rest @ ..] => {
                self.failed(check, format!("{first}\nand {} more like it", rest.len()), help)
            }
        }
    }

    /// One finding for each kind of failure among `calls` that should have succeeded. False if none of `tried`
    /// did, which says nothing of anything else.
    fn calls(
        &mut self,
        check: &str,
        good: impl Into<String>,
        (calls, tried): (&[(&str, &Failure)], usize),
        (info, help): (&Info, &str),
    ) -> bool {
        let mut kinds: Vec<&str> = Vec::new();
        for (_, failure) in calls {
            if !kinds.contains(&failure.label()) {
                kinds.push(failure.label());
            }
        }
        for kind in &kinds {
            let alike = calls.iter().filter(|(_, failure)| failure.label() == *kind);
            let told =
                alike.clone().map(|(name, failure)| format!("{name}: {}", failure::told(failure, info)));
            let help = alike.clone().next().map(|(_, failure)| failure::help(failure, help));
            self.all(check, "", told.collect(), &help.unwrap_or_default());
        }
        if kinds.is_empty() {
            self.ok(check, good);
        } else if calls.len() == tried
            && let Some(last) = self.0.last_mut()
        {
            last.detail += "\nNo call succeeded, so nothing else can be tried.";
        }
        tried == 0 || calls.len() < tried
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, AuthorError> {
    let opened = args.target.open()?;
    if args.cases.is_some() && matches!(opened.info.kind, Kind::Estimator | Kind::Interpreter | Kind::Loss) {
        let article = if opened.info.kind == Kind::Loss { "a" } else { "an" };
        let error = format!("check takes no cases for {article} {}", opened.info.kind);
        return Err(AuthorError::user(error, "leave --cases out; `molt plugin test` takes them"));
    }
    let mut findings = Findings::default();
    let loaded = surface(&opened, &mut findings)?;
    let project = opened.project.as_ref().map(|project| project.dir.join("cases.toml"));
    let cases = args.cases.clone().or_else(|| project.filter(|file| file.is_file()));
    if let Some(loaded) = loaded {
        opened.runtime.block_on(async {
            match &loaded {
                Loaded::Reward(reward) => reward::check(reward, cases.as_deref(), &mut findings).await,
                Loaded::Environment(environment) => {
                    environment::check(environment, cases.as_deref(), &mut findings).await
                }
                Loaded::Estimator(estimator) => {
                    estimator::check(estimator, &mut findings).await;
                    Ok(())
                }
                Loaded::Loss(loss) => {
                    loss::check(loss, &mut findings).await;
                    Ok(())
                }
                Loaded::Interpreter(interpreter) => {
                    interpreter::check(interpreter, &mut findings).await;
                    Ok(())
                }
            }
        })?;
    }
    if args.json {
        let json = serde_json::to_string_pretty(&findings.0).unwrap_or_default();
        print(&format!("{json}\n"))?;
    } else {
        print(&told(&findings))?;
    }
    Ok(if findings.0.iter().all(|finding| finding.ok) { 0 } else { FAILED })
}

/// Contract, kind and imports; None if the plugin cannot be run.
fn surface(opened: &Opened, findings: &mut Findings) -> Result<Option<Loaded>, AuthorError> {
    let info = &opened.info;
    let what = format!("{} against molt:plugin@{}, {} bytes", info.kind, info.contract, info.size);
    let (granted, plain): (Vec<&String>, Vec<&String>) =
        info.imports.iter().partition(|import| is_granted_by_name(import));
    let loaded = opened.load();
    let imports = match (plain.len(), granted.as_slice()) {
        (0, []) => "imports nothing".to_owned(),
        (n, []) => format!("{n} of WASI, which give it no file and no network unless they are granted"),
        (n, named) => {
            let named: Vec<&str> = named.iter().map(|import| import.as_str()).collect();
            format!(
                "{n} of WASI, which give it no file and no network unless they are granted, and {}",
                named.join(", ")
            )
        }
    };
    match loaded {
        Ok(loaded) => {
            findings.ok("contract", what);
            findings.ok("imports", imports);
            Ok(Some(loaded))
        }
        Err(error) => {
            let because = error.because.join("\n");
            let refused = because.contains("does not grant");
            findings.failed(if refused { "imports" } else { "contract" }, because, &error.help);
            Ok(None)
        }
    }
}

fn told(findings: &Findings) -> String {
    let width = findings.0.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let indent = " ".repeat(width + 10);
    let mut text = String::new();
    for finding in &findings.0 {
        let word = match finding {
            Finding { ok: false, .. } => "FAILED",
            Finding { warning: true, .. } => "WARN",
            _ => "ok",
        };
        let detail = finding.detail.replace('\n', &format!("\n{indent}"));
        text += &format!("{word:<6}  {:<width$}  {detail}\n", finding.check);
        if !finding.help.is_empty() {
            text += &format!("{indent}help: {}\n", finding.help.replace('\n', &format!("\n{indent}")));
        }
    }
    text
}

/// What a plugin answered to one input, so that two answers are equal if they are bit for bit. Where in its code a
/// call was, and what it had printed, when its time was up, is no part of the answer.
fn answer<T: std::fmt::Debug>(found: &Result<T, Failure>) -> String {
    match found {
        Ok(value) => format!("{value:?}"),
        Err(problem) if matches!(problem.cause, Cause::Cpu { .. } | Cause::Time { .. }) => {
            Failure { log: String::new(), ..problem.clone() }.to_string()
        }
        Err(problem) => problem.to_string(),
    }
}

/// The beginning of an answer that may be megabytes long.
fn brief(text: &str) -> String {
    const LENGTH: usize = 1000;
    let beginning: String = text.chars().take(LENGTH).collect();
    format!("{beginning}{}", if beginning.len() < text.len() { "…" } else { "" })
}
