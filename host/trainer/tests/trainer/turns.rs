//! Credit turn by turn: an environment that rewards every turn, and an estimator that tells the turns apart.

use crate::parts::*;
use crate::scripted::{Scripted, far};
use molt_core::chat::{Message, Role, Task};
use molt_core::ids::GroupId;
use molt_core::outcome::Group;
use molt_core::settings::{ParameterValue, TrainSettings};
use molt_rollout::Prompts;
use molt_sandbox::parameter_values;
use molt_trainer::advantage::advantages;
use std::path::Path;
use tokio_util::sync::CancellationToken;

/// Three questions, each answered by 7, which the script says one time in three.
pub(crate) fn quiz() -> Task {
    Task {
        id: "1".into(),
        messages: vec![Message::new(Role::User, "q0")],
        label: Some("7\n7\n7".into()),
        fields: vec![("more".into(), "q1\nq2".into())],
    }
}

fn quizzes(model: &Path, estimator: &str, gamma: Option<f64>) -> TrainSettings {
    let mut settings = far(model);
    settings.agent.name = "quiz".into();
    settings.agent.max_turns = 3;
    settings.reward.name = Vec::new();
    settings.algo.estimator = estimator.into();
    settings.algo.parameters =
        gamma.map(|gamma| ("gamma".to_owned(), ParameterValue::Number(gamma))).into_iter().collect();
    settings
}

/// The mean of what the rollouts earned in this turn.
fn mean(group: &Group, turn: usize) -> f64 {
    let all: Vec<f64> = group.finished().map(|t| t.turn_rewards[turn]).collect();
    all.iter().sum::<f64>() / all.len() as f64
}

#[test]
fn a_turn_is_trained_for_what_it_earned() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = quizzes(&model(dir.path()), "turn-credit", Some(0.0));
    settings.algo.parameters.insert("episode_weight".into(), ParameterValue::Number(0.0));
    let runtime = runtime();
    let driver = driver(&settings, Scripted::new(0));
    let groups = [runtime.block_on(driver.group(GroupId(0), &quiz(), 0..8)).unwrap()];
    let credit = |name: &str| {
        let estimator = estimator(name);
        let traits = runtime.block_on(estimator.traits()).unwrap();
        let given = settings.algo.parameters.clone();
        let own = given.into_iter().filter(|(given, _)| traits.parameters.iter().any(|p| p.name == *given));
        let parameters = parameter_values(&traits.parameters, &own.collect()).unwrap();
        runtime.block_on(advantages(&estimator, &traits, &parameters, &groups, 0.0)).unwrap()
    };
    let mut mixed = 0;
    for (row, rollout) in credit("turn-credit").iter().zip(groups[0].finished()) {
        assert_eq!(rollout.turn_rewards.len(), 3);
        for (action, &advantage) in row.segment.actions().iter().zip(&row.advantages) {
            let turn = action.turn as usize;
            let expected = rollout.turn_rewards[turn] - mean(&groups[0], turn);
            assert!((f64::from(advantage) - expected).abs() < 1e-6, "{advantage} is not {expected}");
        }
        let signs = |positive| row.advantages.iter().any(|&advantage| (advantage > 0.0) == positive);
        mixed += usize::from(signs(true) && signs(false));
    }
    assert!(mixed > 0, "no rollout has a turn to do more often and one to do less often");
    // An estimator of whole rollouts gives every turn the same.
    for row in credit("grpo") {
        assert!(row.advantages.iter().all(|&advantage| advantage == row.advantages[0]));
    }
}

#[test]
fn the_weights_learn_from_turns() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut all = Vec::new();
    for (name, gamma, estimator) in
        [("own", Some(0.0), "turn-credit"), ("ahead", Some(1.0), "turn-credit"), ("whole", None, "grpo")]
    {
        let mut settings = quizzes(&model, estimator, gamma);
        settings.train.sync = true;
        let prompts = (Prompts { rows: vec![quiz(); 8], skipped: 0 }, None);
        let stop = CancellationToken::new();
        let (result, run_dir) = run(settings, Scripted::new(0), prompts, &dir.path().join(name), &stop);
        // Two batches of four groups of eight rollouts of three turns of two tokens.
        let summary = result.unwrap();
        assert_eq!((summary.steps, summary.tokens), (2, 2 * 4 * 8 * 3 * 2));
        all.push(weights(&run_dir));
    }
    assert!(
        all[0] != all[1] && all[1] != all[2] && all[0] != all[2],
        "the rollouts are the same, the credit is not"
    );
}

#[test]
fn turns_of_huge_rewards_that_cancel_out_cost_their_rollouts_and_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    for estimator in ["turn-credit", "grpo"] {
        let mut settings = quizzes(&model(dir.path()), estimator, None);
        settings.agent.name = "hostile-environment".into();
        settings.plugins.max_error_rate = 0.9;
        let row = |act: &str| Task { label: Some(act.into()), fields: vec![], ..quiz() };
        let rows = (0..8).map(|n| row(if n % 2 == 0 { "step: huge" } else { "count" })).collect();
        let prompts = (Prompts { rows, skipped: 0 }, None);
        let stop = CancellationToken::new();
        let (result, _) = run(settings, Scripted::new(0), prompts, &dir.path().join(estimator), &stop);
        let summary = result.unwrap();
        assert_eq!((summary.steps, summary.tokens), (1, 4 * 8 * 2));
        assert_eq!(summary.dropped, [("reward-too-large".to_owned(), 4 * 8)].into());
    }
}
