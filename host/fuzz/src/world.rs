//! What the puppets live in: every grant, a model that repeats what it hears, a server that answers, small limits.

use futures_util::future::BoxFuture;
use molt_core::chat::{Message, Role, Task};
use molt_sandbox::{
    Access, ChatError, ChatFinish, ChatModel, ChatReply, ChatRequest, Environment, Estimator, GrantedModel,
    Grants, Library, Limits, Reward, Sample, Sandbox,
};
use molt_tests::puppet::{Part, puppet};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) reward: Reward,
    pub(crate) group: Reward,
    pub(crate) environment: Environment,
    pub(crate) estimator: Estimator,
    /// Host and port of the server.
    pub(crate) authority: String,
    _dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let dir = TempDir::new().expect("a temporary directory");
        let data = dir.path().join("data");
        std::fs::create_dir_all(data.join("folder")).expect("a folder");
        std::fs::write(data.join("data.txt"), "some text\n").expect("a file");
        std::os::unix::fs::symlink("/etc/passwd", data.join("link")).expect("a link out of the folder");
        let sandbox = Sandbox::new(None).expect("the runtime of plugins");
        sandbox.provide(GrantedModel::Policy, Arc::new(Parrot));
        let library = Library::new(&molt_tests::plugins());
        let authority = serve();

        let limits = Limits {
            memory_mib: 4,
            cpu_ms: 200,
            call_s: 5,
            output_kib: 256,
            log_kib: 1,
            host_calls: 2000,
            ..Limits::default()
        };
        let grants = Grants {
            read: vec![data],
            scratch_mib: Some(1),
            scratch_files: 8,
            model: Some(GrantedModel::Policy),
            code: Some("grant-interpreter".into()),
            ..Grants::default()
        };
        let http =
            Grants { http: vec![format!("* http://{authority}")], http_s: 2, http_kib: 16, ..grants.clone() };
        let offline = || Access { limits, grants: grants.clone(), code_limits: limits };
        let online = Access { limits, grants: http, code_limits: limits };
        let file = |part, name: &str| written(dir.path(), name, &puppet(part));
        let fits = "the puppet is a plugin";
        Self {
            reward: sandbox.reward(&library, &file(Part::Reward, "puppet-reward"), online).expect(fits),
            group: sandbox.reward(&library, &file(Part::GroupReward, "puppet-group"), offline()).expect(fits),
            environment: sandbox
                .environment(&library, &file(Part::Environment, "puppet-environment"), offline())
                .expect(fits),
            estimator: sandbox
                .estimator(&library, &file(Part::Estimator, "puppet-estimator"), offline())
                .expect(fits),
            runtime,
            authority,
            _dir: dir,
        }
    }
}

fn written(dir: &Path, name: &str, component: &[u8]) -> String {
    let path = dir.join(name).with_extension("wasm");
    std::fs::write(&path, component).expect("the component is written");
    path.to_str().expect("temporary paths are UTF-8").to_owned()
}

/// A server on this machine that gives every request the same answer. Its host and port.
fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let authority = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\nconnection: close\r\n\r\nanswer",
            );
        }
    });
    authority
}

/// Says what it heard last; fails when it heard nothing.
struct Parrot;

impl ChatModel for Parrot {
    fn chat(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatReply, ChatError>> {
        assert!(request.temperature.is_none_or(f32::is_finite) && request.top_p.is_none_or(f32::is_finite));
        Box::pin(async move {
            let Some(last) = request.messages.last() else {
                return Err(ChatError::Unavailable("nothing was said\u{1b}[2J".into()));
            };
            Ok(ChatReply {
                text: last.content.clone(),
                tool_calls: vec![],
                finish: ChatFinish::Stop,
                prompt_tokens: 1,
                completion_tokens: 1,
            })
        })
    }
}

/// A row with this label.
pub(crate) fn task(label: &str) -> Task {
    Task {
        id: "row".into(),
        messages: vec![Message::new(Role::User, "6 * 7?")],
        label: Some(label.into()),
        fields: vec![("column".into(), "value".into())],
    }
}

/// A rollout of one turn.
pub(crate) fn sample(completion: &str, label: &str) -> Sample {
    Sample {
        task: task(label),
        seed: 7,
        messages: task(label).messages,
        completion: completion.into(),
        truncated: false,
    }
}
