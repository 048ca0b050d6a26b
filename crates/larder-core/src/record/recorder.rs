//! The recorder: it passes every decision and every change to a [`RecordSink`], in an order in which they can be
//! replayed.
//!
//! The recorder implements [`Interceptor`]. While it is active, changes (membership, weights, reports, cache events)
//! and decisions exclude each other. A change begins a new *generation*. Every value that a decision reads is
//! constant throughout its generation, or is behind a lock and ordered by the visits in the read log, or is in the
//! read log itself. Decisions of one generation run concurrently as usual. The admission queue's answer (admitted,
//! queued or refused) is in the read log too. A request that leaves the queue without a decision (cancelled,
//! expired, cleared) is not recorded.
//!
//! [`Dispatcher::replay_decision`] and [`Dispatcher::replay_change`] replay a record: they run the same code on the
//! same inputs with the read log.
//!
//! Records of one generation arrive from the threads that decided, in any order;
//! [`ReadLogEntry::Visit`](crate::read_log::ReadLogEntry) gives the order in which to replay them. A change arrives
//! after all decisions of earlier generations and before all decisions of its own.

use super::sink::{ChangeRecord, DecisionRecord, RecordSink};
use crate::dispatch::{
    Arrival, Cause, Change, Dispatcher, Interceptor, Request, RouteSpec, Settings, SettingsError,
};
use crate::id::NodeId;
use crate::nodes::NodeSpec;
use crate::read_log::ReadLog;
use crate::read_source::ReadSource;
use crate::sync::RwLock;
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

/// Passes decisions and changes to the sink, and keeps them apart.
#[derive(Debug)]
struct Recorder {
    sink: Box<dyn RecordSink>,
    generation: RwLock<u64>,
    on: AtomicBool,
}

impl Recorder {
    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn keep_on_if(&self, goes_on: bool) {
        if !goes_on {
            self.on.store(false, Ordering::Relaxed);
        }
    }
}

impl Interceptor for Recorder {
    fn decide(
        &self,
        at: Time,
        cause: Cause,
        request: &Request,
        decide: &dyn Fn(ReadSource<'_>) -> Arrival,
    ) -> Arrival {
        let generation = self.generation.read();
        if !self.is_on() {
            return decide(ReadSource::LIVE);
        }
        let read_log = ReadLog::new_recording();
        let outcome = decide(ReadSource::logged(&read_log));
        let (request, read_log) = (*request, read_log.into_entries());
        let decided = DecisionRecord { generation: *generation, at, cause, request, read_log, outcome };
        self.keep_on_if(self.sink.record_decision(decided));
        outcome
    }

    fn change(&self, at: Time, act: &mut dyn FnMut(ReadSource<'_>) -> Option<(Change, NodeId)>) {
        let mut generation = self.generation.write();
        if !self.is_on() {
            act(ReadSource::LIVE);
            return;
        }
        let read_log = ReadLog::new_recording();
        if let Some((change, node)) = act(ReadSource::logged(&read_log)) {
            *generation += 1;
            let changed =
                ChangeRecord { generation: *generation, at, change, read_log: read_log.into_entries(), node };
            self.keep_on_if(self.sink.record_change(changed));
        }
    }
}

impl Dispatcher {
    /// Creates a dispatcher whose decisions and changes are recorded. Costs a shared lock and an allocation per
    /// decision.
    ///
    /// # Errors
    /// As [`Dispatcher::with_routes`].
    pub fn with_record_sink(
        settings: Settings,
        routes: Vec<RouteSpec>,
        nodes: &[NodeSpec],
        sink: Box<dyn RecordSink>,
    ) -> Result<Self, SettingsError> {
        let recorder = Recorder { sink, generation: RwLock::new(0), on: AtomicBool::new(true) };
        Ok(Self::with_routes(settings, routes, nodes)?.intercept(Box::new(recorder)))
    }
}
