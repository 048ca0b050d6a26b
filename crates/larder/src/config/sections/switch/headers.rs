//! `[switch.headers]`, and `headers` of a route.

use crate::config::keys::keys;
use crate::config::sections::switch::edits::{RequestIdSection, RulesSection};

keys! {
    /// `[switch.headers]`.
    table HeadersSection;

    /// The word the switch puts into Via: letters, digits and "-".
    via: String = "larder".to_owned();
    /// Rules for the header of requests to nodes, on all routes, after what the switch adds itself (X-Forwarded-For, Via) and
    /// before the route's own. With rules no connection is handed over.
    #[serde(skip_serializing_if = "RulesSection::is_empty")]
    request: RulesSection;
    /// Rules for the header of replies to clients, the switch's own replies among them, on all routes, before the route's own.
    #[serde(skip_serializing_if = "RulesSection::is_empty")]
    reply: RulesSection;
    /// Ids by which a request is found again in all logs.
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
    /// Whether there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.request.is_empty() && self.reply.is_empty()
    }
}
