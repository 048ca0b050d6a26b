//! Completions that are placed by their prompts.

use super::*;
use crate::counters::RequestOutcome;
use crate::proto::{HttpBody, HttpTrailers};
use bytes::Bytes;
use larder_prompts::PromptConfig;
use serde_json::{Value as Json, json};

fn prompt_picker(prompts: PromptConfig, endpoints: u8) -> Arc<Picker> {
    picker(PickerConfig { prompts: Some(prompts), fallbacks: 1, ..config() }, endpoints)
}

fn completion() -> ProcessingRequest {
    let fields =
        [(":method", "POST"), (":authority", "llm.example.org"), (":path", "/v1/chat/completions?x=1")];
    message(Phase::RequestHeaders(headers(&fields, false)))
}

fn piece(bytes: &[u8], end_of_stream: bool) -> ProcessingRequest {
    message(Phase::RequestBody(HttpBody { body: Bytes::copy_from_slice(bytes), end_of_stream }))
}

/// Returns the body of a turn: all turns before it, and 4 KiB more.
fn turn(user: u64, turns: u64) -> Vec<u8> {
    let text = |turn: u64| format!("user {user} turn {turn} ").repeat(256);
    let messages: Vec<Json> =
        (0..turns).map(|turn| json!({ "role": "user", "content": text(turn) })).collect();
    json!({ "model": "m", "messages": messages }).to_string().into_bytes()
}

/// Returns the answers to a message.
fn answers(exchange: &mut Exchange, message: ProcessingRequest) -> Vec<ProcessingResponse> {
    let mut answers = AnswerQueue::new();
    assert_eq!(exchange.handle(Time::ZERO, message, &mut answers), Ok(Flow::Continues));
    answers.into()
}

/// Sends a completion in pieces. Returns the endpoints, after the body has come back.
fn place(exchange: &mut Exchange, head: ProcessingRequest, body: &[u8]) -> Vec<String> {
    assert!(answers(exchange, head).is_empty(), "the decision needs the body");
    let (first, rest) = body.split_at(body.len() / 3);
    assert!(answers(exchange, piece(first, false)).is_empty());
    let mut all = answers(exchange, piece(rest, true));
    let pieces = all.split_off(1);
    let mut returned = Vec::new();
    for (at, answer) in pieces.iter().enumerate() {
        let Some(Answer::RequestBody(part)) = &answer.answer else { panic!("{answer:?}") };
        let mutation = part.response.as_ref().and_then(|common| common.body_mutation.as_ref());
        let sent = mutation.and_then(|mutation| mutation.streamed_response.as_ref()).expect("a piece");
        assert!(sent.body.len() <= 64 << 10);
        assert_eq!(sent.end_of_stream, at + 1 == pieces.len());
        returned.extend_from_slice(&sent.body);
    }
    assert!(returned == body, "the body comes back unchanged");
    endpoints(&all[0])
}

fn serve(picker: &Arc<Picker>, body: &[u8]) -> Vec<String> {
    let mut exchange = Exchange::new(Arc::clone(picker));
    let list = place(&mut exchange, completion(), body);
    answer(&mut exchange, 1, response("200", false));
    let end = HttpBody { body: Bytes::from_static(b"data: {}"), end_of_stream: true };
    answer(&mut exchange, 2, message(Phase::ResponseBody(end)));
    list
}

/// Returns the reply to a completion that is refused: its status and its error.
fn refused(picker: &Arc<Picker>, body: &[u8]) -> (u32, Json) {
    let mut exchange = Exchange::new(Arc::clone(picker));
    answers(&mut exchange, completion());
    let reply = refuse(&mut exchange, piece(body, true));
    let Some(Answer::Immediate(immediate)) = &reply.answer else { panic!("{reply:?}") };
    let error: Json = serde_json::from_slice(&immediate.body).expect("JSON");
    (immediate.status.as_ref().expect("a status").code as u32, error["error"].clone())
}

#[test]
fn the_turns_of_a_conversation_stay_at_one_endpoint() {
    let picker = prompt_picker(PromptConfig::default(), 3);
    let mut homes = Vec::new();
    for turns in 1..5 {
        let places: Vec<_> = (0..6).map(|user| serve(&picker, &turn(user, turns))).collect();
        assert!(
            places.iter().all(|list| list.len() == 2 && list[0] != list[1]),
            "an endpoint and a fallback"
        );
        homes.push(places.iter().map(|list| list[0].clone()).collect::<Vec<_>>());
    }
    assert!(homes.iter().all(|places| *places == homes[0]), "{homes:?}");
    let shares = (1..4).map(|n| homes[0].iter().filter(|home| **home == address(n)).count());
    assert_eq!(shares.collect::<Vec<_>>(), [2, 2, 2]);
    let metrics = picker.metrics();
    assert!(metrics.contains("\nlarder_picker_prompts_total 24\n"), "{metrics}");
    assert!(metrics.contains("\nlarder_picker_prompt_body_bytes 0\n"), "{metrics}");
    assert_eq!((in_flight(&picker), picker.counters.ended(RequestOutcome::Complete)), (0, 24));
}

