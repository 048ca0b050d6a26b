//! Settings of the policies: `[switch.policies]`, with a table for each policy, and `policies` of a route for
//! differences.
//!
//! Every key is optional. Without it, `[switch]` uses the default, and a route uses the value of `[switch]`.

pub(crate) mod hacc;
pub(crate) mod threshold;

use larder_core::policy::{
    BoundedSettings, CapLoadSettings, HaccSettings, LardUtilSettings, MaglevSettings, PeakEwmaSettings,
    PrequalSettings, RendezvousSettings, StaticSettings,
};
use std::collections::BTreeMap;

use larder_core::policy::UtilBy;
use larder_core::{PolicyKind, ServiceClass, Settings};
use larder_trace::ward::WardCosts;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::policy::hacc::hacc;
use crate::config::sections::policy::threshold::{
    CostSection, LardSection, TrainingSection, cost, thresholds,
};
use crate::config::text::{Size, Span};
use crate::config::values::word;
use crate::config::words::{Word, choice};

/// All settings of a policy, as one section contains them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters<'a> {
    pub(crate) policy: Option<&'a str>,
    pub(crate) policies: &'a PoliciesSection,
    /// The training settings of the section above. A route may use training although [switch] does not.
    pub(crate) training_above: Option<&'a TrainingSection>,
}

keys! {
    /// `[switch.policies]`, and the same of a route.
    partial PoliciesSection, settings = Settings::default();

    /// Seed of policies that draw random numbers.
    seed: Option<u64> = Some(settings.seed);
    /// Number of stored targets. Beyond it, the least recently used target is evicted, and is placed anew at its next
    /// request.
    targets_max: Option<usize> = Some(settings.targets_max), range "1 to 4294967296";
    /// Settings of lard and lard-r. The admission limit and sticky clients use the thresholds too, and so does
    /// lard-util with by = "connections".
    lard: Option<LardSection> = Some(LardSection::standard());
    /// Settings of lard-cost.
    #[serde(rename = "lard-cost")]
    cost: Option<CostSection> = Some(CostSection::standard());
    /// Settings of lard-util.
    #[serde(rename = "lard-util")]
    util: Option<UtilSection> = Some(UtilSection::standard());
    /// Settings of cap-load.
    #[serde(rename = "cap-load")]
    cap: Option<CapSection> = Some(CapSection::standard());
    /// Settings of hacc.
    hacc: Option<HaccSection> = Some(HaccSection::standard());
    /// Settings of bounded and bounded-jump (consistent hashing with bounded loads).
    bounded: Option<BoundedSection> = Some(BoundedSection::standard());
    /// Settings of maglev.
    maglev: Option<MaglevSection> = Some(MaglevSection::standard());
    /// Settings of rendezvous.
    rendezvous: Option<RendezvousSection> = Some(RendezvousSection::standard());
    /// Settings of peak-ewma.
    #[serde(rename = "peak-ewma")]
    ewma: Option<EwmaSection> = Some(EwmaSection::standard());
    /// Settings of prequal.
    prequal: Option<PrequalSection> = Some(PrequalSection::standard());
    /// Settings of wrr-num and wrr-time, and of lard-util with by = "connections". The policy wrr does not use them.
    wrr: Option<WrrSection> = Some(WrrSection::standard());
    /// Settings of static.
    #[serde(rename = "static")]
    fixed: Option<StaticSection> = Some(StaticSection::standard());
    /// Source of the routing table of ward and part: a file, the switch's own traffic, or both.
    ward: Option<WardSection> = Some(WardSection::standard());
}

impl PoliciesSection {
    /// Deserializes the section of `[switch]`. Missing keys and tables get their defaults.
    pub(crate) fn over_standard<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (given, standard) = (Self::deserialize(from)?, Self::standard());
        let thresholds = LardSection::standard();
        Ok(Self {
            seed: given.seed.or(standard.seed),
            targets_max: given.targets_max.or(standard.targets_max),
            lard: Some(given.lard.map_or_else(LardSection::standard, |lard| LardSection {
                t_low: lard.t_low.or(thresholds.t_low),
                t_high: lard.t_high.or(thresholds.t_high),
                replication_decay: lard.replication_decay.or(thresholds.replication_decay),
                training: lard.training.or(thresholds.training),
            })),
            cost: given.cost.or(standard.cost),
            util: given.util.or(standard.util),
            cap: given.cap.or(standard.cap),
            hacc: given.hacc.or(standard.hacc),
            bounded: given.bounded.or(standard.bounded),
            maglev: given.maglev.or(standard.maglev),
            rendezvous: given.rendezvous.or(standard.rendezvous),
            ewma: given.ewma.or(standard.ewma),
            prequal: given.prequal.or(standard.prequal),
            wrr: given.wrr.or(standard.wrr),
            fixed: given.fixed.or(standard.fixed),
            ward: given.ward.or(standard.ward),
        })
    }

    /// Returns the keys of `lard`; all are `None` if the section is missing.
    pub(crate) fn lard(&self) -> LardSection {
        self.lard.clone().unwrap_or_default()
    }
}

