//! Which parameters are trained.

use crate::error::TrainError;
use molt_model::Network;
use std::collections::BTreeSet;

/// The names of all parameters that can be trained and hold none of the patterns of `optim.freeze`.
///
/// # Errors
/// If a pattern is in no name, or all parameters are frozen.
pub fn trained(network: &Network, freeze: &[String]) -> Result<BTreeSet<String>, TrainError> {
    let all = network.trainable();
    if let Some(pattern) = freeze.iter().find(|pattern| !all.iter().any(|name| name.contains(*pattern))) {
        let example = all.get(1).or(all.first()).cloned().unwrap_or_default();
        return Err(TrainError::FreezesNothing { pattern: pattern.clone(), example });
    }
    let is_trained = |name: &String| !freeze.iter().any(|pattern| name.contains(pattern));
    let trained: BTreeSet<String> = all.into_iter().filter(is_trained).collect();
    if trained.is_empty() {
        return Err(TrainError::FreezesAll);
    }
    Ok(trained)
}
