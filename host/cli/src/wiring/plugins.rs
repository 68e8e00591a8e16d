//! The plugins of a run: each loaded under its limits and grants, told, and written down.

use crate::present::short_digest;
use crate::stop::{OrStop, Stop};
use molt_core::settings::{self, Access, GrantedModel, Grants, Limits, NativeLoss, nearest};
use molt_generator::Engine;
use molt_model::Chat;
use molt_rollout::{PolicyModel, TurnSettings, WeightedReward};
use molt_sandbox::{
    Environment, Estimator, Info, JudgeEndpoint, Library, LoadError, Lock, Loss, Sandbox, inspect,
};
use serde_json::{Value, json};
use std::sync::Arc;

const HELP: &str = "`molt plugin list` shows the plugins that are found; plugins.path adds directories to look in, and in a \
                    checkout of Molt `cargo xtask plugins` builds those that come with it";

/// Grants, and the imports of a plugin that can make use of each.
const IMPORTS: [(&str, &str); 7] = [
    ("read", "wasi:filesystem/"),
    ("scratch_mib", "wasi:filesystem/"),
    ("http", "wasi:http/"),
    ("model", "molt:plugin/model@"),
    ("code", "molt:plugin/code@"),
    ("real_clock", "wasi:clocks/"),
    ("real_random", "wasi:random/"),
];

/// The plugins of a run, loaded under their limits and grants.
pub(crate) struct Plugins {
    sandbox: Sandbox,
    library: Library,
    settings: settings::Plugins,
    /// The components that the run must use, if it must use certain ones.
    locked: Option<Lock>,
    /// There is a judge that plugins may be granted.
    judge: bool,
    used: Vec<Used>,
}

/// One plugin of the run.
struct Used {
    role: &'static str,
    info: Info,
    access: Access,
}

impl Plugins {
    pub(crate) fn new(settings: &settings::Plugins, judge: &settings::Judge) -> Result<Self, Stop> {
        let library = Library::new(&settings.path);
        let locked = settings.lock.as_deref().map(Lock::load).transpose();
        let locked =
            locked.or_user("plugins.lock cannot be used", "give the plugins.lock of a run directory")?;
        let sandbox = molt_author::sandbox()?;
        if judge.url.is_some() {
            let help = "judge.url and judge.key_env say where it is, and which variable holds its key";
            let endpoint = JudgeEndpoint::new(judge).or_user("the judge cannot be asked", help)?;
            sandbox.provide(GrantedModel::Judge, Arc::new(endpoint));
        }
        let (settings, judge) = (settings.clone(), judge.url.is_some());
        Ok(Self { sandbox, library, settings, locked, judge, used: Vec::new() })
    }

    /// Lets plugins ask the policy, as far as they are granted it.
    pub(crate) fn provide_policy(&self, engine: &Arc<Engine>, chat: &Arc<Chat>, turn: &TurnSettings) {
        let policy =
            PolicyModel { generator: Arc::clone(engine), chat: Arc::clone(chat), turn: turn.clone() };
        self.sandbox.provide(GrantedModel::Policy, Arc::new(policy));
    }

    pub(crate) fn environment(&mut self, agent: &settings::Agent) -> Result<Environment, Stop> {
        let access = self.access(&agent.name);
        let loaded = self.sandbox.environment(&self.library, &agent.name, access.clone());
        let environment = loaded.or_user(refused("agent.name", &agent.name), HELP)?;
        self.enter("agent", environment.info(), environment.interpreter(), access)?;
        Ok(environment)
    }

    /// The reward plugins with their weights, in order.
    pub(crate) fn rewards(&mut self, rewards: &[(&str, f64)]) -> Result<Vec<WeightedReward>, Stop> {
        rewards.iter().map(|(name, weight)| self.reward(name, *weight)).collect()
    }

    fn reward(&mut self, name: &str, weight: f64) -> Result<WeightedReward, Stop> {
        let access = self.access(name);
        let loaded = self.sandbox.reward(&self.library, name, access.clone());
        let plugin = loaded.or_user(refused("reward.name", name), HELP)?;
        let info = plugin.info();
        if let Some(other) =
            self.used.iter().find(|used| used.role == "reward" && used.info.name == info.name)
        {
            let error = format!(
                "reward.name holds two plugins that are called {}: {} and {}",
                info.name,
                other.info.path.display(),
                info.path.display()
            );
            return Err(Stop::user(error, "the metric of each goes by its name: rename one of the files"));
        }
        self.enter("reward", info, plugin.interpreter(), access)?;
        Ok(WeightedReward { plugin, weight })
    }

