//! The dimensions of requests and replies, with the values that the generator draws from.
//!
//! A case stores the index of one value for each dimension. Value 0 is the plainest, so a failing case is shrunk by setting
//! indices to 0. A value is the text of header lines, separated by `\n`. Lines may contain these variables, which
//! [`crate::step`] replaces:
//!
//! ```text
//! {client}     name of the client that sends the request
//! {tag:N}      entity tag of the reply that the origin makes for step N
//! {date:S}     date S seconds after the case has started, S may be negative
//! {me}         number of the origin exchange that sends this reply
//! ```
//!
//! Lifetimes and ages differ by at least 10 s from each other. So freshness does not depend on the duration of a case, and no
//! case has to wait.

/// A dimension: its name and its values.
#[derive(Debug)]
pub struct Dimension {
    /// Name in reports.
    pub name: &'static str,
    /// Values; the first is the plainest.
    pub values: &'static [&'static str],
}

/// Index of a request dimension in [`REQUEST`].
pub mod request {
    /// Method.
    pub const METHOD: usize = 0;
    /// `Cache-Control` and `Pragma`.
    pub const CACHE_CONTROL: usize = 1;
    /// `Cookie` and `Authorization`.
    pub const CREDENTIALS: usize = 2;
    /// A field that `Vary` may name.
    pub const LANGUAGE: usize = 3;
    /// `Range` and `If-Range`.
    pub const RANGE: usize = 4;
    /// Preconditions.
    pub const CONDITION: usize = 5;
    /// `Connection`.
    pub const CONNECTION: usize = 6;
    /// `Host`.
    pub const HOST: usize = 7;
    /// Query.
    pub const QUERY: usize = 8;
    /// Fields by which a trusted relay states scheme and host of the target URI.
    pub const RELAYED: usize = 9;
    /// Number of request dimensions.
    pub const COUNT: usize = 10;
}

/// Index of a reply dimension in [`REPLY`].
pub mod reply {
    /// Status, or the kind of failure of the origin.
    pub const STATUS: usize = 0;
    /// `Cache-Control`.
    pub const CACHE_CONTROL: usize = 1;
    /// `CDN-Cache-Control`.
    pub const TARGETED: usize = 2;
    /// `Expires`.
    pub const EXPIRES: usize = 3;
    /// `Age`.
    pub const AGE: usize = 4;
    /// `Date`.
    pub const DATE: usize = 5;
    /// `ETag` and `Last-Modified`.
    pub const VALIDATOR: usize = 6;
    /// `Vary`.
    pub const VARY: usize = 7;
    /// `Set-Cookie`.
    pub const SET_COOKIE: usize = 8;
    /// `Connection`.
    pub const CONNECTION: usize = 9;
    /// Framing of the body.
    pub const FRAMING: usize = 10;
    /// Length of the body in bytes.
    pub const LENGTH: usize = 11;
    /// Interim reply before the final one.
    pub const INTERIM: usize = 12;
    /// The origin's reply to a precondition that matches.
    pub const VALIDATION: usize = 13;
    /// Whether the origin replies 206 to `Range`.
    pub const PARTIAL: usize = 14;
    /// Number of reply dimensions.
    pub const COUNT: usize = 15;
}

/// Index in [`reply::CACHE_CONTROL`] of the value with which all clients may share a reply.
pub const SHAREABLE: u8 = 1;
/// Status value: the origin closes the connection before the head.
pub const CLOSE_BEFORE_HEAD: &str = "close";
/// Status value: the origin closes the connection within the body.
pub const CLOSE_IN_BODY: &str = "cut";

