//! The policy of a cluster, and its equivalent in the simulator.
//!
//! | Envoy | equivalent |
//! |---|---|
//! | `ROUND_ROBIN` | `rr` |
//! | `RANDOM` | `random` |
//! | `LEAST_REQUEST` | `p2c`; `least-conn` with different weights or with a full scan |
//! | `RING_HASH` | `hash` |
//! | `MAGLEV` | `maglev` |
//! | either of them with `hash_balance_factor` | `bounded-jump` with this factor |
//! | either of them without a hash of the target | `random` |
//! | larder's module | its policy |

use larder_core::PolicyKind;
use larder_core::dispatch::Settings;
use larder_core::policy::{MaglevSettings, PolicySettings};
use serde_json::Value;

use super::clusters::HostCount;
use super::routes::{HashKey, Routes, read_hash_key};
use crate::proxy::cluster::PolicyInUse;
use crate::proxy::field::{Field, KeyError, shown};

/// The names of `LbPolicy`.
const POLICIES: [(u64, &str); 7] = [
    (0, "ROUND_ROBIN"),
    (1, "LEAST_REQUEST"),
    (2, "RING_HASH"),
    (3, "RANDOM"),
    (5, "MAGLEV"),
    (6, "CLUSTER_PROVIDED"),
    (7, "LOAD_BALANCING_POLICY_CONFIG"),
];

/// The policies that Envoy itself has, with their names in its config.
pub(in crate::proxy) const OWN_POLICIES: [(PolicyKind, &str); 7] = [
    (PolicyKind::Rr, "ROUND_ROBIN"),
    (PolicyKind::Random, "RANDOM"),
    (PolicyKind::P2c, "LEAST_REQUEST"),
    (PolicyKind::LeastConn, "LEAST_REQUEST with FULL_SCAN"),
    (PolicyKind::Hash, "RING_HASH"),
    (PolicyKind::Maglev, "MAGLEV"),
    (PolicyKind::BoundedJump, "RING_HASH or MAGLEV with hash_balance_factor"),
];

/// Policies that contain another policy, with the key of that policy.
const WRAPPERS: [(&str, &str); 3] = [
    ("SUBSET", "subset_lb_policy"),
    ("OVERRIDE_HOST", "fallback_policy"),
    ("WRR_LOCALITY", "endpoint_picking_policy"),
];

/// The deepest nesting of policies.
const NESTING_MAX: usize = 4;

/// The bounds in 1/1000 that the simulator accepts.
const FACTORS_PERMILLE: core::ops::RangeInclusive<u64> = 1_010..=100_000;

/// The policy as the config has it.
pub(super) struct Used<'v> {
    /// The name in upper case.
    name: String,
    /// The key that has the policy.
    key: Field<'v>,
    /// The parameters of the policy.
    parameters: Option<Field<'v>>,
    /// The parameters of policies that hash.
    hashing: Option<Field<'v>>,
    /// The policies around this one, from the outermost.
    pub(super) wrappers: Vec<String>,
}

impl<'v> Used<'v> {
    /// Finds the policy of a cluster.
    pub(super) fn read(cluster: &Field<'v>) -> Result<Self, KeyError> {
        if let Some(policy) = cluster.get("load_balancing_policy")? {
            return Self::read_extension(&policy, Vec::new());
        }
        let name = cluster.choice("lb_policy", &POLICIES)?.unwrap_or_else(|| "ROUND_ROBIN".to_owned());
        let parameters = cluster.get(&format!("{}_lb_config", name.to_ascii_lowercase()))?;
        let hashing = cluster.find(&["common_lb_config", "consistent_hashing_lb_config"])?;
        let key = cluster.get("lb_policy")?.unwrap_or_else(|| cluster.clone());
        Ok(Self { name, key, parameters, hashing, wrappers: Vec::new() })
    }

