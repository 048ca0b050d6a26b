//! Facts about a request that templates use.

use larder_core::TargetId;
use larder_core::rules::Head;
use std::net::SocketAddr;

/// Facts about a request. Header fields are as the client sent them.
#[derive(Debug)]
pub(crate) struct RequestFacts<'a> {
    pub(crate) head: Head<'a>,
    /// Address of the client, if known.
    pub(crate) client: Option<SocketAddr>,
    /// Whether the client uses TLS that ends here.
    pub(crate) secure: bool,
    pub(crate) request_id: Option<&'a [u8]>,
    pub(crate) target: TargetId,
    pub(crate) route: &'a str,
    pub(crate) class: &'a str,
    pub(crate) policy: &'a str,
    pub(crate) node: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
    /// Status of the reply, if there is one.
    pub(crate) status: Option<u16>,
    pub(crate) cache: Option<&'a str>,
}

impl RequestFacts<'_> {
    pub(crate) const fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }
}

/// Calls `act` with facts in which every field is known.
#[cfg(test)]
pub(super) fn sample<T>(act: impl FnOnce(&RequestFacts<'_>) -> T) -> T {
    let long = "x".repeat(4000);
    let headers = vec![("Accept", "text/html"), ("Cookie", "a=b; sid=s1"), ("Long", &*long)];
    act(&RequestFacts {
        head: Head::new(b"GET", b"WWW.example.com:8443", b"/a/b?c=1&d=2", &headers),
        client: Some(([192, 0, 2, 7], 4711).into()),
        secure: true,
        request_id: Some(b"id-1"),
        target: TargetId(42),
        route: "shop",
        class: "db",
        policy: "lard-r",
        node: Some("n1"),
        reason: Some("known"),
        status: Some(200),
        cache: Some("hit"),
    })
}
