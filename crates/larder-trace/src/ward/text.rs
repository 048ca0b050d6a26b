//! Text tables of an analysis and of a stability report.

use std::fmt;

use larder_core::Bytes;

use super::analysis::Analysis;
use super::search::TargetTotals;
use super::stability::Stability;
use crate::stats::format_thousands;

/// Maximum number of days in the table. The mean and the JSON include all days.
const DAYS_SHOWN: usize = 40;

/// Writes a row with a name and a value.
fn write_row(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "{name:<20} {value}")
}

fn format_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn format_seconds(micros: f64) -> String {
    format!("{:.1} s", micros / 1e6)
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_input(f)?;
        self.write_classes(f)?;
        self.write_expectations(f)?;
        self.write_partition(f)
    }
}

impl Analysis {
    fn write_input(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TargetTotals { targets, bytes, requests, .. } = self.log;
        let log = format!("{} requests to {} targets", format_thousands(requests), format_thousands(targets));
        write_row(f, "log", &format!("{log}, {} in total", Bytes(bytes)))?;
        let each = self.memory_per_node_bytes;
        let all = Bytes(each.saturating_mul(u64::from(self.nodes)));
        let share = all.get() as f64 / bytes.max(1) as f64;
        let cluster = format!(
            "{} of {}: {all}, {} of the log's targets",
            self.nodes,
            Bytes(each),
            format_percent(share)
        );
        write_row(f, "nodes", &cluster)?;
        let costs = &self.costs;
        let prices = format!(
            "{} us a handoff, {:.3} us a byte from disk ({})",
            costs.forward_us, costs.disk_us_per_byte, costs.origin
        );
        write_row(f, "costs", &prices)
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<12} {:>10} {:>10} {:>9}  served", "class", "targets", "bytes", "requests")?;
        let classes = [
            ("core", &self.core, "where they arrive, from every node's memory"),
            ("partition", &self.partition, "by their owner, from its memory"),
            ("on disk", &self.on_disk, "where they arrive; the core's copies take their memory"),
            ("other", &self.other, "where they arrive; too rare or too large for the memory"),
        ];
        for (name, totals, served) in classes {
            let share = totals.requests as f64 / self.log.requests.max(1) as f64;
            let (targets, bytes) = (format_thousands(totals.targets), Bytes(totals.bytes).to_string());
            writeln!(f, "{name:<12} {targets:>10} {bytes:>10} {:>9}  {served}", format_percent(share))?;
        }
        writeln!(f)
    }

    fn write_expectations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_row(f, "expected locally", &format!("{} of the requests", format_percent(self.local_share)))?;
        write_row(
            f,
            "expected in memory",
            &format!("{} of the requests", format_percent(self.memory_share)),
        )?;
        let overhead = &self.overhead;
        let parts = format!(
            "{}: core {}, partition {}, on disk {}",
            format_seconds(self.overheads.ward_us),
            format_seconds(overhead.core_us),
            format_seconds(overhead.partition_us),
            format_seconds(overhead.on_disk_us)
        );
        write_row(f, "overhead", &parts)?;
        write_row(f, "  without a core", &format!("{} (PART)", format_seconds(self.overheads.part_us)))?;
        write_row(f, "  all served locally", &format!("{} (RR)", format_seconds(self.overheads.local_us)))?;
        write_row(f, "  others, in each", &format_seconds(self.overheads.others_us))
    }

    fn write_partition(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let balance = &self.balance;
        let even = |found: f64, least: f64| {
            let bound =
                if least > 1.0 { format!(" (the largest target alone: {least:.3})") } else { String::new() };
            format!("{found:.3} of the mean on the fullest node{bound}")
        };
        write_row(
            f,
            "partition, bytes",
            &even(balance.bytes_max_over_mean, balance.bytes_max_over_mean_least),
        )?;
        write_row(f, "partition, load", &even(balance.load_max_over_mean, balance.load_max_over_mean_least))?;
        if balance.over_memory_bytes > 0 {
            write_row(
                f,
                "  over memory",
                &format!("{} on the fullest node", Bytes(balance.over_memory_bytes)),
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Stability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days.is_empty() {
            return writeln!(
                f,
                "The log has less than two whole days, so yesterday's table cannot be compared."
            );
        }
        writeln!(
            f,
            "{:<5} {:>10} {:>9} {:>12} {:>15} {:>14} {:>15}",
            "day", "requests", "targets", "new targets", "their requests", "new in core-90", "their requests"
        )?;
        let changes = self.core90.iter().flat_map(|core| &core.days);
        for day in self.days.iter().take(DAYS_SHOWN) {
            let change = changes.clone().find(|change| change.day == day.day);
            let (core, core_share) = change.map_or_else(
                || ("-".to_owned(), "-".to_owned()),
                |change| (format_thousands(change.new_targets), format_percent(change.new_share)),
            );
            writeln!(
                f,
                "{:<5} {:>10} {:>9} {:>12} {:>15} {core:>14} {core_share:>15}",
                day.day,
                format_thousands(day.requests),
                format_thousands(day.targets),
                format!("{} %", (day.new_targets_share * 100.0).round()),
                format_percent(day.new_requests_share),
            )?;
        }
        if self.days.len() > DAYS_SHOWN {
            writeln!(f, "... and {} more", self.days.len() - DAYS_SHOWN)?;
        }
        let core_mean = self.core90.as_ref().and_then(|core| core.new_share_mean);
        let shown = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), format_percent);
        let (new, core) = (shown(self.new_requests_share_mean), shown(core_mean));
        writeln!(f, "{:<5} {:>55} {:>30}", "mean", new, core)
    }
}
