//! Header fields of a request as it enters: which of them its sender may set, and what this process writes itself.
//!
//! Switch and node apply the same rules, once, before anything else reads the header:
//!
//! 1. Fields whose names contain an underscore are dropped ([`EntryRules::sanitize`]). CGI-like applications read `Client_Cert` and
//!    `Client-Cert` as the same variable. nginx drops them too (`underscores_in_headers`).
//! 2. Fields that `Connection` nominates are removed (RFC 9110 section 7.6.1), except end-to-end fields. A client that nominates
//!    `X-Forwarded-For` or `Cookie` tries to have a proxy remove what the next hop relies on; such a nomination is ignored, as
//!    section 7.6.1 forbids a sender to make it.
//! 3. The identity fields of an untrusted sender are replaced or completed ([`EntryRules::identify`]):
//!
//! | field | sender is a trusted relay | any other sender |
//! |---|---|---|
//! | `X-Forwarded-For` | kept | its address is appended, or replaces the field ([`Forwarded`]) |
//! | `Forwarded` (RFC 7239) | kept | if present: replaced by an element for the sender |
//! | `X-Forwarded-Proto`, `X-Forwarded-Host` | kept; set if absent | set |
//! | `Client-Cert`, `Client-Cert-Chain` (RFC 9440) | kept | the certificate of the connection, or none |
//! | other fields that tell of the URL ([`URL_FIELDS`]) | kept | dropped, unless [`EntryRules::url_fields`] is set |
//!
//! A trusted relay's own address is not appended (HAProxy: `option forwardfor except`). So the last address in `X-Forwarded-For` is
//! always that of the sender that connected from outside the trusted relays.

use crate::proxy_protocol::Announcers;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use std::net::IpAddr;

/// Most options in the `Connection` fields of a request.
pub const CONNECTION_OPTIONS_MAX: usize = 32;

const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Options of `Connection` that are no fields, or that a protocol switch needs.
const OPTIONS: [&str; 4] = ["close", "keep-alive", "te", "upgrade"];

/// Header fields that can be changed.
pub trait Fields {
    /// The fields.
    fn map(&self) -> &HeaderMap;
    /// Removes all fields of this name.
    fn remove(&mut self, name: &HeaderName);
    /// Replaces all fields of this name.
    fn set(&mut self, name: &HeaderName, value: HeaderValue);
}

impl Fields for HeaderMap {
    fn map(&self) -> &HeaderMap {
        self
    }

    fn remove(&mut self, name: &HeaderName) {
        HeaderMap::remove(self, name);
    }

    fn set(&mut self, name: &HeaderName, value: HeaderValue) {
        self.insert(name, value);
    }
}

/// Treatment of `X-Forwarded-For` from a sender that is not a trusted relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// The sender's address is appended.
    #[default]
    Append,
    /// The sender's address replaces the field.
    Overwrite,
}

impl Forwarded {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Append, Self::Overwrite];

    /// Its name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Overwrite => "overwrite",
        }
    }
}

/// The rules for header fields of requests as they enter.
#[derive(Clone, Debug, Default)]
pub struct EntryRules {
    /// Relays whose identity fields are believed. None by default.
    pub trusted_relays: Announcers,
    /// Treatment of `X-Forwarded-For` from other senders.
    pub forwarded: Forwarded,
    /// Whether fields with an underscore in their names are kept.
    pub underscores: bool,
    /// Whether other senders' fields that tell of the URL ([`URL_FIELDS`]) are kept.
    pub url_fields: bool,
}

