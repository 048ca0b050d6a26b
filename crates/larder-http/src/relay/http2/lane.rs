//! The requests of a connection, each served by a lane: a lane serves one request after the other, as a connection of HTTP/1 does,
//! and keeps its memory from one to the next.

use super::memory::{HEAD_BYTES, Reserved};
use super::shared::{Arrived, Seat, Shared};
use super::stream::Stream;
use crate::h1::Fault;
use crate::relay::fault::{Http2Fault, Refusal};
use crate::relay::proxy::Proxy;
use crate::relay::request::{After, Connection};
use crate::relay::worker::Worker;
use futures_util::FutureExt;
use h2::Reason;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

/// Serves a request, and further ones that the lane is given.
pub(super) async fn serve<P: Proxy>(
    info: &P::Client,
    worker: &Worker<P>,
    shared: Rc<Shared>,
    first: Arrived,
) {
    let seat = Rc::new(Seat::new());
    let mut connection = Connection::new(Stream::new(shared.clone(), Arc::default()), info, worker);
    let mut arrived = first;
    loop {
        connection.limits = worker.proxy.limits(info);
        // A fault in one request does not take the others with it.
        let served = AssertUnwindSafe(serve_one(&mut connection, &shared, arrived)).catch_unwind().await;
        shared.busy.set(shared.busy.get() - 1);
        if served.is_err() {
            connection.client.down.end(Some(Reason::INTERNAL_ERROR));
            worker.proxy.on_http2_fault(info, Http2Fault::Panicked);
            return;
        }
        if !shared.waiting.enter(&seat) {
            return;
        }
        arrived = poll_fn(|cx| seat.poll(cx)).await;
    }
}

async fn serve_one<P: Proxy>(connection: &mut Connection<'_, Stream, P>, shared: &Shared, arrived: Arrived) {
    let client = &mut connection.client;
    client.begin();
    let begun = client.down.accept(arrived, &mut client.request);
    let head_bytes = client.request.fields.text().len();
    let held = shared.head_bytes.get();
    let reset = if held > 0 && held + head_bytes > HEAD_BYTES {
        connection.worker.proxy.on_http2_fault(connection.info, Http2Fault::StreamsFull);
        Some(Reason::REFUSED_STREAM)
    } else {
        let _counted = HeadBytes::count(shared, head_bytes);
        // Boxed, so that a lane that waits holds no memory for a request.
        Box::pin(serve_if_memory(connection, shared, begun)).await
    };
    let client = &mut connection.client;
    client.down.end(reset);
    client.rest();
}

/// Bytes of a head, counted until dropped.
struct HeadBytes<'a> {
    shared: &'a Shared,
    bytes: usize,
}

impl<'a> HeadBytes<'a> {
    fn count(shared: &'a Shared, bytes: usize) -> Self {
        shared.head_bytes.set(shared.head_bytes.get() + bytes);
        Self { shared, bytes }
    }
}

impl Drop for HeadBytes<'_> {
    fn drop(&mut self) {
        self.shared.head_bytes.set(self.shared.head_bytes.get() - self.bytes);
    }
}

/// Serves a request once there is memory. Returns the reason if its stream is to be reset.
async fn serve_if_memory<P: Proxy>(
    connection: &mut Connection<'_, Stream, P>,
    shared: &Shared,
    begun: Result<(), Fault>,
) -> Option<Reason> {
    let patience = connection.limits.client_write;
    match connection.client.unless_it_leaves(shared.memory.reserve(patience), false).await {
        Some(true) => {}
        Some(false) => {
            connection.worker.proxy.on_http2_fault(connection.info, Http2Fault::StreamsFull);
            return Some(Reason::REFUSED_STREAM);
        }
        None => return Some(Reason::CANCEL),
    }
    let reserved = Reserved(&shared.memory);
    let after = match begun {
        // It has no target that is a path.
        _ if connection.client.request.method() == b"CONNECT" => connection.refuse(Refusal::Connect).await,
        Ok(()) => connection.serve_request().await,
        Err(Fault::TooLarge) => connection.refuse(Refusal::TooLarge { in_target: false }).await,
        Err(fault) => {
            shared.malformed.set(shared.malformed.get() + 1);
            connection.refuse(Refusal::Malformed { fault, is_other_protocol: false }).await
        }
    };
    drop(reserved);
    match (after, connection.client.sent.status) {
        (After::Request | After::Farewell, _) => None,
        // The client must not take a part for the whole.
        (After::Cut | After::Leave, Some(_)) => Some(Reason::INTERNAL_ERROR),
        (After::Cut | After::Leave, None) => Some(Reason::CANCEL),
    }
}
