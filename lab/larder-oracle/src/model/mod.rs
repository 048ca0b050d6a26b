//! The model: which reply a request may get.
//!
//! Written from RFC 9111, RFC 9110, RFC 9213 and RFC 5861, one function per rule, to be read beside them. It judges a
//! [`crate::record::Record`] and knows nothing of larder but what its documents promise, which the rules name.
//!
//! A reply names the exchange of its body, and the 304s that renewed it. If that exchange was made for the same
//! request, the reply is the client's own. Otherwise it was stored, or shared while it was on its way, and
//! [`STORING`] and [`REUSE`] decide: RFC 9111 knows no third way, and a reply that may not be reused without validation may not be
//! shared by requests that wait for it either. If the RFC leaves a choice and sharing is doubtful, the model
//! forbids it.

pub mod directives;
pub mod form;
pub mod freshness;
pub mod judge;
pub mod reuse;
pub mod rule;
pub mod stored;
pub mod storing;

#[cfg(test)]
mod examples;

pub use judge::{Verdict, Violation, judge};
pub use rule::Rule;

use stored::Stored;

/// A rule about the use of a stored reply for the request of a step. True: it forbids.
pub type Forbids = fn(&Stored<'_>, usize) -> bool;

/// May the reply have been stored? Judged as it was when the cache chose it: a 304 for this very request may take away
/// what a cache needs to keep the reply, and still say that it answers this request.
pub const STORING: [(Rule, Forbids); 6] = [
    (Rule::Status, storing::status),
    (Rule::MustUnderstand, storing::must_understand),
    (Rule::RequestNoStore, storing::request_no_store),
    (Rule::Authorization, storing::authorization),
    (Rule::Storable, storing::storable),
    (Rule::SetCookie, storing::set_cookie),
];

/// May the stored reply be used for the request? A 304 for this very request that says `private` or `no-store` makes
/// it doubtful whether the reply, which was made for another client, is meant.
pub const REUSE: [(Rule, Forbids); 14] = [
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

/// The rules that decide whether a reply to one request may serve another one.
pub fn sharing() -> impl Iterator<Item = Rule> {
    STORING.iter().chain(&REUSE).map(|(rule, _)| *rule)
}

/// The rules that forbid to use a stored reply for the request of a step, in the order of [`sharing`].
pub fn forbidding(stored: &Stored<'_>, step: usize) -> Vec<Rule> {
    let chosen = stored.without(step);
    let of_storing = chosen.iter().flat_map(|chosen| STORING.iter().map(move |rule| (rule, chosen)));
    let of_reuse = REUSE.iter().map(|rule| (rule, stored));
    let broken = of_storing.chain(of_reuse).filter(|((_, forbids), stored)| forbids(stored, step));
    broken.map(|((rule, _), _)| *rule).collect()
}
