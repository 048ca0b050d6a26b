//! The admin interface: a small HTTP/1.1 server that answers questions about a running switch or node.
//!
//! Without authentication, and therefore on loopback unless told otherwise. It has limits of its own, so that a forgotten
//! scraper cannot hurt the traffic: connections, header bytes, time for a header and for a reply. Probes are answered while all
//! connections are taken. A web page of another origin cannot change anything through its visitor's browser
//! ([`origin`]).

mod agent;
mod answer;
mod deadline;
mod node;
mod origin;
mod page;
mod purge;
mod server;
mod switch;

pub(crate) use agent::AgentSurface;
pub(crate) use answer::{Answer, Ask, Surface};
pub(crate) use node::NodeSurface;
pub(crate) use server::serve;
pub(crate) use switch::SwitchSurface;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The address of a switch's admin interface, unless the config says otherwise.
pub(crate) const SWITCH_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9900);
