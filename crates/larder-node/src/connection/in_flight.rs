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

/// A request in flight. Dropped when its reply is all in the socket's buffer, or will never be.
#[derive(Debug)]
pub(crate) struct InFlight {
    shared: Arc<Shared>,
    /// When its head had been read; `None` for one that the node answers for itself, which is no part of its work.
    since: Option<Instant>,
    /// It is not its connection's first.
    later: bool,
    traced: Option<Box<Traced>>,
    /// Its line of the access log, if there is one.
    line: Option<Box<Line>>,
}

impl InFlight {
    /// A request of a connection, whose head has been read at this time.
    pub(crate) fn begin(shared: &Arc<Shared>, since: Instant) -> Self {
        let later = shared.note_request();
        shared.counters.in_flight.rise();
        Self { shared: Arc::clone(shared), since: Some(since), later, traced: None, line: None }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The treatment of the request, if it is a later request of a connection that was handed over.
    pub(crate) fn later(&self) -> Option<Later> {
        self.shared.handed.clone().filter(|_| self.later)
    }

    /// Whether it is a later request of a connection that was handed over.
    pub(crate) fn is_later(&self) -> bool {
        self.later && self.shared.handed.is_some()
    }

    /// It is traced, if whoever sends it says so or the lot falls on it.
    pub(crate) fn trace(&mut self, tracer: &Arc<Tracer>, parts: &mut Parts) {
        let client = self.shared.entered().and_then(Entered::client);
        self.traced = Traced::begin(tracer, parts, client);
    }

    /// It has a line in the access log, if there is one.
    pub(crate) fn log(&mut self, access: &Arc<Access>, relays: &AddressRanges, parts: &Parts) {
        let since = self.since.unwrap_or_else(Instant::now);
        self.line = access.line(relays, self.shared.sender(), parts, since);
    }

    /// It is answered with this reply.
    pub(crate) fn answers<B>(&mut self, reply: &Response<B>) {
        if let Some(traced) = &mut self.traced {
            traced.answers(reply);
        }
        if let Some(line) = &mut self.line {
            line.answers(reply);
        }
    }

    /// So many bytes of its reply's body are handed on.
    pub(crate) fn sent(&self, bytes: u64) {
        self.counters().bytes_out.add(bytes);
        if let Some(line) = &self.line {
            line.sent().add(bytes);
        }
    }

    /// Its reply ends before its last byte, for this reason if it is not the client's leaving. The first reason counts.
    pub(crate) fn breaks_off(&mut self, error: Option<&'static str>) {
        if let Some(line) = &mut self.line {
            line.fails(error);
        }
    }

    /// Its line is the tunnel's that its connection becomes.
    pub(crate) fn becomes_tunnel(&mut self) {
        self.shared.tunnel.logs(self.line.take());
    }

    /// It has no line in the access log.
    pub(crate) fn leaves_no_line(&mut self) {
        self.line.iter_mut().for_each(|line| line.void());
    }

    /// It asks for one of the node's own paths.
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
