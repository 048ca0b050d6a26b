//! Steps of a request through the switch, as callbacks of the engine ([`larder_http::relay`]):
//!
//! | event in the engine | step of the switch |
//! |---|---|
//! | a request head has arrived | [`enter`]: limits, rules for fields, guards, replies of the switch itself |
//! | the decision | [`prompt`]: the body of a completion; [`decide`]: session, dispatcher, waiting for admission |
//! | each attempt at a node | [`prepare`]: fields and path for the node; [`node`]: a connection; [`hedge`]: a second node |
//! | the reply's head and body | [`reply`] |
//! | a node or the client has failed | [`failure`]: retries, the rest of a reply, failure replies |
//! | the end | [`end`]: dispatcher, metrics, access log, traces, shadow |
//!
//! [`Requests`] implements the engine's trait [`Proxy`] and only forwards the calls.

#[cfg(test)]
mod allocations;
mod client;
mod copy;
mod decide;
mod end;
mod enter;
mod exchange;
mod facts;
mod failure;
mod hedge;
mod node;
mod own_reply;
mod prepare;
mod prompt;
mod prompt_body;
mod reply;
mod requests;
mod resume;
pub(crate) mod trace;

pub(crate) use client::{Client, Security};
pub(crate) use requests::Requests;

use exchange::Exchange;
use larder_edge::ServerIo;
use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{
    Answer, ClientFault, ClientHandle, Failure, HedgeEvent, Http2Fault, Limits, MessageRejection, Next,
    Proxy, Refusal, ReplyForwarding, Report,
};
use node::Server;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

impl Proxy for Requests {
    type Client = Client;
    type Exchange = Exchange;
    type Server = Server;
    type Stream = ServerIo;

    fn request(&self, client: &Client, head: &mut RequestHead) -> (Exchange, Next<Server>) {
        let mut exchange = Exchange::new(&self.shared, client);
        let next = self.begin(client, &mut exchange, head);
        (exchange, next)
    }

    async fn decide(
        &self,
        client: (&Client, &ClientHandle),
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Next<Server> {
        self.continue_decision(client, exchange, head).await
    }

    fn ask(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        head: &mut RequestHead,
    ) -> Result<(), Box<Answer>> {
        self.prepare(client, exchange, head)
            .map_err(|failure| Box::new(self.fail(client, exchange, head, failure)))
    }

    fn is_shared(&self, server: &Server) -> bool {
        server.is_shared()
    }

    fn speaks_http2(&self, server: &Server) -> bool {
        server.speaks_http2()
    }

    fn is_secure(&self, server: &Server) -> bool {
        server.is_secure()
    }

    async fn connect(&self, client: &Client, server: &Server) -> io::Result<ServerIo> {
        self.open(client, server).await
    }

    fn on_connect(&self, exchange: &mut Exchange, took: Duration) {
        exchange.connect = Some(took);
    }

    fn hedge_timeout(&self, exchange: &Exchange) -> Option<Duration> {
        exchange.hedge_timeout
    }

    fn hedge_server(&self, _: &Client, exchange: &mut Exchange) -> Option<Server> {
        self.start_hedge(exchange)
    }

    fn on_hedge_event(&self, exchange: &mut Exchange, event: HedgeEvent<'_>) {
        self.on_race_event(exchange, event);
    }

    fn request_body(
        &self,
        _: &Client,
        exchange: &mut Exchange,
        piece: &[u8],
        is_last: bool,
    ) -> Result<(), MessageRejection> {
        self.check_body(exchange, piece, is_last).map_err(|failure| {
            exchange.failure = Some(failure);
            MessageRejection
        })
    }

    fn reply(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        request: &RequestHead,
        reply: &mut ReplyHead,
    ) -> Result<ReplyForwarding, MessageRejection> {
        self.receive_head(client, exchange, request, reply)
    }

    fn reply_body(
        &self,
        exchange: &mut Exchange,
        piece: &[u8],
        is_last: bool,
        instead: &mut Vec<u8>,
    ) -> bool {
        self.process_body(exchange, piece, is_last, instead)
    }

    fn on_failure(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        heads: (&RequestHead, &ReplyHead),
        failure: &Failure,
    ) -> Next<Server> {
        self.handle_node_failure(client, exchange, heads, failure)
    }

    fn on_client_fault(
        &self,
        client: &Client,
        exchange: &mut Exchange,
        request: &RequestHead,
        fault: ClientFault,
    ) -> Answer {
        let failure = failure::client_failure(fault, exchange);
        self.fail(client, exchange, request, failure)
    }

    fn on_end(
        &self,
        client: &Client,
        exchange: Exchange,
        request: &mut RequestHead,
        reply: &ReplyHead,
        report: Report,
    ) {
        self.end(client, exchange, request, reply, &report);
    }

    fn address(&self, client: &Client) -> Option<IpAddr> {
        Some(client.address.ip())
    }

    fn on_http2_fault(&self, client: &Client, fault: Http2Fault) {
        self.note_http2_fault(client, fault);
    }

    fn refuse(&self, _: &Client, refusal: Refusal) -> Option<Answer> {
        self.refusal_reply(refusal)
    }

    fn limits(&self, _: &Client) -> Limits {
        let (limits, timeouts) = (&self.shared.guards.limits, &self.shared.timeouts);
        Limits {
            head_bytes: limits.header_bytes_max,
            head: timeouts.header,
            keepalive: timeouts.keepalive,
            client_read: timeouts.client_read,
            client_write: timeouts.client_write,
            connect: timeouts.connect,
            server_read: timeouts.node_read,
            server_write: timeouts.node_write,
            half_close: self.shared.handoff.is_some(),
        }
    }
}
