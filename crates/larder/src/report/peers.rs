//! The report page of `larder demo --peers`.

use larder_core::Bytes;
use larder_sim::figure::{Figure, Line};

use super::charts::{Bar, bars};
use super::lines::{LineChart, Series, lines};
use super::plot::plot;
use super::svg::{Svg, escape};
use super::{counted, number};
use crate::demo::peers::result::{PeersFigures, PeersReport, Sweep, SweepPoint};
use crate::demo::peers::table::{Table, method, percent, tables};

/// Draws the main chart as an SVG file: the throughput of each system, or its curve along the sweep.
pub(crate) fn chart(report: &PeersReport) -> String {
    let about = format!(
        "{}, {}{}, modelled disks, real processors",
        report.trace.source,
        counted(report.cluster.nodes, "node"),
        match (&report.points[..], report.sweep) {
            ([point], _) | ([point, ..], Some(Sweep::LoadStep)) => {
                format!(" with {} of memory each", Bytes(point.memory_bytes).exact())
            }
            _ => String::new(),
        }
    );
    match report.sweep {
        Some(_) => {
            plot(&Figure { title: format!("Requests per second. {about}"), ..throughput_sweep(report) })
                .standalone()
        }
        None => throughput(report, ("Requests per second, whole cluster", &about)).standalone(),
    }
}

/// Writes the page. Fails only if the report cannot be serialized as JSON.
pub(crate) fn page(report: &PeersReport) -> serde_json::Result<String> {
    let json = serde_json::to_string_pretty(report)?;
    let list = |items: &[String]| -> String {
        items.iter().map(|item| format!("<li>{}</li>", escape(item))).collect()
    };
    let warnings = match &report.warnings[..] {
        [] => String::new(),
        some => format!(
            "<div class=\"warning\" role=\"note\"><b>Reasons to doubt the result</b><ul>{}</ul></div>\n",
            list(some)
        ),
    };
    let method: String = method(report)
        .iter()
        .map(|(what, how)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(what), escape(how)))
        .collect();
    Ok(format!(
        concat!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n",
            "<title>larder demo --peers: {source}</title>\n<style>\n{style}{page}</style>\n</head>\n<body>\n<main>\n",
            "<p class=\"eyebrow\">larder demo --peers</p>\n<h1>{headline}</h1>\n",
            "<p class=\"lead\">{lead}</p>\n{warnings}<div class=\"figures\">\n{figures}</div>\n{tables}",
            "<h2>Conclusions</h2>\n<ul>{notes}</ul>\n<h2>How this was measured</h2>\n<dl>\n{method}</dl>\n",
            "<details><summary>All figures as JSON</summary>\n<pre tabindex=\"0\">{json}</pre></details>\n",
            "</main>\n</body>\n</html>\n"
        ),
        source = escape(&report.trace.source),
        style = super::STYLE,
        page = super::PAGE_STYLE,
        headline = escape(&headline(report)),
        lead = escape(&lead(report)),
        warnings = warnings,
        figures = figures(report),
        tables = tables(report).iter().map(table).collect::<String>(),
        notes = list(&report.notes),
        method = method,
        json = escape(&json),
    ))
}

fn headline(report: &PeersReport) -> String {
    let ratios: Vec<f64> =
        report.points.iter().filter_map(|point| point.system("press")?.over_trad).collect();
    match (&ratios[..], report.sweep) {
        ([ratio], _) => {
            format!(
                "Without a switch, cooperating nodes serve {ratio:.2} times as many requests as independent nodes"
            )
        }
        ([], _) | (_, Some(Sweep::LoadStep) | None) => "A cluster without a switch".to_owned(),
        (ratios, Some(Sweep::Memory)) => format!(
            "{:.2} to {:.2} times as many requests as independent nodes, depending on memory",
            ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratios.iter().copied().fold(0.0, f64::max)
        ),
    }
}

fn lead(report: &PeersReport) -> String {
    let trace = &report.trace;
    format!(
        "The same requests ({}) to {}, under each system in turn. The working set is {}.",
        trace.source,
        counted(report.cluster.nodes, "node"),
        Bytes(trace.working_set_bytes)
    )
}

