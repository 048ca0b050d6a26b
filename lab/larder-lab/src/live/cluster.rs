//! Clusters of processes: writes their config files, starts and stops them. Nodes may differ from each other.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use larder_core::Bytes;
use tokio::process::Child;

use larder::demo::cluster::{end_all, ready, spawn};

/// A node to start.
#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    /// Memory for content.
    pub(crate) cache: Bytes,
    /// The node's groups.
    pub(crate) groups: Vec<&'static str>,
    /// Additional tables of the node's config, such as `[node.model]`.
    pub(crate) tables: String,
}

/// A cluster to start.
#[derive(Clone, Debug)]
pub(crate) struct ClusterPlan {
    /// The nodes.
    pub(crate) members: Vec<NodePlan>,
    /// Cache policy of the nodes.
    pub(crate) cache_kind: &'static str,
    /// Additional keys of `[switch]`, one on each line; no tables.
    pub(crate) switch: String,
    /// Additional tables of the switch's config.
    pub(crate) tables: String,
}

/// A running cluster.
pub(crate) struct Cluster {
    processes: Vec<Child>,
    /// The switch's address for requests.
    pub(crate) address: SocketAddr,
    /// The nodes, in the order of the plan.
    pub(crate) nodes: Vec<SocketAddr>,
}

impl Cluster {
    /// Starts all nodes, then the switch, and waits until all are ready. The config files are written to `folder`.
    ///
    /// # Errors
    /// If a file cannot be written or a process does not become ready.
    pub(crate) async fn start(larder: &Path, plan: &ClusterPlan, folder: &Path) -> anyhow::Result<Self> {
        let mut processes = Vec::with_capacity(plan.members.len() + 1);
        for (i, member) in plan.members.iter().enumerate() {
            let name = name(i);
            let file = write(folder, &name, &member.config(&name, plan.cache_kind))?;
            processes.push(spawn(larder, &arguments("node", &file), &name)?);
        }
        let mut nodes = Vec::with_capacity(processes.len());
        for (i, process) in processes.iter_mut().enumerate() {
            let ready = ready(process, &name(i)).await?;
            nodes.push(*ready.listen.first().context("a node reported no listen address")?);
        }
        let file = write(folder, "switch", &plan.switch_config(&nodes))?;
        let mut switch = spawn(larder, &arguments("switch", &file), "the switch")?;
        let ready = ready(&mut switch, "the switch").await?;
        processes.push(switch);
        let address = *ready.listen.first().context("the switch reported no listen address")?;
        Ok(Self { processes, address, nodes })
    }

    /// Process ids of the cluster and of this process, which generates the load.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().filter_map(Child::id).chain([std::process::id()]).collect()
    }

    /// Stops all processes, the switch first, and kills those that do not stop.
    pub(crate) async fn stop(self) {
        end_all(self.processes).await;
    }
}

impl NodePlan {
    fn config(&self, name: &str, cache_kind: &str) -> String {
        format!(
            "[node]\nlisten = \"127.0.0.1:0\"\nname = \"{name}\"\nthreads = 1\n[node.cache]\nsize = {}\nkind = \
             \"{cache_kind}\"\n{}\n[admin]\nlisten = \"off\"\n[log]\nlevel = \"warn\"\n",
            self.cache.get(),
            self.tables
        )
    }
}

impl ClusterPlan {
    fn switch_config(&self, nodes: &[SocketAddr]) -> String {
        let mut text = "[switch]\nlisten = \"127.0.0.1:0\"\nprocess.threads = 1\nnodes = [\n".to_owned();
        for (i, (member, address)) in self.members.iter().zip(nodes).enumerate() {
            let groups = match member.groups.as_slice() {
                [] => String::new(),
                groups => format!(", groups = {groups:?}"),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  {{ address = \"{address}\", name = \"{}\", cache = {}{groups} }},",
                name(i),
                member.cache.get()
            );
        }
        let _ = write!(
            text,
            "]\n{}\n{}\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"warn\"\n",
            self.switch, self.tables
        );
        text
    }
}

/// The name of a node.
pub(crate) fn name(index: usize) -> String {
    format!("node-{}", index + 1)
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn arguments(role: &str, file: &Path) -> Vec<String> {
    let words = [role, "--ready-line", "--exit-with-stdin", "--config"];
    words.map(str::to_owned).into_iter().chain([file.display().to_string()]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_core::PolicyKind;

    use super::*;
    use crate::live::policies;

    fn valid(folder: &Path, name: &str, text: &str) {
        let file = write(folder, name, text).expect("a file");
        if let Err(error) = larder::config::check_file(&file) {
            unreachable!("{error}\n{text}");
        }
    }

    #[test]
    fn every_policy_can_run_every_scenario() {
        let folder = tempfile::tempdir().expect("a directory");
        let logs: [&Path; 0] = [];
        for scene in policies::scenarios(&logs, 1, Duration::from_secs(1), 1).expect("the recipes are good") {
            for policy in PolicyKind::ALL {
                let plan = scene.cluster(policy, folder.path()).expect("a cluster");
                let nodes: Vec<SocketAddr> =
                    (1..).zip(&plan.members).map(|(port, _)| ([127, 0, 0, 1], port).into()).collect();
                valid(folder.path(), "switch", &plan.switch_config(&nodes));
                for member in &plan.members {
                    valid(folder.path(), "node", &member.config("node", plan.cache_kind));
                }
            }
        }
    }

    #[test]
    fn written_configs_are_valid() {
        let member = NodePlan { cache: Bytes::mib(1), groups: vec!["a", "b"], tables: String::new() };
        let plain = NodePlan { groups: Vec::new(), ..member.clone() };
        let plan = ClusterPlan {
            members: vec![member, plain],
            cache_kind: "lru",
            switch: "policy = \"rr\"\n".to_owned(),
            tables: "[[switch.routes]]\nname = \"a\"\npath = \"/a/**\"\ngroup = \"a\"\n[[switch.routes]]\nname = \"b\"\npath = \"/b/**\"\ngroup = \
                     \"b\"\n"
                .to_owned(),
        };
        let nodes: Vec<SocketAddr> = vec![([127, 0, 0, 1], 1001).into(), ([127, 0, 0, 1], 1002).into()];
        let folder = tempfile::tempdir().expect("a directory");
        valid(folder.path(), "switch", &plan.switch_config(&nodes));
    }
}