/// Fields that may tell an application another scheme, host, port or path of the request than the request itself, and that
/// [`EntryRules::identify`] does not write. A reply to a request with such a field may have other links or be a redirect.
pub const URL_FIELDS: [HeaderName; 18] = [
    HeaderName::from_static("cloudfront-forwarded-proto"),
    HeaderName::from_static("front-end-https"),
    HeaderName::from_static("x-forwarded-path"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-protocol"),
    HeaderName::from_static("x-forwarded-scheme"),
    HeaderName::from_static("x-forwarded-ssl"),
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-forwarded-url"),
    HeaderName::from_static("x-host"),
    HeaderName::from_static("x-http-host-override"),
    HeaderName::from_static("x-original-host"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-scheme"),
    HeaderName::from_static("x-url-scheme"),
];

/// The request has more than [`CONNECTION_OPTIONS_MAX`] options in `Connection`. Fault of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {CONNECTION_OPTIONS_MAX} options in Connection")]
pub struct TooManyOptions;

/// The sender of a request, as its connection shows it.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The peer of the connection, or the client that a balancer has announced.
    pub address: IpAddr,
    /// Whether it is a trusted relay.
    pub trusted: bool,
    /// Whether the connection has TLS.
    pub secure: bool,
    /// The host that the request names.
    pub host: Option<&'a HeaderValue>,
    /// The certificate that the sender has shown, in the form of `Client-Cert`.
    pub client_cert: Option<&'a HeaderValue>,
}

impl EntryRules {
    /// Removes the fields that a sender may not set: names with an underscore, and fields that `Connection` nominates. What remains
    /// of `Connection` is `close`, `keep-alive`, `te` and `upgrade`. Returns the number of fields dropped for an underscore.
    ///
    /// # Errors
    /// `Connection` has too many options. The request must be refused.
    pub fn sanitize(&self, fields: &mut impl Fields) -> Result<u64, TooManyOptions> {
        let dropped =
            if self.underscores { 0 } else { drop_named(fields, |name| name.as_str().contains('_')) };
        remove_nominated(fields)?;
        Ok(dropped)
    }

    /// Writes the identity fields of a request. Returns the number of fields dropped because they tell of the URL.
    pub fn identify(&self, fields: &mut impl Fields, sender: Sender<'_>) -> u64 {
        let scheme = if sender.secure { "https" } else { "http" };
        if !sender.trusted || !fields.map().contains_key(X_FORWARDED_PROTO) {
            fields.set(&X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
        }
        if !sender.trusted || !fields.map().contains_key(X_FORWARDED_HOST) {
            set_or_remove(fields, &X_FORWARDED_HOST, sender.host.filter(|host| !host.is_empty()));
        }
        if sender.trusted {
            return 0;
        }
        let dropped = if self.url_fields { 0 } else { drop_named(fields, |name| URL_FIELDS.contains(name)) };
        fields.remove(&CLIENT_CERT_CHAIN);
        set_or_remove(fields, &CLIENT_CERT, sender.client_cert);
        let address = sender.address.to_canonical();
        self.list(fields, &X_FORWARDED_FOR, &address.to_string());
        if fields.map().contains_key(header::FORWARDED) {
            // Applications take scheme and host from the first element. So none of the sender's may stand before this one.
            let own = HeaderValue::try_from(element(address, scheme, sender.host)).ok();
            set_or_remove(fields, &header::FORWARDED, own.as_ref());
        }
        dropped
    }

    /// Puts `last` at the end of a list, or in its place. A list that already ends with it stays: a node that takes a connection from
    /// its peer gets the request with the field already written.
    fn list(&self, fields: &mut impl Fields, name: &HeaderName, last: &str) {
        let mut list = Vec::new();
        if self.forwarded == Forwarded::Append {
            for value in fields.map().get_all(name) {
                if !list.is_empty() {
                    list.extend_from_slice(b", ");
                }
                list.extend_from_slice(value.as_bytes());
            }
        }
        let ends_with_it =
            list.rsplit(|byte| *byte == b',').next().is_some_and(|end| end.trim_ascii() == last.as_bytes());
        if list.is_empty() || !ends_with_it {
            if !list.is_empty() {
                list.extend_from_slice(b", ");
            }
            list.extend_from_slice(last.as_bytes());
        }
        // Values that were valid one by one are valid as a list.
        match HeaderValue::from_bytes(&list) {
            Ok(value) => fields.set(name, value),
            Err(_) => fields.remove(name),
        }
    }
}

fn set_or_remove(fields: &mut impl Fields, name: &HeaderName, value: Option<&HeaderValue>) {
    match value {
        Some(value) => fields.set(name, value.clone()),
        None => fields.remove(name),
    }
}

/// The element of `Forwarded` for a sender (RFC 7239 section 4).
fn element(address: IpAddr, scheme: &str, host: Option<&HeaderValue>) -> String {
    let sender = match address {
        IpAddr::V4(address) => format!("for={address}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\""),
    };
    let plain = |host: &&str| !host.is_empty() && !host.contains(['"', '\\']);
    match host.and_then(|host| host.to_str().ok()).filter(plain) {
        Some(host) => format!("{sender};host=\"{host}\";proto={scheme}"),
        None => format!("{sender};proto={scheme}"),
    }
}

/// Removes the fields whose names are `unwanted`. Returns their number.
fn drop_named(fields: &mut impl Fields, unwanted: impl Fn(&HeaderName) -> bool) -> u64 {
    let names: Vec<HeaderName> = fields.map().keys().filter(|name| unwanted(name)).cloned().collect();
    let mut dropped = 0;
    for name in &names {
        dropped += fields.map().get_all(name).iter().count() as u64;
        fields.remove(name);
    }
    dropped
}

fn remove_nominated(fields: &mut impl Fields) -> Result<(), TooManyOptions> {
    if !fields.map().contains_key(header::CONNECTION) {
        return Ok(());
    }
    let mut present = [false; OPTIONS.len()];
    let (mut nominated, mut others, mut count) = (Vec::new(), false, 0);
    let values = fields.map().get_all(header::CONNECTION).iter();
    let options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    for option in options.map(<[u8]>::trim_ascii).filter(|option| !option.is_empty()) {
        count += 1;
        if count > CONNECTION_OPTIONS_MAX {
            return Err(TooManyOptions);
        }
        match OPTIONS.iter().position(|own| option.eq_ignore_ascii_case(own.as_bytes())) {
            Some(at) => present[at] = true,
            None => {
                others = true;
                nominated.extend(HeaderName::from_bytes(option).ok().filter(|name| !is_end_to_end(name)));
            }
        }
    }
    if !others && count <= OPTIONS.len() {
        return Ok(());
    }
    for name in &nominated {
        fields.remove(name);
    }
    let kept: Vec<&str> =
        OPTIONS.iter().zip(present).filter(|(_, present)| *present).map(|(name, _)| *name).collect();
    let value = HeaderValue::try_from(kept.join(", ")).ok().filter(|value| !value.is_empty());
    set_or_remove(fields, &header::CONNECTION, value.as_ref());
    Ok(())
}

/// Whether a field is meant for the origin or for all who handle the request, so that no `Connection` may nominate it.
fn is_end_to_end(name: &HeaderName) -> bool {
    const PREFIXES: [&str; 8] =
        ["accept", "access-control-", "cdn-", "content-", "if-", "larder-", "sec-", "x-forwarded-"];
    const NAMES: [&str; 29] = [
        "alt-used",
        "authorization",
        "cache-control",
        "client-cert",
        "client-cert-chain",
        "connection",
        "cookie",
        "date",
        "digest",
        "expect",
        "forwarded",
        "from",
        "host",
        "max-forwards",
        "origin",
        "pragma",
        "prefer",
        "priority",
        "proxy-authorization",
        "range",
        "referer",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "true-client-ip",
        "user-agent",
        "via",
        "x-real-ip",
        "x-request-id",
    ];
    debug_assert!(NAMES.is_sorted(), "searched by halves");
    let name = name.as_str();
    NAMES.binary_search(&name).is_ok() || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests;
