//! Rules for reusing a stored reply (RFC 9111 section 4). Each function returns true if its rule forbids the reuse.

use super::directives::{Directives, members};
use super::freshness::{age_min_s, lifetime_s};
use super::stored::{Stored, end_to_end, selecting, tags_match};
use crate::record::{Exchange, Request};

fn request<'a>(stored: &'a Stored<'_>, step: usize) -> &'a Request {
    &stored.record.client_exchanges[step].request
}

fn request_directives(stored: &Stored<'_>, step: usize) -> Directives {
    Directives::of_request(&request(stored, step).fields)
}

/// RFC 9111 section 4: the request method of the stored reply allows it to be used. RFC 9110 section 9.3.3: a reply
/// to POST serves a GET only with Content-Location, which the origin never sends.
pub fn method(stored: &Stored<'_>, step: usize) -> bool {
    let (stored_for, wanted) = (stored.base.method.as_str(), request(stored, step).method.as_str());
    !matches!((stored_for, wanted), ("GET", "GET" | "HEAD") | ("HEAD", "HEAD"))
}

/// RFC 9111 section 4: the target URI is that of the stored reply. Schemes and hosts are equal in any case (RFC 9110
/// section 4.2.3).
pub fn target(stored: &Stored<'_>, step: usize) -> bool {
    !same_target(request(stored, stored.base.step), request(stored, step))
}

fn same_target(one: &Request, other: &Request) -> bool {
    let relayed_of =
        |request| (differing(schemes(request), &scheme(request)), differing(hosts(request), &request.host));
    one.target == other.target
        && one.host == other.host
        && prefix(one) == prefix(other)
        && scheme(one) == scheme(other)
        && relayed_of(one) == relayed_of(other)
}

/// Whether two target URIs differ at most in their schemes, and the same fields state the schemes.
fn same_but_for_scheme(one: &Request, other: &Request) -> bool {
    let places = |request| schemes(request).into_iter().map(|(field, at, _)| (field, at)).collect::<Vec<_>>();
    one.target == other.target
        && one.host == other.host
        && prefix(one) == prefix(other)
        && hosts(one) == hosts(other)
        && places(one) == places(other)
}

