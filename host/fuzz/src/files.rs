//! Files that claim to be plugins: read without running them, and if they are plugins loaded and called.
#![no_main]

use libfuzzer_sys::fuzz_target;
use molt_core::chat::Task;
use molt_sandbox::{
    Call, EstimatorBatch, Kind, Library, Limits, LoadError, LossBatch, Sample, Sandbox, inspect,
};
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

struct World {
    runtime: Runtime,
    sandbox: Sandbox,
    library: Library,
    path: PathBuf,
    _dir: TempDir,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let dir = TempDir::new().expect("a temporary directory");
    World {
        runtime: Builder::new_current_thread().enable_all().build().expect("a runtime"),
        sandbox: Sandbox::new(None).expect("the runtime of plugins"),
        library: Library::new(&[]),
        path: dir.path().join("fuzzed.wasm"),
        _dir: dir,
    }
});

fuzz_target!(|input: &[u8]| {
    std::fs::write(&WORLD.path, input).expect("the file is written");
    match inspect(&WORLD.path) {
        Ok(info) => {
            let texts = [info.version, info.description, Some(info.contract)].into_iter().flatten();
            for text in texts.chain(info.imports) {
                assert!(text.len() < 2048 && !text.chars().any(char::is_control), "{text:?}");
            }
            // Larger ones take long to compile.
            if input.len() < 16 << 10 {
                load(info.kind);
            }
        }
        Err(error) => check(&error),
    }
});

fn load(kind: Kind) {
    let World { sandbox, library, path, runtime, .. } = &*WORLD;
    let limits =
        Limits { memory_mib: 4, cpu_ms: 100, call_s: 5, output_kib: 64, log_kib: 1, ..Limits::default() };
    let name = path.to_str().expect("temporary paths are UTF-8");
    let call = Call { rollout: None, seed: 1 };
    let task = Task { id: "row".into(), messages: vec![], label: None, fields: vec![] };
    let loaded = match kind {
        Kind::Reward => sandbox.reward(library, name, limits).map(|plugin| {
            let sample =
                Sample { task, seed: 1, messages: vec![], completion: "42".into(), truncated: false };
            let _ = runtime.block_on(plugin.score(call, &sample));
            let _ = runtime.block_on(plugin.score_group(call, &[sample]));
        }),
        Kind::Environment => sandbox.environment(library, name, limits).map(|plugin| {
            runtime.block_on(async {
                if let Ok(mut episode) = plugin.open(call, &task).await {
                    let _ = episode.reset().await;
                }
            });
        }),
        Kind::Estimator => sandbox.estimator(library, name, limits).map(|plugin| {
            let batch = EstimatorBatch {
                segment_offsets: vec![0],
                turn_offsets: vec![0],
                ..EstimatorBatch::default()
            };
            let _ = runtime.block_on(plugin.estimate(&batch));
        }),
        Kind::Loss => sandbox.loss(library, name, limits).map(|plugin| {
            let batch = LossBatch { segment_offsets: vec![0], ..LossBatch::default() };
            let _ = runtime.block_on(plugin.compute(&batch));
        }),
        _ => sandbox.interpreter(library, name, limits).map(drop),
    };
    if let Err(error) = loaded {
        check(&error);
    }
}

fn check(error: &LoadError) {
    let sentence = error.to_string();
    assert!(sentence.contains("fuzzed") && sentence.len() < 8192, "{sentence}");
    assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
}
