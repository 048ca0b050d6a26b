//! Tests of a picker: single exchanges, and the services over a connection.

mod exchanges;
mod prompts;
mod replicas;
mod services;
mod subsets;

use crate::config::{PickerConfig, PickerTls};
use crate::exchange::{AnswerQueue, Exchange, Flow};
use crate::picker::Picker;
use crate::proto::{
    Answer, BodyMode, HeaderMap, HeaderValue, HttpHeaders, Metadata, Phase, ProcessingRequest,
    ProcessingResponse, ProtocolConfiguration,
};
use larder_core::{NodeSpec, PolicyKind, Settings, Time};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use std::sync::Arc;

/// Returns the config that tests change, without TLS.
fn config() -> PickerConfig {
    let settings = Settings { policy: PolicyKind::LardR, join_warm_targets: 0, ..Settings::default() };
    PickerConfig { tls: PickerTls::Off, fallbacks: 1, ..PickerConfig::new(settings) }
}

/// Creates a picker with endpoints `10.0.0.1:80` and so on, named `n1` and so on.
fn picker(config: PickerConfig, endpoints: u8) -> Arc<Picker> {
    let node =
        |number: u8| (NodeSpec::named(format!("n{number}")), address(number).parse().expect("an address"));
    Arc::new(Picker::new(config, (1..=endpoints).map(node).collect()).expect("a picker"))
}

fn address(number: u8) -> String {
    format!("10.0.0.{number}:80")
}

fn headers(fields: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let field = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec().into(),
        ..HeaderValue::default()
    };
    HttpHeaders { headers: Some(HeaderMap { headers: fields.iter().map(field).collect() }), end_of_stream }
}

fn message(phase: Phase) -> ProcessingRequest {
    ProcessingRequest { phase: Some(phase), ..ProcessingRequest::default() }
}

/// Returns the message that begins a request for a path.
fn request(path: &str) -> ProcessingRequest {
    let fields = [(":method", "GET"), (":authority", "www.example.org"), (":path", path)];
    message(Phase::RequestHeaders(headers(&fields, true)))
}

/// Returns the message that begins a response, with these modes of bodies announced before.
fn response(status: &str, end_of_stream: bool) -> ProcessingRequest {
    message(Phase::ResponseHeaders(headers(&[(":status", status)], end_of_stream)))
}

fn with_modes(mut message: ProcessingRequest, request: BodyMode, response: BodyMode) -> ProcessingRequest {
    message.protocol =
        Some(ProtocolConfiguration { request_body: request.into(), response_body: response.into() });
    message
}

/// Adds metadata to a message.
fn with_metadata(
    mut message: ProcessingRequest,
    namespace: &str,
    key: &str,
    kind: Kind,
) -> ProcessingRequest {
    let fields = [(key.to_owned(), Value { kind: Some(kind) })].into();
    let metadata = message.metadata.get_or_insert_with(Metadata::default);
    metadata.filter_metadata.insert(namespace.to_owned(), Struct { fields });
    message
}

/// Adds a subset hint to a message.
fn within(message: ProcessingRequest, endpoints: &[&str]) -> ProcessingRequest {
    let text = |text: &&str| Value { kind: Some(Kind::StringValue((*text).to_owned())) };
    let list = Kind::ListValue(ListValue { values: endpoints.iter().map(text).collect() });
    with_metadata(message, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", list)
}

/// Returns the endpoints of an answer, which the header and the metadata must state alike.
fn endpoints(response: &ProcessingResponse) -> Vec<String> {
    let Some(Answer::RequestHeaders(part)) = &response.answer else { panic!("no endpoint: {response:?}") };
    let mutation =
        part.response.as_ref().and_then(|common| common.header_mutation.as_ref()).expect("a header");
    let header = mutation.set_headers[0].header.as_ref().expect("a header");
    assert_eq!(header.key, "x-gateway-destination-endpoint");
    let in_header = str::from_utf8(&header.raw_value).expect("a text").to_owned();
    let spaces = &response.dynamic_metadata.as_ref().expect("metadata").fields;
    let Some(Kind::StructValue(space)) = &spaces["envoy.lb"].kind else { panic!("no namespace") };
    let kind = space.fields["x-gateway-destination-endpoint"].kind.clone();
    assert_eq!(kind, Some(Kind::StringValue(in_header.clone())), "header and metadata agree");
    in_header.split(',').map(str::to_owned).collect()
}

/// Returns the status of an immediate response.
fn refusal(response: &ProcessingResponse) -> i32 {
    let Some(Answer::Immediate(immediate)) = &response.answer else { panic!("no refusal: {response:?}") };
    immediate.status.expect("a status").code
}

/// Handles a message, and returns the answer.
fn answer(exchange: &mut Exchange, at_ms: u64, message: ProcessingRequest) -> ProcessingResponse {
    let mut answers = AnswerQueue::new();
    exchange.handle(Time::from_millis(at_ms), message, &mut answers).expect("an answer");
    assert_eq!(answers.len(), 1);
    answers.remove(0).expect("an answer")
}

/// Returns the reply to a request that the picker refuses.
fn refuse(exchange: &mut Exchange, message: ProcessingRequest) -> ProcessingResponse {
    let mut answers = AnswerQueue::new();
    assert_eq!(exchange.handle(Time::ZERO, message, &mut answers), Ok(Flow::Ends));
    answers.pop_back().expect("an answer")
}

/// Returns the requests in flight at all endpoints.
fn in_flight(picker: &Picker) -> u64 {
    picker.status()["outstanding"].as_u64().expect("a number")
}

/// Returns a value of the status of a node.
fn node(picker: &Picker, name: &str, key: &str) -> u64 {
    let status = picker.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    let row = nodes.iter().find(|row| row["name"] == name).expect("a node");
    row[key].as_u64().expect("a number")
}
