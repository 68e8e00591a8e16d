//! `molt eval`: pass@1 and pass@k.

use crate::stop::{OrStop, Stop};
use crate::{interrupt, present, wiring};
use molt_core::settings::EvalSettings;
use molt_rollout::{EvalReport, evaluate, readable};
use serde_json::{Value, json};

pub(crate) fn run(settings: EvalSettings) -> Result<(), Stop> {
    let (path, lock) = wiring::run_dir(&settings.run, None, "eval")?;
    let runtime = wiring::runtime()?;

    let mut plugins = wiring::Plugins::new(&settings.plugins, &settings.judge)?;
    let environment = plugins.environment(&settings.agent)?;
    let rewards = plugins.rewards(&settings.reward.weighted())?;
    plugins.check_names()?;

    let (data, eval) = (&settings.data, &settings.eval);
    // Validation made sure that it is set.
    let file = eval.prompts.clone().unwrap_or_default();
    let prompts = wiring::prompts("eval.prompts", &file, &data.prompt_key, &data.label_key, data.on_bad_row)?;

    let model = wiring::Model::open(&settings.model)?;
    let turn = wiring::eval_turn(eval, &settings.agent, &model)?;
    let decoder = model.weights()?;

    let mut run_dir = wiring::record(
        (&path, lock),
        "eval",
        &settings,
        (&plugins.components(), Some(&plugins.lock()?)),
        None,
    )?;
    eprintln!("model     {}", model.describe());
    let skipped = present::skipped(prompts.skipped);
    eprintln!("prompts   {}{skipped}, {} rollouts of each", prompts.rows.len(), eval.samples);
    plugins.describe().iter().for_each(|line| eprintln!("{line}"));
    eprintln!("run       {}", run_dir.path().display());

    let stop = interrupt::on_ctrl_c(runtime.handle());
    let engine = wiring::engine(decoder, &model, &settings.generator);
    plugins.provide_policy(&engine, &model.chat, &turn);
    let driver = wiring::driver(&engine, &model, (&environment, &rewards[..]), turn, settings.run.seed);
    let errors = settings.plugins.error_limit();
    let report = runtime.block_on(async {
        tokio::select! {
            () = stop.cancelled() => None,
            report = evaluate(&driver, &prompts, eval.samples, &eval.k, errors) => Some(report),
        }
    });
    let Some(report) = report else {
        run_dir.interrupt(&json!({})).or_failed("the run cannot be recorded", "free space in run.dir")?;
        return Err(interrupt::told(run_dir.path()));
    };
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            let help = format!("what the run reached is in {}", run_dir.path().display());
            let failure = Stop::failed("the evaluation failed", help).because(&error);
            let _ = run_dir.fail(&failure.because.join(": "));
            return Err(failure);
        }
    };
    let samples: String = report.groups.iter().map(readable::group).collect();
    let whole = serde_json::to_value(&report).unwrap_or_default();
    let written = run_dir
        .write_json("eval.json", &whole)
        .and_then(|()| run_dir.write_text("samples.md", &format!("# Samples\n\n{samples}")))
        .and_then(|()| run_dir.finish(&summary(whole)));
    written.or_failed("the results cannot be recorded", "free space in run.dir")?;
    present::print(&tell(&report))
}

/// The report without its rows.
fn summary(mut report: Value) -> Value {
    if let Some(fields) = report.as_object_mut() {
        fields.remove("rows");
    }
    report
}

/// The result as a table.
fn tell(report: &EvalReport) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
    let mut rows: Vec<(String, String)> = report
        .pass_at
        .iter()
        .map(|(k, share)| (format!("pass@{k}"), format!("{:.1}%", 100.0 * share)))
        .collect();
    rows.push(("mean reward".into(), number(report.mean_reward)));
    let of_each = report.metrics.iter().filter(|(name, _)| name.starts_with("reward/"));
    if of_each.clone().count() > 1 {
        rows.extend(of_each.map(|(name, mean)| (format!("mean {name}"), format!("{mean:.3}"))));
    }
    rows.push(("tokens per rollout".into(), report.mean_tokens.map_or("-".into(), |t| format!("{t:.1}"))));
    rows.push(("could not be scored".into(), report.invalid.to_string()));
    rows.push(("truncated".into(), report.truncated.to_string()));
    rows.push(("dropped".into(), wiring::counts(&report.dropped)));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name, value]).collect();
    present::table(&rows)
}
