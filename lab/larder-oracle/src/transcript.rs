//! The transcript of a case: requests, origin exchanges and replies in order of time, and the violated rules.

use crate::case::{CLIENTS, StartTime};
use crate::model::Verdict;
use crate::record::Record;
use crate::wire::Fields;
use std::fmt::Write as _;
use std::time::Duration;

/// Formats the transcript of a case that ran against the named system.
pub fn transcript(topology: &str, record: &Record, verdict: &Verdict) -> String {
    let case = &record.case;
    let mut out = String::new();
    for violation in &verdict.violations {
        let (step, rule) = (violation.step + 1, violation.rule);
        let _ = writeln!(out, "WRONG reply to step {step}: {} ({})", rule.name(), rule.section());
        let _ = writeln!(out, "  {}", rule.statement());
        let _ = writeln!(out, "  {}", violation.detail);
    }
    let replay = format!("--topology {topology} --case {}:{}", case.seed, case.number);
    let _ = writeln!(out, "replay with: larder-oracle {replay}");
    let mut events = requests(record);
    events.extend(exchanges(record));
    events.sort_by_key(|(at, _)| *at);
    for (at, text) in events {
        let _ = writeln!(out, "{:>8.1} ms  {text}", at.as_secs_f64() * 1_000.0);
    }
    out
}

fn requests(record: &Record) -> Vec<(Duration, String)> {
    let mut events = Vec::new();
    for (at, client_exchange) in record.client_exchanges.iter().enumerate() {
        let step = &record.case.steps[at];
        let start = match step.start {
            StartTime::After => "",
            StartTime::DuringHead => " while the origin holds a head",
            StartTime::DuringBody => " while the origin holds a body",
        };
        let number = at + 1;
        let mut text = format!("step {number}: {} sends{start}", CLIENTS[step.client]);
        let _ =
            write!(text, "\n{INDENT}> {} {}", client_exchange.request.method, client_exchange.request.target);
        lines(&mut text, ">", &client_exchange.request.fields);
        events.push((client_exchange.sent, text));
        let text = match &client_exchange.reply {
            Err(error) => format!("step {number}: no reply: {error}"),
            Ok(reply) => {
                let state = if reply.whole { "" } else { ", broken off" };
                let mut text = format!("step {number}: {} receives", CLIENTS[step.client]);
                let _ = write!(text, "\n{INDENT}< {} with {} bytes{state}", reply.status, reply.body.len());
                lines(&mut text, "<", &reply.fields);
                text
            }
        };
        events.push((client_exchange.done, text));
    }
    events
}

fn exchanges(record: &Record) -> Vec<(Duration, String)> {
    let mut events = Vec::new();
    for (number, exchange) in record.exchanges.iter().enumerate() {
        let mut text = format!("origin: exchange {number}, for step {}", exchange.step + 1);
        let _ = write!(text, "\n{INDENT}  > {}", exchange.method);
        lines(&mut text, "  >", &exchange.request_fields);
        events.push((exchange.arrived, text));
        let mut text = format!("origin: reply of exchange {number}");
        match &exchange.reply {
            None => text.push_str(": closes the connection"),
            Some(sent) => {
                let _ = write!(text, "\n{INDENT}  < {} with {} bytes", sent.status, sent.body.len());
                if exchange.ended.is_none() {
                    text.push_str(", broken off");
                }
                lines(&mut text, "  <", &sent.fields);
            }
        }
        events.push((exchange.replied.unwrap_or(exchange.arrived), text));
    }
    events
}

const INDENT: &str = "             ";

fn lines(text: &mut String, sign: &str, fields: &Fields) {
    for (name, value) in fields.iter() {
        let _ = write!(text, "\n{INDENT}{sign} {name}: {value}");
    }
}
