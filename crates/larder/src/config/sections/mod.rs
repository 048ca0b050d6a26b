//! The config as written: what may stand in the file, with its defaults.
//!
//! The doc comments here are the reference: the JSON Schema (`larder check --schema`) and the commented default
//! file (`larder check --defaults`, kept as `examples/larder.toml`) are generated from these types. A value that
//! reads is not yet valid; [`super::valid`] turns it into settings that are.

pub(crate) mod access_log;
pub(crate) mod agent;
pub(crate) mod entry;
pub(in crate::config) mod moves;
pub(crate) mod node;
pub(crate) mod outbound;
pub(crate) mod policy;
pub(crate) mod switch;
pub(crate) mod traces;

use crate::config::keys::keys;
use crate::config::sections::agent::AgentSection;
use crate::config::sections::node::NodeSection;
use crate::config::sections::switch::section::SwitchSection;

keys! {
    /// The config file of larder. A switch needs `switch.listen` and `switch.nodes`; a node needs `node.listen` and
    /// `node.root`. Everything else has a default.
    table Sections;

    /// The front-end: accepts clients, picks the node that holds the target, relays (`larder switch`).
    switch: Option<SwitchSection>;
    /// A content node: serves a directory through its own bounded memory cache (`larder node`).
    node: Option<NodeSection>;
    /// Handoff for a host whose server is of another make (`larder agent`).
    agent: Option<AgentSection>;
    /// The admin interface: JSON and Prometheus metrics over HTTP.
    admin: AdminSection;
    /// What is written to stderr.
    log: LogSection;
}

keys! {
    /// `[admin]`.
    table AdminSection;

    /// Where the admin interface listens: "address:port", or "off". Unset: 127.0.0.1:9900 for a switch, off for
    /// the others. It has no authentication: keep it on loopback or on a network of its own.
    listen: Option<String>, example "127.0.0.1:9900";
}

keys! {
    /// `[log]`.
    table LogSection;

    /// Least severity written to stderr: "error", "warn", "info", "debug", "trace", or a filter such as
    /// "info,larder_switch=debug". The environment variable LARDER_LOG wins over it.
    level: String = "info".to_owned(), reload true;
}
