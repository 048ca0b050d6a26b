//! The names, addresses and files that the roles of a config require, each with its key.

use std::net::SocketAddr;
use std::path::PathBuf;

use larder_edge::access::{AccessLogConfig, AccessLogOutput};
use larder_kernel::probe::{Mechanism, Role, Subject};
use larder_node::{OriginConfig, StoreConfig};
use larder_switch::{Encapsulation, MechanismSetting};

use super::RequiredMechanism;
use super::files::{FileUse, RequiredFile};
use super::names::{Consequence, RequiredName};
use super::ports::{RequiredAddress, Transport};
use crate::config::{
    AdminListen, Config, Discover, HandoffRole, NodeRole, PeersPolicy, PeersRole, PickerRole, Place, PoolRef,
    RunAs, ServiceSlices, SwitchRole, SwitchesRole,
};

/// Everything that the roles of a config require of the machine.
#[derive(Debug, Default)]
pub(super) struct Requirements {
    pub(super) names: Vec<RequiredName>,
    pub(super) addresses: Vec<RequiredAddress>,
    pub(super) files: Vec<RequiredFile>,
}

impl Requirements {
    fn name(&mut self, key: impl Into<String>, authority: impl Into<String>, consequence: Consequence) {
        self.names.push(RequiredName { key: key.into(), authority: authority.into(), consequence });
    }

    fn tcp(&mut self, key: &str, addresses: &[SocketAddr]) {
        self.bind(key, addresses, &[Transport::Tcp]);
    }

    fn bind(&mut self, key: &str, addresses: &[SocketAddr], transports: &'static [Transport]) {
        for (i, &address) in addresses.iter().enumerate().filter(|(_, address)| address.port() != 0) {
            let key = if addresses.len() > 1 { format!("{key}[{i}]") } else { key.to_owned() };
            self.addresses.push(RequiredAddress { key, address, transports });
        }
    }

    fn file(
        &mut self,
        key: impl Into<String>,
        path: impl Into<PathBuf>,
        file_use: FileUse,
        run_as: Option<RunAs>,
    ) {
        self.files.push(RequiredFile { key: key.into(), path: path.into(), file_use, run_as });
    }

    fn access_log(&mut self, key: &str, log: Option<&AccessLogConfig>, run_as: Option<RunAs>) {
        if let Some(AccessLogConfig { output: AccessLogOutput::File(path), .. }) = log {
            self.file(key, path, FileUse::Append, run_as);
        }
    }
}

/// Collects the requirements of all roles of a config.
pub(super) fn collect(config: &Config) -> Requirements {
    let mut requirements = Requirements::default();
    if let Some(role) = &config.switch {
        add_switch(role, &mut requirements);
    }
    if let Some(role) = &config.node {
        add_node(role, &mut requirements);
    }
    if let Some(role) = &config.agent {
        add_agent("agent", &role.handoff, &mut requirements);
    }
    if let Some(role) = &config.picker {
        add_picker(role, &mut requirements);
    }
    let admin = match config.admin {
        AdminListen::At(address) => Some(address),
        AdminListen::Unset if config.switch.is_some() => Some(crate::admin::SWITCH_ADDRESS),
        AdminListen::Unset | AdminListen::Off => None,
    };
    requirements.tcp("admin.listen", admin.as_slice());
    requirements
}

fn add_picker(role: &PickerRole, requirements: &mut Requirements) {
    requirements.tcp("picker.listen", &[role.listen]);
    for (i, node) in role.nodes.iter().enumerate() {
        requirements.name(format!("picker.nodes[{i}]"), &node.address, Consequence::NoStart);
    }
    for (i, source) in role.discover.iter().enumerate() {
        add_discover(&format!("picker.discover[{i}]"), source, None, requirements);
    }
    if let Some(peers) = &role.peers {
        add_peer_switches("picker.peers", peers, None, requirements);
    }
}

