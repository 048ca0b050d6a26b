//! A client's connection from its first request to its last.

use super::client::{Arrival, Client};
use super::deadline::Deadline;
use super::exchange::{Exchange, Outcome};
use super::fields::remove_hop;
use super::pool::Pool;
use super::proxy::{Answer, Ended, Failure, Next, Peer, Proxy, Stage, Timeouts};
use super::tunnel;
use crate::h1::{Fault, Known};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves a client's connection to its end.
pub async fn serve<T, P>(io: T, peer: Peer, proxy: &P)
where
    T: AsyncRead + AsyncWrite + Unpin,
    P: Proxy,
{
    let timeouts = proxy.timeouts();
    let mut client = Client::new(io, peer, timeouts);
    loop {
        let status = match client.next(timeouts, proxy.head_bytes_max()).await {
            Arrival::Head => {
                if !serve_request(&mut client, proxy).await || proxy.is_draining() {
                    return;
                }
                client.deadline.set(timeouts.keepalive);
                continue;
            }
            Arrival::Nothing => return,
            Arrival::Late => 408,
            Arrival::TooLarge | Arrival::Malformed(Fault::TooLarge) => 431,
            Arrival::Malformed(_) => 400,
        };
        let answer = Answer { status, fields: Vec::new(), body: Vec::new() };
        if client.answer(&answer, false, timeouts.client).await.is_ok() {
            client.linger().await;
        }
        return;
    }
}

/// What an attempt at a server came to.
enum Attempt {
    /// The request has ended. Whether the client's connection goes on.
    Ended(Ended, bool),
    Failed(Failure, Ended),
}

/// Serves a request whose head has come. Returns whether the connection goes on.
async fn serve_request<T, P>(client: &mut Client<T>, proxy: &P) -> bool
where
    T: AsyncRead + AsyncWrite + Unpin,
    P: Proxy,
{
    let timeouts = proxy.timeouts();
    prepare(client);
    let (mut state, mut next) = proxy.request(client.peer, &mut client.request);
    let mut asked = false;
    loop {
        let server = match next {
            Next::Server(server) => server,
            Next::Later(decided) => match client.unless_it_leaves(decided).await {
                Some(decided) => {
                    next = decided;
                    continue;
                }
                None => {
                    proxy.ended(state, Ended { status: None, body_bytes: 0, complete: false });
                    return false;
                }
            },
            Next::Answer(answer) => {
                let goes_on = !asked && may_go_on(client) && !proxy.is_draining();
                let sent = client.answer(&answer, goes_on, timeouts.client).await.is_ok();
                let body_bytes = if sent { answer.body.len() as u64 } else { 0 };
                proxy.ended(state, Ended { status: Some(answer.status), body_bytes, complete: sent });
                if sent && !goes_on {
                    client.linger().await;
                }
                return sent && goes_on;
            }
        };
        asked = true;
        match attempt(client, &server, proxy, &mut state, timeouts).await {
            Attempt::Ended(ended, goes_on) => {
                proxy.ended(state, ended);
                return goes_on;
            }
            Attempt::Failed(failure, ended) => {
                next = proxy.failed(&mut state, failure);
                let begun = matches!(failure.stage, Stage::Reply { begun: true });
                if begun || !failure.replayable && !matches!(next, Next::Answer(_)) {
                    // The client learns of it by the end of the connection.
                    proxy.ended(state, ended);
                    return false;
                }
            }
        }
    }
}

/// Removes from a request what concerns the client's connection alone. A wish for another protocol is told anew.
fn prepare<T>(client: &mut Client<T>) {
    let upgrade = client.request.asks_for_upgrade();
    let fields = &mut client.request.fields;
    let protocols: Vec<u8> =
        if upgrade { fields.known(Known::Upgrade).unwrap_or_default().to_vec() } else { Vec::new() };
    remove_hop(fields);
    if upgrade {
        // Two fields were removed, so that there is room for two.
        let _ = fields.append(b"Connection", b"upgrade");
        let _ = fields.append(b"Upgrade", &protocols);
    }
}

