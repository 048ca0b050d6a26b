//! The plan in words: sentences first, then tables.

use std::io::{self, Write};

use larder_core::Bytes;
use larder_sim::plan::{Cell, Check, Estimate, NoGain, Plan, Recommendation, Spread};

use super::PlanReport;
use super::input::LogInfo;
use crate::report::number;

/// Writes the whole plan.
pub(super) fn write(report: &PlanReport, out: &mut impl Write) -> io::Result<()> {
    let plan = &report.plan;
    for sentence in answer(plan) {
        paragraph(out, &sentence)?;
    }
    writeln!(out)?;
    table(out, &grid(plan))?;
    writeln!(out)?;
    if let Some(it) = &plan.recommendation {
        writeln!(out, "On {} with {} each:", nodes(it.nodes), Bytes(it.memory_bytes))?;
        table(out, &cluster(plan, it))?;
        writeln!(out)?;
    }
    for (what, how) in method(report) {
        writeln!(out, "{what:<12} {how}")?;
    }
    for warning in &plan.warnings {
        writeln!(out, "\nwarning: {warning}")?;
    }
    Ok(())
}

fn nodes(count: u16) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

/// The answer, a sentence or a few each.
pub(crate) fn answer(plan: &Plan) -> Vec<String> {
    let Some(it) = &plan.recommendation else { return plan.unreached.iter().cloned().collect() };
    let mut answer = vec![
        format!(
            "Use {} on {} with {} of memory for contents each. {}",
            it.policy,
            nodes(it.nodes),
            Bytes(it.memory_bytes),
            it.why_cluster
        ),
        it.why_policy.clone(),
    ];
    answer.extend(gains(plan, it));
    if let Some(price) = it.price_per_million {
        answer.push(format!("A million requests cost {}, saturated.", price_text(price)));
    }
    answer.extend(not_worth_it(&plan.no_gain));
    answer
}

fn gains(plan: &Plan, it: &Recommendation) -> Option<String> {
    let cell = plan.recommended()?;
    let parts: Vec<String> = it
        .gains
        .iter()
        .map(|gain| format!("{} times as many as {}", ratio(gain.throughput_ratio), gain.over))
        .collect();
    let served = format!(
        "Saturated it serves {} requests/s, and {} of the requests cause no read",
        plus_minus(cell.throughput, 1.0, ""),
        plus_minus(cell.hit_ratio, 100.0, " %")
    );
    let others = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    Some(format!("{served}{others}."))
}

/// A price with at least three digits that count.
fn price_text(price: f64) -> String {
    if price >= 1.0 || price <= 0.0 {
        return number(price);
    }
    let digits = (2.0 - price.log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{price:.digits$}")
}

fn ratio(value: Estimate) -> String {
    match value.error {
        0.0 => format!("{:.2}", value.value),
        error => format!("{:.2} (+- {error:.2})", value.value),
    }
}

fn plus_minus(estimate: Estimate, scale: f64, unit: &str) -> String {
    let value = figure(estimate.value * scale, unit);
    match estimate.error {
        0.0 => format!("{value}{unit}"),
        error => format!("{value}{unit} (+- {})", figure(error * scale, unit)),
    }
}

fn figure(value: f64, unit: &str) -> String {
    if unit == " %" { format!("{value:.1}") } else { number(value) }
}

/// Where locality does not pay, reason by reason.
fn not_worth_it(no_gain: &[NoGain]) -> Option<String> {
    let mut reasons: Vec<&str> = Vec::new();
    for cluster in no_gain {
        if !reasons.contains(&cluster.why.as_str()) {
            reasons.push(&cluster.why);
        }
    }
    let one = |why: &&str| {
        let of = || no_gain.iter().filter(|cluster| cluster.why == *why);
        let mut sizes: Vec<u64> = of().map(|cluster| cluster.memory_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let part = |size: &u64| {
            let counts =
                of().filter(|cluster| cluster.memory_bytes == *size).map(|cluster| cluster.nodes.to_string());
            format!("with {} each on {} nodes", Bytes(*size), counts.collect::<Vec<_>>().join(", "))
        };
        format!("{}, for {why}", sizes.iter().map(part).collect::<Vec<_>>().join(" and "))
    };
    let parts: Vec<String> = reasons.iter().map(one).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "Knowing contents is not worth it (less than 5 % more throughput and less than 5 points more hits) {}. \
             There the simplest policy will do.",
            parts.join("; ")
        )
    })
}

/// Rows of cells, the head first.
pub(crate) type Rows = Vec<Vec<String>>;

