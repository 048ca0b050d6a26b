//! The rules that a reply can violate.

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
            /// Every rule, in the order of the documents.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The document and section that has the rule.
            pub fn section(self) -> &'static str {
                match self { $(Self::$name => $section,)* }
            }

            /// The rule in one sentence.
            pub fn statement(self) -> &'static str {
                match self { $(Self::$name => $statement,)* }
            }
        }
    };
}

rules! {
    Method, "RFC 9111 section 4", "A reply to GET serves GET and HEAD, one to HEAD serves HEAD, and one to POST nobody else.";
    Status, "RFC 9111 section 3", "The status is final, and neither 206 nor 304.";
    MustUnderstand, "RFC 9111 section 5.2.2.3", "With must-understand, the status is one that the cache understands.";
    ReplyNoStore, "RFC 9111 section 5.2.2.5", "A reply with no-store is not stored.";
    RequestNoStore, "RFC 9111 section 5.2.1.5", "A reply to a request with no-store is not stored.";
    Private, "RFC 9111 section 5.2.2.7", "A reply with private is not stored by a shared cache.";
    PrivateFields, "RFC 9111 section 5.2.2.7", "The fields of private=\"..\" do not reach other clients.";
    Authorization, "RFC 9111 section 3.5", "A reply to a request with Authorization serves no other unless public, must-revalidate or s-maxage allows.";
    Storable, "RFC 9111 section 3", "A stored reply states a lifetime or is public, or its status has one by heuristic.";
    SetCookie, "docs/node.md", "A reply with Set-Cookie is not stored.";
    Target, "RFC 9111 section 4", "Scheme, host, path and query of the request are those of the stored reply.";
    Vary, "RFC 9111 section 4.1", "The request fields that Vary names have the values that the reply was made for.";
    VaryAll, "RFC 9111 section 4.1", "A reply with Vary: * suits no other request without validation.";
    NoCache, "RFC 9111 section 5.2.2.4", "A reply with no-cache is not used without validation for this request.";
    NoCacheFields, "RFC 9111 section 5.2.2.4", "The fields of no-cache=\"..\" are not sent without validation for this request.";
    RequestNoCache, "RFC 9111 section 5.2.1.4", "A request with no-cache gets nothing that the origin was asked for before.";
    RequestMaxAge, "RFC 9111 section 5.2.1.1", "A reply is not older than max-age of the request.";
    RequestMinFresh, "RFC 9111 section 5.2.1.3", "A reply stays fresh for min-fresh of the request.";
    OnlyIfCached, "RFC 9111 section 5.2.1.7", "A request with only-if-cached gets a stored reply or 504.";
    Stale, "RFC 9111 section 4.2.4", "A stale reply is used only if the reply, the request or a failing origin allows.";
    MustRevalidate, "RFC 9111 section 5.2.2.2", "A stale reply with must-revalidate, proxy-revalidate or s-maxage is never used without validation.";
    Invalidated, "RFC 9111 section 4.4", "A reply from before a successful POST is not used without validation.";
    Validation, "RFC 9111 section 4.3", "A 304 renews a reply only if the request had one of the reply's validators.";
    Age, "RFC 9111 section 5.1", "A reply used without validation has Age, which is the time since the origin made or validated it.";
    Warning, "RFC 9111 section 5.5", "No reply has Warning.";
    NotModified, "RFC 9110 section 15.4.5", "304 goes only to a request with a precondition, and the precondition names the reply.";
    Partial, "RFC 9110 section 15.3.7", "206 goes only to a request with Range, and has the bytes that Content-Range names.";
    StatusKept, "RFC 9111 section 4", "A stored reply keeps its status, but for 206 and 304 made from 200.";
    Body, "RFC 9110 section 6.4", "The body is the body of the exchange that the reply names.";
    Length, "RFC 9112 section 6.3", "The body is as long as its framing says, unless the origin broke off.";
    HopByHop, "RFC 9110 section 7.6.1", "Fields that Connection names go no further than one hop.";
    Credentials, "RFC 9110 section 7.6", "The origin gets the request fields of the client that it is asked for.";
    Identity, "docs/operating.md", "The origin is told scheme and host by trusted relays alone.";
    Foreign, "RFC 9111 section 3", "No cookie of another client's reply reaches a client.";
    Unexplained, "RFC 9110 section 15.6", "An error of larder's own has a cause: a failing origin, or only-if-cached.";
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
