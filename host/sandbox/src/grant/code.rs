//! The grant `code`: `molt:plugin/code`, run by an interpreter plugin in instances of its own.

use wasmtime::Store;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};

use super::Purpose;
use crate::bindings::code as wit;
use crate::error::{Cause, Failure};
use crate::interpreter::{Interpreter, Session};
use crate::plugin::{Call, Data};
use crate::quote;

/// Sessions that one instance may have open at a time.
const SESSIONS: usize = 4;

/// The session of an interpreter that an instance holds.
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub struct CodeSession {
    /// None before the first code, and after code that was stopped.
    session: Option<Session>,
    /// Whether the session is one too many, which runs nothing.
    excess: bool,
}

/// What a piece of code runs in.
enum Begun {
    Session(Box<Session>),
    /// For a session that begins with it.
    Room(Store<Data>, Call),
}

/// The interpreter of one instance.
pub(crate) struct CodeState {
    interpreter: Option<Interpreter>,
    call: Call,
    /// Sessions now, without those in excess.
    open: usize,
    /// Sessions that have an instance of the interpreter now.
    live: usize,
    /// Instances of the interpreter so far; each has its own randomness.
    begun: u64,
    /// Whether the guest waits until others end a session.
    waits: bool,
}

impl CodeState {
    pub(crate) fn new(interpreter: Option<Interpreter>, call: Call) -> Self {
        Self { interpreter, call, open: 0, live: 0, begun: 0, waits: false }
    }
}

impl CodeState {
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }
}

/// Links `molt:plugin/code` to the granted interpreter.
pub(crate) fn link(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    wit::add_to_linker::<Data, Code>(linker, |data| {
        let data = data.counted();
        View { state: &mut data.grants.code, table: &mut data.table }
    })
}

struct Code;

impl HasData for Code {
    type Data<'a> = View<'a>;
}

struct View<'a> {
    state: &'a mut CodeState,
    table: &'a mut ResourceTable,
}

impl wit::Host for View<'_> {}

impl wit::HostSession for View<'_> {
    async fn new(&mut self) -> wasmtime::Result<Resource<CodeSession>> {
        let session = CodeSession { session: None, excess: self.state.open >= SESSIONS };
        self.state.open += usize::from(!session.excess);
        Ok(self.table.push(session)?)
    }

    async fn run(
        &mut self,
        held: Resource<CodeSession>,
        code: String,
    ) -> wasmtime::Result<Result<wit::Output, wit::Stopped>> {
        let held = self.table.get_mut(&held)?;
        if held.excess {
            return Ok(Err(wit::Stopped::Crashed(format!("at most {SESSIONS} sessions may be open"))));
        }
        let Some(interpreter) = self.state.interpreter.clone() else {
            return Ok(Err(wit::Stopped::Crashed("no interpreter is granted".into())));
        };
        let state = &mut self.state;
        let begun = if let Some(session) = held.session.take() {
            state.live -= 1;
            Begun::Session(Box::new(session))
        } else {
            state.begun += 1;
            let seed = super::nth_seed(state.call.seed, Purpose::Session, state.begun);
            let call = Call { seed, ..state.call };
            let room = if state.live > 0 {
                interpreter.room_now(call)
            } else {
                state.waits = true;
                let room = interpreter.room(call).await;
                state.waits = false;
                Ok(room)
            };
            match room {
                Ok(room) => Begun::Room(room, call),
                Err(failure) => return Ok(Err(stopped(&failure))),
            }
        };
        // A task of its own: the interpreter's CPU time is not that of the instance that waits for it. It ends
        // with the instance.
        let run = wasmtime_wasi::runtime::spawn(async move {
            let mut session = match begun {
                Begun::Session(session) => *session,
                Begun::Room(room, call) => interpreter.begin(room, call).await?,
            };
            let output = session.run(&code).await?;
            Ok((session, output))
        });
        Ok(match run.await {
            Ok((session, output)) => {
                held.session = Some(session);
                self.state.live += 1;
                Ok(wit::Output { printed: output.printed, value: output.value, error: output.error })
            }
            Err(failure) => Err(stopped(&failure)),
        })
    }

    async fn drop(&mut self, held: Resource<CodeSession>) -> wasmtime::Result<()> {
        let session = self.table.delete(held)?;
        self.state.open -= usize::from(!session.excess);
        self.state.live -= usize::from(session.session.is_some());
        Ok(())
    }
}

/// What the instance is told. It goes on; only the session's state is lost.
fn stopped(failure: &Failure) -> wit::Stopped {
    match failure.cause {
        Cause::Cpu { limit_ms } => wit::Stopped::Time(limit_ms),
        Cause::Time { limit_s } => wit::Stopped::Time(limit_s.saturating_mul(1000)),
        Cause::Memory { limit_mib } => wit::Stopped::Memory(limit_mib),
        Cause::Output { limit_kib } => wit::Stopped::Output(limit_kib),
        _ => wit::Stopped::Crashed(quote::beginning(&failure.to_string())),
    }
}
