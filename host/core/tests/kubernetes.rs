//! The job under `examples/kubernetes` makes ranks of its pods.

use molt_core::rank_env::{Launcher, RankEnv};
use std::collections::BTreeMap;

/// What follows `key: `, wherever it first is.
fn value<'y>(yaml: &'y str, key: &str) -> &'y str {
    let of = |line: &'y str| line.trim().strip_prefix(key)?.strip_prefix(": ");
    let found = yaml.lines().find_map(of).unwrap_or_else(|| panic!("no {key}"));
    found.split(" #").next().unwrap_or(found).trim_matches(['"', ' '])
}

#[test]
fn the_pods_of_the_example_are_ranks() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kubernetes/job.yaml");
    let text = std::fs::read_to_string(path).expect("the example");
    let (service, job) = text.split_once("\n---\n").expect("a service and a job");
    let [service, name] = [service, job].map(|part| value(part, "metadata").trim_matches(['{', '}', ' ']));
    let [service, name] = [service, name].map(|part| value(part, "name"));
    // `- { name: WORLD_SIZE, value: "4" }`
    let variable = |line: &str| {
        let (name, value) =
            line.trim().strip_prefix("- { name: ")?.strip_suffix(" }")?.split_once(", value: ")?;
        Some((name.to_owned(), value.trim_matches('"').to_owned()))
    };
    let variables: BTreeMap<String, String> = job.lines().filter_map(variable).collect();
    let pods: usize = value(job, "completions").parse().expect("a number");
    // Pods wait for each other, so all must run at once.
    assert_eq!(value(job, "parallelism"), pods.to_string());
    assert_eq!(value(job, "completionMode"), "Indexed");
    // An indexed job names the first pod so, where a headless service has the subdomain's name.
    assert_eq!(value(job, "subdomain"), service);
    let first = format!("{name}-0.{service}");
    for pod in 0..pods {
        let get = |name: &str| match name {
            "JOB_COMPLETION_INDEX" => Some(pod.to_string()),
            name => variables.get(name).cloned(),
        };
        let env = RankEnv::read(get).expect("complete").expect("a rank");
        assert_eq!((env.rank, env.size, env.launcher), (pod, pods, Launcher::Kubernetes));
        assert_eq!(env.master_addr, first);
    }
}
