//! The dispatcher's settings, with the papers' values as defaults.

use crate::nodes::{JoinPace, NODES_LIMIT};
use crate::policy::table::RouteTable;
use crate::policy::thresholds::ThresholdSettings;
use crate::policy::{CommonSettings, PolicyKind, PolicySettings};
use crate::range::{SettingsError, in_range, period};
use alloc::sync::Arc;
use core::time::Duration;

/// The rule for the largest number of outstanding requests at all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// S = (n - 1) T_high + T_low - 1 (LARD section 2.4): while no node is below T_low, at least two are below
    /// T_high. The rule applies to every policy, so that policies are compared at equal concurrency.
    Derived,
    /// The limit for a live switch.
    ///
    /// Suppose a policy of the group's routes has thresholds and at least two nodes are open. Then the limit is S as
    /// in [`Admission::Derived`], from the largest thresholds of these routes. Such a policy places well only while
    /// some node is below T_high.
    ///
    /// Otherwise the limit only protects the nodes. Each node gets [`Admission::PER_NODE`] or T_high, whichever is
    /// larger, scaled by its weight. The last open node of several gets T_high with a policy that has thresholds.
    Auto,
    /// A fixed number, at least 1.
    Fixed(u32),
    /// No limit.
    Unlimited,
}

impl Admission {
    /// The number of requests that [`Admission::Auto`] admits for a node of weight 1 if no policy has thresholds.
    pub const PER_NODE: u32 = 1_000;
}

/// The settings of a dispatcher or of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy. Default: `lard-r`.
    pub policy: PolicyKind,
    /// The seed of policies that draw random numbers. Default 1.
    pub seed: u64,
    /// The load below which a node has capacity to spare. Connections; 1 to 100,000; default 25 (LARD section 2.4).
    pub t_low: u32,
    /// The load above which a node is overloaded. Connections; above `t_low`, to 100,000; default 65 (LARD section
    /// 2.4).
    pub t_high: u32,
    /// The rules by which `lard` and `lard-r` derive T_low and T_high. Default: they are `t_low` and `t_high`. The
    /// admission limit follows the thresholds that the default route derives.
    pub thresholds: ThresholdSettings,
    /// K: the time for which a server set must have been unchanged before it shrinks. Default 20 s (LARD section
    /// 2.5).
    pub replication_decay: Duration,
    /// The largest number of stored targets, about 50 to 60 bytes each. Beyond it, the least recently used targets
    /// are evicted. 1 to 2^32; default 1,048,576.
    pub targets_max: usize,
    /// The largest number of nodes. 1 to 65,534; default 1,024.
    pub nodes_max: u16,
    /// The admission limit. Default: derived.
    pub admission: Admission,
    /// The largest number of long-lived requests at a node
    /// ([`Dispatcher::become_long_lived`](super::Dispatcher::become_long_lived)). Requests above it continue to
    /// count as admitted. 0 to 1,000,000; default 10,000.
    pub long_lived_max: u32,
    /// The largest number of requests that wait for admission; more are refused. Default 4,096.
    pub queue_max: usize,
    /// The longest time that a request waits for admission. Default 10 s.
    pub queue_timeout: Duration,
    /// The rate of new targets for a joining node, per second. 1 to 1,000,000; default 50.
    pub join_targets_per_s: u32,
    /// The number of new targets after which a joining node is warm. 0 disables the limited rate. Default 1,000.
    pub join_warm_targets: u32,
    /// The number of shards of the target map, each with its own lock. A power of two, 1 to 4,096; default 64.
    pub shards: usize,
    /// The secret key that spreads targets over shards and buckets, so that chosen URLs cannot overload one of them.
    /// Default 0: no key, as simulations need it. A live switch draws the key at random.
    pub spread_key: u64,
    /// The age above which a load report counts as missing. 1 ms to 1 h; default 60 s, six times the period of the
    /// CAP paper's collector (section 5).
    pub report_age_max: Duration,
    /// T_gat: the period at which `wrr-num` and `wrr-time` collect the reports and set new weights, and `lard-util`
    /// by connections polls. 1 ms to 1 h; default 10 s (CAP section 5).
    ///
    /// If `lard-util` uses connections, `t_gat` must not exceed `report_age_max`. Otherwise nodes would count as
    /// missing between that age and the next poll.
    pub t_gat: Duration,
    /// The routing table of `ward` and `part`. Without a table every target is unknown. Default: none.
    pub table: Option<Arc<RouteTable>>,
    /// The settings that belong to one policy.
    pub policies: PolicySettings,
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
            table: None,
            policies: PolicySettings::default(),
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
        period("report_age_max", self.report_age_max)?;
        period("t_gat", self.t_gat)?;
        self.thresholds.validate()?;
        self.policies.validate()
    }

    /// Returns the settings that several policies share.
    pub(crate) fn common(&self) -> CommonSettings {
        CommonSettings {
            seed: self.seed,
            t_low: self.t_low,
            t_high: self.t_high,
            thresholds: self.thresholds,
            replication_decay: self.replication_decay,
            targets_max: self.targets_max,
            nodes_max: self.nodes_max,
            shards: self.shards,
            spread_key: self.spread_key,
            report_age_max: self.report_age_max,
            t_gat: self.t_gat,
            table: self.table.clone(),
        }
    }

    pub(crate) fn join_pace(&self) -> JoinPace {
        JoinPace { targets_per_s: self.join_targets_per_s, warm_targets: self.join_warm_targets }
    }
}
