//! A process that is one of several ranks.

use crate::launch::Lifeline;
use crate::stop::{OrStop, Stop};
use crate::wiring::Model;
use molt_core::rank_env::RankEnv;
use molt_core::settings::{Fsdp, Lora, Optim, Settings};
use molt_model::Weights;
use molt_trainer::ranks::Ranks;
use molt_trainer::step::{Layout, Learner};
use tokio::runtime::Handle;

/// Which rank this is, by its environment. None for a process that trains alone.
pub(crate) fn read() -> Result<Option<RankEnv>, Stop> {
    let env = RankEnv::read(|name| std::env::var(name).ok()).or_user(
        "this process cannot tell which rank it is",
        "molt --nproc N starts N ranks on this machine",
    )?;
    // One rank is nobody to talk to.
    Ok(env.filter(|env| env.size > 1))
}

/// Connects to the other ranks, if there are any.
pub(crate) fn others(
    env: Option<&RankEnv>,
    fsdp: &Fsdp,
    settings: &impl Settings,
    weights: &Weights,
) -> Result<Option<Ranks>, Stop> {
    let Some(env) = env else { return divides(1, fsdp, weights).map(|()| None) };
    join(env, fsdp, settings, weights).map(Some)
}

/// Refuses numbers of ranks, or models, that do not divide as the settings say.
fn divides(ranks: usize, fsdp: &Fsdp, weights: &Weights) -> Result<(), Stop> {
    let model = weights.network().config();
    Ranks::divide(ranks, fsdp, model)
        .or_user("the ranks cannot divide the work", "molt --nproc N starts N ranks on this machine")
}

fn join(env: &RankEnv, fsdp: &Fsdp, settings: &impl Settings, weights: &Weights) -> Result<Ranks, Stop> {
    let text = settings.to_toml().or_user("these settings cannot be written down", "use paths in UTF-8")?;
    divides(env.size, fsdp, weights)?;
    let _lifeline = Lifeline::hold();
    Ranks::join(env, fsdp, &text, weights).or_failed(
        format!("{env} cannot join the others"),
        "look at what the other ranks say; fsdp.interface names the network device, fsdp.timeout_s how long to wait",
    )
}

/// What a follower needs of the settings of its command.
pub(crate) struct Follower<'a, S> {
    pub(crate) settings: &'a S,
    pub(crate) fsdp: &'a Fsdp,
    pub(crate) optim: &'a Optim,
    /// With the seed of the run.
    pub(crate) lora: (&'a Lora, u64),
    pub(crate) max_tokens_per_rank: usize,
    pub(crate) temperature: f64,
}

impl<S: Settings> Follower<'_, S> {
    /// Does what the leader says until the run is over.
    pub(crate) fn run(self, env: &RankEnv, model: &Model, runtime: &Handle) -> Result<(), Stop> {
        // The leader decides what Ctrl-C means.
        runtime.spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
        let (lora, seed) = self.lora;
        let weights = model.policy(self.optim, lora, seed)?;
        let ranks = join(env, self.fsdp, self.settings, &weights)?;
        let layout = Layout::new(self.max_tokens_per_rank, self.fsdp);
        Learner::follow(weights, ranks, self.optim, layout, self.temperature)
            .or_failed(format!("{env} cannot go on"), "look at what the other ranks say")
    }
}
