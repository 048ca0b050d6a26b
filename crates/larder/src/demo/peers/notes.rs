//! Notes on the figures: comparisons with the papers, and reasons for differences.

use super::published::{MODEL_ERROR, WARD_OVER, range};
use super::published_ratios;
use super::result::{PeersFigures, PeersReport, Prediction, Sweep, SweepPoint, SystemReport};
use super::table::percent;
use crate::report::number;

/// Smallest difference of two shares that is reported.
const DIFFERENCE_MIN: f64 = 0.02;

/// Writes the notes of a report.
pub(super) fn write_notes(report: &PeersReport) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(point) = typical(report) else { return notes };
    if let (Some(trad), Some(press)) = (point.system("trad"), point.system("press")) {
        notes.push(gain(&trad.median, press));
        notes.extend(explain_gain(point.model.as_ref()));
        notes.extend(first_requests(report).filter(|_| point.model.is_some()));
        notes.extend(shares(&trad.median, &press.median, report.cluster.nodes));
    }
    notes.extend(card(point));
    notes.extend(switch(point));
    notes.extend(ward(point));
    match report.sweep {
        Some(Sweep::Memory) => notes.extend(memory(report)),
        Some(Sweep::LoadStep) => notes.extend(steps(report)),
        None => {}
    }
    notes.push(format!(
        "All nodes and clients share the {} processors of this machine, so forwarding at nodes also slows the clients. In the paper of PRESS, \
         each node and the clients had their own processors",
        report.cluster.cores
    ));
    notes
}

/// Returns the point whose memory is closest to the paper's, which is about an eighth of the working set. In
/// a sweep of load steps, returns the point with step 4.
fn typical(report: &PeersReport) -> Option<&SweepPoint> {
    let from = |point: &&SweepPoint| match report.sweep {
        Some(Sweep::LoadStep) => (f64::from(point.load_step) - 4.0).abs(),
        _ => (point.memory_share - 0.12).abs(),
    };
    report.points.iter().min_by(|a, b| from(a).total_cmp(&from(b)))
}

fn gain(trad: &PeersFigures, press: &SystemReport) -> String {
    let gain = (press.over_trad.unwrap_or(1.0) - 1.0) * 100.0;
    let (least, most) = range(|row| row.gain);
    let beside = match gain {
        gain if gain < 0.0 => {
            "but here it is slower, because forwarding costs more than the avoided misses".to_owned()
        }
        gain if gain < least - 5.0 => "less here".to_owned(),
        gain if gain > most + 5.0 => "more here".to_owned(),
        _ => "as here".to_owned(),
    };
    format!(
        "PRESS serves {:.0} % {} than independent nodes (trad misses {:.1} %, PRESS {:.1} %); its authors measured 57, 48, 50 and 49 % more on \
         their four traces, {beside}",
        gain.abs(),
        if gain < 0.0 { "less" } else { "more" },
        (1.0 - trad.hit_ratio) * 100.0,
        (1.0 - press.median.hit_ratio) * 100.0,
    )
}

/// Explains the gain by the costs of disk, forwarding and processor.
fn explain_gain(model: Option<&Prediction>) -> Vec<String> {
    let Some(model) = model else { return Vec::new() };
    let (read, fast, slow) = published_ratios();
    let mut notes = vec![format!(
        "The gain depends on the costs of a read and of a forwarded request relative to a local reply: here {} and {} times, in the paper {} \
         and {} times on its user-level network ({} on kernel TCP, as here)",
        number(model.read_over_local),
        number(model.forward_over_local),
        number(read),
        number(fast),
        number(slow),
    )];
    if let Some(break_even) = model.break_even_ms {
        notes.push(format!(
            "By the model, trad would be as fast as PRESS with reads of {} ms instead of {} ms, and faster than PRESS on faster stores",
            number(break_even),
            number(model.read_ms)
        ));
    }
    if let [trad, press, shared] = &model.rows[..] {
        notes.push(format!(
            "The error of the model is {:+.0} % for trad (in the paper up to {:.0} %), {:+.0} % for PRESS, and {:+.0} % for PRESS with the \
             measured shares (in the paper {:.0} % on average)",
            trad.error * 100.0,
            MODEL_ERROR.1 * 100.0,
            press.error * 100.0,
            shared.error * 100.0,
            MODEL_ERROR.0 * 100.0,
        ));
    }
    notes
}

/// Notes the share of requests that no system finds in memory. The model's hit ratio does not include it.
fn first_requests(report: &PeersReport) -> Option<String> {
    let trace = &report.trace;
    let rest = trace.requests.saturating_sub(trace.warmup_requests).max(1);
    let share = trace.cold_misses as f64 / rest as f64;
    (share >= DIFFERENCE_MIN).then(|| {
        format!(
            "{:.1} % of the requests after the warm-up are the first for their target, so no cache has the reply; the model does not include them in \
             the shares that it computes",
            share * 100.0
        )
    })
}

fn shares(trad: &PeersFigures, press: &PeersFigures, nodes: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let (least, most) = range(|row| row.trad);
    let hits = trad.hit_ratio * 100.0;
    if !(least - 1.0..=most + 1.0).contains(&hits) {
        notes.push(format!(
            "Independent nodes hit {hits:.1} % in memory, in the paper {least} to {most} %: the possible gain is {}",
            if hits < least { "larger" } else { "smaller" }
        ));
    }
    let even = (nodes as f64 - 1.0) / nodes as f64;
    let (least, most) = range(|row| row.forwarded);
    if !(least / 100.0 - DIFFERENCE_MIN..=most / 100.0 + DIFFERENCE_MIN).contains(&press.forwarded) {
        notes.push(format!(
            "{:.1} % are forwarded, in the paper {least} to {most} %; with each target at one of {nodes} nodes it would be {:.1} %",
            press.forwarded * 100.0,
            even * 100.0
        ));
    }
    if let Some(peers) = &press.peers
        && peers.sharing < nodes
    {
        notes.push(format!(
            "{} of {nodes} nodes are independent at the end, because their own memory would miss few requests",
            nodes - peers.sharing
        ));
    }
    notes
}