/// Policy by nodes, at the recommended memory or the largest.
pub(crate) fn grid(plan: &Plan) -> Rows {
    let it = plan.recommendation.as_ref();
    let largest = plan.cells.iter().map(|cell| cell.memory_bytes).max().unwrap_or(0);
    let memory = it.map_or(largest, |it| it.memory_bytes);
    let mut counts: Vec<u16> = plan.cells.iter().map(|cell| cell.nodes).collect();
    counts.sort_unstable();
    counts.dedup();
    let head = format!("requests/s, no read with {}", Bytes(memory));
    let mut rows = vec![std::iter::once(head).chain(counts.iter().map(|count| nodes(*count))).collect()];
    let mut policies: Vec<&str> = Vec::new();
    for cell in &plan.cells {
        if !policies.contains(&cell.policy.as_str()) {
            policies.push(&cell.policy);
        }
    }
    for policy in policies {
        let text = |count: &u16| {
            let cell = plan.cell(policy, *count, memory);
            let mark = it.is_some_and(|it| it.policy == policy && it.nodes == *count);
            cell.map_or_else(String::new, |cell| {
                format!(
                    "{}{} {:>5.1} %",
                    if mark { "> " } else { "" },
                    number(cell.throughput.value.round()),
                    cell.hit_ratio.value * 100.0
                )
            })
        };
        rows.push(std::iter::once(policy.to_owned()).chain(counts.iter().map(text)).collect());
    }
    let ceilings =
        |count: &u16| plan.ceilings.iter().find(|row| (row.nodes, row.memory_bytes) == (*count, memory));
    let mut bound = |name: &str, of: fn(&larder_sim::plan::CeilingRow) -> (Option<f64>, f64)| {
        let text = |count: &u16| {
            ceilings(count).map(of).map_or_else(String::new, |(speed, hits)| {
                let speed = speed.map_or_else(|| "-".to_owned(), |speed| number(speed.round()));
                format!("{speed} {:>5.1} %", hits * 100.0)
            })
        };
        rows.push(std::iter::once(name.to_owned()).chain(counts.iter().map(text)).collect());
    };
    bound("(clairvoyant)", |row| (row.clairvoyant_throughput, row.clairvoyant_hit_ratio));
    bound("(unbounded)", |row| (row.unbounded_throughput, row.unbounded_hit_ratio));
    rows
}

/// Every policy on the recommended cluster.
pub(crate) fn cluster(plan: &Plan, it: &Recommendation) -> Rows {
    let mut head =
        vec!["policy", "requests/s", "+-", "vs rr", "no read", "+-", "origin/request", "imbalance", "cpu"];
    head.extend(["p50 ms", "p99 ms", "refused"]);
    let mut rows: Rows = vec![head.into_iter().map(str::to_owned).collect()];
    let base = plan.cell("rr", it.nodes, it.memory_bytes).map(|cell| cell.throughput.value);
    for cell in
        plan.cells.iter().filter(|cell| (cell.nodes, cell.memory_bytes) == (it.nodes, it.memory_bytes))
    {
        rows.push(row(cell, base, cell.policy == it.policy));
    }
    rows
}

fn row(cell: &Cell, base: Option<f64>, mark: bool) -> Vec<String> {
    let error = |estimate: Estimate, scale: f64, unit: &str| match estimate.error {
        0.0 => "0".to_owned(),
        error => format!("{}{unit}", figure(error * scale, unit)),
    };
    let at = |of: fn(&larder_sim::plan::AtLoad) -> String| {
        cell.at_load.as_ref().map_or_else(|| "-".to_owned(), of)
    };
    vec![
        format!("{}{}", if mark { "> " } else { "" }, cell.policy),
        number(cell.throughput.value.round()),
        error(cell.throughput, 1.0, ""),
        base.map_or_else(
            || "-".to_owned(),
            |base| format!("{:.2}x", cell.throughput.value / base.max(f64::MIN_POSITIVE)),
        ),
        format!("{:.1} %", cell.hit_ratio.value * 100.0),
        error(cell.hit_ratio, 100.0, " %"),
        Bytes(cell.origin_bytes.value as u64).to_string(),
        format!("{:.2}", cell.imbalance.value),
        format!("{:.0} %", cell.cpu_busy * 100.0),
        at(|at| number(at.p50_s.value * 1e3)),
        at(|at| number(at.p99_s.value * 1e3)),
        at(|at| format!("{:.1} %", at.refused_share * 100.0)),
    ]
}

fn table(out: &mut impl Write, rows: &Rows) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (at, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        if at == 0 {
            writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1)))?;
        }
    }
    Ok(())
}

/// A paragraph of at most 100 columns.
fn paragraph(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > 100 {
            writeln!(out)?;
            column = 0;
        }
        if column > 0 {
            write!(out, " ")?;
            column += 1;
        }
        write!(out, "{word}")?;
        column += length;
    }
    writeln!(out)
}

