//! Text form of the report.

use std::fmt::Write as _;

use super::Report;
use super::latency::Latency;

/// Maximum nodes with a line of their own.
const NODE_LINES_MAX: usize = 32;

/// Minimum share of the tail in the measured part for which the tail is shown.
const TAIL_SHOWN_MIN: f64 = 0.01;

impl Report {
    /// Formats the report as text of several lines, with a final line break.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_summary(&mut text);
        let _ = self.write_latencies(&mut text);
        let _ = self.write_nodes(&mut text);
        let _ = self.write_faults(&mut text);
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        text
    }

    fn write_summary(&self, text: &mut String) -> std::fmt::Result {
        let setup = &self.setup;
        writeln!(text, "sent to         {} ({})", printable(&setup.address), printable(&setup.host))?;
        write!(text, "load model      {}", setup.load_model)?;
        match (setup.clients, setup.rate) {
            (Some(clients), _) => write!(text, ", {clients} clients")?,
            (None, Some(rate)) => write!(text, ", {rate:.1} requests/s due")?,
            (None, None) => {}
        }
        writeln!(
            text,
            ", {}, {} thread{}",
            if setup.keep_alive { "keep-alive" } else { "one connection per request" },
            setup.threads,
            if setup.threads == 1 { "" } else { "s" }
        )?;
        writeln!(
            text,
            "requests        {} good, {} failed in {:.2} s, after {} of warm-up",
            self.ok, self.failed, self.measured_s, self.warmup
        )?;
        write!(text, "requests/s      {:.1}", self.requests_per_s)?;
        if let Some(busy) = self.requests_per_s_busy
            && self.tail_s > self.measured_s * TAIL_SHOWN_MIN
        {
            write!(text, " ({busy:.1} without the last {:.2} s, when clients were idle)", self.tail_s)?;
        }
        writeln!(text)?;
        writeln!(
            text,
            "body            {:.1} MB, {:.2} MB/s",
            self.body_bytes as f64 / 1e6,
            self.body_bytes_per_s / 1e6
        )?;
        if let (Some(hits), Some(bytes)) = (self.cache.hit_ratio, self.cache.byte_hit_ratio) {
            writeln!(text, "hit ratio       {:.2} %, by bytes {:.2} %", hits * 100.0, bytes * 100.0)?;
        }
        writeln!(
            text,
            "connections     {} opened, {} stale connections replaced",
            self.connections.opened, self.connections.stale_retries
        )?;
        let generator = &self.generator;
        write!(
            text,
            "clients' CPU    {:.1} us per request, busiest thread {:.0} %",
            generator.cpu_us_per_request,
            generator.running_max * 100.0
        )?;
        if let Some(waiting) = generator.waiting_max {
            write!(text, ", waited for a processor {:.0} %", waiting * 100.0)?;
        }
        writeln!(text)
    }

    fn write_latencies(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\n{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}  ms",
            "", "samples", "mean", "p50", "p90", "p99", "p99.9", "max"
        )?;
        let open = self.setup.clients.is_none();
        let rows = [
            ("latency", &self.latency, true),
            ("from sending", &self.service, open),
            ("first byte", &self.first_byte, true),
            ("hits", &self.hit_latency, true),
            ("misses", &self.miss_latency, true),
            ("sent late", &self.send_lag, open),
        ];
        for (name, latency, shown) in rows {
            if shown && latency.samples > 0 {
                write_latency(text, name, latency)?;
            }
        }
        Ok(())
    }

    fn write_nodes(&self, text: &mut String) -> std::fmt::Result {
        let (Some(requests), Some(bytes)) = (self.imbalance_requests, self.imbalance_bytes) else {
            return Ok(());
        };
        writeln!(text, "\n{:<20}{:>10}{:>8}{:>9}{:>12}", "node", "requests", "share", "hits", "MB")?;
        let mut nodes: Vec<_> = self.nodes.iter().collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let named: u64 = nodes.iter().map(|node| node.requests).sum();
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        for node in nodes.iter().take(NODE_LINES_MAX) {
            writeln!(
                text,
                "{:<20}{:>10}{:>6.1} %{:>7.1} %{:>12.1}",
                printable(&node.name),
                node.requests,
                percent(node.requests, named),
                percent(node.hits, node.requests),
                node.bytes as f64 / 1e6
            )?;
        }
        if nodes.len() > NODE_LINES_MAX {
            writeln!(text, "... and {} more", nodes.len() - NODE_LINES_MAX)?;
        }
        writeln!(text, "busiest over mean   {requests:.2} by requests, {bytes:.2} by bytes")
    }

    fn write_faults(&self, text: &mut String) -> std::fmt::Result {
        if self.failed > 0 || !self.warnings.is_empty() {
            writeln!(text)?;
        }
        for (fault, count) in &self.faults {
            writeln!(text, "failed: {:<12}{count:>10}", fault.name())?;
        }
        Ok(())
    }
}

fn write_latency(text: &mut String, name: &str, latency: &Latency) -> std::fmt::Result {
    write!(text, "{name:<14}{:>10}", latency.samples)?;
    let columns =
        [latency.mean_us, latency.p50_us, latency.p90_us, latency.p99_us, latency.p99_9_us, latency.max_us];
    for us in columns {
        write!(text, "{:>10.3}", us / 1e3)?;
    }
    writeln!(text)
}

/// Replaces control characters of a name and truncates it, because names come from the network.
fn printable(name: &str) -> String {
    name.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
}
