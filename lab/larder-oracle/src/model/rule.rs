//! The rules of the model.

use serde::Serialize;

macro_rules! rules {
    ($($name:ident, $section:literal, $statement:literal;)*) => {
        /// A rule of the model.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Rule {
            $(#[doc = $statement] $name,)*
        }

        impl Rule {
            /// All rules, in the order of the report.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Document and section of the rule.
            pub fn section(self) -> &'static str {
                match self { $(Self::$name => $section,)* }
            }

            /// Statement of the rule in one sentence.
            pub fn statement(self) -> &'static str {
                match self { $(Self::$name => $statement,)* }
            }
        }
    };
}

rules! {
    Method, "RFC 9111 section 4", "A reply to GET can be used for GET and HEAD, one to HEAD for HEAD, and one to POST for no other request.";
    Status, "RFC 9111 section 3", "The status is final, and neither 206 nor 304.";
    MustUnderstand, "RFC 9111 section 5.2.2.3", "With must-understand, the status is one that the cache understands.";
    ReplyNoStore, "RFC 9111 section 5.2.2.5", "A reply with no-store is not stored.";
    RequestNoStore, "RFC 9111 section 5.2.1.5", "A reply to a request with no-store is not stored.";
    Private, "RFC 9111 section 5.2.2.7", "A reply with private is not stored by a shared cache.";
    PrivateFields, "RFC 9111 section 5.2.2.7", "The fields of private=\"..\" do not reach other clients.";
    Authorization, "RFC 9111 section 3.5", "A reply to a request with Authorization is used for no other request unless public, must-revalidate or s-maxage allows it.";
    Storable, "RFC 9111 section 3", "A stored reply states a lifetime, is public, or has a heuristically cacheable status.";
    SetCookie, "docs/reference/node.md", "A reply with Set-Cookie is not stored.";
    Target, "RFC 9111 section 4", "Scheme, host, path and query of the request are those of the stored reply.";
    Vary, "RFC 9111 section 4.1", "The request fields that Vary names have the same values in both requests.";
    VaryAll, "RFC 9111 section 4.1", "A reply with Vary: * is not used for another request without validation.";
    NoCache, "RFC 9111 section 5.2.2.4", "A reply with no-cache is not used without validation for this request.";
    NoCacheFields, "RFC 9111 section 5.2.2.4", "The fields of no-cache=\"..\" are not sent without validation for this request.";
    RequestNoCache, "RFC 9111 section 5.2.1.4", "A request with no-cache gets no reply to an earlier origin request.";
    RequestMaxAge, "RFC 9111 section 5.2.1.1", "A reply is not older than max-age of the request.";
    RequestMinFresh, "RFC 9111 section 5.2.1.3", "A reply stays fresh for min-fresh of the request.";
    OnlyIfCached, "RFC 9111 section 5.2.1.7", "A request with only-if-cached gets a stored reply or 504.";
    Stale, "RFC 9111 section 4.2.4", "A stale reply is used only if the reply, the request or a failing origin allows it.";
    MustRevalidate, "RFC 9111 section 5.2.2.2", "A stale reply with must-revalidate, proxy-revalidate or s-maxage is never used without validation.";
    Invalidated, "RFC 9111 section 4.4", "A reply from before a successful POST is not used without validation.";
    Validation, "RFC 9111 section 4.3", "A 304 renews a reply only if the request had one of the reply's validators.";
    Age, "RFC 9111 section 5.1", "A reply used without validation has Age, which is the time since the origin made or validated it.";
    Warning, "RFC 9111 section 5.5", "No reply has Warning.";
    NotModified, "RFC 9110 section 15.4.5", "304 is sent only to a request with a precondition that matches the reply.";
    Partial, "RFC 9110 section 15.3.7", "206 is sent only to a request with Range, and has the bytes that Content-Range states.";
    StatusKept, "RFC 9111 section 4", "A stored reply keeps its status, except for 206 and 304 made from 200.";
    Body, "RFC 9110 section 6.4", "The body is the body of the exchange that the reply names.";
    Length, "RFC 9112 section 6.3", "The body has the length of its framing, unless the origin closed the connection within it.";
    HopByHop, "RFC 9110 section 7.6.1", "Fields that Connection lists are not forwarded.";
    Credentials, "RFC 9110 section 7.6", "A request to the origin has the fields of the client request that it is made for.";
    Identity, "docs/operate/clients.md", "Only trusted relays can state scheme and host to the origin.";
    Foreign, "RFC 9111 section 3", "No cookie of another client's reply reaches a client.";
    Unexplained, "RFC 9110 section 15.6", "An error that larder generates has a cause: a failing origin, or only-if-cached.";
    Unanswered, "RFC 9110 section 3.4", "Every request gets a reply.";
}

impl Rule {
    /// Index in [`Rule::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name in reports.
    pub fn name(self) -> String {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    }
}
