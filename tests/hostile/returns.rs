//! Answers that are malformed, too large, not numbers, or that claim to be somebody else's.

use crate::attack::{Answer, Attack, Fails};
use crate::exports::{NEW, environment, estimator};
use molt_tests::component::{component, module, score};

pub(crate) fn attacks() -> Vec<Attack> {
    [fixtures(), verdicts(), groups(), transitions(), estimates()].into_iter().flatten().collect()
}

fn fixtures() -> Vec<Attack> {
    let nan = |told| Fails("not-finite", told);
    let bad = |told| Fails("bad-return", told);
    vec![
        Attack::reward("unscorable", "invalid", Answer("Invalid(\"cannot be scored\")")),
        Attack::reward("grader-down", "infra", Answer("Infra(\"the grader is down\")")),
        Attack::reward("reward-nan", "nan", nan("the reward is NaN")),
        Attack::reward("reward-infinite", "infinite", nan("the reward is inf")),
        Attack::reward("reward-minus-infinite", "minus infinite", nan("the reward is -inf")),
        Attack::reward("solved-with-nan", "solved nan", nan("the reward is NaN")),
        Attack::reward("metric-nan", "nan metric", nan("metric \"m\" is NaN")),
        Attack::reward("metric-infinite", "infinite metric", nan("metric \"m\" is inf")),
        Attack::reward("metric-minus-infinite", "minus infinite metric", nan("metric \"m\" is -inf")),
        Attack::reward("reward-minus-zero", "minus zero", Answer("reward: -0.0, solved: false")),
        Attack::reward("reward-smallest", "smallest", Answer("reward: 5e-324, solved: false")),
        Attack::reward("too-many-metrics", "many metrics", bad("65 metrics")),
        Attack::reward("far-too-many-metrics", "very many metrics", Fails("output-limit", "1024 KiB")),
        Attack::reward("metric-with-a-long-name", "long metric", bad("more than 100 characters")),
        Attack::reward("metric-with-control-characters", "control metric", bad("control character")),
        Attack::reward("as-many-metrics-as-may-be", "most metrics", Answer("reward: 1.0")),
        Attack::reward("a-big-answer", "big", Fails("output-limit", "1024 KiB")),
        Attack::reward("an-answer-with-escapes", "invalid with escapes", Answer("Invalid(\"[2Jw w w")),
        Attack::environment("environment-reports-with-escapes", "reset: fail", Fails("infra", "[2Jno way")),
        Attack::environment("many-messages", "reset: many messages", Fails("output-limit", "1024 KiB")),
        Attack::environment("a-big-message", "reset: big message", Fails("output-limit", "1024 KiB")),
        Attack::environment("a-big-message-in-step", "step: big message", Fails("output-limit", "1024 KiB")),
        Attack::environment("step-nan", "step: nan", nan("the step's reward is NaN")),
        Attack::environment("step-infinite", "step: infinite", nan("the step's reward is inf")),
        Attack::environment("step-minus-infinite", "step: minus infinite", nan("the step's reward is -inf")),
        Attack::environment("step-metric-infinite", "step: infinite metric", nan("metric \"m\" is inf")),
        Attack::environment("step-metric-nan", "step: nan metric", nan("metric \"m\" is NaN")),
        Attack::environment("step-metrics", "step: many metrics", bad("1000 metrics")),
        Attack::estimator("advantage-nan", 3.0, nan("the advantages of rollout 0 is NaN")),
        Attack::estimator("too-many-advantages", 4.0, bad("the advantages has 3 numbers, expected 2")),
        Attack::estimator("estimator-gives-up", 5.0, Fails("infra", "there is nothing to estimate")),
        Attack::estimator("return-infinite", 6.0, nan("the returns of action token 1 is inf")),
        Attack::estimator("return-minus-infinite", 7.0, nan("the returns of action token 2 is -inf")),
        Attack::estimator("no-advantages", 8.0, bad("the advantages has 0 numbers, expected 2")),
        Attack::estimator("no-returns", 9.0, bad("the returns has 0 numbers, expected 3")),
        Attack::estimator("far-too-many-returns", 10.0, Fails("output-limit", "1024 KiB")),
        Attack::estimator("estimator-reports-with-escapes", 12.0, Fails("infra", "[2Jplugin `innocent`")),
        Attack::estimator("advantage-minus-zero", 15.0, Answer("advantages: [1.0, 1.0, -0.0]")),
    ]
}

/// A reward whose verdict is what `body` leaves at address 1024.
fn verdict(body: &str) -> Vec<u8> {
    component("reward", &module(&score(body)))
}

