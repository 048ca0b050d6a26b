//! The options of `Connection` (RFC 9110 section 7.6.1).

/// Most options in the `Connection` fields of a request.
pub const CONNECTION_OPTIONS_MAX: usize = 32;

/// Whether a field is meant for the origin or for all who handle the message, so that no `Connection` may nominate it: a client that
/// nominates `Cookie` tries to have a proxy remove what the next hop relies on. `name` may have any case.
pub fn is_end_to_end(name: &[u8]) -> bool {
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
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        || PREFIXES.iter().any(|prefix| {
            name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
        })
}
