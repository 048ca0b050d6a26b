//! A request in flight, from its head to the last byte of its reply.

use super::Shared;
use crate::access::{Access, Line};
use crate::contents::Later;
use crate::counts::Counters;
use crate::edge::Entered;
use crate::traced::Traced;
use http::Response;
use http::request::Parts;
use larder_edge::AddressRanges;
use larder_spans::Tracer;
use std::sync::Arc;
use std::time::Instant;

/// A request in flight. It is dropped when its reply is completely in the socket's buffer, or when the reply is
/// abandoned.
#[derive(Debug)]
pub(crate) struct InFlight {
    shared: Arc<Shared>,
    /// Time at which the head had been read; `None` for the node's own paths, which do not count as work.
    since: Option<Instant>,
    /// Whether the request is not the first of its connection.
    later: bool,
    traced: Option<Box<Traced>>,
    /// The line in the access log, if there is an access log.
    line: Option<Box<Line>>,
}

impl InFlight {
    /// Begins a request whose head was read at `since`.
    pub(crate) fn begin(shared: &Arc<Shared>, since: Instant) -> Self {
        let later = shared.note_request();
        shared.counters.in_flight.rise();
        Self { shared: Arc::clone(shared), since: Some(since), later, traced: None, line: None }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the handoff of the connection, if this is a later request on a handed-off connection.
    pub(crate) fn later(&self) -> Option<Later> {
        self.shared.handed.clone().filter(|_| self.later)
    }

    /// Returns whether this is a later request on a handed-off connection.
    pub(crate) fn is_later(&self) -> bool {
        self.later && self.shared.handed.is_some()
    }

    /// Begins the trace span of the request, if the request is sampled.
    pub(crate) fn trace(&mut self, tracer: &Arc<Tracer>, parts: &mut Parts) {
        let client = self.shared.entered().and_then(Entered::client);
        self.traced = Traced::begin(tracer, parts, client);
    }

    /// Begins the access log line of the request, if there is an access log.
    pub(crate) fn log(&mut self, access: &Arc<Access>, relays: &AddressRanges, parts: &Parts) {
        let since = self.since.unwrap_or_else(Instant::now);
        self.line = access.line(relays, self.shared.sender(), parts, since);
    }

    /// Records the reply in the trace span and the access log line.
    pub(crate) fn answers<B>(&mut self, reply: &Response<B>) {
        if let Some(traced) = &mut self.traced {
            traced.answers(reply);
        }
        if let Some(line) = &mut self.line {
            line.answers(reply);
        }
    }

    /// Counts `bytes` of the reply's body as sent.
    pub(crate) fn sent(&self, bytes: u64) {
        self.counters().bytes_out.add(bytes);
        if let Some(line) = &self.line {
            line.sent().add(bytes);
        }
    }

    /// Records that the reply ends before its last byte. `None` means that the client has left. The first
    /// recorded reason counts.
    pub(crate) fn breaks_off(&mut self, error: Option<&'static str>) {
        if let Some(line) = &mut self.line {
            line.fails(error);
        }
    }

    /// Passes the access log line to the tunnel that the connection becomes.
    pub(crate) fn becomes_tunnel(&mut self) {
        self.shared.tunnel.logs(self.line.take());
    }

    /// Suppresses the access log line.
    pub(crate) fn leaves_no_line(&mut self) {
        self.line.iter_mut().for_each(|line| line.void());
    }

    /// Marks the request as one for the node's own paths.
    pub(crate) fn set_own(&mut self) {
        if self.since.take().is_some() {
            self.counters().own.rise();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        match self.since {
            Some(since) => self.counters().ended(since.elapsed()),
            None => self.counters().own.fall(1),
        }
        if let Some(traced) = self.traced.take() {
            traced.end();
        }
        if let Some(line) = self.line.as_mut().filter(|_| self.shared.departs()) {
            line.void();
        }
        // The line is written before the request counts as ended.
        drop(self.line.take());
        self.counters().in_flight.fall(1);
    }
}
