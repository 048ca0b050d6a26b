//! The validated config. Every value is in its range, and no two values contradict each other.

use std::net::SocketAddr;

use super::check::faults;
use super::error::Fault;
use super::sections::agent::{AgentRole, agent};
use super::sections::node::{NodeRole, node};
use super::sections::picker::{PickerRole, picker};
use super::sections::switch::{SwitchRole, switch};
use super::sections::{AdminSection, Sections};
use super::values::no_key;

/// A valid config.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) switch: Option<SwitchRole>,
    pub(crate) node: Option<NodeRole>,
    pub(crate) agent: Option<AgentRole>,
    pub(crate) picker: Option<PickerRole>,
    pub(crate) admin: AdminListen,
    /// A filter for `tracing`.
    pub(crate) log: String,
    /// Settings that are valid and probably mistakes.
    pub(super) warnings: Vec<Fault>,
    /// Required files that do not exist yet. A role that requires one cannot start.
    pub(super) absent: Vec<Fault>,
}

/// A role that a process starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Switch,
    Node,
    Agent,
    Picker,
}

impl Role {
    const fn section(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Node => "node",
            Self::Agent => "agent",
            Self::Picker => "picker",
        }
    }
}

/// Address of the admin interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminListen {
    /// Not set; the role decides.
    Unset,
    Off,
    At(SocketAddr),
}

impl Config {
    /// Validates a config.
    pub(super) fn new(raw: &Sections) -> Result<Self, Fault> {
        faults(raw).into_iter().next().map_or(Ok(()), Err)?;
        let (mut warnings, mut absent) = (Vec::new(), Vec::new());
        let config = Self {
            switch: raw.switch.as_ref().map(|raw| switch(raw, &mut warnings, &mut absent)).transpose()?,
            node: raw.node.as_ref().map(|raw| node(raw, &mut warnings)).transpose()?,
            agent: raw.agent.as_ref().map(agent).transpose()?,
            picker: raw.picker.as_ref().map(|raw| picker(raw, &mut absent)).transpose()?,
            admin: admin(&raw.admin)?,
            log: raw.log.level.clone(),
            warnings,
            absent: Vec::new(),
        };
        let of_node = config.node.as_ref().and_then(|role| role.handoff.as_ref());
        let of_agent = config.agent.as_ref().map(|role| &role.handoff);
        for (key, role) in [("node.handoff.identity", of_node), ("agent.identity", of_agent)] {
            absent.extend(role.and_then(|role| no_key(key, &role.identity)));
        }
        Ok(Self { absent, ..config })
    }

    /// Required files that do not exist yet. A role that requires one cannot start.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &Fault> {
        self.absent.iter()
    }

    /// Returns the config of one role, without the others.
    pub(crate) fn only(&self, role: Role) -> Self {
        let begins = |fault: &&Fault| fault.key().starts_with(role.section());
        Self {
            switch: self.switch.clone().filter(|_| role == Role::Switch),
            node: self.node.clone().filter(|_| role == Role::Node),
            agent: self.agent.clone().filter(|_| role == Role::Agent),
            picker: self.picker.clone().filter(|_| role == Role::Picker),
            absent: self.absent.iter().filter(begins).cloned().collect(),
            ..self.clone()
        }
    }
}

fn admin(raw: &AdminSection) -> Result<AdminListen, Fault> {
    match raw.listen.as_deref() {
        None => Ok(AdminListen::Unset),
        Some("off") => Ok(AdminListen::Off),
        Some(text) => text.parse().map(AdminListen::At).map_err(|_| {
            Fault::new("admin.listen", format!("'{text}' is not \"address:port\""))
                .hint("write \"127.0.0.1:9900\", or \"off\"")
        }),
    }
}