/// Compares PRESS with a switch.
fn switch(point: &SweepPoint) -> Vec<String> {
    let (Some(lard), Some(press)) = (point.system("lard-r"), point.system("press")) else {
        return Vec::new();
    };
    let ratio = lard.median.requests_per_s / press.median.requests_per_s.max(f64::MIN_POSITIVE);
    vec![format!(
        "A switch with LARD/R serves {ratio:.2} times as many requests as PRESS; a request costs {} us at nodes and switch, against {} us. Every \
         request passes the switch, and no request is forwarded between nodes",
        number(lard.median.cpu_us_nodes + lard.median.cpu_us_switch),
        number(press.median.cpu_us_nodes),
    )]
}

/// Compares CARD with a switch.
fn card(point: &SweepPoint) -> Option<String> {
    let card = &point.system("card")?.median;
    let lard = &point.system("lard-r")?.median;
    let messages = card.peers.as_ref().map_or(0.0, |peers| peers.messages);
    Some(format!(
        "CARD, where nodes ask a dispatcher, serves {:.2} times as many requests as the switch with LARD/R, with {messages:.2} messages per \
         request; {:.1} % of its requests are forwarded",
        card.requests_per_s / lard.requests_per_s.max(f64::MIN_POSITIVE),
        card.forwarded * 100.0
    ))
}

/// Compares WARD with round robin and with pure partitioning, if they ran.
fn ward(point: &SweepPoint) -> Vec<String> {
    let speed = |name: &str| point.system(name).map(|system| system.median.requests_per_s);
    let Some(ward) = speed("ward") else { return Vec::new() };
    let over = |what: &str, speed: Option<f64>, published: f64| {
        speed.filter(|speed| *speed > 0.0).map(|speed| {
            format!("WARD serves {:.2} times as many requests as {what}; its authors simulated up to {published} times at 16 nodes", ward / speed)
        })
    };
    let rows = [
        over("round robin", speed("trad"), WARD_OVER.0),
        over("pure partitioning", speed("part"), WARD_OVER.1),
    ];
    rows.into_iter().flatten().chain(ward_own(point, ward)).collect()
}

/// Compares WARD with tables that the nodes build with WARD with a given table. `given` is the throughput of
/// the latter.
fn ward_own(point: &SweepPoint, given: f64) -> Option<String> {
    let own = &point.system("ward-own")?.median;
    let tables = own.peers.as_ref().map_or(0, |peers| peers.tables);
    (given > 0.0).then(|| {
        format!(
            "With tables from the counts of the nodes ({tables} tables during the measurement), WARD serves {:.2} times as many requests as with \
             a table from the warm-up requests; {} of its requests are forwarded",
            own.requests_per_s / given,
            percent(own.forwarded),
        )
    })
}

fn memory(report: &PeersReport) -> Vec<String> {
    let gain = |point: &&SweepPoint| point.system("press").and_then(|press| press.over_trad);
    let (Some(first), Some(last)) =
        (report.points.iter().find_map(|p| gain(&p)), report.points.iter().rev().find_map(|p| gain(&p)))
    else {
        return Vec::new();
    };
    let peak = report
        .points
        .iter()
        .filter(|p| gain(p).is_some())
        .max_by(|a, b| gain(a).unwrap_or(0.0).total_cmp(&gain(b).unwrap_or(0.0)));
    let mut notes = vec![format!(
        "With the least memory PRESS serves {first:.2} times as many requests as trad, and with room for the whole working set in each node \
         {last:.2} times. In the paper, memory helps trad most, and both are equal if one memory holds the working set"
    )];
    notes.extend(peak.map(|point| format!("The gain is largest with {}", report.setting(point))));
    notes
}

fn steps(report: &PeersReport) -> Vec<String> {
    let rows: Vec<(u32, &PeersFigures)> = report
        .points
        .iter()
        .filter_map(|point| Some((point.load_step, &point.system("press")?.median)))
        .collect();
    let (Some(least), Some(most)) = (
        rows.iter().map(|row| row.1.requests_per_s).reduce(f64::min),
        rows.iter().map(|row| row.1.requests_per_s).reduce(f64::max),
    ) else {
        return Vec::new();
    };
    vec![format!(
        "Throughput differs by at most {:.0} % between steps. In the paper, steps of 2 to 8 are equal; 1 causes too many messages, and more than \
         8 balances the load badly",
        (most / least.max(f64::MIN_POSITIVE) - 1.0) * 100.0
    )]
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::sample;
    use super::*;

    #[test]
    fn figures_are_compared_with_the_papers() {
        let mut report = sample();
        let notes = write_notes(&report).join("\n");
        for expected in
            ["50 % more", "57, 48, 50 and 49", "as here", "with reads of 5 ms", "up to 38 %", "-10 %"]
        {
            assert!(notes.contains(expected), "{expected} in\n{notes}");
        }
        report.points[0].systems[1].over_trad = Some(0.9);
        assert!(write_notes(&report).join("\n").contains("10 % less than independent nodes"));
        report.sweep = Some(Sweep::Memory);
        assert!(write_notes(&report).join("\n").contains("With the least memory PRESS serves 0.90 times"));
        report.points.clear();
        assert!(write_notes(&report).is_empty());
    }
}
