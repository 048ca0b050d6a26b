//! Tests of the model: examples from the RFCs, and for each rule a pair of requests for which it alone decides.

use super::judge::judge;
use super::rule::Rule;
use super::stored::Stored;
use super::{sharing, violated_rules};
use crate::case::Case;
use crate::record::{ClientExchange, Clock, Exchange, OriginReply, Record, Reply, Request};
use crate::wire::Fields;
use std::sync::Arc;
use std::time::Duration;

/// Start time of the examples, to which their dates refer.
const NOW: &str = "{now}";

/// Two requests for the same target, and the origin's reply to the first.
struct Example {
    record: Record,
}

impl Example {
    /// `first` and `second` are requests as "METHOD" and header lines; `reply` is "STATUS" and header lines.
    fn new(first: &str, reply: &str, second: &str) -> Self {
        let clock = Clock::start();
        let mut case = Case::draw(1, 1);
        case.steps.truncate(2);
        let requests = [request(first), request(second)];
        let client_exchanges = requests.into_iter().enumerate().map(|(at, request)| ClientExchange {
            request,
            sent: Duration::from_millis(10 * at as u64),
            done: Duration::from_millis(10 * at as u64 + 5),
            reply: Err("none".to_owned()),
        });
        let record = Record {
            case: Arc::new(case),
            clock,
            client_exchanges: client_exchanges.collect(),
            exchanges: Vec::new(),
            entry_points: 1,
            one_cache: true,
            loses_requests: false,
        };
        let mut example = Self { record };
        example.exchange(0, reply, "");
        example
    }

    /// Adds a request to the origin for a step.
    fn exchange(&mut self, step: usize, reply: &str, asked: &str) -> &mut Self {
        let (status, lines) = reply.split_once('\n').unwrap_or((reply, ""));
        let dated = format!("Date: {NOW}\n{lines}").replace(NOW, &self.record.clock.date(0));
        let ClientExchange { request, sent, .. } = &self.record.client_exchanges[step];
        let mut fields = request.fields.clone();
        fields.extend(&Fields::of_lines(asked));
        self.record.exchanges.push(Exchange {
            step,
            method: request.method.clone(),
            request_fields: fields,
            arrived: *sent + Duration::from_millis(1),
            replied: Some(*sent + Duration::from_millis(2)),
            ended: Some(*sent + Duration::from_millis(3)),
            reply: (status != "close").then(|| OriginReply {
                status: status.parse().unwrap(),
                fields: Fields::of_lines(&dated),
                body: b"body".to_vec(),
            }),
        });
        self
    }

    /// The rules that forbid the use of the first reply for the second request, after 304s by these exchanges.
    fn rules(&self, renewals: &[usize]) -> Vec<Rule> {
        let renewals = renewals.iter().map(|at| &self.record.exchanges[*at]).collect();
        violated_rules(&Stored::new(&self.record, &self.record.exchanges[0], renewals).unwrap(), 1)
    }
}

fn request(text: &str) -> Request {
    let (method, lines) = text.split_once('\n').unwrap_or((text, ""));
    Request {
        method: method.to_owned(),
        host: "a".to_owned(),
        target: "/".to_owned(),
        relayed: true,
        fields: Fields::of_lines(lines),
    }
}

/// The rules that forbid the use of a reply for a second GET.
fn check(reply: &str) -> Vec<Rule> {
    Example::new("GET", reply, "GET").rules(&[])
}

/// The rules that forbid the use of a `200` with `Cache-Control` and more lines for a second request with more lines.
fn between(first: &str, directives: &str, second: &str) -> Vec<Rule> {
    let line = |text: &str| format!("GET\n{text}");
    Example::new(&line(first), &format!("200\nCache-Control: {directives}"), &line(second)).rules(&[])
}

/// RFC 9213 section 3.1.
#[test]
fn targeted_fields_as_in_rfc_9213() {
    assert_eq!(
        check("200\nAge: 500\nCache-Control: max-age=60, s-maxage=120\nCDN-Cache-Control: max-age=600"),
        []
    );
    assert_eq!(check("200\nCache-Control: no-store\nCDN-Cache-Control: max-age=600"), []);
    assert_eq!(check("200\nCache-Control: no-store"), [Rule::ReplyNoStore, Rule::Stale]);
    let none = check("200\nCache-Control: no-store\nCDN-Cache-Control: none");
    assert_eq!(none, [Rule::Stale], "it may be stored, but nothing gives it a lifetime");
}

