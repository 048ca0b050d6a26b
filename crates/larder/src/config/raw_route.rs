//! `[[switch.routes]]` as written.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_edits::{
    RawCompress, RawHeaders, RawHedge, RawMirror, RawRedirect, RawRespond, RawRewrite, RawSticky,
};
use super::raw_guard::RawGuard;
use super::raw_policy::{
    Parameters, RawBounded, RawCap, RawEwma, RawHacc, RawMaglev, RawRendezvous, RawStatic, RawUtil, RawWard,
    RawWrr,
};
use super::raw_rule::{Conditions, RawClass};
use super::raw_threshold::{RawCost, RawHigh, RawLow, RawTraining};
use super::text::{Span, Texts};

/// An entry of `switch.routes`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    /// Its name in /explain, logs and metrics: 1 to 64 letters, digits and -_. Required.
    #[schemars(example = &"dynamic")]
    pub(crate) name: String,
    /// Hosts: a name, or "*.example.com" for all under it; with a port, that port must have been sent. All conditions
    /// that are given must hold.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["app.example.com", "*.api.example.com"])]
    pub(crate) host: Texts,
    /// Patterns of the path, as sent and without the query; "*" is any run of bytes. "~" begins a regular expression.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = "/cgi-bin/*")]
    pub(crate) path: Texts,
    /// Extensions of the path, without the dot; case does not count.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["php", "asp"])]
    pub(crate) extension: Texts,
    /// Methods, with their case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["GET", "HEAD"])]
    pub(crate) method: Texts,
    /// Fields of the request and patterns of their values; every field named must be there and fit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(example = serde_json::json!({ "accept": "*json*" }))]
    pub(crate) header: BTreeMap<String, Texts>,
    /// Instead of conditions: the route of whose requests it takes a share; "default" for what no route takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"shop")]
    pub(crate) of: Option<String>,
    /// How much of them, in percent: 0 to 100, in steps of 0.001. `POST /routes/NAME/share` changes it until the next reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &5.0)]
    pub(crate) share: Option<f64>,
    /// Instead of conditions: another route's requests are asked for once more by this one, and nobody sees the replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mirror: Option<RawMirror>,
    /// Where others take shares of its requests, by what: the same "client" (address), "target", or parts of the request such
    /// as "{cookie:user}" are always on the same side. Unset: "client".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"{cookie:user}")]
    pub(crate) split_by: Option<String>,
    /// The nodes it may use: a group that nodes name in their `groups`. Unset: all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"dynamic")]
    pub(crate) group: Option<String>,
    /// What counts as the same target. Unset: as under [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "{host}{path:3}?{query:#1}")]
    pub(crate) key: Option<String>,
    /// Its service classes, as [[switch.classes]]; [] for none. Unset: those of [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = serde_json::json!([{ "class": "db", "path": "/cgi-bin/*" }]))]
    pub(crate) classes: Option<Vec<RawClass>>,
    /// How its connections reach the nodes, as switch.handoff.mechanism. Unset: as said there; without effect where that is
    /// "relay".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"relay")]
    pub(crate) mechanism: Option<String>,
    /// As [switch.guard], as a whole; {} for none. Unset: that of [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) guard: Option<RawGuard>,
    /// The switch answers with a redirect, and asks no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redirect: Option<RawRedirect>,
    /// The switch answers by itself, and asks no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) respond: Option<RawRespond>,
    /// Nodes are asked for another path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rewrite: Option<RawRewrite>,
    /// As [switch.compress], as a whole; { codings = [] } for none. Unset: that of [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) compress: Option<RawCompress>,
    /// As [switch.hedge], as a whole; { after = "0s" } for none. Unset: that of [switch], but on sticky routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) hedge: Option<RawHedge>,
    /// As [switch.sticky], as a whole; { by = "off" } for none. Unset: that of [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) sticky: Option<RawSticky>,
    /// Rules for the header of requests to nodes, after those of [switch].
    #[serde(skip_serializing_if = "RawHeaders::is_empty")]
    pub(crate) request_headers: RawHeaders,
    /// Rules for the header of replies to clients, after those of [switch].
    #[serde(skip_serializing_if = "RawHeaders::is_empty")]
    pub(crate) reply_headers: RawHeaders,
    /// Which of its nodes serves a target. Unset: as under [switch]. So with all that a policy goes by: seed, t_low,
    /// t_high, replication_decay, targets_max, and the tables hacc, ward and so on, key by key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"cap")]
    pub(crate) policy: Option<String>,
    /// As under [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) seed: Option<u64>,
    /// As under [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) t_low: Option<RawLow>,
    /// As under [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) t_high: Option<RawHigh>,
    /// As under [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) replication_decay: Option<Span>,
    /// As under [switch].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) targets_max: Option<usize>,
    /// As [switch.training].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) training: Option<RawTraining>,
    /// As [switch.hacc].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) hacc: Option<RawHacc>,
    /// As [switch.bounded].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) bounded: Option<RawBounded>,
    /// As [switch.maglev].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) maglev: Option<RawMaglev>,
    /// As [switch.rendezvous].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) rendezvous: Option<RawRendezvous>,
    /// As [switch.ewma].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) ewma: Option<RawEwma>,
    /// As [switch.wrr].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) wrr: Option<RawWrr>,
    /// As [switch.static].
    #[serde(skip_serializing_if = "Option::is_none", rename = "static")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) fixed: Option<RawStatic>,
    /// As [switch.util].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) util: Option<RawUtil>,
    /// As [switch.cap].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) cap: Option<RawCap>,
    /// As [switch.cost].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) cost: Option<RawCost>,
    /// As [switch.ward].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-reference" = "elsewhere"))]
    pub(crate) ward: Option<RawWard>,
}

impl RawRoute {
    pub(super) fn conditions(&self) -> Conditions<'_> {
        Conditions {
            method: &self.method.0,
            host: &self.host.0,
            path: &self.path.0,
            extension: &self.extension.0,
            header: &self.header,
        }
    }

    /// What it gives for its policy; `training` is [switch.training].
    pub(super) fn parameters<'a>(&'a self, training: &'a RawTraining) -> Parameters<'a> {
        Parameters {
            policy: self.policy.as_deref(),
            seed: self.seed,
            t_low: self.t_low,
            t_high: self.t_high,
            training: self.training.as_ref(),
            training_above: Some(training),
            replication_decay: self.replication_decay,
            targets_max: self.targets_max,
            hacc: self.hacc.as_ref(),
            bounded: self.bounded.as_ref(),
            maglev: self.maglev.as_ref(),
            rendezvous: self.rendezvous.as_ref(),
            ewma: self.ewma.as_ref(),
            wrr: self.wrr.as_ref(),
            fixed: self.fixed.as_ref(),
            util: self.util.as_ref(),
            cap: self.cap.as_ref(),
            cost: self.cost.as_ref(),
        }
    }
}
