//! The dispatcher's settings, with the papers' values as defaults.

use crate::class::ServiceClass;
use crate::nodes::{JoinPace, NODES_LIMIT};
use crate::policy::BoundedSettings;
use crate::policy::PolicyKind;
use crate::policy::UtilBy;
use crate::policy::cap_load::CapLoadSettings;
use crate::policy::hacc::HaccSettings;
use crate::policy::lard_cost::CostSettings;
use crate::policy::maglev::is_prime;
use crate::policy::table::RouteTable;
use crate::policy::thresholds::ThresholdSettings;
use crate::range::{SettingsError, in_range, period};
use core::time::Duration;
use std::sync::Arc;

/// How many requests may be outstanding at all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// S = (n - 1) T_high + T_low - 1 (LARD section 2.4): while no node is below T_low, at least two are below
    /// T_high. Applies to every policy, so that policies are compared at equal concurrency.
    Derived,
    /// The limit for a live switch. If a policy of the group's routes has thresholds and the group has at least two nodes: S as
    /// in [`Admission::Derived`], from the largest thresholds of these routes, because such a policy places well only while
    /// some node is below T_high. Otherwise [`Admission::PER_NODE`] or T_high, whichever is larger, for each node, scaled by
    /// its weight: there the limit only protects the nodes. The last open node of several gets T_high with such a policy.
    Auto,
    /// A fixed number, at least 1.
    Fixed(u32),
    /// No limit.
    Unlimited,
}

impl Admission {
    /// Requests that [`Admission::Auto`] admits for a node of weight 1 where no policy has thresholds.
    pub const PER_NODE: u32 = 1_000;
}

