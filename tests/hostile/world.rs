//! The world outside: files, processes, the environment, the network, time, chance.

use crate::attack::{Answer, Attack, Fails};

pub(crate) fn attacks() -> Vec<Attack> {
    let file = |told| Fails("denied", told);
    let network = |told| Fails("denied", told);
    let nothing = || Answer("reward: 0.0");
    vec![
        Attack::reward("the-passwords", "read /etc/passwd", file("a file, \"etc/passwd\"")),
        Attack::reward("the-shadow", "read /etc/shadow", file("a file, \"etc/shadow\"")),
        Attack::reward(
            "the-environment-of-the-host",
            "read /proc/self/environ",
            file("\"proc/self/environ\""),
        ),
        Attack::reward("the-memory-of-the-host", "read /proc/self/mem", file("\"proc/self/mem\"")),
        Attack::reward("the-keys-of-the-user", "read /root/.ssh/id_ed25519", file("id_ed25519")),
        Attack::reward("a-path-upwards", "read ../../../../etc/passwd", file("etc/passwd")),
        Attack::reward("a-path-that-hides", "read /scratch/../etc/passwd", file("etc/passwd")),
        Attack::reward("a-path-to-here", "read .", file("a file")),
        Attack::reward("the-list-of-the-root", "list /", file("a file")),
        Attack::reward("whether-a-file-exists", "stat /etc/passwd", file("a file")),
        Attack::reward("writing-a-file", "write molt.txt", file("a file, \"molt.txt\"")),
        Attack::reward("writing-a-device", "write /dev/sda", file("a file, \"dev/sda\"")),
        Attack::reward("making-directories", "make /tmp/molt/x", file("a file")),
        Attack::reward("removing-a-file", "remove /etc/passwd", file("a file, \"etc/passwd\"")),
        Attack::reward("renaming-a-file", "rename /etc/passwd", file("a file")),
        Attack::reward("a-hard-link", "link /etc/passwd", file("a file")),
        Attack::reward("a-connection", "connect 127.0.0.1:80", network("the network")),
        Attack::reward("a-connection-by-name", "connect localhost:80", network("the network, \"localhost\"")),
        Attack::reward("the-metadata-of-a-cloud", "connect 169.254.169.254:80", network("the network")),
        Attack::reward("a-connection-of-version-6", "connect [::1]:80", network("the network")),
        Attack::reward("a-server", "listen 0.0.0.0:8080", network("the network")),
        Attack::reward("a-datagram", "datagram 0.0.0.0:5353", network("the network")),
        Attack::reward(
            "a-name",
            "resolve secret.example.org",
            network("the network, \"secret.example.org\""),
        ),
        Attack::reward("a-process", "run /bin/sh", nothing()),
        Attack::reward("a-thread", "thread", nothing()),
        Attack::reward("variables-and-arguments", "environment", nothing()),
        Attack::reward("standard-input", "stdin", nothing()),
        Attack::reward("the-time-of-the-host", "time", Answer("reward: 946684800.0")),
        Attack::reward("a-century-of-sleep", "sleep 3155760000", Answer("reward: 3155760000.0")),
        Attack::environment("the-passwords-in-step", "step: file", file("a file, \"etc/passwd\"")),
        Attack::environment("the-passwords-in-reset", "reset: file", file("a file, \"etc/passwd\"")),
        Attack::environment(
            "the-passwords-in-constructor",
            "constructor: file",
            file("a file, \"etc/passwd\""),
        ),
        Attack::estimator("the-passwords-in-estimate", 14.0, file("a file, \"etc/passwd\"")),
    ]
}
