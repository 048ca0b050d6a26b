//! The settings of a run in an experiment file, and the run that they describe.

use core::time::Duration;
use std::fmt;
use std::str::FromStr;

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Admission, Settings};
use larder_core::switches::SwitchesSettings;
use larder_core::{Bytes, PolicyKind};
use larder_trace::synth::{HotTargets, Recipe};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::traces::{Fit, WorkloadSpec};
use larder_sim::cost::Costs;
use larder_sim::source::Arrivals;
use larder_sim::{CacheChoice, Scenario, SimNode, SwitchGroup};

/// A value that is written as its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NamedValue<T>(pub(super) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for NamedValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl<T: fmt::Display> Serialize for NamedValue<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// The organisation of the nodes' memory, by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemoryChoice(CacheChoice);

impl FromStr for MemoryChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "unbounded" => Ok(Self(CacheChoice::Unbounded)),
            "global" => Ok(Self(CacheChoice::Global(CacheKind::Gds))),
            "global-lru" => Ok(Self(CacheChoice::Global(CacheKind::Lru))),
            _ => name.parse::<CacheKind>().map(|kind| Self(CacheChoice::Kind(kind))).map_err(|_| {
                format!("'{name}' is no memory: write gds, gds-packets, lru, unbounded, global or global-lru")
            }),
        }
    }
}

impl fmt::Display for MemoryChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CacheChoice::Kind(kind) => kind.fmt(f),
            CacheChoice::Unbounded => f.write_str("unbounded"),
            CacheChoice::Global(CacheKind::Lru) => f.write_str("global-lru"),
            CacheChoice::Global(_) => f.write_str("global"),
        }
    }
}

/// The kind of the arrival process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ArrivalKind {
    /// A closed loop of `clients`, each with one outstanding request.
    Closed,
    /// An open loop at the trace's times, `time_factor` times faster.
    Open,
    /// A trace dealt to the nodes, each with `window` outstanding requests.
    Subtraces,
}

/// Declares the settings, each optional, and the way in which one set overrides another.
macro_rules! run_settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty,)+) => {
        /// The settings of `[run]` and of a line's `set`. Every key may be in either; the line's value has
        /// priority.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct RunSettings {
            $($(#[doc = $doc])+ #[serde(skip_serializing_if = "Option::is_none")] pub(super) $name: Option<$kind>,)+
        }

        impl RunSettings {
            /// Returns the values of `over`, and those of `self` where `over` has none.
            pub(super) fn override_with(&self, over: &Self) -> Self {
                Self { $($name: over.$name.clone().or_else(|| self.$name.clone()),)+ }
            }
        }
    };
}

