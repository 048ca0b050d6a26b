//! The messages of Envoy's external processing (`envoy.service.ext_proc.v3`), as far as an endpoint picker uses them.
//!
//! Envoy's interface is stable and has thousands of messages, of which these are a few. A field that is not declared here is skipped when
//! a message is read. The numbers are those of `external_processor.proto`, `base.proto` and `http_status.proto`. The test with a real Envoy
//! checks them.

use bytes::Bytes;
use prost::{Message, Oneof};
use prost_types::Struct;
use std::collections::HashMap;

/// The name of the service.
pub(crate) const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";
/// The path of its only method.
pub(crate) const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// A message of the gateway.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingRequest {
    #[prost(oneof = "Phase", tags = "2, 3, 4, 5, 6, 7")]
    pub(crate) phase: Option<Phase>,
    #[prost(message, optional, tag = "8")]
    pub(crate) metadata: Option<Metadata>,
    /// The attributes that the gateway is configured to send, by the name of its filter.
    #[prost(map = "string, message", tag = "9")]
    pub(crate) attributes: HashMap<String, Struct>,
    /// Whether the gateway ignores all answers.
    #[prost(bool, tag = "10")]
    pub(crate) observability_mode: bool,
    /// How bodies are sent; in the first message only.
    #[prost(message, optional, tag = "11")]
    pub(crate) protocol: Option<ProtocolConfiguration>,
}

/// A part of the request or of its response.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Phase {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// The modes in which bodies are sent.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ProtocolConfiguration {
    #[prost(enumeration = "BodyMode", tag = "1")]
    pub(crate) request_body: i32,
    #[prost(enumeration = "BodyMode", tag = "2")]
    pub(crate) response_body: i32,
}

/// The mode in which a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum BodyMode {
    None = 0,
    Streamed = 1,
    Buffered = 2,
    BufferedPartial = 3,
    FullDuplexStreamed = 4,
    Grpc = 5,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(crate) headers: Option<HeaderMap>,
    #[prost(bool, tag = "3")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

/// Trailers, whose contents are of no interest.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpTrailers {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<HeaderValue>,
}

/// A header. The value is in one of two fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) raw_value: Bytes,
}

/// Metadata by namespace.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) filter_metadata: HashMap<String, Struct>,
}

/// An answer to the gateway.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingResponse {
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) answer: Option<Answer>,
    #[prost(message, optional, tag = "8")]
    pub(crate) dynamic_metadata: Option<Struct>,
}

/// The answer to a part of the request or of its response.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Answer {
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`, which have the same form.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub(crate) header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub(crate) body_mutation: Option<BodyMutation>,
}

/// An answer that changes no trailers.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TrailersResponse {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(crate) set_headers: Vec<HeaderValueOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderValue>,
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub(crate) append_action: i32,
}

/// Treatment of a header that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum AppendAction {
    AppendIfExistsOrAdd = 0,
    AddIfAbsent = 1,
    OverwriteIfExistsOrAdd = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BodyMutation {
    /// The next piece of the body, in the mode `FULL_DUPLEX_STREAMED`.
    #[prost(message, optional, tag = "3")]
    pub(crate) streamed_response: Option<StreamedBodyResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamedBodyResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

/// A reply to the client in place of the endpoint's.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
    #[prost(string, tag = "5")]
    pub(crate) details: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

impl HeaderMap {
    /// Returns the value of the first header with this lower-case name.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        let header = self.headers.iter().find(|header| header.key.eq_ignore_ascii_case(name))?;
        Some(if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value })
    }

    /// Returns the value of the last header with this lower-case name.
    pub(crate) fn last(&self, name: &str) -> Option<&[u8]> {
        let header = self.headers.iter().rfind(|header| header.key.eq_ignore_ascii_case(name))?;
        Some(if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value })
    }
}

impl HeaderMutation {
    /// Returns the mutation that sets headers in place of those that the client may have sent.
    pub(crate) fn set(headers: &[(&str, Bytes)]) -> Self {
        let set = |(key, value): &(&str, Bytes)| HeaderValueOption {
            header: Some(HeaderValue {
                key: (*key).to_owned(),
                raw_value: value.clone(),
                ..HeaderValue::default()
            }),
            append_action: AppendAction::OverwriteIfExistsOrAdd.into(),
        };
        Self { set_headers: headers.iter().map(set).collect() }
    }
}
