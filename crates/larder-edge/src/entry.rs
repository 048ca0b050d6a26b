//! Header fields of a request as it enters: which of them its sender may set, and which this process writes itself.
//!
//! Switch and node apply the same rules, once, before anything else reads the header:
//!
//! 1. Fields that `Connection` nominates are removed by the engine (`larder_http::relay`), except end-to-end fields. A
//!    client that nominates `X-Forwarded-For` or `Cookie` tries to make a proxy remove what the next hop relies on.
//! 2. Fields whose names contain an underscore are dropped ([`EntryRules::drop_underscores`]). CGI-like applications
//!    read `Client_Cert` and `Client-Cert` as the same variable. nginx drops them too (`underscores_in_headers`).
//! 3. The identity fields of an untrusted sender are replaced or completed ([`EntryRules::identify`]):
//!
//! | field | sender is a trusted relay | any other sender |
//! |---|---|---|
//! | `X-Forwarded-For` | kept | its address is appended, or replaces the field ([`Forwarded`]) |
//! | `Forwarded` (RFC 7239) | kept | if present: replaced by an element for the sender |
//! | `X-Forwarded-Proto`, `X-Forwarded-Host` | kept; set if absent | set |
//! | `Client-Cert`, `Client-Cert-Chain` (RFC 9440) | kept | the certificate of the connection, or none |
//! | other fields that describe the URL ([`URL_FIELDS`]) | kept | dropped, unless [`EntryRules::url_fields`] is set |
//!
//! A trusted relay's own address is not appended (HAProxy: `option forwardfor except`). The last address in
//! `X-Forwarded-For` is therefore always that of the sender that connected from outside the trusted relays.

use crate::AddressText;
use crate::header::Fields;
use crate::proxy_protocol::AddressRanges;

use std::net::IpAddr;

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

/// Rules for header fields of incoming requests.
#[derive(Clone, Debug, Default)]
pub struct EntryRules {
    /// Relays whose identity fields are trusted. None by default.
    pub trusted_relays: AddressRanges,
    /// Treatment of `X-Forwarded-For` from other senders.
    pub forwarded: Forwarded,
    /// Whether fields with an underscore in their names are kept.
    pub underscores: bool,
    /// Whether fields of other senders that describe the URL ([`URL_FIELDS`]) are kept.
    pub url_fields: bool,
}

/// Fields that may give an application another scheme, host, port or path than the request itself, and that
/// [`EntryRules::identify`] does not write. A reply to a request with such a field may have other links or be a
/// redirect.
pub const URL_FIELDS: [&str; 18] = [
    "cloudfront-forwarded-proto",
    "front-end-https",
    "x-forwarded-path",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-host",
    "x-http-host-override",
    "x-original-host",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
];

/// The sender of a request, as known from its connection.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// Address of the connection's peer, or of the client that a balancer announced.
    pub address: IpAddr,
    /// Whether it is a trusted relay.
    pub trusted: bool,
    /// Whether the connection has TLS.
    pub secure: bool,
    /// The host in the request.
    pub host: Option<&'a [u8]>,
    /// The certificate that the sender presented, in the format of `Client-Cert`.
    pub client_cert: Option<&'a [u8]>,
}

impl EntryRules {
    /// Removes fields with an underscore in their names, unless they are kept. Returns their number.
    pub fn drop_underscores(&self, fields: &mut impl Fields) -> u64 {
        if self.underscores { 0 } else { fields.remove_if(|name| name.contains(&b'_')) }
    }

    /// Writes the identity fields of a request. Returns the number of dropped fields that describe the URL.
    pub fn identify(&self, fields: &mut impl Fields, sender: Sender<'_>) -> u64 {
        let scheme = if sender.secure { "https" } else { "http" };
        let dropped = if sender.trusted || self.url_fields { 0 } else { fields.remove_if(describes_url) };
        if !sender.trusted {
            fields.remove_if(is_identity);
        }
        if !fields.has("X-Forwarded-Proto") {
            fields.add("X-Forwarded-Proto", scheme.as_bytes());
        }
        if let Some(host) = sender.host.filter(|host| !host.is_empty())
            && !fields.has("X-Forwarded-Host")
        {
            fields.add("X-Forwarded-Host", host);
        }
        if sender.trusted {
            return 0;
        }
        if let Some(certificate) = sender.client_cert {
            fields.add("Client-Cert", certificate);
        }
        let address = sender.address.to_canonical();
        self.extend_list(fields, "X-Forwarded-For", AddressText::new(address).as_bytes());
        if fields.has("Forwarded") {
            // Applications take scheme and host from the first element, so no element of the sender may come before
            // this one.
            fields.set("Forwarded", forwarded_element(address, scheme, sender.host).as_bytes());
        }
        dropped
    }

    /// Appends `last` to a list, or replaces the list by it. A list that already ends with it is kept: a node that
    /// takes over a connection from a peer gets the request with the field already written.
    fn extend_list(&self, fields: &mut impl Fields, name: &str, last: &[u8]) {
        if !fields.has(name) {
            return fields.add(name, last);
        }
        let mut extend_list = Vec::new();
        if self.forwarded == Forwarded::Append {
            for value in fields.each(name) {
                if !extend_list.is_empty() {
                    extend_list.extend_from_slice(b", ");
                }
                extend_list.extend_from_slice(value);
            }
        }
        if extend_list.is_empty() {
            return fields.set(name, last);
        }
        let ends_with_it =
            extend_list.rsplit(|byte| *byte == b',').next().is_some_and(|end| end.trim_ascii() == last);
        if !ends_with_it {
            extend_list.extend_from_slice(b", ");
            extend_list.extend_from_slice(last);
        }
        // Values that were valid one by one are valid as a list.
        fields.set(name, &extend_list);
    }
}

/// Checks whether a field identifies the sender, and is therefore rewritten for an untrusted sender.
fn is_identity(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] =
        [b"client-cert", b"client-cert-chain", b"x-forwarded-host", b"x-forwarded-proto"];
    matches!(name.first(), Some(b'c' | b'C' | b'x' | b'X'))
        && NAMES.iter().any(|field| name.eq_ignore_ascii_case(field))
}

/// Checks whether a field describes the URL ([`URL_FIELDS`]).
fn describes_url(name: &[u8]) -> bool {
    matches!(name.first(), Some(b'c' | b'C' | b'f' | b'F' | b'x' | b'X'))
        && URL_FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field.as_bytes()))
}

/// Formats the element of `Forwarded` for a sender (RFC 7239 section 4).
fn forwarded_element(address: IpAddr, scheme: &str, host: Option<&[u8]>) -> String {
    let sender = match address {
        IpAddr::V4(address) => format!("for={address}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\""),
    };
    let plain = |host: &&str| {
        let is_text = host.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        !host.is_empty() && is_text && !host.contains(['"', '\\'])
    };
    match host.and_then(|host| std::str::from_utf8(host).ok()).filter(plain) {
        Some(host) => format!("{sender};host=\"{host}\";proto={scheme}"),
        None => format!("{sender};proto={scheme}"),
    }
}

#[cfg(test)]
mod tests;
