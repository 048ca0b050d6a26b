//! The report of a run, as a text table and as JSON.

use crate::model::judge::SharedCount;
use crate::model::{Rule, sharing};
use crate::run::Outcome;
use crate::transcript::transcript;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Version of the JSON report.
const VERSION: u64 = 1;

/// Meaning of the first table's columns.
const LEGEND: &str = "\
validated: stored replies used after a 304 for the request   across: replies of one node used at another
stored, waited: of the requests that a stored reply (a reply on its way) may serve, the share that it served
repeated: further exchanges for one request (hedges, retries)   dropped: requests that the broken node closed on

";

fn count(number: Option<u64>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn percent(count: SharedCount) -> String {
    match count.allowed {
        0 => "-".to_owned(),
        allowed => format!("{:.1} %", count.done as f64 * 100.0 / allowed as f64),
    }
}

/// Formats the tables of systems and rules.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<8} {:>9} {:>9} {:>9} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "system",
        "cases",
        "requests",
        "exchanges",
        "wrong",
        "validated",
        "stored",
        "waited",
        "across",
        "repeated",
        "dropped",
        "cases/s"
    );
    for outcome in outcomes {
        let rate = outcome.cases as f64 / outcome.elapsed.as_secs_f64().max(0.001);
        let _ = writeln!(
            out,
            "{:<8} {:>9} {:>9} {:>9} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8.0}",
            outcome.topology,
            outcome.cases,
            outcome.requests,
            outcome.exchanges,
            outcome.wrong,
            outcome.validated,
            percent(outcome.stored),
            percent(outcome.waited),
            count(outcome.across),
            outcome.repeated,
            count(outcome.dropped),
            rate,
        );
    }
    out.push_str(LEGEND);
    let _ = write!(out, "{:<18} {:<27}", "rule", "section");
    for outcome in outcomes {
        let _ = write!(out, " {:>15}", outcome.topology);
    }
    out.push_str("   (broken / decisive)\n");
    for rule in Rule::ALL {
        let _ = write!(out, "{:<18} {:<27}", rule.name(), rule.section());
        // `Validation` judges used 304s only. It never decides about a reply that was not renewed.
        let decides = *rule != Rule::Validation && sharing().any(|known| known == *rule);
        for outcome in outcomes {
            let broken = outcome.broken.get(rule).copied().unwrap_or(0);
            let decisive = outcome.decisive.get(rule).copied().unwrap_or(0);
            let decisive = if decides { decisive.to_string() } else { "-".to_owned() };
            let _ = write!(out, " {:>15}", format!("{broken} / {decisive}"));
        }
        out.push('\n');
    }
    out
}

/// Builds the JSON report.
pub fn json(seed: u64, outcomes: &[Outcome]) -> Value {
    json!({
        "version": VERSION,
        "seed": seed,
        "passes": outcomes.iter().all(Outcome::passes),
        "systems": outcomes.iter().map(system).collect::<Vec<_>>(),
    })
}

fn system(outcome: &Outcome) -> Value {
    let (seen, all) = outcome.coverage.pairs();
    let count = |count: SharedCount| json!({ "allowed": count.allowed, "done": count.done });
    let rules = Rule::ALL.iter().map(|rule| {
        json!({
            "rule": rule.name(),
            "section": rule.section(),
            "broken": outcome.broken.get(rule).copied().unwrap_or(0),
            "decisive": outcome.decisive.get(rule).copied().unwrap_or(0),
        })
    });
    let failures = outcome.failures.iter().map(|failure| {
        json!({
            "case": format!("{}:{}", failure.record.case.seed, failure.number),
            "rule": failure.rule.name(),
            "transcript": transcript(outcome.topology, &failure.record, &failure.verdict),
        })
    });
    json!({
        "system": outcome.topology,
        "cases": outcome.cases,
        "requests": outcome.requests,
        "exchanges": outcome.exchanges,
        "strays": outcome.strays,
        "wrong": outcome.wrong,
        "idle": outcome.idle(),
        "across": outcome.across,
        "repeated": outcome.repeated,
        "dropped": outcome.dropped,
        "own": outcome.own,
        "validated": outcome.validated,
        "generated": outcome.generated,
        "stored": count(outcome.stored),
        "waited": count(outcome.waited),
        "pairs_seen": seen,
        "pairs": all,
        "seconds": outcome.elapsed.as_secs_f64(),
        "rules": rules.collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
    })
}