/// The dimensions of a request, in the order of [`request`].
pub const REQUEST: [Dimension; request::COUNT] = [
    Dimension { name: "method", values: &["GET", "HEAD", "POST"] },
    Dimension {
        name: "request Cache-Control",
        values: &[
            "",
            "Cache-Control: no-cache",
            "Cache-Control: no-store",
            "Cache-Control: max-age=0",
            "Cache-Control: max-age=20",
            "Cache-Control: max-age=1000",
            "Cache-Control: max-stale",
            "Cache-Control: max-stale=20",
            "Cache-Control: max-stale=100000",
            "Cache-Control: min-fresh=20",
            "Cache-Control: min-fresh=1000",
            "Cache-Control: only-if-cached",
            "Cache-Control: only-if-cached, max-stale",
            "Pragma: no-cache",
            "Cache-Control: ,No-Cache ,",
            "Cache-Control: max-age=\"0\"",
            "Cache-Control: no-cache, max-stale=100000",
            "Cache-Control: no-transform\nCache-Control: NO-STORE",
            "Cache-Control: stale-if-error=100000",
            "Cache-Control: x=\"no-store, no-cache\", max-stale=100000",
        ],
    },
    Dimension {
        name: "credentials",
        values: &[
            "",
            "Cookie: session={client}",
            "Authorization: Basic {client}",
            "Cookie: session={client}\nAuthorization: Basic {client}",
            "Cookie: theme=dark",
        ],
    },
    Dimension {
        name: "X-Lang",
        values: &["", "X-Lang: de", "X-Lang: en", "X-Lang: de, en", "X-Lang: de\nX-Lang: en", "X-Lang:"],
    },
    Dimension {
        name: "range",
        values: &[
            "",
            "Range: bytes=0-9",
            "Range: bytes=-5",
            "Range: bytes=20-",
            "Range: bytes=1000000-",
            "Range: bytes=0-1,4-5",
            "Range: bytes=0-9\nIf-Range: {tag:0}",
            "Range: bytes=0-9\nIf-Range: \"other\"",
            "Range: lines=1-2",
        ],
    },
    Dimension {
        name: "condition",
        values: &[
            "",
            "If-None-Match: {tag:0}",
            "If-None-Match: \"other\"",
            "If-None-Match: *",
            "If-None-Match: \"other\", W/{tag:0}, {tag:1}",
            "If-Modified-Since: {date:0}",
            "If-Modified-Since: {date:-2000000}",
            "If-None-Match: \"other\"\nIf-Modified-Since: {date:0}",
        ],
    },
    Dimension {
        name: "request Connection",
        values: &[
            "",
            "Connection: X-Lang",
            "Connection: Cookie",
            "Connection: Authorization",
            "Connection: keep-alive, X-Lang, Cookie",
            "Connection: close",
        ],
    },
    Dimension { name: "host", values: &["a.oracle.test", "b.oracle.test", "A.Oracle.Test"] },
    Dimension { name: "query", values: &["", "?q=1", "?q=2"] },
    Dimension {
        name: "relayed URI",
        values: &[
            "",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Proto: HTTPS\nX-Forwarded-Host: a.oracle.test",
            "X-Forwarded-Host: b.oracle.test",
            "Forwarded: for=192.0.2.1;proto=https",
            "Forwarded: for=192.0.2.1;host=\"b.oracle.test\", for=192.0.2.2",
            "Forwarded: for=192.0.2.1;proto=http",
            "Forwarded: proto=http, proto=https",
            "Forwarded: proto=https, proto=http",
            "X-Forwarded-Host: a.oracle.test\nX-Forwarded-Host: b.oracle.test",
            "X-Forwarded-Host: b.oracle.test\nX-Forwarded-Host: a.oracle.test",
            "X-Forwarded-Prefix: /p",
        ],
    },
];