run_settings! {
    /// Recipe of the workload. Excludes `trace`.
    recipe: String,
    /// Trace file in the directory of traces.
    trace: String,
    /// Seed of the workload. Default 1.
    seed: u64,
    /// Targets, requests and bytes relative to the recipe, above 0 and at most 1. Default 1.
    scale: f64,
    /// Number of requests instead of the recipe's.
    requests: u64,
    /// Share of the requests that repeat a recent target, instead of the recipe's, 0 to below 1.
    locality: f64,
    /// Tilt of sizes against popularity instead of the recipe's relation, -1 to 1.
    tilt: f64,
    /// Size of the covering targets in mean sizes, instead of the recipe's, 0.01 to 10.
    covering: f64,
    /// Share of the requests that go to hot targets, 0.05 to 0.5.
    hot_share: f64,
    /// Number of hot targets, 1 to 1,000.
    hot_targets: u32,
    /// Size of a hot target, in KiB.
    hot_kib: f64,
    /// The policy. Excludes `bound`.
    policy: NamedValue<PolicyKind>,
    /// Whether the line is the upper bound of all policies.
    bound: bool,
    /// Seed of randomised policies. Default 1.
    policy_seed: u64,
    /// Number of nodes, 1 to 65,534. Default 8.
    nodes: u32,
    /// Memory of a node in MiB. Default 32.
    memory_mib: f64,
    /// Organisation of the memory: gds, gds-packets, lru, unbounded, global or global-lru. Default gds.
    memory: NamedValue<MemoryChoice>,
    /// Size of the largest item that is kept, in KiB. Default: no limit.
    object_max_kib: f64,
    /// Speed of the processor relative to the cost model's. Default 1.
    cpu_speed: f64,
    /// Speed of the disks relative to the cost model's. Default 1.
    disk_speed: f64,
    /// Number of disks per node, 1 to 64. Default 1.
    disks: u16,
    /// The cost model. Default lard98.
    costs: Costs,
    /// The arrival process. Default closed.
    arrivals: ArrivalKind,
    /// Number of clients for closed arrivals; 0 stands for S. Default 0.
    clients: u32,
    /// Speed of open arrivals relative to the trace. Default 1.
    time_factor: f64,
    /// Outstanding requests per node for subtraces. Default 64.
    window: u32,
    /// Share of the requests, from the first, that are not measured, 0 to below 1. Default 0.
    warmup: f64,
    /// T_low. Default 25.
    t_low: u32,
    /// T_high. Default 65.
    t_high: u32,
    /// K in seconds. Default 20.
    replication_decay_s: f64,
    /// Limit of outstanding requests; 0 stands for S, the derived limit. Default 0.
    admission: u32,
    /// Period of load reports, in ms. Default: no reports.
    report_every_ms: u64,
    /// Number of requests below which a node is underutilised. Default 10.
    idle_below: u32,
    /// Number of switches, 1 to 64; 0 for a single switch without the protocol. Default 0.
    switches: u16,
    /// Delay of a message between switches, in ms. Default 1.
    switch_delay_ms: f64,
    /// Period of the updates between switches, in ms. Default 20.
    switch_period_ms: f64,
    /// Change of a node's load that a switch reports, in requests. Default 2.
    switch_step: u32,
}

/// A run: a workload, and a scenario for it, or for its upper bound.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunSpec {
    pub(super) workload: WorkloadSpec,
    /// Share of the requests that are not measured.
    pub(super) warmup: f64,
    pub(super) what: RunKind,
}

/// The kind of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RunKind {
    Simulate(Box<Scenario>),
    Bound(Box<Scenario>),
}

const KIB: f64 = 1_024.0;

impl RunSettings {
    /// Returns the settings with the swept setting changed to `x`.
    pub(super) fn with(&self, over: &str, x: f64) -> Result<Self, String> {
        let mut settings = self.clone();
        let whole = || {
            let fits = x.fract() == 0.0 && (0.0..=4e9).contains(&x);
            if fits { Ok(x as u32) } else { Err(format!("'{over}' takes whole numbers from 0, not {x}")) }
        };
        match over {
            "nodes" => settings.nodes = Some(whole()?),
            "memory_mib" => settings.memory_mib = Some(x),
            "requests" => settings.requests = Some(u64::from(whole()?)),
            "locality" => settings.locality = Some(x),
            "tilt" => settings.tilt = Some(x),
            "covering" => settings.covering = Some(x),
            "disks" => settings.disks = Some(u16::try_from(whole()?).unwrap_or(u16::MAX)),
            "cpu_speed" => settings.cpu_speed = Some(x),
            "disk_speed" => settings.disk_speed = Some(x),
            "t_low" => settings.t_low = Some(whole()?),
            "t_high" => settings.t_high = Some(whole()?),
            "clients" => settings.clients = Some(whole()?),
            "time_factor" => settings.time_factor = Some(x),
            "hot_share" => settings.hot_share = Some(x),
            "hot_kib" => settings.hot_kib = Some(x),
            "replication_decay_s" => settings.replication_decay_s = Some(x),
            "switches" => settings.switches = Some(u16::try_from(whole()?).unwrap_or(u16::MAX)),
            "switch_delay_ms" => settings.switch_delay_ms = Some(x),
            "switch_period_ms" => settings.switch_period_ms = Some(x),
            "switch_step" => settings.switch_step = Some(whole()?),
            "seed" => settings.seed = Some(u64::from(whole()?)),
            _ => {
                return Err(format!(
                    "a sweep cannot run over '{over}': use requests, locality, tilt, covering, nodes, memory_mib, disks, cpu_speed, disk_speed, t_low, \
                     t_high, clients, time_factor, hot_share, hot_kib, replication_decay_s, switches, \
                     switch_delay_ms, switch_period_ms, switch_step or seed"
                ));
            }
        }
        Ok(settings)
    }

