//! Admits a request before any other code reads its header, and decides who may ask for the node's own paths.
//!
//! A request enters a node once. It comes from a client, a switch or a balancer ([`Admission::admit`]), or from
//! a peer that has admitted it ([`crate::http::hop`]). Cache keys, variants, traces and the request to the
//! origin are computed from the admitted header.
//!
//! | own path | senders that get an answer |
//! |---|---|
//! | health | all, except on handed-off connections |
//! | purge | senders that connect directly and show a purge token |
//! | stats, load, events | senders that connect directly and prove `report.secret`; without a secret, senders in `report.from` or `trusted_relays` |
//!
//! A sender connects directly if its connection is not handed off, no balancer has announced its client, and no
//! gateway has relayed the request.

use crate::common_parts::CommonParts;
use crate::connection::ConnectionRecord;
use crate::counters::Counters;
use crate::edge::ConnectionInfo;
use crate::http::hop::{HOP_BY_HOP, LARDER_TARGET, is_relayed};
use crate::origin::Origin;
use crate::purge::{authorization, permit_purge};
use crate::settings::{CurrentSettings, NodeSettings, OwnPath};
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use larder_edge::{EntryRules, Sender};
use larder_peers::PROOF_FIELD;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The result of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionOutcome {
    /// The request asks for contents.
    Contents,
    /// The request asks for one of the node's own paths, and its sender may ask.
    Own(OwnPath),
    /// The request asks for one of the node's own paths, and its sender may not ask.
    Denied,
}

impl AdmissionOutcome {
    pub(crate) fn is_contents(self) -> bool {
        self == Self::Contents
    }
}

/// Admits requests.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The origin of the contents, if there is one.
    origin: Option<Arc<Origin>>,
    settings: Arc<CurrentSettings>,
    counters: Arc<Counters>,
    /// Whether the log has mentioned a relay that is not trusted. The line is written once.
    relay_warned: AtomicBool,
}

impl Admission {
    pub(super) fn new(origin: Option<&Arc<Origin>>, common: &CommonParts) -> Self {
        Self {
            origin: origin.cloned(),
            settings: Arc::clone(&common.settings),
            counters: Arc::clone(&common.counters),
            relay_warned: AtomicBool::new(false),
        }
    }

    /// Removes the fields that the sender may not set, and writes the sender's identity. Returns what the
    /// request asks for.
    pub(super) fn admit(&self, connection: &ConnectionRecord, parts: &mut Parts) -> AdmissionOutcome {
        let settings = self.settings.load();
        let asks = settings.own_path(parts.uri.path());
        let admitted = match asks {
            None => AdmissionOutcome::Contents,
            Some(OwnPath::Health) if connection.handoff.is_none() => AdmissionOutcome::Own(OwnPath::Health),
            Some(OwnPath::Purge) => self.admit_purge(&settings, connection, &parts.headers),
            Some(own) if own != OwnPath::Health && is_switch(&settings, connection, &parts.headers) => {
                AdmissionOutcome::Own(own)
            }
            Some(_) => AdmissionOutcome::Denied,
        };
        if is_client_connection(connection) {
            // No switch has relayed the request, so the target id was set by the client.
            parts.headers.remove(LARDER_TARGET);
        }
        let mut dropped = apply_entry_rules(&settings.entry, &mut parts.headers);
        // Only an origin reads these fields, or a peer that may ask an origin.
        if admitted.is_contents()
            && let Some(origin) = &self.origin
        {
            dropped += self.identify((&settings, origin), connection, &mut parts.headers);
            origin.remove_replaced_fields(parts);
        }
        if dropped > 0 {
            self.counters.fields_dropped.add(dropped);
        }
        admitted
    }

    /// Admits a purge if its sender connects directly and shows a purge token.
    fn admit_purge(
        &self,
        settings: &NodeSettings,
        connection: &ConnectionRecord,
        headers: &HeaderMap,
    ) -> AdmissionOutcome {
        let direct = !is_client_connection(connection) && !is_relayed(headers);
        let may = direct && permit_purge(settings, &self.counters, authorization(headers)).is_ok();
        if may { AdmissionOutcome::Own(OwnPath::Purge) } else { AdmissionOutcome::Denied }
    }

    /// Writes the identity of the sender. Returns the number of fields that were dropped.
    fn identify(
        &self,
        (settings, origin): (&NodeSettings, &Origin),
        connection: &ConnectionRecord,
        headers: &mut HeaderMap,
    ) -> u64 {
        // Every connection that is served has a peer address. Without an address, no relay is trusted.
        let peer = connection.peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (info, relays) = (connection.info(), &settings.entry.trusted_relays);
        let client = info.and_then(ConnectionInfo::client);
        // A balancer that announces clients passes their header on unread. Therefore the announced client is
        // the sender, whatever address connects.
        let address = client.unwrap_or(peer);
        let trusted = relays.contains(address);
        if !trusted
            && !is_client_connection(connection)
            && headers.contains_key(header::VIA)
            && !self.relay_warned.swap(true, Relaxed)
        {
            // Any client can send `Via`. The line must not advise the operator to trust the address.
            tracing::info!(
                %peer,
                docs = "docs/operate/clients.md",
                "client: Via from an untrusted address, its identity fields are replaced"
            );
        }
        let host = headers.get(header::HOST).filter(|_| origin.sends_host_of_client()).cloned();
        let sender = Sender {
            address,
            trusted,
            secure: info.is_some_and(ConnectionInfo::is_secure),
            host: host.as_ref().map(HeaderValue::as_bytes),
            client_cert: info.and_then(ConnectionInfo::client_cert).map(HeaderValue::as_bytes),
        };
        let dropped = settings.entry.identify(headers, sender);
        if !origin.sends_host_of_client() {
            // All hosts share the stored replies. A reply that names one client's host must not reach another
            // client.
            headers.remove(X_FORWARDED_HOST);
        }
        dropped
    }
}

/// Returns whether a connection is known to be a client's own: a switch handed it off, or a balancer announced
/// its client.
fn is_client_connection(connection: &ConnectionRecord) -> bool {
    connection.handoff.is_some() || connection.info().is_some_and(|info| info.client().is_some())
}

/// Returns whether a request comes from a switch that may see this node's load.
fn is_switch(settings: &NodeSettings, connection: &ConnectionRecord, headers: &HeaderMap) -> bool {
    if is_client_connection(connection) || is_relayed(headers) {
        return false;
    }
    let may = |peer| settings.report.from.contains(peer) || settings.entry.trusted_relays.contains(peer);
    match &settings.report.secret {
        Some(secrets) => headers.get(PROOF_FIELD).is_some_and(|proof| secrets.verify_proof(proof.as_bytes())),
        None => connection.peer.is_some_and(may),
    }
}

/// Applies the entry rules to a header. Removes the hop-by-hop fields and the proof of the report secret, which
/// is meant for this node alone. `Connection` and `Transfer-Encoding` stay, because this node needs them;
/// [`crate::http::hop::without_hop_fields`] removes them later. Returns the number of fields that were dropped.
fn apply_entry_rules(rules: &EntryRules, headers: &mut HeaderMap) -> u64 {
    let dropped = rules.drop_underscores(headers);
    headers.remove(PROOF_FIELD);
    let framing = [header::CONNECTION, header::TRANSFER_ENCODING];
    for name in HOP_BY_HOP.iter().filter(|name| !framing.contains(name)) {
        headers.remove(name);
    }
    dropped
}