/// RFC 5861 section 3.1: max-age=600, stale-while-revalidate=30.
#[test]
fn stale_while_revalidate_as_in_rfc_5861() {
    let at =
        |age: u32| check(&format!("200\nAge: {age}\nCache-Control: max-age=600, stale-while-revalidate=30"));
    assert_eq!(at(590), []);
    assert_eq!(at(625), []);
    assert_eq!(at(640), [Rule::Stale]);
}

/// RFC 5861 section 4.1: max-age=600, stale-if-error=1200, and the origin replies 500.
#[test]
fn stale_if_error_as_in_rfc_5861() {
    let at = |age: u32, status: &str| {
        let reply = format!("200\nAge: {age}\nCache-Control: max-age=600, stale-if-error=1200");
        Example::new("GET", &reply, "GET").exchange(1, status, "").rules(&[])
    };
    assert_eq!(at(900, "500"), []);
    assert_eq!(at(900, "404"), [Rule::Stale], "404 is no error of the origin");
    assert_eq!(at(1900, "500"), [Rule::Stale]);
    let reply = "200\nCache-Control: max-age=600, stale-if-error=1200";
    let mut asked = Example::new("GET", reply, "GET\nCache-Control: no-cache");
    assert_eq!(asked.rules(&[]), [Rule::RequestNoCache]);
    assert_eq!(asked.exchange(1, "503", "").rules(&[]), [], "regardless of other freshness information");
}

/// RFC 9111 section 3.5: the reply to a request with Authorization.
#[test]
fn authorization_as_in_rfc_9111_section_3_5() {
    let alice = "Authorization: Basic alice";
    for (directives, expected) in [
        ("max-age=60", &[Rule::Authorization][..]),
        ("public, max-age=60", &[]),
        ("s-maxage=60", &[]),
        ("max-age=60, must-revalidate", &[]),
    ] {
        assert_eq!(between(alice, directives, ""), expected, "{directives}");
        assert_eq!(between(alice, directives, alice), expected, "{directives}");
    }
    assert_eq!(between("", "max-age=60", alice), [], "a reply to a request without it serves all");
    let nominated = format!("Connection: Authorization\n{alice}");
    assert_eq!(
        between(&nominated, "max-age=60", ""),
        [Rule::Authorization],
        "the origin sees it all the same"
    );
}

/// RFC 9111 section 4.1.
#[test]
fn vary_as_in_rfc_9111_section_4_1() {
    let directives = "max-age=60\nVary: X-Lang";
    assert_eq!(between("X-Lang: de, en", directives, "X-Lang: de\nX-Lang: en"), []);
    assert_eq!(between("X-Lang: de", directives, "X-Lang: en"), [Rule::Vary]);
    assert_eq!(between("X-Lang: de", directives, ""), [Rule::Vary]);
    assert_eq!(between("X-Lang: de", directives, "Connection: X-Lang\nX-Lang: de"), [Rule::Vary]);
    assert_eq!(between("", "max-age=60\nVary: X-Lang, *", ""), [Rule::VaryAll]);
}

/// RFC 9111 sections 4.2.1, 4.2.2 and 5.3, with Age of section 4.2.3.
#[test]
fn lifetimes_as_in_rfc_9111_section_4_2() {
    for (lines, is_fresh) in [
        ("Cache-Control: max-age=60\nAge: 50", true),
        ("Cache-Control: max-age=60\nAge: 60", false),
        ("Cache-Control: s-maxage=10, max-age=60\nAge: 30", false),
        ("Cache-Control: s-maxage=60, max-age=10\nAge: 30", true),
        ("Cache-Control: max-age=60, max-age=0", false),
        ("Cache-Control: max-age=soon", false),
        ("Cache-Control: max-age=60\nExpires: 0", true),
        ("Expires: 0", false),
        ("Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\nAge: 80000", true),
        ("Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\nAge: 90000", false),
        ("ETag: \"1\"", false),
        ("Cache-Control: max-age=60\nAge: 70, 5", false),
        ("Cache-Control: max-age=60\nAge: old", true),
    ] {
        assert_eq!(check(&format!("200\n{lines}")).is_empty(), is_fresh, "{lines}");
    }
}