    /// Returns the run. Errors name the key at fault.
    pub(super) fn run(&self) -> Result<RunSpec, String> {
        let warmup = self.warmup.unwrap_or(0.0);
        if !(0.0..1.0).contains(&warmup) {
            return Err(format!("'warmup' = {warmup} must be from 0 to below 1"));
        }
        let scenario = Box::new(self.scenario()?);
        self.check_ranges()?;
        let what = match (self.bound.unwrap_or(false), &self.policy) {
            (false, Some(_)) => RunKind::Simulate(scenario),
            (true, None) if !matches!(scenario.arrivals, Arrivals::Closed { .. }) => {
                return Err("'bound' is known for closed arrivals only".to_owned());
            }
            (true, None) => RunKind::Bound(scenario),
            _ => return Err("a line needs 'policy' or 'bound = true', one of the two".to_owned()),
        };
        Ok(RunSpec { workload: self.workload()?, warmup, what })
    }

    /// Checks the ranges that no other check covers before the run.
    fn check_ranges(&self) -> Result<(), String> {
        let within = |key: &str, value: Option<f64>, least: f64, most: f64| match value {
            Some(value) if !(least..=most).contains(&value) => {
                Err(format!("'{key}' = {value} must be from {least} to {most}"))
            }
            _ => Ok(()),
        };
        within("locality", self.locality, 0.0, 0.99)?;
        within("tilt", self.tilt, -1.0, 1.0)?;
        within("covering", self.covering, 0.01, 10.0)?;
        within("hot_share", self.hot_share, 0.05, 0.5)?;
        within("hot_targets", self.hot_targets.map(f64::from), 1.0, 1_000.0)?;
        within("hot_kib", self.hot_kib, 0.001, 1e9)?;
        within("requests", self.requests.map(|requests| requests as f64), 1.0, 1e9)?;
        within("object_max_kib", self.object_max_kib, 0.0, 1e12)?;
        within("cpu_speed", self.cpu_speed, 1e-6, 1e6)?;
        within("disk_speed", self.disk_speed, 1e-6, 1e6)?;
        within("time_factor", self.time_factor, 1e-6, 1e6)?;
        within("window", self.window.map(f64::from), 1.0, f64::from(1_u32 << 20))?;
        within("clients", self.clients.map(f64::from), 0.0, 1e7)?;
        within("report_every_ms", self.report_every_ms.map(|ms| ms as f64), 1.0, 1e9)
    }

