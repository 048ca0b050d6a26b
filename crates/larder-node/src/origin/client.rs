//! An origin, and the requests to it: slots, header, and counters.

use super::client_key::{ClientKey, Prefixes};
use super::error::OriginError;
use super::flight::FetchFlights;
use super::origin_slot::{OriginCounters, OriginSlot};
use super::permit;
use super::private_replies::PrivateReplies;
use super::settings::OriginSettings;
use super::slots::{SlotRefusal, SlotSettings, Slots};
use super::stats::OriginStats;
use crate::config::{ClientNoCache, HostHeader, OriginConfig};
use crate::http::cache_control::Directives;
use crate::http::fields;
use crate::http::hop::{LARDER_REQUESTS, LARDER_TARGET, without_hop_fields};
use arc_swap::{ArcSwap, Guard};
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Response};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An origin.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The settings that a reload may change.
    settings: ArcSwap<OriginSettings>,
    host: HostHeader,
    pub(super) authority: Authority,
    pub(super) via: HeaderValue,
    slots: Arc<Slots>,
    /// The slots of tunnels. No request waits for one.
    pub(super) tunnels: Arc<Slots>,
    pub(super) flights: Arc<FetchFlights>,
    pub(super) private_replies: PrivateReplies,
    pub(super) counts: Arc<OriginCounters>,
}

/// A reply of the origin whose body is still to come.
#[derive(Debug)]
pub(crate) struct OriginReply {
    pub(crate) reply: Response<Incoming>,
    pub(crate) slot: OriginSlot,
    /// The origin that sent the reply.
    pub(crate) origin: Authority,
}

impl Origin {
    /// Creates the origin of the named node from a validated configuration.
    pub(crate) fn new(config: OriginConfig, name: &str) -> Self {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let name = if name.bytes().all(token) { name } else { "larder" };
        // A URL without an authority does not pass the check.
        let authority = config.url.authority().cloned().unwrap_or(Authority::from_static("localhost"));
        Self {
            authority,
            via: HeaderValue::try_from(format!("1.1 {name}"))
                .unwrap_or(HeaderValue::from_static("1.1 larder")),
            slots: Slots::new(slot_settings(&config)),
            tunnels: Slots::new(tunnel_slot_settings(&config)),
            flights: Arc::default(),
            private_replies: PrivateReplies::new(),
            counts: Arc::default(),
            host: config.host,
            settings: ArcSwap::from_pointee(OriginSettings::new(config)),
        }
    }

    /// Returns the settings in force. The guard must not be held across an await.
    pub(crate) fn settings(&self) -> Guard<Arc<OriginSettings>> {
        self.settings.load()
    }

    /// Applies new settings. The address of the first origin and the kind of `Host` stay, because stored
    /// replies depend on them.
    pub(crate) fn change(&self, config: OriginConfig) {
        self.slots.set(slot_settings(&config));
        self.tunnels.set(tunnel_slot_settings(&config));
        let next = self.settings.load().successor(config);
        self.settings.store(Arc::new(next));
    }

    /// Returns the host of a request, in lower case. `None` if the request has no host, several hosts, or an
    /// invalid host (RFC 9112 section 3.2). An invalid host could be taken for another host's target, or for a
    /// user's name.
    pub(crate) fn host(&self, parts: &Parts) -> Option<String> {
        let mut fields = parts.headers.get_all(header::HOST).iter();
        let field = fields.next().map(|value| value.to_str()).transpose().ok()?.unwrap_or_default();
        if fields.next().is_some() || !(field.is_empty() || is_host(field)) {
            return None;
        }
        let named = match (self.host, parts.uri.authority()) {
            (HostHeader::Origin, _) => self.authority.as_str(),
            (HostHeader::Client, Some(authority)) => authority.as_str(),
            (HostHeader::Client, None) => field,
        };
        is_host(named).then(|| named.to_ascii_lowercase())
    }

    /// Returns whether the origin is sent the client's `Host`. Replies for different hosts are then stored
    /// separately.
    pub(crate) fn sends_host_of_client(&self) -> bool {
        self.host == HostHeader::Client
    }

