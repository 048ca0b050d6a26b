//! Figures as text, and a whole picture as lines.

use std::fmt::Write as _;

use super::Picture;

/// A share, as a percentage.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, |share| format!("{:.1} %", share * 100.0))
}

/// A rate a second.
pub(super) fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(dash, |rate| if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") })
}

/// A time.
pub(super) fn time(seconds: Option<f64>) -> String {
    seconds.map_or_else(dash, |seconds| match seconds {
        ..0.001 => format!("{:.0} us", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    })
}

/// A plain figure.
pub(super) fn figure(value: Option<f64>) -> String {
    value.map_or_else(dash, |value| format!("{value:.2}"))
}

/// A size; unknown if it is zero.
pub(super) fn size(bytes: u64) -> String {
    if bytes == 0 { dash() } else { larder_core::Bytes(bytes).to_string() }
}

fn dash() -> String {
    "-".to_owned()
}

/// The line of the whole cluster.
pub(super) fn cluster(picture: &Picture) -> String {
    let all = &picture.cluster;
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

/// A picture as text.
pub(crate) fn words(picture: &Picture) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    for source in &picture.sources {
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
        picture.cluster.nodes_up,
        picture.cluster.nodes,
        cluster(picture)
    );
    let _ = writeln!(
        text,
        "\n{:<20} {:<10} {:>6} {:>10} {:>9} {:>7} {:>7} {:>9}",
        "node", "state", "load", "requests/s", "hit ratio", "errors", "weight", "memory"
    );
    for row in &picture.nodes {
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
    for hot in &picture.hottest {
        let servers = hot.servers.join(" ");
        let _ = writeln!(
            text,
            "hot: {} {}/s {} {servers}",
            hot.target,
            rate(Some(hot.requests_per_s)),
            percent(Some(hot.share))
        );
    }
    for (name, count) in &picture.decisions {
        let _ = writeln!(text, "decided: {name} {count}");
    }
    for row in &picture.shadow {
        let whose = if row.live { ", live" } else { "" };
        let _ = writeln!(
            text,
            "shadow: {}{whose} hit ratio {} imbalance {}",
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
        assert!(words(&Picture::default()).contains("0 of 0 nodes up"));
    }
}
