//! Which rank this process is, as its launcher tells in environment variables.

use std::fmt;

/// One of several processes that train together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEnv {
    pub rank: usize,
    /// Ranks in all.
    pub size: usize,
    /// Where the ranks' store is.
    pub master_addr: String,
    pub master_port: u16,
    /// Whether the launcher serves the store; otherwise rank 0 does.
    pub store_is_served: bool,
    /// How often the launcher has started the ranks again.
    pub restarts: u64,
    pub launcher: Launcher,
}

/// Who said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`: torchrun, `molt --nproc` and most others.
    Torchrun,
    /// Open MPI's `mpirun`.
    Mpi,
    /// A step of Slurm (`srun`).
    Slurm,
    /// An indexed job of Kubernetes, which numbers its pods.
    Kubernetes,
}

/// Why the variables make no rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankEnvError {
    #[error(
        "{given} is set, and {missing} is not; a launcher sets both, and a process that trains alone neither"
    )]
    Incomplete { given: &'static str, missing: &'static str },
    #[error("{name} is {value:?}, and must be {expected}")]
    Invalid { name: &'static str, value: String, expected: &'static str },
    #[error("rank {rank} is not below the number of ranks, which is {size}")]
    OutOfRange { rank: usize, size: usize },
}

/// The port of PyTorch, when no variable gives another.
const PORT: u16 = 29500;

impl RankEnv {
    /// Reads the variables of torchrun, then of Open MPI, which may start its ranks within a Slurm step, then of such a step,
    /// then of an indexed Kubernetes job, with `get`. None for a process that trains alone.
    ///
    /// # Errors
    /// If the variables are incomplete or contradict each other.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, RankEnvError> {
        let vars = Variables(&get);
        let is_counted = get("WORLD_SIZE").is_some() && get(POD).is_none() && get(MPI_RANK).is_none();
        let found = if get("RANK").is_some() || is_counted {
            let (rank, size) = vars.pair("RANK", "WORLD_SIZE")?;
            (Launcher::Torchrun, rank, size, vars.needed("MASTER_ADDR", "RANK")?)
        } else if get(MPI_RANK).is_some() {
            let (rank, size) = vars.pair(MPI_RANK, "OMPI_COMM_WORLD_SIZE")?;
            // It does not say where rank 0 is, unless that is here.
            let is_here = get("OMPI_COMM_WORLD_LOCAL_SIZE") == get("OMPI_COMM_WORLD_SIZE");
            let here = (is_here && get("MASTER_ADDR").is_none()).then(|| "127.0.0.1".to_owned());
            (Launcher::Mpi, rank, size, here.map_or_else(|| vars.needed("MASTER_ADDR", MPI_RANK), Ok)?)
        } else if get("SLURM_STEP_NUM_TASKS").is_some() {
            // Set within `srun` only: a batch script that calls molt itself trains alone.
            let (rank, size) = vars.pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")?;
            let first =
                get("MASTER_ADDR").or_else(|| get("SLURM_STEP_NODELIST").map(|list| first_host(&list)));
            let first = first.ok_or(RankEnvError::Incomplete {
                given: "SLURM_STEP_NUM_TASKS",
                missing: "SLURM_STEP_NODELIST",
            })?;
            (Launcher::Slurm, rank, size, first)
        } else if get(POD).is_some() && get("WORLD_SIZE").is_some() {
            let (rank, size) = vars.pair(POD, "WORLD_SIZE")?;
            (Launcher::Kubernetes, rank, size, vars.needed("MASTER_ADDR", POD)?)
        } else {
            return Ok(None);
        };
        let (launcher, rank, size, master_addr) = found;
        if rank >= size {
            return Err(RankEnvError::OutOfRange { rank, size });
        }
        let store_is_served = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| {
            launcher == Launcher::Torchrun && ["true", "1"].contains(&text.to_lowercase().as_str())
        });
        let master_port = match get("MASTER_PORT") {
            Some(_) => vars.number("MASTER_PORT", "a port, from 1 to 65535")?,
            None => PORT,
        };
        let restarts = match get(RESTARTS) {
            Some(_) => vars.number(RESTARTS, "a whole number")?,
            None => 0,
        };
        Ok(Some(Self { rank, size, master_addr, master_port, store_is_served, restarts, launcher }))
    }

    /// Whether all ranks are on this machine, as far as the address tells.
    pub fn is_local(&self) -> bool {
        ["127.0.0.1", "localhost", "::1"].contains(&self.master_addr.as_str())
    }
}

impl fmt::Display for RankEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launcher = match self.launcher {
            Launcher::Torchrun => "RANK and WORLD_SIZE",
            Launcher::Mpi => "Open MPI",
            Launcher::Slurm => "a Slurm step",
            Launcher::Kubernetes => "an indexed job",
        };
        let Self { rank, size, master_addr, master_port, .. } = self;
        write!(f, "rank {rank} of {size} at {master_addr}:{master_port}, by {launcher}")
    }
}

/// torchrun keeps its store when it starts the ranks again.
const RESTARTS: &str = "TORCHELASTIC_RESTART_COUNT";

const MPI_RANK: &str = "OMPI_COMM_WORLD_RANK";

