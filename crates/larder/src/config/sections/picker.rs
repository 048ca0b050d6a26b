//! `[picker]`.

use std::net::SocketAddr;
use std::time::Duration;

use larder_core::rules::KeyTemplate;
use larder_core::{Bytes, PolicyKind, Settings};
use larder_picker::{PickerConfig, PickerLimits, PickerTls};
use larder_switch::NodeEntry;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::policy::{Parameters, PoliciesSection, apply};
use crate::config::sections::switch::admission::{AdmissionKey, AdmissionWord, JoinSection, limit};
use crate::config::sections::switch::discover::{Discover, DiscoverSection, sources};
use crate::config::sections::switch::nodes::{NodeKey, node_entries};
use crate::config::sections::switch::prompts::{PromptsSection, prompts};
use crate::config::sections::switch::rule::key;
use crate::config::sections::switch::switches::{SwitchesRole, SwitchesSection, switches};
use crate::config::sections::switch::tls::{TlsSection, picker_tls};
use crate::config::text::{Size, Span, Texts};
use crate::config::values::addresses;

keys! {
    /// `[picker]`.
    table PickerSection, settings = Settings::default(), config = PickerConfig::new(Settings::default());

    /// Address for gateways, with gRPC: one "address:port". Required.
    listen: Texts, example "0.0.0.0:9002";
    /// Endpoints, as `nodes` of [switch], with address, name, weight, cache and backup. Required, unless there is [[picker.discover]].
    nodes: Vec<NodeKey>, example ["10.0.0.1:8000", "10.0.0.2:8000"];
    /// Sources of endpoints, as [[switch.discover]], with `hold` of 0s by default. An endpoint that a source no longer
    /// lists gets no more requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    discover: Vec<DiscoverSection>, elsewhere true;
    /// Policy that chooses the endpoint of a target. Policies that need load reports, routing tables or service
    /// classes are refused.
    #[schemars(extend("enum" = PolicyKind::ALL.map(PolicyKind::name)))]
    policy: String = settings.policy.to_string();
    /// Parts of a request that make up its target, as `key` of [switch]. A header with a session or the hash of a prompt
    /// is "{header:NAME}".
    key: String = KeyTemplate::DEFAULT.to_owned();
    /// Number of further endpoints that the gateway may try if the first one fails. Not every gateway takes a list:
    /// Envoy's ORIGINAL_DST needs 0.
    fallbacks: usize = config.fallbacks, range "0 to 7";
    /// Settings of the policies, as [switch.policies].
    #[serde(deserialize_with = "PoliciesSection::over_standard")]
    policies: PoliciesSection = PoliciesSection::standard(), elsewhere true;
    /// Limit of requests at the endpoints. Further requests get 429.
    admission: PickerAdmissionSection;
    /// Pace at which a joining endpoint gets targets, as [switch.join].
    join: JoinSection, elsewhere true;
    /// TLS of the listener.
    tls: PickerTlsSection;
    /// Limits of connections, streams and messages.
    limits: PickerLimitsSection;
    /// Placement of prompts, as `prompts` of [[switch.routes]]. Gateways must send the bodies of requests in the mode
    /// FULL_DUPLEX_STREAMED.
    prompts: Option<PromptsSection>, elsewhere true;
    /// Other replicas of this picker, as [switch.switches]. They exchange loads and the endpoints of targets.
    peers: Option<SwitchesSection>, elsewhere true;
}

keys! {
    /// `[picker.admission]`.
    table PickerAdmissionSection;

    /// Number of requests that are admitted at once: "auto", "derived", "unlimited", or a number. "auto" is no limit,
    /// because gateways have their own. "derived": S, as in [switch.admission].
    limit: AdmissionKey = AdmissionKey::Word(AdmissionWord::Auto), range "1 to 4294967295";
    /// Number of WebSockets and other upgrades at an endpoint that do not count.
    long_lived_max: u32 = Settings::default().long_lived_max, range "0 to 1000000";
}

keys! {
    /// `[picker.tls]`.
    table PickerTlsSection, TlsSection { reload, client_certificates: _, .. } = TlsSection::default();

    /// Whether the listener uses TLS. Without `certificates`, the picker makes a certificate at each start.
    enabled: bool = true;
    /// PEM files or directories with certificates, chains and keys, as in [switch.tls]. Unset: self-signed.
    certificates: Texts, example "/etc/larder/tls";
    /// Interval at which the files are checked for changes.
    reload: Span = reload, range "1s to 24h";
    /// PEM file with the authorities of gateways' certificates, which are then required. Unset: any gateway may connect.
    client_ca: Option<String>, example "/etc/larder/gateways.pem";
}

keys! {
    /// `[picker.limits]`.
    table PickerLimitsSection, limits = PickerLimits::default();

    /// Maximum number of endpoints.
    nodes_max: u16 = 4096, range "1 to 4096";
    /// Maximum connections of gateways. Further ones are closed.
    connections: usize = limits.connections, range "1 to 100000";
    /// Maximum requests in flight. Further streams end with RESOURCE_EXHAUSTED.
    streams: usize = limits.streams, range "1 to 10000000";
    /// Maximum requests in flight on a connection.
    streams_per_connection: u32 = limits.streams_per_connection, range "1 to 1000000";
    /// Maximum size of a message, which has all headers or a piece of a body. A larger one ends its stream.
    message: Size = Size(Bytes::kib(limits.message_bytes as u64 >> 10)), range "64KiB to 1GiB";
    /// Time for requests in flight to end when the picker stops.
    drain: Span = Span(limits.drain), range "0s to 1h";
}

