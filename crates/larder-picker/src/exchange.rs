//! The exchange with a gateway about one request: parts of the request and of its response in, an answer to each part out.
//!
//! The answer to the request's headers has the endpoint. All other parts pass unchanged: in the mode `FULL_DUPLEX_STREAMED` each piece
//! of a body is sent back, and in the other modes it is acknowledged. The decision needs the request's headers only, so it never waits
//! for a body, and nothing is buffered. Only completions whose [prompts](crate::prompt) are placed wait for their bodies.
//!
//! The load of the request is given back when its response has ended, or when the exchange is dropped. If the gateway does not send the
//! response's body, the response ends with its headers.

use crate::counters::RequestOutcome;
use crate::picker::{Pick, Picker, reason};
use crate::prompt::{self, PendingPrompt};
use crate::proto::{
    Answer, BodyMode, BodyMutation, CommonResponse, HeaderMap, HeaderMutation, HttpBody, HttpHeaders,
    HttpStatus, ImmediateResponse, Metadata, PartResponse, Phase, ProcessingRequest, ProcessingResponse,
    StreamedBodyResponse, TrailersResponse,
};
use crate::subset;
use bytes::Bytes;
use larder_core::cache_status::members;
use larder_core::rules::{Head, Headers};
use larder_core::{CacheResult, NodeId, Time};
use larder_embed::{Decision, Feedback, Refusal, RequestFacts};
use larder_prompts::{PromptFault, PromptLease, error_body, has_prompt};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The header, and the key of the metadata, with the endpoints of a request.
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The key of the metadata with the endpoint that has served a request.
const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The namespace of both.
const NAMESPACE: &str = "envoy.lb";
/// The namespace of the decision's reason, for access logs.
const OWN_NAMESPACE: &str = "larder";
/// The attribute that says who replied, if the gateway is configured to send it.
const DETAILS: &str = "response.code_details";
/// How details of failures of the endpoint begin: it could not be reached, or the connection was reset.
const RESETS: &str = "upstream_";
/// The reason of a reset by a circuit breaker of the gateway. The endpoint was not asked.
const OVERFLOW: &str = "{overflow";
/// Parts of details that say that the endpoint was not there, or ended its connections.
const LOST_CONNECTIONS: [&str; 2] = ["connection_failure", "connection_termination"];
/// Details of requests whose endpoint did not reply in time. The second also ends requests of slow clients, with another status.
const TIMEOUTS: [&str; 3] = ["response_timeout", "stream_idle_timeout", "max_duration_timeout"];
/// Seconds after which a client may repeat a refused request.
const RETRY_AFTER: &str = "1";

/// The answers to the gateway, in order.
pub(crate) type AnswerQueue = VecDeque<ProcessingResponse>;

/// Whether an exchange goes on after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continues,
    /// The last answer ends the exchange.
    Ends,
}

/// The gateway does not follow the protocol, or uses a part of it that a picker does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("a message has no part of a request or response")]
    NoPhase,
    #[error("the request headers were sent twice: use one stream for each request")]
    SecondRequest,
    #[error("observability_mode is on: the gateway would ignore the endpoint; turn it off")]
    Observability,
    #[error(
        "the body mode GRPC is not supported: set request_body_mode and response_body_mode to FULL_DUPLEX_STREAMED or NONE"
    )]
    GrpcBodies,
}

/// The request of the exchange, from the decision to its end.
#[derive(Debug)]
struct ActiveRequest {
    decision: Decision,
    address: SocketAddr,
    at: Time,
    first_byte: Option<Duration>,
    status: u16,
    /// Whether the reply counts as a failure of the endpoint.
    failed: bool,
    cache: Option<CacheResult>,
    bytes: u64,
    /// The work of its prompt.
    prompt: Option<Box<PromptLease>>,
}

