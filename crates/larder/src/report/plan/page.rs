//! The report page of `larder plan`.

use larder_core::Bytes;
use larder_sim::plan::{Cell, Plan};
use larder_sim::text::cluster;

use super::data::PlanReport;
use super::proxy::ProxyReport;
use super::tables::{self, Grid, GridValue};
use super::text;
use crate::report::charts::{Strip, strips};
use crate::report::lines::{LineChart, Series, differ, lines};
use crate::report::svg::{Svg, escape};
use crate::report::{counted, number};

/// Writes the page. Fails only if the report cannot be serialized as JSON.
pub(crate) fn page(report: &PlanReport) -> serde_json::Result<String> {
    let json = serde_json::to_string_pretty(report)?;
    let plan = &report.plan;
    let title = match (&report.proxy, &plan.recommendation) {
        (Some(proxy), _) => proxy.title(),
        (None, Some(it)) => format!("{} on {}", it.policy, cluster(it.nodes, Bytes(it.memory_bytes))),
        (None, None) => "No simulated cluster meets the goal".to_owned(),
    };
    let proxy = report.proxy.as_ref();
    let sentences = proxy.map(|proxy| proxy.sentences(plan)).unwrap_or_default();
    let sentences = sentences.into_iter().chain(text::result_sentences(report));
    let answer: String = sentences.map(|text| format!("<p>{}</p>\n", escape(&text))).collect();
    let change = proxy.and_then(|proxy| proxy.table(plan));
    let mut tables = change.map(|grid| table("Change of policy", &grid)).unwrap_or_default();
    tables.extend(tables::grids(plan).iter().map(|grid| table("Policies by nodes", grid)));
    if let Some(it) = &plan.recommendation {
        tables.push_str(&table("The recommended cluster", &tables::cluster(plan, it)));
    }
    let method: String = text::method_rows(report)
        .iter()
        .map(|(what, how)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(what), escape(how)))
        .collect();
    Ok(format!(
        concat!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n",
            "<title>larder plan: {title}</title>\n<style>\n{style}{page}</style>\n</head>\n<body>\n<main>\n",
            "<p class=\"eyebrow\">larder plan</p>\n<h1>{title}</h1>\n{answer}{warnings}{tables}",
            "{lines}{figures}<h2>How this was found</h2>\n<dl>\n{method}</dl>\n",
            "<details><summary>All figures as JSON</summary>\n<pre tabindex=\"0\">{json}</pre></details>\n",
            "</main>\n</body>\n</html>\n"
        ),
        title = escape(&title),
        style = crate::report::STYLE,
        page = crate::report::PAGE_STYLE,
        answer = answer,
        warnings = warnings(report),
        tables = tables,
        lines = config_lines(report),
        figures = figures(plan),
        method = method,
        json = escape(&json),
    ))
}

/// Writes the lines for the config of a proxy.
fn config_lines(report: &PlanReport) -> String {
    let task = report.proxy.as_ref().and_then(ProxyReport::task);
    let write = |(task, lines): (String, &str)| {
        format!("<p>{}</p>\n<pre tabindex=\"0\">{}</pre>\n", escape(&task), escape(lines))
    };
    task.map(write).unwrap_or_default()
}

fn warnings(report: &PlanReport) -> String {
    let items: String = report.warnings().map(|text| format!("<li>{}</li>", escape(text))).collect();
    if items.is_empty() {
        return String::new();
    }
    format!("<div class=\"warning\" role=\"note\"><b>Reasons to doubt the result</b><ul>{items}</ul></div>\n")
}

fn table(label: &str, grid: &Grid) -> String {
    let head: String =
        grid.head.iter().map(|cell| format!("<th scope=\"col\">{}</th>", escape(cell))).collect();
    let row = |row: &tables::GridRow| {
        let class = if row.recommended { " class=\"best\"" } else { "" };
        let values: String = row.values.iter().map(value).collect();
        format!("<tr{class}><th scope=\"row\">{}</th>{values}</tr>\n", escape(&row.name))
    };
    let body: String = grid.rows.iter().map(row).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table class=\"tight\">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n",
        escape(label)
    )
}

fn value(value: &GridValue) -> String {
    let class = if value.recommended { " class=\"best\"" } else { "" };
    let second = match value.second.as_str() {
        "" => String::new(),
        second => format!("<br><small>{}</small>", escape(second)),
    };
    format!("<td{class}>{}{second}</td>", escape(&value.first))
}

/// Share of the mean by which a node's requests may differ and still count as even.
const EVEN: f64 = 0.005;

/// The value of a cell that a chart shows.
type CellValue = fn(&Cell) -> f64;