/// The reason of an invalid verdict: its address and length.
fn reason(at: u32, length: u32) -> Vec<u8> {
    verdict(&format!(
        "(i32.store8 (i32.const 1024) (i32.const 1))
         (i32.store (i32.const 1032) (i32.const {}))
         (i32.store (i32.const 1036) (i32.const {}))",
        at as i32, length as i32
    ))
}

/// An invalid verdict whose reason has these bytes.
fn bytes(escaped: &str, length: u32) -> Vec<u8> {
    component(
        "reward",
        &module(&format!(
            "(data (i32.const 4096) \"{escaped}\") {}",
            score(&format!(
                "(i32.store8 (i32.const 1024) (i32.const 1)) (i32.store (i32.const 1032) (i32.const 4096))
                 (i32.store (i32.const 1036) (i32.const {length}))"
            ))
        )),
    )
}

/// Metrics at an address, so many of them.
fn metrics(at: u32, number: u32) -> Vec<u8> {
    verdict(&format!(
        "(i32.store (i32.const 1044) (i32.const {}))
         (i32.store (i32.const 1048) (i32.const {}))",
        at as i32, number as i32
    ))
}

fn verdicts() -> Vec<Attack> {
    let bad = |told| Fails("bad-return", told);
    // Every metric has the same name of a mebibyte, which costs the guest nothing and the host a copy of each.
    let shared_names = verdict(
        "(local $at i32)
         (drop (memory.grow (i32.const 16)))
         (memory.fill (i32.const 65536) (i32.const 97) (i32.const 1048576))
         (local.set $at (i32.const 4096))
         (loop $more
           (i32.store (local.get $at) (i32.const 65536))
           (i32.store offset=4 (local.get $at) (i32.const 1048576))
           (local.set $at (i32.add (local.get $at) (i32.const 16)))
           (br_if $more (i32.lt_u (local.get $at) (i32.const 20480))))
         (i32.store (i32.const 1044) (i32.const 4096))
         (i32.store (i32.const 1048) (i32.const 1024))",
    );
    let many_empty = verdict(
        "(drop (memory.grow (i32.const 256)))
         (i32.store (i32.const 1044) (i32.const 65536))
         (i32.store (i32.const 1048) (i32.const 1048576))",
    );
    vec![
        Attack::made(
            "verdict-of-no-case",
            verdict("(i32.store8 (i32.const 1024) (i32.const 7))"),
            bad("discriminant"),
        ),
        Attack::made(
            "option-of-no-case",
            verdict("(i32.store8 (i32.const 1040) (i32.const 9))"),
            bad("discriminant"),
        ),
        Attack::made("verdict-misaligned", verdict("(return (i32.const 1025))"), bad("aligned")),
        Attack::made("verdict-outside", verdict("(return (i32.const -8))"), bad("out of bounds")),
        Attack::made("verdict-across-the-end", verdict("(return (i32.const 131064))"), bad("out of bounds")),
        Attack::made("reason-outside", reason(0xffff_fff0, 100), bad("out of bounds")),
        Attack::made("reason-across-the-end", reason(131_000, 100), bad("out of bounds")),
        Attack::made("reason-of-two-gibibytes", reason(0, 0x8000_0000), bad("out of bounds")),
        Attack::made("reason-of-all-there-is", reason(1, u32::MAX), bad("out of bounds")),
        Attack::made("reason-with-bytes-that-are-no-text", bytes("\\ff\\fe", 2), bad("utf-8")),
        Attack::made("reason-cut-within-a-character", bytes("\\f0\\9f\\98", 3), bad("utf-8")),
        Attack::made("reason-with-half-a-surrogate", bytes("\\ed\\a0\\80", 3), bad("utf-8")),
        Attack::made("reason-in-too-many-bytes", bytes("\\c0\\af", 2), bad("utf-8")),
        Attack::made("metrics-misaligned", metrics(4097, 1), bad("aligned")),
        Attack::made("metrics-outside", metrics(131_064, 2), bad("out of bounds")),
        Attack::made("metrics-of-two-to-the-31", metrics(0, 1 << 31), bad("out of bounds")),
        Attack::made("metrics-whose-size-overflows", metrics(0, 1 << 28), bad("out of bounds")),
        Attack::made("a-million-metrics-without-names", many_empty, Fails("output-limit", "1024 KiB")),
        Attack::made("a-thousand-metrics-that-share-a-name", shared_names, Fails("output-limit", "1024 KiB")),
        Attack::made(
            "reward-is-another-nan",
            verdict("(i64.store (i32.const 1032) (i64.const 0xfff4dead00000001))"),
            Fails("not-finite", "the reward is NaN"),
        ),
        Attack::made(
            "solved-by-any-byte",
            verdict("(i32.store16 (i32.const 1040) (i32.const 0xff01))"),
            Answer("reward: 0.0, solved: true"),
        ),
    ]
}

