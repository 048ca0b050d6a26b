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

    /// Where load reports come from: "larder" (larder nodes' /.larder/load), "node-exporter" (Prometheus' exporter
    /// beside each node), "orca" (headers of the nodes' replies) or "off". Unset: larder if a policy in use goes by
    /// reports, else off.
    source: Option<Word<SignalSource>> = signals.source.map(Word), example "node-exporter";
    /// File with the secret that larder nodes want proved (node.report.secret). For its owner only; the first line counts. Unset: nodes
    /// go by addresses.
    secret: Option<String>, example "/etc/larder/report.key";
    /// Time between two reports of a node.
    period: Span = Span(signals.period), range "10ms to 1h";
    /// How long a poll may take.
    timeout: Span = Span(signals.timeout), range "1ms to 1m";
    /// How old a node's last report may become before it counts as missing. Not below the period.
    missing_after: Span = Span(signals.missing_after), range "10ms to 24h";
    /// Path and query of the page. Unset: the source's own. Not for orca.
    path: Option<String> = signals.path, example "/metrics";
    /// Port of the page at each node's host. Unset: the node's own, or 9100 for node-exporter. Not for orca.
    port: Option<u16> = signals.port, range "1 to 65535", example 9100;
    /// Counters of the application, which become the signals app1 to app4.
    counters: Vec<String> = signals.counters, entries 4, example ["sessions"];
    /// Disks that count, for node-exporter. None: all that have worked.
    disks: Vec<String> = signals.disks, entries 64, example ["sda"];
    /// Bytes of a page; a larger one is no report.
    page_max: Size = Size(Bytes(signals.body_max as u64)), range "1KiB to 64MiB";
    /// What the nodes' caches hold, for policies that mirror them (lb-gc).
    cache: CacheSignalsSection;
}

keys! {
    /// `[switch.signals.cache]`.
    table CacheSignalsSection, cache = CacheSignalsConfig::default();

    /// Whether the nodes' event streams are followed. Unset: if a policy in use mirrors caches.
    follow: Option<bool> = cache.follow, example true;
    /// Path of the stream at the node's own address.
    path: String = cache.path;
    /// How long a stream may be silent before it counts as dead.
    silence: Span = Span(cache.silence), range "200ms to 1h";
    /// Longest pause between two tries to connect.
    retry_max: Span = Span(cache.retry_max), range "100ms to 1h";
    /// Targets of a node that are remembered.
    targets_max: usize = cache.targets_max, range "1 to 100000000";
}

/// The signals.
pub(crate) fn signals(raw: &SignalsSection) -> Result<SignalsConfig, Fault> {
    let key = |name: &str| format!("switch.signals.{name}");
    let source = raw.source.map(|word| word.0);
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
pub(crate) fn provides(source: SignalSource, signal: Signal, counters: usize) -> bool {
    match (source, signal) {
        (SignalSource::Off, _) => false,
        (_, Signal::App(which)) => usize::from(which) < counters,
        (SignalSource::Larder, _) => true,
        (SignalSource::NodeExporter, signal) => signal != Signal::ServiceTime,
        (SignalSource::Orca, signal) => matches!(signal, Signal::Cpu | Signal::Disk | Signal::Memory),
    }
}
