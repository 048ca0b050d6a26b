//! The part of a connection that its lanes share.

use super::memory::Account;
use crate::http2::Blocked;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Lanes of a connection that wait for a request. Further ones end.
const WAITING_MAX: usize = 8;

/// A request as h2 gives it, and the way to reply.
pub(super) type Arrived = (Request<RecvStream>, SendResponse<Bytes>);

/// The part of a connection that its lanes share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) waiting: Waiting,
    /// Requests under way.
    pub(super) busy: Cell<usize>,
    /// Bytes of their heads.
    pub(super) head_bytes: Cell<usize>,
    /// Requests that were malformed.
    pub(super) malformed: Cell<u32>,
    /// The record of when the socket had no room.
    pub(super) blocked: Arc<Blocked>,
    pub(super) memory: Account,
}

/// The place at which a lane gets its next request.
#[derive(Debug)]
pub(super) struct Seat {
    arrived: RefCell<Option<Arrived>>,
    waker: RefCell<Waker>,
}

impl Seat {
    pub(super) fn new() -> Self {
        Self { arrived: RefCell::default(), waker: RefCell::new(Waker::noop().clone()) }
    }

    /// The next request, once there is one.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Arrived> {
        if let Some(arrived) = self.arrived.take() {
            return Poll::Ready(arrived);
        }
        self.waker.borrow_mut().clone_from(cx.waker());
        Poll::Pending
    }
}

/// The lanes that wait for a request.
#[derive(Debug, Default)]
pub(super) struct Waiting(RefCell<Vec<Rc<Seat>>>);

impl Waiting {
    /// Notes a lane that waits. Returns whether there is room for it.
    pub(super) fn enter(&self, seat: &Rc<Seat>) -> bool {
        let mut seats = self.0.borrow_mut();
        let has_room = seats.len() < WAITING_MAX;
        if has_room {
            seats.push(seat.clone());
        }
        has_room
    }

    /// Gives a request to a lane that waits. Returns it if there is none.
    pub(super) fn give(&self, arrived: Arrived) -> Option<Arrived> {
        let Some(seat) = self.0.borrow_mut().pop() else { return Some(arrived) };
        *seat.arrived.borrow_mut() = Some(arrived);
        seat.waker.borrow().wake_by_ref();
        None
    }
}
