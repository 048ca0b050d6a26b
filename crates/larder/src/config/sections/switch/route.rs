//! `[[switch.routes]]`, and the groups of nodes that they use.

use std::collections::BTreeMap;

use larder_switch::MechanismSetting;

use crate::config::keys::keys;
use crate::config::sections::policy::{Parameters, PoliciesSection};
use crate::config::sections::switch::edits::{
    CompressSection, HedgeSection, MirrorSection, RedirectSection, RespondSection, RewriteSection,
    StickySection,
};
use crate::config::sections::switch::guard::GuardSection;
use crate::config::sections::switch::headers::RouteHeadersSection;
use crate::config::sections::switch::rule::{ClassSection, Conditions};
use crate::config::text::Texts;
use crate::config::words::Word;

keys! {
    /// An entry of `switch.routes`.
    table RouteSection;

    /// Its name in /explain, logs and metrics: 1 to 64 letters, digits and -_. Required.
    name: String, example "dynamic";
    /// Hosts: a name, or "*.example.com" for all under it; with a port, that port must have been sent. All conditions
    /// that are given must hold.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    host: Texts, example ["app.example.com", "*.api.example.com"];
    /// Patterns of the path, as sent and without the query; "*" is any run of bytes. "~" begins a regular expression.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    path: Texts, example "/cgi-bin/*";
    /// Extensions of the path, without the dot; case does not count.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    extension: Texts, example ["php", "asp"];
    /// Methods, with their case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    method: Texts, example ["GET", "HEAD"];
    /// Fields of the request and patterns of their values; every field named must be there and fit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    header: BTreeMap<String, Texts>, example serde_json::json!({ "accept": "*json*" });
    /// Instead of conditions: the route of whose requests it takes a share; "default" for what no route takes.
    of: Option<String>, example "shop";
    /// How much of them, in percent, in steps of 0.001. `POST /routes/NAME/share` changes it until the next reload.
    share: Option<f64>, range "0 to 100 percent", example 5.0;
    /// Instead of conditions: another route's requests are asked for once more by this one, and nobody sees the replies.
    mirror: Option<MirrorSection>;
    /// Where others take shares of its requests, by what: the same "client" (address), "target", or parts of the request such
    /// as "{cookie:user}" are always on the same side. Unset: "client".
    split_by: Option<String>, example "{cookie:user}";
    /// The nodes it may use: a group that nodes name in their `groups`. Unset: all nodes.
    group: Option<String>, example "dynamic";
    /// What counts as the same target. Unset: as under [switch].
    key: Option<String>, example "{host}{path:3}?{query:#1}";
    /// Its service classes, as [[switch.classes]]; [] for none. Unset: those of [switch].
    classes: Option<Vec<ClassSection>>, example serde_json::json!([{ "class": "db", "path": "/cgi-bin/*" }]);
    /// How its connections reach the nodes, as switch.handoff.mechanism. Unset: as said there; without effect where that is
    /// "relay".
    mechanism: Option<Word<MechanismSetting>>, example "relay";
    /// As [switch.guard], as a whole; {} for none. Unset: that of [switch].
    guard: Option<GuardSection>, elsewhere true;
    /// The switch answers with a redirect, and asks no node.
    redirect: Option<RedirectSection>;
    /// The switch answers by itself, and asks no node.
    respond: Option<RespondSection>;
    /// Nodes are asked for another path.
    rewrite: Option<RewriteSection>;
    /// As [switch.compress], as a whole; { codings = [] } for none. Unset: that of [switch].
    compress: Option<CompressSection>, elsewhere true;
    /// As [switch.hedge], as a whole; { after = "0s" } for none. Unset: that of [switch], but on sticky routes.
    hedge: Option<HedgeSection>, elsewhere true;
    /// As [switch.sticky], as a whole; { by = "off" } for none. Unset: that of [switch].
    sticky: Option<StickySection>, elsewhere true;
    /// Rules for header fields, after those of [switch].
    #[serde(skip_serializing_if = "RouteHeadersSection::is_empty")]
    headers: RouteHeadersSection;
    /// Which of its nodes serves a target. Unset: as under [switch]. So with all that a policy goes by, `policies`, key by key.
    policy: Option<String>, example "cap";
    /// As [switch.policies].
    policies: Option<PoliciesSection>, elsewhere true;
}

impl RouteSection {
    pub(crate) fn conditions(&self) -> Conditions<'_> {
        Conditions {
            method: &self.method.0,
            host: &self.host.0,
            path: &self.path.0,
            extension: &self.extension.0,
            header: &self.header,
        }
    }

    /// Its keys for its policy; `standard` are those of [switch].
    pub(crate) fn parameters<'a>(
        &'a self,
        none: &'a PoliciesSection,
        standard: &'a PoliciesSection,
    ) -> Parameters<'a> {
        Parameters {
            policy: self.policy.as_deref(),
            policies: self.policies.as_ref().unwrap_or(none),
            training_above: standard.lard.as_ref().and_then(|lard| lard.training.as_ref()),
        }
    }
}
