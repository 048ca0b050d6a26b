//! The options of the field `Connection` (RFC 9110 section 7.6.1).

/// Largest number of options in the `Connection` fields of a request.
pub const CONNECTION_OPTIONS_MAX: usize = 32;

/// Returns whether a field is end-to-end, so that `Connection` may not nominate it.
///
/// A client that nominates such a field, for example `Cookie`, tries to have a proxy remove it before the
/// next hop. `name` may have any case.
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
