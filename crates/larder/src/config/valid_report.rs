//! `[node.report]`, checked and turned into what the node is told.

use larder_edge::Announcers;
use larder_node::{CpuScope, ReportConfig};

use super::error::Fault;
use super::explain::suggest;
use super::raw_report::{OFF, RawReport};
use super::valid_tls::ranges;

/// What the node says of itself. Numbers are checked by the node.
pub(super) fn report(raw: &RawReport) -> Result<ReportConfig, Fault> {
    let cpu = CpuScope::ALL.into_iter().find(|scope| scope.name() == raw.cpu).ok_or_else(|| {
        let what = format!("unknown value '{}'", raw.cpu.escape_debug());
        Fault::new("node.report.cpu", what).hint(suggest(&raw.cpu, &CpuScope::ALL.map(CpuScope::name)))
    })?;
    Ok(ReportConfig {
        from: Announcers(ranges("node.report.from", &raw.from)?),
        // Read when the role starts.
        secret: None,
        load_path: path("node.report.load_path", &raw.load_path)?,
        events_path: path("node.report.events_path", &raw.events_path)?,
        subscribers_max: raw.subscribers_max,
        backlog_max: raw.backlog_max,
        heartbeat: raw.heartbeat.0,
        cpu,
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
    use super::super::Written;
    use larder_edge::Announcers;
    use larder_node::{CpuScope, ReportConfig};
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
            from: Announcers(vec!["10.0.0.2".parse().unwrap()]),
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
            ("heartbeat = \"1ms\"", "heartbeat", "100 ms"),
            ("heartbeet = \"1s\"", "heartbeet", "did you mean 'heartbeat'"),
        ] {
            let text = format!("{HEAD}[node.report]\n{rest}\n");
            let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
            assert_eq!((error.line, error.key.as_str()), (Some(5), &*format!("node.report.{key}")), "{rest}");
            assert!(error.to_string().contains(word), "{rest}\n{error}");
        }
    }
}
