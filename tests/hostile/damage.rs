//! Components that were cut off or changed on their way.

use crate::attack::{SANDBOX, call, library, limits, sample};
use molt_sandbox::{Library, LoadError, Verdict, inspect};
use molt_tests::component::{component, module, score, sections};
use std::path::Path;

fn written(dir: &Path, bytes: &[u8]) -> std::path::PathBuf {
    let path = dir.join("bad.wasm");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[tokio::test]
async fn every_beginning_of_a_component_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let good = component("reward", &module(&score("(f64.store (i32.const 1032) (f64.const 7))")));
    // What follows the last section that is code says nothing that the host needs: names for people.
    let all = || sections(&good).filter(|(_, end)| *end < good.len());
    let code = sections(&good).filter(|(id, _)| *id != 0).map(|(_, end)| end).max().unwrap();
    let readable: Vec<usize> = all().map(|(_, end)| end).filter(|end| *end >= code).collect();
    assert!(!readable.is_empty() && all().count() > 2 * readable.len(), "{readable:?} of {}", good.len());
    for length in 0..good.len() {
        let path = written(dir.path(), &good[..length]);
        match inspect(&path) {
            Ok(_) => {
                assert!(readable.contains(&length), "{length} of {} bytes", good.len());
                let plugin = SANDBOX.reward(&Library::new(&[]), path.to_str().unwrap(), limits()).unwrap();
                let verdict = plugin.score(call(1), &sample("42")).await.unwrap();
                assert!(matches!(verdict, Verdict::Scored { reward: 7.0, .. }), "{verdict:?}");
            }
            Err(LoadError::Corrupt { .. } | LoadError::NotWasm { .. } | LoadError::NotPlugin { .. }) => {
                assert!(!readable.contains(&length), "{length} of {} bytes", good.len());
            }
            Err(other) => panic!("{length} of {} bytes: {other}", good.len()),
        }
    }
    let real = std::fs::read(library().find("exact-match").unwrap()).unwrap();
    for length in (0..real.len()).step_by(997) {
        assert!(inspect(&written(dir.path(), &real[..length])).is_err(), "{length} of {} bytes", real.len());
    }
}

/// A sequence of numbers that is the same every time.
fn numbers(mut state: u64) -> impl Iterator<Item = usize> {
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    })
}

#[tokio::test]
async fn flipped_bits_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let good = component("reward", &module(&score("(f64.store (i32.const 1032) (f64.const 1))")));
    let mut numbers = numbers(3);
    let (mut loaded, mut refused) = (0, 0);
    for _ in 0..1000 {
        let mut bad = good.clone();
        for _ in 0..=numbers.next().unwrap() % 3 {
            let at = numbers.next().unwrap() % bad.len();
            bad[at] ^= 1 << (numbers.next().unwrap() % 8);
        }
        let path = written(dir.path(), &bad);
        // Some damage is harmless, as in a name, and some makes another program; what matters is an answer.
        match SANDBOX.reward(&Library::new(&[]), path.to_str().unwrap(), limits()) {
            Ok(plugin) => {
                loaded += 1;
                let _ = plugin.score(call(1), &sample("42")).await;
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("bad"), "{error}");
            }
        }
    }
    assert!(loaded > 50 && refused > 50, "{loaded} loaded, {refused} refused");
}