/// The exchange about one request.
#[derive(Debug)]
pub(crate) struct Exchange {
    picker: Arc<Picker>,
    /// The modes of bodies. The default applies to gateways that do not announce their modes.
    request_body: BodyMode,
    response_body: BodyMode,
    has_headers: bool,
    /// The request, while its body is read for a prompt.
    pending: Option<Box<PendingPrompt>>,
    active: Option<ActiveRequest>,
    /// The outcome, once it is counted.
    outcome: Option<RequestOutcome>,
}

/// The headers of a message, as rules see them.
struct HeaderView<'a>(&'a HeaderMap);

impl Headers for HeaderView<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name)
    }
}

impl Exchange {
    pub(crate) fn new(picker: Arc<Picker>) -> Self {
        Self {
            picker,
            request_body: BodyMode::FullDuplexStreamed,
            response_body: BodyMode::FullDuplexStreamed,
            has_headers: false,
            pending: None,
            active: None,
            outcome: None,
        }
    }

    /// Handles a message of the gateway, and appends the answers.
    ///
    /// # Errors
    /// The message breaks the protocol. The stream must end.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        message: ProcessingRequest,
        answers: &mut AnswerQueue,
    ) -> Result<Flow, ProtocolError> {
        self.read_modes(&message)?;
        let metadata = message.metadata.as_ref();
        let answer = match message.phase.ok_or(ProtocolError::NoPhase)? {
            Phase::RequestHeaders(headers) => return self.begin(now, &headers, metadata, answers),
            Phase::RequestBody(body) if self.pending.is_some() => {
                return Ok(self.read_body(now, &body, answers));
            }
            Phase::RequestBody(body) => Answer::RequestBody(pass(self.request_body, body)),
            Phase::RequestTrailers(_) => {
                if self.place(now, false, answers) == Flow::Ends {
                    return Ok(Flow::Ends);
                }
                Answer::RequestTrailers(TrailersResponse {})
            }
            Phase::ResponseHeaders(headers) => {
                // The gateway has replied itself.
                self.pending = None;
                self.note_response(now, &headers, metadata, details(&message.attributes));
                Answer::ResponseHeaders(PartResponse { response: Some(CommonResponse::default()) })
            }
            Phase::ResponseBody(body) => {
                self.pending = None;
                if let Some(active) = &mut self.active {
                    active.bytes += body.body.len() as u64;
                    active.prompt.iter_mut().for_each(|prompt| prompt.note_piece());
                }
                if body.end_of_stream {
                    self.complete(now);
                }
                Answer::ResponseBody(pass(self.response_body, body))
            }
            Phase::ResponseTrailers(_) => {
                self.pending = None;
                self.complete(now);
                Answer::ResponseTrailers(TrailersResponse {})
            }
        };
        answers.push_back(ProcessingResponse { answer: Some(answer), dynamic_metadata: None });
        Ok(Flow::Continues)
    }

    /// Returns the memory of a body whose answers have been sent.
    pub(crate) fn release_body(&mut self) {
        if let Some(prompt) = self.active.as_mut().and_then(|active| active.prompt.as_mut()) {
            prompt.release_body();
        }
    }

    /// Returns the longest time for the body of a completion, while it is awaited.
    pub(crate) fn body_time_max(&self) -> Option<Duration> {
        self.pending.as_ref().map(|pending| pending.time_max())
    }

    /// Refuses the completion whose body has not arrived in time.
    pub(crate) fn refuse_late_body(&mut self, answers: &mut AnswerQueue) {
        if let Some(pending) = &self.pending {
            let fault = PromptFault::TimedOut(pending.time_max());
            self.refuse_prompt(&fault, answers);
        }
    }

    /// Ends the exchange with this outcome, unless the request has ended before.
    pub(crate) fn end(&mut self, now: Time, outcome: RequestOutcome) {
        let Some(active) = self.active.take() else {
            return self.count(outcome);
        };
        let is_complete = outcome == RequestOutcome::Complete;
        let feedback = Feedback {
            // A response that broke off tells nothing about the time of a response.
            elapsed: if is_complete { now.since(active.at) } else { Duration::ZERO },
            first_byte: active.first_byte.filter(|_| is_complete),
            bytes: active.bytes,
            status: active.status,
            cache: active.cache,
            failed: active.failed,
        };
        let has_response = active.first_byte.is_some();
        self.picker.end(now, &active.decision, has_response.then_some(&feedback));
        self.count(outcome);
    }

    /// Returns the outcome of a stream that the gateway has closed or reset.
    pub(crate) fn outcome_at_close(&self) -> RequestOutcome {
        match &self.active {
            None if self.has_headers => RequestOutcome::Cancelled,
            None => RequestOutcome::Bypassed,
            Some(ActiveRequest { first_byte: None, .. }) => RequestOutcome::Cancelled,
            // The gateway closes the stream when it has nothing more to send.
            Some(_) if self.response_body == BodyMode::None => RequestOutcome::Complete,
            Some(_) => RequestOutcome::Unfinished,
        }
    }

    fn read_modes(&mut self, message: &ProcessingRequest) -> Result<(), ProtocolError> {
        if message.observability_mode {
            return Err(ProtocolError::Observability);
        }
        if let Some(protocol) = &message.protocol {
            (self.request_body, self.response_body) = (protocol.request_body(), protocol.response_body());
        }
        let is_grpc = [self.request_body, self.response_body].contains(&BodyMode::Grpc);
        if is_grpc { Err(ProtocolError::GrpcBodies) } else { Ok(()) }
    }

    /// Handles the headers of the request.
    fn begin(
        &mut self,
        now: Time,
        headers: &HttpHeaders,
        metadata: Option<&Metadata>,
        answers: &mut AnswerQueue,
    ) -> Result<Flow, ProtocolError> {
        if std::mem::replace(&mut self.has_headers, true) {
            return Err(ProtocolError::SecondRequest);
        }
        let none = HeaderMap::default();
        let view = HeaderView(headers.headers.as_ref().unwrap_or(&none));
        let value = |name| view.get(name).unwrap_or_default();
        let head = Head::new(value(":method"), value(":authority"), value(":path"), &view);
        let permitted = subset::hint(metadata);
        if let Some(route) = &self.picker.prompts
            && self.request_body == BodyMode::FullDuplexStreamed
            && !headers.end_of_stream
            && has_prompt(&head)
        {
            self.pending = Some(Box::new(PendingPrompt::new(route, permitted)));
            return Ok(Flow::Continues);
        }
        let lasting = view.get("upgrade").is_some();
        let facts = RequestFacts { lasting, ..RequestFacts::new(self.picker.config.key.id(&head)) };
        let pick = self.picker.pick(now, &facts, permitted.as_deref());
        Ok(self.start(now, pick, None, answers))
    }

    /// Adds a piece to the body of a prompt.
    fn read_body(&mut self, now: Time, body: &HttpBody, answers: &mut AnswerQueue) -> Flow {
        let added = self.pending.as_mut().map_or(Ok(()), |pending| pending.add(&body.body));
        match added {
            Err(fault) => self.refuse_prompt(&fault, answers),
            Ok(()) if body.end_of_stream => self.place(now, true, answers),
            Ok(()) => Flow::Continues,
        }
    }

    /// Places the prompt whose body is complete, and passes the body on. It ends the request, unless trailers follow.
    fn place(&mut self, now: Time, ends: bool, answers: &mut AnswerQueue) -> Flow {
        let Some(pending) = self.pending.take() else { return Flow::Continues };
        let read = match pending.read() {
            Ok(read) => read,
            Err(fault) => return self.refuse_prompt(&fault, answers),
        };
        let permitted = read.permitted.as_deref();
        let mut lease = self.picker.place_prompt(&read.route, &read.prompt, read.held, permitted);
        let facts = RequestFacts::new(read.prompt.target());
        let pick = self.picker.pick_prompt(now, &facts, &mut lease, permitted);
        let flow = self.start(now, pick, Some(Box::new(lease)), answers);
        if flow == Flow::Continues {
            for (body, is_last) in prompt::pieces(read.content) {
                let piece = HttpBody { body, end_of_stream: is_last && ends };
                let answer = Answer::RequestBody(pass(BodyMode::FullDuplexStreamed, piece));
                answers.push_back(ProcessingResponse { answer: Some(answer), dynamic_metadata: None });
            }
        }
        flow
    }

    /// Answers the headers of the request.
    fn start(
        &mut self,
        now: Time,
        pick: Result<Pick, Refusal>,
        prompt: Option<Box<PromptLease>>,
        answers: &mut AnswerQueue,
    ) -> Flow {
        match pick {
            Ok(pick) => {
                answers.push_back(chosen(&pick.list, reason(&pick.decision)));
                self.active = Some(ActiveRequest {
                    decision: pick.decision,
                    address: pick.address,
                    at: now,
                    first_byte: None,
                    status: 0,
                    failed: false,
                    cache: None,
                    bytes: 0,
                    prompt,
                });
                Flow::Continues
            }
            Err(refusal) => {
                // The picker has counted it.
                self.outcome = Some(match refusal {
                    Refusal::NoNode => RequestOutcome::NoEndpoint,
                    Refusal::Limit => RequestOutcome::Limit,
                });
                answers.push_back(refused(refusal, prompt.is_some()));
                Flow::Ends
            }
        }
    }

    fn refuse_prompt(&mut self, fault: &PromptFault, answers: &mut AnswerQueue) -> Flow {
        self.pending = None;
        self.count(prompt::outcome(fault));
        let (status, code) = fault.status();
        answers.push_back(immediate(status, fault.body().into(), &format!("larder_{code}"), true));
        Flow::Ends
    }

    /// Notes the headers of the response, with the gateway's metadata and its details.
    fn note_response(
        &mut self,
        now: Time,
        headers: &HttpHeaders,
        metadata: Option<&Metadata>,
        details: Option<&str>,
    ) {
        let Some(active) = &mut self.active else { return };
        if let Some(served) = metadata.and_then(served)
            && served != active.address
            && let Some(decision) = self.picker.serve_elsewhere(now, (&active.decision, active.at), served)
        {
            (active.decision, active.address) = (decision, served);
            if let Some(prompt) = &mut active.prompt {
                // The gateway has left the first endpoint, which may have restarted with an empty cache.
                prompt.forget_node();
                let node = NodeId(decision.node.slot());
                prompt.adopt(self.picker.nodes(), larder_core::Decision { node, reason: decision.reason });
            }
        }
        active.first_byte = Some(now.since(active.at));
        if let Some(map) = &headers.headers {
            active.status = map.get(":status").and_then(status).unwrap_or_default();
            active.failed = is_failure(active.status, details);
            active.cache = map.last("cache-status").and_then(|value| members(value).last()?.found());
        }
        if let Some(prompt) = &mut active.prompt {
            prompt.note_reply(active.status);
            if self.response_body == BodyMode::None {
                // The gateway does not show when the reply begins.
                prompt.note_piece();
            }
            if details.is_some_and(|details| LOST_CONNECTIONS.iter().any(|lost| details.contains(lost))) {
                // The server may have restarted, with an empty cache.
                prompt.forget_node();
            }
        }
        if active.status == 101 {
            self.picker.become_long_lived(now, &mut active.decision);
        }
        if headers.end_of_stream {
            self.complete(now);
        }
    }

    fn complete(&mut self, now: Time) {
        if self.active.is_some() {
            self.end(now, RequestOutcome::Complete);
        }
    }

    /// Counts the outcome of the request, once.
    fn count(&mut self, outcome: RequestOutcome) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.picker.counters.end(outcome);
        }
    }
}

