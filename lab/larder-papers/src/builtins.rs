//! The list of all builtins.

use super::builtin::Builtin;
use super::{cap, cap_vector, cooperation, hacc, lard, peers, press, ward};

/// All builtins.
const ALL: &[&dyn Builtin] = &[
    &lard::Coverage,
    &press::Model,
    &press::Peaks,
    &cooperation::PRESS_CLUSTER,
    &cooperation::WARD_CLUSTER,
    &cooperation::WardDays,
    &ward::Clusters,
    &ward::Core,
    &ward::StrategySweep,
    &ward::Days,
    &ward::Change,
    &cap_vector::Vector,
    &cap::Pages,
    &cap::GatherPeriods,
    &cap::Thresholds,
    &cap::Sensitivity,
    &hacc::HaccBench,
    &hacc::Router,
    &peers::EqualP99,
];

/// Returns the builtin of that name, or an error that lists the names.
pub(super) fn by_name(name: &str) -> Result<&'static dyn Builtin, String> {
    let found = ALL.iter().find(|builtin| builtin.name() == name);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|builtin| builtin.name()).collect();
        format!("there is no builtin '{name}': use one of {}", names.join(", "))
    })
}
