//! The tasks that serve the requests of a connection. Each task serves one request after another, as the task
//! of an HTTP/1 connection does, and keeps its memory between them.

use super::memory::{HEAD_BYTES_MAX, MemoryReservation};
use super::shared::{IncomingRequest, RequestSlot, SharedState};
use super::stream::ClientStream;
use crate::h1::Fault;
use crate::relay::fault::{Http2Fault, Refusal};
use crate::relay::proxy::Proxy;
use crate::relay::request::{ClientConnection, NextStep};
use crate::relay::worker::Worker;
use futures_util::FutureExt;
use h2::Reason;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

/// Serves a request, and further requests that the connection assigns to this task.
pub(super) async fn serve<P: Proxy>(
    client_data: &P::Client,
    worker: &Worker<P>,
    shared: Rc<SharedState>,
    first: IncomingRequest,
) {
    let slot = Rc::new(RequestSlot::new());
    let mut connection =
        ClientConnection::new(ClientStream::new(shared.clone(), Arc::default()), client_data, worker);
    let mut incoming = first;
    loop {
        connection.limits = worker.proxy.limits(client_data);
        // A panic in one request must not end the other requests.
        let result = AssertUnwindSafe(serve_request(&mut connection, &shared, incoming)).catch_unwind().await;
        shared.pending_requests.set(shared.pending_requests.get() - 1);
        if result.is_err() {
            connection.client.side.end(Some(Reason::INTERNAL_ERROR));
            worker.proxy.on_http2_fault(client_data, Http2Fault::Panicked);
            return;
        }
        if !shared.idle_tasks.add(&slot) {
            return;
        }
        incoming = poll_fn(|cx| slot.poll(cx)).await;
    }
}

/// Serves one request, or refuses it because of the size of its head.
async fn serve_request<P: Proxy>(
    connection: &mut ClientConnection<'_, ClientStream, P>,
    shared: &SharedState,
    incoming: IncomingRequest,
) {
    let client = &mut connection.client;
    client.begin_request();
    let head_result = client.side.accept(incoming, &mut client.request);
    let head_bytes = client.request.fields.text().len();
    let pending_bytes = shared.head_bytes.get();
    let reset_reason = if pending_bytes > 0 && pending_bytes + head_bytes > HEAD_BYTES_MAX {
        connection.worker.proxy.on_http2_fault(connection.client_data, Http2Fault::StreamsFull);
        Some(Reason::REFUSED_STREAM)
    } else {
        let _counted = HeadBytesCount::count(shared, head_bytes);
        // The future is boxed, so that an idle task holds no memory for a request.
        Box::pin(serve_with_memory(connection, shared, head_result)).await
    };
    let client = &mut connection.client;
    client.side.end(reset_reason);
    client.shrink();
}

/// A count of the bytes of a head. The bytes are subtracted on drop.
struct HeadBytesCount<'a> {
    shared: &'a SharedState,
    bytes: usize,
}

impl<'a> HeadBytesCount<'a> {
    fn count(shared: &'a SharedState, bytes: usize) -> Self {
        shared.head_bytes.set(shared.head_bytes.get() + bytes);
        Self { shared, bytes }
    }
}

impl Drop for HeadBytesCount<'_> {
    fn drop(&mut self) {
        self.shared.head_bytes.set(self.shared.head_bytes.get() - self.bytes);
    }
}

/// Serves a request once memory was reserved. Returns the reset code if the stream must be reset.
async fn serve_with_memory<P: Proxy>(
    connection: &mut ClientConnection<'_, ClientStream, P>,
    shared: &SharedState,
    head_result: Result<(), Fault>,
) -> Option<Reason> {
    let timeout = connection.limits.client_write;
    match connection.client.run_until_disconnect(shared.memory.reserve(timeout), false).await {
        Some(true) => {}
        Some(false) => {
            connection.worker.proxy.on_http2_fault(connection.client_data, Http2Fault::StreamsFull);
            return Some(Reason::REFUSED_STREAM);
        }
        None => return Some(Reason::CANCEL),
    }
    let reservation = MemoryReservation(&shared.memory);
    let next_step = match head_result {
        // A CONNECT request has no path.
        _ if connection.client.request.method() == b"CONNECT" => connection.refuse(Refusal::Connect).await,
        Ok(()) => connection.serve_request().await,
        Err(Fault::TooLarge) => connection.refuse(Refusal::TooLarge { in_target: false }).await,
        Err(fault) => {
            shared.malformed.set(shared.malformed.get() + 1);
            connection.refuse(Refusal::Malformed { fault, is_other_protocol: false }).await
        }
    };
    drop(reservation);
    match (next_step, connection.client.sent.status) {
        (NextStep::Request | NextStep::Close, _) => None,
        // The client must detect that the reply is incomplete.
        (NextStep::Abort | NextStep::Detach, Some(_)) => Some(Reason::INTERNAL_ERROR),
        (NextStep::Abort | NextStep::Detach, None) => Some(Reason::CANCEL),
    }
}
