//! `[switch.shadow]`, checked.

use larder_core::cache::CacheKind;
use larder_core::shadow::{Shadow, ShadowSettings};
use larder_core::{Bytes, PolicyKind};
use larder_front::ShadowConfig;

use super::error::Fault;
use super::raw_shadow::RawShadow;
use super::valid::{in_range, word};

/// Shadow mode, if any policy is named. `live` is the default route's policy.
pub(super) fn shadow(raw: &RawShadow, live: PolicyKind) -> Result<Option<ShadowConfig>, Fault> {
    if raw.policies.0.is_empty() {
        return Ok(None);
    }
    if !(raw.one_in.is_power_of_two() && raw.one_in <= 1 << 16) {
        let what = format!("{} is out of range", raw.one_in);
        return Err(Fault::new("switch.shadow.one_in", what).hint("a power of two from 1 to 65536"));
    }
    let settings = ShadowSettings {
        policies: policies(&raw.policies.0, live)?,
        cache: word("switch.shadow.cache", &raw.cache, &CacheKind::ALL.map(CacheKind::name))?,
        object_max: raw.object_max.map_or(Bytes(u64::MAX), |size| size.0),
        objects_max: in_range("switch.shadow.objects_max", raw.objects_max, 1_024, 100_000_000)?,
        ..ShadowSettings::default()
    };
    if raw.memory.is_some_and(|size| size.0 == Bytes::ZERO) {
        return Err(Fault::new("switch.shadow.memory", "a node without memory hits nothing")
            .hint("a size such as \"8GiB\", or leave it out"));
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
            let what = format!(
                "'{policy}' goes by what nodes report, and none reports a load that it does not have"
            );
            return Err(Fault::new(key, what).hint("leave it out; `larder plan` answers for it from a log"));
        }
        if !runs(policy) {
            let what = format!("'{policy}' goes by a routing table, and the switch has none");
            return Err(Fault::new(key, what).hint("leave it out; `larder plan` answers for it from a log"));
        }
        if policies.contains(&policy) {
            return Err(Fault::new(key, format!("'{policy}' is named twice")).hint("leave one out"));
        }
        policies.push(policy);
    }
    Ok(policies)
}
