//! A request from its head to its end, independent of the protocol of its client.

use super::answer::{AfterAnswer, Answer};
use super::buffered_stream::BufferedStream;
use super::client_session::ClientSession;
use super::client_side::ClientSide;
use super::clock::Clock;
use super::deadline::Deadline;
use super::exchange::{Outcome, ServerExchange};
use super::fault::{ClientFault, Failure, Refusal, Stage};
use super::fields::{delimit, offered_protocols, remove_hop_of_request};
use super::hedge::{HedgedRequest, ServerReply};
use super::intake::BodyIntake;
use super::limits::Limits;
use super::proxy::{Next, Proxy, Report};
use super::server_side::ServerSide;
use super::server_streams::ServerStream;
use super::worker::Worker;
use crate::h1::{Body, Fault, FieldName};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// The next step on a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// The connection serves the next request.
    Request,
    /// The connection is closed after the client has had time to read its reply.
    Close,
    /// The connection is closed immediately. The client must detect an incomplete reply, or has disconnected.
    Abort,
    /// The proxy takes over the connection.
    Detach,
}

/// The connection of a client, or the part of it that serves one request at a time.
pub(super) struct ClientConnection<'a, D, P: Proxy> {
    pub(super) client: ClientSession<D>,
    pub(super) client_data: &'a P::Client,
    pub(super) worker: &'a Worker<P>,
    pub(super) limits: Limits,
    /// An idle connection to a server that is not shared. It serves only this client.
    private_connection: Option<(P::Server, P::Stream)>,
}

/// A connection to a server for one attempt.
struct ServerConnection<S> {
    server_side: ServerSide<S>,
    /// Bytes of the reply, if the server has received the request already.
    received: Vec<u8>,
    /// The connection had served other requests.
    reused: bool,
}

/// The result of an attempt at one server.
enum AttemptResult {
    /// The client has the reply.
    Ended(NextStep),
    /// A fault of the client ends the request.
    /// An answer of the proxy ends the request.
    Fault(ClientFault),
    /// The server has failed.
    Refused(Box<Answer>),
    Failed(Failure),
}

