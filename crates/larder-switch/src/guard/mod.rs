//! Guards, which refuse requests of a route before a node is asked.
//!
//! A guard checks the client's network, HTTP basic authentication (RFC 7617) and the size of the request body. It
//! runs after the redirect to `https`, so that no password is requested without TLS, and before the route's direct
//! reply. ACME challenges are answered before it. Guarded routes are relayed, because the later requests of a
//! handed-off connection would bypass the guard.

mod users;

pub use users::{Users, UsersError};

use crate::config_error::ConfigError;
use crate::config_error::route_error;
use crate::failure::Failure;
use larder_edge::{AddressRange, Fields};
use std::net::IpAddr;
use std::sync::Arc;

/// Conditions for the requests of a route; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteGuard {
    /// Allowed networks; empty for all. Outcome: 403 `denied`.
    pub allow: Vec<AddressRange>,
    /// Denied networks, even if `allow` contains them. Outcome: 403 `denied`.
    pub deny: Vec<AddressRange>,
    /// Accounts; a request must have the name and password of one. `None` requires no password. Outcome: 401
    /// `unauthorized`.
    pub users: Option<Arc<Users>>,
    /// Name of the protected space, which browsers show. Printable ASCII without `"` and `\`.
    pub realm: String,
    /// Whether `Authorization` is forwarded to nodes. Otherwise it is removed after the check, so that caches may
    /// share the replies (RFC 9111 section 3.5).
    pub pass_authorization: bool,
    /// Maximum size of a request body. Bytes; `None` for no limit. Outcome: 413 `body_too_large`.
    pub body_bytes_max: Option<u64>,
}

impl RouteGuard {
    /// Checks that the realm is a valid field value.
    pub(crate) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let fits = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if self.realm.len() <= 256 && self.realm.bytes().all(fits) {
            return Ok(());
        }
        let what = "printable ASCII without quotes and backslashes, 256 bytes at most".to_owned();
        Err(route_error(at, "guard.realm", what))
    }

    /// Whether clients with this address may make requests.
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        let within = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(address));
        !within(&self.deny) && (self.allow.is_empty() || within(&self.allow))
    }

    /// Whether the guard needs the client's address.
    pub(crate) fn uses_addresses(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty())
    }

    /// Checks the name and the password of a request.
    ///
    /// # Errors
    /// [`Failure::Unauthorized`] if they are missing or wrong, [`Failure::RateLimited`] if too many checks are
    /// queued.
    pub(crate) async fn authenticate(&self, fields: &impl Fields) -> Result<(), Failure> {
        let Some(users) = &self.users else { return Ok(()) };
        let mut values = fields.each("Authorization");
        match (values.next(), values.next()) {
            (Some(value), None) => users.check(value).await,
            _ => Err(Failure::Unauthorized),
        }
    }

    /// Returns the value of `WWW-Authenticate`.
    pub(crate) fn challenge(&self) -> String {
        format!("Basic realm=\"{}\", charset=\"UTF-8\"", self.realm)
    }

    /// Whether `Authorization` is removed before requests are forwarded.
    pub(crate) fn hides_authorization(&self) -> bool {
        self.users.is_some() && !self.pass_authorization
    }

    /// Returns the largest size of a body; `None` for no limit.
    pub(crate) const fn body_bytes_max(&self) -> Option<u64> {
        self.body_bytes_max
    }

    /// Whether a body of this size exceeds the limit.
    pub(crate) fn body_is_too_large(&self, bytes: u64) -> bool {
        self.body_bytes_max.is_some_and(|max| bytes > max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<AddressRange> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    fn parsed(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn deny_has_precedence_and_an_empty_allow_admits_all() {
        let guard = |allow: &[&str], deny: &[&str]| RouteGuard {
            allow: ranges(allow),
            deny: ranges(deny),
            ..RouteGuard::default()
        };
        for (allow, deny, client, admitted) in [
            (&[][..], &[][..], "192.0.2.1", true),
            (&["10.0.0.0/8"], &[], "10.1.2.3", true),
            (&["10.0.0.0/8"], &[], "11.1.2.3", false),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", false),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.2.2.3", true),
            (&[], &["2001:db8::/32"], "2001:db8::1", false),
            (&[], &["2001:db8::/32"], "2001:db9::1", true),
            (&["10.0.0.0/8"], &[], "::ffff:10.1.2.3", true),
            (&[], &["10.0.0.0/8"], "::ffff:10.1.2.3", false),
        ] {
            assert_eq!(guard(allow, deny).allows(parsed(client)), admitted, "{allow:?} {deny:?} {client}");
        }
    }
}
