//! What requests a rule is for, as written: the conditions of `[[switch.classes]]` and `[[switch.routes]]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Texts;

/// An entry of `classes`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawClass {
    /// The class: "n" (nothing but sending bytes), "db" (disk), "cb" (CPU) or "dcb" (both). Required.
    #[schemars(extend("enum" = ["n", "db", "cb", "dcb"]), example = &"cb")]
    pub(crate) class: String,
    /// Patterns of the path, as sent and without the query; "*" is any run of bytes.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = "/cgi-bin/*")]
    pub(crate) path: Texts,
    /// Extensions of the path, without the dot; case does not count.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["php", "asp"])]
    pub(crate) extension: Texts,
    /// Methods, with their case.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = &"POST")]
    pub(crate) method: Texts,
    /// Hosts: a name, or "*.example.com" for all under it; with a port, that port must have been sent.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = "secure.example.com")]
    pub(crate) host: Texts,
    /// Fields of the request and patterns of their values; every field named must be there and fit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(example = serde_json::json!({ "accept": "*json*" }))]
    pub(crate) header: BTreeMap<String, Texts>,
}

/// The conditions of a rule, wherever it stands. Each kind that is given must hold; within a kind, one alternative.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions<'a> {
    pub(super) method: &'a [String],
    pub(super) host: &'a [String],
    pub(super) path: &'a [String],
    pub(super) extension: &'a [String],
    pub(super) header: &'a BTreeMap<String, Texts>,
}

impl RawClass {
    pub(super) fn conditions(&self) -> Conditions<'_> {
        Conditions {
            method: &self.method.0,
            host: &self.host.0,
            path: &self.path.0,
            extension: &self.extension.0,
            header: &self.header,
        }
    }
}
