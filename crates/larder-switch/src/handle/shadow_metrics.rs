//! Metrics of shadow mode.

use super::metrics::{count, describe};
use super::shadow::{PolicyShadow, ShadowFigures};
use super::status::SwitchHandle;
use crate::metrics::table;
use crate::shared::Shared;
use larder_edge::Metric;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt::Error;
use std::sync::Arc;

/// Selector of one figure of a policy.
type FigureGetter = fn(&ShadowFigures) -> Option<f64>;

/// Encodes the recent figures of other policies; nothing if shadow mode is off.
pub(super) fn encode(shared: &Arc<Shared>, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    let status = SwitchHandle::new(shared.clone()).shadow();
    let figures: [(&Metric, FigureGetter); 3] = [
        (&table::SHADOW_HIT_RATIO, |figures| figures.hit_ratio),
        (&table::SHADOW_IMBALANCE, |figures| figures.imbalance),
        (&table::SHADOW_LOAD_IMBALANCE, |figures| figures.load_imbalance),
    ];
    for (metric, figure) in figures {
        let mut family = describe(encoder, metric)?;
        for PolicyShadow { policy, lately, .. } in status.iter().flat_map(|status| &status.policies) {
            if let Some(value) = figure(lately) {
                family.encode_family(&[("policy", policy.as_str())])?.encode_gauge(&value)?;
            }
        }
    }
    let mut live = describe(encoder, &table::SHADOW_LIVE_HIT_RATIO)?;
    if let Some((policy, value)) =
        status.as_ref().and_then(|status| Some((&status.live.policy, status.live.lately.hit_ratio?)))
    {
        live.encode_family(&[("policy", policy.as_str())])?.encode_gauge(&value)?;
    }
    let mut requests = describe(encoder, &table::SHADOW_REQUESTS)?;
    let counts = status.iter().flat_map(|s| [("looked_at", s.looked_at), ("dropped", s.dropped)]);
    for (outcome, value) in counts {
        count(&mut requests, &[("outcome", outcome)], value)?;
    }
    let mut rate = describe(encoder, &table::SHADOW_ONE_IN)?;
    if let Some(status) = &status {
        rate.encode_gauge(&status.one_in)?;
    }
    let mut state = describe(encoder, &table::SHADOW_STATE)?;
    if let Some(status) = &status {
        state.encode_gauge(&(status.state_mb * 1e6))?;
    }
    Ok(())
}
