//! What each rule refuses.

use super::refused;

#[test]
fn each_rule_refuses_what_it_is_for() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("train.sync", "true"), ("train.async_queue_size", "2")], "train.sync cannot go with"),
        (&[("rollout.temperature", "0")], "rollout.temperature is 0, but must be from 0.01 to 100"),
        (&[("eval.temperature", "0.001")], "eval.temperature is 0.001, but must be 0, or from 0.01 to 100"),
        (&[("optim.lr", "nan")], "optim.lr is NaN, but must be above 0"),
        (&[("eval.top_p", "0")], "eval.top_p is 0, but must be above 0 and at most 1"),
        (&[("eval.k", "2")], "eval.k holds 2, but each k is from 1 to eval.samples, which is 1"),
        (&[("eval.k", "")], "eval.k is empty"),
        (&[("algo.clip_low", "1")], "algo.clip_low is 1, but must be between 0 and 1"),
        (&[("algo.clip_high", "1.2")], "algo.clip_high is 1.2, but must be between 0 and 1"),
        (&[("algo.loss", "cispo"), ("algo.clip_high", "0")], "algo.clip_high is 0, but must be above 0"),
        (
            &[("algo.loss", "cispo"), ("algo.clip_low", "0.2")],
            "algo.clip_low is set, and algo.loss cispo has no such bound",
        ),
        (
            &[("algo.loss", "importance"), ("algo.clip_high", "0.2")],
            "algo.clip_high is set, and algo.loss importance has no such bound",
        ),
        (&[("algo.dual_clip", "1")], "algo.dual_clip is 1, but must be above 1"),
        (
            &[("algo.loss", "gspo"), ("algo.dual_clip", "3")],
            "algo.dual_clip is set, and algo.loss gspo has no such bound",
        ),
        (&[("algo.loss", "")], "algo.loss is empty"),
        (&[("algo.entropy_coef", "nan")], "algo.entropy_coef is NaN, but must be a finite number"),
        (&[("algo.correction.level", "token")], "algo.correction.level is set, but algo.importance sampled"),
        (&[("algo.correction.mode", "clip")], "algo.correction.mode is set, and does nothing while"),
        (&[("algo.correction.low", "0.5")], "algo.correction.low is set, and does nothing while"),
        (&[("algo.correction.high", "2")], "algo.correction.high is set, and does nothing while"),
        (
            &[("algo.correction.max_masked_batches", "2")],
            "algo.correction.max_masked_batches is set, and does nothing while",
        ),
        (
            &[("algo.correction.level", "seq"), ("algo.correction.mode", "clip")],
            "algo.correction.mode must be mask unless",
        ),
        (
            &[("algo.correction.level", "geo"), ("algo.correction.mode", "trunc")],
            "algo.correction.mode must be mask unless",
        ),
        (
            &[
                ("algo.correction.level", "token"),
                ("algo.correction.mode", "trunc"),
                ("algo.correction.low", "0.5"),
            ],
            "algo.correction.low is set, and trunc has no lower end",
        ),
        (
            &[
                ("algo.correction.level", "token"),
                ("algo.correction.mode", "clip"),
                ("algo.correction.max_masked_batches", "2"),
            ],
            "algo.correction.max_masked_batches is set, and only",
        ),
        (
            &[("algo.correction.level", "seq"), ("algo.correction.low", "1.5")],
            "algo.correction.low is 1.5, but must be from 0 to 1",
        ),
        (
            &[("algo.correction.level", "geo"), ("algo.correction.high", "0.9")],
            "algo.correction.high is 0.9, but must be at least 1",
        ),
        (&[("optim.beta2", "1")], "optim.beta2 is 1, but must be at least 0 and below 1"),
        (&[("plugins.max_error_rate", "1.1")], "plugins.max_error_rate is 1.1, but must be from 0 to 1"),
        (&[("plugins.only.math.cpu_ms", "0")], "plugins.only.math.cpu_ms is 0, but must be from 1 to"),
        (
            &[("plugins.limits.memory_mib", "5000")],
            "plugins.limits.memory_mib is 5000, but must be from 1 to 4096",
        ),
        (&[("plugins.limits.stack_kib", "1")], "plugins.limits.stack_kib is 1, but must be from 64 to 16384"),
        (&[("plugins.limits.fuel", "0")], "plugins.limits.fuel is 0"),
        (&[("plugins.only.p.instances", "0")], "plugins.only.p.instances is 0"),
        (&[("plugins.only.p.table_elements", "0")], "plugins.only.p.table_elements is 0"),
        (&[("plugins.only.p.host_calls", "0")], "plugins.only.p.host_calls is 0"),
        (
            &[("plugins.only.p.call_s", "90000")],
            "plugins.only.p.call_s is 90000, but must be from 1 to 86400",
        ),
        (&[("plugins.only.p.output_kib", "0")], "plugins.only.p.output_kib is 0"),
        (&[("plugins.limits.log_kib", "2000000")], "plugins.limits.log_kib is 2000000"),
        (&[("plugins.grant.p.read", "a,,b")], "plugins.grant.p.read holds an empty path"),
        (&[("plugins.grant.p.read", "/")], "plugins.grant.p.read holds /, which has no last name"),
        (
            &[("plugins.grant.p.read", "a/data,b/data")],
            "plugins.grant.p.read holds two directories that the plugin",
        ),
        (&[("plugins.grant.p.read", "x/scratch")], "plugins.grant.p.read holds a directory called scratch"),
        (&[("plugins.grant.p.scratch_mib", "0")], "plugins.grant.p.scratch_mib is 0"),
        (&[("plugins.grant.p.scratch_files", "0")], "plugins.grant.p.scratch_files is 0"),
        (
            &[("plugins.grant.p.http", "GET example.org")],
            "plugins.grant.p.http holds a bad entry: \"GET example.org\"",
        ),
        (&[("plugins.grant.p.http_s", "0")], "plugins.grant.p.http_s is 0"),
        (&[("plugins.grant.p.http_kib", "2000000")], "plugins.grant.p.http_kib is 2000000"),
        (&[("plugins.grant.p.http_requests", "0")], "plugins.grant.p.http_requests is 0"),
        (&[("plugins.grant.p.model_calls", "0")], "plugins.grant.p.model_calls is 0"),
        (&[("plugins.grant.p.code", "")], "plugins.grant.p.code is empty"),
        (&[("plugins.grant.p.model", "judge")], "plugins.grant.p.model is judge, but there is none"),
        (
            &[("judge.url", "127.0.0.1:8000"), ("judge.model", "m")],
            "judge.url is \"127.0.0.1:8000\", but must be like",
        ),
        (&[("judge.url", "http://u:p@host/v1"), ("judge.model", "m")], "judge.url is"),
        (&[("judge.url", "http://host/v1")], "judge.model is required"),
        (&[("judge.key_env", "A=B")], "judge.key_env is not the name of an environment variable"),
        (&[("judge.request_s", "0")], "judge.request_s is 0"),
        (&[("judge.concurrency", "0")], "judge.concurrency is 0"),
        (&[("reward.name", "a,")], "reward.name holds an empty name"),
        (&[("reward.name", "a,b,a")], "reward.name holds a twice"),
        (
            &[("reward.name", ""), ("reward.weight", "1")],
            "reward.weight has length 1, but reward.name has length 0",
        ),
        (
            &[("reward.name", "a,b"), ("reward.weight", "1")],
            "reward.weight has length 1, but reward.name has length 2",
        ),
        (
            &[("reward.name", "a"), ("reward.weight", "inf")],
            "reward.weight is inf, but must be finite numbers",
        ),
        (&[("eval.samples", "4")], "eval.samples is set, and does nothing without eval.prompts"),
        (&[("eval.stop", "x")], "eval.stop is set, and does nothing without eval.prompts"),
        (
            &[("algo.kl.estimator", "k2")],
            "algo.kl.estimator is set, and does nothing while algo.kl.coef is 0",
        ),
        (&[("train.eval_every", "5")], "train.eval_every is set, so eval.prompts must name"),
        (&[("train.keep_best", "accuracy")], "train.keep_best is set, so eval.prompts must name"),
        (&[("train.keep_best", "pass@8")], "train.keep_best is pass@8, but must be accuracy, reward_mean"),
        (&[("train.keep_best", "maj@1")], "train.keep_best is maj@1, but must be accuracy"),
        (&[("train.steps_per_batch", "17")], "train.steps_per_batch is 17, more than the 16 prompts"),
        (&[("reward.clip_low", "1"), ("reward.clip_high", "1")], "reward.clip_low is 1, but must be below"),
        (&[("reward.clip_high", "nan")], "reward.clip_high is NaN, but must be a finite number"),
        (
            &[("reward.overlong_penalty", "1")],
            "reward.overlong_penalty and reward.overlong_cache go together",
        ),
        (&[("reward.overlong_cache", "8")], "reward.overlong_penalty and reward.overlong_cache go together"),
        (
            &[("reward.overlong_penalty", "0"), ("reward.overlong_cache", "8")],
            "reward.overlong_penalty is 0, but must be above 0",
        ),
        (
            &[("reward.overlong_penalty", "1"), ("reward.overlong_cache", "257")],
            "reward.overlong_cache is 257, but must be from 1 to rollout.max_new_tokens, 256",
        ),
        (&[("rollout.min_group", "0")], "rollout.min_group is 0, but must be from 1"),
        (&[("rollout.min_group", "9")], "rollout.min_group is 9, but must be from 1 to rollout.samples"),
        (&[("rollout.filter.low", "0.5")], "rollout.filter.low is set, and does nothing without"),
        (&[("rollout.filter.max_refills", "5")], "rollout.filter.max_refills is set, and does nothing"),
        (
            &[("rollout.filter.by", "reward"), ("rollout.samples_per_prompt", "1")],
            "rollout.filter.by compares the rollouts of a prompt",
        ),
        (
            &[("rollout.filter.by", "pass_rate"), ("rollout.filter.high", "1.5")],
            "rollout.filter.high is 1.5, but must be from 0 to 1",
        ),
        (
            &[("rollout.filter.by", "reward"), ("rollout.filter.low", "2")],
            "rollout.filter.low is 2, but must be below rollout.filter.high, 1",
        ),
        (
            &[
                ("rollout.filter.by", "pass_rate"),
                ("rollout.filter.low", "0.51"),
                ("rollout.filter.high", "0.6"),
            ],
            "rollout.filter.low is 0.51, and with rollout.filter.high 0.6 no number of solved rollouts out of 8",
        ),
        (&[("train.epochs_per_batch", "0")], "train.epochs_per_batch is 0, but at least 1"),
        (&[("rollout.stop", "a,")], "rollout.stop holds an empty string"),
        (&[("rollout.max_context", "1")], "rollout.max_context is 1, but at least 2 tokens"),
        (&[("fsdp.tensor_parallel", "0")], "fsdp.tensor_parallel is 0, but at least 1"),
        (&[("fsdp.context_parallel", "0")], "fsdp.context_parallel is 0, but at least 1"),
        (&[("fsdp.expert_parallel", "0")], "fsdp.expert_parallel is 0, but at least 1"),
        (&[("optim.freeze", "norm,")], "optim.freeze holds an empty pattern"),
        (&[("lora.rank", "0")], "lora.rank is 0, but at least 1"),
        (&[("lora.rank", "4"), ("lora.alpha", "0")], "lora.alpha is 0, but must be above 0"),
        (&[("lora.alpha", "4")], "lora.alpha is set, and does nothing without lora.rank"),
        (&[("lora.targets", "q_proj")], "lora.targets is set, and does nothing without lora.rank"),
        (&[("algo.kl.coef", "-1")], "algo.kl.coef is -1, but must be at least 0"),
        (&[("algo.kl.in", "reward")], "algo.kl.in is set, and does nothing while algo.kl.coef is 0"),
        (&[("algo.kl.estimator", "k3")], "algo.kl.estimator is set, and does nothing while"),
        (&[("algo.kl.coef", "1"), ("algo.kl.target", "0")], "algo.kl.target is 0, but must be above 0"),
        (
            &[("algo.kl.coef", "1"), ("algo.kl.estimator", "k1")],
            "algo.kl.estimator is k1, whose gradient is not that of the divergence",
        ),
        (
            &[("algo.kl.coef", "1"), ("algo.kl.horizon", "5")],
            "algo.kl.horizon is set, and does nothing without",
        ),
        (&[("reference.model", "r")], "reference.model is set, and does nothing while algo.kl.coef is 0"),
        (&[("reference.model", ""), ("algo.kl.coef", "1")], "reference.model is empty: name"),
        (&[("reference.model", "r"), ("teacher.model", "t")], "reference.model cannot go with teacher.model"),
        (
            &[("teacher.model", "t"), ("algo.kl.estimator", "k2")],
            "algo.kl.estimator must be k1 with algo.kl.in reward",
        ),
        (
            &[("teacher.model", "t"), ("algo.kl.coef", "0")],
            "algo.kl.coef is 0, and with it nothing is learnt from teacher.model",
        ),
        (
            &[("teacher.model", "t"), ("algo.kl.in", "loss")],
            "algo.kl.in is loss, and teacher.model teaches by the reward",
        ),
        (
            &[
                ("reward.name", ""),
                ("teacher.model", "t"),
                ("eval.prompts", "e.jsonl"),
                ("agent.name", "single-turn@0.1.0"),
            ],
            "eval.prompts is set, and nothing scores what is evaluated",
        ),
        (
            &[("algo.estimator", "on-policy-distill")],
            "algo.estimator is on-policy-distill, which learns from a teacher alone: name one with teacher.model",
        ),
        (
            &[("algo.estimator", "./x/on-policy-distill.wasm"), ("algo.kl.coef", "1")],
            "algo.estimator is ./x/on-policy-distill.wasm, which learns from a teacher alone",
        ),
        (
            &[("algo.estimator", "on-policy-distill@0.2")],
            "algo.estimator is on-policy-distill@0.2, which learns",
        ),
        (
            &[("algo.estimator", "on-policy-distill"), ("algo.kl.coef", "1"), ("algo.kl.in", "reward")],
            "algo.estimator is on-policy-distill, which learns from a teacher alone",
        ),
        (
            &[("reward.name", ""), ("teacher.model", "t"), ("rollout.filter.by", "pass_rate")],
            "rollout.filter.by is set, and nothing scores the rollouts",
        ),
        (
            &[("reward.name", ""), ("teacher.model", "t"), ("reward.clip_low", "0")],
            "reward.clip_low is set, and nothing scores the rollouts",
        ),
        (&[("judge.model", "m")], "judge.model is set, and does nothing without judge.url"),
        (&[("ckpt.keep", "5")], "ckpt.keep is set, so ckpt.every must say"),
        (&[("critic.clip", "-1")], "critic.clip is -1, but must be at least 0"),
        (&[("critic.passes", "0")], "critic.passes is 0, but at least 1"),
        (&[("critic.steps_per_batch", "0")], "critic.steps_per_batch is 0, but at least 1"),
        (&[("critic.steps_per_batch", "17")], "critic.steps_per_batch is 17, more than the 16 prompts"),
        (&[("critic.optim.lr", "0")], "critic.optim.lr is 0, but must be above 0"),
        (&[("rollout.batch_size", "0")], "rollout.batch_size is 0, but at least 1 is needed"),
    ];
    for (pairs, start) in cases {
        let text = refused(pairs);
        assert!(text.lines().any(|line| line.starts_with(start)), "{pairs:?} gave: {text}");
    }
}
