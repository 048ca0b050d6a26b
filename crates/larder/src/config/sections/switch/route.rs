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
use crate::config::sections::switch::prompts::PromptsSection;
use crate::config::sections::switch::rule::{ClassSection, Conditions};
use crate::config::text::Texts;
use crate::config::words::Word;

keys! {
    /// An entry of `switch.routes`.
    table RouteSection;

    /// Name of the route in /explain, logs and metrics: 1 to 64 letters, digits, "-", "_" and ".". Required.
    name: String, example "dynamic";
    /// Hosts: a name, or "*.example.com" for all names below it. With a port, the client must have sent that port.
    /// All kinds of conditions that are given must match.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    host: Texts, example ["app.example.com", "*.api.example.com"];
    /// Patterns of the path, as sent and without the query. "*" matches any run of bytes, and "~" begins a regular
    /// expression.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    path: Texts, example "/cgi-bin/*";
    /// Extensions of the path, without the dot, in any case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    extension: Texts, example ["php", "asp"];
    /// Methods, with their case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    method: Texts, example ["GET", "HEAD"];
    /// Header fields, and patterns of their values. Every listed field must be present and match.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    header: BTreeMap<String, Texts>, example serde_json::json!({ "accept": "*json*" });
    /// Route of whose requests this route takes a share, instead of conditions; "default" is the default route.
    of: Option<String>, example "shop";
    /// Share of the requests of route `of`, in percent, in steps of 0.001. `POST /routes/NAME/share` changes it until
    /// the config gives another value.
    share: Option<f64>, range "0 to 100 percent", example 5.0;
    /// Copies of another route's requests, instead of conditions. This route sends them to its nodes and discards the
    /// replies.
    mirror: Option<MirrorSection>;
    /// Key that assigns requests to the routes that take shares of this one. "client" (the address), "target", or
    /// parts of the request such as "{cookie:user}". Equal keys get the same route. Unset: "client".
    split_by: Option<String>, example "{cookie:user}";
    /// Group of nodes that the route uses, as in `groups` of a node. Unset: all nodes.
    group: Option<String>, example "dynamic";
    /// Parts of a request that make up its target. Unset: as under [switch].
    key: Option<String>, example "{host}{path:3}?{query:#1}";
    /// Rules for service classes, as [[switch.classes]]. []: none. Unset: as under [switch].
    classes: Option<Vec<ClassSection>>, example serde_json::json!([{ "class": "db", "path": "/cgi-bin/*" }]);
    /// Mechanism of handoff, as switch.handoff.mechanism. It has no effect if that is "relay". Unset: as under
    /// [switch.handoff].
    mechanism: Option<Word<MechanismSetting>>, example "relay";
    /// Guard of the route, as [switch.guard]; it replaces that table. {}: none. Unset: that of the route in `of`,
    /// else [switch.guard].
    guard: Option<GuardSection>, elsewhere true;
    /// Redirect that the switch sends itself, without a node.
    redirect: Option<RedirectSection>;
    /// Reply that the switch sends itself, without a node.
    respond: Option<RespondSection>;
    /// Another path in requests to nodes.
    rewrite: Option<RewriteSection>;
    /// Compression, as [switch.compress]; it replaces that table. { codings = [] }: none. Unset: as under [switch].
    compress: Option<CompressSection>, elsewhere true;
    /// Hedging, as [switch.hedge]; it replaces that table. { after = "0s" }: none. Unset: as under [switch], except
    /// on sticky routes.
    hedge: Option<HedgeSection>, elsewhere true;
    /// Sticky sessions, as [switch.sticky]; it replaces that table. { by = "off" }: none. Unset: as under [switch].
    sticky: Option<StickySection>, elsewhere true;
    /// Placement of prompts: completions of OpenAI's API go to the server that has the longest part of their prompt cached.
    prompts: Option<PromptsSection>;
    /// Rules for header fields, after those of [switch].
    #[serde(skip_serializing_if = "RouteHeadersSection::is_empty")]
    headers: RouteHeadersSection;
    /// Policy that chooses the node of a target. Unset: as under [switch]. The route may also set `policies`.
    policy: Option<String>, example "cap";
    /// Settings of the policies, as [switch.policies]. Keys that are not set are as under [switch.policies].
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

    /// Returns the policy settings of the route. `standard` are those of [switch].
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
