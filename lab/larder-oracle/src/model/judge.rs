//! Judges a whole case.

use super::directives::Directives;
use super::forbidding;
use super::form::{Received, forwarded};
use super::rule::Rule;
use super::stored::Stored;
use crate::record::{BODY_MARK, Exchange, RENEWAL_MARK, Record, Reply, Request};

/// A reply that a rule forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Index of the step.
    pub step: usize,
    /// The rule.
    pub rule: Rule,
    /// The values that break it.
    pub detail: String,
}

/// The model's verdict on a case.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Every broken rule.
    pub violations: Vec<Violation>,
    /// For each pair of a request and a reply to an earlier request for which exactly one rule forbids sharing: the rule.
    pub decisive: Vec<Rule>,
    /// Requests that a reply to an earlier request was allowed to serve, and requests that it did serve.
    pub stored: Share,
    /// The same, if the reply was still on its way when the request came.
    pub waited: Share,
    /// Replies that were made from one to a request at another door.
    pub across: u64,
    /// Replies that were made for the request itself.
    pub own: u64,
    /// Stored replies that were used after a 304 for the request itself.
    pub validated: u64,
    /// Replies of larder itself, such as 504.
    pub generated: u64,
}

/// Requests that could be served without the origin, and those that were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Requests that a reply to another request was allowed to serve.
    pub allowed: u64,
    /// Number of these requests that were served so.
    pub done: u64,
}

/// Judges every reply of a case.
pub fn judge(record: &Record) -> Verdict {
    let mut verdict = Verdict::default();
    for step in 0..record.asked.len() {
        let reused = match &record.asked[step].reply {
            Ok(reply) => received(record, step, reply, &mut verdict),
            // A reply that breaks off at its first byte may leave nothing to pass on.
            Err(_) if record.exchanges.iter().any(|exchange| breaks_off_for(record, exchange, step)) => false,
            Err(error) => {
                let detail = error.clone();
                verdict.violations.push(Violation { step, rule: Rule::Unanswered, detail });
                false
            }
        };
        if record.asked[step].request.method != "POST" {
            candidates(record, step, reused, &mut verdict);
        }
    }
    for (step, (rule, detail)) in forwarded(record) {
        verdict.violations.push(Violation { step, rule, detail });
    }
    verdict
}

/// Whether an exchange broke off within its reply, and the request of a step may be served from that reply.
fn breaks_off_for(record: &Record, exchange: &Exchange, step: usize) -> bool {
    let may_serve =
        || Stored::new(record, exchange, Vec::new()).is_some_and(|it| forbidding(&it, step).is_empty());
    exchange.is_broken_off() && (exchange.step == step || may_serve())
}

/// Judges a reply. True if it was made from a reply to another request without asking the origin.
fn received(record: &Record, step: usize, reply: &Reply, verdict: &mut Verdict) -> bool {
    let (base, renewals) = marks(record, reply);
    let stored = base.and_then(|base| Stored::new(record, base, renewals.clone()));
    let form = Received { record, step, reply, stored: stored.as_ref() };
    let mut faults = form.faults();
    let mut is_reused = false;
    match &stored {
        None if renewals.is_empty() => {
            verdict.generated += 1;
            faults.extend(generated(record, step, reply));
        }
        None => match renewals.iter().find(|renewal| renewal.step != step) {
            Some(renewal) => {
                let detail = format!("a 304 of the origin to step {}", renewal.step + 1);
                faults.push((Rule::Validation, detail));
            }
            None => verdict.own += 1,
        },
        Some(stored) if stored.base.step == step => verdict.own += 1,
        Some(stored) => {
            is_reused = !stored.is_validated_for(step);
            let door = |step: usize| record.case.steps[step].door % record.doors.max(1);
            verdict.across += u64::from(door(step) != door(stored.base.step));
            verdict.validated += u64::from(!is_reused);
            let source = format!("made from the reply to step {}", stored.base.step + 1);
            faults.extend(forbidding(stored, step).into_iter().map(|rule| (rule, source.clone())));
        }
    }
    let violations = faults.into_iter().map(|(rule, detail)| Violation { step, rule, detail });
    verdict.violations.extend(violations);
    is_reused
}

/// The exchange that the reply's body comes from, and the 304s that renewed it.
fn marks<'a>(record: &'a Record, reply: &Reply) -> (Option<&'a Exchange>, Vec<&'a Exchange>) {
    let exchange = |number: &str| record.exchanges.get(number.parse::<usize>().ok()?);
    let base = reply.fields.first(BODY_MARK).and_then(exchange);
    let names = reply.fields.iter().filter_map(|(name, _)| name.strip_prefix(RENEWAL_MARK));
    let mut renewals: Vec<&Exchange> = names.filter_map(exchange).collect();
    renewals.sort_by_key(|renewal| renewal.arrived);
    (base, renewals)
}

/// RFC 9110 section 15.6, RFC 9111 section 5.2.1.7: a reply that larder makes itself has a cause.
fn generated(record: &Record, step: usize, reply: &Reply) -> Option<(Rule, String)> {
    let Request { method, fields: request, .. } = &record.asked[step].request;
    // Another request's exchange explains nothing: a waiting request whose leader fails has to ask the origin itself. The switch
    // answers 502 to a reply that breaks off before its first byte has gone to the client.
    let fails =
        |exchange: &Exchange| exchange.has_failed() || (record.loses_requests && exchange.is_broken_off());
    let has_failed = || record.exchanges.iter().any(|exchange| exchange.step == step && fails(exchange));
    let is_explained = match reply.status {
        504 if Directives::of_request(request).only_if_cached => true,
        502 if method == "POST" && record.loses_requests => true,
        500..=599 => has_failed(),
        304 => true,
        416 => request.has("range"),
        _ => false,
    };
    (!is_explained).then(|| (Rule::Unexplained, format!("status {} without a cause", reply.status)))
}

/// Counts which rules decide, and which requests could be served from replies to others.
fn candidates(record: &Record, step: usize, is_reused: bool, verdict: &mut Verdict) {
    let asked = record.asked[step].sent;
    let (mut has_stored, mut has_waited) = (false, false);
    for base in record.exchanges.iter().filter(|exchange| exchange.step != step) {
        let Some(stored) = Stored::new(record, base, Vec::new()) else { continue };
        if base.arrived > record.asked[step].done || stored.status == 304 {
            continue;
        }
        match forbidding(&stored, step).as_slice() {
            [] if base.ended.is_some_and(|ended| ended <= asked) => has_stored = true,
            [] if base.ended.is_some() && base.arrived <= asked => has_waited = true,
            [only] => verdict.decisive.push(*only),
            _ => {}
        }
    }
    let share = if has_stored {
        &mut verdict.stored
    } else if has_waited {
        &mut verdict.waited
    } else {
        return;
    };
    share.allowed += 1;
    share.done += u64::from(is_reused);
}