keys! {
    /// `[switch.policies.hacc]`.
    partial HaccSection, hacc = HaccSettings::default();

    /// Weights of the paper: "static-files" counts the disk only, "domino" counts CPU and disk equally.
    preset: Option<Preset> = Some(Preset::StaticFiles);
    /// Own weights instead of a preset: a signal, and its share of the load from 0.001 to 1. All shares together are
    /// at most 1. Signals: cpu, disk, memory, processes, service-time, disk-bytes, paging, queue, app1 to app4. A
    /// signal that is no share of time or memory also needs its value at full load: { weight = 0.5, full = 64 }.
    weights: Option<BTreeMap<String, WeightKey>>,
        example serde_json::json!({ "cpu": 0.5, "queue": { "weight": 0.5, "full": 64 } });
    /// Interval at which the reported loads of nodes are compared.
    period: Option<Span> = Some(Span(hacc.period)), range "1ms to 1h";
    /// Load difference to the least loaded node above which a node sheds documents.
    margin: Option<f64> = Some(share(hacc.margin_permille)), range "0.001 to 1";
    /// Part of the load difference that is moved. At 0.5 both loads become equal.
    amount: Option<f64> = Some(share(hacc.amount_permille)), range "0.001 to 1";
    /// Duration of an offload. Its two nodes take part in no other offload during this time.
    cooldown: Option<Span> = Some(Span(hacc.cooldown)), range "1ms to 1h";
    /// Share of all requests from which on a document is hot and goes to several nodes. 0: never.
    hot_share: Option<f64> = Some(share(hacc.hot_share_permille)), range "0.005 to 1, or 0";
    /// Number of nodes for a hot document.
    hot_nodes: Option<u8> = Some(hacc.hot_nodes), range "2 to 16";
    /// Unit of assignment. 0: a document. Otherwise all documents below the same directory of this depth. It sets the
    /// key, unless `key` is given.
    level: Option<u8> = Some(0), range "0 to 16";
}

/// Weight of a signal.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a weight is a number from 0.001 to 1, or { weight = 0.5, full = 64 }")]
pub(crate) enum WeightKey {
    /// Weight of a signal that is a share of time or memory.
    Share(f64),
    /// Weight of any signal.
    Of(SignalWeightTable),
}

/// The table form of [`WeightKey`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignalWeightTable {
    /// Share of the load.
    pub(crate) weight: f64,
    /// Value at full load, in the signal's unit.
    pub(crate) full: u64,
}

keys! {
    /// `[switch.policies.bounded]`.
    partial BoundedSection, bounded = BoundedSettings::default();

    /// Largest load of a node relative to its fair share. Beyond it, requests for its targets go to the next node on
    /// the ring.
    factor: Option<f64> = Some(f64::from(bounded.factor_permille) / 1000.0), range "1.01 to 100";
    /// Number of points on the ring for a node of weight 1. Other nodes have points in proportion.
    points: Option<u32> = Some(bounded.points), range "1 to 10000";
}

keys! {
    /// `[switch.policies.maglev]`.
    partial MaglevSection;

    /// Number of table entries. With a hundred times the number of nodes, shares differ by at most 1 %.
    size: Option<u32> = Some(MaglevSettings::default().size), range "a prime from 101 to 5000011";
}

keys! {
    /// `[switch.policies.rendezvous]`.
    partial RendezvousSection;

    /// Number of places that are shared out among the nodes. More places make the shares more even.
    places: Option<u32> = Some(RendezvousSettings::default().places),
        range "a power of two from 256 to 16777216";
}

keys! {
    /// `[switch.policies.peak-ewma]`.
    partial EwmaSection;

    /// Time after which a latency counts 1/e.
    decay: Option<Span> = Some(Span(PeakEwmaSettings::default().decay)), range "100ms to 1h";
}

keys! {
    /// `[switch.policies.prequal]`.
    partial PrequalSection;

    /// Q_RIF: quantile of the requests in flight at nodes above which a node is hot. Requests in flight decide among hot
    /// nodes, latencies among the others. 0: only requests in flight count.
    rif_quantile: Option<f64> = Some(share(PrequalSettings::default().rif_quantile_permille)), range "0 to 1";
}

keys! {
    /// `[switch.policies.wrr]`.
    partial WrrSection;

    /// T_gat: interval at which reports become weights (wrr-num, wrr-time), or at which nodes are polled (lard-util
    /// by connections).
    gather: Option<Span> = Some(Span(Settings::default().t_gat)), range "1ms to 1h";
}

