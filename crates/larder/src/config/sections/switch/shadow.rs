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

    /// Policies to run in the shadow beside the one that runs live: a list of names, or "all". Empty: shadow mode is off. Not
    /// wrr-num, wrr-time, lard-util and hacc, which go by what nodes report of loads that a shadow does not put on them; ward
    /// and part only where they run live, by whose table they go.
    policies: Texts, example ["lard-r", "bounded", "least-conn"];
    /// What each node's memory is taken for. Unset: the node's own `cache` in the config, else what a larder node says of
    /// itself, which is asked for.
    memory: Option<Size>, example "8GiB";
    /// How nodes choose what leaves their memory.
    #[schemars(extend("enum" = CacheKind::ALL.map(CacheKind::name)))]
    cache: String = CacheKind::default().name().to_owned(), when "policies";
    /// Objects above that are not kept in memory. Unset: no limit.
    object_max: Option<Size>, example "64MiB";
    /// Of so many targets one is looked at, from the start. It doubles whenever a policy's nodes would hold more than
    /// `objects_max`.
    one_in: u32 = 1, range "a power of two from 1 to 65536", when "policies";
    /// Objects that one policy's nodes hold together in the shadow, about 130 bytes each with their target: 65536 take 9 MB for
    /// each policy.
    objects_max: usize = 1 << 16, range "1024 to 100000000", when "policies";
}

/// Shadow mode, if any policy is named. `live` is the default route's policy.
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
