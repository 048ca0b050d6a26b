//! The plan as text: sentences, then tables.

use std::io::{self, Write};

use larder_core::Bytes;
use larder_sim::plan::{Check, Estimate, LowGainCluster, Plan, Recommendation, Spread};
use larder_sim::text::{cluster, printable};

use super::data::{LogInfo, PlanReport};
use super::proxy::ProxyReport;
use super::tables::{self, figure};
use crate::report::{counted, number, rate};

/// Writes the whole plan.
pub(crate) fn write(report: &PlanReport, out: &mut impl Write) -> io::Result<()> {
    let plan = &report.plan;
    if let Some(proxy) = &report.proxy {
        for sentence in proxy.sentences(plan) {
            write_paragraph(out, &sentence)?;
        }
        writeln!(out)?;
        if let Some(grid) = proxy.table(plan) {
            tables::write(&grid, out)?;
            writeln!(out)?;
        }
    }
    for sentence in result_sentences(report) {
        write_paragraph(out, &sentence)?;
    }
    writeln!(out)?;
    for grid in tables::grids(plan) {
        tables::write(&grid, out)?;
        writeln!(out)?;
    }
    if let Some(it) = &plan.recommendation {
        writeln!(out, "On {}:", cluster(it.nodes, Bytes(it.memory_bytes)))?;
        tables::write(&tables::cluster(plan, it), out)?;
        writeln!(out)?;
    }
    for (what, how) in method_rows(report) {
        writeln!(out, "{what:<12} {how}")?;
    }
    if let Some((task, lines)) = report.proxy.as_ref().and_then(ProxyReport::task) {
        writeln!(out)?;
        write_paragraph(out, &task)?;
        write!(out, "\n{lines}")?;
    }
    for warning in report.warnings() {
        writeln!(out, "\nwarning: {warning}")?;
    }
    Ok(())
}

/// Returns the sentences of the result. With a proxy they say that they are about larder's own switch.
pub(super) fn result_sentences(report: &PlanReport) -> Vec<String> {
    let mut sentences = plan_sentences(&report.plan);
    if let (Some(proxy), Some(first)) = (&report.proxy, sentences.first_mut()) {
        first.insert_str(0, &format!("With larder's own switch in place of {}: ", proxy.proxy.name()));
    }
    sentences
}

fn plan_sentences(plan: &Plan) -> Vec<String> {
    let Some(it) = &plan.recommendation else { return plan.unreached.iter().cloned().collect() };
    let mut sentences = vec![
        format!(
            "Use {} on {} with {} of memory for contents{}. {}",
            it.policy,
            counted(it.nodes, "node"),
            Bytes(it.memory_bytes).exact(),
            if it.nodes == 1 { "" } else { " each" },
            it.why_cluster
        ),
        it.why_policy.clone(),
    ];
    sentences.extend(describe_gains(plan, it));
    if let Some(price) = it.price_per_million {
        sentences.push(format!("At saturation, a million requests cost {}.", price_text(price)));
    }
    sentences.extend(describe_no_gain(&plan.no_gain));
    sentences
}

fn describe_gains(plan: &Plan, it: &Recommendation) -> Option<String> {
    let cell = plan.recommended()?;
    let parts: Vec<String> = it
        .gains
        .iter()
        .map(|gain| format!("{} times as many as {}", ratio(gain.throughput_ratio), gain.over))
        .collect();
    let served = format!(
        "At saturation it serves {} requests/s, and {} of the requests cause no read",
        plus_minus(cell.throughput, 1.0, ""),
        plus_minus(cell.hit_ratio, 100.0, " %")
    );
    let others = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    Some(format!("{served}{others}."))
}

/// Formats a price with at least three significant digits.
fn price_text(price: f64) -> String {
    if price >= 1.0 || price <= 0.0 {
        return number(price);
    }
    let digits = (2.0 - price.log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{price:.digits$}")
}

/// Formats a ratio with its error.
pub(super) fn ratio(value: Estimate) -> String {
    match value.error {
        0.0 => format!("{:.2}", value.value),
        error => format!("{:.2} (+- {error:.2})", value.value),
    }
}

/// Formats a value with its error.
pub(super) fn plus_minus(estimate: Estimate, scale: f64, unit: &str) -> String {
    let value = figure(estimate.value * scale, unit);
    match estimate.error {
        0.0 => format!("{value}{unit}"),
        error => format!("{value}{unit} (+- {})", figure(error * scale, unit)),
    }
}

/// Describes the clusters for which locality gains nothing, by reason.
fn describe_no_gain(no_gain: &[LowGainCluster]) -> Option<String> {
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
            format!("with {} each on {} nodes", Bytes(*size).exact(), counts.collect::<Vec<_>>().join(", "))
        };
        format!("{}, for {why}", sizes.iter().map(part).collect::<Vec<_>>().join(" and "))
    };
    let parts: Vec<String> = reasons.iter().map(one).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "Policies that look at contents gain little (less than 5 % more throughput and less than 5 points more hits) {}. \
             There the simplest policy is enough.",
            parts.join("; ")
        )
    })
}

