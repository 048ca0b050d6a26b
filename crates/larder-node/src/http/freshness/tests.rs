use super::*;
use http::HeaderValue;
use proptest::prelude::*;
use std::time::Duration;

const NOW: u64 = 1_000_000_000;

fn map(fields: &[(&'static str, &str)]) -> HeaderMap {
    let pairs = fields
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
    pairs.collect()
}

fn http_date(seconds: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
}

fn receipt_time(delay: u64) -> ReceiptTime {
    ReceiptTime { time: UNIX_EPOCH + Duration::from_secs(NOW), now_ms: 0, delay }
}

fn lifetime_of(
    request: &[(&'static str, &str)],
    status: u16,
    reply: &[(&'static str, &str)],
) -> Result<i64, UncacheableReason> {
    let status = StatusCode::from_u16(status).unwrap();
    let defaults = FreshnessDefaults { negative: 7, if_error: 0 };
    Freshness::of_reply(&map(request), (status, &map(reply)), receipt_time(0), defaults)
        .map(|freshness| freshness.time_to_live(0))
}

#[test]
fn storage_and_lifetime_follow_the_fields_of_the_reply() {
    let (date, later, earlier) = (http_date(NOW - 10), http_date(NOW + 50), http_date(NOW - 110));
    let cc = "cache-control";
    for (reply, expected) in [
        (&[(cc, "max-age=60")][..], Ok(60)),
        (&[(cc, "max-age=60, s-maxage=30")], Ok(30)),
        (&[(cc, "max-age=60"), ("age", "20")], Ok(40)),
        (&[(cc, "max-age=60"), ("age", "5"), ("date", &date)], Ok(50)),
        (&[(cc, "max-age=60"), ("expires", &earlier)], Ok(60)),
        (&[("expires", &later), ("date", &date)], Ok(50)),
        (&[("expires", "0"), ("date", &date)], Err(UncacheableReason::Undated)),
        (&[("expires", "0"), ("date", &date), ("etag", "\"a\"")], Ok(-10)),
        (&[("last-modified", &earlier), ("date", &date)], Ok(0)),
        (&[("etag", "\"a\"")], Ok(0)),
        (&[], Err(UncacheableReason::Undated)),
        (&[(cc, "no-store, max-age=60")], Err(UncacheableReason::NoStore)),
        (&[(cc, "private, max-age=60")], Err(UncacheableReason::Private)),
        (&[(cc, "max-age=60"), ("set-cookie", "a=b")], Err(UncacheableReason::SetCookie)),
        (&[(cc, "max-age=60"), ("vary", "accept, *")], Err(UncacheableReason::VaryAll)),
        (&[(cc, "max-age=60"), ("vary", "accept")], Ok(60)),
    ] {
        assert_eq!(lifetime_of(&[], 200, reply), expected, "{reply:?}");
    }
    assert_eq!(
        lifetime_of(&[(cc, "no-store")], 200, &[(cc, "max-age=60")]),
        Err(UncacheableReason::AskedNoStore)
    );
    assert_eq!(lifetime_of(&[], 200, &[("last-modified", &http_date(NOW - 1_000))]), Ok(100));
    assert_eq!(lifetime_of(&[], 200, &[("last-modified", &http_date(5))]), Ok(86_400));
}

#[test]
fn storage_depends_on_status_and_authorization() {
    let cc = "cache-control";
    for (status, reply, expected) in [
        (404, &[][..], Ok(7)),
        (404, &[(cc, "max-age=1")], Ok(1)),
        (410, &[], Ok(7)),
        (302, &[], Err(UncacheableReason::Undated)),
        (302, &[(cc, "max-age=9")], Ok(9)),
        (500, &[], Err(UncacheableReason::Undated)),
        (503, &[(cc, "max-age=9")], Ok(9)),
        (206, &[(cc, "max-age=9")], Err(UncacheableReason::Status)),
        (226, &[(cc, "max-age=9")], Err(UncacheableReason::Status)),
        (299, &[(cc, "max-age=9")], Ok(9)),
        (599, &[(cc, "public")], Err(UncacheableReason::Status)),
        (599, &[(cc, "max-age=9, must-understand")], Err(UncacheableReason::Status)),
        (503, &[(cc, "max-age=9, must-understand")], Ok(9)),
        (200, &[(cc, "max-age=9, must-understand, no-store")], Err(UncacheableReason::NoStore)),
    ] {
        assert_eq!(lifetime_of(&[], status, reply), expected, "{status} {reply:?}");
    }
    let signed = [("authorization", "Basic x")];
    for (directives, expected) in [
        ("max-age=9", Err(UncacheableReason::Authorization)),
        ("public, max-age=9", Ok(9)),
        ("s-maxage=9", Ok(9)),
        ("must-revalidate, max-age=9", Ok(9)),
    ] {
        assert_eq!(lifetime_of(&signed, 200, &[(cc, directives)]), expected, "{directives}");
    }
}

#[test]
fn the_age_is_the_first_member_of_age_plus_the_delay() {
    let date = http_date(NOW);
    for (stated, expected) in [
        ("20", 20),
        ("20, 0", 20),
        ("0, 20", 0),
        (" 7 ,x", 7),
        ("99999999999999999999", 1 << 31),
        ("abc", 0),
        ("-20", 0),
        ("20.0", 0),
        ("\"20\"", 0),
        ("20;a=b", 0),
        ("", 0),
    ] {
        let mut reply = map(&[("cache-control", "max-age=60"), ("date", &date), ("age", stated)]);
        reply.append("age", HeaderValue::from_static("30"));
        reply.insert("etag", HeaderValue::from_static("\"a\""));
        for delay in [0, 9] {
            let reply = (StatusCode::OK, &reply);
            let found = Freshness::of_reply(
                &HeaderMap::new(),
                reply,
                receipt_time(delay),
                FreshnessDefaults::default(),
            );
            assert_eq!(found.unwrap().age(0), expected + delay, "{stated}");
        }
    }
}

#[test]
fn a_targeted_field_decides_instead_of_cache_control_and_expires() {
    let (cc, cdn, later) = ("cache-control", "cdn-cache-control", http_date(NOW + 50));
    for (reply, expected) in [
        (&[(cc, "max-age=60"), (cdn, "max-age=30")][..], Ok(30)),
        (&[(cc, "no-store"), (cdn, "max-age=30")], Ok(30)),
        (&[(cc, "private"), (cdn, "max-age=30"), ("expires", "0")], Ok(30)),
        (&[(cc, "max-age=60"), (cdn, "private")], Err(UncacheableReason::Private)),
        (&[(cc, "max-age=60"), (cdn, "no-store")], Err(UncacheableReason::NoStore)),
        (&[(cc, "max-age=60"), (cdn, "foo"), ("expires", &later)], Err(UncacheableReason::Undated)),
        (&[(cc, "max-age=60"), (cdn, "max-age=\"9\"")], Err(UncacheableReason::Undated)),
        (&[(cc, "max-age=60"), (cdn, "no-store, &&")], Ok(60)),
        (&[(cc, "no-store"), (cdn, "max-age=9, &&")], Err(UncacheableReason::NoStore)),
    ] {
        assert_eq!(lifetime_of(&[], 200, reply), expected, "{reply:?}");
    }
    let reply = map(&[(cc, "max-age=60"), (cdn, "no-cache, max-age=60")]);
    let reply = (StatusCode::OK, &reply);
    let stored =
        Freshness::of_reply(&HeaderMap::new(), reply, receipt_time(0), FreshnessDefaults::default()).unwrap();
    assert_eq!(stored.usability(0, &Directives::default()), Usability::Stale);
}

fn stored_with(directives: &str) -> Freshness {
    let reply = map(&[("cache-control", directives), ("etag", "\"a\"")]);
    let defaults = FreshnessDefaults { negative: 0, if_error: 5 };
    Freshness::of_reply(&HeaderMap::new(), (StatusCode::OK, &reply), receipt_time(0), defaults).unwrap()
}

#[test]
fn the_usability_of_a_stored_reply_follows_its_directives() {
    for (directives, request_directives, age, expected) in [
        ("max-age=60", "", 59, Usability::Fresh),
        ("max-age=60", "", 60, Usability::Stale),
        ("max-age=60", "no-cache", 1, Usability::Requested),
        ("max-age=60", "max-age=30", 30, Usability::Fresh),
        ("max-age=60", "max-age=30", 31, Usability::Requested),
        ("max-age=60", "max-age=0", 0, Usability::Fresh),
        ("max-age=60", "max-age=0", 1, Usability::Requested),
        ("max-age=60", "min-fresh=10", 50, Usability::Fresh),
        ("max-age=60", "min-fresh=10", 51, Usability::Requested),
        ("max-age=60", "max-stale=10", 70, Usability::Fresh),
        ("max-age=60", "max-stale=10", 71, Usability::Stale),
        ("max-age=60", "max-stale", 9_000, Usability::Fresh),
        ("max-age=60, must-revalidate", "max-stale", 60, Usability::Stale),
        ("s-maxage=60", "max-stale", 60, Usability::Stale),
        ("max-age=60, no-cache", "", 0, Usability::Stale),
        // Consent to stale replies does not permit the use of a reply that was never fresh.
        ("max-age=0", "max-stale", 0, Usability::Stale),
        ("public", "max-stale=99", 0, Usability::Stale),
        ("max-age=0, stale-while-revalidate=5", "", 4, Usability::Stale),
        ("max-age=0, stale-while-revalidate=5", "max-stale", 0, Usability::Stale),
        ("max-age=60, stale-while-revalidate=5", "", 64, Usability::WhileRevalidating),
        ("max-age=60, stale-while-revalidate=5", "", 65, Usability::Stale),
        ("max-age=60, stale-while-revalidate=5, proxy-revalidate", "", 61, Usability::Stale),
    ] {
        let request = if request_directives.is_empty() {
            HeaderMap::new()
        } else {
            map(&[("cache-control", request_directives)])
        };
        let found = stored_with(directives).usability(age * 1_000, &Directives::of_request(&request));
        assert_eq!(found, expected, "{directives} | {request_directives} | {age}");
    }
}

#[test]
fn a_stale_reply_is_usable_on_errors_within_stale_if_error() {
    let request_directives = Directives::default();
    let reply = stored_with("max-age=60, stale-if-error=30");
    assert!(
        reply.may_serve_on_error(89_999, &request_directives)
            && !reply.may_serve_on_error(90_000, &request_directives)
    );
    assert!(
        !stored_with("max-age=60, stale-if-error=30, must-revalidate")
            .may_serve_on_error(61_000, &request_directives)
    );
    assert!(
        stored_with("max-age=60").may_serve_on_error(64_999, &request_directives)
            && !stored_with("max-age=60").may_serve_on_error(65_000, &request_directives)
    );
    let consents = Directives { stale_if_error: Some(10), ..request_directives };
    assert!(stored_with("max-age=60").may_serve_on_error(69_000, &consents));
    for never_fresh in
        ["max-age=0", "no-cache", "public", "no-cache, stale-if-error=30", "max-age=0, stale-if-error=30"]
    {
        assert!(!stored_with(never_fresh).may_serve_on_error(0, &consents), "{never_fresh}");
    }
    assert!(
        !reply.may_serve_on_error(61_000, &Directives { no_cache: true, ..request_directives }),
        "the client refuses"
    );
}

proptest! {
    #[test]
    fn freshness_never_increases_with_time(lifetime in 1..200_u64, a in 0..400_000_u64, more in 0..400_000_u64) {
        let reply = stored_with(&format!("max-age={lifetime}"));
        let request_directives = Directives::default();
        prop_assert!(reply.time_to_live(a + more) <= reply.time_to_live(a));
        if reply.usability(a + more, &request_directives) == Usability::Fresh {
            prop_assert_eq!(reply.usability(a, &request_directives), Usability::Fresh);
        }
    }
}
