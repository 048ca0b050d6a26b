//! Rules for storing a reply in a shared cache (RFC 9111 section 3). Each function returns true if its rule forbids the storing.

use super::freshness::is_heuristically_cacheable;
use super::stored::{Stored, end_to_end};
use crate::model::directives::Directives;

/// Whether RFC 9110 section 15, RFC 6585 or RFC 7725 defines the status, so that a cache that keeps them understands it.
fn is_understood(status: u16) -> bool {
    matches!(status, 200..=206 | 300..=308 | 400..=417 | 421 | 422 | 426 | 428 | 429 | 431 | 451 | 500..=505 | 511)
}

/// RFC 9111 section 3: "the response status code is final", and 206 and 304 only by a cache that understands them.
/// larder documents that it stores neither.
pub fn status(stored: &Stored<'_>, _step: usize) -> bool {
    stored.status < 200 || matches!(stored.status, 206 | 304)
}

/// RFC 9111 section 5.2.2.3: must-understand limits caching to caches that understand the status.
pub fn must_understand(stored: &Stored<'_>, _step: usize) -> bool {
    stored.directives.must_understand && !is_understood(stored.status)
}

/// RFC 9111 section 5.2.2.5: a cache must not store a reply with no-store. Section 5.2.2.3: with must-understand a
/// cache that understands the status ignores no-store.
pub fn reply_no_store(stored: &Stored<'_>, _step: usize) -> bool {
    let is_ignored = stored.directives.must_understand && is_understood(stored.status);
    stored.directives.no_store && !is_ignored
}

/// RFC 9111 section 5.2.1.5: a cache must not store any reply to a request with no-store.
pub fn request_no_store(stored: &Stored<'_>, step: usize) -> bool {
    let requests =
        stored.of_others(step).map(|exchange| &stored.record.client_exchanges[exchange.step].request);
    requests.map(|request| Directives::of_request(&request.fields)).any(|asked| asked.no_store)
}

/// RFC 9111 section 5.2.2.7: a shared cache must not store a reply with private.
pub fn private(stored: &Stored<'_>, _step: usize) -> bool {
    stored.directives.private
}

/// RFC 9111 section 3.5: a reply to a request with Authorization is used for no other request, unless
/// must-revalidate, public or s-maxage allows. A 304 is such a reply too.
pub fn authorization(stored: &Stored<'_>, step: usize) -> bool {
    let directives = &stored.directives;
    let is_allowed = directives.must_revalidate || directives.public || directives.s_maxage.is_some();
    let mut requests =
        stored.of_others(step).map(|exchange| &stored.record.client_exchanges[exchange.step].request);
    !is_allowed && requests.any(|request| end_to_end(&request.fields).has("authorization"))
}

/// RFC 9111 section 3: the reply has at least one of public, Expires, max-age, s-maxage, or a status that is
/// cacheable by heuristic.
pub fn storable(stored: &Stored<'_>, _step: usize) -> bool {
    let directives = &stored.directives;
    let expires = !directives.is_targeted && stored.fields.has("expires");
    let stated =
        directives.public || expires || directives.max_age.is_some() || directives.s_maxage.is_some();
    !stated && !is_heuristically_cacheable(stored.status)
}

/// docs/reference/node.md: a reply with Set-Cookie is not stored, although RFC 9111 allows it.
pub fn set_cookie(stored: &Stored<'_>, step: usize) -> bool {
    let mut replies = stored.of_others(step).filter_map(|exchange| exchange.reply.as_ref());
    replies.any(|sent| sent.fields.has("set-cookie"))
}
