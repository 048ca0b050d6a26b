//! The costs that ward-analysis compares: a handoff, and a byte from disk.
//!
//! [`measure_ward_costs`] measures both with the cost model. A single client requests a file of the mean size twice.
//! The difference of the two delays is the disk's time. If the model states no handoff, its cost is the WARD
//! paper's share of a cached request: 276 us of 1 ms (section 3.2).

use larder_core::dispatch::{Admission, Settings};
use larder_core::{Bytes, PolicyKind, TargetId};
use larder_trace::ward::WardCosts;

use crate::SimError;
use crate::cost::Costs;
use crate::engine::simulate;
use crate::scenario::{Scenario, SimNode};
use crate::source::Arrivals;
use crate::workload::{Item, Workload};

/// The cost of a handoff relative to a request for a cached file, in the WARD paper: 276 us and 1 ms.
const HANDOFF_SHARE: f64 = 0.276;

/// Measures the costs for ward-analysis with a cost model, for items with this mean size in bytes.
///
/// # Errors
/// Returns an error if the model is out of range.
pub fn measure_ward_costs(costs: &Costs, mean_bytes: u64) -> Result<WardCosts, SimError> {
    let bytes = mean_bytes.max(1);
    let workload =
        Workload { items: vec![Item::file(TargetId(0), bytes)], requests: vec![0, 0], ..Workload::default() };
    let settings =
        Settings { policy: PolicyKind::Rr, admission: Admission::Unlimited, ..Settings::default() };
    let scenario = Scenario {
        nodes: vec![SimNode::with_cache(Bytes(bytes.saturating_mul(2).saturating_add(1 << 20)))],
        arrivals: Arrivals::Closed { clients: 1 },
        costs: *costs,
        ..Scenario::lard98(1, settings)
    };
    let delay = simulate(&workload, &scenario)?.delay;
    let warm_us = (2.0 * delay.mean_s - delay.max_s) * 1e6;
    let forward_us = match costs {
        Costs::Ward01(model) => model.forward_us,
        _ => warm_us * HANDOFF_SHARE,
    };
    let disk_us_per_byte = ((delay.max_s * 1e6 - warm_us) / bytes as f64).max(0.0);
    Ok(WardCosts { forward_us, disk_us_per_byte, origin: "measured with the cost model".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Lard98, Ward01};

    #[test]
    fn costs_are_those_of_the_model() {
        // A file of 8 KB in the LARD paper takes 28,820 us of disk and 930 us from memory.
        let lard =
            measure_ward_costs(&Costs::Lard98(Lard98::default()), 8 << 10).expect("the model is valid");
        assert!((lard.disk_us_per_byte - 28_820.0 / 8_192.0).abs() < 1e-3, "{lard:?}");
        assert!((lard.forward_us - 0.276 * 930.0).abs() < 0.1, "{lard:?}");
        let ward = measure_ward_costs(&Costs::Ward01(Ward01::default()), 14_848).expect("the model is valid");
        assert!((ward.disk_us_per_byte - 0.606).abs() < 0.001 && ward.forward_us == 276.0, "{ward:?}");
    }
}
