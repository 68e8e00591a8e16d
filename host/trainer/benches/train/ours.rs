//! One rank of ours: what `molt sft --nproc` runs, on rows that are given.

use crate::work::{Answer, End, Work, resident, written};
use molt_core::rank_env::RankEnv;
use molt_core::settings::{Fsdp, Optim};
use molt_model::Weights;
use molt_trainer::ranks::{Alike, Ranks};
use molt_trainer::step::{Layout, Learner, Models, Row};
use serde_json::json;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

/// Takes as many steps as each line of standard input says; see the peer's script.
pub(crate) fn run(model: &Path, work: &Work) {
    let env =
        RankEnv::read(|name| std::env::var(name).ok()).expect("the variables of a rank").expect("a rank");
    let base = resident("VmRSS:");
    let fsdp = Fsdp { keep_layers: work.recompute.then_some(0), prefetch: work.prefetch, ..Fsdp::default() };
    let optim = Optim {
        lr: work.lr,
        weight_decay: work.weight_decay,
        max_grad_norm: work.max_grad_norm,
        ..Optim::default()
    };
    let row = |tokens: &Vec<u32>| (1..tokens.len()).collect::<Vec<_>>();
    let rows: Vec<_> =
        work.tokens.iter().map(|tokens| Row { tokens, targets: row(tokens), routing: None }).collect();
    // Every rank has one micro-batch.
    let layout = Layout::new(rows.len().div_ceil(env.size) * work.tokens[0].len(), &fsdp);
    let weights = Weights::open(model).expect("the model that was just written");
    let ranks = (env.size > 1)
        .then(|| Ranks::join(&env, &fsdp, Alike::new(String::new()), (&weights, &[])).expect("the others"));
    let before = written();
    let end = |sent| {
        let written = written() - before;
        println!("{}", json!(End { base, peak: resident("VmHWM:"), sent, written }));
    };
    if env.rank > 0 {
        let ranks = ranks.expect("more than one");
        let models = Models { policy: (weights, &optim), reference: None, critic: None };
        Learner::follow(models, ranks, layout, 1.0).expect("a whole run");
        return end([0, 0]);
    }
    let mut learner = Learner::new(weights, ranks, &optim, u64::MAX, layout, 1.0).expect("a learner");
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line.expect("text").parse().expect("a number");
        let start = Instant::now();
        let mut loss = 0.0;
        for _ in 0..steps {
            loss = learner.supervised_step(&rows).expect("a step").0;
        }
        println!("{}", json!(Answer { seconds: start.elapsed().as_secs_f64(), loss }));
    }
    let traffic = learner.traffic();
    drop(learner);
    end([traffic.all_gather, traffic.reduce_scatter]);
}