fn add_switch(role: &SwitchRole, requirements: &mut Requirements) {
    let (config, run_as) = (&role.switch, role.run_as);
    requirements.tcp("switch.listen", &config.listen);
    requirements.tcp("switch.tls.listen", config.tls.as_ref().map_or(&[], |tls| &tls.listen));
    for (i, node) in config.nodes.iter().enumerate() {
        requirements.name(format!("switch.nodes[{i}]"), &node.address, Consequence::NoStart);
        if let Some(handoff) = &node.handoff {
            requirements.name(
                format!("switch.nodes[{i}].handoff.control"),
                &handoff.control,
                Consequence::Retried,
            );
        }
    }
    for (i, source) in role.discover.iter().enumerate() {
        add_discover(&format!("switch.discover[{i}]"), source, run_as, requirements);
    }
    requirements.access_log("switch.access_log.file", config.access_log.as_ref(), run_as);
    if let Some(record) = &config.record {
        requirements.file("switch.record.file", &record.file, FileUse::Append, run_as);
        record
            .log
            .iter()
            .for_each(|log| requirements.file("switch.record.log", log, FileUse::Append, run_as));
    }
    for ward in &role.wards {
        let at = match config.routes.iter().position(|route| route.name == ward.route) {
            Some(i) => format!("switch.routes[{i}].policies.ward.table"),
            None => "switch.policies.ward.table".to_owned(),
        };
        ward.table
            .iter()
            .for_each(|table| requirements.file(at.as_str(), &table.path, FileUse::Read, run_as));
    }
    if let Some(path) = &role.report_secret {
        requirements.file("switch.signals.secret", path, FileUse::Secrets, run_as);
    }
    if let Some(path) = &role.purge_token {
        requirements.file("switch.purge_token", path, FileUse::Tokens, run_as);
    }
    if let Some(path) = &config.handoff.secret
        && config.handoff.hands_off()
    {
        requirements.file("switch.handoff.secret", path, FileUse::Secret, run_as);
    }
    if let Some(peers) = &role.beside {
        add_peer_switches("switch.switches", peers, run_as, requirements);
    }
    if let Some(traces) = &config.traces {
        requirements.name("switch.traces.endpoint", traces.endpoint.authority(), Consequence::Retried);
    }
    let authority = role.acme.as_ref().and_then(|acme| acme.directory.parse::<http::Uri>().ok());
    if let Some(host) = authority.as_ref().and_then(http::Uri::host) {
        requirements.name("switch.tls.acme.directory", format!("{host}:443"), Consequence::Retried);
    }
}

fn add_peer_switches(at: &str, peers: &SwitchesRole, run_as: Option<RunAs>, requirements: &mut Requirements) {
    requirements.bind(&format!("{at}.listen"), &[peers.listen], &[Transport::Tcp, Transport::Udp]);
    requirements.file(format!("{at}.secret"), &peers.secret, FileUse::Secrets, run_as);
    peers.seeds.iter().for_each(|seed| {
        requirements.name(format!("{at}.seeds"), seed.to_string(), Consequence::Retried);
    });
}

fn add_discover(at: &str, source: &Discover, run_as: Option<RunAs>, requirements: &mut Requirements) {
    match &source.place {
        // If the source names its own servers, the system's resolver is not used.
        Place::Name(name, port) if source.servers.is_empty() => {
            requirements.name(format!("{at}.dns"), format!("{name}:{port}"), Consequence::Retried);
        }
        Place::File(path) => requirements.file(format!("{at}.file"), path, FileUse::Nodes, run_as),
        Place::Slices(ServiceSlices { kubeconfig, .. }) | Place::Pool(PoolRef { kubeconfig, .. }) => {
            let file = kubeconfig.iter();
            file.for_each(|path| requirements.file(format!("{at}.kubeconfig"), path, FileUse::Read, run_as));
        }
        Place::Name(..) | Place::Service(_) => {}
    }
}