fn figures(plan: &Plan) -> String {
    let it = plan.recommendation.as_ref();
    let largest = |of: fn(&Cell) -> u64| plan.cells.iter().map(of).max().unwrap_or(0);
    let memory = it.map_or_else(|| largest(|cell| cell.memory_bytes), |it| it.memory_bytes);
    let nodes = it.map_or_else(|| largest(|cell| u64::from(cell.nodes)) as u16, |it| it.nodes);
    let parts: [(&str, &str, bool, CellValue); 2] = [
        ("Hit ratio", "share of requests without a read", true, |cell| cell.hit_ratio.value),
        ("Throughput", "requests per second, saturated", false, |cell| cell.throughput.value),
    ];
    let (mut out, mut left_out) = (String::new(), Vec::new());
    let mut add = |name: String, caption: &str, svg: Option<Svg>| match svg {
        Some(svg) => out.push_str(&figure(&name, caption, &svg)),
        None => left_out.push(name),
    };
    for (name, y_label, y_percent, part) in parts {
        let chart =
            |x_label, x_ticks| LineChart { title: name, x_label, y_label, x_log: true, x_ticks, y_percent };
        let by_nodes = series(plan, |cell| cell.memory_bytes == memory, |cell| f64::from(cell.nodes), part);
        let ticks = ticks(&by_nodes, number);
        let caption = format!("Against the number of nodes, each with {}.", Bytes(memory).exact());
        let svg = differ(&by_nodes).then(|| lines(&chart("nodes", ticks), &by_nodes));
        add(format!("{name} by nodes"), &caption, svg);
        let by_memory = series(plan, |cell| cell.nodes == nodes, |cell| cell.memory_bytes as f64, part);
        let ticks = self::ticks(&by_memory, |bytes| Bytes(bytes as u64).exact().to_string());
        let caption = format!("Against the memory of each node, on {}.", counted(nodes, "node"));
        let x_label = "memory for contents of each node, logarithmic";
        let svg = differ(&by_memory).then(|| lines(&chart(x_label, ticks), &by_memory));
        add(format!("{name} by memory"), &caption, svg);
    }
    add("Coverage".to_owned(), COVERAGE, coverage(plan));
    let caption =
        format!("Requests of each node over their mean, on {}; 1 is even.", cluster(nodes, Bytes(memory)));
    add("Load balance".to_owned(), &caption, balance(plan, nodes, memory));
    let note = match &left_out[..] {
        [] => String::new(),
        names => format!(
            "<p class=\"note\">Charts that would show one value only are left out: {}.</p>\n",
            escape(&names.join(", "))
        ),
    };
    if out.is_empty() { note } else { format!("<div class=\"figures\">\n{out}</div>\n{note}") }
}

/// Returns the x positions of all points, with their texts.
fn ticks(series: &[Series], text: impl Fn(f64) -> String) -> Vec<(f64, String)> {
    let mut places: Vec<f64> =
        series.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places.into_iter().map(|place| (place, text(place))).collect()
}

/// Returns a line for each policy.
fn series(plan: &Plan, with: impl Fn(&Cell) -> bool, x: fn(&Cell) -> f64, y: CellValue) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for cell in plan.cells.iter().filter(|cell| with(cell)) {
        let point = (x(cell), y(cell));
        match all.iter_mut().find(|line| line.label == cell.policy) {
            Some(line) => line.points.push(point),
            None => all.push(Series { label: cell.policy.clone(), points: vec![point] }),
        }
    }
    all
}

const COVERAGE: &str = "Memory that holds the most requested targets, and the share of the requests that ask for them. Where \
                        one node's memory covers nearly all, locality cannot pay.";

fn coverage(plan: &Plan) -> Option<Svg> {
    let chart = LineChart {
        title: "Coverage",
        x_label: "MB of the most requested targets, logarithmic",
        y_label: "share of requests",
        x_log: true,
        x_ticks: Vec::new(),
        y_percent: true,
    };
    let point = |point: &larder_sim::plan::Coverage| {
        point.bytes.map(|bytes| (bytes.max(1) as f64 / 1e6, f64::from(point.requests_permille) / 1e3))
    };
    let points = plan.log.coverage.iter().filter_map(point).collect();
    let series = [Series { label: "requests".to_owned(), points }];
    differ(&series).then(|| lines(&chart, &series))
}

fn balance(plan: &Plan, nodes: u16, memory: u64) -> Option<Svg> {
    let cells = plan.cells.iter().filter(|cell| (cell.nodes, cell.memory_bytes) == (nodes, memory));
    let rows: Vec<Strip> = cells
        .map(|cell| Strip {
            label: cell.policy.clone(),
            dots: (1..)
                .zip(&cell.node_shares)
                .map(|(node, share)| (format!("node {node}"), *share))
                .collect(),
        })
        .collect();
    let uneven = rows.iter().flat_map(|row| &row.dots).any(|dot| (dot.1 - 1.0).abs() > EVEN);
    uneven.then(|| strips("Load balance by policy", "requests over the mean", &[], &rows))
}

fn figure(name: &str, caption: &str, svg: &Svg) -> String {
    format!(
        "<figure><h2>{}</h2><figcaption>{}</figcaption>{}</figure>\n",
        escape(name),
        escape(caption),
        svg.inline()
    )
}