/// How it was found and how sure it is: pairs of a word and its meaning.
pub(crate) fn method(report: &PlanReport) -> Vec<(&'static str, String)> {
    let plan = &report.plan;
    let (log, method) = (&plan.log, &plan.method);
    let rate =
        |rate: Option<f64>| rate.map_or_else(|| "unknown".to_owned(), |rate| format!("{}/s", number(rate)));
    let mut rows = vec![(
        "log",
        format!(
            "{} requests to {} targets, working set {}, mean reply {}, hottest target {:.1} %, rate of what was replayed {} \
             (busiest minute {})",
            number(log.requests as f64),
            number(log.targets as f64),
            Bytes(log.working_set_bytes),
            Bytes(log.request_bytes_mean as u64),
            log.hottest_share * 100.0,
            rate(log.rate_mean),
            rate(log.rate_peak)
        ),
    )];
    rows.extend(report.logs.iter().map(|log| ("left out", left_out(log))));
    rows.push(("replay", replay(plan)));
    rows.extend(method.checked.iter().map(|check| ("check", checked(check))));
    rows.extend(plan.spreads.iter().map(|spread| ("spread", spread_over(spread))));
    rows.push((
        "warm-up",
        format!(
            "the first {} requests are not measured; {:.1} % of the others are the first for their target",
            number(log.warmup_requests as f64),
            log.cold_share * 100.0
        ),
    ));
    rows.push((
        "model",
        format!(
            "simulated nodes ({}{}), {} caches, T_low {}, T_high {}; throughput with S requests outstanding; \
             'no read' and hits: requests that cause no read of their own",
            method.costs,
            if report.costs_from_file {
                ""
            } else {
                ": default costs, not measured on your machine; see larder sim calibrate"
            },
            method.cache,
            method.thresholds.0,
            method.thresholds.1
        ),
    ));
    if let Some((load, whence)) = &plan.load {
        rows.push((
            "delays",
            format!("p50 and p99 at {} requests/s at random times ({whence})", number(*load)),
        ));
    }
    rows
}

fn checked(check: &Check) -> String {
    format!(
        "{} on {} with {}: samples said {} requests/s and {} hits; {} says {} and {:.1} %",
        check.policy,
        nodes(check.nodes),
        Bytes(check.memory_bytes),
        plus_minus(check.sampled_throughput, 1.0, ""),
        plus_minus(check.sampled_hit_ratio, 100.0, " %"),
        if check.exact {
            "the whole log".to_owned()
        } else {
            format!("another sample, of {:.3} %,", check.rate * 100.0)
        },
        number(check.throughput),
        check.hit_ratio * 100.0
    )
}

fn spread_over(spread: &Spread) -> String {
    format!(
        "{}: {} to {} requests/s, {:.1} to {:.1} % hits",
        spread.what,
        number(spread.throughput.0),
        number(spread.throughput.1),
        spread.hit_ratio.0 * 100.0,
        spread.hit_ratio.1 * 100.0
    )
}

fn replay(plan: &Plan) -> String {
    let method = &plan.method;
    let runs =
        format!("{} runs, {} requests simulated", method.runs, number(method.requests_simulated as f64));
    let short = if method.rate > method.rate_wanted * 1.01 {
        format!(
            "; samples of {:.2} % would have fewer than the {} requests that the largest cluster wants",
            method.rate_wanted * 100.0,
            number(method.sample_floor as f64)
        )
    } else {
        String::new()
    };
    if method.samples == 0 {
        return format!("the whole log in every run, no sampling error{short}; {runs}");
    }
    format!(
        "{} disjoint samples of {:.2} % of the targets ({} requests each; {} hot targets in all of them), seed {}{short}; {runs}. \
         +- is 95 % confidence over the samples, plus what half the rate changes, what the check was off, and the \
         requests for objects too large for a sample (at most {:.2} %)",
        method.samples,
        method.rate * 100.0,
        number(method.sample_requests as f64),
        number(method.hot_targets as f64),
        method.seed,
        method.too_large_share * 100.0
    )
}

fn left_out(log: &LogInfo) -> String {
    let part = |count: u64, what: &str| (count > 0).then(|| format!("{} {what}", number(count as f64)));
    let parts: Vec<String> = [
        part(log.other_methods, "not GET"),
        part(log.other_statuses, "with a status other than 200"),
        part(log.empty, "without a body"),
        part(log.malformed, "malformed"),
        part(log.over_targets_max, "beyond the limit of targets"),
        log.assumed_bytes.map(|bytes| format!("sizes unknown, each taken as {}", Bytes(bytes))),
        log.tokens.then(|| "sizes are tokens, taken as bytes".to_owned()),
        log.cut.then(|| "the rest of the file, too many requests".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let name: String = log.name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let what = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
    let first = log.first_malformed.first().map(|first| format!(" (the first: {first})")).unwrap_or_default();
    format!("{name}: {what}{first}, of {} lines", number(log.lines as f64))
}
