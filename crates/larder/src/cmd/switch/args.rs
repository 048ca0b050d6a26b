//! The command line of `larder switch`, which overrides the config.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use larder_switch::DEFAULT_ROUTE;

use crate::cmd::serve::ServeArgs;
use crate::config::{Config, HighKey, LowKey, NodeKey, Span, SwitchSection, Texts, Written};
use crate::outcome::usage;

/// Error for a config without the section.
pub(super) const NO_SECTION: &str = "the config has no [switch] section: add one with listen and nodes, or start the role that the config has";

/// Send each request to the server that has the reply in memory (reverse proxy).
///
/// For example: larder switch --listen 0.0.0.0:8080 --node 10.0.0.1:80 --node 10.0.0.2:80
///
/// A node is a server behind the switch: `larder node`, or any HTTP server. The admin interface (default
/// http://127.0.0.1:9900) shows the cluster in a browser. It also has metrics (/metrics) and JSON: nodes (/nodes),
/// sources of nodes (/discovery), routes (/routes), peer switches (/switches), and the decision for a target
/// (/explain?target=HOST/PATH).
///
/// SIGTERM and SIGINT end the switch after the requests in flight. SIGHUP reads the config and the routing tables
/// again, and reopens the access log. SIGUSR2 does the same with a new binary. No request is lost.
#[derive(Debug, Args)]
pub(crate) struct SwitchArgs {
    /// Address for clients: ADDRESS:PORT; may be repeated; port 0 takes any free port.
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// A node: HOST:PORT or NAME=HOST:PORT; may be repeated. Replaces the nodes of the config file.
    #[arg(short, long, value_name = "[NAME=]HOST:PORT")]
    node: Vec<String>,
    /// Policy that picks the node of a target, such as lard-r; `larder check --policies` lists the policies.
    #[arg(short, long)]
    policy: Option<String>,
    /// Seed of randomised policies.
    #[arg(long)]
    seed: Option<u64>,
    /// T_low: below this load a node has spare capacity.
    #[arg(long, value_name = "REQUESTS")]
    t_low: Option<u32>,
    /// T_high: above this load a node is overloaded.
    #[arg(long, value_name = "REQUESTS")]
    t_high: Option<u32>,
    /// K of lard-r: a server set that has not changed for this time shrinks by one, such as 20s.
    #[arg(long, value_name = "TIME")]
    replication_decay: Option<Span>,
    /// File to append the access log to, or "-" for stdout.
    #[arg(long, value_name = "FILE")]
    access_log: Option<String>,
    /// File in which decisions are recorded, for `larder sim replay`; replaced if it exists.
    #[arg(long, value_name = "FILE")]
    record: Option<String>,
    /// File for recorded decisions as text, one per line; replaced if it exists. Needs a record.
    #[arg(long, value_name = "FILE")]
    record_log: Option<String>,
    /// Serve in this process instead of a worker process. There is then no upgrade, and no reload of the config:
    /// SIGHUP only reopens the access log and reads the routing tables again. Implied by --exit-with-stdin.
    #[arg(long)]
    pub(super) one_process: bool,
    /// Part of this process in the switch; set by the process that starts it.
    #[arg(long = "as", value_name = "PART", hide = true)]
    pub(super) part: Option<ProcessPart>,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
}

/// The part of a process in a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ProcessPart {
    /// Serves requests, controlled by a master.
    Worker,
    /// Checks whether this version can replace a running one with this config.
    Check,
    /// A master that replaces another version of itself.
    Successor,
}

impl ProcessPart {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Check => "check",
            Self::Successor => "successor",
        }
    }
}

/// Replaces the policies of a config by the policies that an operator has chosen for routes.
pub(super) fn override_policies(
    written: &mut Written,
    policies: &BTreeMap<String, String>,
) -> anyhow::Result<()> {
    for (route, policy) in policies {
        let Some(raw) = &mut written.raw.switch else { return Err(usage(NO_SECTION)) };
        if route == DEFAULT_ROUTE {
            raw.policy.clone_from(policy);
        } else if let Some(raw) = raw.routes.iter_mut().find(|raw| raw.name == *route) {
            raw.policy = Some(policy.clone());
        } else {
            return Err(usage(format!("unknown route '{route}'")));
        }
    }
    Ok(())
}

impl SwitchArgs {
    /// Reads the config file, and applies the options.
    pub(super) fn read_config(&self) -> anyhow::Result<Written> {
        let mut written = Written::read_or_empty(self.serve.config.as_deref())?;
        self.apply_options(&mut written)?;
        Ok(written)
    }

    /// Applies all options to a config.
    pub(super) fn apply_options(&self, written: &mut Written) -> anyhow::Result<()> {
        self.serve.apply_options(written);
        if written.raw.switch.is_none() && self.listen.is_empty() && self.node.is_empty() {
            return Err(usage(
                "the switch cannot start without an address and nodes: give --listen 0.0.0.0:8080 --node 10.0.0.1:80, or --config FILE",
            ));
        }
        self.apply_to_section(written.raw.switch.get_or_insert_default());
        Ok(())
    }

    /// Validates a config, and checks that all required files exist.
    pub(super) fn validate(&self, written: &Written) -> anyhow::Result<Config> {
        let config = written.validate()?;
        written.present(&config)?;
        Ok(config)
    }

    /// Applies the options to the config section.
    fn apply_to_section(&self, raw: &mut SwitchSection) {
        if !self.listen.is_empty() {
            raw.listen = Texts(self.listen.clone());
        }
        if !self.node.is_empty() {
            raw.nodes = self.node.iter().map(|text| parse_node(text)).collect();
        }
        if let Some(policy) = &self.policy {
            raw.policy.clone_from(policy);
        }
        raw.policies.seed = self.seed.or(raw.policies.seed);
        let lard = raw.policies.lard.get_or_insert_default();
        lard.t_low = self.t_low.map(LowKey::Fixed).or(lard.t_low);
        lard.t_high = self.t_high.map(HighKey::Fixed).or(lard.t_high);
        lard.replication_decay = self.replication_decay.or(lard.replication_decay);
        raw.process.threads = self.serve.threads.unwrap_or(raw.process.threads);
        if let Some(file) = &self.access_log {
            raw.access_log.file = Some(file.clone());
        }
        if let Some(file) = &self.record {
            raw.record.file = Some(file.clone());
        }
        if let Some(file) = &self.record_log {
            raw.record.log = Some(file.clone());
        }
    }
}

fn parse_node(text: &str) -> NodeKey {
    match text.split_once('=') {
        Some((name, address)) => NodeKey { name: Some(name.to_owned()), ..NodeKey::from(address) },
        None => NodeKey::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_be_named() {
        let named = parse_node("a=10.0.0.1:80");
        assert_eq!((named.name.as_deref(), named.address.as_str()), (Some("a"), "10.0.0.1:80"));
        assert_eq!(parse_node("10.0.0.1:80").name, None);
    }
}