/// `[picker]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct PickerRole {
    pub(crate) listen: SocketAddr,
    pub(crate) picker: PickerConfig,
    pub(crate) nodes: Vec<NodeEntry>,
    /// Sources of endpoints besides the config.
    pub(crate) discover: Vec<Discover>,
    /// Other replicas.
    pub(crate) peers: Option<SwitchesRole>,
}

pub(crate) fn picker(raw: &PickerSection, absent: &mut Vec<Fault>) -> Result<PickerRole, Fault> {
    let [listen] = addresses("picker.listen", &raw.listen, "0.0.0.0:9002")?[..] else {
        return Err(
            Fault::new("picker.listen", "a picker listens on one address").hint("write one \"address:port\"")
        );
    };
    if raw.nodes.is_empty() && raw.discover.is_empty() {
        let hint = "write [[picker.discover]] with inference_pool = \"NAMESPACE/NAME\", or nodes = [\"10.0.0.1:8000\"]";
        return Err(Fault::new("picker.nodes", "missing: a picker needs endpoints").hint(hint));
    }
    for (at, node) in raw.nodes.iter().enumerate() {
        refuse_switch_keys(&format!("picker.nodes[{at}]"), node)?;
    }
    let nodes = node_entries("picker.nodes", &raw.nodes)?;
    if nodes.len() > usize::from(raw.limits.nodes_max) {
        let what = format!("{} nodes are listed, {} may be", nodes.len(), raw.limits.nodes_max);
        return Err(Fault::new("picker.limits.nodes_max", what).hint("raise limits.nodes_max"));
    }
    let config = PickerConfig {
        key: key("picker.key", &raw.key)?,
        fallbacks: raw.fallbacks,
        tls: tls(&raw.tls, listen)?,
        limits: limits(&raw.limits)?,
        prompts: raw.prompts.as_ref().map(|raw| prompts("picker.prompts", raw)).transpose()?,
        ..PickerConfig::new(settings(raw)?)
    };
    if let Some(reason) = config.refusal() {
        return Err(Fault::new("picker.policy", reason).hint("use lard-r or lard-cost, for example"));
    }
    if raw.peers.is_some() && !raw.discover.is_empty() && config.settings.policy == PolicyKind::Hash {
        let what =
            "replicas with hash number their endpoints differently once endpoints have changed, and disagree";
        return Err(Fault::new("picker.policy", what).hint("use rendezvous"));
    }
    Ok(PickerRole {
        listen,
        picker: config,
        nodes,
        discover: sources("picker.discover", &raw.discover, Duration::ZERO)?,
        peers: raw.peers.as_ref().map(|raw| switches("picker.peers", raw, absent)).transpose()?,
    })
}

/// Refuses the keys of a node that say how a switch sends it requests.
fn refuse_switch_keys(at: &str, node: &NodeKey) -> Result<(), Fault> {
    let given = [
        ("groups", !node.groups.0.is_empty()),
        ("http2", node.http2),
        ("tls", node.tls.is_some()),
        ("proxy_protocol", node.proxy_protocol.is_some()),
        ("handoff", node.handoff.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((key, _)) => {
            Err(Fault::new(format!("{at}.{key}"), "is not for a picker, which sends no requests")
                .hint("leave it out"))
        }
        None => Ok(()),
    }
}

/// Returns the settings of the dispatcher.
fn settings(raw: &PickerSection) -> Result<Settings, Fault> {
    let mut settings = Settings {
        nodes_max: raw.limits.nodes_max,
        admission: limit(raw.admission.limit),
        long_lived_max: raw.admission.long_lived_max,
        queue_max: 0,
        join_targets_per_s: raw.join.targets_per_s,
        join_warm_targets: raw.join.warm_targets,
        ..Settings::default()
    };
    let given = Parameters { policy: Some(&raw.policy), policies: &raw.policies, training_above: None };
    apply("picker", &given, &mut settings)?;
    Ok(settings)
}

fn tls(raw: &PickerTlsSection, listen: SocketAddr) -> Result<PickerTls, Fault> {
    let has_files = !raw.certificates.0.is_empty();
    if !raw.enabled && (has_files || raw.client_ca.is_some()) {
        let what = "contradicts the other keys: TLS is off";
        return Err(Fault::new("picker.tls.enabled", what).hint("leave out certificates and client_ca"));
    }
    if raw.client_ca.is_some() && !has_files {
        let what = "needs certificates: gateways that prove who they are expect the same of the picker";
        return Err(Fault::new("picker.tls.client_ca", what).hint("name the files in certificates"));
    }
    match (raw.enabled, has_files) {
        (false, _) => Ok(PickerTls::Off),
        (true, false) => Ok(PickerTls::SelfSigned),
        (true, true) => {
            let client_ca = raw.client_ca.clone();
            let files = picker_tls(&raw.certificates, raw.reload, client_ca, listen)?;
            Ok(PickerTls::Files(Box::new(files)))
        }
    }
}

fn limits(raw: &PickerLimitsSection) -> Result<PickerLimits, Fault> {
    let bytes = usize::try_from(raw.message.0.get()).map_err(|error| {
        Fault::new("picker.limits.message", error.to_string()).hint("write a smaller size")
    })?;
    Ok(PickerLimits {
        connections: raw.connections,
        streams: raw.streams,
        streams_per_connection: raw.streams_per_connection,
        message_bytes: bytes,
        drain: raw.drain.0,
        ..PickerLimits::default()
    })
}
