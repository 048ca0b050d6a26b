//! Traces of requests: what a switch and its nodes did for one, as spans for an OpenTelemetry collector.
//!
//! A request that is traced carries `traceparent` ([W3C Trace Context](https://www.w3.org/TR/trace-context/)). Who gets one
//! that says *sampled* goes on with its trace; where there is none, one in so many requests begins one. Spans go to a queue,
//! and a thread of its own sends them as OTLP/HTTP in JSON. Nothing waits: where the queue is full, or the collector does not
//! take them, spans are counted and lost.

mod export;
mod id;
mod otlp;
mod span;

pub use export::{Counts, Endpoint, Tracer, TracerConfig, WrongEndpoint};
pub use id::{Parent, SpanId, TRACEPARENT, TRACESTATE, TraceId};
pub use span::{Kind, Open, Span, Value};