impl Drop for Exchange {
    /// Gives the load back if the stream was dropped.
    fn drop(&mut self) {
        self.end(self.picker.clock(), self.outcome_at_close());
    }
}

/// Returns the answer that lets a piece of a body pass.
fn pass(mode: BodyMode, HttpBody { body, end_of_stream }: HttpBody) -> PartResponse {
    let streamed =
        (mode == BodyMode::FullDuplexStreamed).then_some(StreamedBodyResponse { body, end_of_stream });
    let mutation = streamed.map(|streamed| BodyMutation { streamed_response: Some(streamed) });
    PartResponse { response: Some(CommonResponse { body_mutation: mutation, header_mutation: None }) }
}

/// Returns the answer with the endpoints of a request.
fn chosen(list: &str, reason: &str) -> ProcessingResponse {
    let common = CommonResponse {
        header_mutation: Some(HeaderMutation::set(&[(DESTINATION, Bytes::copy_from_slice(list.as_bytes()))])),
        body_mutation: None,
    };
    let space = |key: &str, value: &str| Value {
        kind: Some(Kind::StructValue(Struct {
            fields: [(key.to_owned(), Value { kind: Some(Kind::StringValue(value.to_owned())) })].into(),
        })),
    };
    let spaces = [
        (NAMESPACE.to_owned(), space(DESTINATION, list)),
        (OWN_NAMESPACE.to_owned(), space("reason", reason)),
    ];
    ProcessingResponse {
        answer: Some(Answer::RequestHeaders(PartResponse { response: Some(common) })),
        dynamic_metadata: Some(Struct { fields: spaces.into() }),
    }
}