/// A scheme or host stated by a trusted relay: field, index of the element in the field's list, and value.
pub type RelayedValue = (&'static str, usize, String);

/// The path prefix that a trusted relay has removed from the target. It stands for all other fields about the URL.
pub fn prefix(request: &Request) -> Option<String> {
    relayed_field(request, "x-forwarded-prefix")
}

/// The scheme of the target URI: that of the connection, unless a trusted relay states its client's (X-Forwarded-Proto).
fn scheme(request: &Request) -> String {
    relayed_field(request, "x-forwarded-proto").unwrap_or_else(|| "http".to_owned())
}

/// A field of a trusted relay about the target URI, in lower case. From other senders the field has no effect
/// (docs/operate/clients.md).
fn relayed_field(request: &Request, field: &str) -> Option<String> {
    let value = request.fields.joined(field).filter(|_| request.relayed)?;
    Some(value.to_ascii_lowercase())
}

/// The schemes stated by a trusted relay in X-Forwarded-Proto and Forwarded (RFC 7239 section 5.4). An application may use any
/// of them.
pub fn schemes(request: &Request) -> Vec<RelayedValue> {
    let own = list("x-forwarded-proto", &scheme(request));
    own.into_iter().chain(forwarded(request, "proto")).collect()
}

/// The hosts stated by a trusted relay in addition to Host, in X-Forwarded-Host and Forwarded (RFC 7239 section 5.3).
pub fn hosts(request: &Request) -> Vec<RelayedValue> {
    let relayed = relayed_field(request, "x-forwarded-host").unwrap_or_else(|| request.host.clone());
    list("x-forwarded-host", &relayed).into_iter().chain(forwarded(request, "host")).collect()
}

fn list(field: &'static str, values: &str) -> Vec<RelayedValue> {
    members(values).enumerate().map(|(at, value)| (field, at, value.to_owned())).collect()
}

/// The values of a parameter of Forwarded, in lower case (RFC 7239 section 4).
fn forwarded(request: &Request, parameter: &str) -> Vec<RelayedValue> {
    let field = relayed_field(request, "forwarded").unwrap_or_default();
    let elements = members(&field).enumerate();
    let pairs = elements.flat_map(|(at, element)| element.split(';').map(move |pair| (at, pair.trim())));
    pairs
        .filter_map(|(at, pair)| Some((at, pair.split_once('=')?)))
        .filter(|(_, (name, _))| *name == parameter)
        .map(|(at, (_, value))| ("forwarded", at, value.trim_matches('"').to_owned()))
        .collect()
}

/// The relayed values, or none if all equal the value in the target URI.
fn differing(relayed_field: Vec<RelayedValue>, known: &str) -> Vec<RelayedValue> {
    if relayed_field.iter().all(|(_, _, value)| value == known) { Vec::new() } else { relayed_field }
}

/// RFC 9111 section 4.1: the fields that Vary names have the same values in the request that the reply is for. After
/// a 304, that is the request that the 304 was for. A 304 for this request confirms the reply whatever Vary says.
pub fn vary(stored: &Stored<'_>, step: usize) -> bool {
    if stored.is_validated_for(step) {
        return false;
    }
    let original = end_to_end(&request(stored, stored.last().step).fields);
    let wanted = end_to_end(&request(stored, step).fields);
    let differs = |name: &str| selecting(&original, name) != selecting(&wanted, name);
    vary_names(stored).iter().any(|name| name != "*" && differs(name))
}

/// RFC 9111 section 4.1: Vary with the member "*" always fails to match.
pub fn vary_all(stored: &Stored<'_>, step: usize) -> bool {
    !stored.is_validated_for(step) && vary_names(stored).iter().any(|name| name == "*")
}

fn vary_names(stored: &Stored<'_>) -> Vec<String> {
    let value = stored.fields.joined("vary").unwrap_or_default();
    members(&value).map(str::to_ascii_lowercase).collect()
}

/// RFC 9111 section 5.2.2.4: no-cache without fields forbids use without successful validation. The validation must
/// be for this request, because a 304 for another client does not confirm the reply for this one.
pub fn no_cache(stored: &Stored<'_>, step: usize) -> bool {
    stored.directives.no_cache && !stored.is_validated_for(step)
}

/// RFC 9111 section 5.2.1.4: the client wants no stored reply without validation. Section 5.2.1 lets a cache ignore request
/// directives; docs/reference/node.md states that a node obeys them. An exchange that started after the request is new enough.
pub fn request_no_cache(stored: &Stored<'_>, step: usize) -> bool {
    let is_older = stored.last().arrived < stored.record.client_exchanges[step].sent;
    request_directives(stored, step).no_cache
        && !stored.is_validated_for(step)
        && is_older
        && !if_error(stored, step)
}

/// RFC 9111 section 5.2.1.1: the client wants no reply whose age is above max-age.
pub fn request_max_age(stored: &Stored<'_>, step: usize) -> bool {
    let is_above = |most: i64| age_min_s(stored, step) > most;
    let is_broken = request_directives(stored, step).max_age.is_some_and(is_above);
    is_broken && !stored.is_validated_for(step) && !if_error(stored, step)
}

/// RFC 9111 section 5.2.1.3: the client wants a reply that stays fresh for min-fresh.
pub fn request_min_fresh(stored: &Stored<'_>, step: usize) -> bool {
    let left = lifetime_s(stored) - age_min_s(stored, step);
    let is_broken = request_directives(stored, step).min_fresh.is_some_and(|least| left < least);
    is_broken && !stored.is_validated_for(step) && !if_error(stored, step)
}

/// RFC 9111 section 4.2: minimum time since the end of the reply's lifetime, in seconds. `None` if it may have been fresh.
fn staleness_s(stored: &Stored<'_>, step: usize) -> Option<i64> {
    let past = age_min_s(stored, step) - lifetime_s(stored);
    (past >= 0).then_some(past)
}

/// RFC 9111 section 4.2.4: must-revalidate, proxy-revalidate and s-maxage prohibit stale replies.
fn is_strict(stored: &Stored<'_>) -> bool {
    let directives = &stored.directives;
    directives.must_revalidate || directives.proxy_revalidate || directives.s_maxage.is_some()
}

/// The exchanges that failed before the reply was complete.
fn failures<'a>(stored: &Stored<'a>, step: usize) -> impl Iterator<Item = &'a Exchange> {
    let until = stored.record.client_exchanges[step].done;
    stored.record.exchanges.iter().filter(move |exchange| exchange.arrived <= until && exchange.has_failed())
}

