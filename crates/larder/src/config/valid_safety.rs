//! `[switch.long_lived]`, `[switch.clients]`, `[switch.retries]`, `[switch.outliers]`, `switch.user`, checked.

use std::time::Duration;

use larder_front::{
    ClientLimits, HandoffConfig, LongLivedConfig, MechanismSetting, OutlierConfig, RetryConfig,
};

use super::error::Fault;
use super::raw_safety::{LongLivedKind, RawClients, RawLongLived, RawOutliers, RawRetries};
use super::text::Span;
use super::valid::span;

/// Which requests are long-lived; the range of their time is the front's to check.
pub(super) fn long_lived(raw: &RawLongLived) -> Result<LongLivedConfig, Fault> {
    let key = "switch.long_lived.max_per_node";
    if raw.max_per_node > 1_000_000 {
        return Err(Fault::new(key, format!("{} is too many", raw.max_per_node)).hint("0 to 1000000"));
    }
    let has = |kind| raw.kinds.contains(&kind);
    let after = match raw.after {
        Span(Duration::ZERO) => None,
        after => Some(span("switch.long_lived.after", after)?),
    };
    Ok(LongLivedConfig {
        upgrades: has(LongLivedKind::Upgrade),
        event_streams: has(LongLivedKind::EventStream),
        grpc: has(LongLivedKind::Grpc),
        after,
    })
}

/// What one client may take; ranges are the front's to check.
pub(super) fn clients(raw: &RawClients, handoff: &HandoffConfig) -> Result<ClientLimits, Fault> {
    let key = "switch.clients.header";
    let header = raw.header.as_ref().map(|name| {
        name.to_ascii_lowercase().parse().map_err(|_| {
            Fault::new(key, format!("'{}' is no name of a field", name.escape_debug()))
                .hint("letters, digits and '-', such as \"x-api-key\"")
        })
    });
    let limits = ClientLimits {
        rate_per_s: raw.rate_per_s,
        burst: raw.burst,
        connections_max: raw.connections_max,
        prefix_v4: raw.prefix_v4,
        prefix_v6: raw.prefix_v6,
        header: header.transpose()?,
        clients_max: raw.clients_max,
    };
    if limits.header.is_some() && limits.rate_per_s == 0 {
        return Err(
            Fault::new(key, "is not used: no rate is limited").hint("write rate_per_s in [switch.clients]")
        );
    }
    if limits.is_on() && handoff.setting != MechanismSetting::Relay {
        let what = "contradicts switch.handoff: requests on connections that are handed over are not seen";
        return Err(Fault::new("switch.clients", what)
            .hint("leave it out, or write mechanism = \"relay\" in [switch.handoff]"));
    }
    Ok(limits)
}

pub(super) fn retries(raw: &RawRetries) -> RetryConfig {
    RetryConfig { share: raw.share, min_per_s: raw.min_per_s }
}

pub(super) fn outliers(raw: &RawOutliers) -> Result<OutlierConfig, Fault> {
    Ok(OutlierConfig {
        consecutive: raw.consecutive,
        failures_above: raw.failures_above,
        requests_min: raw.requests_min,
        interval: span("switch.outliers.interval", raw.interval)?,
        time: span("switch.outliers.time", raw.time)?,
        time_max: span("switch.outliers.time_max", raw.time_max)?,
        ejected_max: raw.ejected_max,
    })
}
