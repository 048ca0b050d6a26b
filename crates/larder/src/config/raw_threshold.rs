//! Thresholds as written: given, learned, or found by a rule.

use larder_core::policy::lard_cost::{CostSettings, MissCost};
use larder_core::policy::thresholds::Training;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Span;

/// `t_low`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "t_low is a number of requests or \"learned\"")]
pub(crate) enum RawLow {
    /// A number of requests.
    Fixed(u32),
    /// "learned".
    Word(LowWord),
}

/// The word of [`RawLow`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LowWord {
    /// From what nodes report, in a training phase.
    Learned,
}

/// `t_high`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "t_high is a number of requests, or { delay = \"500ms\" } for the delay that one node may add over another"
)]
pub(crate) enum RawHigh {
    /// A number of requests.
    Fixed(u32),
    /// The paper's rule.
    Delay(RawDelay),
}

/// T_high = (T_low + D / R) / 2.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDelay {
    /// D: how much longer a request may take at one node than at another. 1ms to 1h.
    pub(crate) delay: Span,
    /// R: the mean service time, above 0 to 1h. Unset: measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<Span>,
}

/// `[switch.training]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTraining {
    /// How long loads and reports are watched, from the first report on. 1ms to 1h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) length: Option<Span>,
    /// From which utilisation on a device counts as kept busy. 0.001 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) busy: Option<f64>,
    /// The least t_low that may come out. 1 to max.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<u32>,
    /// The greatest t_low that may come out. To 99999.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u32>,
}

/// `[switch.cost]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawCost {
    /// L_idle: a node with fewer active requests is under-used. 1 to 100000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle: Option<u32>,
    /// L_overload: with more active requests, no more delay is acceptable. Above idle, to 100000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overload: Option<u32>,
    /// What a miss costs, in delays of a request for a cached target: 1 to 1000, or "measured": 50 until enough are seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) miss: Option<RawMiss>,
}

/// `cost.miss`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "miss is a number of delays from 1 to 1000, or \"measured\"")]
pub(crate) enum RawMiss {
    /// So many delays.
    Fixed(u32),
    /// "measured".
    Word(MissWord),
}

/// The word of [`RawMiss`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MissWord {
    /// From requests that end.
    Measured,
}

impl RawTraining {
    pub(super) fn standard() -> Self {
        let Training { length, busy_permille, min, max } = Training::default();
        let busy = f64::from(busy_permille) / 1000.0;
        Self { length: Some(Span(length)), busy: Some(busy), min: Some(min), max: Some(max) }
    }
}

impl RawCost {
    pub(super) fn standard() -> Self {
        let cost = CostSettings::default();
        let miss = match cost.miss {
            MissCost::Fixed(units) => RawMiss::Fixed(units),
            MissCost::Measured { .. } => RawMiss::Word(MissWord::Measured),
        };
        Self { idle: Some(cost.idle), overload: Some(cost.overload), miss: Some(miss) }
    }
}
