//! The parameters of the policies: `[switch.policies]` with a table for each, and again, for what differs, `policies` of a route.
//!
//! Every key may be left out. Under `[switch]` that means the default, under a route what `[switch]` says.

pub(crate) mod hacc;
pub(crate) mod threshold;

use larder_core::policy::{
    BoundedSettings, CapLoadSettings, HaccSettings, LardUtilSettings, MaglevSettings, PeakEwmaSettings,
    RendezvousSettings, StaticSettings,
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

/// All that a policy goes by, as one section gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters<'a> {
    pub(crate) policy: Option<&'a str>,
    pub(crate) policies: &'a PoliciesSection,
    /// What the section above says of the training: a route may begin to learn where [switch] does not.
    pub(crate) training_above: Option<&'a TrainingSection>,
}

keys! {
    /// `[switch.policies]`, and the same of a route.
    partial PoliciesSection, settings = Settings::default();

    /// Seed of the policies that draw lots.
    seed: Option<u64> = Some(settings.seed);
    /// Targets remembered; beyond that the least recently asked is forgotten and placed anew when asked again.
    targets_max: Option<usize> = Some(settings.targets_max), range "1 to 4294967296";
    /// Settings of lard and lard-r. Admission and sticky clients use its thresholds too.
    lard: Option<LardSection> = Some(LardSection::standard());
    /// Settings of lard-cost, which replace t_low and t_high.
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
    /// Settings of bounded (consistent hashing with bounded loads).
    bounded: Option<BoundedSection> = Some(BoundedSection::standard());
    /// Settings of maglev.
    maglev: Option<MaglevSection> = Some(MaglevSection::standard());
    /// Settings of rendezvous.
    rendezvous: Option<RendezvousSection> = Some(RendezvousSection::standard());
    /// Settings of peak-ewma.
    #[serde(rename = "peak-ewma")]
    ewma: Option<EwmaSection> = Some(EwmaSection::standard());
    /// Settings of wrr-num and wrr-time.
    wrr: Option<WrrSection> = Some(WrrSection::standard());
    /// Settings of static.
    #[serde(rename = "static")]
    fixed: Option<StaticSection> = Some(StaticSection::standard());
    /// Where ward and part have their routing table from: a file, or the switch's own traffic, or both.
    ward: Option<WardSection> = Some(WardSection::standard());
}

impl PoliciesSection {
    /// Reads the section of `[switch]`, where a key or table that is missing has its standard value.
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
            wrr: given.wrr.or(standard.wrr),
            fixed: given.fixed.or(standard.fixed),
            ward: given.ward.or(standard.ward),
        })
    }

    /// Keys of `lard`; `None` where the section is missing.
    pub(crate) fn lard(&self) -> LardSection {
        self.lard.clone().unwrap_or_default()
    }
}

keys! {
    /// `[switch.policies.hacc]`.
    partial HaccSection, hacc = HaccSettings::default();

    /// The paper's weights: "static-files" (the disk alone counts) or "domino" (CPU and disk count alike).
    preset: Option<Preset> = Some(Preset::StaticFiles);
    /// Weights of one's own, instead of a preset: from a signal (cpu, disk, memory, processes, service-time, disk-bytes,
    /// paging, queue, app1 to app4) to its share of the load, 0.001 to 1, together at most 1. One that is no share of
    /// time or memory needs to know what is fully loaded, in its unit: { weight = 0.5, full = 64 }.
    weights: Option<BTreeMap<String, WeightKey>>,
        example serde_json::json!({ "cpu": 0.5, "queue": { "weight": 0.5, "full": 64 } });
    /// How often the loads that nodes report are compared.
    period: Option<Span> = Some(Span(hacc.period)), range "1ms to 1h";
    /// How much more loaded than the least loaded a node must be to shed documents.
    margin: Option<f64> = Some(share(hacc.margin_permille)), range "0.001 to 1";
    /// How much of the difference in load is moved; at 0.5 the two loads meet.
    amount: Option<f64> = Some(share(hacc.amount_permille)), range "0.001 to 1";
    /// How long an offload lasts, and how long its two nodes then take part in no other.
    cooldown: Option<Span> = Some(Span(hacc.cooldown)), range "1ms to 1h";
    /// From which share of all requests on a document goes to several nodes. 0: never.
    hot_share: Option<f64> = Some(share(hacc.hot_share_permille)), range "0.005 to 1, or 0";
    /// To how many nodes the hottest documents go at most.
    hot_nodes: Option<u8> = Some(hacc.hot_nodes), range "2 to 16";
    /// What an assignment covers: 0, a document; else all documents below the same directory of this depth. It sets the key,
    /// where that is not given.
    level: Option<u8> = Some(0), range "0 to 16";
}

/// A signal's part in the load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a weight is a number from 0.001 to 1, or { weight = 0.5, full = 64 }")]
pub(crate) enum WeightKey {
    /// Of a share of time or memory.
    Share(f64),
    /// Of anything.
    Of(SignalWeightTable),
}

/// The table form of [`WeightKey`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignalWeightTable {
    /// Its share of the load.
    pub(crate) weight: f64,
    /// The value, in the signal's unit, that counts as fully loaded.
    pub(crate) full: u64,
}

keys! {
    /// `[switch.policies.bounded]`.
    partial BoundedSection, bounded = BoundedSettings::default();

    /// How far above the mean load a node may be before its targets go to the next one.
    factor: Option<f64> = Some(f64::from(bounded.factor_permille) / 1000.0), range "1.01 to 100";
    /// Points on the ring of a node of weight 1.
    points: Option<u32> = Some(bounded.points), range "1 to 10000";
}