/// Alice's reply, which must be validated, must not be used for Bob's concurrent request.
#[test]
fn a_reply_that_must_be_validated_is_not_shared_with_waiting_requests() {
    for lines in ["Cache-Control: no-cache\nETag: \"1\"", "Cache-Control: public, max-age=0", "ETag: \"1\""] {
        assert!(!check(&format!("200\n{lines}")).is_empty(), "{lines}");
    }
}

/// RFC 9111 section 4.3: a 304 makes the reply usable for its own request, and for others if it makes the reply fresh.
#[test]
fn a_304_confirms_the_reply_for_its_own_request() {
    let stored = "200\nCache-Control: no-cache\nETag: \"1\"";
    let asked = "If-None-Match: \"1\"";
    let mut own = Example::new("GET", stored, "GET");
    own.exchange(1, "304\nCache-Control: no-cache\nETag: \"1\"", asked);
    assert_eq!(own.rules(&[1]), []);
    let mut of_one = Example::new("GET", stored, "GET");
    of_one.exchange(1, "304\nCache-Control: private\nETag: \"1\"", asked);
    assert_eq!(of_one.rules(&[1]), [Rule::Private], "the reply was made for another client");
    let mut of_another = Example::new("GET", stored, "GET");
    of_another.exchange(0, "304\nCache-Control: no-cache\nETag: \"1\"", asked);
    assert_eq!(of_another.rules(&[1]), [Rule::NoCache, Rule::Stale]);
    let mut fresh = Example::new("GET", stored, "GET");
    fresh.exchange(0, "304\nCache-Control: max-age=60\nETag: \"1\"", asked);
    assert_eq!(fresh.rules(&[1]), []);
    let mut unrelated = Example::new("GET", stored, "GET");
    unrelated.exchange(1, "304\nETag: \"2\"", "If-None-Match: \"2\"");
    assert_eq!(unrelated.rules(&[1]), [Rule::Validation]);
}

/// RFC 9111 section 4.4.
#[test]
fn a_post_invalidates_what_was_stored_before() {
    let mut example = Example::new("GET", "200\nCache-Control: max-age=60", "GET");
    let mut post = example.record.client_exchanges[0].clone();
    (post.request.method, post.sent) = ("POST".to_owned(), Duration::from_millis(6));
    post.done = Duration::from_millis(8);
    let reply = |status| Ok(Reply { status, fields: Fields::default(), body: Vec::new(), whole: true });
    for (status, expected) in [(200, &[Rule::Invalidated][..]), (303, &[Rule::Invalidated]), (404, &[])] {
        post.reply = reply(status);
        example.record.client_exchanges.truncate(2);
        example.record.client_exchanges.push(post.clone());
        assert_eq!(example.rules(&[]), expected, "{status}");
    }
    // The scheme does not matter if the same field states it.
    post.reply = reply(200);
    for (relayed_field, expected) in [
        ("X-Forwarded-Proto: https", &[Rule::Invalidated][..]),
        ("X-Forwarded-Host: b", &[]),
        ("Forwarded: proto=https", &[]),
    ] {
        post.request.fields = Fields::of_lines(relayed_field);
        example.record.client_exchanges.truncate(2);
        example.record.client_exchanges.push(post.clone());
        assert_eq!(example.rules(&[]), expected, "{relayed_field}");
    }
}