/// The dispatcher's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy. Default: `lard-r`.
    pub policy: PolicyKind,
    /// The seed of policies that draw lots. Default 1.
    pub seed: u64,
    /// Below this load a node has room to spare. Connections; 1 to 100,000; default 25 (LARD section 2.4).
    pub t_low: u32,
    /// Above this load a node is to be relieved. Connections; above `t_low`, to 100,000; default 65 (LARD section 2.4).
    pub t_high: u32,
    /// Where T_low and T_high of `lard` and `lard-r` come from. Default: they are `t_low` and `t_high`. The admission limit
    /// follows what the default route finds out.
    pub thresholds: ThresholdSettings,
    /// K: how long a server set must have been unchanged before it shrinks. Default 20 s (LARD section 2.5).
    pub replication_decay: Duration,
    /// How many targets are remembered, about 50 to 60 bytes each; the least recently used are forgotten beyond it.
    /// 1 to 2^32; default 1,048,576.
    pub targets_max: usize,
    /// How many nodes there can be. 1 to 65,534; default 1,024.
    pub nodes_max: u16,
    /// The admission limit. Default: derived.
    pub admission: Admission,
    /// How many long-lived requests a node may have ([`Dispatcher::become_long_lived`](super::Dispatcher::become_long_lived)).
    /// One more stays among the admitted. 0 to 1,000,000; default 10,000.
    pub long_lived_max: u32,
    /// How many requests may wait for admission; more are refused. Default 4,096.
    pub queue_max: usize,
    /// How long a request may wait for admission. Default 10 s.
    pub queue_timeout: Duration,
    /// New targets per second for a joining node. 1 to 1,000,000; default 50.
    pub join_targets_per_s: u32,
    /// New targets after which a joining node counts as warm; 0 gives it all it can take at once. Default 1,000.
    pub join_warm_targets: u32,
    /// Parts of the target map, each with its lock. A power of two, 1 to 4,096; default 64.
    pub shards: usize,
    /// Secret that spreads targets over shards and buckets, so that chosen URLs cannot crowd one of them. Default 0: none, as
    /// simulations need it; a live switch draws it at random.
    pub spread_key: u64,
    /// How old a load report may be; an older one counts as missing. 1 ms to 1 h; default 60 s, six times the period
    /// of the CAP paper's collector (section 5).
    pub report_age_max: Duration,
    /// T_gat: how often `wrr-num` and `wrr-time` gather the reports and set new weights, and `lard-util` by connections polls. 1 ms to 1 h; default 10 s
    /// (CAP section 5). Where `lard-util` goes by connections not above `report_age_max`, or nodes would count as
    /// missing from that age to the next poll.
    pub t_gat: Duration,
    /// What `lard-util` takes for a node's load: utilisation between `util_low_permille` and `util_high_permille`, or
    /// connections between `t_low` and `t_high`. Default: utilisation (CAP section 4.1).
    pub util_by: UtilBy,
    /// T_low of `lard-util`, in 1/1000 of a device's time. 1 to 998; default 300 (CAP section 4.1).
    pub util_low_permille: u16,
    /// T_high of `lard-util`, in 1/1000 of a device's time. Above `util_low_permille`, to 999; default 700 (CAP section
    /// 4.1).
    pub util_high_permille: u16,
    /// The shares by which `static` divides the nodes among the classes, in the order of [`ServiceClass::ALL`]; only
    /// their ratios count. A class of share 0 has no nodes of its own and uses all of them. Each 0 to 1,000,000; default
    /// all 1.
    pub static_shares: [u32; ServiceClass::COUNT],
    /// What `cap-load` goes by. Default: 1.25 times the mean load and two connections.
    pub cap_load: CapLoadSettings,
    /// What `lard-cost` goes by. Default: what a miss costs is measured, 50 until enough is known; L_idle 30 and L_overload 130
    /// (USENIX 1999, section 4).
    pub cost: CostSettings,
    /// The routing table of `ward` and `part`. Without one every target is unknown to it. Default: none.
    pub table: Option<Arc<RouteTable>>,
    /// What `hacc` goes by. Default: [`HaccSettings::STATIC_FILES`].
    pub hacc: HaccSettings,
    /// What `bounded` goes by. Default: [`BoundedSettings::default`].
    pub bounded: BoundedSettings,
    /// Places in the table of `maglev`. A prime, 101 to 5,000,011; default 65,537 (Maglev section 5.3). A hundred times
    /// the nodes keeps shares within 1 % of each other.
    pub maglev_size: u32,
    /// Places that the nodes of `rendezvous` compete for. A power of two, 256 to 16,777,216; default 262,144. A share
    /// varies by sqrt(nodes / places) of itself.
    pub rendezvous_places: u32,
    /// How fast `peak-ewma` forgets: after this time a latency counts 1/e. 100 ms to 1 h; default 10 s (Finagle,
    /// linkerd).
    pub ewma_decay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: PolicyKind::LardR,
            seed: 1,
            t_low: 25,
            t_high: 65,
            thresholds: ThresholdSettings::default(),
            replication_decay: Duration::from_secs(20),
            targets_max: 1 << 20,
            nodes_max: 1024,
            admission: Admission::Derived,
            long_lived_max: 10_000,
            queue_max: 4096,
            queue_timeout: Duration::from_secs(10),
            join_targets_per_s: 50,
            join_warm_targets: 1000,
            shards: 64,
            spread_key: 0,
            report_age_max: Duration::from_secs(60),
            t_gat: Duration::from_secs(10),
            util_by: UtilBy::Utilisation,
            util_low_permille: 300,
            util_high_permille: 700,
            static_shares: [1; ServiceClass::COUNT],
            cap_load: CapLoadSettings::default(),
            cost: CostSettings::default(),
            table: None,
            hacc: HaccSettings::STATIC_FILES,
            bounded: BoundedSettings::default(),
            maglev_size: 65_537,
            rendezvous_places: 1 << 18,
            ewma_decay: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let check = |ok: bool, name, value, range| in_range(name, value, ok, range);
        let t_high_ok = self.t_high > self.t_low && self.t_high <= 100_000;
        let join_ok = (1..=1_000_000).contains(&self.join_targets_per_s);
        check((1..=100_000).contains(&self.t_low), "t_low", self.t_low.into(), "1 to 100000")?;
        check(
            self.long_lived_max <= 1_000_000,
            "long_lived_max",
            self.long_lived_max.into(),
            "at most 1000000",
        )?;
        check(t_high_ok, "t_high", self.t_high.into(), "above t_low, at most 100000")?;
        check(
            (1..=1 << 32).contains(&self.targets_max),
            "targets_max",
            self.targets_max as u64,
            "1 to 2^32",
        )?;
        check((1..=NODES_LIMIT).contains(&self.nodes_max), "nodes_max", self.nodes_max.into(), "1 to 65534")?;
        check(self.admission != Admission::Fixed(0), "admission", 0, "at least 1")?;
        check(join_ok, "join_targets_per_s", self.join_targets_per_s.into(), "1 to 1000000")?;
        let shards_ok = self.shards.is_power_of_two() && self.shards <= 4096;
        check(shards_ok, "shards", self.shards as u64, "a power of two from 1 to 4096")?;
        self.validate_hashing()?;
        self.validate_signals()
    }

    /// The ranges of what goes by hashes, and by latencies.
    fn validate_hashing(&self) -> Result<(), SettingsError> {
        let (size, places) = (self.maglev_size, self.rendezvous_places);
        let size_ok = (101..=5_000_011).contains(&size) && is_prime(size);
        in_range("maglev_size", size.into(), size_ok, "a prime from 101 to 5000011")?;
        let places_ok = places.is_power_of_two() && (1 << 8..=1 << 24).contains(&places);
        in_range("rendezvous_places", places.into(), places_ok, "a power of two from 256 to 16777216")?;
        let decay = u64::try_from(self.ewma_decay.as_millis()).unwrap_or(u64::MAX);
        let decay_ok = (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&self.ewma_decay);
        in_range("ewma_decay", decay, decay_ok, "100 ms to 1 h")?;
        self.bounded.validate()
    }

    /// The ranges of what goes by the nodes' reports.
    fn validate_signals(&self) -> Result<(), SettingsError> {
        let (low, high) = (self.util_low_permille, self.util_high_permille);
        period("report_age_max", self.report_age_max)?;
        period("t_gat", self.t_gat)?;
        in_range("util_low_permille", low.into(), (1..=998).contains(&low), "1 to 998")?;
        let high_ok = high > low && high <= 999;
        in_range("util_high_permille", high.into(), high_ok, "above util_low_permille, at most 999")?;
        let share = self.static_shares.into_iter().max().unwrap_or(0);
        in_range("static_shares", share.into(), share <= 1_000_000, "0 to 1000000 each")?;
        self.thresholds.validate()?;
        self.cap_load.validate()?;
        self.cost.validate()?;
        self.hacc.validate()
    }

    pub(crate) fn join_pace(&self) -> JoinPace {
        JoinPace { targets_per_s: self.join_targets_per_s, warm_targets: self.join_warm_targets }
    }
}
