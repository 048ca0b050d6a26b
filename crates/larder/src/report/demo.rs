//! The report page of `larder demo`.

use std::fmt::Write as _;

use larder_core::Bytes;
use larder_sim::text::cluster as nodes_with;

use super::charts::{Bar, Strip, bars, strips};
use super::lines::{LineChart, Series, lines};
use super::svg::{Svg, escape};
use super::{counted, number};
use crate::demo::result::{DemoReport, PolicyReport};

/// Draws the main chart as an SVG file: the throughput of each policy.
pub(crate) fn chart(report: &DemoReport) -> String {
    let cluster = &report.cluster;
    let about = format!(
        "{}, {} of memory, modelled",
        report.trace.source,
        nodes_with(cluster.nodes, Bytes(cluster.cache_bytes))
    );
    throughput(report, ("Requests per second, whole cluster", &about)).standalone()
}

/// Writes the page. Fails only if the report cannot be serialized as JSON.
pub(crate) fn page(report: &DemoReport) -> serde_json::Result<String> {
    let json = serde_json::to_string_pretty(report)?;
    Ok(format!(
        concat!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n",
            "<title>larder demo: {source}</title>\n<style>\n{style}{page}</style>\n</head>\n<body>\n<main>\n",
            "{head}{warnings}{cards}{table}<div class=\"figures\">\n{figures}</div>\n{method}",
            "<details><summary>All figures as JSON</summary>\n<pre tabindex=\"0\">{json}</pre></details>\n",
            "</main>\n</body>\n</html>\n"
        ),
        source = escape(&report.trace.source),
        style = super::STYLE,
        page = super::PAGE_STYLE,
        head = head_section(report),
        warnings = warnings_section(report),
        cards = cards_section(report),
        table = table_section(report),
        figures = figures_section(report),
        method = method_section(report),
        json = escape(&json),
    ))
}

fn head_section(report: &DemoReport) -> String {
    let headline = match report.best() {
        Some(PolicyReport { policy, ratio_to_wrr: Some(ratio), .. }) if policy != "wrr" => {
            format!("{policy} serves {ratio:.2} times as many requests as weighted round robin")
        }
        Some(best) => format!("{} serves most requests", best.policy),
        None => "No policy was run".to_owned(),
    };
    let (trace, cluster) = (&report.trace, &report.cluster);
    format!(
        concat!(
            "<p class=\"eyebrow\">larder demo</p>\n<h1>{}</h1>\n",
            "<p class=\"lead\">The same {} ({}) under each policy, on {} of memory. ",
            "The working set is {}.</p>\n"
        ),
        escape(&headline),
        counted(trace.requests, "request"),
        escape(&trace.source),
        nodes_with(cluster.nodes, Bytes(cluster.cache_bytes)),
        Bytes(trace.working_set_bytes),
    )
}

fn warnings_section(report: &DemoReport) -> String {
    if report.warnings.is_empty() {
        return String::new();
    }
    let items: String =
        report.warnings.iter().map(|warning| format!("<li>{}</li>", escape(warning))).collect();
    format!("<div class=\"warning\" role=\"note\"><b>Reasons to doubt the result</b><ul>{items}</ul></div>\n")
}

