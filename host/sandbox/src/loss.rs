//! Loss plugins.

use wasmtime::Store;
use wasmtime::component::InstancePre;

use crate::bindings::loss::{self as wit, LossPluginPre};
use crate::error::{Cause, Failure, LoadError};
use crate::info::Info;
use crate::plugin::{Data, Plugin};

/// The action tokens of one optimiser step, flat. Segments follow each other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LossBatch {
    /// log π of each action token, as it is.
    pub logprobs: Vec<f32>,
    /// When it was sampled.
    pub sampled: Vec<f32>,
    /// When training on its batch began.
    pub old: Vec<f32>,
    pub advantages: Vec<f32>,
    /// Where each segment's action tokens begin, and last the number of all action tokens.
    pub segment_offsets: Vec<u32>,
}

/// One finite number per action token each.
#[derive(Debug, Clone, PartialEq)]
pub struct Losses {
    pub losses: Vec<f32>,
    /// The derivative of the sum of the losses by the token's log π.
    pub slopes: Vec<f32>,
}

impl LossBatch {
    /// Whether lengths and offsets fit together, so that a plugin may rely on them.
    fn check(&self) -> Result<(), String> {
        let tokens = self.segment_offsets.last().map_or(0, |&end| end as usize);
        if self.segment_offsets.first() != Some(&0) || !self.segment_offsets.is_sorted() {
            return Err("segment-offsets do not begin at 0 or fall".into());
        }
        let arrays = [
            ("logprobs", &self.logprobs),
            ("sampled", &self.sampled),
            ("old", &self.old),
            ("advantages", &self.advantages),
        ];
        for (what, array) in arrays {
            if array.len() != tokens {
                return Err(format!("{what} has {} entries, expected {tokens}", array.len()));
            }
            if !array.iter().all(|number| number.is_finite()) {
                return Err(format!("{what} are not all finite"));
            }
        }
        Ok(())
    }

    /// What a plugin returned, if it is one finite number per action token.
    fn checked(&self, what: &str, found: Vec<f32>) -> Result<Vec<f32>, Cause> {
        let (count, expected) = (found.len(), self.logprobs.len());
        if count != expected {
            let sentence = format!("{what} has {count} numbers, expected {expected}, one per action token");
            return Err(Cause::BadReturn(sentence));
        }
        match found.iter().enumerate().find(|(_, number)| !number.is_finite()) {
            Some((at, number)) => Err(Cause::NotFinite(format!("{what} of action token {at} is {number}"))),
            None => Ok(found),
        }
    }
}

/// A loaded loss plugin.
#[derive(Clone)]
pub struct Loss {
    plugin: Plugin,
    component: LossPluginPre<Data>,
}

impl Loss {
    pub(crate) fn new(plugin: Plugin, component: InstancePre<Data>) -> Result<Self, LoadError> {
        let component = LossPluginPre::new(component).map_err(|error| plugin.mismatch(&error))?;
        Ok(Self { plugin, component })
    }

    pub fn info(&self) -> &Info {
        &self.plugin.info
    }

    /// The interpreter that it was granted, as it was loaded.
    pub fn interpreter(&self) -> Option<&Info> {
        self.plugin.interpreter()
    }

    /// Makes an instance and drops it, to measure how long that takes.
    ///
    /// # Errors
    /// The plugin crashed or hit a limit.
    pub async fn instantiate(&self) -> Result<(), Failure> {
        self.plugin.instantiate(self.component.instance_pre()).await
    }

    /// The loss of every action token, and its derivative. The same batch gives the same bits.
    ///
    /// # Errors
    /// The batch does not fit together; the plugin crashed, hit a limit or reported a failure; or what it
    /// returned is of the wrong length or not finite.
    pub async fn compute(&self, batch: &LossBatch) -> Result<Losses, Failure> {
        batch.check().map_err(|what| self.plugin.failure(None, Cause::BadCall(what), None))?;
        let call = async |store: &mut Store<Data>| {
            let instance = self.component.instantiate_async(&mut *store).await?;
            instance.molt_plugin_loss().call_compute(store, to_wit(batch)).await
        };
        let checked = |found: wit::Losses| {
            Ok(Losses {
                losses: batch.checked("the losses", found.losses)?,
                slopes: batch.checked("the slopes", found.slopes)?,
            })
        };
        self.plugin.numbers(batch.logprobs.len(), call, checked).await
    }
}

fn to_wit(batch: &LossBatch) -> wit::Batch<'_> {
    wit::Batch {
        logprobs: &batch.logprobs,
        sampled: &batch.sampled,
        old: &batch.old,
        advantages: &batch.advantages,
        segment_offsets: &batch.segment_offsets,
    }
}