/// Whether the connection of a client that is answered here can go on: nothing of the request is still to come, and no other
/// protocol.
fn may_go_on<T>(client: &Client<T>) -> bool {
    client.request.is_persistent()
        && client.request.body() == crate::h1::Body::None
        && !client.request.asks_for_upgrade()
}

/// Sends a request to a server: on a connection that waits, and if that turns out to be closed, on a new one.
async fn attempt<T, P>(
    client: &mut Client<T>,
    server: &P::Server,
    proxy: &P,
    state: &mut P::Exchange,
    timeouts: Timeouts,
) -> Attempt
where
    T: AsyncRead + AsyncWrite + Unpin,
    P: Proxy,
{
    let pool = Pool::here();
    if let Some(waiting) = pool.take(server) {
        let attempt = exchange(client, waiting, (server, true), proxy, state, timeouts).await;
        let stale = matches!(
            &attempt,
            Attempt::Failed(Failure { stage: Stage::Request { .. }, timed_out: false, replayable: true }, _)
        );
        if !stale {
            return attempt;
        }
    }
    match connect(server, proxy, timeouts).await {
        Ok(stream) => exchange(client, stream, (server, false), proxy, state, timeouts).await,
        Err(timed_out) => {
            let failure = Failure { stage: Stage::Connect, timed_out, replayable: true };
            Attempt::Failed(failure, Ended { status: None, body_bytes: 0, complete: false })
        }
    }
}

/// A new connection. The error says whether the server took too long.
async fn connect<P: Proxy>(server: &P::Server, proxy: &P, timeouts: Timeouts) -> Result<P::Stream, bool> {
    let mut deadline = Deadline::new(timeouts.connect);
    let mut connecting = pin!(proxy.connect(server));
    let connected = poll_fn(|cx| match connecting.as_mut().poll(cx) {
        Poll::Ready(connected) => Poll::Ready(connected.map_err(|_| false)),
        Poll::Pending => deadline.poll(cx).map(|()| Err(true)),
    });
    connected.await
}

async fn exchange<T, P>(
    client: &mut Client<T>,
    stream: P::Stream,
    (server, reused): (&P::Server, bool),
    proxy: &P,
    state: &mut P::Exchange,
    timeouts: Timeouts,
) -> Attempt
where
    T: AsyncRead + AsyncWrite + Unpin,
    P: Proxy,
{
    let mut exchange = Exchange::new(client, stream, proxy, state, timeouts);
    let mut begun = false;
    let outcome = poll_fn(|cx| {
        if !std::mem::replace(&mut begun, true) && exchange.begin(cx).is_err() {
            return Poll::Ready(Outcome::Server { timed_out: false });
        }
        exchange.poll(cx)
    })
    .await;
    let (status, body_bytes) = (exchange.status, exchange.body_bytes);
    let ended = |complete| Ended { status, body_bytes, complete };
    match outcome {
        Outcome::Done { server_goes_on, client_goes_on } => {
            let cut_short = exchange.is_cut_short();
            if server_goes_on && exchange.is_idle() {
                Pool::here().put(server, exchange.server.into_inner());
            }
            if cut_short {
                client.linger().await;
            }
            Attempt::Ended(ended(true), client_goes_on)
        }
        Outcome::Client => Attempt::Ended(ended(false), false),
        Outcome::Server { timed_out } => {
            let stage = match (exchange.has_begun(), exchange.server_spoke) {
                (true, _) => Stage::Reply { begun: true },
                (false, true) => Stage::Reply { begun: false },
                (false, false) => Stage::Request { reused },
            };
            let failure = Failure { stage, timed_out, replayable: exchange.replayable };
            Attempt::Failed(failure, ended(false))
        }
        Outcome::Tunnel => {
            let server = exchange.server;
            let bytes = tunnel::carry(client, server, timeouts).await;
            Attempt::Ended(Ended { status, body_bytes: body_bytes + bytes, complete: true }, false)
        }
    }
}
