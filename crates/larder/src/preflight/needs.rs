//! The names, addresses and files that a config's roles need, each with its key.

use std::net::SocketAddr;
use std::path::PathBuf;

use larder_edge::access::{AccessLogConfig, AccessLogOutput};
use larder_kernel::probe::{Mechanism, Role, Subject};
use larder_node::{OriginConfig, StoreConfig};
use larder_switch::{Encapsulation, MechanismSetting};

use super::HandoffNeed;
use super::files::{FileNeed, Use};
use super::names::{NameNeed, Without};
use super::ports::{AddressNeed, Transport};
use crate::config::{
    AdminListen, Config, Discover, HandoffRole, NodeRole, PeersPolicy, PeersRole, Place, RunAs, SwitchRole,
    SwitchesRole,
};

/// Everything that roles need of the machine.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub(super) names: Vec<NameNeed>,
    pub(super) addresses: Vec<AddressNeed>,
    pub(super) files: Vec<FileNeed>,
}

impl Needs {
    fn name(&mut self, key: impl Into<String>, authority: impl Into<String>, without: Without) {
        self.names.push(NameNeed { key: key.into(), authority: authority.into(), without });
    }

    fn tcp(&mut self, key: &str, addresses: &[SocketAddr]) {
        self.bind(key, addresses, &[Transport::Tcp]);
    }

    fn bind(&mut self, key: &str, addresses: &[SocketAddr], transports: &'static [Transport]) {
        for (i, &address) in addresses.iter().enumerate().filter(|(_, address)| address.port() != 0) {
            let key = if addresses.len() > 1 { format!("{key}[{i}]") } else { key.to_owned() };
            self.addresses.push(AddressNeed { key, address, transports });
        }
    }

    fn file(&mut self, key: impl Into<String>, path: impl Into<PathBuf>, used: Use, run_as: Option<RunAs>) {
        self.files.push(FileNeed { key: key.into(), path: path.into(), used, run_as });
    }

    fn access_log(&mut self, key: &str, log: Option<&AccessLogConfig>, run_as: Option<RunAs>) {
        if let Some(AccessLogConfig { output: AccessLogOutput::File(path), .. }) = log {
            self.file(key, path, Use::Append, run_as);
        }
    }
}

/// Everything that the roles of a config need.
pub(super) fn of(config: &Config) -> Needs {
    let mut needs = Needs::default();
    if let Some(role) = &config.switch {
        switch(role, &mut needs);
    }
    if let Some(role) = &config.node {
        node(role, &mut needs);
    }
    if let Some(role) = &config.agent {
        agent("agent", &role.handoff, &mut needs);
    }
    let admin = match config.admin {
        AdminListen::At(address) => Some(address),
        AdminListen::Unset if config.switch.is_some() => Some(crate::admin::SWITCH_ADDRESS),
        AdminListen::Unset | AdminListen::Off => None,
    };
    needs.tcp("admin.listen", admin.as_slice());
    needs
}

fn switch(role: &SwitchRole, needs: &mut Needs) {
    let (config, run_as) = (&role.switch, role.run_as);
    needs.tcp("switch.listen", &config.listen);
    needs.tcp("switch.tls.listen", config.tls.as_ref().map_or(&[], |tls| &tls.listen));
    for (i, node) in config.nodes.iter().enumerate() {
        needs.name(format!("switch.nodes[{i}]"), &node.address, Without::NoStart);
        if let Some(handoff) = &node.handoff {
            needs.name(format!("switch.nodes[{i}].handoff.control"), &handoff.control, Without::Retried);
        }
    }
    for (i, source) in role.discover.iter().enumerate() {
        discover(&format!("switch.discover[{i}]"), source, run_as, needs);
    }
    needs.access_log("switch.access_log.file", config.access_log.as_ref(), run_as);
    if let Some(record) = &config.record {
        needs.file("switch.record.file", &record.file, Use::Append, run_as);
        record.log.iter().for_each(|log| needs.file("switch.record.log", log, Use::Append, run_as));
    }
    for ward in &role.wards {
        let at = match config.routes.iter().position(|route| route.name == ward.route) {
            Some(i) => format!("switch.routes[{i}].policies.ward.table"),
            None => "switch.policies.ward.table".to_owned(),
        };
        ward.table.iter().for_each(|table| needs.file(at.as_str(), &table.path, Use::Read, run_as));
    }
    if let Some(path) = &role.report_secret {
        needs.file("switch.signals.secret", path, Use::Secrets, run_as);
    }
    if let Some(path) = &role.purge_token {
        needs.file("switch.purge_token", path, Use::Tokens, run_as);
    }
    if let Some(path) = &config.handoff.secret
        && config.handoff.hands_off()
    {
        needs.file("switch.handoff.secret", path, Use::Secret, run_as);
    }
    if let Some(SwitchesRole { listen, secret, seeds, .. }) = &role.beside {
        needs.bind("switch.switches.listen", &[*listen], &[Transport::Tcp, Transport::Udp]);
        needs.file("switch.switches.secret", secret, Use::Secrets, run_as);
        seeds.iter().for_each(|seed| needs.name("switch.switches.seeds", seed.to_string(), Without::Retried));
    }
    if let Some(traces) = &config.traces {
        needs.name("switch.traces.endpoint", traces.endpoint.authority(), Without::Retried);
    }
    let authority = role.acme.as_ref().and_then(|acme| acme.directory.parse::<http::Uri>().ok());
    if let Some(host) = authority.as_ref().and_then(http::Uri::host) {
        needs.name("switch.tls.acme.directory", format!("{host}:443"), Without::Retried);
    }
}