/// Returns the reply to a client whose request is refused. Clients of OpenAI's API expect its form.
fn refused(refusal: Refusal, is_api: bool) -> ProcessingResponse {
    let (status, code, text) = match refusal {
        Refusal::NoNode => (503, "no_endpoint", "no endpoint is ready"),
        Refusal::Limit => (429, "limit", "the endpoints are at their limit of requests"),
    };
    let body = if is_api { error_body(status, code, text) } else { format!("{text}\n") };
    immediate(status, body.into(), &format!("larder_{code}"), is_api)
}

/// Returns a reply to the client, with the details for the gateway's log.
fn immediate(status: u16, body: Bytes, details: &str, is_json: bool) -> ProcessingResponse {
    let mut headers = Vec::new();
    if matches!(status, 429 | 503) {
        headers.push(("retry-after", Bytes::from_static(RETRY_AFTER.as_bytes())));
    }
    if is_json {
        headers.push(("content-type", Bytes::from_static(b"application/json")));
    }
    let immediate = ImmediateResponse {
        status: Some(HttpStatus { code: status.into() }),
        headers: Some(HeaderMutation::set(&headers)),
        body,
        details: details.to_owned(),
    };
    ProcessingResponse { answer: Some(Answer::Immediate(immediate)), dynamic_metadata: None }
}

/// Returns whether a reply counts as a failure of the endpoint. Without details, a reply of the gateway cannot be distinguished from the
/// same reply of an endpoint.
fn is_failure(status: u16, details: Option<&str>) -> bool {
    match details {
        None => matches!(status, 502..=504),
        Some(details) => {
            let timed_out = status == 504 && TIMEOUTS.contains(&details);
            timed_out || (details.starts_with(RESETS) && !details.contains(OVERFLOW))
        }
    }
}

/// Returns the details of the response, if the gateway sends them.
fn details(attributes: &HashMap<String, Struct>) -> Option<&str> {
    match attributes.values().find_map(|fields| fields.fields.get(DETAILS))?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Returns the endpoint that has served the request, as the gateway reports it.
fn served(metadata: &Metadata) -> Option<SocketAddr> {
    match subset::field(metadata, NAMESPACE, SERVED)? {
        Kind::StringValue(text) => text.parse().ok(),
        _ => None,
    }
}

/// Reads a status: three digits.
fn status(text: &[u8]) -> Option<u16> {
    http::StatusCode::from_bytes(text).ok().map(|status| status.as_u16())
}
