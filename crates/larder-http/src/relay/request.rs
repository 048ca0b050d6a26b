//! A request from its head to its end, whatever the protocol of its client.

use super::answer::{Answer, Then};
use super::client::Client;
use super::clock::Clock;
use super::deadline::Deadline;
use super::downstream::Downstream;
use super::exchange::{Exchange, Outcome};
use super::fault::{ClientFault, Failure, Refusal, Stage};
use super::fields::{delimit, offered_protocols, remove_hop_of_request};
use super::intake::Intake;
use super::limits::Limits;
use super::proxy::{Next, Proxy, Report};
use super::race::{Race, Replied};
use super::streams::Stream;
use super::upstream::Upstream;
use super::wire::Wire;
use super::worker::Worker;
use crate::h1::{Body, Fault, FieldName};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// The next event on a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next request.
    Request,
    /// The end, once the client has had time to read its reply.
    Farewell,
    /// The end at once: the client must see that something is missing, or has left.
    Cut,
    /// The connection is no longer one of HTTP, or goes on elsewhere.
    Leave,
}

/// A client's connection, or its part that serves one request at a time.
pub(super) struct Connection<'a, D, P: Proxy> {
    pub(super) client: Client<D>,
    pub(super) info: &'a P::Client,
    pub(super) worker: &'a Worker<P>,
    pub(super) limits: Limits,
    /// A connection to a server that waits for this client's next request.
    own: Option<(P::Server, P::Stream)>,
}

/// A connection to a server.
struct Opened<S> {
    upstream: Upstream<S>,
    /// Bytes of the reply, if the server has got the request already.
    replied: Vec<u8>,
    /// It has served other requests.
    reused: bool,
}

/// The result of an attempt at a server.
enum Attempt {
    Ended(After),
    /// A client's fault, or an answer of the proxy, ends the request.
    Fault(ClientFault),
    Refused(Box<Answer>),
    Failed(Failure),
}

