//! `molt init`: a model with random weights.

use crate::stop::{OrStop, Stop};
use molt_core::seed::{Purpose, derive};
use molt_model::{Chat, Config, Decoder, Tokenizer};
use std::fs;
use std::path::Path;

/// Makes the model directory `to` from `config.json` and the tokenizer files in `from`.
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
    fs::create_dir_all(to).or_user(unwritable(), "name another directory")?;
    let decoder = Decoder::random(config, derive(seed, Purpose::Init));
    Chat::copy_files(from, to).or_user(unwritable(), "free space there, or name another directory")?;
    decoder.save(to).or_user(unwritable(), "free space there, or name another directory")?;
    let parameters: usize = decoder.parameters().iter().map(|(_, tensor)| tensor.numel()).sum();
    eprintln!("model     {}, {} random parameters", to.display(), crate::present::quantity(parameters));
    Ok(())
}
