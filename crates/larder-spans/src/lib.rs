//! Distributed tracing: the spans of a switch and its nodes, sent to an OpenTelemetry collector.
//!
//! A traced request carries the header `traceparent` ([W3C Trace Context](https://www.w3.org/TR/trace-context/)). If it is
//! marked as sampled, its trace is continued. A request without the header begins a trace with a configured probability.
//! Spans go to a bounded queue, and a separate thread sends them as OTLP/HTTP in JSON. Requests never wait for it: spans are
//! dropped and counted if the queue is full or the collector does not accept them.

mod export;
mod id;
mod otlp;
mod span;

pub use export::{Endpoint, EndpointError, ExportCounts, Tracer, TracerConfig};
pub use id::{SpanId, TRACEPARENT, TRACESTATE, TraceId, TraceParent};
pub use span::{ActiveSpan, AttributeValue, Span, SpanKind};
