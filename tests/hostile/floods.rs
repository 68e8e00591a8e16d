//! Logs: floods, escapes that would drive a terminal, bytes that are no text.

use crate::attack::{Answer, Attack, Fails};

pub(crate) fn attacks() -> Vec<Attack> {
    let flooded = || Fails("trap", "flooded");
    // Ten MiB are copied, and the rest of the machine may be busy.
    let patient = |attack: Attack| attack.with(|access| access.limits.cpu_ms = 10_000);
    let attacks = [
        Attack::reward("a-flood", "flood", flooded()),
        Attack::reward("a-flood-with-escapes", "flood with escapes", flooded()),
        Attack::reward("a-flood-of-rubbish", "flood with rubbish", flooded()),
        Attack::reward("a-flood-of-one-that-does-not-fail", "flood quietly", Answer("reward: 1.0")),
    ];
    attacks.into_iter().map(patient).collect()
}
