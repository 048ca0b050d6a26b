//! `wrr-num`: round robin weighted by the number of active processes that nodes report every T_gat (Casalicchio and
//! Colajanni, WWW 2001, section 4.1: WRR, variant *num*).
//!
//! ```text
//! w(n) = weight(n) / (1 + processes(n)), as of the last collection
//! ```
//!
//! The rest is in [`super::report_weighted`]. The paper gives no formula. This is the simplest one with which a node with twice the work
//! gets half the requests; adding 1 keeps an idle node's share finite. It does not use the dispatcher's own count of requests in
//! flight, which is never stale: [`wrr`](super::wrr) does.
//!
//! Parameters: `t_gat` (1 ms to 1 h, 10 s; the paper finds small values best, and badly chosen ones worse than plain round
//! robin), `report_age_max`. A node that has not reported counts as the mean of the nodes that have.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::report_weighted::ReportWeightedRoundRobin;
use crate::nodes::LoadReport;

/// The description of `wrr-num`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_request(
    "wrr-num",
    "each node in turn, weighted by the active processes it reports",
);

/// Creates the policy.
pub(super) fn wrr_num(common: &CommonSettings) -> ReportWeightedRoundRobin {
    ReportWeightedRoundRobin::new(common, quality)
}

/// Returns 1 / (1 + processes); `None` if the report lacks the number of processes.
fn quality(report: &LoadReport) -> Option<u64> {
    Some((1 << 32) / (1 + u64::from(report.processes?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::policy::PolicyKind;
    use crate::policy::policy_tests::turns::{dispatcher, shares};
    use crate::time::Time;

    #[test]
    fn traffic_is_inverse_to_processes() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b"]);
        for (node, processes) in [(0, 3), (1, 11)] {
            // Service times are ignored.
            let report = LoadReport {
                processes: Some(processes),
                service_us: Some(1 + u32::from(node) * 9),
                ..LoadReport::default()
            };
            dispatcher.report(Time::ZERO, NodeId(node), report);
        }
        assert_eq!(shares(&dispatcher, Time::ZERO, 40), [30, 10], "1/4 against 1/12");
    }
}
