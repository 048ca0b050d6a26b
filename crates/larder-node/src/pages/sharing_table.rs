//! All combinations of a reply and of two requests for the same target: which replies are shared.

use super::*;
use crate::http::freshness::FreshnessDefaults;
use http::HeaderValue;
use std::time::SystemTime;

/// A reply, and what RFC 9111 says about its use without validation.
struct Reply {
    cache_control: &'static str,
    age: i64,
    /// Whether a shared cache may not store the reply, or may not use it without validation.
    forbids: bool,
    lifetime: i64,
    /// Whether the reply may be stored although the request had `Authorization` (section 3.5).
    for_signed: bool,
}

const fn reply(cache_control: &'static str, forbids: bool, lifetime: i64, for_signed: bool) -> Reply {
    Reply { cache_control, age: 0, forbids, lifetime, for_signed }
}

const REPLIES: [Reply; 16] = [
    reply("max-age=60", false, 60, false),
    Reply { age: 40, ..reply("max-age=60", false, 60, false) },
    Reply { age: 60, ..reply("max-age=60, public", false, 60, true) },
    reply("s-maxage=60, max-age=0", false, 60, true),
    reply("public, max-age=60", false, 60, true),
    reply("must-revalidate, max-age=60", false, 60, true),
    reply("max-age=60, stale-while-revalidate=600", false, 60, false),
    reply("max-age=0, stale-while-revalidate=600", false, 0, false),
    reply("max-age=0", false, 0, false),
    reply("public", false, 0, true),
    reply("no-cache, public, max-age=60", true, 60, true),
    reply("no-cache=\"x\", max-age=60", true, 60, false),
    reply("private, max-age=60", true, 60, false),
    reply("private=\"x\", public, max-age=60", true, 60, true),
    reply("no-store, max-age=60", true, 60, false),
    reply("", false, 0, false),
];

/// Values of `Vary`, and whether each names `Cookie`.
const VARY: [(&str, bool); 5] =
    [("", false), ("accept", false), ("cookie", true), ("Cookie, accept", true), ("accept, *", true)];

/// `Authorization` and `Cookie` of a request.
const CLIENTS: [(bool, Option<&str>); 5] =
    [(false, None), (false, Some("")), (false, Some("a")), (false, Some("b")), (true, None)];

/// Returns whether a directive accepts a reply of this age that stays fresh for this many more seconds.
type AcceptsAge = fn(i64, i64) -> bool;

/// Directives of the request that joins.
const REQUEST_DIRECTIVES: [(&str, AcceptsAge); 9] = [
    ("", |_, _| true),
    ("max-stale", |_, _| true),
    ("stale-if-error=99", |_, _| true),
    ("only-if-cached", |_, _| true),
    ("max-age=30", |age, _| age <= 30),
    ("max-age=0", |age, _| age <= 0),
    ("min-fresh=30", |_, remaining| remaining >= 30),
    ("no-cache", |_, _| false),
    ("no-store", |_, _| false),
];

/// One combination.
struct Case {
    reply: &'static Reply,
    vary: &'static str,
    tag: bool,
    sets_cookie: bool,
    lead: (bool, Option<&'static str>),
    join: (bool, Option<&'static str>),
    directives: &'static str,
    /// Seconds between the reply and its use.
    later: i64,
}

impl Case {
    /// Returns whether the node shares the reply.
    fn is_shared(&self) -> bool {
        let request = |(by_authorization, cookie): (bool, Option<&str>), cache_control: &str| {
            let by_authorization = by_authorization.then_some("x");
            headers(&[
                ("authorization", by_authorization),
                ("cookie", cookie),
                ("cache-control", Some(cache_control)),
            ])
        };
        let (lead, join) = (request(self.lead, ""), request(self.join, self.directives));
        let reply = headers(&[
            ("cache-control", Some(self.reply.cache_control)),
            ("age", Some(&self.reply.age.to_string())),
            ("vary", Some(self.vary)),
            ("etag", self.tag.then_some("\"t\"")),
            ("set-cookie", self.sets_cookie.then_some("s=1")),
        ]);
        let received = ReceiptTime { time: SystemTime::now(), now_ms: 0, delay: 0 };
        let (status, defaults) = (StatusCode::OK, FreshnessDefaults { negative: 9, if_error: 600 });
        let Ok(freshness) = Freshness::of_reply(&lead, (status, &reply), received, defaults) else {
            return false;
        };
        let body = PageBody::whole(Vec::new());
        Variant::new(status, reply, &lead, freshness, body).is_some_and(|variant| {
            variant.is_shareable_with(&join, &Directives::of_request(&join), self.later as u64 * 1_000)
        })
    }
}

fn headers(fields: &[(&'static str, Option<&str>)]) -> HeaderMap {
    let present = fields.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    present
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
        .collect()
}

/// Calls `check` with each combination and with the result that RFC 9111 section 4 demands.
fn for_each_case(reply: &'static Reply, mut check: impl FnMut(&Case, bool)) {
    for (vary, by_cookie) in VARY {
        for (tag, sets_cookie) in [(false, false), (true, false), (true, true)] {
            for lead in CLIENTS {
                // Requests with and without `Authorization` have separate flights.
                for join in CLIENTS.into_iter().filter(|join| join.0 == lead.0) {
                    for (directives, accepts) in REQUEST_DIRECTIVES {
                        for later in [0, 31, 59, 60] {
                            let (age, remaining) = (reply.age + later, reply.lifetime - reply.age - later);
                            let stored = !reply.forbids && !sets_cookie && (!lead.0 || reply.for_signed);
                            let selected = !vary.contains('*') && (!by_cookie || lead.1 == join.1);
                            let fresh = remaining > 0 && accepts(age, remaining);
                            let case = Case { reply, vary, tag, sets_cookie, lead, join, directives, later };
                            check(&case, stored && selected && fresh);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_reply_is_shared_only_where_it_may_be_reused_without_validation() {
    let (mut shared, mut refused) = (0, 0);
    for reply in &REPLIES {
        for_each_case(reply, |case, expected| {
            let Case { vary, tag, sets_cookie, lead, join, directives, later, .. } = *case;
            let named =
                (reply.cache_control, reply.age, vary, tag, sets_cookie, lead, join, directives, later);
            assert_eq!(case.is_shared(), expected, "{named:?}");
            *(if expected { &mut shared } else { &mut refused }) += 1;
        });
    }
    assert!(shared > 1_000 && refused > 1_000, "{shared} {refused}");
}
