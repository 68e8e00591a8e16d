mod rules;

use crate::settings::*;
use proptest::prelude::*;
use std::path::Path;

fn flags(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

fn train(file: &str, pairs: &[(&str, &str)]) -> Result<TrainSettings, SettingsError> {
    load(Some((Path::new("run.toml"), file)), &flags(pairs))
}

fn message<T: std::fmt::Debug>(result: Result<T, SettingsError>) -> String {
    result.expect_err("must be refused").to_string()
}

/// Settings that validate, so that a test changes one thing.
const GOOD: &str = "[model]\npath = 'm'\n[data]\nprompts = 'p.jsonl'\n[reward]\nname = 'math'\n";

fn refused(pairs: &[(&str, &str)]) -> String {
    message(train(GOOD, pairs).expect("loads").validate())
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let file = "[train]\nasync_queue_size = 3\nmax_tokens_per_rank = 17\n[optim]\nlr = 1\n";
    let settings = train(file, &[("train.async_queue_size", "5")]).expect("loads");
    assert_eq!(settings.train.async_queue_size, 5);
    assert_eq!(settings.train.max_tokens_per_rank, 17);
    assert_eq!(settings.optim.lr, 1.0, "a whole number is a number");
    assert_eq!(settings.rollout, Rollout::default());
    assert_eq!(train("", &[]).expect("loads"), TrainSettings::default());
}

#[test]
fn parameters_of_a_plugin_are_numbers_switches_and_words() {
    use ParameterValue::{Number, Switch, Word};
    let file = "[algo.parameters]\ngamma = 1\nlambda = 0.5\ncentre = false\nover = 'tokens'\n";
    let flags = [("algo.parameters.gamma", "-2e-1"), ("algo.parameters.centre", "true")];
    let settings = train(file, &flags).expect("loads");
    let expected = [
        ("centre", Switch(true)),
        ("gamma", Number(-0.2)),
        ("lambda", Number(0.5)),
        ("over", Word("tokens".into())),
    ];
    assert_eq!(settings.algo.parameters, expected.map(|(name, value)| (name.to_owned(), value)).into());
    assert_eq!(
        message(train("[algo]\ngamma = 0.9\n[algo.parameters]\nover = [1]\n", &[("algo.lambda", "1")])),
        "run.toml:2: there is no setting algo.gamma; did you mean algo.parameters.gamma?\n\
         run.toml:4: algo.parameters.over is [1], but must be a number, true or false, or a word\n\
         --algo.lambda: there is no setting algo.lambda; did you mean algo.parameters.lambda?"
    );
}

#[test]
fn every_kind_of_value_is_read_from_a_flag() {
    let settings = train(
        "",
        &[
            ("train.sync", "true"),
            ("run.dir", "/tmp/x"),
            ("eval.k", "1,4"),
            ("eval.samples", "4"),
            ("rollout.stop", "</a>,;"),
            ("eval.stop", r#"["a,b", "\n"]"#),
            ("algo.importance", "old"),
            ("reward.lowest", "-1.5"),
            ("plugins.path", "a,b"),
            ("plugins.only.math.cpu_ms", "500"),
        ],
    )
    .expect("loads");
    assert!(settings.train.sync);
    assert_eq!(settings.run.dir.as_deref(), Some(Path::new("/tmp/x")));
    assert_eq!(settings.eval.k, [1, 4]);
    assert_eq!(settings.rollout.stop, ["</a>", ";"]);
    assert_eq!(settings.eval.stop, ["a,b", "\n"]);
    assert_eq!(settings.algo.importance, Importance::Old);
    assert_eq!(settings.reward.lowest, -1.5);
    assert_eq!(settings.plugins.path, [Path::new("a"), Path::new("b")]);
    assert_eq!(settings.plugins.limits_of("math").cpu_ms, 500);
    assert_eq!(settings.plugins.limits_of("grpo").cpu_ms, 2000);
}

#[test]
fn a_reward_is_one_name_or_several_with_weights() {
    let one = train("[reward]\nname = 'math'\n", &[]).expect("loads");
    assert_eq!(one.reward.weighted(), [("math", 1.0)]);
    let file = "[reward]\nname = ['math', 'length']\nweight = [1, -0.1]\n";
    let two = train(file, &[]).expect("loads");
    assert_eq!(two.reward.weighted(), [("math", 1.0), ("length", -0.1)]);
    let flags = [("reward.name", "a,b,c"), ("reward.weight", "1,2,-3")];
    let three = train(file, &flags).expect("loads");
    assert_eq!(three.reward.weighted(), [("a", 1.0), ("b", 2.0), ("c", -3.0)]);
    assert_eq!(
        message(train("[reward]\nname = [1]\n", &[])),
        "run.toml:2: reward.name is [1], but must be a list, each a string"
    );
}

#[test]
fn grants_and_the_judge_are_read_by_plugin() {
    let file = "[plugins.grant.judge]\nmodel = 'judge'\nread = 'data/rubrics'\n\
                [judge]\nurl = 'http://127.0.0.1:8000/v1'\nmodel = 'm'\n";
    let settings =
        train(&format!("{GOOD}{file}"), &[("plugins.grant.judge.model_calls", "3")]).expect("loads");
    settings.validate().expect("is good");
    let access = settings.plugins.access_of("judge");
    assert_eq!((access.grants.model, access.grants.model_calls), (Some(GrantedModel::Judge), 3));
    assert_eq!(access.grants.read, [Path::new("data/rubrics")]);
    assert_eq!(settings.plugins.access_of("math").grants, Grants::default(), "granted to nobody else");
}

#[test]
fn unknown_keys_and_wrong_types_are_all_reported_with_their_place() {
    let file = "# a comment\n[train]\nasync_queue_sz = 2\nsync = \"yes\"\n\n[traim]\nx = 1\n";
    let pairs = [("rollout.batch", "4"), ("rollout.batch_size", "many"), ("algo.importance", "some")];
    assert_eq!(
        message(train(file, &pairs)),
        "run.toml:6: there is no setting traim; did you mean train?\n\
         run.toml:3: there is no setting train.async_queue_sz; did you mean train.async_queue_size?\n\
         run.toml:4: train.sync is \"yes\", but must be true or false\n\
         --rollout.batch: there is no setting rollout.batch; did you mean rollout.batch_size?\n\
         --rollout.batch_size: rollout.batch_size is \"many\", but must be a whole number of at least 0\n\
         --algo.importance: algo.importance is \"some\", but must be one of sampled, old"
    );
}

#[test]
fn truncated_sampling_of_what_is_trained_is_refused_with_its_reason() {
    let error = train("[rollout]\ntop_p = 0.9\n", &[("rollout.top_k", "50"), ("rollout.min_p", "0.1")]);
    let text = message(error);
    for place in
        ["run.toml:2: rollout.top_p", "--rollout.top_k: rollout.top_k", "--rollout.min_p: rollout.min_p"]
    {
        assert!(text.contains(&format!("{place} is no setting: training samples from the whole")), "{text}");
    }
    assert_eq!(text.lines().count(), 3, "{text}");
    for part in ["log-probability", "rollout.temperature", "eval.top_p truncates in evaluation"] {
        assert_eq!(text.matches(part).count(), 3, "{part}: {text}");
    }
    // A command that trains no rollouts knows nothing of them.
    let error =
        load::<EvalSettings>(None, &[("rollout.top_p".to_owned(), "0.9".to_owned())]).expect_err("unknown");
    assert!(error.to_string().contains("did you mean eval.top_p?"), "{error}");
}

#[test]
fn a_key_under_a_plugins_name_is_suggested_with_the_name() {
    let file = "[plugins.grant.judge]\nreed = [\"x\"]\n";
    assert_eq!(
        message(train(file, &[("plugins.only.math.cpu_m", "1")])),
        "run.toml:2: there is no setting plugins.grant.judge.reed; did you mean plugins.grant.judge.read?\n\
         --plugins.only.math.cpu_m: there is no setting plugins.only.math.cpu_m; did you mean \
         plugins.only.math.cpu_ms?"
    );
}

#[test]
fn a_file_that_is_no_toml_is_reported_with_its_line() {
    let error = train("[run]\nseed = = 1\n", &[]).expect_err("no TOML");
    assert!(error.help("train").contains("TOML"), "{error}");
    let text = error.to_string();
    assert!(text.contains("run.toml:2: "), "{text}");
}

#[test]
fn numbers_out_of_range_are_refused() {
    assert_eq!(
        message(train("[train]\nasync_queue_size = -1", &[])),
        "run.toml:2: train.async_queue_size is -1, but must be a whole number of at least 0"
    );
    assert_eq!(
        message(train("", &[("eval.samples", "4294967296")])),
        "--eval.samples: eval.samples is \"4294967296\", but must be a whole number from 0 to 4294967295"
    );
    assert_eq!(message(train("train = 3", &[])), "run.toml:1: train is 3, but must be a section of settings");
    assert_eq!(
        message(train("[train.sync]\nx = 1", &[])),
        "run.toml:1: train.sync is { x = 1 }, but must be true or false"
    );
}

#[test]
fn a_key_of_another_command_is_unknown() {
    let error = load::<SftSettings>(None, &flags(&[("train.sync", "true")]));
    assert!(message(error).starts_with("--train.sync: there is no setting train.sync"));
}

/// An evaluation reads of the file of a training run what it has itself; what neither has is refused.
#[test]
fn an_evaluation_takes_the_file_of_a_training_run() {
    let file = "[run]\ndir = 'runs/one'\nseed = 7\n[model]\npath = 'm'\n[data]\nprompts = 'p.jsonl'\nlabel_key = 'gold'\n[reward]\nname = 'math'\n\
                lowest = -1\n[train]\nsync = true\n[algo.kl]\ncoef = 0.1\n[eval]\nprompts = 'e.jsonl'\n";
    let of = |file: &str| load::<EvalSettings>(Some((Path::new("run.toml"), file)), &[]);
    let settings = of(file).expect("loads");
    settings.validate().expect("is good");
    assert_eq!(
        (settings.data.label_key.as_str(), &settings.reward.name[..]),
        ("gold", &["math".to_owned()][..])
    );
    assert_eq!(
        (settings.run.dir.as_deref(), settings.run.seed),
        (None, 7),
        "the directory is the training run's"
    );
    let own = of("[run]\ndir = 'evals/one'\n").expect("loads");
    assert_eq!(own.run.dir.as_deref(), Some(Path::new("evals/one")));
    let whole = TrainSettings::default().to_toml().expect("TOML");
    of(&whole).expect("all that a training run writes down is known");
    assert_eq!(
        message(of("[reward]\nlowst = 1\n[traim]\nx = 1\n[train]\nsnyc = true\nmax_steps = 'few'\n")),
        "run.toml:2: there is no setting reward.lowst; did you mean reward.lowest?\n\
         run.toml:3: there is no setting traim; did you mean train?\n\
         run.toml:7: train.max_steps is \"few\", but must be a whole number of at least 0\n\
         run.toml:6: there is no setting train.snyc; did you mean train.sync?"
    );
    let error = load::<EvalSettings>(None, &flags(&[("train.sync", "true")]));
    assert!(
        message(error).contains("there is no setting train.sync"),
        "a flag is of the command it is given to"
    );
}

#[test]
fn required_paths_are_reported_together() {
    assert_eq!(
        message(TrainSettings::default().validate()),
        "model.path is required: a Hugging Face model directory\n\
         data.prompts is required: a file with one JSON object per line\n\
         reward.name is required with agent.name single-turn, which gives no reward: name a reward plugin, such as math"
    );
    assert_eq!(
        message(EvalSettings::default().validate()),
        "model.path is required: a Hugging Face model directory\n\
         reward.name is required with agent.name single-turn, which gives no reward: name a reward plugin, such as math\n\
         eval.prompts is required: a file with one JSON object per line"
    );
    assert_eq!(
        message(SftSettings::default().validate()),
        "model.path is required: a Hugging Face model directory\n\
         data.conversations is required: a file with one JSON object per line, or several"
    );
    train(GOOD, &[]).expect("loads").validate().expect("is good");
}

#[test]
fn tokens_of_older_weights_need_a_correction() {
    let old = ("algo.importance", "old");
    assert_eq!(
        refused(&[old]),
        "algo.importance is old, but with train.async_queue_size 1 tokens of older weights are trained, which \
         needs a correction: set algo.correction.level, or use algo.importance sampled, or train.sync without \
         replay"
    );
    for fits in [("train.sync", "true"), ("train.async_queue_size", "0"), ("algo.correction.level", "geo")] {
        for more in
            [("train.steps_per_batch", "1"), ("train.steps_per_batch", "2"), ("train.epochs_per_batch", "2")]
        {
            let pairs = [old, fits, more];
            train(GOOD, &pairs).expect("loads").validate().expect("is corrected");
        }
    }
}

#[test]
fn a_curriculum_and_a_replay_buffer_that_cannot_work_are_refused() {
    let easy = ("data.curriculum.easy_share", "0.5");
    assert_eq!(
        refused(&[easy]),
        "data.curriculum needs data.passes of 2 at least: before the second pass no pass rate is known"
    );
    assert_eq!(
        refused(&[("data.curriculum.low", "0.25")]),
        "data.curriculum.low is set, and does nothing without easy_share, hard_share or easy_first of data.curriculum"
    );
    let passes = ("data.passes", "2");
    assert_eq!(
        refused(&[passes, easy, ("data.curriculum.low", "0.5"), ("data.curriculum.high", "0.5")]),
        "data.curriculum.low is 0.5, but must be below data.curriculum.high, 0.5"
    );
    assert_eq!(
        refused(&[passes, ("data.curriculum.easy_share", "1.5")]),
        "data.curriculum.easy_share is 1.5, but must be from 0 to 1"
    );
    train(GOOD, &[passes, easy]).expect("loads").validate().expect("is good");

    let two = ("replay.groups_per_batch", "2");
    assert_eq!(
        refused(&[("replay.capacity", "9")]),
        "replay.capacity is set, and does nothing without replay.groups_per_batch"
    );
    assert_eq!(
        refused(&[two, ("replay.capacity", "1")]),
        "replay.capacity is 1, fewer than the 2 groups that each batch takes from it (replay.groups_per_batch)"
    );
    assert_eq!(
        refused(&[two, ("train.sync", "true")]),
        "replay.groups_per_batch cannot go with train.sync, which is strictly on-policy: take \
         train.sync false and train.async_queue_size 0, which waits for every update too"
    );
    assert_eq!(
        refused(&[two, ("train.async_queue_size", "0"), ("algo.importance", "old")]),
        "algo.importance is old, but with replay.groups_per_batch tokens of older weights are trained, which needs a \
         correction: set algo.correction.level, or use algo.importance sampled, or train.sync without replay"
    );
    train(GOOD, &[two]).expect("loads").validate().expect("is good");
}

#[test]
fn a_teacher_implies_the_rest() {
    let settings = train(GOOD, &[("teacher.model", "t")]).expect("loads");
    settings.validate().expect("is good");
    assert_eq!(settings.algo.estimator, "on-policy-distill");
    let kl = &settings.algo.kl;
    assert_eq!((kl.coef, kl.r#in, kl.estimator()), (1.0, KlIn::Reward, KlEstimator::K1));
    assert_eq!(settings.reference(), Some(Path::new("t")));
    let own = [("teacher.model", "t"), ("algo.estimator", "reinforce"), ("algo.kl.coef", "0.5")];
    let settings = train(GOOD, &own).expect("loads");
    assert_eq!((settings.algo.estimator.as_str(), settings.algo.kl.coef), ("reinforce", 0.5));
    for scores in [("reward.name", "math"), ("agent.name", "guess-number")] {
        let evaluated = [("teacher.model", "t"), ("eval.prompts", "e.jsonl"), scores];
        train(GOOD, &evaluated).expect("loads").validate().expect("something scores");
    }
    // What is given is what counts, be it the default without a teacher.
    let grpo = train(GOOD, &[("teacher.model", "t"), ("algo.estimator", "grpo")]).expect("loads");
    assert_eq!(grpo.algo.estimator, "grpo");
    let file = format!("{GOOD}[teacher]\nmodel = 't'\n[algo]\nestimator = 'grpo'\nkl.coef = 0\n");
    let of_file = train(&file, &[]).expect("loads").algo;
    assert_eq!((of_file.estimator.as_str(), of_file.kl.coef), ("grpo", 0.0));
}

#[test]
fn the_reference_is_what_training_starts_from_unless_one_is_named() {
    let reference = |pairs| train(GOOD, pairs).expect("loads").reference().map(Path::to_owned);
    assert_eq!(reference(&[]), None);
    assert_eq!(reference(&[("algo.kl.coef", "0.1")]).as_deref(), Some(Path::new("m")));
    let other = [("algo.kl.coef", "0.1"), ("reference.model", "r")];
    assert_eq!(reference(&other).as_deref(), Some(Path::new("r")));
    let of = |pairs| train(GOOD, pairs).expect("loads").algo.kl.estimator();
    assert_eq!(of(&[("algo.kl.coef", "0.1")]), KlEstimator::K2);
    assert_eq!(of(&[("algo.kl.coef", "0.1"), ("algo.kl.in", "reward")]), KlEstimator::K1);
}

proptest! {
    #[test]
    fn resolved_settings_load_back_unchanged(
        seed in 0..=i64::MAX as u64,
        text in "\\PC*",
        lr in proptest::num::f64::POSITIVE,
        gamma in 0f64..1.0,
        stop in proptest::collection::vec(".*", 0..3),
        plugin in "\\PC+",
        cpu_ms in proptest::option::of(0u64..1_000_000),
        max_steps in proptest::option::of(0u64..1_000_000),
        dir in proptest::option::of("\\PC+"),
        sync: bool,
    ) {
        let mut settings = TrainSettings::default();
        settings.run.seed = seed;
        settings.run.dir = dir.map(Into::into);
        settings.data.prompt_key = text;
        settings.optim.lr = lr;
        settings.optim.schedule = Schedule::Cosine;
        settings.algo.parameters = [
            ("gamma".to_owned(), ParameterValue::Number(gamma)),
            ("whiten".to_owned(), ParameterValue::Switch(sync)),
            ("over".to_owned(), ParameterValue::Word("tokens".to_owned())),
        ].into();
        settings.rollout.stop = stop;
        settings.train.sync = sync;
        settings.train.max_steps = max_steps;
        settings.plugins.only.insert(plugin, LimitOverrides { cpu_ms, ..Default::default() });
        let toml = settings.to_toml().expect("writes");
        let back: TrainSettings = load(Some((Path::new("settings.toml"), &toml)), &[]).expect("reads back");
        prop_assert_eq!(back, settings);
    }
}
