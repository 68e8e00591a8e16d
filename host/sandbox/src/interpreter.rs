//! Interpreter plugins: they run code that a model wrote.

use wasmtime::Store;
use wasmtime::component::{InstancePre, ResourceAny};

use crate::bindings::interpreter::{self as wit, InterpreterPlugin, InterpreterPluginPre};
use crate::error::{Cause, Failure, LoadError};
use crate::info::Info;
use crate::plugin::{Call, Data, Plugin};

/// What code did. An error of the code is an answer to the model, not a failure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodeOutput {
    /// What it printed, stdout and stderr in the order of writing.
    pub printed: String,
    /// The value of the last expression, as the language would show it.
    pub value: Option<String>,
    /// The error that ended it, as the language reports it.
    pub error: Option<String>,
}

/// A loaded interpreter plugin.
#[derive(Clone)]
pub struct Interpreter {
    plugin: Plugin,
    component: InterpreterPluginPre<Data>,
}

impl Interpreter {
    pub(crate) fn new(plugin: Plugin, component: InstancePre<Data>) -> Result<Self, LoadError> {
        let component = InterpreterPluginPre::new(component).map_err(|error| plugin.mismatch(&error))?;
        Ok(Self { plugin, component })
    }

    pub fn info(&self) -> &Info {
        &self.plugin.info
    }

    /// Makes an instance and drops it, to measure how long that takes.
    ///
    /// # Errors
    /// The plugin crashed or hit a limit.
    pub async fn instantiate(&self) -> Result<(), Failure> {
        let component = self.component.instance_pre();
        self.plugin.instantiate(component).await
    }

    /// Begins a session in an instance of its own.
    ///
    /// # Errors
    /// The plugin crashed, hit a limit, or asked for what is not granted.
    pub async fn open(&self, call: Call) -> Result<Session, Failure> {
        let room = self.room(call).await;
        self.begin(room, call).await
    }

    /// Room for a session; waits for it.
    pub(crate) async fn room(&self, call: Call) -> Store<Data> {
        self.plugin.store(call).await
    }

    /// As [`room`](Self::room), without waiting: whoever holds one session and waits for another could wait for
    /// somebody who does the same.
    pub(crate) fn room_now(&self, call: Call) -> Result<Store<Data>, Failure> {
        self.plugin.store_now(call).ok_or_else(|| {
            let cause = Cause::Full("all sessions are taken".into());
            self.plugin.failure(call.rollout, cause, None)
        })
    }

    pub(crate) async fn begin(&self, mut store: Store<Data>, call: Call) -> Result<Session, Failure> {
        let run = async |store: &mut Store<Data>| {
            let instance = self.component.instantiate_async(&mut *store).await?;
            let session = instance.molt_plugin_code().session().call_constructor(store).await?;
            Ok((instance, session))
        };
        let (instance, session) = self.plugin.run(&mut store, call.rollout, run).await?;
        Ok(Session { plugin: self.plugin.clone(), call, store, instance, session })
    }
}

/// State that lasts from one piece of code to the next. Dropping it drops its instance.
pub struct Session {
    plugin: Plugin,
    call: Call,
    store: Store<Data>,
    instance: InterpreterPlugin,
    session: ResourceAny,
}

impl Session {
    /// Runs `code` to its end. After a failure the session cannot go on.
    ///
    /// # Errors
    /// The plugin crashed, hit a limit, or said that the host had stopped it.
    pub async fn run(&mut self, code: &str) -> Result<CodeOutput, Failure> {
        let run = async |store: &mut Store<Data>| {
            self.instance.molt_plugin_code().session().call_run(store, self.session, code).await
        };
        match self.plugin.run(&mut self.store, self.call.rollout, run).await? {
            Ok(wit::Output { printed, value, error }) => Ok(CodeOutput { printed, value, error }),
            Err(_) => {
                let what = "`stopped`, which only the host says".to_owned();
                Err(self.plugin.failure(self.call.rollout, Cause::BadReturn(what), Some(self.store.data())))
            }
        }
    }
}
