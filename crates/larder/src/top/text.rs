//! Figures and overviews as text.

use std::fmt::Write as _;

use super::Overview;

/// Formats a share as a percentage.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, |share| format!("{:.1} %", share * 100.0))
}

/// Formats a rate per second.
pub(super) fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(dash, |rate| if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") })
}

/// Formats a duration.
pub(super) fn time(seconds: Option<f64>) -> String {
    seconds.map_or_else(dash, |seconds| match seconds {
        ..0.001 => format!("{:.0} us", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    })
}

/// Formats a number with two decimals.
pub(super) fn figure(value: Option<f64>) -> String {
    value.map_or_else(dash, |value| format!("{value:.2}"))
}

/// Formats a size; zero means unknown.
pub(super) fn size(bytes: u64) -> String {
    if bytes == 0 { dash() } else { larder_core::Bytes(bytes).to_string() }
}

fn dash() -> String {
    "-".to_owned()
}

/// Formats the line with the totals of the cluster.
pub(super) fn format_cluster(overview: &Overview) -> String {
    let all = &overview.cluster;
    let limit = all.admission_limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    format!(
        "{} requests/s  hit ratio {}  p50 {}  p99 {}  {}{limit} in flight  {} waiting  {} connections  imbalance {}",
        rate(all.requests_per_s),
        percent(all.hit_ratio),
        time(all.p50_s),
        time(all.p99_s),
        all.in_flight,
        all.queued,
        all.connections,
        figure(all.imbalance),
    )
}

/// Formats an overview as plain text.
pub(crate) fn overview_text(overview: &Overview) -> String {
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    for source in &overview.sources {
        let what = match (&source.kind, &source.policy, &source.error) {
            (_, _, Some(error)) => format!("does not answer: {error}"),
            (Some(kind), Some(policy), _) => format!("{kind}, {policy}"),
            (kind, ..) => kind.unwrap_or_default().to_owned(),
        };
        let _ = writeln!(text, "{}: {what}", source.admin);
    }
    let _ = writeln!(
        text,
        "{} of {} nodes up  {}",
        overview.cluster.nodes_up,
        overview.cluster.nodes,
        format_cluster(overview)
    );
    let _ = writeln!(
        text,
        "\n{:<20} {:<10} {:>6} {:>10} {:>9} {:>7} {:>7} {:>9}",
        "node", "state", "load", "requests/s", "hit ratio", "errors", "weight", "memory"
    );
    for row in &overview.nodes {
        let weight = row.weight.map_or_else(dash, |weight| weight.to_string());
        let _ = writeln!(
            text,
            "{:<20} {:<10} {:>6} {:>10} {:>9} {:>7} {:>7} {:>9}",
            row.name,
            row.state,
            row.load,
            rate(row.requests_per_s),
            percent(row.hit_ratio),
            row.errors,
            weight,
            size(row.memory_bytes),
        );
    }
    for hot in &overview.hottest {
        let servers = hot.servers.join(" ");
        let _ = writeln!(
            text,
            "hot: {} {}/s {} {servers}",
            hot.target,
            rate(Some(hot.requests_per_s)),
            percent(Some(hot.share))
        );
    }
    for (name, count) in &overview.decisions {
        let _ = writeln!(text, "decided: {name} {count}");
    }
    for row in &overview.shadow {
        let suffix = if row.live { ", live" } else { "" };
        let _ = writeln!(
            text,
            "shadow: {}{suffix} hit ratio {} imbalance {}",
            row.policy,
            percent(row.hit_ratio),
            figure(row.imbalance)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!((percent(Some(0.5)), percent(None)), ("50.0 %".to_owned(), "-".to_owned()));
        assert_eq!((rate(Some(1.25)), rate(Some(1234.5))), ("1.2".to_owned(), "1234".to_owned()));
        for (seconds, text) in [(0.000_25, "250 us"), (0.0125, "12.5 ms"), (2.5, "2.50 s")] {
            assert_eq!(time(Some(seconds)), text);
        }
        assert_eq!((size(0), size(8_000_000)), ("-".to_owned(), "8.0 MB".to_owned()));
        assert!(overview_text(&Overview::default()).contains("0 of 0 nodes up"));
    }
}