fn table(table: &Table) -> String {
    let mut rows = table.rows.iter();
    let cells = |row: &Vec<String>, from: usize, tag: &str| -> String {
        row.iter().skip(from).map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let head = rows.next().map_or_else(String::new, |row| cells(row, 0, "th"));
    let body: String = rows
        .map(|row| {
            let name = row.first().map_or("", String::as_str);
            format!("<tr><th scope=\"row\">{}</th>{}</tr>\n", escape(name), cells(row, 1, "td"))
        })
        .collect();
    format!(
        "<p class=\"note\">{}</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Results\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n",
        escape(&table.title)
    )
}

fn figure(name: &str, caption: &str, svg: &Svg) -> String {
    format!(
        "<figure><h2>{}</h2><figcaption>{}</figcaption>{}</figure>\n",
        escape(name),
        escape(caption),
        svg.inline()
    )
}

fn figures(report: &PeersReport) -> String {
    match (report.sweep, report.points.first()) {
        (Some(_), _) => sweep_figures(report),
        (None, Some(point)) => system_figures(report, point),
        (None, None) => String::new(),
    }
}

fn system_figures(report: &PeersReport, point: &SweepPoint) -> String {
    let bar = |label: &str, value: f64, text: String| Bar { label: label.to_owned(), value, text };
    let each = |part: fn(&PeersFigures) -> (f64, String)| -> Vec<Bar> {
        let rows = point.systems.iter().map(|system| {
            let (value, text) = part(&system.median);
            bar(&system.system, value, text)
        });
        rows.collect()
    };
    let hits = each(|figures| (figures.hit_ratio, percent(figures.hit_ratio)));
    let moved = each(|figures| (figures.forwarded, percent(figures.forwarded)));
    let cpu = each(|figures| {
        let all = figures.cpu_us_nodes + figures.cpu_us_switch;
        (all, format!("{} us", number(all)))
    });
    let most = cpu.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let latency = LineChart {
        title: "Latency distribution by system",
        x_label: "milliseconds, logarithmic",
        y_label: "share of requests answered",
        x_log: true,
        x_ticks: Vec::new(),
        y_percent: true,
    };
    let curves: Vec<Series> = point
        .systems
        .iter()
        .map(|system| Series { label: system.system.clone(), points: system.latency_cdf.clone() })
        .collect();
    [
        figure(
            "Throughput",
            "Requests per second of the whole cluster; for the model, its prediction from service rates.",
            &throughput(report, ("", "")),
        ),
        figure(
            "From memory",
            "Share of all requests answered from the memory of the node that served them.",
            &bars("Hit ratio by system", ("", ""), 1.0, &hits),
        ),
        figure(
            "Forwarded",
            "Share of the requests that were served by another node than the one that received them.",
            &bars("Forwarded share by system", ("", ""), 1.0, &moved),
        ),
        figure(
            "Processor",
            "Processor time of nodes and switch for each request, clients not counted.",
            &bars("Processor time by system", ("", ""), most, &cpu),
        ),
        figure(
            "Latency",
            "Share of requests answered within a time, measured from sending.",
            &lines(&latency, &curves),
        ),
    ]
    .concat()
}

fn throughput(report: &PeersReport, heading: (&str, &str)) -> Svg {
    let mut rows = Vec::new();
    for point in report.points.iter().take(1) {
        for system in &point.systems {
            let ratio = system.over_trad.filter(|_| system.system != "trad");
            let ratio = ratio.map(|ratio| format!("  ({ratio:.2}x trad)")).unwrap_or_default();
            let speed = system.median.requests_per_s;
            rows.push(Bar {
                label: system.system.clone(),
                value: speed,
                text: format!("{}{ratio}", number(speed.round())),
            });
            let mut predicted = point.model.iter().flat_map(|model| &model.rows);
            if let Some(row) = predicted.rfind(|row| row.system == system.system) {
                rows.push(Bar {
                    label: format!("{} model", row.system),
                    value: row.requests_per_s,
                    text: format!("{}  ({:+.0} %)", number(row.requests_per_s.round()), row.error * 100.0),
                });
            }
        }
    }
    let highest = rows.iter().map(|row| row.value).fold(0.0, f64::max);
    bars("Requests per second by system", heading, highest, &rows)
}

/// Returns the points of one system along the sweep.
fn sweep_points(report: &PeersReport, name: &str, part: impl Fn(&PeersFigures) -> f64) -> Vec<(f64, f64)> {
    let at = |point: &SweepPoint| Some((report.axis_value(point), part(&point.system(name)?.median)));
    report.points.iter().filter_map(at).collect()
}

fn names(report: &PeersReport) -> Vec<String> {
    let first = report.points.first();
    first.map(|point| point.systems.iter().map(|system| system.system.clone()).collect()).unwrap_or_default()
}

fn sweep_figure(
    report: &PeersReport,
    title: &str,
    y_label: &str,
    y_percent: bool,
    lines: Vec<Line>,
) -> Figure {
    let memory = report.sweep != Some(Sweep::LoadStep);
    Figure {
        name: title.to_owned(),
        title: title.to_owned(),
        x_label: if memory { "memory of a node, % of the working set" } else { "step of load told" }
            .to_owned(),
        y_label: y_label.to_owned(),
        y_max: y_percent.then_some(1.0),
        y_percent,
        x_log: true,
        bound_shares: Vec::new(),
        lines,
    }
}

fn throughput_sweep(report: &PeersReport) -> Figure {
    let mut lines: Vec<Line> = Vec::new();
    for name in names(report) {
        let points = sweep_points(report, &name, |figures| figures.requests_per_s);
        lines.push(Line { name: name.clone(), ceiling: false, points });
    }
    for name in names(report) {
        let predicted = |point: &SweepPoint| {
            let mut rows = point.model.iter().flat_map(|model| &model.rows);
            let row = rows.rfind(|row| row.system == name)?;
            Some((report.axis_value(point), row.requests_per_s))
        };
        let points: Vec<(f64, f64)> = report.points.iter().filter_map(predicted).collect();
        if !points.is_empty() {
            lines.push(Line { name: format!("{name}, model"), ceiling: true, points });
        }
    }
    sweep_figure(report, "Throughput", "requests/s", false, lines)
}

fn sweep_figures(report: &PeersReport) -> String {
    let of = |part: fn(&PeersFigures) -> f64| -> Vec<Line> {
        let line = |name: String| {
            let points = sweep_points(report, &name, part);
            Line { name, ceiling: false, points }
        };
        names(report).into_iter().map(line).collect()
    };
    let peer_lines = |part: fn(&PeersFigures) -> Option<f64>| -> Vec<Line> {
        let mut lines = of(|_| 0.0);
        for line in &mut lines {
            let at = |point: &SweepPoint| {
                Some((report.axis_value(point), part(&point.system(&line.name)?.median)?))
            };
            line.points = report.points.iter().filter_map(at).collect();
        }
        lines.retain(|line| !line.points.is_empty());
        lines
    };
    let loads = peer_lines(|figures| figures.peers.as_ref().map(|peers| peers.load_broadcasts));
    let highest = loads.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    let broadcasts = sweep_figure(report, "Broadcasts of load", "for each request", true, loads);
    let broadcasts = Figure { y_max: (highest <= 1.0).then_some(1.0), ..broadcasts };
    let memory =
        sweep_figure(report, "From memory", "share of requests", true, of(|figures| figures.hit_ratio));
    let forwarded = peer_lines(|figures| figures.peers.as_ref().map(|_| figures.forwarded));
    let forwarded = sweep_figure(report, "Forwarded", "share of requests", true, forwarded);
    let latency = sweep_figure(report, "Latency", "p99, ms", false, of(|figures| figures.latency_ms_p99));
    [
        figure(
            "Throughput",
            "Requests per second of the whole cluster; dashed: the model.",
            &plot(&throughput_sweep(report)),
        ),
        figure(
            "From memory",
            "Share of all requests answered from the memory of the node that served them.",
            &plot(&memory),
        ),
        figure(
            "Forwarded",
            "Share of the requests that were served by another node than the one that received them.",
            &plot(&forwarded),
        ),
        figure("Broadcasts of load", "Each goes to every other node.", &plot(&broadcasts)),
        figure("Latency", "99th percentile.", &plot(&latency)),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use crate::demo::peers::result::Sweep;
    use crate::demo::peers::result::tests::sample;

    #[test]
    fn the_page_loads_no_external_resource_and_escapes_foreign_text() {
        for sweep in [None, Some(Sweep::Memory), Some(Sweep::LoadStep)] {
            let mut report = sample();
            report.sweep = sweep;
            report.trace.source = "<script>alert(1)</script>".to_owned();
            let page = super::page(&report).unwrap();
            assert!(!page.contains("<script"), "foreign text must stay text");
            for outside in ["src=", "href=", "url(", "@import", "https://"] {
                assert!(!page.contains(outside), "{outside}");
            }
            assert!(page.contains("paper, Clarknet") && page.contains("<td>press</td>"));
            assert_eq!(page.matches("role=\"img\"").count(), 5, "{sweep:?}");
            assert!(super::chart(&report).starts_with("<svg xmlns="));
        }
    }
}