    fn workload(&self) -> Result<WorkloadSpec, String> {
        match (&self.recipe, &self.trace) {
            (Some(recipe), None) => {
                let known = Recipe::by_name(recipe).map_err(|error| format!("'recipe': {error}"))?;
                let scale = self.scale.unwrap_or(1.0);
                if !(scale > 0.0 && scale <= 1.0) {
                    return Err(format!("'scale' = {scale} must be above 0 and at most 1"));
                }
                let hot =
                    (self.hot_share.or(self.hot_kib).is_some() || self.hot_targets.is_some()).then(|| {
                        let usual = known.hot.unwrap_or_default();
                        HotTargets {
                            share: self.hot_share.unwrap_or(usual.share),
                            targets: self.hot_targets.unwrap_or(usual.targets),
                            size: self.hot_kib.map_or(usual.size, |kib| Bytes((kib * KIB) as u64)),
                        }
                    });
                let (recipe, seed) = (recipe.clone(), self.seed.unwrap_or(1));
                let Self { locality, tilt, covering, .. } = *self;
                let fit = Fit { locality, tilt, covering, exponent: None };
                Ok(WorkloadSpec::Synthetic { recipe, seed, scale, requests: self.requests, hot, fit })
            }
            (None, Some(path)) => {
                let (path, requests) = (path.clone(), self.requests);
                Ok(WorkloadSpec::File { path, requests, shuffled: false })
            }
            _ => Err("a run needs 'recipe' or 'trace', one of the two".to_owned()),
        }
    }

    fn costs(&self) -> Costs {
        self.costs.unwrap_or(Costs::Lard98(larder_sim::cost::Lard98::default()))
    }

    fn scenario(&self) -> Result<Scenario, String> {
        let nodes = self.nodes.unwrap_or(8);
        if !(1..=65_534).contains(&nodes) {
            return Err(format!("'nodes' = {nodes} must be from 1 to 65534"));
        }
        let memory = self.memory_mib.unwrap_or(32.0);
        if !(memory > 0.0 && memory <= 1e9) {
            return Err(format!("'memory_mib' = {memory} must be above 0 and at most 10^9"));
        }
        let decay = self.replication_decay_s.unwrap_or(20.0);
        if !(0.0..=1e9).contains(&decay) {
            return Err(format!("'replication_decay_s' = {decay} must be from 0 to 10^9"));
        }
        let usual = Settings::default();
        let settings = Settings {
            policy: self.policy.map_or(PolicyKind::LardR, |policy| policy.0),
            seed: self.policy_seed.unwrap_or(1),
            t_low: self.t_low.unwrap_or(usual.t_low),
            t_high: self.t_high.unwrap_or(usual.t_high),
            replication_decay: Duration::from_secs_f64(decay),
            admission: match self.admission.unwrap_or(0) {
                0 => Admission::Derived,
                limit => Admission::Fixed(limit),
            },
            ..usual
        };
        settings.validate().map_err(|error| error.to_string())?;
        let node = SimNode {
            cpu_speed: self.cpu_speed.unwrap_or(1.0),
            disk_speed: self.disk_speed.unwrap_or(1.0),
            disks: self.disks.unwrap_or(1),
            ..SimNode::with_cache(Bytes((memory * KIB * KIB) as u64))
        };
        let scenario = Scenario {
            nodes: vec![node; nodes as usize],
            cache: self.memory.map_or(CacheChoice::Kind(CacheKind::Gds), |memory| memory.0.0),
            object_max: self.object_max_kib.map_or(Bytes(u64::MAX), |kib| Bytes((kib * KIB) as u64)),
            arrivals: self.arrivals(),
            costs: self.costs(),
            report_every: self.report_every_ms.map(Duration::from_millis),
            idle_below: self.idle_below.unwrap_or(10),
            switches: self.switch_group()?,
            ..Scenario::lard98(nodes as usize, settings)
        };
        scenario.check().map_err(|error| error.to_string())?;
        Ok(scenario)
    }

