//! `[switch.headers]`, and `headers` of a route.

use crate::config::keys::keys;
use crate::config::sections::switch::edits::{RequestIdSection, RulesSection};

keys! {
    /// `[switch.headers]`.
    table HeadersSection;

    /// Name of the switch in Via: letters, digits and "-".
    via: String = "larder".to_owned();
    /// Rules for the header of requests to nodes, on all routes. They apply after the switch's own fields
    /// (X-Forwarded-For, Via) and before the route's rules. With such rules no connection is handed off.
    #[serde(skip_serializing_if = "RulesSection::is_empty")]
    request: RulesSection;
    /// Rules for the header of replies to clients, including the switch's own replies, on all routes. They apply
    /// before the route's rules.
    #[serde(skip_serializing_if = "RulesSection::is_empty")]
    reply: RulesSection;
    /// Ids of requests, which appear in all logs.
    request_id: RequestIdSection;
}

keys! {
    /// `headers` of a route.
    table RouteHeadersSection;

    /// Rules for the header of requests to nodes, after those of [switch].
    #[serde(skip_serializing_if = "RulesSection::is_empty")]
    request: RulesSection;
    /// Rules for the header of replies to clients, after those of [switch].
    #[serde(skip_serializing_if = "RulesSection::is_empty")]
    reply: RulesSection;
}

impl RouteHeadersSection {
    /// Whether the section has no rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.request.is_empty() && self.reply.is_empty()
    }
}
