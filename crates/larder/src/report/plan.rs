//! The report page of `larder plan`.

use larder_core::Bytes;
use larder_sim::plan::{Cell, Plan};

use super::charts::{Lines, Series, Strip, lines, strips};
use super::svg::{Svg, escape};
use crate::cmd::plan::PlanReport;
use crate::cmd::plan::words::{self, Rows};

/// The whole page. Fails only where the report cannot be written as JSON.
pub(crate) fn page(report: &PlanReport) -> serde_json::Result<String> {
    let json = serde_json::to_string_pretty(report)?;
    let plan = &report.plan;
    let title = match &plan.recommendation {
        Some(it) => format!("{} on {} nodes with {} each", it.policy, it.nodes, Bytes(it.memory_bytes)),
        None => "No cluster in the grid honours the goal".to_owned(),
    };
    let answer: String =
        words::answer(plan).iter().map(|text| format!("<p>{}</p>\n", escape(text))).collect();
    let mut tables = table("Policies by nodes", &words::grid(plan));
    if let Some(it) = &plan.recommendation {
        tables.push_str(&table("The recommended cluster", &words::cluster(plan, it)));
    }
    let method: String = words::method(report)
        .iter()
        .map(|(what, how)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(what), escape(how)))
        .collect();
    Ok(format!(
        concat!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n",
            "<title>larder plan: {title}</title>\n<style>\n{style}{page}</style>\n</head>\n<body>\n<main>\n",
            "<p class=\"eyebrow\">larder plan</p>\n<h1>{title}</h1>\n{answer}{warnings}{tables}",
            "<div class=\"figures\">\n{figures}</div>\n<h2>How this was found</h2>\n<dl>\n{method}</dl>\n",
            "<details><summary>All figures as JSON</summary>\n<pre tabindex=\"0\">{json}</pre></details>\n",
            "</main>\n</body>\n</html>\n"
        ),
        title = escape(&title),
        style = super::STYLE,
        page = super::PAGE_STYLE,
        answer = answer,
        warnings = warnings(plan),
        tables = tables,
        figures = figures(plan),
        method = method,
        json = escape(&json),
    ))
}

fn warnings(plan: &Plan) -> String {
    if plan.warnings.is_empty() {
        return String::new();
    }
    let items: String = plan.warnings.iter().map(|text| format!("<li>{}</li>", escape(text))).collect();
    format!("<div class=\"warning\" role=\"note\"><b>Read the figures with care</b><ul>{items}</ul></div>\n")
}

fn table(label: &str, rows: &Rows) -> String {
    let mut rows = rows.iter();
    let head = rows.next().map_or(&[][..], Vec::as_slice);
    let head: String = head.iter().map(|cell| format!("<th scope=\"col\">{}</th>", escape(cell))).collect();
    let body: String = rows
        .map(|row| {
            let class = if row.iter().any(|cell| cell.starts_with("> ")) { " class=\"best\"" } else { "" };
            let cells: String = row.iter().skip(1).map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            let name = row.first().map_or("", String::as_str);
            format!("<tr{class}><th scope=\"row\">{}</th>{cells}</tr>\n", escape(name))
        })
        .collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n",
        escape(label)
    )
}

/// A figure's part of a cell.
type Part = fn(&Cell) -> f64;

fn figures(plan: &Plan) -> String {
    let it = plan.recommendation.as_ref();
    let largest = |of: fn(&Cell) -> u64| plan.cells.iter().map(of).max().unwrap_or(0);
    let memory = it.map_or_else(|| largest(|cell| cell.memory_bytes), |it| it.memory_bytes);
    let nodes = it.map_or_else(|| largest(|cell| u64::from(cell.nodes)) as u16, |it| it.nodes);
    let parts: [(&str, &str, bool, Part); 2] = [
        ("Hit ratio", "share of requests without a read", true, |cell| cell.hit_ratio.value),
        ("Throughput", "requests per second, saturated", false, |cell| cell.throughput.value),
    ];
    let mut out = String::new();
    for (name, y_label, y_percent, part) in parts {
        let by_nodes = Lines { title: name, x_label: "nodes", y_label, x_log: true, y_percent };
        let series = series(plan, |cell| cell.memory_bytes == memory, |cell| f64::from(cell.nodes), part);
        let caption = format!("Against the number of nodes, each with {}.", Bytes(memory));
        out.push_str(&figure(&format!("{name} by nodes"), &caption, &lines(&by_nodes, &series)));
        let by_memory = Lines { x_label: "MB of memory for contents in each node", ..by_nodes };
        let series =
            self::series(plan, |cell| cell.nodes == nodes, |cell| cell.memory_bytes as f64 / 1e6, part);
        let caption = format!("Against the memory of each of {nodes} nodes.");
        out.push_str(&figure(&format!("{name} by memory"), &caption, &lines(&by_memory, &series)));
    }
    out.push_str(&coverage(plan));
    out.push_str(&balance(plan, nodes, memory));
    out
}

/// A line for each policy.
fn series(plan: &Plan, with: impl Fn(&Cell) -> bool, x: fn(&Cell) -> f64, y: Part) -> Vec<Series> {
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

fn coverage(plan: &Plan) -> String {
    let about = Lines {
        title: "Coverage",
        x_label: "MB of the most requested targets, logarithmic",
        y_label: "share of requests",
        x_log: true,
        y_percent: true,
    };
    let point = |point: &larder_sim::plan::Coverage| {
        point.bytes.map(|bytes| (bytes.max(1) as f64 / 1e6, f64::from(point.requests_permille) / 1e3))
    };
    let points = plan.log.coverage.iter().filter_map(point).collect();
    let caption = "Memory that holds the most requested targets, and the share of the requests that ask for them. Where \
                   one node's memory covers nearly all, locality cannot pay.";
    figure("Coverage", caption, &lines(&about, &[Series { label: "requests".to_owned(), points }]))
}

fn balance(plan: &Plan, nodes: u16, memory: u64) -> String {
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
    let caption =
        format!("Requests of each of {nodes} nodes with {}, over their mean; 1 is even.", Bytes(memory));
    figure("Load balance", &caption, &strips("Load balance by policy", "requests over the mean", &[], &rows))
}

fn figure(name: &str, caption: &str, svg: &Svg) -> String {
    format!(
        "<figure><h2>{}</h2><figcaption>{}</figcaption>{}</figure>\n",
        escape(name),
        escape(caption),
        svg.inline()
    )
}
