//! What policies go by, as written: a table for each under `[switch]`, and again, for what differs, under a route.
//!
//! Every key may be left out. Under `[switch]` that means the default, under a route what `[switch]` says.

use std::collections::BTreeMap;

use larder_core::policy::{
    BoundedSettings, CapLoadSettings, HaccSettings, LardUtilSettings, MaglevSettings, PeakEwmaSettings,
    RendezvousSettings, StaticSettings,
};
use larder_core::{ServiceClass, Settings};
use larder_trace::ward::WardCosts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_threshold::{RawCost, RawHigh, RawLow, RawTraining};
use super::text::{Size, Span};

/// All that a policy goes by, as one section gives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters<'a> {
    pub(super) policy: Option<&'a str>,
    pub(super) seed: Option<u64>,
    pub(super) t_low: Option<RawLow>,
    pub(super) t_high: Option<RawHigh>,
    pub(super) training: Option<&'a RawTraining>,
    /// What the section above says of the training: a route may begin to learn where [switch] does not.
    pub(super) training_above: Option<&'a RawTraining>,
    pub(super) replication_decay: Option<Span>,
    pub(super) targets_max: Option<usize>,
    pub(super) hacc: Option<&'a RawHacc>,
    pub(super) bounded: Option<&'a RawBounded>,
    pub(super) maglev: Option<&'a RawMaglev>,
    pub(super) rendezvous: Option<&'a RawRendezvous>,
    pub(super) ewma: Option<&'a RawEwma>,
    pub(super) wrr: Option<&'a RawWrr>,
    pub(super) fixed: Option<&'a RawStatic>,
    pub(super) util: Option<&'a RawUtil>,
    pub(super) cap: Option<&'a RawCap>,
    pub(super) cost: Option<&'a RawCost>,
}

/// `[switch.hacc]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHacc {
    /// The paper's weights: "static-files" (the disk alone counts) or "domino" (CPU and disk count alike).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["static-files", "domino"]))]
    pub(crate) preset: Option<String>,
    /// Weights of one's own, instead of a preset: from a signal (cpu, disk, memory, processes, service-time, disk-bytes,
    /// paging, queue, app1 to app4) to its share of the load, 0.001 to 1, together at most 1. One that is no share of
    /// time or memory needs to know what is fully loaded, in its unit: { weight = 0.5, full = 64 }.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = serde_json::json!({ "cpu": 0.5, "queue": { "weight": 0.5, "full": 64 } }))]
    pub(crate) weights: Option<BTreeMap<String, RawWeight>>,
    /// How often the loads that nodes report are compared. 1ms to 1h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) period: Option<Span>,
    /// How much more loaded than the least loaded a node must be to shed documents. 0.001 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) margin: Option<f64>,
    /// How much of the difference in load is moved; at 0.5 the two loads meet. 0.001 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) amount: Option<f64>,
    /// How long an offload lasts, and how long its two nodes then take part in no other. 1ms to 1h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cooldown: Option<Span>,
    /// From which share of all requests on a document goes to several nodes. 0.005 to 1; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hot_share: Option<f64>,
    /// To how many nodes the hottest documents go at most. 2 to 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hot_nodes: Option<u8>,
    /// What an assignment covers: 0, a document; 1 to 16, all documents below the same directory of this depth. It sets
    /// the key, where that is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<u8>,
}

/// A signal's part in the load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a weight is a number from 0.001 to 1, or { weight = 0.5, full = 64 }")]
pub(crate) enum RawWeight {
    /// Of a share of time or memory.
    Share(f64),
    /// Of anything.
    Of(RawSignalWeight),
}

/// The table form of [`RawWeight`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSignalWeight {
    /// Its share of the load.
    pub(crate) weight: f64,
    /// The value, in the signal's unit, that counts as fully loaded.
    pub(crate) full: u64,
}

/// `[switch.bounded]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawBounded {
    /// How far above the mean load a node may be before its targets go to the next one. 1.01 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) factor: Option<f64>,
    /// Points on the ring of a node of weight 1. 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) points: Option<u32>,
}

/// `[switch.maglev]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMaglev {
    /// Places in the table: a prime, 101 to 5000011; a hundred times the nodes keeps shares within 1 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u32>,
}

/// `[switch.rendezvous]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRendezvous {
    /// Places that the nodes compete for: a power of two, 256 to 16777216.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) places: Option<u32>,
}

/// `[switch.ewma]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawEwma {
    /// After this time a latency counts 1/e. 100ms to 1h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decay: Option<Span>,
}

/// `[switch.wrr]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawWrr {
    /// T_gat: how often the nodes' reports become weights. 1ms to 1h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gather: Option<Span>,
}

/// `[switch.static]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawStatic {
    /// Shares of the nodes set aside for each class; only their ratios count. A class of share 0 uses all nodes. 0 to
    /// 1000000 each; a class that is not named has 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shares: Option<BTreeMap<String, u32>>,
}