keys! {
    /// `[switch.policies.static]`.
    partial StaticSection, shares = ServiceClass::ALL.into_iter().zip(StaticSettings::default().shares);

    /// Shares by which the nodes are divided among the service classes; only their ratios count. A class of share 0
    /// uses all nodes. A class that is not listed has share 0.
    shares: Option<BTreeMap<String, u32>> = Some(shares.map(|(class, share)| (class.to_string(), share)).collect()),
        range "0 to 1000000";
}

keys! {
    /// `[switch.policies.lard-util]`.
    partial UtilSection, settings = LardUtilSettings::default();

    /// Measure of a node's load: "utilisation" of its busiest device, with the thresholds `low` and `high`.
    /// "connections": polled every wrr.gather, with the thresholds lard.t_low and lard.t_high.
    by: Option<Word<UtilBy>> = Some(Word(UtilBy::Utilisation));
    /// T_low: utilisation of the busiest device below which a node has spare capacity.
    low: Option<f64> = Some(share(settings.low_permille)), range "0.001 to 0.998";
    /// T_high: utilisation of the busiest device above which a node gives targets away. Above low.
    high: Option<f64> = Some(share(settings.high_permille)), range "0.002 to 0.999";
}

keys! {
    /// `[switch.policies.cap-load]`.
    partial CapSection, cap = CapLoadSettings::default();

    /// Largest load at which a node still gets its turn, as a multiple of the mean load.
    factor: Option<f64> = Some(f64::from(cap.factor_permille) / 1000.0), range "1 to 100";
    /// Number of requests that is added to this bound for a node of weight 1.
    slack: Option<u32> = Some(cap.slack), range "0 to 100000";
}

/// Range of the costs of `[switch.policies.ward]`, in microseconds.
pub(crate) const COST_RANGE: &str = "0 to 1000000";

/// Range of `carry` of `[switch.policies.ward]`.
pub(crate) const CARRY_RANGE: &str = "0 to 1";

keys! {
    /// `[switch.policies.ward]`.
    partial WardSection, costs = WardCosts::ward01();

    /// File of the routing table, as `larder trace ward --output` writes it. It is read at the start, when it
    /// changes, and at SIGHUP. If a new table is invalid, the error is logged and the table in use stays. Unset:
    /// none.
    table: Option<String>, example "/var/lib/larder/www.routes";
    /// Host of table rows that name no host. Unset: the route's host if it has exactly one, else that of
    /// [switch.policies.ward].
    host: Option<String>, example "www.example.com";
    /// Interval at which a new table is computed from the switch's own traffic, such as "15m" or "24h". "off": never.
    refresh: Option<String> = Some("off".to_owned()), range "1s to 31d, or \"off\"";
    /// Size of each node's cache, for the refresh. Unset: the smallest `cache` of the route's nodes.
    memory: Option<Size>, example "8GiB";
    /// Cost of a handoff in microseconds, for the refresh.
    forward_us: Option<f64> = Some(costs.forward_us), range COST_RANGE, when "used";
    /// Additional time of a byte from disk over memory in microseconds, for the refresh.
    disk_us_per_byte: Option<f64> = Some(costs.disk_us_per_byte), range COST_RANGE, when "used";
    /// Share of a target's count that is carried into the next period.
    carry: Option<f64> = Some(0.5), range CARRY_RANGE, when "used";
    /// Number of targets that are counted for the refresh, for all routes. Beyond it, the least requested of a few is
    /// evicted. It can be set under [switch.policies.ward] only.
    targets_max: Option<usize> = Some(1 << 20), range "64 to 100000000";
}

/// Converts thousandths to a share of one.
fn share(permille: u16) -> f64 {
    f64::from(permille) / 1000.0
}

choice! {
    /// The words of `hacc.preset`.
    Preset { StaticFiles, Domino }
}

/// Overrides `settings` by the section at `at`, and validates the result.
pub(crate) fn apply(at: &str, given: &Parameters<'_>, settings: &mut Settings) -> Result<(), Fault> {
    if let Some(name) = given.policy {
        settings.policy = word(&format!("{at}.policy"), name, &PolicyKind::ALL.map(PolicyKind::name))?;
    }
    let own = given.policies;
    let at = format!("{at}.policies");
    settings.seed = own.seed.unwrap_or(settings.seed);
    thresholds(&at, given, settings)?;
    let decay = own.lard().replication_decay;
    settings.replication_decay = decay.map_or(settings.replication_decay, |decay| decay.0);
    settings.targets_max = own.targets_max.unwrap_or(settings.targets_max);
    tables(&at, own, settings)?;
    // Ranges have been checked: what is left is a contradiction.
    settings.validate().map_err(|error| Fault::new(at, error.to_string()))
}

