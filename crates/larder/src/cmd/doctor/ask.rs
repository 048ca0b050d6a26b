//! What is to be looked at: by the arguments, and by what a config's sections ask for.

use std::net::{IpAddr, SocketAddr};

use larder_kernel::neighbour::{holder, interface_for};
use larder_kernel::probe::{Finding, FindingState, Mechanism, Role, Subject};
use larder_switch::{Encapsulation, NodeEntry};

use super::{Asked, DoctorArgs};
use crate::config::{Config, HandoffRole, PeersHandoffRole, SwitchRole};
use crate::preflight::ResolvedNames;

/// One side.
pub(super) struct Ask {
    pub(super) subject: Subject,
    pub(super) asked: Asked,
    pub(super) listen: Vec<SocketAddr>,
    /// Nodes that cannot be handed anything.
    pub(super) relayed: Vec<String>,
    /// What was found odd already.
    pub(super) odd: Vec<Finding>,
}

pub(super) fn ask(args: &DoctorArgs, config: Option<&Config>, names: &ResolvedNames, role: Role) -> Ask {
    let subject = Subject {
        role,
        interface: args.interface.clone(),
        services: args.service.clone(),
        nodes: Vec::new(),
        tunnels: args.tunnels,
    };
    // A config that says nothing of handoff relays.
    let asked = if config.is_some() { Asked::Relay } else { Asked::Auto };
    let mut ask = Ask { subject, asked, listen: Vec::new(), relayed: Vec::new(), odd: Vec::new() };
    match (role, config) {
        (Role::Switch, Some(Config { switch: Some(switch), .. })) => ask.switch(switch, names),
        (Role::Node, Some(Config { agent: Some(agent), .. })) => ask.node(&agent.handoff),
        (Role::Node, Some(Config { node: Some(node), .. })) => {
            let between = node.peers.as_ref().and_then(|peers| peers.handoff.as_ref());
            match (&node.handoff, between) {
                (Some(handoff), _) => ask.node(handoff),
                (None, Some(handoff)) => ask.peers(handoff),
                (None, None) => ask.subject.services.extend(node.listen),
            }
        }
        _ => {}
    }
    ask.asked = args.mechanism.unwrap_or(ask.asked);
    ask
}

impl Ask {
    fn switch(&mut self, role: &SwitchRole, names: &ResolvedNames) {
        let config = &role.switch;
        self.asked = config.handoff.setting.into();
        self.listen.clone_from(&config.listen);
        self.subject.services.extend(&config.listen);
        self.subject.tunnels |= config.handoff.forward != Encapsulation::L2;
        let by_address = || interface_for(config.listen.first()?.ip());
        let interface = self.subject.interface.take();
        self.subject.interface = interface.or_else(|| config.handoff.interface.clone()).or_else(by_address);
        let moves = config.handoff.hands_off();
        // With none that takes connections by config, all are looked at: the answer is what they could have.
        let some_take = config.nodes.iter().any(|node| node.handoff.is_some());
        for node in &config.nodes {
            if moves && node.handoff.is_none() {
                self.relayed.push(node.spec.name.clone());
            }
            if node.handoff.is_some() || !some_take {
                self.way(node, names);
            }
        }
    }

    fn way(&mut self, node: &NodeEntry, names: &ResolvedNames) {
        match first_address(&node.address, names) {
            Ok(ip) => self.subject.nodes.push(ip),
            Err(error) => self.odd.push(unknown_way(&node.address, &error)),
        }
    }

    fn node(&mut self, role: &HandoffRole) {
        // Whatever the machine can is offered, and the switch chooses.
        self.asked = Asked::Auto;
        self.listen.clone_from(&role.services);
        self.subject.services.extend(&role.services);
        self.subject.interface.get_or_insert_with(|| role.interface.clone());
    }
}

impl Ask {
    /// A node hands over what comes to its own service addresses, and takes what comes to those on its loopback interface.
    fn peers(&mut self, role: &PeersHandoffRole) {
        self.asked = if role.required { Asked::Repair } else { Asked::Peers };
        let mut own = None;
        for service in &role.services {
            let (state, found) = match holder(service.ip()) {
                Ok(Some(name)) if name == "lo" => {
                    self.subject.services.push(*service);
                    (FindingState::Works, "a peer's: on the loopback interface".to_owned())
                }
                Ok(Some(name)) => {
                    self.listen.push(*service);
                    let found = format!("this node's: on {name}");
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
            self.odd.push(Finding {
                what: format!("service address {service}"),
                state,
                found,
                why: "a node takes connections only to addresses that it has",
                remedy: (state != FindingState::Works).then_some(remedy),
                needed_for: &[],
            });
        }
        if own.is_none() {
            self.odd.push(Finding {
                what: "service address of this node".to_owned(),
                state: FindingState::Missing,
                found: "none of them is on an interface".to_owned(),
                why: "clients connect to it, and their connections are told by it",
                remedy: Some("give it to the interface that clients' packets come by".to_owned()),
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

fn unknown_way(address: &str, error: &str) -> Finding {
    Finding {
        what: format!("route to {address}"),
        state: FindingState::Unknown,
        found: error.to_owned(),
        why: "packets are forwarded on it, unchanged or in a tunnel",
        remedy: Some("let the name be known here, or give the address".to_owned()),
        needed_for: &[],
    }
}