/// For each rule about reuse, a pair of requests for which only this rule decides.
#[test]
fn every_rule_can_decide_alone() {
    let get = |lines: &str| format!("GET\n{lines}");
    let fresh = "200\nCache-Control: max-age=60";
    let stale = "200\nAge: 130\nCache-Control: max-age=100, stale-while-revalidate=500, must-revalidate";
    let examples: [(Rule, String, &str, String); 17] = [
        (Rule::Method, "POST".into(), fresh, get("")),
        (Rule::Status, get(""), "206\nCache-Control: max-age=60", get("")),
        (Rule::MustUnderstand, get(""), "299\nCache-Control: max-age=60, must-understand", get("")),
        (Rule::ReplyNoStore, get(""), "200\nCache-Control: max-age=60, no-store", get("")),
        (Rule::RequestNoStore, get("Cache-Control: no-store"), fresh, get("")),
        (Rule::Private, get(""), "200\nCache-Control: max-age=60, private", get("")),
        (Rule::Authorization, get("Authorization: a"), fresh, get("")),
        (Rule::Storable, get(""), "302", get("Cache-Control: max-stale")),
        (Rule::SetCookie, get(""), "200\nCache-Control: max-age=60\nSet-Cookie: id=0", get("")),
        (Rule::Vary, get("Cookie: a"), "200\nCache-Control: max-age=60\nVary: Cookie", get("")),
        (Rule::VaryAll, get(""), "200\nCache-Control: max-age=60\nVary: *", get("")),
        (Rule::NoCache, get(""), "200\nCache-Control: max-age=60, no-cache", get("")),
        (Rule::RequestNoCache, get(""), fresh, get("Cache-Control: no-cache")),
        (
            Rule::RequestMaxAge,
            get(""),
            "200\nAge: 30\nCache-Control: max-age=60",
            get("Cache-Control: max-age=20"),
        ),
        (Rule::RequestMinFresh, get(""), fresh, get("Cache-Control: min-fresh=100")),
        (Rule::Stale, get(""), "200\nAge: 70\nCache-Control: max-age=60", get("")),
        (Rule::MustRevalidate, get(""), stale, get("")),
    ];
    for (rule, first, reply, second) in &examples {
        assert_eq!(Example::new(first, reply, second).rules(&[]), [*rule], "{rule:?}");
    }
    let mut other = Example::new("GET", fresh, "GET");
    other.record.client_exchanges[1].request.host = "b".to_owned();
    assert_eq!(other.rules(&[]), [Rule::Target]);
    let told_of = ["X-Forwarded-Proto: https", "X-Forwarded-Host: b", "Forwarded: for=192.0.2.1;proto=https"];
    for relayed_field in told_of.into_iter().chain(["X-Forwarded-Prefix: /p"]) {
        assert_eq!(
            Example::new("GET", fresh, &get(relayed_field)).rules(&[]),
            [Rule::Target],
            "{relayed_field}"
        );
    }
    for relayed_field in
        ["X-Forwarded-Proto: HTTP", "X-Forwarded-Host: a", "Forwarded: for=192.0.2.1;host=a;proto=http"]
    {
        assert_eq!(Example::new("GET", fresh, &get(relayed_field)).rules(&[]), [], "{relayed_field}");
    }
    for (one, other) in [
        ("X-Forwarded-Host: b", "Forwarded: host=b"),
        ("Forwarded: proto=http, proto=https", "Forwarded: proto=https, proto=http"),
        ("X-Forwarded-Host: a\nX-Forwarded-Host: b", "X-Forwarded-Host: b\nX-Forwarded-Host: a"),
    ] {
        assert_eq!(Example::new(&get(one), fresh, &get(other)).rules(&[]), [Rule::Target], "{one} {other}");
        assert_eq!(Example::new(&get(one), fresh, &get(one)).rules(&[]), [], "{one}");
    }
    let mut untrusted = Example::new("GET", fresh, &get("X-Forwarded-Proto: https\nForwarded: host=b"));
    untrusted.record.client_exchanges[1].request.relayed = false;
    assert_eq!(untrusted.rules(&[]), [], "the fields of a client that is no trusted relay have no effect");
    let tested = examples.iter().map(|(rule, ..)| *rule);
    let elsewhere = [Rule::Target, Rule::Invalidated, Rule::Validation];
    let all: Vec<Rule> = tested.chain(elsewhere).collect();
    assert!(sharing().all(|rule| all.contains(&rule)));
}