impl<'a, D, P> ClientConnection<'a, D, P>
where
    D: ClientSide,
    P: Proxy,
{
    pub(super) fn new(side: D, client_data: &'a P::Client, worker: &'a Worker<P>) -> Self {
        let limits = worker.proxy.limits(client_data);
        Self {
            client: ClientSession::new(side, &limits),
            client_data,
            worker,
            limits,
            private_connection: None,
        }
    }

    /// Serves a request whose head has arrived.
    pub(super) async fn serve_request(&mut self) -> NextStep {
        match self.remove_client_fields() {
            Ok(()) => {}
            Err(Fault::TooLarge) => return self.refuse(Refusal::TooLarge { in_target: false }).await,
            Err(fault) => {
                return self.refuse(Refusal::Malformed { fault, is_other_protocol: false }).await;
            }
        }
        let proxy = &self.worker.proxy;
        let (mut state, next) = proxy.request(self.client_data, &mut self.client.request);
        let (next_step, fault) = self.follow_decisions(&mut state, next).await;
        let ClientSession { side, request, reply, sent, .. } = &mut self.client;
        // If a reply is aborted, its last bytes may not have been sent.
        let unsent = if next_step == NextStep::Abort { side.unsent_bytes() as u64 } else { 0 };
        let is_tunnel = sent.status == Some(101);
        let report = Report {
            status: sent.status,
            body_bytes: sent.body_bytes.saturating_sub(unsent),
            complete: sent.status.is_some() && next_step != NextStep::Abort || is_tunnel,
            fault: fault.filter(|_| !is_tunnel),
        };
        proxy.on_end(self.client_data, state, request, reply, report);
        next_step
    }

    /// Follows the decisions of the proxy until the request has ended.
    async fn follow_decisions(
        &mut self,
        state: &mut P::Exchange,
        mut next: Next<P::Server>,
    ) -> (NextStep, Option<ClientFault>) {
        let proxy = &self.worker.proxy;
        let (mut has_asked_server, mut may_reuse) = (false, true);
        let mut intake = None;
        loop {
            let server = match next {
                Next::Server(server) => server,
                Next::Later => {
                    let intake = intake.get_or_insert_with(|| BodyIntake::new(&self.client));
                    match Box::pin(self.decide(state, intake)).await {
                        Some(decided) => next = decided,
                        None => return (NextStep::Abort, Some(ClientFault::Gone)),
                    }
                    continue;
                }
                Next::Leave => return (NextStep::Detach, None),
                Next::Answer(answer) => return self.answer(answer, !has_asked_server, intake.as_mut()).await,
            };
            if let Some(intake) = intake.take().filter(BodyIntake::is_body_taken) {
                match intake.take_returned() {
                    Some(content) => self.client.return_body(content),
                    // The body cannot be sent to a server, because the proxy has read it.
                    None => return (NextStep::Abort, None),
                }
            }
            has_asked_server = true;
            match self.attempt(&server, may_reuse, state).await {
                AttemptResult::Ended(next_step) => return (next_step, None),
                AttemptResult::Refused(answer) => return self.answer_during_attempt(*answer).await,
                AttemptResult::Fault(fault) => {
                    let answer = proxy.on_client_fault(self.client_data, state, &self.client.request, fault);
                    let next_step = match fault {
                        ClientFault::Gone | ClientFault::Stalled => NextStep::Abort,
                        _ => self.answer_during_attempt(answer).await.0,
                    };
                    return (next_step, Some(fault));
                }
                AttemptResult::Failed(failure) => {
                    let heads = (&self.client.request, &self.client.reply);
                    next = proxy.on_failure(self.client_data, state, heads, &failure);
                    let begun = self.client.sent.status.is_some();
                    let can_continue = match &next {
                        Next::Server(_) => failure.replayable && (!begun || failure.resumable.is_some()),
                        Next::Answer(_) | Next::Later | Next::Leave => !begun,
                    };
                    if !can_continue {
                        return (NextStep::Abort, None);
                    }
                    may_reuse = !matches!(failure.stage, Stage::Request { reused: true });
                }
            }
        }
    }

    /// Waits for the decision of the proxy. Returns `None` if the client disconnects before.
    async fn decide(&mut self, state: &mut P::Exchange, intake: &mut BodyIntake) -> Option<Next<P::Server>> {
        let mut head = std::mem::take(&mut self.client.request);
        let (client, half_close) = (&mut self.client, self.limits.half_close);
        let BodyIntake { handle, reader } = intake;
        let decided = {
            let mut decision = pin!(self.worker.proxy.decide((self.client_data, handle), state, &mut head));
            poll_fn(|cx| {
                let decided = decision.as_mut().poll(cx);
                if decided.is_ready() {
                    return decided.map(Some);
                }
                let left = match reader.advance(cx, client, handle, true) {
                    Ok(true) => false,
                    Ok(false) => client.check_disconnect(cx, half_close).is_err(),
                    Err(_) => true,
                };
                if left || reader.send_interim(cx, client, handle).is_err() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                }
            })
            .await
        };
        self.client.request = head;
        // Interim replies may have been added together with the decision.
        poll_fn(|cx| Poll::Ready(reader.send_interim(cx, &mut self.client, handle))).await.ok()?;
        decided
    }

    /// Refuses a request without a decision.
    pub(super) async fn refuse(&mut self, refusal: Refusal) -> NextStep {
        let Some(answer) = self.worker.proxy.refuse(self.client_data, refusal) else {
            return NextStep::Abort;
        };
        self.answer(answer, false, None).await.0
    }

    /// Answers during an attempt, unless a reply has started.
    async fn answer_during_attempt(&mut self, answer: Answer) -> (NextStep, Option<ClientFault>) {
        if self.client.sent.status.is_some() {
            (NextStep::Abort, None)
        } else {
            self.answer(answer, false, None).await
        }
    }

    /// Answers. The connection is kept if `may_continue` is true and the client has sent its complete
    /// request.
    async fn answer(
        &mut self,
        answer: Answer,
        may_continue: bool,
        mut intake: Option<&mut BodyIntake>,
    ) -> (NextStep, Option<ClientFault>) {
        let then = answer.then;
        let is_body_read = match &mut intake {
            Some(intake) if intake.is_body_taken() => {
                intake.skip(&mut self.client);
                Some(D::IS_FRAMED || intake.is_ended())
            }
            _ => None,
        };
        let ClientSession { side, request, unread, .. } = &self.client;
        let keep_alive = may_continue
            && then == AfterAnswer::KeepAlive
            && !self.worker.is_ending()
            && side.can_continue(request, unread)
            && is_body_read.unwrap_or_else(|| D::skip_body(&self.client.request, &mut self.client.unread));
        match self.client.answer(answer, keep_alive, &self.limits, intake).await {
            Ok(()) if then == AfterAnswer::Detach => (NextStep::Detach, None),
            Ok(()) if self.client.sent.keep_alive => (NextStep::Request, None),
            Ok(()) => (NextStep::Close, None),
            Err(error) => (NextStep::Abort, error.into()),
        }
    }

    /// Removes the fields that concern the connection of the client from a request.
    fn remove_client_fields(&mut self) -> Result<(), Fault> {
        let ClientSession { request, protocols, takes_trailers, .. } = &mut self.client;
        // Only gRPC over HTTP/2 asks for trailers. In HTTP/2 the only valid value is `trailers` (RFC 9113
        // section 8.2.2).
        *takes_trailers = D::IS_FRAMED && request.fields.get(b"te").is_some();
        *protocols = if request.asks_for_upgrade() {
            offered_protocols(&request.fields, request.is_http10())
        } else {
            None
        };
        remove_hop_of_request(&mut request.fields)?;
        if request.fields.named(FieldName::Host).is_none() {
            // HTTP/1.0 allows requests without a host, HTTP/1.1 does not (RFC 9112 section 3.2).
            let host = request.authority().unwrap_or_default().to_vec();
            request.fields.append(b"Host", &host)?;
        }
        Ok(())
    }

    /// Adds the fields that the connection to the server needs.
    fn add_server_fields(&mut self) -> Result<(), Fault> {
        let ClientSession { request, protocols, .. } = &mut self.client;
        let stated = request.fields.named(FieldName::ContentLength).is_some();
        let body = request.body();
        delimit(&mut request.fields, body, stated.then_some(0))?;
        if let Some(protocols) = protocols {
            request.fields.set(b"Connection", b"upgrade")?;
            request.fields.set(b"Upgrade", protocols)?;
        }
        Ok(())
    }

    /// Sends a request to a server. Uses an idle connection, if there is one and `may_reuse` is true, or a
    /// new connection. The futures of rare cases are boxed, so that an ordinary request needs little memory.
    async fn attempt(
        &mut self,
        server: &P::Server,
        may_reuse: bool,
        state: &mut P::Exchange,
    ) -> AttemptResult {
        let worker = self.worker;
        if let Err(answer) = worker.proxy.ask(self.client_data, state, &mut self.client.request) {
            return AttemptResult::Refused(answer);
        }
        if self.add_server_fields().is_err() {
            return match worker.proxy.refuse(self.client_data, Refusal::TooLarge { in_target: false }) {
                Some(answer) => AttemptResult::Refused(Box::new(answer)),
                None => AttemptResult::Ended(NextStep::Abort),
            };
        }
        if let Some(delay) = worker.proxy.hedge_timeout(state)
            && self.client.request.body() == Body::None
            && self.client.protocols.is_none()
            && self.client.sent.status.is_none()
        {
            return Box::pin(self.attempt_hedged(server, (delay, may_reuse), state)).await;
        }
        if worker.proxy.is_shared(server) && worker.proxy.speaks_http2(server) {
            return Box::pin(self.attempt_http2(server, state)).await;
        }
        let idle = match self.private_connection.take() {
            _ if !may_reuse => None,
            Some((of, stream)) if of == *server => Some(stream),
            _ if worker.proxy.is_shared(server) => worker.pool.take(server),
            _ => None,
        };
        if let Some(idle) = idle {
            let connection = ServerConnection {
                server_side: ServerSide::Http1(BufferedStream::new(idle)),
                received: Vec::new(),
                reused: true,
            };
            return self.run_exchange(connection, server, state).await;
        }
        let began = Clock::now();
        match Box::pin(self.connect(server)).await {
            Ok(Some(stream)) => {
                worker.proxy.on_connect(state, Clock::now().saturating_duration_since(began));
                let connection = ServerConnection {
                    server_side: ServerSide::Http1(BufferedStream::new(stream)),
                    received: Vec::new(),
                    reused: false,
                };
                self.run_exchange(connection, server, state).await
            }
            Ok(None) => AttemptResult::Fault(ClientFault::Gone),
            Err(error) => self.connect_failure(error),
        }
    }

    /// Returns the failure for a connection that could not be opened.
    fn connect_failure(&self, error: io::Error) -> AttemptResult {
        let resumable = self.client.sent.resumable();
        AttemptResult::Failed(Failure { stage: Stage::Connect, error, replayable: true, resumable })
    }

    /// Sends a request to an HTTP/2 server.
    async fn attempt_http2(&mut self, server: &P::Server, state: &mut P::Exchange) -> AttemptResult {
        let (worker, client_data, limits) = (self.worker, self.client_data, self.limits);
        let began = Clock::now();
        let reservation = worker.http2_pool.reserve(server, worker.proxy.connect(client_data, server));
        let reservation = async {
            timeout(limits.connect, reservation).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        let reservation = match self.client.run_until_disconnect(reservation, limits.half_close).await {
            Some(Ok(reservation)) => reservation,
            Some(Err(error)) => return self.connect_failure(error),
            None => return AttemptResult::Fault(ClientFault::Gone),
        };
        let reused = reservation.reused;
        if !reused {
            worker.proxy.on_connect(state, Clock::now().saturating_duration_since(began));
        }
        let ClientSession { request, takes_trailers, .. } = &self.client;
        match ServerStream::new(reservation, request, worker.proxy.is_secure(server), *takes_trailers) {
            Some(stream) => {
                let server_side = ServerSide::Http2(Box::new(stream));
                self.run_exchange(
                    ServerConnection { server_side, received: Vec::new(), reused },
                    server,
                    state,
                )
                .await
            }
            None => AttemptResult::Fault(ClientFault::Malformed(Fault::Target)),
        }
    }

    /// Sends a hedged request. `hedge_options` is the delay of the second request, and whether the first may reuse a
    /// connection.
    async fn attempt_hedged(
        &mut self,
        first: &P::Server,
        hedge_options: (Duration, bool),
        state: &mut P::Exchange,
    ) -> AttemptResult {
        let worker = self.worker;
        let mut request_bytes = Vec::new();
        self.client.request.write(&mut request_bytes);
        let hedge = HedgedRequest {
            worker,
            client_data: self.client_data,
            limits: &self.limits,
            request_bytes: &request_bytes,
        };
        let run = hedge.run(first, hedge_options, state);
        match self.client.run_until_disconnect(run, self.limits.half_close).await {
            Some(Ok((reply, second))) => {
                let ServerReply { stream, bytes, reused, connect_time, .. } = reply;
                if let Some(took) = connect_time {
                    worker.proxy.on_connect(state, took);
                }
                let connection =
                    ServerConnection { server_side: ServerSide::Http1(stream), received: bytes, reused };
                self.run_exchange(connection, second.as_ref().unwrap_or(first), state).await
            }
            Some(Err(failure)) => AttemptResult::Failed(failure),
            None => AttemptResult::Fault(ClientFault::Gone),
        }
    }

    /// Opens a connection. Returns `None` if the client disconnects before.
    async fn connect(&mut self, server: &P::Server) -> io::Result<Option<P::Stream>> {
        let mut deadline = Deadline::new(self.limits.connect);
        let mut connecting = pin!(self.worker.proxy.connect(self.client_data, server));
        let connect_result = poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connect_result) => Poll::Ready(connect_result),
            Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
        });
        if self.client.request.body() == Body::None {
            self.client.run_until_disconnect(connect_result, self.limits.half_close).await.transpose()
        } else {
            connect_result.await.map(Some)
        }
    }

    /// Keeps an idle connection for the next request: of any client if the server is shared, else of this client.
    fn keep_connection(&mut self, server: &P::Server, stream: P::Stream) {
        if self.worker.proxy.is_shared(server) {
            self.worker.pool.put(server, stream);
        } else {
            self.private_connection = Some((server.clone(), stream));
        }
    }

    /// Runs an exchange on a connection. Keeps the connection for the next request if possible.
    async fn run_exchange(
        &mut self,
        connection: ServerConnection<P::Stream>,
        server: &P::Server,
        state: &mut P::Exchange,
    ) -> AttemptResult {
        let (limits, worker) = (self.limits, self.worker);
        let ServerConnection { server_side, received, reused } = connection;
        let is_resumed = self.client.sent.status.is_some();
        if is_resumed {
            // The head that the client was sent must not be overwritten.
            self.client.swap_reply();
        }
        let mut exchange =
            ServerExchange::new(&mut self.client, self.client_data, server_side, worker, state, limits);
        let mut begun = false;
        let outcome = poll_fn(|cx| {
            if !std::mem::replace(&mut begun, true)
                && let Err(outcome) = exchange.begin(cx, &received)
            {
                return Poll::Ready(outcome);
            }
            exchange.poll(cx)
        })
        .await;
        exchange.return_pipe();
        let replayable = matches!(outcome, Outcome::Server(_)) && exchange.rewind();
        let (server_has_replied, is_idle, connection) =
            (exchange.server_has_replied, exchange.is_idle(), exchange.server);
        if is_resumed {
            self.client.swap_reply();
        }
        match outcome {
            Outcome::Done { server_keep_alive } => {
                if let ServerSide::Http1(stream) = connection
                    && server_keep_alive
                    && is_idle
                {
                    self.keep_connection(server, stream.into_inner());
                }
                AttemptResult::Ended(if self.client.sent.keep_alive {
                    NextStep::Request
                } else {
                    NextStep::Close
                })
            }
            Outcome::Client(fault) => AttemptResult::Fault(fault),
            Outcome::Server(error) => {
                let stage = match (self.client.sent.status, server_has_replied) {
                    (Some(_), _) => Stage::Reply { begun: true },
                    (None, true) => Stage::Reply { begun: false },
                    (None, false) => Stage::Request { reused },
                };
                let resumable = self.client.sent.resumable();
                AttemptResult::Failed(Failure { stage, error, replayable, resumable })
            }
            Outcome::Tunnel => {
                // No HTTP/2 stream becomes a tunnel, because an HTTP/2 reply with status 101 is malformed.
                let ServerSide::Http1(stream) = connection else {
                    return AttemptResult::Ended(NextStep::Abort);
                };
                let ClientSession { side, unread, deadline, .. } = &mut self.client;
                let early = std::mem::take(unread);
                let (bytes, error) =
                    Box::pin(side.run_tunnel(early, stream, deadline, limits.server_read)).await;
                self.client.sent.body_bytes += bytes;
                let stage = Stage::Reply { begun: true };
                match error {
                    Some(error) => {
                        AttemptResult::Failed(Failure { stage, error, replayable: false, resumable: None })
                    }
                    None => AttemptResult::Ended(NextStep::Close),
                }
            }
        }
    }
}
