//! A process that is one of several ranks.

use crate::launch::Lifeline;
use crate::stop::{OrStop, Stop};
use crate::wiring::beside::{critic, reference};
use crate::wiring::{Model, digests, toml};
use molt_core::rank_env::RankEnv;
use molt_core::settings::{Fsdp, Lora, Optim, Settings, TrainSettings};
use molt_model::Weights;
use molt_trainer::checkpoint::digest_of;
use molt_trainer::ranks::{Alike, Ranks};
use molt_trainer::step::{Layout, Learner, Models};
use std::path::Path;
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
    alike: Alike,
    weights: (&Weights, &[&Weights]),
) -> Result<Option<Ranks>, Stop> {
    let Some(env) = env else { return divides(1, fsdp, weights).map(|()| None) };
    join(env, fsdp, alike, weights).map(Some)
}

/// What all ranks must have alike beside their weights: settings, what there is to say of `data`, if it can be read here,
/// and the digests of components.
pub(crate) fn alike(
    settings: &impl Settings,
    data: Option<&str>,
    components: impl IntoIterator<Item = (String, String)>,
) -> Result<Alike, Stop> {
    let mut alike = Alike::new(toml(settings)?);
    data.into_iter().for_each(|data| alike.push(("data".to_owned(), data.to_owned())));
    components.into_iter().for_each(|component| alike.push(component));
    Ok(alike)
}

/// Refuses numbers of ranks, or models, that do not divide as the settings say.
fn divides(ranks: usize, fsdp: &Fsdp, (weights, others): (&Weights, &[&Weights])) -> Result<(), Stop> {
    let divide = |weights: &Weights| {
        Ranks::divide(ranks, fsdp, weights.network().config())
            .or_user("the ranks cannot divide the work", "molt --nproc N starts N ranks on this machine")
    };
    divide(weights)?;
    others.iter().try_for_each(|weights| divide(weights))
}

fn join(env: &RankEnv, fsdp: &Fsdp, alike: Alike, weights: (&Weights, &[&Weights])) -> Result<Ranks, Stop> {
    divides(env.size, fsdp, weights)?;
    let _lifeline = Lifeline::hold();
    Ranks::join(env, fsdp, alike, weights).or_failed(
        format!("{env} cannot join the others"),
        "look at what the other ranks say; fsdp.interface names the network device, fsdp.timeout_s how long to wait",
    )
}

/// The models beside the policy that all ranks must have the same: its reference, and its critic if that has a model of
/// its own.
pub(crate) fn beside<'w>(
    settings: &TrainSettings,
    reference: Option<&'w Weights>,
    critic: Option<&'w Weights>,
) -> Vec<&'w Weights> {
    reference.into_iter().chain(critic.filter(|_| settings.critic.model.is_some())).collect()
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
    /// What is trained on, which this rank reads only to compare it.
    pub(crate) data: Vec<&'a Path>,
    /// Those of reinforcement learning, which may have more models.
    pub(crate) train: Option<&'a TrainSettings>,
}

impl<S: Settings> Follower<'_, S> {
    /// Does what the leader says until the run is over.
    pub(crate) fn run(self, env: &RankEnv, model: &Model, runtime: &Handle) -> Result<(), Stop> {
        // The leader decides what Ctrl-C means.
        runtime.spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
        let (lora, seed) = self.lora;
        let weights = model.policy(self.optim, lora, seed)?;
        let reference = self.train.map(|train| reference(train, model)).transpose()?.flatten();
        let critic = self.train.map(|train| critic(train, model)).transpose()?;
        let others = self.train.map(|train| beside(train, reference.as_ref(), critic.as_ref()));
        let data = digest_of(&self.data).ok();
        let alike = alike(self.settings, data.as_deref(), self.train.map(digests).unwrap_or_default())?;
        let ranks = join(env, self.fsdp, alike, (&weights, &others.unwrap_or_default()))?;
        let layout = Layout::new(self.max_tokens_per_rank, self.fsdp);
        let critic = critic.zip(self.train.map(|train| &train.critic.optim));
        let models = Models { policy: (weights, self.optim), reference, critic };
        Learner::follow(models, ranks, layout, self.temperature)
            .or_failed(format!("{env} cannot go on"), "look at what the other ranks say")
    }
}
