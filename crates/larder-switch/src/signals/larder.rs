//! Load counters of a larder node: `GET /.larder/load`, JSON.
//!
//! | signal | from | unit |
//! |---|---|---|
//! | CPU | `cpu_busy_us` over `uptime_us` x `cpus` | share of the time |
//! | disk | `disk_busy_us` over `uptime_us` x `disks` | share of the time |
//! | disk bytes, paging | `disk_bytes`, `page_faults` | per second |
//! | memory | `memory_used` of `memory_max` | share |
//! | processes, queue | `active`, `queue` | requests, now |
//! | service time | `service_us` over `requests` | mean of those that ended |
//! | counters of the application | `levels` as they are, else `app` | level, or per second |

use super::counters::{APPS, AppCounter, BusyTime, NodeCounters};
use super::failure::SignalFailure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Deserialize)]
struct LoadPage {
    uptime_us: u64,
    run: Option<String>,
    cpu_busy_us: Option<u64>,
    cpus: Option<u32>,
    disk_busy_us: Option<u64>,
    disks: Option<u32>,
    disk_bytes: Option<u64>,
    page_faults: Option<u64>,
    memory_used: Option<u64>,
    memory_max: Option<u64>,
    requests: Option<u64>,
    service_us: Option<u64>,
    active: Option<u64>,
    queue: Option<u64>,
    #[serde(default)]
    app: BTreeMap<String, f64>,
    #[serde(default)]
    levels: BTreeMap<String, f64>,
}

/// Parses a page. `counters` are the names of the wanted application counters.
pub(super) fn read(body: &[u8], counters: &[String]) -> Result<NodeCounters, SignalFailure> {
    let page: LoadPage = serde_json::from_slice(body).map_err(|_| SignalFailure::Malformed)?;
    let seconds = |us: u64| us as f64 / 1e6;
    let work = |busy: Option<u64>, devices: Option<u32>| {
        let (busy, devices) = (busy?, devices?);
        Some(BusyTime { busy: seconds(busy), available: seconds(page.uptime_us) * f64::from(devices) })
    };
    let mut app = [None; APPS];
    for (slot, name) in app.iter_mut().zip(counters) {
        let counter = || page.app.get(name).map(|value| AppCounter::Counter(*value));
        *slot = page.levels.get(name).map(|value| AppCounter::Gauge(*value)).or_else(counter);
    }
    Ok(NodeCounters {
        at: Duration::from_micros(page.uptime_us),
        cpu: work(page.cpu_busy_us, page.cpus),
        disk: work(page.disk_busy_us, page.disks),
        disk_bytes: page.disk_bytes.map(|bytes| bytes as f64),
        page_faults: page.page_faults.map(|faults| faults as f64),
        memory: page.memory_used.zip(page.memory_max).map(|(used, max)| used as f64 / max as f64),
        served: page.requests.zip(page.service_us).map(|(ended, us)| (ended as f64, seconds(us))),
        processes: page.active.map(|active| active as f64),
        queue: page.queue.map(|queue| queue as f64),
        app,
        run: page.run,
        ..NodeCounters::default()
    })
}

/// Returns the size of the node's memory cache.
pub(super) fn cache_bytes_max(body: &[u8]) -> Option<u64> {
    let page: LoadPage = serde_json::from_slice(body).ok()?;
    let bytes = page.levels.get("cache_bytes_max").copied()?;
    (bytes.is_finite() && bytes >= 0.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"{"node":"a","run":"5f","uptime_us":2000000,"cpu_from":"model","cpu_busy_us":500000,"cpus":2,
        "machine_cpu_us":1,"process_cpu_us":null,"disk_from":null,"disk_busy_us":null,"disks":null,"disk_bytes":null,
        "page_faults":8,"memory_used":1,"memory_max":4,"requests":10,"service_us":3000000,"active":3,"queue":1,
        "app":{"hits":7},"levels":{"sessions":2}}"#;

    #[test]
    fn a_page_is_read() {
        let counters = ["sessions".to_owned(), "hits".to_owned(), "other".to_owned()];
        let expected = NodeCounters {
            at: Duration::from_secs(2),
            run: Some("5f".to_owned()),
            cpu: Some(BusyTime { busy: 0.5, available: 4.0 }),
            disk: None,
            disk_bytes: None,
            page_faults: Some(8.0),
            memory: Some(0.25),
            served: Some((10.0, 3.0)),
            processes: Some(3.0),
            queue: Some(1.0),
            app: [Some(AppCounter::Gauge(2.0)), Some(AppCounter::Counter(7.0)), None, None],
            ..NodeCounters::default()
        };
        assert_eq!(read(PAGE.as_bytes(), &counters), Ok(expected));
        assert_eq!(cache_bytes_max(PAGE.as_bytes()), None);
        let page = br#"{"uptime_us":1,"levels":{"cache_bytes_max":8388608}}"#;
        assert_eq!(cache_bytes_max(page), Some(8 << 20));
    }

    #[test]
    fn a_page_may_lack_fields_but_not_be_malformed() {
        let least = read(b"{\"uptime_us\":1}", &[]).expect("all else is missing");
        assert_eq!(least, NodeCounters { at: Duration::from_micros(1), ..NodeCounters::default() });
        for body in [
            "",
            "{}",
            "[]",
            "{\"uptime_us\":-1}",
            "{\"uptime_us\":1,\"active\":\"x\"}",
            "{\"uptime_us\":1e99}",
        ] {
            assert_eq!(read(body.as_bytes(), &[]), Err(SignalFailure::Malformed), "{body}");
        }
        let nothing = read(b"{\"uptime_us\":1,\"memory_used\":0,\"memory_max\":0}", &[]).expect("it is JSON");
        assert!(nothing.memory.is_some_and(f64::is_nan), "missing once it becomes a report");
    }
}
