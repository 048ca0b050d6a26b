//! Exchanges about single requests, without a connection.

use super::*;
use crate::counters::RequestOutcome;
use crate::exchange::ProtocolError;
use crate::proto::{HttpBody, HttpTrailers, PartResponse};
use bytes::Bytes;
use larder_core::dispatch::Admission;
use proptest::prelude::*;

fn body(bytes: &'static [u8], end_of_stream: bool) -> HttpBody {
    HttpBody { body: Bytes::from_static(bytes), end_of_stream }
}

/// Returns the piece of a body in an answer, with its end; `None` if the answer only acknowledges it.
fn piece(part: &PartResponse) -> Option<(Bytes, bool)> {
    let mutation = part.response.as_ref().expect("a response").body_mutation.as_ref()?;
    let streamed = mutation.streamed_response.as_ref().expect("a piece");
    Some((streamed.body.clone(), streamed.end_of_stream))
}

#[test]
fn a_request_gets_the_endpoint_of_its_target_and_gives_its_load_back() {
    let picker = picker(config(), 3);
    let mut places = Vec::new();
    for _ in 0..3 {
        let mut exchange = Exchange::new(Arc::clone(&picker));
        places.push(endpoints(&answer(&mut exchange, 0, request("/a"))));
        assert_eq!(in_flight(&picker), 1);
        answer(&mut exchange, 5, response("200", true));
        assert_eq!(in_flight(&picker), 0);
    }
    assert_eq!(places[0].len(), 2, "an endpoint and a fallback");
    assert_ne!(places[0][0], places[0][1]);
    assert!(places.iter().all(|place| place == &places[0]), "{places:?}");
    assert_eq!(picker.counters.ended(RequestOutcome::Complete), 3);
    let explained =
        picker.explain(&larder_core::rules::Head::get(b"www.example.org", b"/a")).expect("explained");
    assert_eq!(explained["endpoint"], places[0][0]);
    assert_eq!(explained["key"], "www.example.org/a");
}

#[test]
fn full_duplex_bodies_return_and_other_bodies_are_acknowledged() {
    for (mode, returns) in [
        (BodyMode::FullDuplexStreamed, true),
        (BodyMode::Streamed, false),
        (BodyMode::Buffered, false),
        (BodyMode::BufferedPartial, false),
    ] {
        let picker = picker(config(), 2);
        let mut exchange = Exchange::new(Arc::clone(&picker));
        endpoints(&answer(&mut exchange, 0, with_modes(request("/a"), mode, mode)));
        let sent = answer(&mut exchange, 1, message(Phase::RequestBody(body(b"ask", true))));
        let Some(Answer::RequestBody(part)) = &sent.answer else { panic!("{sent:?}") };
        assert_eq!(piece(part), returns.then(|| (Bytes::from_static(b"ask"), true)), "{mode:?}");
        answer(&mut exchange, 2, response("200", false));
        for (bytes, end) in [(&b"one"[..], false), (b"", false), (b"two", true)] {
            assert_eq!(in_flight(&picker), 1, "the response has not ended");
            let sent = answer(&mut exchange, 3, message(Phase::ResponseBody(body(bytes, end))));
            let Some(Answer::ResponseBody(part)) = &sent.answer else { panic!("{sent:?}") };
            assert_eq!(piece(part), returns.then(|| (Bytes::from_static(bytes), end)), "{mode:?}");
        }
        assert_eq!((in_flight(&picker), picker.counters.ended(RequestOutcome::Complete)), (0, 1));
        assert!(picker.metrics().contains("\nlarder_picker_response_body_bytes_total 6\n"));
    }
}

#[test]
fn trailers_end_a_response() {
    let picker = picker(config(), 2);
    let mut exchange = Exchange::new(Arc::clone(&picker));
    answer(&mut exchange, 0, request("/a"));
    let sent = answer(&mut exchange, 1, message(Phase::RequestTrailers(HttpTrailers {})));
    assert!(matches!(sent.answer, Some(Answer::RequestTrailers(_))));
    answer(&mut exchange, 2, response("200", false));
    answer(&mut exchange, 3, message(Phase::ResponseBody(body(b"x", false))));
    let sent = answer(&mut exchange, 4, message(Phase::ResponseTrailers(HttpTrailers {})));
    assert!(matches!(sent.answer, Some(Answer::ResponseTrailers(_))));
    drop(exchange);
    assert_eq!((in_flight(&picker), picker.counters.ended(RequestOutcome::Complete)), (0, 1));
}

