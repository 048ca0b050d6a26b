//! The model: decides whether a request may get a reply.
//!
//! It is written from RFC 9111, RFC 9110, RFC 9213 and RFC 5861, with one function for each rule. It judges a
//! [`crate::record::Record`]. From larder it uses only promises of the documentation, which the rules cite.
//!
//! A reply contains the number of the exchange of its body and those of the 304s that renewed it. If the exchange was for the
//! same request, the reply is the client's own. Otherwise the reply was stored, or shared in transit, and the rules [`STORING`]
//! and [`REUSE`] decide. RFC 9111 has no other case: a reply that may not be reused without validation may not be shared by
//! waiting requests either. If the RFC leaves a choice and sharing is doubtful, the model forbids it:
//!
//! * If a directive occurs twice with different values, the smaller value counts.
//! * `private=x` without quotes and `no-cache=""` count as without fields.
//! * A request with `no-cache` needs an exchange that begins after it.
//! * A 304 for another client's request renews the reply only if the renewed reply is fresh and not `no-cache`, and `Vary`,
//!   `Authorization` and `no-store` of that request allow it.
//! * A 304 for the request itself that adds `private` or `no-store` ends the use of the stored reply.
//! * Invalidation by POST is checked where all requests go through one cache, for both schemes.
//! * Requests from a relay with several schemes or hosts are for one target only if they agree in field, position and value.
//!
//! `Pragma`, and a refresh in the background after `stale-while-revalidate`, are left to the cache.

pub mod directives;
pub mod freshness;
pub mod judge;
pub mod reply_form;
pub mod reuse;
pub mod rule;
pub mod stored;
pub mod storing;

#[cfg(test)]
mod examples;

pub use judge::{Verdict, Violation, judge};
pub use rule::Rule;

use stored::Stored;

/// Checks whether a rule forbids the use of a stored reply for the request of a step.
pub type RuleCheck = fn(&Stored<'_>, usize) -> bool;

/// Rules for storing a reply. They judge the reply as it was when the cache selected it: a 304 for this request may forbid
/// further storing and still confirm the reply for this request.
pub const STORING: [(Rule, RuleCheck); 6] = [
    (Rule::Status, storing::status),
    (Rule::MustUnderstand, storing::must_understand),
    (Rule::RequestNoStore, storing::request_no_store),
    (Rule::Authorization, storing::authorization),
    (Rule::Storable, storing::storable),
    (Rule::SetCookie, storing::set_cookie),
];

/// Rules for reusing a stored reply. A 304 for this request with `private` or `no-store` makes it doubtful whether the reply,
/// which was made for another client, is meant.
pub const REUSE: [(Rule, RuleCheck); 14] = [
    (Rule::ReplyNoStore, storing::reply_no_store),
    (Rule::Private, storing::private),
    (Rule::Method, reuse::method),
    (Rule::Target, reuse::target),
    (Rule::Vary, reuse::vary),
    (Rule::VaryAll, reuse::vary_all),
    (Rule::NoCache, reuse::no_cache),
    (Rule::RequestNoCache, reuse::request_no_cache),
    (Rule::RequestMaxAge, reuse::request_max_age),
    (Rule::RequestMinFresh, reuse::request_min_fresh),
    (Rule::Stale, reuse::stale),
    (Rule::MustRevalidate, reuse::must_revalidate),
    (Rule::Invalidated, reuse::invalidated),
    (Rule::Validation, reuse::validation),
];

/// The rules that decide whether a reply to one request may be used for another.
pub fn sharing() -> impl Iterator<Item = Rule> {
    STORING.iter().chain(&REUSE).map(|(rule, _)| *rule)
}

/// The rules that forbid the use of a stored reply for the request of a step, in the order of [`sharing`].
pub fn violated_rules(stored: &Stored<'_>, step: usize) -> Vec<Rule> {
    let chosen = stored.without(step);
    let of_storing = chosen.iter().flat_map(|chosen| STORING.iter().map(move |rule| (rule, chosen)));
    let of_reuse = REUSE.iter().map(|rule| (rule, stored));
    let broken = of_storing.chain(of_reuse).filter(|((_, check), stored)| check(stored, step));
    broken.map(|((rule, _), _)| *rule).collect()
}