fn discover(at: &str, source: &Discover, run_as: Option<RunAs>, needs: &mut Needs) {
    match &source.place {
        // The system's resolver is not asked where others are named.
        Place::Name(name, port) if source.servers.is_empty() => {
            needs.name(format!("{at}.dns"), format!("{name}:{port}"), Without::Retried);
        }
        Place::File(path) => needs.file(format!("{at}.file"), path, Use::Nodes, run_as),
        Place::Slices(service) => {
            let file = service.kubeconfig.iter();
            file.for_each(|path| needs.file(format!("{at}.kubeconfig"), path, Use::Read, run_as));
        }
        Place::Name(..) | Place::Service(_) => {}
    }
}

fn node(role: &NodeRole, needs: &mut Needs) {
    needs.tcp("node.listen", role.listen.as_slice());
    needs.tcp("node.tls.listen", role.node.tls.as_ref().map_or(&[], |tls| &tls.listen));
    match &role.node.store {
        StoreConfig::Directory { root, .. } => needs.file("node.root", root, Use::Directory, None),
        StoreConfig::Model { manifest, .. } => needs.file("node.model.manifest", manifest, Use::Read, None),
        StoreConfig::Origin(origin) => {
            for (key, url) in origins(origin) {
                if let Some(authority) = origin_of(url) {
                    needs.name(key, authority, Without::Unreachable);
                }
            }
        }
    }
    needs.access_log("node.access_log.file", role.node.access_log.as_ref(), None);
    if let Some(path) = &role.report_secret {
        needs.file("node.report.secret", path, Use::Secrets, None);
    }
    if let Some(path) = &role.purge_token {
        needs.file("node.purge_token", path, Use::Tokens, None);
    }
    if let Some(traces) = &role.node.traces {
        needs.name("node.traces.endpoint", traces.endpoint.authority(), Without::Retried);
    }
    if let Some(handoff) = &role.handoff {
        agent("node.handoff", handoff, needs);
    }
    if let Some(PeersRole { listen, secret, seeds, policy, .. }) = &role.peers {
        needs.bind("node.peers.listen", &[*listen], &[Transport::Tcp, Transport::Udp]);
        needs.file("node.peers.secret", secret, Use::Secrets, None);
        seeds.iter().for_each(|seed| needs.name("node.peers.seeds", seed.to_string(), Without::Retried));
        if let PeersPolicy::Ward(ward) = policy {
            let table = ward.table.iter();
            table.for_each(|path| needs.file("node.peers.ward.table", path, Use::Read, None));
        }
    }
}

/// The URLs of an origin and of those that stand in for it, each with its key.
pub(crate) fn origins(origin: &OriginConfig) -> impl Iterator<Item = (String, &http::Uri)> {
    let others = origin.failover.iter().flat_map(|failover| &failover.urls).enumerate();
    let others = others.map(|(nth, url)| (format!("node.origin.failover.urls[{nth}]"), url));
    std::iter::once(("node.origin.url".to_owned(), &origin.url)).chain(others)
}

/// The host and port of an origin's URL.
pub(crate) fn origin_of(url: &http::Uri) -> Option<String> {
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
    Some(format!("{}:{port}", url.host()?))
}

fn agent(at: &str, role: &HandoffRole, needs: &mut Needs) {
    needs.tcp(&format!("{at}.listen"), &[role.listen]);
    needs.file(format!("{at}.identity"), &role.identity, Use::Secret, None);
}

/// The mechanisms of handoff that the config asks for by name, or that a node offers.
pub(super) fn handoff(config: &Config) -> Vec<HandoffNeed> {
    let subject =
        |role, interface, services| Subject { role, interface, services, nodes: Vec::new(), tunnels: false };
    let mut needs = Vec::new();
    if let Some(SwitchRole { switch, .. }) = &config.switch {
        let (handoff, key) = (&switch.handoff, "switch.handoff.mechanism");
        let mechanism = match handoff.setting {
            MechanismSetting::Cookie => Some(Mechanism::Cookie),
            MechanismSetting::Repair => Some(Mechanism::Repair),
            // The best that there is; relaying is among it.
            MechanismSetting::Auto | MechanismSetting::Splice | MechanismSetting::Relay => None,
        };
        let subject = subject(Role::Switch, handoff.interface.clone(), switch.listen.clone());
        let subject = Subject { tunnels: handoff.forward != Encapsulation::L2, ..subject };
        needs.extend(mechanism.map(|mechanism| HandoffNeed { key, mechanism, subject, required: false }));
    }
    let of_node = config.node.as_ref().and_then(|role| role.handoff.as_ref());
    let of_agent = config.agent.as_ref().map(|role| &role.handoff);
    for (key, role) in [("node.handoff", of_node), ("agent", of_agent)] {
        let Some(role) = role else { continue };
        let subject = subject(Role::Node, Some(role.interface.clone()), role.services.clone());
        needs.push(HandoffNeed { key, mechanism: Mechanism::Cookie, subject, required: false });
    }
    let peers = config.node.as_ref().and_then(|role| role.peers.as_ref()?.handoff.as_ref());
    if let Some(peers) = peers.filter(|peers| peers.required) {
        let (key, mechanism) = ("node.peers.handoff", Mechanism::Repair);
        // Which of the services are this node's is found by the doctor and at the start.
        let subject = subject(Role::Node, None, Vec::new());
        needs.push(HandoffNeed { key, mechanism, subject, required: peers.required });
    }
    needs
}
