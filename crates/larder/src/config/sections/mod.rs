//! The config as written: the keys with their defaults.
//!
//! The doc comments of keys are the reference. The JSON Schema (`larder check --schema`), the commented default file
//! (`larder check --defaults`, kept as `examples/larder.toml`) and `docs/reference/config.md` are generated from these
//! types. [`super::valid`] validates the values.

pub(crate) mod access_log;
pub(crate) mod agent;
pub(crate) mod entry;
pub(in crate::config) mod moves;
pub(crate) mod node;
pub(crate) mod outbound;
pub(crate) mod picker;
pub(crate) mod policy;
pub(crate) mod switch;
pub(crate) mod traces;

use crate::config::keys::keys;
use crate::config::sections::agent::AgentSection;
use crate::config::sections::node::NodeSection;
use crate::config::sections::picker::PickerSection;
use crate::config::sections::switch::section::SwitchSection;

keys! {
    /// The config file of larder. A switch needs `switch.listen` and `switch.nodes`; a node needs `node.listen` and
    /// `node.root`. Everything else has a default.
    table Sections;

    /// The switch (`larder switch`): it accepts clients, chooses the node that holds the target, and relays or hands
    /// off the connection.
    switch: Option<SwitchSection>;
    /// A content node (`larder node`): it serves a directory or an origin through its own memory cache of bounded
    /// size.
    node: Option<NodeSection>;
    /// The agent (`larder agent`): it adds handoff to a host that runs another server.
    agent: Option<AgentSection>;
    /// The endpoint picker (`larder picker`): a gateway such as Envoy asks it which endpoint serves a request.
    picker: Option<PickerSection>;
    /// The admin interface: JSON and Prometheus metrics over HTTP.
    admin: AdminSection;
    /// The log on stderr.
    log: LogSection;
}

keys! {
    /// `[admin]`.
    table AdminSection;

    /// Address of the admin interface: "address:port", or "off". Unset: 127.0.0.1:9900 for a switch, "off" for the
    /// other roles. The interface has no authentication, so keep it on loopback or on a separate network.
    listen: Option<String>, example "127.0.0.1:9900";
}

keys! {
    /// `[log]`.
    table LogSection;

    /// Lowest severity that is logged: "error", "warn", "info", "debug", "trace", or a filter such as
    /// "info,larder_switch=debug". The environment variable LARDER_LOG overrides it.
    level: String = "info".to_owned(), reload true;
}
