//! `[switch.shadow]` as written, with its defaults.

use larder_core::cache::CacheKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Texts};

/// `[switch.shadow]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawShadow {
    /// Policies to run in the shadow beside the one that runs live: a list of names, or "all". Empty: shadow mode is off. Not
    /// wrr-num, wrr-time, lard-util and hacc, which go by what nodes report of loads that a shadow does not put on them; ward
    /// and part only where they run live, by whose table they go.
    #[schemars(example = ["lard-r", "bounded", "least-conn"])]
    pub(crate) policies: Texts,
    /// What each node's memory is taken for. Unset: the node's own `cache` in the config, else what a larder node says of
    /// itself, which is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "8GiB")]
    pub(crate) memory: Option<Size>,
    /// How nodes choose what leaves their memory.
    #[schemars(extend("enum" = CacheKind::ALL.map(CacheKind::name)))]
    pub(crate) cache: String,
    /// Objects above that are not kept in memory. Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "64MiB")]
    pub(crate) object_max: Option<Size>,
    /// Of so many targets one is looked at, from the start; a power of two, 1 to 65536. It doubles whenever a policy's nodes
    /// would hold more than `objects_max`.
    pub(crate) one_in: u32,
    /// Objects that one policy's nodes hold together in the shadow, about 130 bytes each with their target: 65536 take 9 MB
    /// for each policy. 1024 to 100000000.
    pub(crate) objects_max: usize,
}

impl Default for RawShadow {
    fn default() -> Self {
        Self {
            policies: Texts::default(),
            memory: None,
            cache: CacheKind::default().name().to_owned(),
            object_max: None,
            one_in: 1,
            objects_max: 1 << 16,
        }
    }
}