/// A prompt whose endpoint is not permitted goes to the best one that is.
#[test]
fn a_subset_restricts_the_choice() {
    let picker = prompt_picker(PromptConfig::default(), 4);
    let home = serve(&picker, &turn(1, 1)).remove(0);
    let others: Vec<String> = (1..5).map(address).filter(|other| *other != home).take(2).collect();
    let place_among = |user, permitted: &[String]| {
        let mut exchange = Exchange::new(Arc::clone(&picker));
        let permitted: Vec<&str> = permitted.iter().map(String::as_str).collect();
        place(&mut exchange, within(completion(), &permitted), &turn(user, 2))
    };
    let list = place_among(1, &others);
    assert!(list.iter().all(|endpoint| others.contains(endpoint)), "{list:?}");
    let home = serve(&picker, &turn(2, 1)).remove(0);
    let other = (1..5).map(address).find(|other| *other != home).expect("four endpoints");
    assert_eq!(place_among(2, &[other, home.clone()])[0], home);
}

#[test]
fn other_requests_are_decided_by_their_head() {
    let picker = prompt_picker(PromptConfig::default(), 2);
    let mut exchange = Exchange::new(Arc::clone(&picker));
    let buffered = with_modes(completion(), BodyMode::Buffered, BodyMode::None);
    endpoints(&answer(&mut exchange, 0, buffered));
    let mut exchange = Exchange::new(Arc::clone(&picker));
    endpoints(&answer(&mut exchange, 0, request("/v1/chat/completions")));
    assert!(picker.metrics().contains("\nlarder_picker_prompts_total 0\n"));
}

#[test]
fn trailers_end_a_body() {
    let picker = prompt_picker(PromptConfig::default(), 2);
    let mut exchange = Exchange::new(Arc::clone(&picker));
    answers(&mut exchange, completion());
    answers(&mut exchange, piece(&turn(1, 1), false));
    let all = answers(&mut exchange, message(Phase::RequestTrailers(HttpTrailers {})));
    assert!(matches!(all.first().and_then(|one| one.answer.as_ref()), Some(Answer::RequestHeaders(_))));
    assert!(matches!(all.last().and_then(|one| one.answer.as_ref()), Some(Answer::RequestTrailers(_))));
    assert_eq!(in_flight(&picker), 1);
}

#[test]
fn errors_have_the_form_of_the_api() {
    let limits =
        PromptConfig { body_bytes_max: 8 << 10, memory_bytes_max: 8 << 10, ..PromptConfig::default() };
    let picker = prompt_picker(limits, 2);
    for (body, status, code, outcome) in [
        (b"no json".to_vec(), 400, "no_prompt", RequestOutcome::NoPrompt),
        (turn(1, 3), 413, "body_too_large", RequestOutcome::TooLarge),
    ] {
        let (found, error) = refused(&picker, &body);
        assert_eq!((found, &error["code"]), (status, &code.into()), "{error}");
        assert_eq!(picker.counters.ended(outcome), 1);
    }
    let mut slow = Exchange::new(Arc::clone(&picker));
    answers(&mut slow, completion());
    answers(&mut slow, piece(&turn(1, 2)[..4_100], false));
    let (status, error) = refused(&picker, &turn(2, 1));
    assert_eq!((status, &error["code"]), (503, &"prompt_memory_full".into()), "{error}");
    drop(slow);
    assert_eq!(picker.counters.ended(RequestOutcome::Cancelled), 1);
    serve(&picker, &turn(2, 1));
    let nobody = prompt_picker(PromptConfig::default(), 0);
    assert_eq!(refused(&nobody, &turn(1, 1)).0, 503);
}

/// An endpoint that cannot be reached has no credit, wherever its requests are.
#[test]
fn a_failed_endpoint_loses_its_credits() {
    let picker = prompt_picker(PromptConfig::default(), 1);
    serve(&picker, &turn(1, 1));
    let credits = |picker: &Picker| !picker.metrics().contains("\nlarder_picker_prompt_credits 0\n");
    assert!(credits(&picker));
    let mut exchange = Exchange::new(Arc::clone(&picker));
    place(&mut exchange, completion(), &turn(1, 2));
    let failed = response("503", true);
    let details = Value {
        kind: Some(Kind::StringValue("upstream_reset_before_response_started{connection_failure}".into())),
    };
    let fields = Struct { fields: [("response.code_details".to_owned(), details)].into() };
    let failed = ProcessingRequest { attributes: [("any".to_owned(), fields)].into(), ..failed };
    answer(&mut exchange, 1, failed);
    assert!(!credits(&picker));
}

/// The gateway has left the endpoint for its fallback, which has the prompt now.
#[test]
fn an_endpoint_that_the_gateway_has_left_loses_its_credits() {
    let picker = prompt_picker(PromptConfig::default(), 2);
    let home = serve(&picker, &turn(1, 1)).remove(0);
    let mut exchange = Exchange::new(Arc::clone(&picker));
    let list = place(&mut exchange, completion(), &turn(1, 2));
    assert_eq!(list[0], home);
    let key = "x-gateway-destination-endpoint-served";
    let served = Kind::StringValue(list[1].clone());
    answer(&mut exchange, 1, with_metadata(response("200", false), "envoy.lb", key, served));
    let end = HttpBody { body: Bytes::from_static(b"data: {}"), end_of_stream: true };
    answer(&mut exchange, 2, message(Phase::ResponseBody(end)));
    assert_eq!(serve(&picker, &turn(1, 3))[0], list[1]);
}
