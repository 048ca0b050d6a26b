//! `larder-lab live`: the papers' experiments, live on this machine.
//!
//! Every run starts a cluster of its own, as the demo does: one process for each node, one for the switch, clients in
//! this process. Disks and processors of the nodes are modelled, so that each node has its own however few cores the
//! machine has; everything else (connections, the switch, its policies and the signals they read) is real.
//!
//! [`cluster`] starts and ends the processes, [`busy`] asks nodes how busy they were, [`scene`] is one workload with all
//! that a run needs, [`run`] runs it under a policy, [`mod@bench`] does so for many. The experiments are [`mixes`] (CAP),
//! [`site`] (HACC), [`table`] (every policy), [`bound`] (at equal p99) and [`overhead`] (what the switch costs).

pub(crate) mod bench;
pub(crate) mod bound;
mod busy;
mod cluster;
pub(crate) mod mixes;
pub(crate) mod overhead;
mod run;
pub(crate) mod scene;
pub(crate) mod site;
pub(crate) mod table;
pub(crate) mod text;
