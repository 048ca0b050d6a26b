//! Recording: a witness is told of every decision and every change, in an order in which they can be made anew.
//!
//! The recorder stands around the dispatcher ([`Interceptor`]). While a witness listens, changes (membership, weights,
//! reports, cache events) and decisions exclude each other: a change begins a new *generation*, and all that a decision
//! reads is either the same throughout its generation, or behind a lock and ordered by the tape's visits, or on the tape
//! itself. Decisions of one generation run side by side as ever. The gate's answer to a request (it enters, waits or is
//! refused) is on the tape too; a request that leaves the queue without being decided on (cancelled, expired, cleared) is
//! not told.
//!
//! [`Dispatcher::redecide`] and [`Dispatcher::rechange`] are the other half: they take a record and run the same code
//! on the same inputs with the tape played.
//!
//! Records of one generation are told from the threads that decided, in any order; [`ReadLogEntry::Visit`](crate::read_log::ReadLogEntry)
//! says in which order they are to be made anew. A change is told after all decisions of the generations before it and
//! before all of its own.

use super::witness::{Changed, Decided, Witness};
use crate::dispatch::{
    Arrival, Cause, Change, Dispatcher, Interceptor, Request, RouteSpec, Settings, SettingsError,
};
use crate::id::NodeId;
use crate::nodes::NodeSpec;
use crate::read_log::ReadLog;
use crate::read_source::ReadSource;
use crate::time::Time;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// Tells the witness, and keeps decisions and changes apart while it does.
#[derive(Debug)]
struct Recorder {
    witness: Box<dyn Witness>,
    generation: RwLock<u64>,
    on: AtomicBool,
}

impl Recorder {
    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn note(&self, goes_on: bool) {
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
        let generation = self.generation.read().unwrap_or_else(PoisonError::into_inner);
        if !self.is_on() {
            return decide(ReadSource::LIVE);
        }
        let read_log = ReadLog::new_recording();
        let outcome = decide(ReadSource::logged(&read_log));
        let (request, read_log) = (*request, read_log.into_entries());
        let decided = Decided { generation: *generation, at, cause, request, read_log, outcome };
        self.note(self.witness.decided(decided));
        outcome
    }

    fn change(&self, at: Time, act: &mut dyn FnMut(ReadSource<'_>) -> Option<(Change, NodeId)>) {
        let mut generation = self.generation.write().unwrap_or_else(PoisonError::into_inner);
        if !self.is_on() {
            act(ReadSource::LIVE);
            return;
        }
        let read_log = ReadLog::new_recording();
        if let Some((change, node)) = act(ReadSource::logged(&read_log)) {
            *generation += 1;
            let changed =
                Changed { generation: *generation, at, change, read_log: read_log.into_entries(), node };
            self.note(self.witness.changed(changed));
        }
    }
}

impl Dispatcher {
    /// A dispatcher whose decisions a witness is told. Costs a shared lock and an allocation per decision.
    ///
    /// # Errors
    /// As [`Dispatcher::with_routes`].
    pub fn witnessed(
        settings: Settings,
        routes: Vec<RouteSpec>,
        nodes: &[NodeSpec],
        witness: Box<dyn Witness>,
    ) -> Result<Self, SettingsError> {
        let recorder = Recorder { witness, generation: RwLock::new(0), on: AtomicBool::new(true) };
        Ok(Self::with_routes(settings, routes, nodes)?.intercept(Box::new(recorder)))
    }
}
