//! `molt eval`: pass@1 and pass@k.

use crate::stop::{OrStop, Stop};
use crate::{interrupt, present, wiring};
use molt_core::settings::{EvalData, EvalSettings};
use molt_rollout::{EvalReport, Measure, Scores, counts, evaluate, readable, too_long};
use serde_json::{Value, json};

pub(crate) fn run(settings: EvalSettings) -> Result<(), Stop> {
    let (path, lock) = wiring::run_dir(&settings.run, None, "eval")?;
    let runtime = wiring::runtime()?;

    let mut plugins = wiring::Plugins::new(&settings.plugins, &settings.judge)?;
    let environment = plugins.environment(&settings.agent)?;
    let rewards = plugins.rewards(&settings.reward.weighted())?;
    // What limits plugins that only training has may come with its file.
    if let Err(stray) = plugins.check_names() {
        eprintln!("warning: {}", stray.error);
    }

    let (data, eval) = (&settings.data, &settings.eval);
    // Validation made sure that it is set.
    let file = eval.prompts.clone().unwrap_or_default();
    let EvalData { prompt_key, label_key, on_bad_row, columns, .. } = data;
    let prompts = wiring::prompts("eval.prompts", &file, prompt_key, label_key, *on_bad_row, columns)?;
    wiring::sources(&[&prompts], data.source_key.is_some(), data.source_key())?;

    let model = wiring::Model::open(&settings.model)?;
    let turn = wiring::eval_turn(eval, &settings.agent, &model)?;
    let decoder = model.weights()?;

    let mut run_dir = wiring::record(
        (&path, lock),
        "eval",
        (&settings, &[]),
        (&plugins.components(), Some(&plugins.lock()?)),
        None,
    )?;
    eprintln!("model     {}", model.describe());
    let (skipped, rollouts) =
        (present::skipped(prompts.skipped), if eval.samples == 1 { "rollout" } else { "rollouts" });
    eprintln!("prompts   {}{skipped}, {} {rollouts} of each", prompts.rows.len(), eval.samples);
    wiring::note_labels(&prompts, label_key);
    plugins.describe().iter().for_each(|line| eprintln!("{line}"));
    eprintln!("run       {}", run_dir.path().display());

    let stop = interrupt::on_ctrl_c(runtime.handle());
    let engine = wiring::engine(decoder, &model, &settings.generator);
    plugins.provide_policy(&engine, &model.chat, &turn);
    let driver = wiring::driver(&engine, &model, (&environment, &rewards[..]), turn, settings.run.seed);
    let measure = Measure {
        samples: eval.samples,
        ks: &eval.k,
        source_key: data.source_key(),
        errors: settings.plugins.error_limit(),
    };
    let report = runtime.block_on(async {
        tokio::select! {
            () = stop.cancelled() => None,
            report = evaluate(&driver, &prompts, measure) => Some(report),
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
    present::print(&tell(&report))?;
    if report.all.finished == 0 {
        let help =
            format!("{} has what came of each{}", run_dir.path().display(), too_long(&report.all.dropped));
        return Err(Stop::failed("no rollout finished, so nothing was measured", help));
    }
    Ok(())
}

/// The report without its rows.
fn summary(mut report: Value) -> Value {
    if let Some(fields) = report.as_object_mut() {
        fields.remove("rows");
    }
    report
}

/// The result as a table: one column for all prompts, and one for each source.
fn tell(report: &EvalReport) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
    let share = |value: Option<&f64>| value.map_or("-".into(), |share| format!("{:.1}%", 100.0 * share));
    let columns: Vec<&Scores> = std::iter::once(&report.all).chain(report.sources.values()).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: String, of: &dyn Fn(&Scores) -> String| {
        rows.push(std::iter::once(name).chain(columns.iter().map(|scores| of(scores))).collect());
    };
    if !report.sources.is_empty() {
        row("prompts".into(), &|s| s.prompts.to_string());
    }
    for k in report.all.pass_at.keys() {
        row(format!("pass@{k}"), &|s| share(s.pass_at.get(k)));
    }
    for k in report.all.maj_at.keys() {
        row(format!("maj@{k}"), &|s| share(s.maj_at.get(k)));
    }
    if !report.all.dropped.is_empty() {
        row("solved of the finished".into(), &|s| share(s.solved_of_finished.as_ref()));
    }
    row("mean reward".into(), &|s| number(s.mean_reward));
    row("tokens per rollout".into(), &|s| s.mean_tokens.map_or("-".into(), |t| format!("{t:.1}")));
    row("could not be scored".into(), &|s| s.invalid.to_string());
    row("truncated".into(), &|s| s.truncated.to_string());
    row("dropped".into(), &|s| counts(&s.dropped));
    if !report.sources.is_empty() {
        let names = report.sources.keys().map(String::as_str);
        rows.insert(0, ["", "all"].into_iter().chain(names).map(str::to_owned).collect());
    }
    let of_each = report.metrics.iter().filter(|(name, _)| name.starts_with("reward/"));
    if of_each.clone().count() > 1 {
        rows.extend(of_each.map(|(name, mean)| vec![format!("mean {name}"), format!("{mean:.3}")]));
    }
    present::table(&rows)
}

#[cfg(test)]
mod tests {
    use molt_core::settings::{EvalSettings, keys};

    /// An evaluation has no trainer: neither the code of one, nor weights to train, nor a setting of either.
    #[test]
    fn nothing_of_a_trainer_is_loaded() {
        let code = include_str!("eval.rs").split("#[cfg(test)]").next().unwrap_or_default();
        for part in ["molt_trainer", "Weights", ".policy(", "estimator", "critic", "reference", "ranks"] {
            assert!(!code.contains(part), "an evaluation has to do with {part}");
        }
        assert!(code.contains("model.weights()"), "it decodes with one copy of the weights");
        for key in keys::<EvalSettings>() {
            let section = key.path[0].as_str();
            let of_a_trainer =
                ["algo", "critic", "fsdp", "lora", "optim", "reference", "replay", "teacher", "train"];
            assert!(!of_a_trainer.contains(&section), "{}", key.name());
        }
    }
}