    /// Returns the group of switches, if the settings ask for one.
    fn switch_group(&self) -> Result<Option<SwitchGroup>, String> {
        let usual = SwitchesSettings::default();
        let Some(count) = self.switches.filter(|count| *count > 0) else {
            let lone =
                [self.switch_delay_ms.is_some(), self.switch_period_ms.is_some(), self.switch_step.is_some()];
            return if lone.contains(&true) && self.switches.is_none() {
                Err("'switch_delay_ms', 'switch_period_ms' and 'switch_step' need 'switches'".to_owned())
            } else {
                Ok(None)
            };
        };
        let ms = |key: &str, value: Option<f64>, usual: Duration| match value {
            Some(value) if !(0.0..=60_000.0).contains(&value) => {
                Err(format!("'{key}' = {value} must be from 0 to 60000"))
            }
            Some(value) => Ok(Duration::from_secs_f64(value / 1_000.0)),
            None => Ok(usual),
        };
        let period = ms("switch_period_ms", self.switch_period_ms, usual.period)?;
        let settings = SwitchesSettings {
            period,
            step: self.switch_step.unwrap_or(usual.step),
            all_every: usual.all_every.max(period),
            ..usual
        };
        let delay = ms("switch_delay_ms", self.switch_delay_ms, Duration::from_millis(1))?;
        Ok(Some(SwitchGroup { count, delay, settings }))
    }

    fn arrivals(&self) -> Arrivals {
        match self.arrivals.unwrap_or(ArrivalKind::Closed) {
            ArrivalKind::Closed => Arrivals::Closed { clients: self.clients.unwrap_or(0) },
            ArrivalKind::Open => Arrivals::Open { speed: self.time_factor.unwrap_or(1.0) },
            ArrivalKind::Subtraces => Arrivals::Subtraces { window: self.window.unwrap_or(64) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<RunSettings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn a_line_overrides_the_run() {
        let base = settings("recipe = 'rice-like'\nmemory_mib = 32\npolicy = 'wrr'").unwrap();
        let run = base
            .override_with(&settings("policy = 'lard-r'\nmemory = 'lru'").unwrap())
            .with("nodes", 4.0)
            .unwrap();
        let RunKind::Simulate(scenario) = run.run().unwrap().what else { unreachable!() };
        assert_eq!(scenario.settings.policy, PolicyKind::LardR);
        assert_eq!((scenario.nodes.len(), scenario.nodes[0].cache), (4, Bytes::mib(32)));
        assert_eq!(scenario.cache, CacheChoice::Kind(CacheKind::Lru));
    }

    #[test]
    fn wrong_values_are_named() {
        for (text, complaint) in [
            ("recipe = 'rice'", "'recipe': 'rice' is not a recipe"),
            ("recipe = 'rice-like'\nbound = true", "'policy' or 'bound = true'"),
            ("nodes = 0", "'nodes' = 0 must be from 1 to 65534"),
            ("memory_mib = -1", "'memory_mib' = -1 must be"),
            ("t_low = 70", "t_high = 65 is out of range"),
            ("warmup = 1", "'warmup' = 1 must be"),
            ("hot_share = 0.01", "'hot_share' = 0.01 must be from 0.05 to 0.5"),
            ("hot_kib = -1", "'hot_kib' = -1 must be"),
            ("time_factor = 0", "'time_factor' = 0 must be from 0.000001 to 1000000"),
            ("window = 2000000", "'window' = 2000000 must be from 1 to 1048576"),
        ] {
            let error = settings(text)
                .unwrap()
                .override_with(&settings("policy = 'wrr'").unwrap())
                .run()
                .unwrap_err();
            assert!(error.contains(complaint), "{text}: {error}");
        }
        let open = settings("recipe = 'rice-like'\nbound = true\narrivals = 'open'").unwrap();
        assert!(open.run().unwrap_err().contains("'bound' is known for closed arrivals"));
        for (text, complaint) in [
            ("policy = 'lrad'", "unknown policy 'lrad'"),
            ("memory = 'mru'", "'mru' is no memory"),
            ("memroy = 'lru'", "unknown field `memroy`"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.to_string().contains(complaint), "{text}: {error}");
        }
        let error = RunSettings::default().with("colour", 1.0).unwrap_err();
        assert!(error.contains("cannot run over 'colour'"), "{error}");
        assert!(RunSettings::default().with("nodes", 1.5).unwrap_err().contains("whole numbers"));
    }
}