    pub(crate) fn estimator(&mut self, algo: &settings::Algo) -> Result<Estimator, Stop> {
        let access = self.access(&algo.estimator);
        let loaded = self.sandbox.estimator(&self.library, &algo.estimator, access.clone());
        let estimator = loaded.or_user(refused("algo.estimator", &algo.estimator), HELP)?;
        self.enter("estimator", estimator.info(), estimator.interpreter(), access)?;
        Ok(estimator)
    }

    /// The loss plugin that is asked for, if it is none of the host's losses.
    pub(crate) fn loss(&mut self, algo: &settings::Algo) -> Result<Option<Loss>, Stop> {
        if algo.native_loss().is_some() {
            return Ok(None);
        }
        let access = self.access(&algo.loss);
        let loaded = self.sandbox.loss(&self.library, &algo.loss, access.clone());
        let native: Vec<&str> = NativeLoss::ALL.into_iter().map(NativeLoss::name).collect();
        let meant = nearest(&algo.loss.to_lowercase(), native.iter().copied());
        let help = match (&loaded, meant) {
            (Err(LoadError::NotFound { .. }), Some(meant)) => format!("did you mean {meant}?"),
            _ => {
                format!(
                    "take one of the host's, {}, or a loss that `molt plugin list` shows",
                    native.join(", ")
                )
            }
        };
        let loss = loaded.or_user(refused("algo.loss", &algo.loss), help)?;
        self.enter("loss", loss.info(), loss.interpreter(), access)?;
        Ok(Some(loss))
    }

    /// Takes down a plugin that was loaded, and the interpreter that it was granted.
    fn enter(
        &mut self,
        role: &'static str,
        info: &Info,
        interpreter: Option<&Info>,
        access: Access,
    ) -> Result<(), Stop> {
        let code_access = Access::from(access.code_limits);
        let mut entries = vec![Used { role, info: info.clone(), access }];
        entries.extend(interpreter.map(|info| Used {
            role: "interpreter",
            info: info.clone(),
            access: code_access,
        }));
        for used in entries {
            if let Some(lock) = &self.locked {
                lock.check(&used.info).or_user("plugins.lock forbids a plugin of this run", "")?;
            }
            let known = |other: &Used| other.role == "interpreter" && other.info == used.info;
            if !self.used.iter().any(known) {
                self.used.push(used);
            }
        }
        Ok(())
    }

    /// Limits and grants go by the plugin's own name, whether it is asked for by name, version or path.
    fn access(&self, asked: &str) -> Access {
        let mut access = self.settings.access_of(&Library::own_name(asked));
        if let Some(code) = &access.grants.code {
            access.code_limits = self.settings.limits_of(&Library::own_name(code));
        }
        access
    }

    /// Refuses limits and grants for a plugin that is not of the run, once all are loaded.
    pub(crate) fn check_names(&self) -> Result<(), Stop> {
        let all: Vec<&str> = self.used.iter().map(|used| used.info.name.as_str()).collect();
        let limited = self.settings.only.keys();
        check_names(limited, &all, |name| {
            format!("plugins.only.{name} limits a plugin that this run does not use")
        })?;
        let own = self.used.iter().filter(|used| used.role != "interpreter");
        let own: Vec<&str> = own.map(|used| used.info.name.as_str()).collect();
        check_names(self.settings.grant.keys(), &own, |name| match all.contains(&name) {
            true => format!("plugins.grant.{name} is for an interpreter, which can be granted nothing"),
            false => format!("plugins.grant.{name} is for a plugin that this run does not use"),
        })
    }

    /// What `components.json` holds.
    pub(crate) fn components(&self) -> Value {
        let component = |Used { role, info, access }: &Used| {
            json!({
                "role": role,
                "name": info.name,
                "kind": info.kind.to_string(),
                "version": info.version,
                "contract": info.contract,
                "digest": info.digest,
                "size": info.size,
                "path": info.path,
                "imports": info.imports,
                "limits": access.limits,
                "grants": access.grants,
            })
        };
        json!({
            "molt": env!("CARGO_PKG_VERSION"),
            "plugins": self.used.iter().map(component).collect::<Vec<_>>(),
        })
    }

    /// The digest of every component, by its role and name.
    pub(crate) fn digests(&self) -> Vec<(String, String)> {
        self.used.iter().map(|Used { role, info, .. }| digest(role, info)).collect()
    }

