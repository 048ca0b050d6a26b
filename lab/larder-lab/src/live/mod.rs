//! `larder-lab live`: the papers' experiments on live clusters on this machine.
//!
//! Each run starts its own cluster, as the demo does: one process for each node and one for the switch; the clients run in
//! this process. Disks and processors of the nodes are modelled, so that the results do not depend on the number of cores of
//! this machine. Everything else is real: connections, the switch, its policies and the signals that they use.
//!
//! [`cluster`] starts and stops the processes, [`utilisation`] samples how busy the nodes are, a [`scenario`] is a workload on
//! a cluster, [`run`] runs a scenario under a policy, and [`runner`] runs many. The experiments are [`cap`], [`hacc`],
//! [`policies`] (all policies), [`bound`] (throughput at equal p99) and [`overhead`] (cost of the switch); [`verdict`] compares
//! with the papers.

pub(crate) mod bound;
pub(crate) mod cap;
mod cluster;
pub(crate) mod hacc;
pub(crate) mod overhead;
pub(crate) mod policies;
mod run;
pub(crate) mod runner;
pub(crate) mod scenario;
pub(crate) mod text;
mod utilisation;
pub(crate) mod verdict;
