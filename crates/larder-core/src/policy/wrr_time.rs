//! `wrr-time`: round robin weighted by the mean service time that nodes report every T_gat (Casalicchio and
//! Colajanni,
//! WWW 2001, section 4.1: WRR, variant *time*).
//!
//! ```text
//! w(n) = weight(n) / service time(n), as of the last collection
//! ```
//!
//! The rest is in [`super::report_weighted`]. The paper gives no formula. This is the simplest one with which a node that takes twice as
//! long gets half the requests. A report of a period in which no request ended has no service time. The node then counts as the
//! mean of the nodes that have one, like a node that has not reported.
//!
//! Parameters: `t_gat` (1 ms to 1 h, 10 s), `report_age_max`.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::report_weighted::ReportWeightedRoundRobin;
use crate::nodes::LoadReport;

/// The description of `wrr-time`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_request("wrr-time", "each node in turn, weighted by the service time it reports");

/// Creates the policy.
pub(super) fn wrr_time(common: &CommonSettings) -> ReportWeightedRoundRobin {
    ReportWeightedRoundRobin::new(common, quality)
}

/// Returns 1 / service time; `None` if the report lacks it.
fn quality(report: &LoadReport) -> Option<u64> {
    (1_u64 << 32).checked_div(u64::from(report.service_us?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::policy::PolicyKind;
    use crate::policy::policy_tests::turns::{dispatcher, send, shares};
    use crate::time::Time;

    fn takes(service_us: u32) -> LoadReport {
        LoadReport { service_us: Some(service_us), processes: Some(service_us % 7), ..LoadReport::default() }
    }

    #[test]
    fn traffic_is_inverse_to_service_time() {
        let dispatcher = dispatcher(PolicyKind::WrrTime, &["a", "b"]);
        dispatcher.report(Time::ZERO, NodeId(0), takes(30_000));
        dispatcher.report(Time::ZERO, NodeId(1), takes(10_000));
        assert_eq!(shares(&dispatcher, Time::ZERO, 40), [10, 30]);
    }

    #[test]
    fn period_without_an_end_has_no_service_time() {
        let dispatcher = dispatcher(PolicyKind::WrrTime, &["a", "b", "c"]);
        for (node, time) in [(0, 10_000), (1, 0), (2, 30_000)] {
            dispatcher.report(Time::ZERO, NodeId(node), takes(time));
        }
        let nodes = send(&dispatcher, Time::ZERO, 60);
        let counts = [0, 1, 2].map(|node| nodes.iter().filter(|at| **at == node).count());
        assert_eq!(counts, [30, 20, 10], "3 : (3 + 1) / 2 : 1");
    }
}