const POD: &str = "JOB_COMPLETION_INDEX";

struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn pair(&self, rank: &'static str, size: &'static str) -> Result<(usize, usize), RankEnvError> {
        for (missing, given) in [(rank, size), (size, rank)] {
            self.needed(missing, given)?;
        }
        Ok((self.number(rank, "a whole number")?, self.number(size, "a whole number")?))
    }

    fn needed(&self, name: &'static str, given: &'static str) -> Result<String, RankEnvError> {
        (self.0)(name).ok_or(RankEnvError::Incomplete { given, missing: name })
    }

    fn number<T: std::str::FromStr>(
        &self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<T, RankEnvError> {
        let value = (self.0)(name).unwrap_or_default();
        value.parse().map_err(|_| RankEnvError::Invalid { name, value, expected })
    }
}

/// The first host of a Slurm list such as `gpu[003-007,9],login1`.
fn first_host(list: &str) -> String {
    match list.split_once('[') {
        Some((prefix, rest)) if !prefix.contains(',') => {
            let first = rest.split([',', '-', ']']).next().unwrap_or_default();
            format!("{prefix}{first}")
        }
        _ => list.split(',').next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<RankEnv>, RankEnvError> {
        RankEnv::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_process_alone_is_no_rank() {
        assert_eq!(read(&[("MASTER_PORT", "29500"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), Ok(None));
        assert_eq!(read(&[("JOB_COMPLETION_INDEX", "3")]), Ok(None));
    }

    #[test]
    fn torchrun_comes_first() {
        let variables = [
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("MASTER_PORT", "4711"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RESTART_COUNT", "3"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_PROCID", "0"),
        ];
        let env = read(&variables).expect("complete").expect("a rank");
        assert_eq!(env.to_string(), "rank 2 of 4 at 10.0.0.7:4711, by RANK and WORLD_SIZE");
        assert!(env.store_is_served && !env.is_local());
        assert_eq!(env.restarts, 3);
    }

    #[test]
    fn open_mpi_says_where_rank_0_is_only_if_that_is_here() {
        let of = |more: &[(&str, &str)]| {
            let mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")];
            // The step that mpirun starts its daemons with is none of ranks.
            let step = [("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")];
            read(&[&mpi[..], &step, more].concat())
        };
        let here = of(&[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]).expect("complete").expect("a rank");
        assert_eq!(here.to_string(), "rank 3 of 4 at 127.0.0.1:29500, by Open MPI");
        let addr = [("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("MASTER_ADDR", "node7")];
        let far = of(&addr).expect("complete").expect("a rank");
        assert_eq!((far.launcher, far.master_addr.as_str()), (Launcher::Mpi, "node7"));
        let (given, missing) = ("OMPI_COMM_WORLD_RANK", "MASTER_ADDR");
        assert_eq!(of(&addr[..1]), Err(RankEnvError::Incomplete { given, missing }));
        let (given, missing) = (given, "OMPI_COMM_WORLD_SIZE");
        assert_eq!(read(&[(given, "0")]), Err(RankEnvError::Incomplete { given, missing }));
    }

    #[test]
    fn a_slurm_step_names_its_first_node() {
        for (list, first) in [
            ("gpu[003-007,9],login1", "gpu003"),
            ("gpu[12]", "gpu12"),
            ("login1,gpu[1-2]", "login1"),
            ("alone", "alone"),
        ] {
            let variables =
                [("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_STEP_NODELIST", list)];
            let env = read(&variables).expect("complete").expect("a rank");
            assert_eq!((env.rank, env.size, env.master_addr.as_str(), env.master_port), (5, 8, first, PORT));
            assert_eq!(env.launcher, Launcher::Slurm);
        }
    }

    #[test]
    fn a_pod_of_an_indexed_job_is_a_rank() {
        let variables = [("JOB_COMPLETION_INDEX", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-0.job")];
        let env = read(&variables).expect("complete").expect("a rank");
        assert_eq!((env.rank, env.size, env.launcher), (1, 2, Launcher::Kubernetes));
    }

    #[test]
    fn what_contradicts_itself_is_an_error() {
        let incomplete = |given, missing| Err(RankEnvError::Incomplete { given, missing });
        assert_eq!(read(&[("RANK", "0")]), incomplete("RANK", "WORLD_SIZE"));
        assert_eq!(read(&[("WORLD_SIZE", "2")]), incomplete("WORLD_SIZE", "RANK"));
        assert_eq!(read(&[("RANK", "0"), ("WORLD_SIZE", "2")]), incomplete("RANK", "MASTER_ADDR"));
        let with = |rank, size, port| {
            read(&[("RANK", rank), ("WORLD_SIZE", size), ("MASTER_ADDR", "a"), ("MASTER_PORT", port)])
        };
        assert_eq!(with("2", "2", "1"), Err(RankEnvError::OutOfRange { rank: 2, size: 2 }));
        assert!(matches!(with("-1", "2", "1"), Err(RankEnvError::Invalid { name: "RANK", .. })));
        assert!(matches!(with("0", "2", "70000"), Err(RankEnvError::Invalid { name: "MASTER_PORT", .. })));
    }
}
