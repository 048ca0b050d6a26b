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
use larder_core::{Decision, NodeId, Request, Time};
use pingora_core::connectors::L4Connect;
use pingora_core::protocols::l4::socket::SocketAddr as EngineAddress;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_error::Result;
use pingora_http::RequestHeader;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

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
    failed: Failed,
}

/// What failed in a race.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failed {
    /// The first node, so.
    pub(crate) first: Option<Failure>,
    /// The second one, which this is.
    pub(crate) second: Option<NodeId>,
    /// A node was charged with it.
    pub(crate) charged: bool,
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
    /// What the engine is to connect to in the place of a node. `None` if this node, or this path, is not asked so.
    pub(crate) fn peer(self: &Arc<Self>, node: &Node, path: &[u8]) -> Option<HttpPeer> {
        if !node.is_hedgeable() {
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
            // What the engine writes is the request that is asked already, and it may write it after the answer is there.
            let left = async {
                let mut unread = [0; 4096];
                while matches!(from.read(&mut unread).await, Ok(1..)) {}
            };
            let answered = async {
                race.run(&shared, &asked, &mut to).await;
                // The engine finds out by itself what lacks.
                let _ = to.shutdown().await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = answered => {}
                () = left => {}
            }
        });
    }

    /// The second node, where its answer came first.
    pub(crate) fn second(&self) -> Option<Second> {
        self.state().second.take()
    }

    /// What failed.
    pub(crate) fn failed(&self) -> Failed {
        self.state().failed
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, shared: &Arc<Shared>, asked: &Asked, to: &mut (impl AsyncWrite + Unpin)) {
        let Some(hedging) = &shared.routing.of(asked.request.route).hedging else { return };
        hedging.enter();
        let method = &asked.header.method;
        if let Some(reply) = self.answer(shared, hedging, asked).await {
            let _ = message::tell(method, reply, to).await;
        }
    }

    /// The answer that comes first, if one does. A server's fault (500 and more) is kept until the other has answered: the first node's
    /// for a while only, since without a hedge it would be the answer.
    async fn answer(
        &self,
        shared: &Arc<Shared>,
        hedging: &Hedging,
        asked: &Asked,
    ) -> Option<Response<Incoming>> {
        let mut first = pin!(ask(shared, &asked.first, &asked.header));
        if let Ok(answer) = tokio::time::timeout(hedging.after, &mut first).await {
            return self.only(answer);
        }
        let Some((other, node)) = other(shared, hedging, asked) else {
            let answer = first.await;
            return self.only(answer);
        };
        let mut hedge = Hedged { shared, hedging, request: asked.request, second: Some(other), won: None };
        let mut second = pin!(ask(shared, &node, &asked.header));
        let (mut first_open, mut second_open) = (true, true);
        let mut fault: Option<(bool, Response<Incoming>)> = None;
        let mut grace = pin!(tokio::time::sleep(hedging.after));
        let (is_second, reply) = loop {
            let (is_second, answer) = tokio::select! {
                answer = &mut first, if first_open => (false, answer),
                answer = &mut second, if second_open => (true, answer),
                () = &mut grace, if matches!(fault, Some((false, _))) => break fault.take()?,
                else => break fault.take()?,
            };
            *(if is_second { &mut second_open } else { &mut first_open }) = false;
            match answer {
                Ok(reply) if reply.status().is_server_error() => {
                    if fault.is_some() || !(first_open || second_open) {
                        break fault.take().unwrap_or((is_second, reply));
                    }
                    grace.as_mut().reset(tokio::time::Instant::now() + hedging.after);
                    fault = Some((is_second, reply));
                }
                Ok(reply) => break (is_second, reply),
                Err(found) => {
                    self.fails(shared, if is_second { &node } else { &asked.first }, is_second, found);
                }
            }
        };
        if let Some((was_second, thrown)) = &fault {
            let node = if *was_second { &node } else { &asked.first };
            health::outliers::note_status(shared, node, thrown.status().as_u16());
        }
        let charged = self.state().failed.charged;
        if charged {
            // Not the one that has answered.
            health::note_unanswered(if is_second { &asked.first } else { &node });
        }
        hedge.won = Some(is_second);
        if is_second {
            self.state().second = hedge.second.take();
        }
        Some(reply)
    }

    /// The answer of the only node that was asked. Its failure is for the relay to tell.
    fn only(&self, answer: Result<Response<Incoming>, Failure>) -> Option<Response<Incoming>> {
        answer.map_err(|failure| self.state().failed.first = Some(failure)).ok()
    }

    /// A node fails while another is asked too. A request charges one node at most.
    fn fails(&self, shared: &Arc<Shared>, node: &Arc<Node>, is_second: bool, failure: Failure) {
        tracing::debug!(node = &*node.name, %failure, "failed in a hedged request");
        let mut state = self.state();
        if is_second {
            state.failed.second = Some(node.id);
        } else {
            state.failed.first = Some(failure);
        }
        if failure != Failure::Internal && !std::mem::replace(&mut state.failed.charged, true) {
            drop(state);
            health::note_failure(shared, node);
        }
    }
}

/// A hedge that is under way. However it ends, it is counted, and a second node that has not answered first is told of.
struct Hedged<'a> {
    shared: &'a Arc<Shared>,
    hedging: &'a Hedging,
    request: Request,
    /// Until its answer is taken.
    second: Option<Second>,
    /// Whether the second's answer was the first.
    won: Option<bool>,
}

impl Drop for Hedged<'_> {
    fn drop(&mut self) {
        self.hedging.count(match self.won {
            Some(true) => Outcome::Won,
            Some(false) => Outcome::Lost,
            None => Outcome::Failed,
        });
        if let Some(Second { decision, asked, .. }) = &self.second {
            let now = self.shared.clock.now();
            self.shared.dispatcher.unserved(now, &self.request, decision.node, now - *asked);
        }
    }
}

async fn ask(shared: &Shared, node: &Node, header: &RequestHeader) -> Result<Response<Incoming>, Failure> {
    let client = node.client(&shared.timeouts, shared.limits.node_idle_max);
    let reply = client.ask(|| message::request(header)).await?;
    if message::is_framed(reply.headers()) { Ok(reply) } else { Err(Failure::BadReply) }
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
        let node = shared.nodes.get(decision.node)?;
        let fits = node.id != asked.first.id && node.is_hedgeable();
        Some((decision, node.keep().filter(|_| fits)?))
    });
    let Some((decision, node)) = found else {
        hedging.finds_no_room();
        return None;
    };
    Some((Second { decision, lease, asked: now }, node))
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
