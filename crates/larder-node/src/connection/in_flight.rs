//! A request in flight, from its head to the last byte of its reply.

use super::ConnectionRecord;
use crate::access_log::{AccessLine, AccessLogger};
use crate::contents::HandoffContext;
use crate::counters::Counters;
use crate::edge::ConnectionInfo;
use crate::request_trace::RequestTrace;
use http::Response;
use http::request::Parts;
use larder_edge::AddressRanges;
use larder_spans::Tracer;
use std::sync::Arc;
use std::time::Instant;

/// A request in flight. It is dropped when its reply is completely in the socket's buffer, or when the reply is
/// abandoned.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    connection: Arc<ConnectionRecord>,
    /// Time at which the head had been read; `None` for the node's own paths, which do not count as work.
    since: Option<Instant>,
    /// Whether the request is not the first of its connection.
    later: bool,
    trace: Option<Box<RequestTrace>>,
    /// The line in the access log, if there is an access log.
    line: Option<Box<AccessLine>>,
}

impl InFlightRequest {
    /// Begins a request whose head was read at `since`.
    pub(crate) fn begin(connection: &Arc<ConnectionRecord>, since: Instant) -> Self {
        let later = connection.mark_request();
        connection.counters.in_flight.increment();
        Self { connection: Arc::clone(connection), since: Some(since), later, trace: None, line: None }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.connection.counters
    }

    /// Returns the handoff of the connection, if this is a later request on a handed-off connection.
    pub(crate) fn handoff(&self) -> Option<HandoffContext> {
        self.connection.handoff.clone().filter(|_| self.later)
    }

    /// Returns whether this is a later request on a handed-off connection.
    pub(crate) fn is_later_request(&self) -> bool {
        self.later && self.connection.handoff.is_some()
    }

    /// Begins the trace span of the request, if the request is sampled.
    pub(crate) fn begin_trace(&mut self, tracer: &Arc<Tracer>, parts: &mut Parts) {
        let client = self.connection.info().and_then(ConnectionInfo::client);
        self.trace = RequestTrace::begin(tracer, parts, client);
    }

    /// Begins the access log line of the request, if there is an access log.
    pub(crate) fn begin_log_line(
        &mut self,
        access: &Arc<AccessLogger>,
        relays: &AddressRanges,
        parts: &Parts,
    ) {
        let since = self.since.unwrap_or_else(Instant::now);
        self.line = access.line(relays, self.connection.sender(), parts, since);
    }

    /// Records the reply in the trace span and the access log line.
    pub(crate) fn record_reply<B>(&mut self, reply: &Response<B>) {
        if let Some(trace) = &mut self.trace {
            trace.record_reply(reply);
        }
        if let Some(line) = &mut self.line {
            line.record_reply(reply);
        }
    }

    /// Counts `bytes` of the reply's body as sent.
    pub(crate) fn count_sent(&self, bytes: u64) {
        self.counters().bytes_out.add(bytes);
        if let Some(line) = &self.line {
            line.bytes_sent().add(bytes);
        }
    }

    /// Records that the reply ends before its last byte. `None` means that the client has left. The first
    /// recorded reason counts.
    pub(crate) fn record_abort(&mut self, error: Option<&'static str>) {
        if let Some(line) = &mut self.line {
            line.record_error(error);
        }
    }

    /// Passes the access log line to the tunnel that the connection becomes.
    pub(crate) fn move_log_line_to_tunnel(&mut self) {
        self.connection.tunnel.set_log_line(self.line.take());
    }

    /// Suppresses the access log line.
    pub(crate) fn suppress_log_line(&mut self) {
        self.line.iter_mut().for_each(|line| line.suppress());
    }

    /// Marks the request as one for the node's own paths.
    pub(crate) fn mark_own_path(&mut self) {
        if self.since.take().is_some() {
            self.counters().own.increment();
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        match self.since {
            Some(since) => self.counters().record_request_end(since.elapsed()),
            None => self.counters().own.decrement(1),
        }
        if let Some(trace) = self.trace.take() {
            trace.end();
        }
        if let Some(line) = self.line.as_mut().filter(|_| self.connection.is_leaving()) {
            line.suppress();
        }
        // The line is written before the request counts as ended.
        drop(self.line.take());
        self.counters().in_flight.decrement(1);
    }
}
