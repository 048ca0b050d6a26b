//! The state that the stream tasks of a connection share.

use super::memory::MemoryAccount;
use crate::http2::SocketProgress;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Largest number of idle stream tasks of a connection. Further ones end.
const IDLE_TASKS_MAX: usize = 8;

/// A request from h2, and the handle for its reply.
pub(super) type IncomingRequest = (Request<RecvStream>, SendResponse<Bytes>);

/// The state that the stream tasks of a connection share.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) idle_tasks: IdleTasks,
    /// Number of pending requests.
    pub(super) pending_requests: Cell<usize>,
    /// Total size of their heads in bytes.
    pub(super) head_bytes: Cell<usize>,
    /// Number of malformed requests.
    pub(super) malformed: Cell<u32>,
    /// The record of when the socket accepted bytes.
    pub(super) socket_progress: Arc<SocketProgress>,
    pub(super) memory: MemoryAccount,
}

/// The slot in which a stream task gets its next request.
#[derive(Debug)]
pub(super) struct RequestSlot {
    incoming: RefCell<Option<IncomingRequest>>,
    waker: RefCell<Waker>,
}

impl RequestSlot {
    pub(super) fn new() -> Self {
        Self { incoming: RefCell::default(), waker: RefCell::new(Waker::noop().clone()) }
    }

    /// Waits for the next request.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<IncomingRequest> {
        if let Some(incoming) = self.incoming.take() {
            return Poll::Ready(incoming);
        }
        self.waker.borrow_mut().clone_from(cx.waker());
        Poll::Pending
    }
}

/// The slots of the idle stream tasks.
#[derive(Debug, Default)]
pub(super) struct IdleTasks(RefCell<Vec<Rc<RequestSlot>>>);

impl IdleTasks {
    /// Adds an idle task. Returns false if there are enough idle tasks, so that the task must end.
    pub(super) fn add(&self, slot: &Rc<RequestSlot>) -> bool {
        let mut slots = self.0.borrow_mut();
        let has_room = slots.len() < IDLE_TASKS_MAX;
        if has_room {
            slots.push(slot.clone());
        }
        has_room
    }

    /// Assigns a request to an idle task. Returns the request if no task is idle.
    pub(super) fn assign(&self, incoming: IncomingRequest) -> Option<IncomingRequest> {
        let Some(slot) = self.0.borrow_mut().pop() else { return Some(incoming) };
        *slot.incoming.borrow_mut() = Some(incoming);
        slot.waker.borrow().wake_by_ref();
        None
    }
}