impl<'a, D, P> Connection<'a, D, P>
where
    D: Downstream,
    P: Proxy,
{
    pub(super) fn new(down: D, info: &'a P::Client, worker: &'a Worker<P>) -> Self {
        let limits = worker.proxy.limits(info);
        Self { client: Client::new(down, &limits), info, worker, limits, own: None }
    }

    /// Serves a request whose head has come.
    pub(super) async fn serve_request(&mut self) -> After {
        match self.prepare() {
            Ok(()) => {}
            Err(Fault::TooLarge) => return self.refuse(Refusal::TooLarge { in_target: false }).await,
            Err(fault) => {
                return self.refuse(Refusal::Malformed { fault, is_other_protocol: false }).await;
            }
        }
        let proxy = &self.worker.proxy;
        let (mut state, next) = proxy.request(self.info, &mut self.client.request);
        let (after, fault) = self.follow(&mut state, next).await;
        let Client { down, request, reply, sent, .. } = &mut self.client;
        // Of a reply that is cut off, the last bytes may not have been sent.
        let unsent = if after == After::Cut { down.left() as u64 } else { 0 };
        let is_tunnel = sent.status == Some(101);
        let report = Report {
            status: sent.status,
            body_bytes: sent.body_bytes.saturating_sub(unsent),
            complete: sent.status.is_some() && after != After::Cut || is_tunnel,
            fault: fault.filter(|_| !is_tunnel),
        };
        proxy.on_end(self.info, state, request, reply, report);
        after
    }

    /// Does as the proxy decides until the request has ended.
    async fn follow(
        &mut self,
        state: &mut P::Exchange,
        mut next: Next<P::Server>,
    ) -> (After, Option<ClientFault>) {
        let proxy = &self.worker.proxy;
        let (mut is_asked, mut may_reuse) = (false, true);
        let mut intake = None;
        loop {
            let server = match next {
                Next::Server(server) => server,
                Next::Later => {
                    let intake = intake.get_or_insert_with(|| Intake::new(&self.client));
                    match Box::pin(self.decide(state, intake)).await {
                        Some(decided) => next = decided,
                        None => return (After::Cut, Some(ClientFault::Gone)),
                    }
                    continue;
                }
                Next::Leave => return (After::Leave, None),
                Next::Answer(answer) => return self.answer(answer, !is_asked, intake.as_mut()).await,
            };
            if intake.take().is_some_and(|intake| intake.is_taken()) {
                // The body is not there any more.
                return (After::Cut, None);
            }
            is_asked = true;
            match self.attempt(&server, may_reuse, state).await {
                Attempt::Ended(after) => return (after, None),
                Attempt::Refused(answer) => return self.answer_late(*answer).await,
                Attempt::Fault(fault) => {
                    let answer = proxy.on_client_fault(self.info, state, &self.client.request, fault);
                    let after = match fault {
                        ClientFault::Gone | ClientFault::Stalled => After::Cut,
                        _ => self.answer_late(answer).await.0,
                    };
                    return (after, Some(fault));
                }
                Attempt::Failed(failure) => {
                    let heads = (&self.client.request, &self.client.reply);
                    next = proxy.on_failure(self.info, state, heads, &failure);
                    let begun = self.client.sent.status.is_some();
                    let can_go_on = match &next {
                        Next::Server(_) => failure.replayable && (!begun || failure.resumable.is_some()),
                        Next::Answer(_) | Next::Later | Next::Leave => !begun,
                    };
                    if !can_go_on {
                        return (After::Cut, None);
                    }
                    may_reuse = !matches!(failure.stage, Stage::Request { reused: true });
                }
            }
        }
    }

    /// Has the proxy decide, which takes time; nothing if the client leaves before.
    async fn decide(&mut self, state: &mut P::Exchange, intake: &mut Intake) -> Option<Next<P::Server>> {
        let mut head = std::mem::take(&mut self.client.request);
        let (client, half_close) = (&mut self.client, self.limits.half_close);
        let Intake { handle, reading } = intake;
        let decided = {
            let mut decision = pin!(self.worker.proxy.decide((self.info, handle), state, &mut head));
            poll_fn(|cx| {
                let decided = decision.as_mut().poll(cx);
                if decided.is_ready() {
                    return decided.map(Some);
                }
                let left = match reading.advance(cx, client, handle, true) {
                    Ok(true) => false,
                    Ok(false) => client.watch(cx, half_close).is_err(),
                    Err(_) => true,
                };
                if left || reading.send_interim(cx, client, handle).is_err() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                }
            })
            .await
        };
        self.client.request = head;
        // Those that came with the decision.
        poll_fn(|cx| Poll::Ready(reading.send_interim(cx, &mut self.client, handle))).await.ok()?;
        decided
    }

    /// Refuses what is no request that can be decided about.
    pub(super) async fn refuse(&mut self, refusal: Refusal) -> After {
        let Some(answer) = self.worker.proxy.refuse(self.info, refusal) else { return After::Cut };
        self.answer(answer, false, None).await.0
    }

    /// Answers in the middle of an attempt, unless a reply has begun.
    async fn answer_late(&mut self, answer: Answer) -> (After, Option<ClientFault>) {
        if self.client.sent.status.is_some() {
            (After::Cut, None)
        } else {
            self.answer(answer, false, None).await
        }
    }

    /// Answers. The connection goes on if it `may` and the client has sent all of its request.
    async fn answer(
        &mut self,
        answer: Answer,
        may: bool,
        mut intake: Option<&mut Intake>,
    ) -> (After, Option<ClientFault>) {
        let then = answer.then;
        let is_read = match &mut intake {
            Some(intake) if intake.is_taken() => {
                intake.skip(&mut self.client);
                Some(D::IS_FRAMED || intake.is_ended())
            }
            _ => None,
        };
        let Client { down, request, unread, .. } = &self.client;
        let goes_on = may
            && then == Then::GoesOn
            && !self.worker.is_ending()
            && down.goes_on(request, unread)
            && is_read.unwrap_or_else(|| D::skip_body(&self.client.request, &mut self.client.unread));
        match self.client.answer(answer, goes_on, &self.limits, intake).await {
            Ok(()) if then == Then::Leaves => (After::Leave, None),
            Ok(()) if self.client.sent.goes_on => (After::Request, None),
            Ok(()) => (After::Farewell, None),
            Err(unanswered) => (After::Cut, unanswered.into()),
        }
    }

    /// Removes from a request what concerns the client's connection alone.
    fn prepare(&mut self) -> Result<(), Fault> {
        let Client { request, protocols, takes_trailers, .. } = &mut self.client;
        // Only gRPC asks for them, and only by HTTP/2, where there is no other value than `trailers` (RFC 9113 section 8.2.2).
        *takes_trailers = D::IS_FRAMED && request.fields.get(b"te").is_some();
        *protocols = if request.asks_for_upgrade() {
            offered_protocols(&request.fields, request.is_http10())
        } else {
            None
        };
        remove_hop_of_request(&mut request.fields)?;
        if request.fields.named(FieldName::Host).is_none() {
            // HTTP/1.0 knows requests without a host; HTTP/1.1 does not (RFC 9112 section 3.2).
            let host = request.authority().unwrap_or_default().to_vec();
            request.fields.append(b"Host", &host)?;
        }
        Ok(())
    }

    /// Adds to a request what the server's connection needs.
    fn delimit(&mut self) -> Result<(), Fault> {
        let Client { request, protocols, .. } = &mut self.client;
        let stated = request.fields.named(FieldName::ContentLength).is_some();
        let body = request.body();
        delimit(&mut request.fields, body, stated.then_some(0))?;
        if let Some(protocols) = protocols {
            request.fields.set(b"Connection", b"upgrade")?;
            request.fields.set(b"Upgrade", protocols)?;
        }
        Ok(())
    }

    /// Sends a request to a server: on a connection that waits, if it `may_reuse` one, or on a new one. What is rare is boxed, so that
    /// an ordinary request needs little memory.
    async fn attempt(&mut self, server: &P::Server, may_reuse: bool, state: &mut P::Exchange) -> Attempt {
        let worker = self.worker;
        if let Err(answer) = worker.proxy.ask(self.info, state, &mut self.client.request) {
            return Attempt::Refused(answer);
        }
        if self.delimit().is_err() {
            return match worker.proxy.refuse(self.info, Refusal::TooLarge { in_target: false }) {
                Some(answer) => Attempt::Refused(Box::new(answer)),
                None => Attempt::Ended(After::Cut),
            };
        }
        if let Some(after) = worker.proxy.hedges_after(state)
            && self.client.request.body() == Body::None
            && self.client.protocols.is_none()
            && self.client.sent.status.is_none()
        {
            return Box::pin(self.race(server, (after, may_reuse), state)).await;
        }
        if worker.proxy.is_shared(server) && worker.proxy.speaks_http2(server) {
            return Box::pin(self.attempt_stream(server, state)).await;
        }
        let waiting = match self.own.take() {
            _ if !may_reuse => None,
            Some((of, stream)) if of == *server => Some(stream),
            _ if worker.proxy.is_shared(server) => worker.pool.take(server),
            _ => None,
        };
        if let Some(waiting) = waiting {
            let opened =
                Opened { upstream: Upstream::Http1(Wire::new(waiting)), replied: Vec::new(), reused: true };
            return self.exchange(opened, server, state).await;
        }
        let began = Clock::now();
        match Box::pin(self.connect(server)).await {
            Ok(Some(stream)) => {
                worker.proxy.on_connect(state, Clock::now().saturating_duration_since(began));
                let opened = Opened {
                    upstream: Upstream::Http1(Wire::new(stream)),
                    replied: Vec::new(),
                    reused: false,
                };
                self.exchange(opened, server, state).await
            }
            Ok(None) => Attempt::Fault(ClientFault::Gone),
            Err(error) => self.not_connected(error),
        }
    }

    fn not_connected(&self, error: io::Error) -> Attempt {
        let resumable = self.client.sent.resumable();
        Attempt::Failed(Failure { stage: Stage::Connect, error, replayable: true, resumable })
    }

    /// Sends a request to a server of HTTP/2.
    async fn attempt_stream(&mut self, server: &P::Server, state: &mut P::Exchange) -> Attempt {
        let (worker, info, limits) = (self.worker, self.info, self.limits);
        let began = Clock::now();
        let place = worker.streams.place(server, worker.proxy.connect(info, server));
        let place = async {
            timeout(limits.connect, place).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        let place = match self.client.unless_it_leaves(place, limits.half_close).await {
            Some(Ok(place)) => place,
            Some(Err(error)) => return self.not_connected(error),
            None => return Attempt::Fault(ClientFault::Gone),
        };
        let reused = place.reused;
        if !reused {
            worker.proxy.on_connect(state, Clock::now().saturating_duration_since(began));
        }
        let Client { request, takes_trailers, .. } = &self.client;
        match Stream::new(place, request, worker.proxy.is_secure(server), *takes_trailers) {
            Some(stream) => {
                let upstream = Upstream::Http2(Box::new(stream));
                self.exchange(Opened { upstream, replied: Vec::new(), reused }, server, state).await
            }
            None => Attempt::Fault(ClientFault::Malformed(Fault::Target)),
        }
    }

    /// Asks a server, and after a while another one.
    async fn race(&mut self, first: &P::Server, how: (Duration, bool), state: &mut P::Exchange) -> Attempt {
        let worker = self.worker;
        let mut request = Vec::new();
        self.client.request.write(&mut request);
        let race = Race { worker, info: self.info, limits: &self.limits, request: &request };
        let run = race.run(first, how, state);
        match self.client.unless_it_leaves(run, self.limits.half_close).await {
            Some(Ok((replied, second))) => {
                let Replied { wire, bytes, reused, connected, .. } = replied;
                if let Some(took) = connected {
                    worker.proxy.on_connect(state, took);
                }
                let opened = Opened { upstream: Upstream::Http1(wire), replied: bytes, reused };
                self.exchange(opened, second.as_ref().unwrap_or(first), state).await
            }
            Some(Err(failure)) => Attempt::Failed(failure),
            None => Attempt::Fault(ClientFault::Gone),
        }
    }

    /// A new connection; none if the client leaves before.
    async fn connect(&mut self, server: &P::Server) -> io::Result<Option<P::Stream>> {
        let mut deadline = Deadline::new(self.limits.connect);
        let mut connecting = pin!(self.worker.proxy.connect(self.info, server));
        let connected = poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connected) => Poll::Ready(connected),
            Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
        });
        if self.client.request.body() == Body::None {
            self.client.unless_it_leaves(connected, self.limits.half_close).await.transpose()
        } else {
            connected.await.map(Some)
        }
    }

    async fn exchange(
        &mut self,
        opened: Opened<P::Stream>,
        server: &P::Server,
        state: &mut P::Exchange,
    ) -> Attempt {
        let (limits, worker) = (self.limits, self.worker);
        let Opened { upstream, replied, reused } = opened;
        let resumes = self.client.sent.status.is_some();
        if resumes {
            // The head that the client has got is not to be lost.
            self.client.swap_reply();
        }
        let mut exchange = Exchange::new(&mut self.client, self.info, upstream, worker, state, limits);
        let mut begun = false;
        let outcome = poll_fn(|cx| {
            if !std::mem::replace(&mut begun, true)
                && let Err(outcome) = exchange.begin(cx, &replied)
            {
                return Poll::Ready(outcome);
            }
            exchange.poll(cx)
        })
        .await;
        exchange.end();
        let replayable = matches!(outcome, Outcome::Server(_)) && exchange.rewind();
        let (spoke, is_idle, connection) = (exchange.server_spoke, exchange.is_idle(), exchange.server);
        if resumes {
            self.client.swap_reply();
        }
        match outcome {
            Outcome::Done { server_goes_on } => {
                if let Upstream::Http1(wire) = connection
                    && server_goes_on
                    && is_idle
                {
                    let stream = wire.into_inner();
                    if worker.proxy.is_shared(server) {
                        worker.pool.put(server, stream);
                    } else {
                        self.own = Some((server.clone(), stream));
                    }
                }
                Attempt::Ended(if self.client.sent.goes_on { After::Request } else { After::Farewell })
            }
            Outcome::Client(fault) => Attempt::Fault(fault),
            Outcome::Server(error) => {
                let stage = match (self.client.sent.status, spoke) {
                    (Some(_), _) => Stage::Reply { begun: true },
                    (None, true) => Stage::Reply { begun: false },
                    (None, false) => Stage::Request { reused },
                };
                let resumable = self.client.sent.resumable();
                Attempt::Failed(Failure { stage, error, replayable, resumable })
            }
            Outcome::Tunnel => {
                // No stream of HTTP/2 becomes a tunnel: its replies of 101 are malformed.
                let Upstream::Http1(wire) = connection else { return Attempt::Ended(After::Cut) };
                let Client { down, unread, deadline, .. } = &mut self.client;
                let early = std::mem::take(unread);
                let (bytes, error) = Box::pin(down.carry(early, wire, deadline, limits.server_read)).await;
                self.client.sent.body_bytes += bytes;
                let stage = Stage::Reply { begun: true };
                match error {
                    Some(error) => {
                        Attempt::Failed(Failure { stage, error, replayable: false, resumable: None })
                    }
                    None => Attempt::Ended(After::Farewell),
                }
            }
        }
    }
}
