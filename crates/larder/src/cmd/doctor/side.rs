//! The input of the doctor for one side, taken from the arguments and the config.

use std::net::{IpAddr, SocketAddr};

use larder_kernel::neighbour::{holder, interface_for};
use larder_kernel::probe::{Finding, FindingState, Mechanism, Role, Subject};
use larder_switch::{Encapsulation, NodeEntry};

use super::{DoctorArgs, RequestedMechanism};
use crate::config::{Config, HandoffRole, PeersHandoffRole, SwitchRole};
use crate::preflight::ResolvedNames;

/// The input for one side.
pub(super) struct SideInput {
    pub(super) subject: Subject,
    pub(super) requested: RequestedMechanism,
    pub(super) listen: Vec<SocketAddr>,
    /// Nodes to which no connection can be handed off.
    pub(super) relayed: Vec<String>,
    /// Findings that were made while the input was collected.
    pub(super) findings: Vec<Finding>,
}

pub(super) fn side_input(
    args: &DoctorArgs,
    config: Option<&Config>,
    names: &ResolvedNames,
    role: Role,
) -> SideInput {
    let subject = Subject {
        role,
        interface: args.interface.clone(),
        services: args.service.clone(),
        nodes: Vec::new(),
        tunnels: args.tunnels,
    };
    // A config without handoff settings relays.
    let requested = if config.is_some() { RequestedMechanism::Relay } else { RequestedMechanism::Auto };
    let mut side =
        SideInput { subject, requested, listen: Vec::new(), relayed: Vec::new(), findings: Vec::new() };
    match (role, config) {
        (Role::Switch, Some(Config { switch: Some(switch), .. })) => side.add_switch(switch, names),
        (Role::Node, Some(Config { agent: Some(agent), .. })) => side.add_node(&agent.handoff),
        (Role::Node, Some(Config { node: Some(node), .. })) => {
            let between = node.peers.as_ref().and_then(|peers| peers.handoff.as_ref());
            match (&node.handoff, between) {
                (Some(handoff), _) => side.add_node(handoff),
                (None, Some(handoff)) => side.add_peers(handoff),
                (None, None) => side.subject.services.extend(node.listen),
            }
        }
        _ => {}
    }
    side.requested = args.mechanism.unwrap_or(side.requested);
    side
}

impl SideInput {
    fn add_switch(&mut self, role: &SwitchRole, names: &ResolvedNames) {
        let config = &role.switch;
        self.requested = config.handoff.setting.into();
        self.listen.clone_from(&config.listen);
        self.subject.services.extend(&config.listen);
        self.subject.tunnels |= config.handoff.forward != Encapsulation::L2;
        let by_address = || interface_for(config.listen.first()?.ip());
        let interface = self.subject.interface.take();
        self.subject.interface = interface.or_else(|| config.handoff.interface.clone()).or_else(by_address);
        let moves = config.handoff.hands_off();
        // If the config hands off to no node, all nodes are examined, which shows what they could use.
        let some_take = config.nodes.iter().any(|node| node.handoff.is_some());
        for node in &config.nodes {
            if moves && node.handoff.is_none() {
                self.relayed.push(node.spec.name.clone());
            }
            if node.handoff.is_some() || !some_take {
                self.add_node_address(node, names);
            }
        }
    }

    fn add_node_address(&mut self, node: &NodeEntry, names: &ResolvedNames) {
        match first_address(&node.address, names) {
            Ok(ip) => self.subject.nodes.push(ip),
            Err(error) => self.findings.push(unresolved_route(&node.address, &error)),
        }
    }

    fn add_node(&mut self, role: &HandoffRole) {
        // A node offers all mechanisms that the machine supports, and the switch chooses.
        self.requested = RequestedMechanism::Auto;
        self.listen.clone_from(&role.services);
        self.subject.services.extend(&role.services);
        self.subject.interface.get_or_insert_with(|| role.interface.clone());
    }
}

impl SideInput {
    /// A node hands off connections to its own service addresses. It accepts connections to service addresses
    /// on its loopback interface.
    fn add_peers(&mut self, role: &PeersHandoffRole) {
        self.requested = if role.required { RequestedMechanism::Repair } else { RequestedMechanism::Peers };
        let mut own = None;
        for service in &role.services {
            let (state, found) = match holder(service.ip()) {
                Ok(Some(name)) if name == "lo" => {
                    self.subject.services.push(*service);
                    (FindingState::Works, "a peer's address: on the loopback interface".to_owned())
                }
                Ok(Some(name)) => {
                    self.listen.push(*service);
                    let found = format!("this node's address: on {name}");
                    own = Some(name);
                    (FindingState::Works, found)
                }
                Ok(None) => (FindingState::Degraded, "on no interface".to_owned()),
                Err(error) => (FindingState::Unknown, error.to_string()),
            };
            let remedy = format!(
                "ip address add {}/{} dev lo",
                service.ip(),
                if service.is_ipv4() { 32 } else { 128 }
            );
            self.findings.push(Finding {
                what: format!("service address {service}"),
                state,
                found,
                why: "a node accepts connections only to addresses that are on its interfaces",
                remedy: (state != FindingState::Works).then_some(remedy),
                needed_for: &[],
            });
        }
        if own.is_none() {
            self.findings.push(Finding {
                what: "service address of this node".to_owned(),
                state: FindingState::Missing,
                found: "no service address is on an interface".to_owned(),
                why: "clients connect to it, and it identifies their connections",
                remedy: Some("add it to the interface on which clients' packets arrive".to_owned()),
                needed_for: &[Mechanism::Repair],
            });
        }
        let interface = self.subject.interface.take();
        self.subject.interface = interface.or(own);
    }
}

fn first_address(address: &str, names: &ResolvedNames) -> Result<IpAddr, String> {
    let found = names.addresses(address)?;
    found.first().map(SocketAddr::ip).ok_or_else(|| "the name has no address".to_owned())
}

fn unresolved_route(address: &str, error: &str) -> Finding {
    Finding {
        what: format!("route to {address}"),
        state: FindingState::Unknown,
        found: error.to_owned(),
        why: "clients' packets are forwarded to the node on this route, unchanged or in a tunnel",
        remedy: Some("make the name resolvable on this machine, or write the IP address".to_owned()),
        needed_for: &[],
    }
}
