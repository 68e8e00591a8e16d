//! Interpreters: sessions that replay, do not meet, and stand whatever the code is.

use super::{Findings, answer, brief, inputs};
use futures_util::future::join_all;
use molt_sandbox::{Call, CodeOutput, Failure, Interpreter};

pub(super) async fn check(interpreter: &Interpreter, findings: &mut Findings) {
    let texts = inputs::texts();
    let mut alone = Vec::new();
    for (_, text) in &texts {
        alone.push(run(interpreter, &[text]).await);
    }
    let failed =
        texts.iter().zip(&alone).filter_map(|((name, _), outputs)| Some((*name, outputs.as_ref().err()?)));
    let failed: Vec<_> = failed.collect();
    let good = format!("{} pieces of code, empty, huge and malformed", texts.len());
    let help = "return an error of the code in `error`: it is an answer to the model";
    if !findings.calls("inputs", good, (&failed, texts.len()), (interpreter.info(), help)) {
        return;
    }
    let together = join_all(texts.iter().map(async |(_, text)| run(interpreter, &[text]).await)).await;
    let differ = texts.iter().zip(alone.iter().zip(&together)).filter(|(_, (a, b))| answer(a) != answer(b));
    findings.all(
        "determinism",
        "the same code gives the same output, also beside others",
        differ
            .map(|((name, _), (a, b))| {
                format!("{name}: {}, and then {}", brief(&answer(a)), brief(&answer(b)))
            })
            .collect(),
        "let nothing but the code decide: no time, no order of a hash table",
    );
    let kept = run(interpreter, &["x = 41", "x"]).await;
    let fresh = run(interpreter, &["x"]).await;
    let value = |outputs: &Result<Vec<CodeOutput>, Failure>| {
        outputs.as_ref().ok().and_then(|outputs| outputs.last()?.value.clone())
    };
    match (value(&kept).as_deref(), value(&fresh)) {
        (Some("41"), None) => {
            findings.ok("sessions", "a variable lives as long as its session, and in no other")
        }
        (Some("41"), Some(other)) => findings.failed(
            "sessions",
            format!("a new session knows a variable of another: {}", brief(&other)),
            "begin every session with nothing",
        ),
        _ => {
            findings.ok("sessions", "no language in which `x = 41` sets a variable, so nothing more is tried")
        }
    }
}

async fn run(interpreter: &Interpreter, codes: &[&str]) -> Result<Vec<CodeOutput>, Failure> {
    let mut session = interpreter.open(Call { rollout: None, seed: 7 }).await?;
    let mut outputs = Vec::new();
    for code in codes {
        outputs.push(session.run(code).await?);
    }
    Ok(outputs)
}