/// Applies the tables of the policies.
fn tables(at: &str, given: &PoliciesSection, settings: &mut Settings) -> Result<(), Fault> {
    if let Some(raw) = &given.hacc {
        hacc(&format!("{at}.hacc"), raw, &mut settings.policies.hacc)?;
    }
    if let Some(raw) = &given.bounded {
        let bounded = &mut settings.policies.bounded;
        bounded.factor_permille = raw.factor.map_or(bounded.factor_permille, thousandths);
        bounded.points = raw.points.unwrap_or(bounded.points);
    }
    if let Some(raw) = &given.cap {
        let cap = &mut settings.policies.cap_load;
        cap.factor_permille = raw.factor.map_or(cap.factor_permille, thousandths);
        cap.slack = raw.slack.unwrap_or(cap.slack);
    }
    if let Some(raw) = &given.cost {
        cost(&format!("{at}.lard-cost"), raw, settings)?;
    }
    let policies = &mut settings.policies;
    if let Some(size) = given.maglev.as_ref().and_then(|raw| raw.size) {
        policies.maglev.size = size;
    }
    if let Some(places) = given.rendezvous.as_ref().and_then(|raw| raw.places) {
        policies.rendezvous.places = places;
    }
    if let Some(decay) = given.ewma.as_ref().and_then(|raw| raw.decay) {
        policies.peak_ewma.decay = decay.0;
    }
    if let Some(quantile) = given.prequal.as_ref().and_then(|raw| raw.rif_quantile) {
        policies.prequal.rif_quantile_permille = permille(quantile);
    }
    if let Some(gather) = given.wrr.as_ref().and_then(|raw| raw.gather) {
        settings.t_gat = gather.0;
    }
    if let Some(shares) = given.fixed.as_ref().and_then(|raw| raw.shares.as_ref()) {
        settings.policies.static_partition.shares = static_shares(&format!("{at}.static.shares"), shares)?;
    }
    if let Some(raw) = &given.util {
        util(&format!("{at}.lard-util"), raw, settings)?;
    }
    let (poll, age_max) = (settings.t_gat, settings.report_age_max);
    if settings.policies.lard_util.by == UtilBy::Connections && poll > age_max {
        let (poll, age_max) = (Span(poll), Span(age_max));
        let key = if given.wrr.is_some() { "wrr.gather" } else { "lard-util.by" };
        let what = format!("nodes are polled every {poll}, and a report expires after {age_max}");
        let hint = format!("write gather = \"{age_max}\" or less, or a longer signals.missing_after");
        return Err(Fault::new(format!("{at}.{key}"), what).hint(hint));
    }
    Ok(())
}

/// Applies the settings of lard-util.
fn util(at: &str, raw: &UtilSection, settings: &mut Settings) -> Result<(), Fault> {
    settings.policies.lard_util.by = raw.by.map_or(settings.policies.lard_util.by, |by| by.0);
    settings.policies.lard_util.low_permille =
        raw.low.map_or(settings.policies.lard_util.low_permille, permille);
    settings.policies.lard_util.high_permille =
        raw.high.map_or(settings.policies.lard_util.high_permille, permille);
    if settings.policies.lard_util.low_permille >= settings.policies.lard_util.high_permille {
        let of = |permille: u16| f64::from(permille) / 1000.0;
        let (low, high) =
            (of(settings.policies.lard_util.low_permille), of(settings.policies.lard_util.high_permille));
        let key = if raw.low.is_some() { "low" } else { "high" };
        let what = format!("low = {low} is not below high = {high}");
        let hint = "the paper uses low = 0.3, high = 0.7";
        return Err(Fault::new(format!("{at}.{key}"), what).hint(hint));
    }
    Ok(())
}

/// Returns the shares of the classes. A class that is not listed has share 0.
fn static_shares(key: &str, shares: &BTreeMap<String, u32>) -> Result<[u32; ServiceClass::COUNT], Fault> {
    let mut found = [0; ServiceClass::COUNT];
    for (name, share) in shares {
        let key = format!("{key}.{name}");
        let class: ServiceClass = word(&key, name, &ServiceClass::ALL.map(ServiceClass::name))?;
        found[class.index()] = *share;
    }
    if found == [0; ServiceClass::COUNT] {
        return Err(Fault::new(key, "no class has a share").hint("write shares = { n = 2, db = 1 }"));
    }
    Ok(found)
}

/// Converts a number to thousandths.
fn thousandths(value: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the range of its key"
    )]
    let rounded = (value * 1000.0).round() as u32;
    rounded
}

/// Converts a share of one to thousandths.
pub(crate) fn permille(value: f64) -> u16 {
    u16::try_from(thousandths(value)).unwrap_or(u16::MAX)
}
