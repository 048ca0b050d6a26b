//! `[switch.signals]`, checked, and held against what the policies in use read.

use larder_core::nodes::Signal;
use larder_front::{CacheSignalsConfig, SignalSource, SignalsConfig};

use super::error::Fault;
use super::raw_signals::RawSignals;
use super::text::Span;
use super::valid::word;

/// The signals. Ranges are checked by the front.
pub(super) fn signals(raw: &RawSignals) -> Result<SignalsConfig, Fault> {
    let key = |name: &str| format!("switch.signals.{name}");
    let known = SignalSource::ALL.map(SignalSource::name);
    let source = raw.source.as_deref().map(|name| word(&key("source"), name, &known)).transpose()?;
    if source == Some(SignalSource::Orca) {
        for (name, given) in [("path", raw.path.is_some()), ("port", raw.port.is_some())] {
            if given {
                let what = "orca comes with the nodes' replies: there is no page to ask for";
                return Err(Fault::new(key(name), what).hint("leave it out"));
            }
        }
    }
    if !raw.disks.is_empty() && source != Some(SignalSource::NodeExporter) {
        let what = "only node-exporter tells disks apart";
        return Err(Fault::new(key("disks"), what).hint("set source = \"node-exporter\", or leave disks out"));
    }
    if raw.missing_after < raw.period {
        let what = format!(
            "{} is less than the period of {}: no report would last until the next",
            raw.missing_after, raw.period
        );
        let most = Span(10 * raw.period.0);
        return Err(Fault::new(key("missing_after"), what).hint(format!("write missing_after = \"{most}\"")));
    }
    let cache = &raw.cache;
    Ok(SignalsConfig {
        source,
        // Read when the role starts.
        secret: None,
        period: raw.period.0,
        timeout: raw.timeout.0,
        missing_after: raw.missing_after.0,
        path: raw.path.clone(),
        port: raw.port,
        counters: raw.counters.clone(),
        disks: raw.disks.clone(),
        body_max: usize::try_from(raw.page_max.0.get()).unwrap_or(usize::MAX),
        cache: CacheSignalsConfig {
            follow: cache.follow,
            path: cache.path.clone(),
            silence: cache.silence.0,
            retry_max: cache.retry_max.0,
            targets_max: cache.targets_max,
        },
    })
}

/// Whether a source can tell a signal, with so many counters of the application named.
pub(super) fn provides(source: SignalSource, signal: Signal, counters: usize) -> bool {
    match (source, signal) {
        (SignalSource::Off, _) => false,
        (_, Signal::App(which)) => usize::from(which) < counters,
        (SignalSource::Larder, _) => true,
        (SignalSource::NodeExporter, signal) => signal != Signal::ServiceTime,
        (SignalSource::Orca, signal) => matches!(signal, Signal::Cpu | Signal::Disk | Signal::Memory),
    }
}