keys! {
    /// `[switch.policies.maglev]`.
    partial MaglevSection;

    /// Places in the table. A hundred times the nodes keeps shares within 1 %.
    size: Option<u32> = Some(MaglevSettings::default().size), range "a prime from 101 to 5000011";
}

keys! {
    /// `[switch.policies.rendezvous]`.
    partial RendezvousSection;

    /// Places that the nodes compete for.
    places: Option<u32> = Some(RendezvousSettings::default().places),
        range "a power of two from 256 to 16777216";
}

keys! {
    /// `[switch.policies.peak-ewma]`.
    partial EwmaSection;

    /// After this time a latency counts 1/e.
    decay: Option<Span> = Some(Span(PeakEwmaSettings::default().decay)), range "100ms to 1h";
}

keys! {
    /// `[switch.policies.wrr]`.
    partial WrrSection;

    /// T_gat: how often the nodes' reports become weights.
    gather: Option<Span> = Some(Span(Settings::default().t_gat)), range "1ms to 1h";
}

keys! {
    /// `[switch.policies.static]`.
    partial StaticSection, shares = ServiceClass::ALL.into_iter().zip(StaticSettings::default().shares);

    /// Shares of the nodes set aside for each class; only their ratios count. A class of share 0 uses all nodes. A class that
    /// is not named has 0.
    shares: Option<BTreeMap<String, u32>> = Some(shares.map(|(class, share)| (class.to_string(), share)).collect()),
        range "0 to 1000000";
}

keys! {
    /// `[switch.policies.lard-util]`.
    partial UtilSection, settings = LardUtilSettings::default();

    /// What counts as a node's load: "utilisation" of its busiest device, by low and high, or "connections", polled every
    /// wrr.gather, by t_low and t_high.
    by: Option<Word<UtilBy>> = Some(Word(UtilBy::Utilisation));
    /// T_low of lard-util: a node whose busiest device is less busy has room.
    low: Option<f64> = Some(share(settings.low_permille)), range "0.001 to 0.998";
    /// T_high of lard-util: a node whose busiest device is busier gives targets away. Above low.
    high: Option<f64> = Some(share(settings.high_permille)), range "0.002 to 0.999";
}

keys! {
    /// `[switch.policies.cap-load]`.
    partial CapSection, cap = CapLoadSettings::default();

    /// How many times the mean load a node may have and still be given its turn.
    factor: Option<f64> = Some(f64::from(cap.factor_permille) / 1000.0), range "1 to 100";
    /// How many requests a node of weight 1 may have beside that.
    slack: Option<u32> = Some(cap.slack), range "0 to 100000";
}

/// The range of the costs of `[switch.policies.ward]`, in microseconds.
pub(crate) const COST_RANGE: &str = "0 to 1000000";

/// The range of `carry` of `[switch.policies.ward]`.
pub(crate) const CARRY_RANGE: &str = "0 to 1";

keys! {
    /// `[switch.policies.ward]`.
    partial WardSection, costs = WardCosts::ward01();

    /// File of the routing table, as `larder trace ward --output` writes it. It is read at the start, again when it
    /// changes, and at SIGHUP; one that cannot be used is reported and the table before stays. Unset: none.
    table: Option<String>, example "/var/lib/larder/www.routes";
    /// Host of the table's rows that name none. Unset: the route's host, if it has just one; else
    /// that of [switch.policies.ward].
    host: Option<String>, example "www.example.com";
    /// How often a new table is computed from the switch's own traffic, such as "15m" or "24h"; "off" for never.
    refresh: Option<String> = Some("off".to_owned()), range "1s to 31d, or \"off\"";
    /// Memory of each node's cache, for the refresh. Unset: the least `cache` of the route's nodes.
    memory: Option<Size>, example "8GiB";
    /// Price of a handoff in microseconds, for the refresh.
    forward_us: Option<f64> = Some(costs.forward_us), range COST_RANGE, when "used";
    /// Extra time of a byte from disk over memory in microseconds, for the refresh.
    disk_us_per_byte: Option<f64> = Some(costs.disk_us_per_byte), range COST_RANGE, when "used";
    /// How much of a target's count goes over into the next period.
    carry: Option<f64> = Some(0.5), range CARRY_RANGE, when "used";
    /// Targets counted for the refresh; beyond that the least requested of a few is forgotten.
    targets_max: Option<usize> = Some(1 << 20), range "64 to 100000000";
}

/// Thousandths as a share of one.
fn share(permille: u16) -> f64 {
    f64::from(permille) / 1000.0
}

choice! {
    /// The words of `hacc.preset`.
    Preset { StaticFiles, Domino }
}

/// Lays what the section at `at` gives over `settings`, and checks the whole.
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

/// The tables of single policies.
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
        let what = format!("polls every {poll}, and what a node says counts for {age_max}");
        let hint = format!("write gather = \"{age_max}\" or less, or a longer signals.missing_after");
        return Err(Fault::new(format!("{at}.{key}"), what).hint(hint));
    }
    Ok(())
}

/// T_low and T_high of lard-util.
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

/// Shares by class; a class that is not named has none.
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

/// A number in thousandths.
fn thousandths(value: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the range of its key"
    )]
    let rounded = (value * 1000.0).round() as u32;
    rounded
}

/// A share of one in thousandths.
pub(crate) fn permille(value: f64) -> u16 {
    u16::try_from(thousandths(value)).unwrap_or(u16::MAX)
}
