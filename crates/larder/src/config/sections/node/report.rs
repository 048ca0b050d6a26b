//! `[node.report]`.

use larder_edge::AddressRanges;
use larder_node::{CpuScope, ReportConfig};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::{Span, Texts};
use crate::config::values::ranges;
use crate::config::words::Word;

/// Word in place of a path that is not served.
pub(crate) const OFF: &str = "off";

/// Addresses of this host.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1"];

keys! {
    /// `[node.report]`.
    table ReportSection, report = ReportConfig::default();

    /// Addresses of switches that may ask for reports, in addition to node.trust.relays. Other senders get 404, and
    /// so do clients on handed-off connections.
    from: Texts = Texts(LOOPBACK.map(str::to_owned).to_vec()), entries 1024, reload true;
    /// File with a secret that switches must prove (switch.signals.secret), instead of an address. Other programs on
    /// the switches' hosts then get 404. The file is readable by its owner only, and `larder keys new FILE` makes it.
    /// A second line may contain another accepted secret. It is read at each reload. Unset: the address decides.
    secret: Option<String>, example "/etc/larder/report.key", reload true;
    /// Scope of the reported processor time, if none is modelled: "machine" covers all processors, for a node that
    /// has the machine to itself. "process" covers this process, as a share of one processor, for nodes that share a
    /// machine.
    cpu: Word<CpuScope> = Word(report.cpu);
    /// Path of the load counters. "off": none.
    load_path: String = report.load_path.unwrap_or_else(|| OFF.to_owned()), reload true;
    /// Path of the stream of cache events. "off": none.
    events_path: String = report.events_path.unwrap_or_else(|| OFF.to_owned()), reload true;
    /// Number of concurrent streams of cache events. A further one gets 503.
    subscribers_max: usize = report.subscribers_max, range "0 to 64", reload true;
    /// Number of cache events that wait for one stream, 24 bytes each. Beyond it, the stream is closed and the switch
    /// starts again.
    backlog_max: usize = report.backlog_max, range "16 to 1048576", reload true;
    /// Interval of heartbeats on a stream of cache events.
    heartbeat: Span = Span(report.heartbeat), range "100ms to 1m", reload true;
}

/// Returns the settings of a node's reports.
pub(crate) fn report(raw: &ReportSection) -> Result<ReportConfig, Fault> {
    Ok(ReportConfig {
        from: AddressRanges(ranges("node.report.from", &raw.from)?),
        // Read when the role starts.
        secret: None,
        load_path: path("node.report.load_path", &raw.load_path)?,
        events_path: path("node.report.events_path", &raw.events_path)?,
        subscribers_max: raw.subscribers_max,
        backlog_max: raw.backlog_max,
        heartbeat: raw.heartbeat.0,
        cpu: raw.cpu.0,
    })
}

fn path(key: &str, written: &str) -> Result<Option<String>, Fault> {
    match written {
        OFF => Ok(None),
        path if path.starts_with('/') => Ok(Some(path.to_owned())),
        other => Err(Fault::new(key, format!("'{}' is no path", other.escape_debug()))
            .hint("write a path that starts with '/', or \"off\"")),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Written;
    use larder_edge::AddressRanges;
    use larder_node::CpuScope;
    use larder_node::ReportConfig;
    use std::time::Duration;

    const HEAD: &str = "[node]\nlisten = \"127.0.0.1:1\"\nroot = \"/\"\n";

    fn report(rest: &str) -> ReportConfig {
        let text = format!("{HEAD}{rest}");
        Written::parse("f", &text).unwrap().validate().unwrap().node.unwrap().node.report
    }

    #[test]
    fn every_key_reaches_the_node() {
        assert_eq!(report(""), ReportConfig::default());
        let all = "[node.report]\ncpu = \"process\"\nload_path = \"/load\"\nevents_path = \"off\"\n\
                   from = \"10.0.0.2\"\nsubscribers_max = 3\nbacklog_max = 16\nheartbeat = \"1s\"\n";
        let expected = ReportConfig {
            from: AddressRanges(vec!["10.0.0.2".parse().unwrap()]),
            secret: None,
            load_path: Some("/load".to_owned()),
            events_path: None,
            subscribers_max: 3,
            backlog_max: 16,
            heartbeat: Duration::from_secs(1),
            cpu: CpuScope::Process,
        };
        assert_eq!(report(all), expected);
        assert_eq!(report("report.load_path = \"off\"\n").load_path, None);
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        for (rest, key, word) in [
            ("cpu = \"proces\"", "cpu", "did you mean 'process'"),
            ("load_path = \"load\"", "load_path", "or \"off\""),
            ("events_path = \"\"", "events_path", "or \"off\""),
            ("events_path = \"/.larder/load\"", "events_path", "load_path"),
            ("from = \"10.0.0.0/40\"", "from", "10.0.0.0/8"),
            ("subscribers_max = 65", "subscribers_max", "0 to 64"),
            ("backlog_max = 1", "backlog_max", "16 to"),
            ("heartbeat = \"1ms\"", "heartbeat", "100ms"),
            ("heartbeet = \"1s\"", "heartbeet", "did you mean 'heartbeat'"),
        ] {
            let text = format!("{HEAD}[node.report]\n{rest}\n");
            let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
            assert_eq!((error.line, error.key.as_str()), (Some(5), &*format!("node.report.{key}")), "{rest}");
            assert!(error.to_string().contains(word), "{rest}\n{error}");
        }
    }
}