    /// Reads a policy that is an extension. Envoy takes the first of the list that it has.
    fn read_extension(policy: &Field<'v>, mut wrappers: Vec<String>) -> Result<Self, KeyError> {
        let list = policy.list("policies")?;
        let first = list.into_iter().next();
        let key = first.ok_or_else(|| policy.error("there is no policy", "add the key policies"))?;
        let extension = key.get("typed_extension_config")?;
        let extension =
            extension.ok_or_else(|| key.error("there is no policy", "add typed_extension_config"))?;
        let config = extension.get("typed_config")?;
        let mut kind = config.as_ref().map_or(Ok(None), |config| config.text("@type"))?;
        let mut parameters = config.clone();
        if let Some(config) = config.filter(|_| kind.is_some_and(|kind| kind.ends_with(".TypedStruct"))) {
            (kind, parameters) = (config.text("type_url")?, config.get("value")?);
        }
        let name = policy_name(kind, extension.text("name")?);
        let inner_key = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name).map(|(_, inner)| *inner);
        if let Some(inner_key) = inner_key {
            let inner = parameters.map_or(Ok(None), |parameters| parameters.get(inner_key))?;
            let Some(inner) = inner.filter(|_| wrappers.len() < NESTING_MAX) else {
                return Err(key.error(format!("{name} contains no policy"), format!("add {inner_key}")));
            };
            wrappers.push(name);
            return Self::read_extension(&inner, wrappers);
        }
        let hashing = match &parameters {
            Some(parameters) => parameters.get("consistent_hashing_lb_config")?,
            None => None,
        };
        Ok(Self { name, key, parameters, hashing, wrappers })
    }

    /// Returns the parameters of the policy.
    pub(super) const fn parameters(&self) -> Option<&Field<'v>> {
        self.parameters.as_ref()
    }

    /// Returns the equivalent policy.
    pub(super) fn equivalent(&self, hosts: &HostCount, routes: &Routes) -> Result<PolicyInUse, KeyError> {
        match self.name.as_str() {
            "ROUND_ROBIN" => Ok(self.plain(PolicyKind::Rr)),
            "RANDOM" => Ok(self.plain(PolicyKind::Random)),
            "LEAST_REQUEST" => self.least_request(hosts),
            "RING_HASH" | "MAGLEV" => self.hashed(routes),
            "DYNAMIC_MODULES" => self.module(),
            _ => Err(self.key.error(
                format!("the simulator has no equivalent of {}", shown(&self.name)),
                "write the most similar of ROUND_ROBIN, LEAST_REQUEST, RANDOM, RING_HASH and MAGLEV into a copy of the file",
            )),
        }
    }

    fn plain(&self, kind: PolicyKind) -> PolicyInUse {
        PolicyInUse::new(&self.name, kind)
    }

    fn least_request(&self, hosts: &HostCount) -> Result<PolicyInUse, KeyError> {
        let Some(parameters) = &self.parameters else {
            return Ok(self.plain(if hosts.are_weighted() {
                PolicyKind::LeastConn
            } else {
                PolicyKind::P2c
            }));
        };
        let choices = parameters.number("choice_count")?.unwrap_or(2);
        let method = parameters.choice("selection_method", &[(0, "N_CHOICES"), (1, "FULL_SCAN")])?;
        let sees_all = method.as_deref() == Some("FULL_SCAN") || hosts.are_weighted();
        let mut used = self.plain(if sees_all { PolicyKind::LeastConn } else { PolicyKind::P2c });
        if choices != 2 && !sees_all {
            used.written = format!("{} with choice_count {choices}", self.name);
            used.notes.push(format!("p2c compares 2 hosts, and Envoy {choices}."));
        }
        Ok(used)
    }

    fn hashed(&self, routes: &Routes) -> Result<PolicyInUse, KeyError> {
        let mut used = self.unbounded_hash()?;
        if let Some((factor, path)) = self.balance_factor()? {
            if factor < 100 {
                return Err(KeyError::new(path, format!("{factor} is below 100"), "write 100 or more"));
            }
            let permille =
                factor.saturating_mul(10).clamp(*FACTORS_PERMILLE.start(), *FACTORS_PERMILLE.end());
            used = self.plain(PolicyKind::BoundedJump);
            used.written = format!("{} with hash_balance_factor {factor}", self.name);
            used.factor_permille = u32::try_from(permille).ok();
            used.notes.push("Envoy lets a host have one request more than the simulator's bound.".to_owned());
            if permille != factor.saturating_mul(10) {
                used.notes.push(format!(
                    "The simulator's bound is {:.2} times the mean load.",
                    permille as f64 / 1e3
                ));
            }
        }
        match self.hash_key(routes)? {
            HashKey::Target(list) if list == "the header :path" => {}
            HashKey::Target(list) => used.notes.push(format!("Envoy hashes {list}; the plan hashes the path with its query.")),
            HashKey::Unknown => used.notes.push(
                "The file has no route to the cluster; the plan assumes that Envoy hashes the path with its query."
                    .to_owned(),
            ),
            HashKey::Absent => {
                used = self.plain(PolicyKind::Random);
                used.notes.push("No route to the cluster has hash_policy, so Envoy draws the hosts at random.".to_owned());
            }
            HashKey::Client(list) => {
                used = self.plain(PolicyKind::Random);
                used.notes.push(format!("Envoy hashes {list}, which is random for a target."));
            }
        }
        Ok(used)
    }

    fn unbounded_hash(&self) -> Result<PolicyInUse, KeyError> {
        if self.name == "RING_HASH" {
            let mut used = self.plain(PolicyKind::Hash);
            used.notes.push("The simulator's hash gives all hosts equal shares of the targets; Envoy's ring is less even.".to_owned());
            return Ok(used);
        }
        let mut used = self.plain(PolicyKind::Maglev);
        let size = self.parameters.as_ref().map_or(Ok(None), |parameters| parameters.number("table_size"))?;
        // Envoy accepts only primes, as the simulator does.
        used.table_size = size.and_then(|size| u32::try_from(size).ok()).filter(|size| is_table_size(*size));
        Ok(used)
    }

    /// Returns the balance factor in percent, with its key.
    fn balance_factor(&self) -> Result<Option<(u64, String)>, KeyError> {
        const KEY: &str = "hash_balance_factor";
        for field in [&self.hashing, &self.parameters].into_iter().flatten() {
            if let Some(factor) = field.number(KEY)?.filter(|factor| *factor > 0) {
                return Ok(Some((factor, field.path_of(KEY))));
            }
        }
        Ok(None)
    }

    /// Returns the key that is hashed. The list of the policy has precedence over the routes.
    fn hash_key(&self, routes: &Routes) -> Result<HashKey, KeyError> {
        let own = self.hashing.as_ref().map_or(Ok(HashKey::Absent), read_hash_key)?;
        Ok(if own == HashKey::Absent { routes.hash_key.clone() } else { own })
    }

    /// Returns the policy of larder's module.
    fn module(&self) -> Result<PolicyInUse, KeyError> {
        let parameters = self.parameters.clone().unwrap_or_else(|| self.key.clone());
        let module = parameters.get("dynamic_module_config")?;
        let module = module.map_or(Ok(None), |module| module.text("name"))?.unwrap_or_default();
        if module != super::lines::MODULE {
            return Err(self.key.error(
                format!("the simulator has no equivalent of the module '{}'", shown(module)),
                "write the most similar of Envoy's policies into a copy of the file",
            ));
        }
        let config = parameters.find(&["lb_policy_config", "value"])?;
        let value = config.as_ref().map_or(Ok(Value::Null), Field::parsed)?;
        let config = config.unwrap_or_else(|| parameters.clone()).with_value(&value);
        let name = config.text("policy")?.unwrap_or("lard-r");
        let kind = name.parse::<PolicyKind>();
        let kind = kind.map_err(|error| parameters.error(error.to_string(), "write a policy of larder"))?;
        let mut used = PolicyInUse::new(format!("larder's policy {kind}"), kind);
        let others: Vec<String> =
            config.names().into_iter().filter(|name| *name != "policy").map(shown).collect();
        if !others.is_empty() {
            used.notes.push(format!(
                "The plan does not read the other keys of its config ({}) and uses their defaults.",
                others.join(", ")
            ));
        }
        Ok(used)
    }
}

