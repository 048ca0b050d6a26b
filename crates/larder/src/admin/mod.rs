//! The admin interface: a small HTTP/1.1 server that shows and changes a running switch, node, agent or picker.
//!
//! The interface has no authentication, so its default address is on loopback. Its own limits protect the
//! traffic from a stuck scraper. They limit connections, header bytes, and the time for a header and a reply.
//! Readiness probes are answered even if all connections are in use. A web page of another origin cannot
//! change anything through its visitor's browser ([`origin`]).

mod agent;
mod deadline;
mod message;
mod node;
mod origin;
mod page;
mod picker;
mod purge;
mod server;
mod switch;

#[cfg(test)]
pub(crate) use agent::AGENT_METRICS;
pub(crate) use agent::AgentAdmin;
pub(crate) use message::{AdminReply, AdminRequest, AdminService, split_target};
pub(crate) use node::NodeAdmin;
pub(crate) use picker::PickerAdmin;
pub(crate) use server::serve;
pub(crate) use switch::SwitchAdmin;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Default address of a switch's admin interface.
pub(crate) const SWITCH_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9900);