/// RFC 5861 section 4: while the origin fails, a reply may be used "regardless of other freshness information", as
/// long after its lifetime as stale-if-error of reply or request says.
fn if_error(stored: &Stored<'_>, step: usize) -> bool {
    let staleness = (age_min_s(stored, step) - lifetime_s(stored)).max(0);
    let limits = [stored.directives.stale_if_error, request_directives(stored, step).stale_if_error];
    let is_within = limits.into_iter().flatten().any(|most| staleness <= most);
    is_within && failures(stored, step).next().is_some()
}

/// RFC 9111 section 4.2.4: a stale reply needs permission, of the client (max-stale, section 5.2.1.2), of the origin
/// (stale-while-revalidate, RFC 5861 section 3), or of either while the origin fails (stale-if-error); or the cache is
/// disconnected.
fn may_be_stale(stored: &Stored<'_>, step: usize, staleness: i64) -> bool {
    let within = |most: Option<i64>| most.is_some_and(|most| staleness <= most);
    let is_disconnected = failures(stored, step).any(|exchange| exchange.reply.is_none());
    within(request_directives(stored, step).max_stale)
        || within(stored.directives.stale_while_revalidate)
        || if_error(stored, step)
        || is_disconnected
}

/// RFC 9111 section 4.2.4: a stale reply without permission.
pub fn stale(stored: &Stored<'_>, step: usize) -> bool {
    let staleness = staleness_s(stored, step).filter(|_| !stored.is_validated_for(step));
    staleness.is_some_and(|staleness| !may_be_stale(stored, step, staleness))
}

/// RFC 9111 sections 5.2.2.2, 5.2.2.8 and 5.2.2.10: a stale reply that must never be used stale.
pub fn must_revalidate(stored: &Stored<'_>, step: usize) -> bool {
    let is_stale = staleness_s(stored, step).is_some();
    is_stale && is_strict(stored) && !stored.is_validated_for(step)
}

/// RFC 9111 section 4.4: a cache invalidates the target when it receives a non-error reply to an unsafe request.
/// docs/reference/node.md: it does so for every scheme. Holds where all requests go through one cache, and for replies that were
/// complete before the unsafe request.
pub fn invalidated(stored: &Stored<'_>, step: usize) -> bool {
    let record = stored.record;
    if stored.is_validated_for(step) || !record.one_cache {
        return false;
    }
    let base = stored.base;
    record.client_exchanges.iter().enumerate().any(|(at, unsafe_one)| {
        let is_success = matches!(&unsafe_one.reply, Ok(reply) if (200..400).contains(&reply.status));
        let was_before = record.client_exchanges[base.step].done <= unsafe_one.sent
            && stored.last().ended.is_some_and(|ended| ended <= unsafe_one.sent);
        let (changed, wanted) = (&unsafe_one.request, request(stored, step));
        let same = same_target(changed, wanted) || same_but_for_scheme(changed, wanted);
        at != step
            && unsafe_one.request.method == "POST"
            && is_success
            && same
            && was_before
            && unsafe_one.done <= record.client_exchanges[step].sent
    })
}

/// RFC 9111 section 4.3.4: a 304 renews the reply whose validator the request had (section 4.3.1), and which the 304
/// names if it has an entity tag.
pub fn validation(stored: &Stored<'_>, _step: usize) -> bool {
    let Some(base) = &stored.base.reply else { return true };
    let (tag, modified) = (base.fields.first("etag"), base.fields.first("last-modified"));
    stored.renewals.iter().any(|renewal| {
        let named = match renewal.request_fields.joined("if-none-match") {
            Some(tags) => tag.is_some_and(|tag| members(&tags).any(|one| tags_match(one, tag))),
            None => modified.is_some() && renewal.request_fields.first("if-modified-since") == modified,
        };
        let new = renewal.reply.as_ref().and_then(|sent| sent.fields.first("etag"));
        let agrees = match (new, tag) {
            (Some(new), Some(tag)) => tags_match(new, tag),
            (Some(_), None) => false,
            (None, _) => true,
        };
        !named || !agrees
    })
}