fn cards_section(report: &DemoReport) -> String {
    let Some(best) = report.best() else { return String::new() };
    let mut cards = vec![
        (number(best.median.requests_per_s), format!("requests/s with {}", best.policy)),
        (percent(best.median.hit_ratio), "answered from memory".to_owned()),
        (format!("{} ms", number(best.median.latency_ms_p99)), "99th percentile of latency".to_owned()),
    ];
    if let Some(wrr) = report.policy("wrr").filter(|wrr| wrr.policy != best.policy) {
        let without = 1.0 - best.median.hit_ratio;
        let fewer = (1.0 - wrr.median.hit_ratio) / without.max(f64::MIN_POSITIVE);
        if without > 0.0 {
            cards.push((format!("{fewer:.1}x"), "fewer reads from disk than wrr".to_owned()));
        }
    }
    let items: String = cards
        .iter()
        .map(|(value, what)| {
            format!("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape(value), escape(what))
        })
        .collect();
    format!("<div class=\"cards\">\n{items}</div>\n")
}

fn table_section(report: &DemoReport) -> String {
    let best = report.best().map(|best| best.policy.as_str());
    let mut rows = String::new();
    for policy in &report.policies {
        let class = if Some(policy.policy.as_str()) == best { " class=\"best\"" } else { "" };
        let cells = crate::demo::table::cells(policy);
        let cells: String = cells.iter().skip(1).map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = writeln!(rows, "<tr{class}><th scope=\"row\">{}</th>{cells}</tr>", escape(&policy.policy));
    }
    let head: String = crate::demo::table::HEAD
        .iter()
        .map(|name| format!("<th scope=\"col\">{}</th>", escape(name)))
        .collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Results\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn throughput(report: &DemoReport, heading: (&str, &str)) -> Svg {
    let highest = report.best().map_or(0.0, |best| best.median.requests_per_s);
    let rows: Vec<Bar> = report
        .policies
        .iter()
        .map(|policy| {
            let speed = policy.median.requests_per_s;
            let ratio = policy.ratio_to_wrr.map(|ratio| format!("  ({ratio:.2}x wrr)")).unwrap_or_default();
            Bar {
                label: policy.policy.clone(),
                value: speed,
                text: format!("{}{ratio}", number(speed.round())),
            }
        })
        .collect();
    bars("Requests per second by policy", heading, highest, &rows)
}

fn figures_section(report: &DemoReport) -> String {
    let hits: Vec<Bar> = report
        .policies
        .iter()
        .map(|policy| Bar {
            label: policy.policy.clone(),
            value: policy.median.hit_ratio,
            text: percent(policy.median.hit_ratio),
        })
        .collect();
    let series = |points: fn(&PolicyReport) -> &Vec<(f64, f64)>| -> Vec<Series> {
        let all = report.policies.iter();
        all.map(|policy| Series { label: policy.policy.clone(), points: points(policy).clone() }).collect()
    };
    let latency = LineChart {
        title: "Latency distribution by policy",
        x_label: "milliseconds, logarithmic",
        y_label: "share of requests answered",
        x_log: true,
        x_ticks: Vec::new(),
        y_percent: true,
    };
    let over_time = LineChart {
        title: "Throughput over the measured part",
        x_label: "seconds since the warm-up ended",
        y_label: "requests per second",
        x_log: false,
        x_ticks: Vec::new(),
        y_percent: false,
    };
    let loads: Vec<Strip> = report
        .policies
        .iter()
        .map(|policy| Strip {
            label: policy.policy.clone(),
            dots: policy.node_loads.iter().map(|node| (node.name.clone(), node.mean)).collect(),
        })
        .collect();
    let marks = [("T_low", f64::from(report.cluster.t_low)), ("T_high", f64::from(report.cluster.t_high))];
    [
        figure("Throughput", "Requests per second of the whole cluster.", &throughput(report, ("", ""))),
        figure("Hit ratio", "Share of requests answered from a node's memory.", &bars("Hit ratio by policy", ("", ""), 1.0, &hits)),
        figure("Latency", "Share of requests answered within a time, measured from sending.", &lines(&latency, &series(|policy| &policy.latency_cdf))),
        figure("Node load", "Mean active requests of each node (dots) and their mean (bar). Dots close together: an even load.", &strips("Mean load of each node by policy", "active requests", &marks, &loads)),
        figure("Throughput over time", "Each policy starts with cold caches; the warm-up is not shown.", &lines(&over_time, &series(|policy| &policy.throughput))),
    ]
    .concat()
}

fn figure(name: &str, caption: &str, svg: &Svg) -> String {
    format!(
        "<figure><h2>{}</h2><figcaption>{}</figcaption>{}</figure>\n",
        escape(name),
        escape(caption),
        svg.inline()
    )
}

fn method_section(report: &DemoReport) -> String {
    let items: String = crate::demo::table::method(report)
        .iter()
        .map(|(what, how)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(what), escape(how)))
        .collect();
    format!("<h2>How this was measured</h2>\n<dl>\n{items}</dl>\n")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use crate::demo::result::tests::sample;

    #[test]
    fn the_page_loads_no_external_resource_and_escapes_foreign_text() {
        let mut report = sample();
        report.trace.source = "<script>alert(1)</script>".to_owned();
        let page = super::page(&report).unwrap();
        assert!(!page.contains("<script"), "foreign text must stay text");
        for outside in ["src=", "href=", "url(", "@import", "https://"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for policy in &report.policies {
            assert!(page.contains(&format!("<th scope=\"row\">{}</th>", policy.policy)));
        }
        assert_eq!(page.matches("role=\"img\"").count(), 5);
    }

    #[test]
    fn the_chart_file_is_self_contained() {
        let text = super::chart(&sample());
        assert!(text.starts_with("<svg xmlns=") && text.contains("<style>") && text.contains("2.00x wrr"));
    }
}