/// The gateway may close the stream, reset it, or break the connection, at any time.
#[test]
fn a_stream_that_breaks_gives_its_load_back() {
    let stages: [(&[ProcessingRequest], RequestOutcome); 5] = [
        (&[], RequestOutcome::Bypassed),
        (&[request("/a")], RequestOutcome::Cancelled),
        (&[request("/a"), response("200", false)], RequestOutcome::Unfinished),
        (
            &[with_modes(request("/a"), BodyMode::None, BodyMode::None), response("200", false)],
            RequestOutcome::Complete,
        ),
        (&[response("400", true)], RequestOutcome::Bypassed),
    ];
    for (messages, outcome) in stages {
        let picker = picker(config(), 2);
        let mut exchange = Exchange::new(Arc::clone(&picker));
        for message in messages {
            answer(&mut exchange, 1, message.clone());
        }
        drop(exchange);
        assert_eq!(in_flight(&picker), 0, "{outcome:?}");
        assert_eq!(picker.counters.ended(outcome), 1, "{outcome:?}: {:?}", picker.counters);
        assert_eq!(picker.counters.outcomes().map(|(_, count)| count).sum::<u64>(), 1, "{outcome:?}");
    }
}

#[test]
fn without_endpoints_the_client_gets_503_and_at_the_limit_429() {
    let none = picker(config(), 0);
    assert!(!none.is_ready());
    let reply = refuse(&mut Exchange::new(Arc::clone(&none)), request("/a"));
    assert_eq!(refusal(&reply), 503);
    assert_eq!(none.counters.ended(RequestOutcome::NoEndpoint), 1);

    let mut limited = config();
    limited.settings.admission = Admission::Fixed(1);
    let limited = picker(limited, 2);
    let mut first = Exchange::new(Arc::clone(&limited));
    answer(&mut first, 0, request("/a"));
    let reply = refuse(&mut Exchange::new(Arc::clone(&limited)), request("/b"));
    assert_eq!(refusal(&reply), 429);
    drop(first);
    endpoints(&answer(&mut Exchange::new(Arc::clone(&limited)), 0, request("/b")));
    assert_eq!(limited.counters.ended(RequestOutcome::Limit), 1);
}

#[test]
fn the_endpoint_that_served_gets_the_load() {
    // The request counts already, so the limit must not stop it.
    let mut limited = config();
    limited.settings.admission = Admission::Fixed(1);
    let picker = picker(limited, 2);
    let mut exchange = Exchange::new(Arc::clone(&picker));
    let list = endpoints(&answer(&mut exchange, 0, request("/a")));
    let name = |address: &str| format!("n{}", &address[7..8]);
    assert_eq!((node(&picker, &name(&list[0]), "load"), node(&picker, &name(&list[1]), "load")), (1, 0));
    let key = "x-gateway-destination-endpoint-served";
    let served = with_metadata(response("200", false), "envoy.lb", key, Kind::StringValue(list[1].clone()));
    answer(&mut exchange, 4, served);
    assert_eq!((node(&picker, &name(&list[0]), "load"), node(&picker, &name(&list[1]), "load")), (0, 1));
    assert_eq!(node(&picker, &name(&list[0]), "failures"), 1);
    answer(&mut exchange, 5, message(Phase::ResponseBody(body(b"x", true))));
    assert_eq!((in_flight(&picker), node(&picker, &name(&list[1]), "replies")), (0, 1));
    assert!(picker.metrics().contains("larder_picker_served_elsewhere_total 1\n"));
    // The same endpoint, an unknown one and a text that is no address change nothing.
    for served in [list[0].as_str(), "192.0.2.1:1", "?"] {
        let mut exchange = Exchange::new(Arc::clone(&picker));
        answer(&mut exchange, 0, request("/a"));
        let kind = Kind::StringValue(served.to_owned());
        answer(&mut exchange, 1, with_metadata(response("200", true), "envoy.lb", key, kind));
    }
    assert!(picker.metrics().contains("larder_picker_served_elsewhere_total 1\n"));
    assert_eq!(in_flight(&picker), 0);
}

/// The details distinguish replies of the gateway from replies of the endpoint.
#[test]
fn only_replies_in_place_of_the_endpoints_are_failures() {
    for (status, details, failures) in [
        ("503", Some("upstream_reset_before_response_started{connection_failure}"), 1),
        ("504", Some("response_timeout"), 1),
        ("504", Some("upstream_per_try_timeout"), 1),
        ("504", Some("stream_idle_timeout"), 1),
        // The client was slow, and the gateway's circuit breaker was open.
        ("408", Some("stream_idle_timeout"), 0),
        ("503", Some("upstream_reset_before_response_started{overflow}"), 0),
        ("503", Some("no_healthy_upstream"), 0),
        ("503", Some("via_upstream"), 0),
        ("429", Some("request_rate_limited"), 0),
        ("503", None, 1),
        ("500", None, 0),
    ] {
        let picker = picker(config(), 1);
        let mut exchange = Exchange::new(Arc::clone(&picker));
        answer(&mut exchange, 0, request("/a"));
        let mut response = response(status, true);
        if let Some(details) = details {
            let value = Value { kind: Some(Kind::StringValue(details.to_owned())) };
            let fields = [("response.code_details".to_owned(), value)].into();
            response.attributes.insert("envoy.filters.http.ext_proc".to_owned(), Struct { fields });
        }
        answer(&mut exchange, 5, response);
        assert_eq!(node(&picker, "n1", "failures"), failures, "{status} {details:?}");
    }
}