/// `[switch.util]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawUtil {
    /// What counts as a node's load: "utilisation" of its busiest device, by low and high, or "connections", polled every
    /// wrr.gather, by t_low and t_high.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["utilisation", "connections"]))]
    pub(crate) by: Option<String>,
    /// T_low of lard-util: a node whose busiest device is less busy has room. 0.001 to 0.998.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) low: Option<f64>,
    /// T_high of lard-util: a node whose busiest device is busier gives targets away. Above low, to 0.999.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) high: Option<f64>,
}

/// `[switch.cap]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawCap {
    /// How many times the mean load a node may have and still be given its turn. 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) factor: Option<f64>,
    /// How many requests a node of weight 1 may have beside that. 0 to 100000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slack: Option<u32>,
}

/// `[switch.ward]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawWard {
    /// File of the routing table, as `larder trace ward --output` writes it. It is read at the start, again when it
    /// changes, and at SIGHUP; one that cannot be used is reported and the table before stays. Unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/lib/larder/www.routes")]
    pub(crate) table: Option<String>,
    /// Host of the table's rows that name none. Unset: the route's host, if it has just one; else
    /// that of [switch.ward].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "www.example.com")]
    pub(crate) host: Option<String>,
    /// How often a new table is computed from the switch's own traffic, such as "15m" or "24h"; "off" for never. 1s to
    /// 31d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refresh: Option<String>,
    /// Memory of each node's cache, for the refresh. Unset: the least `cache` of the route's nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "8GiB")]
    pub(crate) memory: Option<Size>,
    /// Price of a handoff in microseconds, for the refresh. 0 to 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forward_us: Option<f64>,
    /// Extra time of a byte from disk over memory in microseconds, for the refresh. 0 to 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_us_per_byte: Option<f64>,
    /// How much of a target's count goes over into the next period. 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) carry: Option<f64>,
    /// Targets counted for the refresh; beyond that the least requested of a few is forgotten. 64 to 100000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) targets_max: Option<usize>,
}

impl RawHacc {
    pub(super) fn standard() -> Self {
        let hacc = HaccSettings::default();
        Self {
            preset: Some("static-files".to_owned()),
            weights: None,
            period: Some(Span(hacc.period)),
            margin: Some(share(hacc.margin_permille)),
            amount: Some(share(hacc.amount_permille)),
            cooldown: Some(Span(hacc.cooldown)),
            hot_share: Some(share(hacc.hot_share_permille)),
            hot_nodes: Some(hacc.hot_nodes),
            level: Some(0),
        }
    }
}

impl RawBounded {
    pub(super) fn standard() -> Self {
        let bounded = BoundedSettings::default();
        Self { factor: Some(f64::from(bounded.factor_permille) / 1000.0), points: Some(bounded.points) }
    }
}

impl RawMaglev {
    pub(super) fn standard() -> Self {
        Self { size: Some(MaglevSettings::default().size) }
    }
}

impl RawRendezvous {
    pub(super) fn standard() -> Self {
        Self { places: Some(RendezvousSettings::default().places) }
    }
}

impl RawEwma {
    pub(super) fn standard() -> Self {
        Self { decay: Some(Span(PeakEwmaSettings::default().decay)) }
    }
}

impl RawWrr {
    pub(super) fn standard() -> Self {
        Self { gather: Some(Span(Settings::default().t_gat)) }
    }
}

impl RawStatic {
    pub(super) fn standard() -> Self {
        let shares = ServiceClass::ALL.into_iter().zip(StaticSettings::default().shares);
        Self { shares: Some(shares.map(|(class, share)| (class.to_string(), share)).collect()) }
    }
}

impl RawUtil {
    pub(super) fn standard() -> Self {
        let settings = LardUtilSettings::default();
        Self {
            by: Some("utilisation".to_owned()),
            low: Some(share(settings.low_permille)),
            high: Some(share(settings.high_permille)),
        }
    }
}

impl RawCap {
    pub(super) fn standard() -> Self {
        let cap = CapLoadSettings::default();
        Self { factor: Some(f64::from(cap.factor_permille) / 1000.0), slack: Some(cap.slack) }
    }
}

impl RawWard {
    /// The paper's prices (WARD, section 3.2), no table and no refresh.
    pub(super) fn standard() -> Self {
        let costs = WardCosts::ward01();
        Self {
            table: None,
            host: None,
            refresh: Some("off".to_owned()),
            memory: None,
            forward_us: Some(costs.forward_us),
            disk_us_per_byte: Some(costs.disk_us_per_byte),
            carry: Some(0.5),
            targets_max: Some(1 << 20),
        }
    }
}

/// Thousandths as a share of one.
fn share(permille: u16) -> f64 {
    f64::from(permille) / 1000.0
}