    /// Removes the fields that the node replaces from an admitted request. They do not reach the origin. So
    /// they must not influence whether its reply may be stored, or for which clients.
    pub(crate) fn remove_replaced_fields(&self, client: &mut Parts) {
        let config = &self.settings().config;
        for name in config.fields.keys() {
            client.headers.remove(name);
        }
        if config.sign.is_some() {
            permit::remove_unsignable(&client.method, &mut client.headers);
        }
    }

    /// Returns the header of an admitted request in the form that the origin is sent.
    pub(crate) fn request_headers(&self, client: &HeaderMap, host: &str) -> HeaderMap {
        let mut headers = without_hop_fields(client);
        headers.remove(LARDER_TARGET);
        headers.remove(LARDER_REQUESTS);
        // This node's server answers `Expect` and asks for the body when it is read.
        headers.remove(header::EXPECT);
        fields::decrement_max_forwards(&mut headers);
        fields::add_via(&mut headers, &self.via);
        if let Ok(host) = HeaderValue::from_str(host) {
            headers.insert(header::HOST, host);
        }
        let settings = self.settings();
        for name in settings.config.fields.keys() {
            headers.remove(name);
        }
        headers.extend(settings.config.fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        headers
    }

    /// Returns the client whose share a request uses.
    pub(crate) fn client(&self, parts: &Parts) -> ClientKey {
        let settings = self.settings();
        ClientKey::of(
            &parts.headers,
            Prefixes { v4: settings.config.prefix_v4, v6: settings.config.prefix_v6 },
        )
    }

    /// Returns the directives of a request that count.
    pub(super) fn directives(&self, headers: &HeaderMap) -> Directives {
        let requested = Directives::of_request(headers);
        match self.settings().config.client_no_cache {
            ClientNoCache::Honour => requested,
            // A stored reply may be used for a request with `no-store`. The reply to such a request is not
            // stored.
            ClientNoCache::Ignore => {
                Directives { no_cache: false, no_store: false, max_age: None, min_fresh: None, ..requested }
            }
        }
    }

    /// Returns a slot for a request of this client, if one is free now.
    pub(crate) fn try_acquire_slot(&self, client: ClientKey) -> Option<OriginSlot> {
        self.slots.try_take(client).map(|slot| OriginSlot::new(slot, &self.counts))
    }

    /// Waits for a slot for a request of this client.
    ///
    /// # Errors
    /// Fails with [`OriginError::Full`] or [`OriginError::ClientShare`] if there is none in time.
    pub(crate) async fn acquire_slot(&self, client: ClientKey) -> Result<OriginSlot, OriginError> {
        match self.slots.take(client).await {
            Ok(slot) => Ok(OriginSlot::new(slot, &self.counts)),
            Err(SlotRefusal::Full) => {
                self.counts.full.add(1);
                Err(OriginError::Full)
            }
            Err(SlotRefusal::Share) => {
                self.counts.client_share.add(1);
                Err(OriginError::ClientShare)
            }
        }
    }

    /// Prevents further requests from joining fetches in flight.
    pub(crate) fn close_flights(&self) {
        self.flights.close();
    }

    /// Returns the number of requests in progress.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.counts.requests_in_flight()
    }

    /// Returns the number of completed requests, the bytes of their replies' bodies, and the sum of their
    /// times.
    pub(crate) fn totals(&self) -> (u64, u64, Duration) {
        self.counts.totals()
    }

    /// Returns how often each limit was reached, and the current use of the slots.
    pub(crate) fn stats(&self) -> OriginStats {
        let (in_use, waiting) = self.slots.occupancy();
        let occupancy = OriginStats {
            origin_requests: in_use as u64,
            origin_waiting: waiting as u64,
            origin_tunnels: self.tunnels.occupancy().0 as u64,
            origins: self.settings().origins.status(Instant::now()),
            ..OriginStats::default()
        };
        self.counts.add_to(occupancy)
    }
}

fn slot_settings(config: &OriginConfig) -> SlotSettings {
    SlotSettings {
        slots_max: config.requests_max,
        client_share: config.client_share,
        queue_max: config.queue_max,
        queue_timeout: config.queue_timeout,
    }
}

fn tunnel_slot_settings(config: &OriginConfig) -> SlotSettings {
    SlotSettings { slots_max: config.tunnels_max, queue_max: 0, ..slot_settings(config) }
}

/// Returns whether a text is a host with or without a port, and without a user.
fn is_host(text: &str) -> bool {
    !text.contains('@') && text.parse::<Authority>().is_ok()
}