fn add_node(role: &NodeRole, requirements: &mut Requirements) {
    requirements.tcp("node.listen", role.listen.as_slice());
    requirements.tcp("node.tls.listen", role.node.tls.as_ref().map_or(&[], |tls| &tls.listen));
    match &role.node.store {
        StoreConfig::Directory { root, .. } => requirements.file("node.root", root, FileUse::Directory, None),
        StoreConfig::Model(model) => {
            requirements.file("node.model.manifest", &model.manifest, FileUse::Read, None);
        }
        StoreConfig::Origin(origin) => {
            for (key, url) in origin_urls(origin) {
                if let Some(authority) = origin_authority(url) {
                    requirements.name(key, authority, Consequence::Unreachable);
                }
            }
        }
    }
    requirements.access_log("node.access_log.file", role.node.access_log.as_ref(), None);
    if let Some(path) = &role.report_secret {
        requirements.file("node.report.secret", path, FileUse::Secrets, None);
    }
    if let Some(path) = &role.purge_token {
        requirements.file("node.purge_token", path, FileUse::Tokens, None);
    }
    if let Some(traces) = &role.node.traces {
        requirements.name("node.traces.endpoint", traces.endpoint.authority(), Consequence::Retried);
    }
    if let Some(handoff) = &role.handoff {
        add_agent("node.handoff", handoff, requirements);
    }
    if let Some(PeersRole { listen, secret, seeds, policy, .. }) = &role.peers {
        requirements.bind("node.peers.listen", &[*listen], &[Transport::Tcp, Transport::Udp]);
        requirements.file("node.peers.secret", secret, FileUse::Secrets, None);
        seeds
            .iter()
            .for_each(|seed| requirements.name("node.peers.seeds", seed.to_string(), Consequence::Retried));
        if let PeersPolicy::Ward(ward) = policy {
            let table = ward.table.iter();
            table.for_each(|path| requirements.file("node.peers.ward.table", path, FileUse::Read, None));
        }
    }
}

/// Returns the URLs of an origin and of its failover origins, each with its key.
pub(crate) fn origin_urls(origin: &OriginConfig) -> impl Iterator<Item = (String, &http::Uri)> {
    let others = origin.failover.iter().flat_map(|failover| &failover.urls).enumerate();
    let others = others.map(|(nth, url)| (format!("node.origin.failover.urls[{nth}]"), url));
    std::iter::once(("node.origin.url".to_owned(), &origin.url)).chain(others)
}

/// Returns the host and port of an origin's URL.
pub(crate) fn origin_authority(url: &http::Uri) -> Option<String> {
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
    Some(format!("{}:{port}", url.host()?))
}

fn add_agent(at: &str, role: &HandoffRole, requirements: &mut Requirements) {
    requirements.tcp(&format!("{at}.listen"), &[role.listen]);
    requirements.file(format!("{at}.identity"), &role.identity, FileUse::Secret, None);
}

/// Returns the handoff mechanisms that the config requests by name, or that a node offers.
pub(super) fn required_mechanisms(config: &Config) -> Vec<RequiredMechanism> {
    let subject =
        |role, interface, services| Subject { role, interface, services, nodes: Vec::new(), tunnels: false };
    let mut requirements = Vec::new();
    if let Some(SwitchRole { switch, .. }) = &config.switch {
        let (handoff, key) = (&switch.handoff, "switch.handoff.mechanism");
        let mechanism = match handoff.setting {
            MechanismSetting::Cookie => Some(Mechanism::Cookie),
            MechanismSetting::Repair => Some(Mechanism::Repair),
            // `auto` chooses the best available mechanism, which may be a relay.
            MechanismSetting::Auto | MechanismSetting::Splice | MechanismSetting::Relay => None,
        };
        let subject = subject(Role::Switch, handoff.interface.clone(), switch.listen.clone());
        let subject = Subject { tunnels: handoff.forward != Encapsulation::L2, ..subject };
        requirements.extend(mechanism.map(|mechanism| RequiredMechanism {
            key,
            mechanism,
            subject,
            required: false,
        }));
    }
    let of_node = config.node.as_ref().and_then(|role| role.handoff.as_ref());
    let of_agent = config.agent.as_ref().map(|role| &role.handoff);
    for (key, role) in [("node.handoff", of_node), ("agent", of_agent)] {
        let Some(role) = role else { continue };
        let subject = subject(Role::Node, Some(role.interface.clone()), role.services.clone());
        requirements.push(RequiredMechanism { key, mechanism: Mechanism::Cookie, subject, required: false });
    }
    let peers = config.node.as_ref().and_then(|role| role.peers.as_ref()?.handoff.as_ref());
    if let Some(peers) = peers.filter(|peers| peers.required) {
        let (key, mechanism) = ("node.peers.handoff", Mechanism::Repair);
        // The doctor and the start determine which of the services belong to this node.
        let subject = subject(Role::Node, None, Vec::new());
        requirements.push(RequiredMechanism { key, mechanism, subject, required: peers.required });
    }
    requirements
}
