//! `[[switch.discover]]` as written, with its defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Span, Texts};

/// `[[switch.discover]]`: a source of nodes. One of dns, srv, kubernetes and file says which.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDiscover {
    /// "name:port": every address of the name (A, AAAA) is a node, and the address with the port is its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "store.example.com:80")]
    pub(crate) dns: Option<String>,
    /// A name of SRV records: every target of the best priority is a node by its name and port, with the record's weight
    /// over the mean of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "_http._tcp.store.example.com")]
    pub(crate) srv: Option<String>,
    /// "NAMESPACE/SERVICE:PORT": every ready endpoint of a Kubernetes service is a node, by the name of its pod. The port is that of
    /// the pods, by name or number. The switch's service account needs get, list and watch of endpointslices there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "default/store:http")]
    pub(crate) kubernetes: Option<String>,
    /// How to reach the Kubernetes API server from outside of the cluster. Unset: as the pod's service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/kubeconfig")]
    pub(crate) kubeconfig: Option<String>,
    /// A file with `nodes`, written as under [switch]. It is read anew when it has changed; one that makes no sense
    /// changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/nodes.toml")]
    pub(crate) file: Option<String>,
    /// Name servers to ask: "address" or "address:port". Unset: those of /etc/resolv.conf. For dns and srv.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = "10.0.0.2:53")]
    pub(crate) servers: Texts,
    /// Time from one look to the next at most: of dns and srv sooner if the records end sooner, but not within a second.
    /// 100ms to 1h. Changes in Kubernetes are told at once.
    #[serde(default = "period")]
    #[schemars(example = "10s")]
    pub(crate) period: Span,
    /// How long a node that the source names no more stays; health checks watch it meanwhile. 0s to 1h. By default 30s,
    /// and 0s for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "30s")]
    pub(crate) hold: Option<Span>,
    /// The nodes' share of the load. 0.001 to 100. Not for a file.
    #[serde(default = "one")]
    #[schemars(example = 1.0)]
    pub(crate) weight: f64,
    /// The nodes' cache size, if known. Not for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "8GiB")]
    pub(crate) cache: Option<Size>,
    /// The groups that the nodes are in. Not for a file.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = &"dynamic")]
    pub(crate) groups: Texts,
    /// Whether the nodes are backups: they take requests only while no ordinary node of their group is up. Not for a file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(example = false)]
    pub(crate) backup: bool,
}

const fn period() -> Span {
    Span(std::time::Duration::from_secs(10))
}

const fn one() -> f64 {
    1.0
}