    /// What `plugins.lock` holds.
    pub(crate) fn lock(&self) -> Result<String, Stop> {
        let mut lock = Lock::default();
        for Used { role, info, access } in &self.used {
            lock.add(role, info, &access.grants);
        }
        lock.to_toml().or_user("the plugins cannot be written down", "use paths in UTF-8")
    }

    /// One line per plugin, for people, and one for each grant that its plugin cannot use.
    pub(crate) fn describe(&self) -> Vec<String> {
        let lines = self.used.iter().flat_map(|Used { role, info, access }| {
            let Limits { memory_mib, cpu_ms, .. } = access.limits;
            let digest = short_digest(&info.digest);
            let granted = match &access.grants.describe()[..] {
                [] => "nothing".to_owned(),
                granted => granted.join(", "),
            };
            let line = format!(
                "{role:<9} {} {digest} ({memory_mib} MiB, {cpu_ms} ms per call), grants: {granted}",
                info.name
            );
            let idle = idle(&access.grants, &info.imports).into_iter().map(|(grant, import)| {
                let (name, import) = (&info.name, import.trim_end_matches(['/', '@']));
                format!("warning: plugins.grant.{name}.{grant} is of no use: {name} does not import {import}")
            });
            std::iter::once(line).chain(idle)
        });
        let asks = |used: &Used| used.access.grants.model == Some(GrantedModel::Judge);
        let idle = self.judge && !self.used.iter().any(asks);
        let idle = idle.then(|| "warning: judge.url is of no use: no plugin is granted the judge".to_owned());
        lines.chain(idle).collect()
    }
}

fn digest(role: &str, info: &Info) -> (String, String) {
    (format!("{role} {}", info.name), info.digest.clone())
}

/// [`Plugins::digests`] of those that are found here, by a process that loads none.
pub(crate) fn digests(settings: &settings::TrainSettings) -> Vec<(String, String)> {
    let settings::TrainSettings { agent, reward, algo, plugins, .. } = settings;
    let mut named = vec![("agent", agent.name.clone()), ("estimator", algo.estimator.clone())];
    named.extend(reward.name.iter().map(|name| ("reward", name.clone())));
    named.extend(algo.native_loss().is_none().then(|| ("loss", algo.loss.clone())));
    let code = |(_, name): &(&str, String)| plugins.access_of(&Library::own_name(name)).grants.code;
    let interpreters: Vec<_> = named.iter().filter_map(code).map(|name| ("interpreter", name)).collect();
    let library = Library::new(&plugins.path);
    let found = |(role, name): (&str, String)| {
        inspect(&library.find(&name).ok()?).ok().map(|info| digest(role, &info))
    };
    named.into_iter().chain(interpreters).filter_map(found).collect()
}

/// The grants that a plugin with these imports cannot use, with the import that each is for.
fn idle(grants: &Grants, imports: &[String]) -> Vec<(&'static str, &'static str)> {
    let granted = [
        !grants.read.is_empty(),
        grants.scratch_mib.is_some(),
        !grants.http.is_empty(),
        grants.model.is_some(),
        grants.code.is_some(),
        grants.real_clock,
        grants.real_random,
    ];
    let imported = |prefix: &str| imports.iter().any(|import| import.starts_with(prefix));
    let idle =
        IMPORTS.into_iter().zip(granted).filter(|((_, import), granted)| *granted && !imported(import));
    idle.map(|(idle, _)| idle).collect()
}

/// Refuses a name that is not one of `known`, with the nearest.
fn check_names<'a>(
    mut given: impl Iterator<Item = &'a String>,
    known: &[&str],
    error: impl Fn(&str) -> String,
) -> Result<(), Stop> {
    let Some(stray) = given.find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let help = nearest(stray, known.iter().copied())
        .map_or_else(|| format!("the run uses {}", known.join(", ")), |near| format!("did you mean {near}?"));
    Err(Stop::user(error(stray), help))
}

fn refused(key: &str, name: &str) -> String {
    format!("{key} {name} cannot be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_without_its_import_is_of_no_use() {
        let imports = ["wasi:filesystem/types@0.2.6".to_owned(), "molt:plugin/model@0.2.0".to_owned()];
        let grants = Grants {
            read: vec!["data".into()],
            http: vec!["GET http://127.0.0.1:1".into()],
            model: Some(GrantedModel::Policy),
            real_clock: true,
            ..Grants::default()
        };
        assert_eq!(idle(&grants, &imports), [("http", "wasi:http/"), ("real_clock", "wasi:clocks/")]);
        assert!(idle(&Grants::default(), &[]).is_empty());
    }
}
