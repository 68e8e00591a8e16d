//! A mixture of experts with the embedded engine: trained where the rollouts went.

use crate::parts::*;
use crate::turns::quiz;
use molt_core::ids::{GroupId, WeightVersion};
use molt_core::settings::Generator as GeneratorSettings;
use molt_generator::{Engine, Generator, WeightUpdate};
use molt_model::{Chat, Config, Decoder};
use molt_rollout::Prompts;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A model directory as [`model`] makes it, of six experts, three for each token. Two and two have routers that
/// differ by a unit in the last place: which of them is taken is for rounding to decide.
pub(crate) fn moe_model(dir: &Path) -> PathBuf {
    let config = r#"{
        "model_type": "qwen3_moe", "vocab_size": 266, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 512, "tie_word_embeddings": true, "initializer_range": 0.2,
        "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": true,
        "mlp_only_layers": [1]
    }"#;
    let decoder = Decoder::random(Config::parse(config).unwrap(), 11);
    for (_, router) in decoder.parameters().iter().filter(|(name, _)| name.ends_with("mlp.gate.weight")) {
        for pair in [0, 2, 4] {
            router.get(pair + 1).copy_(&(router.get(pair) * (1.0 + 1e-7)));
        }
    }
    saved(&decoder, dir.join("moe"))
}

fn settings(model: &Path, replay_routing: bool) -> molt_core::settings::TrainSettings {
    let mut settings = crate::parts::settings(model);
    settings.agent.name = "quiz".into();
    settings.agent.max_turns = 3;
    settings.reward.name = Vec::new();
    settings.rollout.max_new_tokens = 12;
    settings.train.replay_routing = replay_routing;
    settings
}

fn engine(model: &Path) -> Arc<Engine> {
    let chat = Chat::load(model, None).unwrap();
    let generator = GeneratorSettings::default();
    let decoder = Decoder::load(model).unwrap();
    Arc::new(Engine::start(decoder, Arc::clone(chat.tokenizer()), WeightVersion(0), &generator, 512))
}

#[test]
fn rollouts_of_several_turns_are_trained_where_they_went() {
    let dir = tempfile::tempdir().unwrap();
    let model = moe_model(dir.path());
    for (name, sync, replay_routing) in [("sync", true, true), ("ahead", false, true), ("free", true, false)]
    {
        let mut settings = settings(&model, replay_routing);
        settings.train.sync = sync;
        settings.train.max_logprob_gap = Some(1e3);
        let prompts = (Prompts { rows: vec![quiz(); 12], skipped: 0 }, None);
        let stop = CancellationToken::new();
        let (result, _) = run(settings, engine(&model), prompts, &dir.path().join(name), &stop);
        let summary = result.unwrap();
        println!("{name}: gap {:.1e}", summary.logprob_gap_max.unwrap());
        assert_eq!(summary.steps, 3);
        let gap = summary.logprob_gap_max.unwrap();
        assert!(if replay_routing { gap < 5e-5 } else { gap > 1e-3 }, "{name}: {summary:?}");
    }
}

#[test]
fn a_trajectory_keeps_records_if_it_is_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let model = moe_model(dir.path());
    let (runtime, engine) = (runtime(), engine(&model));
    let segments = |replay_routing: bool, id: u64| {
        let driver = driver(&settings(&model, replay_routing), Arc::clone(&engine));
        let group = runtime.block_on(driver.group(GroupId(id), &quiz(), 0..4)).unwrap();
        group.finished().map(|rollout| rollout.segments[0].clone()).collect::<Vec<_>>()
    };
    for segment in segments(true, 0) {
        let routing = segment.routing().unwrap();
        assert_eq!((routing.version(), segment.actions().last().unwrap().turn), (WeightVersion(0), 2));
        assert_eq!(routing.records().count(), segment.tokens().len() - 1, "all but the last token");
        assert!(routing.records().all(|experts| experts.len() == 2 * 3));
    }
    assert!(segments(false, 1).iter().all(|segment| segment.routing().is_none()));
    let parameters = Decoder::load(&model).unwrap().snapshot();
    let update = WeightUpdate { version: WeightVersion(1), parameters };
    runtime.block_on(engine.load_weights(update)).unwrap();
    let version = |segment: &molt_core::trajectory::Segment| segment.routing().unwrap().version();
    assert!(segments(true, 2).iter().all(|segment| version(segment) == WeightVersion(1)));
}
