//! `molt init`: a model with random weights.

use crate::stop::{OrStop, Stop};
use molt_core::seed::{Purpose, derive};
use molt_model::{Chat, Config, Decoder, Tokenizer};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Makes the model directory `to` from `config.json` and the tokenizer files in `from`. It is written beside its
/// place and moved there when it is whole.
pub(crate) fn run(from: &Path, to: &Path, seed: u64) -> Result<(), Stop> {
    let unusable = || format!("no model can be made from {}", from.display());
    let help = "FROM holds config.json, tokenizer.json and tokenizer_config.json";
    let config = Config::load(&from.join("config.json")).or_user(unusable(), help)?;
    let tokenizer = Tokenizer::load(from).or_user(unusable(), help)?;
    if tokenizer.vocab_size() > config.vocab_size {
        let error = format!(
            "{}: its tokenizer has {} tokens, and config.json says {}",
            unusable(),
            tokenizer.vocab_size(),
            config.vocab_size
        );
        return Err(Stop::user(error, "raise vocab_size in config.json"));
    }
    let taken = fs::read_dir(to).map(|mut entries| entries.next().is_some());
    if to.exists() && taken.unwrap_or(true) {
        return Err(Stop::user(
            format!("{} is in use", to.display()),
            "name a directory that does not exist yet",
        ));
    }
    let unwritable = || format!("the model cannot be written to {}", to.display());
    let part = part(to).or_user(unwritable(), "name another directory")?;
    let decoder = Decoder::random(config, derive(seed, Purpose::Init));
    let help = "free space there, or name another directory";
    let written = Chat::copy_files(from, &part)
        .or_user(unwritable(), help)
        .and_then(|()| decoder.save(&part).or_user(unwritable(), help))
        .and_then(|()| fs::rename(&part, to).or_user(unwritable(), help));
    if written.is_err() {
        // Whatever keeps it from being removed is not what the user must hear of.
        let _ = fs::remove_dir_all(&part);
    }
    written?;
    let parameters: usize = decoder.parameters().iter().map(|(_, tensor)| tensor.numel()).sum();
    eprintln!("model     {}, {} random parameters", to.display(), crate::present::quantity(parameters));
    Ok(())
}

/// A new directory `TO.part`. One that is there already was left by a command that was killed, or is in use.
fn part(to: &Path) -> io::Result<PathBuf> {
    let name = to.file_name().ok_or_else(|| io::Error::other("it has no name"))?;
    let mut part = name.to_owned();
    part.push(".part");
    let part = to.with_file_name(part);
    if let Some(parent) = part.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::create_dir(&part)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", part.display())))?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A copy of the demo's model, which has no weights.
    fn source(dir: &Path) -> PathBuf {
        let from = dir.join("from");
        fs::create_dir(&from).expect("a directory");
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo/model");
        for entry in fs::read_dir(demo).expect("the demo's model") {
            let file = entry.expect("an entry");
            fs::copy(file.path(), from.join(file.file_name())).expect("a copy");
        }
        from
    }

    #[test]
    fn a_model_appears_whole() {
        let dir = TempDir::new().expect("a temporary directory");
        let to = dir.path().join("new/model");
        run(&source(dir.path()), &to, 1).expect("made");
        assert!(to.join("model.safetensors").is_file() && to.join("tokenizer.json").is_file());
        assert_eq!(fs::read_dir(dir.path().join("new")).expect("a directory").count(), 1);
    }

    #[test]
    fn a_failure_leaves_nothing() {
        let dir = TempDir::new().expect("a temporary directory");
        let from = source(dir.path());
        // A directory where a file should be is found only when it is copied.
        fs::create_dir(from.join("chat_template.jinja")).expect("a directory");
        let stop = run(&from, &dir.path().join("model"), 1).expect_err("it cannot be copied");
        assert!(stop.error.contains("cannot be written"), "{stop:?}");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "only the source");
    }

    #[test]
    fn what_a_killed_command_left_is_named_and_kept() {
        let dir = TempDir::new().expect("a temporary directory");
        let left = dir.path().join("model.part");
        fs::create_dir(&left).expect("a directory");
        let stop = run(&source(dir.path()), &dir.path().join("model"), 1).expect_err("the place is taken");
        assert!(stop.because.iter().any(|cause| cause.contains("model.part")), "{stop:?}");
        assert!(left.is_dir());
    }
}
