//! `[switch.shadow]`.

use larder_core::cache::CacheKind;
use larder_core::shadow::{Shadow, ShadowSettings};
use larder_core::{Bytes, PolicyKind};
use larder_switch::ShadowConfig;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::{Size, Texts};
use crate::config::values::word;

keys! {
    /// `[switch.shadow]`.
    table ShadowSection;

    /// Policies that run in shadow mode beside the live one: a list of names, or "all". []: off. wrr-num, wrr-time,
    /// lard-util and hacc are not possible, because they use reported loads. ward and part need the table of a live
    /// ward or part.
    policies: Texts, example ["lard-r", "bounded", "least-conn"];
    /// Assumed size of each node's cache. Unset: `cache` of the node in the config, else the size that a larder node
    /// reports.
    memory: Option<Size>, example "8GiB";
    /// Replacement policy of the nodes' caches.
    #[schemars(extend("enum" = CacheKind::ALL.map(CacheKind::name)))]
    cache: String = CacheKind::default().name().to_owned(), when "policies";
    /// Largest object that is stored. Unset: no limit.
    object_max: Option<Size>, example "64MiB";
    /// Sampling: one in this number of targets is simulated. It doubles when a policy's nodes would store more than
    /// objects_max.
    one_in: u32 = 1, range "a power of two from 1 to 65536", when "policies";
    /// Number of objects that one policy's nodes store together, about 130 bytes each: 65536 take 9 MB per policy.
    objects_max: usize = 1 << 16, range "1024 to 100000000", when "policies";
}

/// Validates shadow mode; `None` if it is off. `live` is the policy of the default route.
pub(crate) fn shadow(raw: &ShadowSection, live: PolicyKind) -> Result<Option<ShadowConfig>, Fault> {
    if raw.policies.0.is_empty() {
        return Ok(None);
    }
    let settings = ShadowSettings {
        policies: policies(&raw.policies.0, live)?,
        cache: word("switch.shadow.cache", &raw.cache, &CacheKind::ALL.map(CacheKind::name))?,
        object_max: raw.object_max.map_or(Bytes(u64::MAX), |size| size.0),
        objects_max: raw.objects_max,
        ..ShadowSettings::default()
    };
    if raw.memory.is_some_and(|size| size.0 == Bytes::ZERO) {
        return Err(Fault::new(
            "switch.shadow.memory",
            "0B is too little: a cache without memory has no hits",
        )
        .hint("write a size such as \"8GiB\", or leave it out"));
    }
    let memory = raw.memory.map(|size| size.0);
    Ok(Some(ShadowConfig { one_in: raw.one_in, memory, ..ShadowConfig::new(settings) }))
}

fn policies(names: &[String], live: PolicyKind) -> Result<Vec<PolicyKind>, Fault> {
    let by_table = |policy: PolicyKind| matches!(policy, PolicyKind::Ward | PolicyKind::Part);
    let has_table = by_table(live);
    let runs = |policy: PolicyKind| Shadow::can_run(policy) && (has_table || !by_table(policy));
    if names == ["all"] {
        return Ok(PolicyKind::ALL.into_iter().filter(|policy| runs(*policy)).collect());
    }
    let mut policies = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let key = format!("switch.shadow.policies[{i}]");
        let policy: PolicyKind = word(&key, name, &PolicyKind::ALL.map(PolicyKind::name))?;
        if !Shadow::can_run(policy) {
            let what = format!("'{policy}' uses load reports, which do not exist in shadow mode");
            return Err(Fault::new(key, what).hint("leave it out; `larder plan` evaluates it from a log"));
        }
        if !runs(policy) {
            let what = format!("'{policy}' uses a routing table, and the switch has none");
            return Err(Fault::new(key, what).hint("leave it out; `larder plan` evaluates it from a log"));
        }
        if policies.contains(&policy) {
            return Err(Fault::new(key, format!("'{policy}' is named twice")).hint("leave one out"));
        }
        policies.push(policy);
    }
    Ok(policies)
}