/// A reward of groups whose verdicts lie at an address, so many of them. All memory is zero: rewards of 0.
fn group(at: u32, number: u32) -> Vec<u8> {
    component(
        "group-reward",
        &module(&format!(
            r#"(func (export "molt:plugin/group-reward@0.2.0#score-group") (param i32 i32) (result i32)
               (drop (memory.grow (i32.const 64)))
               (i32.store (i32.const 1024) (i32.const {}))
               (i32.store (i32.const 1028) (i32.const {}))
               (i32.const 1024))"#,
            at as i32, number as i32
        )),
    )
}

fn groups() -> Vec<Attack> {
    let bad = |told| Fails("bad-return", told);
    vec![
        Attack::made_group("a-verdict-for-each", group(4096, 2), Answer("[Scored { reward: 0.0")),
        Attack::made_group("a-verdict-too-few", group(4096, 1), bad("1 verdicts of 2 rollouts")),
        Attack::made_group("a-verdict-too-many", group(4096, 3), bad("3 verdicts of 2 rollouts")),
        Attack::made_group("no-verdicts", group(0, 0), bad("0 verdicts of 2 rollouts")),
        Attack::made_group("verdicts-without-end", group(0, 1 << 31), bad("out of bounds")),
        Attack::made_group(
            "a-hundred-thousand-verdicts",
            group(65536, 100_000),
            Fails("output-limit", "1024 KiB"),
        ),
        Attack::made_group("verdicts-misaligned", group(4100, 2), bad("aligned")),
    ]
}

fn transitions() -> Vec<Attack> {
    let bad = |told| Fails("bad-return", told);
    let reset = |body: &str| environment(NEW, body, "");
    let step = |body: &str| environment(NEW, "", body);
    // The memory is zero: no messages, no reward, not done.
    vec![
        Attack::made_environment("nothing-at-all", step(""), Answer("done: false")),
        Attack::made_environment(
            "reset-of-no-case",
            reset("(i32.store8 (i32.const 1024) (i32.const 2))"),
            bad("discriminant"),
        ),
        Attack::made_environment(
            "a-role-that-does-not-exist",
            reset(
                "(i32.store (i32.const 1028) (i32.const 4096)) (i32.store (i32.const 1032) (i32.const 1))
                 (i32.store8 (i32.const 4096) (i32.const 4))",
            ),
            bad("discriminant"),
        ),
        Attack::made_environment(
            "messages-without-end",
            reset("(i32.store (i32.const 1028) (i32.const 0)) (i32.store (i32.const 1032) (i32.const -1))"),
            bad("out of bounds"),
        ),
        Attack::made_environment(
            "a-million-messages-of-nothing",
            reset(
                "(drop (memory.grow (i32.const 192))) (i32.store (i32.const 1028) (i32.const 65536))
                 (i32.store (i32.const 1032) (i32.const 1048576))",
            ),
            Fails("output-limit", "1024 KiB"),
        ),
        Attack::made_environment(
            "a-failure-of-two-gibibytes",
            step(
                "(i32.store8 (i32.const 1024) (i32.const 1)) (i32.store (i32.const 1032) (i32.const 0))
                 (i32.store (i32.const 1036) (i32.const 0x7fffffff))",
            ),
            bad("out of bounds"),
        ),
        Attack::made_environment("step-misaligned", step("(return (i32.const 1028))"), bad("aligned")),
    ]
}

fn estimates() -> Vec<Attack> {
    let bad = |told| Fails("bad-return", told);
    let estimate = |body: &str| estimator("", body);
    vec![
        Attack::made_estimator(
            "advantages-without-end",
            estimate(
                "(i32.store (i32.const 1032) (i32.const 0)) (i32.store (i32.const 1036) (i32.const 0x40000000))",
            ),
            bad("out of bounds"),
        ),
        Attack::made_estimator(
            "advantages-misaligned",
            estimate(
                "(i32.store (i32.const 1032) (i32.const 4098)) (i32.store (i32.const 1036) (i32.const 2))",
            ),
            bad("aligned"),
        ),
        Attack::made_estimator(
            "credit-of-no-case",
            estimate("(i32.store8 (i32.const 1028) (i32.const 2))"),
            bad("discriminant"),
        ),
        Attack::made_estimator(
            "estimates-outside",
            estimate("(return (i32.const 0x7ffffff0))"),
            bad("out of bounds"),
        ),
        Attack::made_estimator(
            "traits-outside",
            estimator("(return (i32.const 0x7ffffff0))", ""),
            bad("out of bounds"),
        ),
        Attack::made_estimator(
            "no-estimates-at-all",
            estimate(""),
            bad("the advantages has 0 numbers, expected 2"),
        ),
    ]
}
