//! Freshness lifetime and age (RFC 9111 section 4.2).
//!
//! The harness does not know the exact second at which a cache received and used a reply, but it knows bounds. All
//! rules that forbid take the bound that favours the cache.

use super::directives::{members, seconds};
use super::stored::Stored;
use crate::wire::Fields;
use std::time::UNIX_EPOCH;

/// Statuses that a cache may give a lifetime by heuristic (RFC 9110 section 15.1).
const HEURISTIC: [u16; 12] = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501];
/// Longest lifetime by heuristic that larder documents.
const HEURISTIC_MAX_S: i64 = 86_400;

/// Whether a cache may give the status a lifetime by heuristic (RFC 9110 section 15.1).
pub fn is_heuristically_cacheable(status: u16) -> bool {
    HEURISTIC.contains(&status)
}

/// Freshness lifetime in seconds (RFC 9111 section 4.2.1): `s-maxage`, else `max-age`, else `Expires` minus `Date`,
/// else by heuristic.
pub fn lifetime_s(stored: &Stored<'_>) -> i64 {
    let directives = &stored.directives;
    if let Some(stated) = directives.s_maxage.or(directives.max_age) {
        return stated;
    }
    let date = date_s(&stored.fields, "date").unwrap_or_else(|| received_s(stored));
    if let Some(lifetime) = expires_s(stored, date).filter(|_| !directives.is_targeted) {
        return lifetime;
    }
    heuristic_s(stored, date)
}

/// RFC 9111 section 5.3: `Expires` minus `Date`. A date that is none is in the past.
fn expires_s(stored: &Stored<'_>, date: i64) -> Option<i64> {
    let text = stored.fields.first("expires")?;
    Some(parse_date(text).map_or(0, |expires| expires - date))
}

/// RFC 9111 section 4.2.2 allows any heuristic. larder documents a tenth of the time since `Last-Modified`, at most
/// a day, and none without it (docs/reference/node.md).
fn heuristic_s(stored: &Stored<'_>, date: i64) -> i64 {
    if !is_heuristically_cacheable(stored.status) && !stored.directives.public {
        return 0;
    }
    let modified = date_s(&stored.fields, "last-modified");
    modified.map_or(0, |modified| ((date - modified) / 10).clamp(0, HEURISTIC_MAX_S))
}

/// Seconds on the wall at which the last exchange's reply was received, at the earliest.
fn received_s(stored: &Stored<'_>) -> i64 {
    let last = stored.last();
    stored.record.clock.wall_s(last.replied.unwrap_or(last.arrived))
}

/// Least age in seconds that the reply can have had when it was used for the request of a step (RFC 9111 section
/// 4.2.3): the larger of `Age` and the time since `Date`, and the time since it was received.
pub fn age_min_s(stored: &Stored<'_>, step: usize) -> i64 {
    let last = stored.last();
    let own = last.reply.as_ref().map(|sent| &sent.fields);
    let stated = own.and_then(stated_age_s).unwrap_or(0);
    let apparent = own.and_then(|own| date_s(own, "date")).map_or(0, |date| received_s(stored) - date);
    let sent = stored.record.client_exchanges[step].sent;
    let resident = sent.saturating_sub(last.replied.unwrap_or(last.arrived)).as_secs() as i64;
    // Whole seconds of `Date` and of the cache's clock may hide one.
    (stated.max(apparent) + resident - 1).max(stated).max(0)
}

/// Largest age in seconds that the reply can have had when it was used for the request of a step. `None` if the
/// origin stated an age that is none.
pub fn age_max_s(stored: &Stored<'_>, step: usize) -> Option<i64> {
    let record = stored.record;
    let stated = match stored.fields.first("age") {
        None => 0,
        Some(_) => stated_age_s(&stored.fields)?,
    };
    let done = record.client_exchanges[step].done;
    let dates = stored.exchanges().filter_map(|exchange| exchange.reply.as_ref());
    let earliest = dates.filter_map(|sent| date_s(&sent.fields, "date")).min();
    let apparent = earliest.map_or(0, |date| record.clock.wall_s(done) - date);
    // The time of the request that brought the reply counts too, as response_delay.
    let last = stored.last();
    let since =
        done.saturating_sub(record.client_exchanges[last.step].sent.min(last.arrived)).as_secs() as i64;
    Some(stated.max(apparent) + since + 2)
}

/// RFC 9111 section 5.1: a number of seconds; of a list the first member counts. What is none is ignored.
fn stated_age_s(fields: &Fields) -> Option<i64> {
    let value = fields.joined("age")?;
    let first = members(&value).next().map(str::to_owned)?;
    seconds(&first)
}

fn date_s(fields: &Fields, name: &str) -> Option<i64> {
    parse_date(fields.first(name)?)
}

/// Seconds since 1970 of a date (RFC 9110 section 5.6.7).
pub fn parse_date(text: &str) -> Option<i64> {
    let time = httpdate::parse_http_date(text).ok()?;
    Some(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64))
}
