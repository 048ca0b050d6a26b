//! `[switch.signals]`.

use larder_core::Bytes;
use larder_core::nodes::Signal;
use larder_switch::{CacheSignalsConfig, SignalSource, SignalsConfig};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::{Size, Span};
use crate::config::words::Word;

keys! {
    /// `[switch.signals]`.
    table SignalsSection, signals = SignalsConfig::default();

    /// Source of load reports: "larder" (/.larder/load of larder nodes), "node-exporter" (Prometheus' node_exporter
    /// beside each node), "orca" (header fields of replies) or "off". Unset: "larder" if a policy in use needs
    /// reports, else "off".
    source: Option<Word<SignalSource>> = signals.source.map(Word), example "node-exporter";
    /// File with the secret that the switch proves to larder nodes (node.report.secret), readable by its owner only.
    /// The first line counts. Unset: nodes check addresses.
    secret: Option<String>, example "/etc/larder/report.key";
    /// Interval of a node's reports.
    period: Span = Span(signals.period), range "10ms to 1h";
    /// Timeout of a poll.
    timeout: Span = Span(signals.timeout), range "1ms to 1m";
    /// Age at which a node's last report counts as missing. At least `period`.
    missing_after: Span = Span(signals.missing_after), range "10ms to 24h";
    /// Path and query of the page with the report. Unset: that of the source. Not for orca.
    path: Option<String> = signals.path, example "/metrics";
    /// Port of the page at each node's host. Unset: the node's own port, or 9100 for node-exporter. Not for orca.
    port: Option<u16> = signals.port, range "1 to 65535", example 9100;
    /// Names of application counters, which become the signals app1 to app4.
    counters: Vec<String> = signals.counters, entries 4, example ["sessions"];
    /// Names of the disks that count, for node-exporter. []: all disks that have ever worked.
    disks: Vec<String> = signals.disks, entries 64, example ["sda"];
    /// Size of a page. A larger page is no report.
    page_max: Size = Size(Bytes(signals.body_max as u64)), range "1KiB to 64MiB";
    /// Contents of the nodes' caches, for policies that mirror them (lb-gc, lmetric).
    cache: CacheSignalsSection;
}

keys! {
    /// `[switch.signals.cache]`.
    table CacheSignalsSection, cache = CacheSignalsConfig::default();

    /// Whether the switch follows the nodes' event streams. Unset: true if a policy in use mirrors caches.
    follow: Option<bool> = cache.follow, example true;
    /// Path of the stream at the node's own address.
    path: String = cache.path;
    /// Silence after which a stream counts as dead.
    silence: Span = Span(cache.silence), range "200ms to 1h";
    /// Longest pause between two attempts to connect.
    retry_max: Span = Span(cache.retry_max), range "100ms to 1h";
    /// Number of targets that are tracked per node.
    targets_max: usize = cache.targets_max, range "1 to 100000000";
}

/// Validates the signals.
pub(crate) fn signals(raw: &SignalsSection) -> Result<SignalsConfig, Fault> {
    let key = |name: &str| format!("switch.signals.{name}");
    let source = raw.source.map(|word| word.0);
    if source == Some(SignalSource::Orca) {
        for (name, given) in [("path", raw.path.is_some()), ("port", raw.port.is_some())] {
            if given {
                let what = "orca is part of the nodes' replies: there is no page";
                return Err(Fault::new(key(name), what).hint("leave it out"));
            }
        }
    }
    if !raw.disks.is_empty() && source != Some(SignalSource::NodeExporter) {
        let what = "only node-exporter distinguishes disks";
        return Err(Fault::new(key("disks"), what).hint("set source = \"node-exporter\", or leave disks out"));
    }
    if raw.missing_after < raw.period {
        let what = format!(
            "{} is less than the period of {}: every report would expire before the next",
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

/// Whether a source provides a signal. `counters` is the number of application counters.
pub(crate) fn provides(source: SignalSource, signal: Signal, counters: usize) -> bool {
    match (source, signal) {
        (SignalSource::Off, _) => false,
        (_, Signal::App(which)) => usize::from(which) < counters,
        (SignalSource::Larder, _) => true,
        (SignalSource::NodeExporter, signal) => signal != Signal::ServiceTime,
        (SignalSource::Orca, signal) => matches!(signal, Signal::Cpu | Signal::Disk | Signal::Memory),
    }
}