/// A request that gets 502 because the reply to another request was cut should have contacted the origin.
#[test]
fn a_failed_exchange_explains_only_errors_of_its_own_request() {
    let found = |failed: usize, how: &str, is_switch: bool| {
        let mut example = Example::new("GET", "200", "GET");
        example.exchange(failed, how, "");
        let record = &mut example.record;
        record.loses_requests = is_switch;
        if how == "200" {
            record.exchanges[1].ended = None;
        }
        let reply = Reply { status: 502, fields: Fields::default(), body: Vec::new(), whole: true };
        record.client_exchanges[1].reply = Ok(reply);
        judge(record).violations.iter().any(|found| (found.step, found.rule) == (1, Rule::Unexplained))
    };
    for how in ["close", "503"] {
        assert_eq!((found(0, how, false), found(1, how, false)), (true, false), "{how}");
    }
    assert_eq!((found(0, "200", true), found(1, "200", true), found(1, "200", false)), (true, false, true));
}

/// A request without a reply may have waited for a reply that was cut, but only if the reply could be shared.
#[test]
fn a_cut_reply_explains_a_missing_reply_only_if_it_may_be_shared() {
    for (directives, is_explained) in [("max-age=60", true), ("no-store", false)] {
        let mut example = Example::new("GET", &format!("200\nCache-Control: {directives}"), "GET");
        example.record.exchanges[0].ended = None;
        let found = judge(&example.record).violations;
        let silence = found.iter().any(|found| (found.step, found.rule) == (1, Rule::Unanswered));
        assert_eq!(silence, !is_explained, "{directives}");
    }
}

/// The rules about the form of a reply, on a stored reply that may be used.
#[test]
fn a_reply_of_the_wrong_form_is_detected() {
    let right = "Date: x\nX-Oracle-Body: 0\nAge: 0\nContent-Length: 4";
    let judged = |status: u16, lines: &str, body: &[u8], request: &str| {
        let reply = "200\nCache-Control: max-age=60, private=\"x-secret\"\nX-Oracle-Body: 0\nX-Secret: 0\nETag: \"1\"";
        let mut example = Example::new("GET", reply, &format!("GET\n{request}"));
        let fields = Fields::of_lines(lines);
        example.record.client_exchanges[1].reply =
            Ok(Reply { status, fields, body: body.to_vec(), whole: true });
        example.record.client_exchanges.remove(0);
        example.record.client_exchanges.insert(0, example.record.client_exchanges[0].clone());
        example.record.client_exchanges[0].reply =
            Ok(Reply { status: 504, fields: Fields::default(), body: Vec::new(), whole: true });
        let verdict = judge(&example.record);
        let of_second = verdict.violations.into_iter().filter(|violation| violation.step == 1);
        of_second.map(|violation| violation.rule).collect::<Vec<_>>()
    };
    assert_eq!(judged(200, right, b"body", ""), []);
    for (status, lines, body, request, rule) in [
        (200, right.replace("Age: 0", "Age: 900"), &b"body"[..], "", Rule::Age),
        (200, right.replace("Age: 0", "X: 0"), b"body", "", Rule::Age),
        (200, right.to_owned(), b"bodY", "", Rule::Body),
        (200, format!("{right}\nWarning: 110"), b"body", "", Rule::Warning),
        (200, format!("{right}\nX-Secret: 0"), b"body", "", Rule::PrivateFields),
        (200, format!("{right}\nX-Hop: 0"), b"body", "", Rule::HopByHop),
        (404, right.to_owned(), b"body", "", Rule::StatusKept),
        (304, format!("{right}\nETag: \"1\""), b"", "", Rule::NotModified),
        (304, format!("{right}\nETag: \"1\""), b"", "If-None-Match: \"2\"", Rule::NotModified),
        (206, right.to_owned(), b"body", "", Rule::Partial),
        (206, format!("{right}\nContent-Range: bytes 0-1/9"), b"bo", "Range: bytes=0-1", Rule::Partial),
        (502, "Date: x".to_owned(), b"", "", Rule::Unexplained),
    ] {
        let found = judged(status, &lines, body, request);
        assert!(found.contains(&rule), "{rule:?}: {found:?}");
    }
    let not_modified = format!("{right}\nETag: \"1\"").replace("Content-Length: 4", "X: y");
    assert_eq!(judged(304, &not_modified, b"", "If-None-Match: \"1\""), []);
}
