//! One rank of ours.

use crate::work::{Answer, End, Work, resident};
use molt_core::rank_env::RankEnv;
use molt_core::settings::{Fsdp, Optim};
use molt_model::Weights;
use molt_trainer::ranks::Ranks;
use molt_trainer::step::{Layout, Learner, Row};
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

/// As the peer's script: takes steps as told on standard input.
pub(crate) fn run(model: &Path, work: &Work) {
    let env =
        RankEnv::read(|name| std::env::var(name).ok()).expect("the variables of a rank").expect("a rank");
    let base = resident("VmRSS:");
    let fsdp = Fsdp { keep_layers: work.recompute.then_some(0), ..Fsdp::default() };
    let weights = Weights::open(model).expect("the model that was just written");
    let ranks = (env.size > 1).then(|| Ranks::join(&env, &fsdp, "", &weights).expect("the others"));
    let optim = Optim {
        lr: work.lr,
        weight_decay: work.weight_decay,
        max_grad_norm: work.max_grad_norm,
        ..Optim::default()
    };
    let rows: Vec<Row<'_>> = work
        .tokens
        .iter()
        .map(|tokens| Row { tokens, targets: (1..tokens.len()).collect(), routing: None })
        .collect();
    let own = rows.len().div_ceil(env.size) * work.tokens[0].len();
    let layout = Layout::new(own, &fsdp);
    let end = || println!("{}", serde_json::json!(End { base, peak: resident("VmHWM:") }));
    if env.rank > 0 {
        Learner::follow(weights, ranks.expect("ranks"), &optim, layout, 1.0, None).expect("a whole run");
        return end();
    }
    let mut learner = Learner::new(weights, ranks, &optim, u64::MAX, layout, 1.0).expect("a learner");
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux");
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line.expect("text").parse().expect("a number");
        let start = Instant::now();
        let mut loss = 0.0;
        for _ in 0..steps {
            loss = learner.supervised_step(&rows).expect("a step").0;
        }
        println!("{}", serde_json::json!(Answer { seconds: start.elapsed().as_secs_f64(), loss }));
    }
    drop(learner);
    end();
}