/// Returns the name of an extension in upper case. Envoy finds an extension by the type of its config, and by its
/// name only if the type is unknown.
fn policy_name(kind: Option<&str>, name: Option<&str>) -> String {
    let by_kind = kind.and_then(|kind| kind.split_once("load_balancing_policies."));
    let name = match by_kind {
        Some((_, rest)) => rest.split('.').next().unwrap_or(rest),
        None => name.and_then(|name| name.rsplit('.').next()).unwrap_or_default(),
    };
    name.to_ascii_uppercase()
}

/// Returns whether the simulator has a table of this size.
fn is_table_size(size: u32) -> bool {
    let policies = PolicySettings { maglev: MaglevSettings { size }, ..PolicySettings::default() };
    Settings { policies, ..Settings::default() }.validate().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::policy::BoundedSettings;

    #[test]
    fn the_simulator_accepts_the_factors() {
        for permille in [FACTORS_PERMILLE.start(), FACTORS_PERMILLE.end()] {
            let bounded = BoundedSettings {
                factor_permille: u32::try_from(*permille).unwrap(),
                ..BoundedSettings::default()
            };
            let policies = PolicySettings { bounded, ..PolicySettings::default() };
            assert!(Settings { policies, ..Settings::default() }.validate().is_ok());
        }
    }

    #[test]
    fn the_type_of_the_config_names_the_policy() {
        let kind = "type.googleapis.com/envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash";
        assert_eq!(policy_name(Some(kind), Some("mine")), "RING_HASH");
        assert_eq!(policy_name(None, Some("envoy.load_balancing_policies.maglev")), "MAGLEV");
        assert_eq!(policy_name(None, None), "");
    }
}
