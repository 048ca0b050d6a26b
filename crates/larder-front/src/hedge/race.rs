//! One request that may be hedged, from the pipe that the engine asks on to the answer on it.

use super::{Hedging, Outcome, message};
use crate::failure::Failure;
use crate::health;
use crate::lease::Lease;
use crate::node::Node;
use crate::switch::Shared;
use async_trait::async_trait;
use http::Response;
use hyper::body::Incoming;
use larder_core::{Decision, Request, Time};
use pingora_core::connectors::L4Connect;
use pingora_core::protocols::l4::socket::SocketAddr as EngineAddress;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::upstreams::peer::{ALPN, HttpPeer};
use pingora_error::Result;
use pingora_http::RequestHeader;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};

/// Bytes of an answer that wait in the pipe for the engine.
const PIPE_BYTES: usize = 64 << 10;

/// Keeps the engine from mistaking a connection to the node for a pipe.
const PIPES: u64 = 0x6865_6467_6564;

/// A race that the engine waits for.
#[derive(Debug, Default)]
pub(crate) struct Race(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Our end, from the moment the engine has the other to that in which the request is complete.
    pipe: Option<DuplexStream>,
    second: Option<Second>,
    failure: Option<Failure>,
}

/// The second node of a race.
#[derive(Debug)]
pub(crate) struct Second {
    pub(crate) decision: Decision,
    /// Its load.
    pub(crate) lease: Lease,
    /// When it was asked.
    pub(crate) asked: Time,
}

/// What is asked of nodes, and of which.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) header: Box<RequestHeader>,
    pub(crate) request: Request,
    /// The node that is asked first.
    pub(crate) first: Arc<Node>,
}

impl Race {
    /// What the engine is to connect to in the place of a node. `None` if this node is not spoken to so.
    pub(crate) fn peer(self: &Arc<Self>, node: &Node, path: &[u8]) -> Option<HttpPeer> {
        // One that is announced a client, or spoken to in HTTP/2, has other connections.
        if node.dial.announce.is_some() || node.peer.options.alpn == ALPN::H2 {
            return None;
        }
        message::uri(path)?;
        let mut peer = HttpPeer::new(node.dial.address, false, String::new());
        let (from, to) = (&node.peer.options, &mut peer.options);
        (to.read_timeout, to.write_timeout) = (from.read_timeout, from.write_timeout);
        to.custom_l4 = Some(Arc::new(Opener(self.clone())));
        peer.group_key = PIPES;
        Some(peer)
    }

    /// The request is complete: nodes are asked, by a task that ends with the pipe.
    pub(crate) fn begin(self: &Arc<Self>, shared: &Arc<Shared>, asked: Asked) {
        let Some(pipe) = self.state().pipe.take() else { return };
        let (race, shared) = (self.clone(), shared.clone());
        tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(pipe);
            // What the engine writes is the request that is asked already; what counts is that it leaves.
            let left = async {
                let mut unread = [0; 4096];
                while matches!(from.read(&mut unread).await, Ok(1..)) {}
            };
            tokio::select! {
                () = race.run(&shared, &asked, &mut to) => {}
                () = left => {}
            }
        });
    }

    /// The second node, where its answer came first.
    pub(crate) fn second(&self) -> Option<Second> {
        self.state().second.take()
    }

    /// Why there is no answer.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state().failure
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, shared: &Arc<Shared>, asked: &Asked, to: &mut (impl AsyncWrite + Unpin)) {
        let Some(hedging) = &shared.routing.of(asked.request.route).hedging else { return };
        hedging.enter();
        let method = &asked.header.method;
        match self.answer(shared, hedging, asked).await {
            // Who wrote it last has told it; the engine finds out what lacks.
            Ok(reply) => drop(message::tell(method, reply, to).await),
            Err(failure) => self.state().failure = Some(failure),
        }
    }

    /// The answer that comes first. A server's fault (500 and more) is taken only where the other has nothing better.
    async fn answer(
        &self,
        shared: &Arc<Shared>,
        hedging: &Hedging,
        asked: &Asked,
    ) -> Result<Response<Incoming>, Failure> {
        let mut first = pin!(ask(shared, &asked.first, &asked.header));
        if let Ok(answer) = tokio::time::timeout(hedging.after, &mut first).await {
            return answer;
        }
        let Some((other, node)) = other(shared, hedging, asked) else { return first.await };
        let mut other = Some(other);
        let mut second = pin!(ask(shared, &node, &asked.header));
        let (mut first_open, mut second_open) = (true, true);
        let mut fault: Option<(bool, Response<Incoming>)> = None;
        let mut failure = Failure::NodeClosed;
        let (is_second, reply) = loop {
            let (is_second, answer) = tokio::select! {
                answer = &mut first, if first_open => (false, answer),
                answer = &mut second, if second_open => (true, answer),
                else => match fault.take() {
                    Some(answer) => break answer,
                    None => {
                        hedging.count(Outcome::Failed);
                        return Err(failure);
                    }
                },
            };
            *(if is_second { &mut second_open } else { &mut first_open }) = false;
            match answer {
                Ok(reply)
                    if reply.status().is_server_error() && fault.is_none() && (first_open || second_open) =>
                {
                    fault = Some((is_second, reply));
                }
                Ok(reply) => break (is_second, reply),
                // The first node's is what the engine is told; the second's is nobody's but its own.
                Err(found) if is_second => health_of(shared, &node, found),
                Err(found) => failure = found,
            }
        };
        hedging.count(if is_second { Outcome::Won } else { Outcome::Lost });
        if is_second {
            if !first_open && fault.is_none() {
                health_of(shared, &asked.first, failure);
            }
            self.state().second = other.take();
        }
        Ok(reply)
    }
}

/// A node has failed that nobody is told of.
fn health_of(shared: &Arc<Shared>, node: &Arc<Node>, failure: Failure) {
    tracing::debug!(node = &*node.name, %failure, "failed in a hedged request");
    health::note_failure(shared, node);
}

async fn ask(shared: &Shared, node: &Node, header: &RequestHeader) -> Result<Response<Incoming>, Failure> {
    let message = message::request(header).ok_or(Failure::Internal)?;
    node.client(&shared.timeouts).ask(message).await
}

/// Another node for the request, with its load. What would have to wait is left.
fn other(shared: &Arc<Shared>, hedging: &Hedging, asked: &Asked) -> Option<(Second, Arc<Node>)> {
    let now = shared.clock.now();
    if !hedging.allows(now) {
        return None;
    }
    let exclude = asked.request.exclude.with(asked.first.id);
    let mut lease = Lease::new(shared.clone());
    let found = lease.arrive(now, Request { exclude, ..asked.request }).ok().flatten().and_then(|decision| {
        // Where there is no other, some policies name the same again.
        let node = shared.nodes.get(decision.node).filter(|node| node.id != asked.first.id)?;
        Some((decision, node.keep()?))
    });
    if found.is_none() {
        hedging.count(Outcome::NoRoom);
    }
    found.map(|(decision, node)| (Second { decision, lease, asked: now }, node))
}

/// Opens the pipe for the engine.
#[derive(Debug)]
struct Opener(Arc<Race>);

#[async_trait]
impl L4Connect for Opener {
    async fn connect(&self, _: &EngineAddress) -> Result<Stream> {
        let (ours, engines) = tokio::io::duplex(PIPE_BYTES);
        self.0.state().pipe = Some(ours);
        Ok(Stream::from(VirtualSocketStream::new(Box::new(Pipe(engines)))))
    }
}

/// The engine's end.
#[derive(Debug)]
struct Pipe(DuplexStream);

impl VirtualSocket for Pipe {
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
