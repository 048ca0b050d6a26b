//! A client's connection from its first request to its last.

use super::client::{Arrival, Client};
use super::deadline::Deadline;
use super::exchange::{Exchange, Outcome};
use super::fields::{delimit, offered_protocols, remove_hop};
use super::pool::Pool;
use super::proxy::{Answer, ClientInfo, Failure, Limits, Next, Proxy, Report, Stage};
use super::tunnel;
use crate::h1::{Body, Fault, FieldName};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncWrite};

/// Methods of requests that a server may get twice (RFC 9110 section 9.2.2).
const IDEMPOTENT: [&[u8]; 6] = [b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"];

/// The next event on a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The next request.
    Request,
    /// The end, once the client has had time to read its reply.
    Farewell,
    /// The end at once: the client must see that something is missing, or has left.
    Cut,
}

/// Serves a client's connection to its end. `pool` has the connections to servers of `proxy` on this thread.
pub async fn serve<T, P>(io: T, info: ClientInfo, proxy: &P, pool: &Pool<P::Server, P::Stream>)
where
    T: AsyncRead + AsyncWrite + Unpin,
    P: Proxy,
{
    let mut client = Client::new(io, info, proxy.limits());
    let mut first = true;
    loop {
        let limits = proxy.limits();
        let status = match client.next(limits, first).await {
            Arrival::Head if client.request.method() == b"CONNECT" => 405,
            Arrival::Head => {
                let after = Connection { client: &mut client, proxy, pool, limits }.serve_request().await;
                match after {
                    After::Request if proxy.is_draining() => return client.close().await,
                    After::Request => client.rest(),
                    After::Farewell => return client.linger().await,
                    After::Cut => return,
                }
                first = false;
                continue;
            }
            Arrival::Closed | Arrival::Idle => return client.close().await,
            Arrival::TimedOut => 408,
            Arrival::TooLarge | Arrival::Malformed(Fault::TooLarge) => 431,
            Arrival::Malformed(_) => 400,
        };
        proxy.on_refusal(info, status);
        let answer = Answer { status, ..Answer::default() };
        if client.answer(&answer, false, limits.client).await.is_ok() {
            client.linger().await;
        }
        return;
    }
}

/// A connection that serves a request.
struct Connection<'a, T, P: Proxy> {
    client: &'a mut Client<T>,
    proxy: &'a P,
    pool: &'a Pool<P::Server, P::Stream>,
    limits: Limits,
}

/// The result of an attempt at a server.
enum Attempt {
    Ended(Report, After),
    Failed(Failure, Report),
}

const NOTHING: Report = Report { status: None, body_bytes: 0, complete: false };