/// Writes a paragraph of at most 100 columns.
fn write_paragraph(out: &mut impl Write, text: &str) -> io::Result<()> {
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

/// Returns the rows on the method and its accuracy: pairs of a label and a text.
pub(super) fn method_rows(report: &PlanReport) -> Vec<(&'static str, String)> {
    let plan = &report.plan;
    let (log, method) = (&plan.log, &plan.method);
    let known = |per_s: Option<f64>| per_s.map_or_else(|| "unknown".to_owned(), rate);
    let mut rows = vec![(
        "log",
        format!(
            "{} to {}, working set {}, mean reply {}, hottest target {:.1} %, rate of what was replayed {} \
             (busiest minute {})",
            counted(log.requests, "request"),
            counted(log.targets, "target"),
            Bytes(log.working_set_bytes),
            Bytes(log.request_bytes_mean as u64),
            log.hottest_share * 100.0,
            known(log.rate_mean),
            known(log.rate_peak)
        ),
    )];
    rows.extend(report.logs.iter().map(|log| ("left out", describe_omissions(log))));
    rows.push(("replay", describe_replay(plan)));
    rows.extend(method.checked.iter().map(|check| ("check", describe_check(check))));
    rows.extend(plan.spreads.iter().map(|spread| ("spread", describe_spread(spread))));
    rows.push((
        "warm-up",
        format!(
            "the first {} not measured; {:.1} % of the others are the first for their target",
            match log.warmup_requests {
                1 => "request is".to_owned(),
                many => format!("{} requests are", number(many as f64)),
            },
            log.cold_share * 100.0
        ),
    ));
    rows.push((
        "model",
        format!(
            "simulated nodes ({}{}), {} caches, T_low {}, T_high {}; throughput with S requests outstanding; \
             'no read' and hits: requests that cause no read",
            method.costs,
            if report.costs_from_file {
                ""
            } else {
                ": default costs, not measured on your machine; --costs FILE sets your own"
            },
            method.cache,
            method.thresholds.0,
            method.thresholds.1
        ),
    ));
    if let Some((load, whence)) = &plan.load {
        rows.push(("delays", format!("p50 and p99 at {} at random times ({whence})", rate(*load))));
    }
    rows
}

fn describe_check(check: &Check) -> String {
    format!(
        "{} on {}: samples said {} requests/s and {} hits; {} says {} and {:.1} %",
        check.policy,
        cluster(check.nodes, Bytes(check.memory_bytes)),
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

fn describe_spread(spread: &Spread) -> String {
    format!(
        "{}: {} to {} requests/s, {:.1} to {:.1} % hits",
        spread.what,
        number(spread.throughput.0),
        number(spread.throughput.1),
        spread.hit_ratio.0 * 100.0,
        spread.hit_ratio.1 * 100.0
    )
}

fn describe_replay(plan: &Plan) -> String {
    let method = &plan.method;
    let runs = format!(
        "{}, {} simulated",
        counted(method.runs as u64, "run"),
        counted(method.requests_simulated, "request")
    );
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
        "{} of {:.2} % of the targets, disjoint ({} requests each; {} in all of them), seed {}{short}; {runs}. \
         +- is 95 % confidence over the samples, plus what half the rate changes, what the check was off, and the \
         requests for objects too large for a sample (at most {:.2} %)",
        counted(method.samples as u64, "sample"),
        method.rate * 100.0,
        number(method.sample_requests as f64),
        counted(method.hot_targets, "hot target"),
        method.seed,
        method.too_large_share * 100.0
    )
}

fn describe_omissions(log: &LogInfo) -> String {
    let part = |count: u64, what: &str| (count > 0).then(|| format!("{} {what}", number(count as f64)));
    let parts: Vec<String> = [
        part(log.other_methods, "not GET"),
        part(log.other_statuses, "with a status other than 200"),
        part(log.empty, "without a body"),
        part(log.malformed, "malformed"),
        part(log.over_targets_max, "beyond the limit of targets"),
        log.assumed_bytes.map(|bytes| format!("sizes unknown, each taken as {}", Bytes(bytes).exact())),
        log.tokens.then(|| "sizes are tokens, taken as bytes".to_owned()),
        log.cut.then(|| "the rest of the file, too many requests".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let name = printable(&log.name);
    let what = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
    let first = log.first_malformed.first().map(|first| format!(" (the first: {first})")).unwrap_or_default();
    format!("{name}: {what}{first}, of {}", counted(log.lines, "line"))
}
