//! The ranks of one side, as processes that take steps when they are told to.

use crate::work::{Answer, End, Work};
use molt_torch::Store;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

pub(crate) struct Side {
    ranks: Vec<(Child, ChildStdin, Lines<BufReader<ChildStdout>>)>,
    /// Serves the ranks' rendezvous.
    _store: Store,
}

impl Side {
    /// Starts `size` ranks, which share the cores, with further variables in their environment.
    pub(crate) fn start(
        size: usize,
        (program, further): (&[&Path], &[(&str, &str)]),
        model: &Path,
        work: &Work,
    ) -> Self {
        let store = Store::serve("127.0.0.1", 0, Duration::from_secs(60)).expect("a port");
        let threads = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / size).max(1));
        let work = serde_json::to_string(work).expect("JSON");
        let start = |rank: usize| {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]).arg(model).arg(&work);
            let variables = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", size.to_string()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", store.port().to_string()),
                ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
                ("GLOO_SOCKET_IFNAME", "lo".to_owned()),
                ("OMP_NUM_THREADS", threads.to_string()),
                ("OMP_WAIT_POLICY", "passive".to_owned()),
            ];
            command
                .envs(variables)
                .envs(further.iter().copied())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut child = command.spawn().expect("a rank starts");
            let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
            (child, input, BufReader::new(output).lines())
        };
        Self { ranks: (0..size).map(start).collect(), _store: store }
    }

    /// Takes `steps` steps.
    pub(crate) fn step(&mut self, steps: usize) -> Answer {
        for (_, input, _) in &mut self.ranks {
            writeln!(input, "{steps}").expect("a rank that lives");
        }
        answer(&mut self.ranks[0].2)
    }

    /// Ends the ranks; what each says of its memory.
    pub(crate) fn end(self) -> Vec<End> {
        let (children, outputs): (Vec<_>, Vec<_>) =
            self.ranks.into_iter().map(|(child, input, output)| (drop(input), (child, output)).1).unzip();
        let ends = outputs.into_iter().map(|mut output| {
            loop {
                let line = output.next().expect("an answer").expect("text");
                if let Ok(end) = serde_json::from_str(&line) {
                    break end;
                }
            }
        });
        let ends = ends.collect();
        for mut child in children {
            assert!(child.wait().expect("a child").success());
        }
        ends
    }
}

fn answer(output: &mut Lines<BufReader<ChildStdout>>) -> Answer {
    let line = output.next().expect("an answer").expect("text");
    serde_json::from_str(&line).expect("the answer to a number of steps")
}