/// The dimensions of an origin reply, in the order of [`reply`].
pub const REPLY: [Dimension; reply::COUNT] = [
    Dimension {
        name: "status",
        values: &[
            "200",
            "203",
            "204",
            "299",
            "300",
            "301",
            "302",
            "303",
            "307",
            "308",
            "400",
            "401",
            "403",
            "404",
            "405",
            "410",
            "414",
            "429",
            "451",
            "500",
            "501",
            "502",
            "503",
            "504",
            CLOSE_BEFORE_HEAD,
            CLOSE_IN_BODY,
        ],
    },
    Dimension {
        name: "reply Cache-Control",
        values: &[
            "",
            "Cache-Control: max-age=100",
            "Cache-Control: public, max-age=100",
            "Cache-Control: no-cache",
            "Cache-Control: no-cache, max-age=100",
            "Cache-Control: no-cache=\"x-secret\", max-age=100",
            "Cache-Control: no-store",
            "Cache-Control: no-store, max-age=100",
            "Cache-Control: private",
            "Cache-Control: private, max-age=100",
            "Cache-Control: private=\"x-secret\", max-age=100",
            "Cache-Control: public",
            "Cache-Control: public, max-age=0",
            "Cache-Control: max-age=0",
            "Cache-Control: s-maxage=100",
            "Cache-Control: s-maxage=0, max-age=100",
            "Cache-Control: s-maxage=100, max-age=0",
            "Cache-Control: max-age=100, must-revalidate",
            "Cache-Control: max-age=0, must-revalidate",
            "Cache-Control: max-age=100, proxy-revalidate",
            "Cache-Control: must-revalidate",
            "Cache-Control: must-understand, no-store, max-age=100",
            "Cache-Control: must-understand, max-age=100",
            "Cache-Control: max-age=100, stale-while-revalidate=100000",
            "Cache-Control: max-age=0, stale-while-revalidate=20",
            "Cache-Control: max-age=100, stale-if-error=100000",
            "Cache-Control: max-age=0, stale-if-error=20",
            "Cache-Control: max-age=100, stale-while-revalidate=100000, must-revalidate",
            "Cache-Control: max-age=100, stale-if-error=100000, proxy-revalidate",
            "Cache-Control: max-age=100, max-age=0",
            "Cache-Control: max-age=0, max-age=100",
            "Cache-Control: max-age=100\nCache-Control: no-cache",
            "Cache-Control: max-age=100\nCache-Control: Private",
            "Cache-Control: MAX-AGE=100,, ,NO-STORE",
            "Cache-Control: max-age=\"100\"",
            "Cache-Control: max-age=-1",
            "Cache-Control: max-age=1.5",
            "Cache-Control: max-age=soon",
            "Cache-Control: max-age=99999999999999999999",
            "Cache-Control: ext=\"a, no-store, b\", max-age=100",
            "Cache-Control: ext=\"\\\", max-age=100, \", no-store",
            "Cache-Control: private=x-secret, max-age=100",
            "Cache-Control: max-age=100, no-cache=\"\"",
            "Cache-Control: public, max-age=100, immutable",
        ],
    },
    Dimension {
        name: "CDN-Cache-Control",
        values: &[
            "",
            "CDN-Cache-Control: max-age=100",
            "CDN-Cache-Control: max-age=0",
            "CDN-Cache-Control: no-store",
            "CDN-Cache-Control: no-cache",
            "CDN-Cache-Control: private",
            "CDN-Cache-Control: public, max-age=100",
            "CDN-Cache-Control: s-maxage=100",
            "CDN-Cache-Control: max-age=100, must-revalidate",
            "CDN-Cache-Control: max-age=100;x=1, ext=\"a\"",
            "CDN-Cache-Control: max-age=10, max-age=0",
            "CDN-Cache-Control: max-age=100, &&",
            "CDN-Cache-Control:",
            "CDN-Cache-Control: max-age=\"100\"",
            "CDN-Cache-Control: max-age=100\nCDN-Cache-Control: no-store",
        ],
    },
    Dimension {
        name: "Expires",
        values: &["", "Expires: {date:100}", "Expires: {date:-100}", "Expires: 0", "Expires: {date:5000}"],
    },
    Dimension {
        name: "Age",
        values: &["", "Age: 0", "Age: 30", "Age: 85", "Age: 130", "Age: 5000", "Age: x", "Age: 30, 5"],
    },
    Dimension {
        name: "Date",
        values: &["Date: {date:0}", "Date: {date:-30}", "Date: {date:-5000}", "", "Date: {date:1000}"],
    },
    Dimension {
        name: "validator",
        values: &[
            "",
            "ETag: {tag}",
            "ETag: W/{tag}",
            "Last-Modified: {date:-50}",
            "Last-Modified: {date:-1000000}",
            "ETag: {tag}\nLast-Modified: {date:-1000000}",
        ],
    },
    Dimension {
        name: "Vary",
        values: &[
            "",
            "Vary: X-Lang",
            "Vary: Cookie",
            "Vary: Authorization",
            "Vary: *",
            "Vary: x-lang, cookie",
            "Vary: X-Absent",
            "Vary: Cookie\nVary: X-Lang",
            "Vary: X-Lang, *",
            "Vary: X-Oracle-Request",
        ],
    },
    Dimension { name: "Set-Cookie", values: &["", "Set-Cookie: id={me}"] },
    Dimension {
        name: "reply Connection",
        values: &["", "Connection: X-Hop\nX-Hop: {me}", "Connection: keep-alive, x-hop\nX-Hop: {me}"],
    },
    Dimension { name: "framing", values: &["length", "chunked", "close"] },
    Dimension { name: "length", values: &["200", "0", "9000", "150000"] },
    Dimension { name: "interim", values: &["", "103"] },
    Dimension {
        name: "validation",
        values: &[
            "304",
            "304\nCache-Control: max-age=100",
            "304\nCache-Control: public, max-age=100",
            "304\nCache-Control: no-cache",
            "304\nCache-Control: private, max-age=100",
            "304\nCache-Control: no-store",
            "304\nSet-Cookie: id={me}\nCache-Control: max-age=100",
            "304\nVary: Cookie\nCache-Control: max-age=100",
            "304\nAge: 5000",
            "full",
            "500",
            "503",
            CLOSE_BEFORE_HEAD,
        ],
    },
    Dimension { name: "partial", values: &["206", "ignored"] },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_match_their_dimensions() {
        assert_eq!(REQUEST[request::CONDITION].name, "condition");
        assert_eq!(REQUEST[request::QUERY].name, "query");
        assert_eq!(REPLY[reply::VALIDATION].name, "validation");
        assert_eq!(REPLY[reply::PARTIAL].name, "partial");
        assert_eq!(REPLY[reply::CACHE_CONTROL].values[usize::from(SHAREABLE)], "Cache-Control: max-age=100");
    }
}