#[test]
fn a_key_may_be_a_header() {
    let mut keyed = config();
    keyed.key = "{header:x-session}".parse().expect("a key");
    let picker = picker(keyed, 8);
    let place = |session: &str, path: &str| {
        let fields = [(":method", "POST"), (":path", path), ("x-session", session)];
        let mut exchange = Exchange::new(Arc::clone(&picker));
        endpoints(&answer(&mut exchange, 0, message(Phase::RequestHeaders(headers(&fields, false)))))[0]
            .clone()
    };
    assert_eq!(place("s1", "/v1/chat"), place("s1", "/v1/other"));
    let places: std::collections::BTreeSet<String> =
        (0..32).map(|session| place(&format!("s{session}"), "/v1/chat")).collect();
    assert!(places.len() > 1, "{places:?}");
}

#[test]
fn the_cache_status_of_the_endpoint_is_counted() {
    let picker = picker(config(), 1);
    for (value, hits, misses) in [("a; hit, node; fwd=miss", 0, 1), ("node; hit", 1, 1), ("nonsense", 1, 1)] {
        let mut exchange = Exchange::new(Arc::clone(&picker));
        answer(&mut exchange, 0, request("/a"));
        let fields = [(":status", "200"), ("cache-status", value)];
        answer(&mut exchange, 1, message(Phase::ResponseHeaders(headers(&fields, true))));
        let text = picker.metrics();
        assert!(text.contains(&format!("outcome=\"hit\"}} {hits}\n")), "{value}: {text}");
        assert!(text.contains(&format!("outcome=\"miss\"}} {misses}\n")), "{value}: {text}");
    }
}

#[test]
fn a_gateway_that_breaks_the_protocol_is_told_how_to_follow_it() {
    let picker = picker(config(), 1);
    let refused = |messages: &[ProcessingRequest]| {
        let mut exchange = Exchange::new(Arc::clone(&picker));
        messages
            .iter()
            .find_map(|message| exchange.handle(Time::ZERO, message.clone(), &mut AnswerQueue::new()).err())
    };
    assert_eq!(refused(&[ProcessingRequest::default()]), Some(ProtocolError::NoPhase));
    assert_eq!(refused(&[request("/a"), request("/a")]), Some(ProtocolError::SecondRequest));
    let observed = ProcessingRequest { observability_mode: true, ..request("/a") };
    assert_eq!(refused(&[observed]), Some(ProtocolError::Observability));
    let grpc = with_modes(request("/a"), BodyMode::None, BodyMode::Grpc);
    assert_eq!(refused(&[grpc]), Some(ProtocolError::GrpcBodies));
    assert_eq!(in_flight(&picker), 0);
}

proptest! {
    /// Whatever a gateway sends, in whatever order, no load remains and each stream is counted once.
    #[test]
    fn no_load_remains(
        parts in prop::collection::vec((0_u8..7, any::<bool>(), 0_i32..7), 0..12),
        removed in 0_usize..12,
    ) {
        let picker = picker(config(), 3);
        let mut exchange = Exchange::new(Arc::clone(&picker));
        for (at, (part, flag, mode)) in parts.into_iter().enumerate() {
            if at == removed {
                for name in ["n1", "n2"] {
                    picker.leave(name);
                }
            }
            let mut message = match part {
                0 => request("/a"),
                1 => within(request("/b"), &["10.0.0.3:80", "?"]),
                2 => message(Phase::RequestBody(body(b"x", flag))),
                3 => response("200", flag),
                4 => message(Phase::ResponseBody(body(b"x", flag))),
                5 => message(Phase::ResponseTrailers(HttpTrailers {})),
                _ => message(Phase::RequestTrailers(HttpTrailers {})),
            };
            if mode < 5 {
                message.protocol = Some(ProtocolConfiguration { request_body: mode, response_body: mode });
            }
            if exchange.handle(Time::from_millis(at as u64), message, &mut AnswerQueue::new()).is_err() {
                break;
            }
        }
        drop(exchange);
        prop_assert_eq!(in_flight(&picker), 0);
        prop_assert_eq!(picker.counters.outcomes().map(|(_, count)| count).sum::<u64>(), 1);
    }
}