impl<T, P> Connection<'_, T, P>
where
    T: AsyncRead + AsyncWrite + Unpin,
    P: Proxy,
{
    /// Serves a request whose head has come.
    async fn serve_request(&mut self) -> After {
        let proxy = self.proxy;
        if self.prepare().is_err() {
            return self.refuse(431).await;
        }
        let (mut state, mut next) = proxy.request(self.client.info, &mut self.client.request);
        if self.delimit().is_err() {
            return self.refuse(431).await;
        }
        // Whether a server was asked, and whether another one still may be.
        let (mut asked, mut may_ask) = (false, true);
        let (report, after) = loop {
            let server = match next {
                Next::Server(server) if may_ask => server,
                Next::Server(_) => break (NOTHING, After::Cut),
                Next::Later(decision) => {
                    let half_close = self.limits.half_close;
                    match self.client.unless_it_leaves(decision, half_close).await {
                        Some(decided) => next = decided,
                        None => break (NOTHING, After::Cut),
                    }
                    continue;
                }
                Next::Answer(answer) => break self.answer(&answer, !asked).await,
            };
            asked = true;
            match self.attempt(&server, &mut state).await {
                Attempt::Ended(report, after) => break (report, after),
                Attempt::Failed(failure, report) => {
                    next = proxy.on_failure(&mut state, failure);
                    may_ask = failure.replayable;
                    if matches!(failure.stage, Stage::Reply { begun: true }) {
                        break (report, After::Cut);
                    }
                }
            }
        };
        proxy.on_end(state, report);
        after
    }

    /// Refuses a request that nothing was decided about.
    async fn refuse(&mut self, status: u16) -> After {
        self.proxy.on_refusal(self.client.info, status);
        self.answer(&Answer { status, ..Answer::default() }, false).await.1
    }

    /// Answers. The connection goes on if it `may` and the client has sent all of its request.
    async fn answer(&mut self, answer: &Answer, may: bool) -> (Report, After) {
        let request = &self.client.request;
        let goes_on = may
            && request.is_persistent()
            && request.body() == Body::None
            // Early bytes after a wish for another protocol are perhaps no request.
            && !request.asks_for_upgrade()
            && !self.proxy.is_draining();
        let complete = self.client.answer(answer, goes_on, self.limits.client).await.is_ok();
        let report = Report { status: Some(answer.status), body_bytes: 0, complete };
        let after = match (complete, goes_on) {
            (true, true) => After::Request,
            (true, false) => After::Farewell,
            (false, _) => After::Cut,
        };
        (report, after)
    }

    /// Removes from a request what concerns the client's connection alone.
    fn prepare(&mut self) -> Result<(), Fault> {
        let Client { request, protocols, .. } = &mut *self.client;
        *protocols = if request.asks_for_upgrade() {
            offered_protocols(&request.fields, request.is_http10())
        } else {
            None
        };
        remove_hop(&mut request.fields);
        if request.fields.named(FieldName::Host).is_none() {
            // HTTP/1.0 knows requests without a host; HTTP/1.1 does not (RFC 9112 section 3.2).
            let host = request.authority().unwrap_or_default().to_vec();
            request.fields.append(b"Host", &host)?;
        }
        Ok(())
    }

    /// Adds to a request what the server's connection needs.
    fn delimit(&mut self) -> Result<(), Fault> {
        let Client { request, protocols, .. } = &mut *self.client;
        let stated = request.fields.named(FieldName::ContentLength).is_some();
        let body = request.body();
        delimit(&mut request.fields, body, stated.then_some(0))?;
        if let Some(protocols) = protocols {
            request.fields.append(b"Connection", b"upgrade")?;
            request.fields.append(b"Upgrade", protocols)?;
        }
        Ok(())
    }

    /// Sends a request to a server: on a connection that waits, and if that turns out to be closed, on a new one.
    async fn attempt(&mut self, server: &P::Server, state: &mut P::Exchange) -> Attempt {
        if let Some(waiting) = self.pool.take(server) {
            let attempt = self.exchange(waiting, (server, true), state).await;
            let is_stale = matches!(
                &attempt,
                Attempt::Failed(Failure { stage: Stage::Request { .. }, error, replayable: true }, _)
                    if *error != io::ErrorKind::TimedOut
            );
            if !is_stale || !IDEMPOTENT.contains(&self.client.request.method()) {
                return attempt;
            }
        }
        match self.connect(server).await {
            Ok(Some(stream)) => self.exchange(stream, (server, false), state).await,
            Ok(None) => Attempt::Ended(NOTHING, After::Cut),
            Err(error) => {
                Attempt::Failed(Failure { stage: Stage::Connect, error, replayable: true }, NOTHING)
            }
        }
    }

    /// A new connection; none if the client leaves before.
    async fn connect(&mut self, server: &P::Server) -> Result<Option<P::Stream>, io::ErrorKind> {
        let mut deadline = Deadline::new(self.limits.connect);
        let mut connecting = pin!(self.proxy.connect(server));
        let connected = poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(connected) => Poll::Ready(connected.map_err(|error| error.kind())),
            Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut)),
        });
        if self.client.request.body() == Body::None {
            self.client.unless_it_leaves(connected, self.limits.half_close).await.transpose()
        } else {
            connected.await.map(Some)
        }
    }

    async fn exchange(
        &mut self,
        stream: P::Stream,
        (server, reused): (&P::Server, bool),
        state: &mut P::Exchange,
    ) -> Attempt {
        let limits = self.limits;
        let mut exchange = Exchange::new(self.client, stream, self.proxy, state, limits);
        let mut begun = false;
        let outcome = poll_fn(|cx| {
            if !std::mem::replace(&mut begun, true)
                && let Err(outcome) = exchange.begin(cx)
            {
                return Poll::Ready(outcome);
            }
            exchange.poll(cx)
        })
        .await;
        let (status, body_bytes) = (exchange.status, exchange.body_bytes);
        let report = |complete| Report { status, body_bytes, complete };
        match outcome {
            Outcome::Done { server_goes_on, client_goes_on } => {
                if server_goes_on && exchange.is_idle() {
                    self.pool.put(server, exchange.server.into_inner());
                }
                let after = if client_goes_on { After::Request } else { After::Farewell };
                Attempt::Ended(report(true), after)
            }
            Outcome::Client { timed_out: true } if status.is_none() => {
                let (report, after) = self.answer(&Answer { status: 408, ..Answer::default() }, false).await;
                Attempt::Ended(report, after)
            }
            Outcome::Client { .. } => Attempt::Ended(report(false), After::Cut),
            Outcome::Server(error) => {
                let stage = match (status, exchange.server_spoke) {
                    (Some(_), _) => Stage::Reply { begun: true },
                    (None, true) => Stage::Reply { begun: false },
                    (None, false) => Stage::Request { reused },
                };
                let replayable = exchange.rewind();
                Attempt::Failed(Failure { stage, error, replayable }, report(false))
            }
            Outcome::Tunnel => {
                let server = exchange.server;
                let bytes = tunnel::carry(self.client, server, limits).await;
                let report = Report { status, body_bytes: body_bytes + bytes, complete: true };
                Attempt::Ended(report, After::Farewell)
            }
        }
    }
}
