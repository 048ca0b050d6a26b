//! Sends requests: over a pooled connection or a new one, to one origin after another.
//!
//! | result of the attempt | next attempt |
//! |---|---|
//! | no connection | any request, at the next origin |
//! | a pooled connection was lost | an idempotent request without a body, once more at the same origin |
//! | no reply, or a reply that counts as a failure of the origin | an idempotent request without a body, at the next origin |
//!
//! All attempts together take at most twice the time of one attempt, whatever the number of origins.

use super::client::{Origin, OriginReply};
use super::error::{OriginError, OriginRequestBody};
use super::failover::OriginServer;
use super::interim::InterimRelay;
use super::origin_slot::OriginSlot;
use super::transfer_limits::TransferLimits;
use super::upload::{self, AttemptBody, UnsentBody};
use crate::config::OriginConfig;
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as LegacyError;
use larder_edge::TlsFault;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::timeout;

impl Origin {
    /// Sends a request. `headers` come from [`Self::request_headers`], with `Upgrade` if the connection may
    /// become a tunnel. `interim` receives the interim replies.
    pub(crate) async fn send(
        &self,
        slot: OriginSlot,
        method: &Method,
        target: &PathAndQuery,
        headers: HeaderMap,
        body: Option<OriginRequestBody>,
        interim: Option<InterimRelay>,
    ) -> Result<OriginReply, OriginError> {
        let (origins, limits, time) = {
            let settings = self.settings();
            (Arc::clone(&settings.origins), body_limits(&settings.config), reply_time(&settings.config))
        };
        // If a connection ends before the reply, it is unknown whether the origin has processed the request.
        // Only an idempotent request is sent again (RFC 9110 section 9.2.2), and only without a body, which may
        // be consumed by then. So only such a request uses a pooled connection, which the origin may just be
        // closing.
        let repeatable = body.is_none() && method.is_idempotent();
        let (unsent_body, progress) = body.map(|body| upload::with_time_limits(body, limits, &slot)).unzip();
        let unsent_body = unsent_body.map(UnsentBody::new);
        let deadline = Instant::now() + 2 * time;
        let plan = origins.plan(Instant::now());
        let (mut sent, mut authority) = (Err(OriginError::Abandoned), &self.authority);
        for (nth, candidate) in plan.iter().enumerate() {
            let time = time.min(deadline.saturating_duration_since(Instant::now()));
            let body = || (unsent_body.as_ref().map(UnsentBody::for_attempt), progress.clone());
            let ask = (method, target);
            let origin = &candidate.origin;
            authority = &origin.authority;
            sent = self
                .try_send((origin, repeatable, time), ask, headers.clone(), body(), interim.clone())
                .await;
            // A pooled connection that the origin has closed meanwhile fails like this. Other pooled
            // connections may be closed too.
            if repeatable && matches!(sent, Err(OriginError::Closed)) {
                let time = time.min(deadline.saturating_duration_since(Instant::now()));
                sent =
                    self.try_send((origin, false, time), ask, headers.clone(), body(), interim.clone()).await;
            }
            match &sent {
                Ok(reply) if !origins.is_failure(reply.status()) => {
                    origins.record_success(candidate);
                    self.log_refused(origin, reply.status());
                    break;
                }
                Err(error) if !error.is_origin_fault() => break,
                outcome => {
                    log_no_reply(origin, outcome.as_ref().err().copied());
                    let unreachable = matches!(outcome, Err(error) if error.is_before_request());
                    origins.record_failure(candidate, unreachable, Instant::now());
                }
            }
            let unsent = matches!(&sent, Err(error) if error.is_before_request())
                && unsent_body.as_ref().is_none_or(UnsentBody::is_unsent);
            let next = nth + 1 < plan.len() && Instant::now() < deadline && (repeatable || unsent);
            if !next {
                break;
            }
            self.counts.failovers.add(1);
            if let Some(progress) = &progress {
                progress.restart();
            }
        }
        if let Err(error) = &sent {
            if *error == OriginError::WriteTimeout {
                self.counts.write_timeouts.add(1);
            }
            tracing::debug!(origin = %self.authority, %error, "origin: no reply");
        }
        sent.map(|reply| OriginReply { reply, slot, origin: authority.clone() })
    }

    async fn try_send(
        &self,
        (origin, pooled, time): (&OriginServer, bool, Duration),
        (method, target): (&Method, &PathAndQuery),
        headers: HeaderMap,
        (body, progress): (Option<AttemptBody>, Option<Arc<upload::Progress>>),
        interim: Option<InterimRelay>,
    ) -> Result<Response<Incoming>, OriginError> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(origin.scheme.clone());
        uri.authority = Some(origin.authority.clone());
        uri.path_and_query = Some(target.clone());
        let has_body = body.is_some();
        let body = match body {
            Some(body) => body.boxed_unsync(),
            None => Empty::new().map_err(|never| match never {}).boxed_unsync(),
        };
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = Uri::from_parts(uri).map_err(|_| OriginError::BadReply)?;
        *request.headers_mut() = headers;
        if !self.sends_host_of_client()
            && let Ok(host) = HeaderValue::from_str(origin.authority.as_str())
        {
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(signing) = &self.settings().config.sign {
            let signed = signing.sign((method, target), request.headers_mut(), has_body, SystemTime::now());
            signed.map_err(|_| OriginError::Unsignable)?;
        }
        let upgrades = request.headers().contains_key(header::UPGRADE);
        let pooled = pooled && !upgrades;
        if upgrades {
            request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        } else if !pooled {
            // The side that closes first keeps the port for a minute (TIME_WAIT). The origin's port is the same
            // for all connections, and the node has few ports.
            request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(interim) = interim {
            interim.attach(&mut request);
        }
        let (sending, headers_max) = {
            let settings = self.settings();
            let client = if pooled { &settings.client } else { &settings.fresh_client };
            (client.request(request), settings.config.headers_max)
        };
        let sent = match &progress {
            Some(progress) => progress.reply_within(time, sending).await?,
            None => timeout(time, sending).await.map_err(|_| OriginError::HeadTimeout)?,
        };
        match sent {
            // The node did not ask for another protocol (RFC 9110 section 15.2.2).
            Ok(reply) if reply.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrades => {
                Err(OriginError::BadReply)
            }
            // hyper does not limit the number of fields for HTTP/2.
            Ok(reply) if reply.headers().len() > headers_max => Err(OriginError::BadReply),
            Ok(reply) => Ok(reply),
            Err(_) if progress.is_some_and(|progress| progress.is_late()) => Err(OriginError::LateBody),
            Err(error) => {
                let fault = fault(&error);
                log_no_connection(origin, fault, &error);
                Err(fault)
            }
        }
    }

    /// Logs that the origin refuses requests that the node has signed.
    fn log_refused(&self, origin: &OriginServer, status: StatusCode) {
        let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if refused
            && self.settings().config.sign.is_some()
            && let Some(times) = origin.refusal_log.due()
        {
            let hint = "if it refuses all: check the keys of node.origin.sign, their rights and this machine's clock";
            let (origin, status) = (&origin.authority, status.as_u16());
            tracing::warn!(%origin, status, times, hint, "origin: signed requests are refused");
        }
    }
}

/// Logs that a connection failed.
fn log_no_connection(origin: &OriginServer, kind: OriginError, error: &LegacyError) {
    let fault = tls_fault(error);
    if fault.is_none() && !error.is_connect() {
        return;
    }
    let Some(times) = origin.log(kind).due() else { return };
    let origin = &origin.authority;
    if let Some(fault) = fault {
        let reason = fault.reason();
        tracing::warn!(%origin, reason, error = %fault, times, "origin: TLS failed");
    } else {
        let reason = if is_late(error) { "timeout" } else { "connect" };
        let cause = error_chain(error).last().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(%origin, reason, error = cause, times, "origin: connection failed");
    }
}

/// Logs that a request was sent and got no reply. A failed connection has a log line of its own.
fn log_no_reply(origin: &OriginServer, error: Option<OriginError>) {
    let Some(error) = error.filter(|error| !error.is_before_request() && *error != OriginError::TlsBroken)
    else {
        return;
    };
    if let Some(times) = origin.log(error).due() {
        let (origin, reason) = (&origin.authority, error.reply().1);
        tracing::warn!(%origin, reason, %error, times, "origin: requests fail");
    }
}

/// Returns the time limit from the beginning of a request to the head of its reply.
fn reply_time(config: &OriginConfig) -> Duration {
    let handshake = config.tls.as_ref().map_or(Duration::ZERO, |tls| tls.handshake_timeout);
    config.connect_timeout + handshake + config.head_timeout
}

/// Returns the time limits for a client that sends a request's body.
fn body_limits(config: &OriginConfig) -> TransferLimits {
    let silence = config.request_body_timeout;
    TransferLimits::new(silence, silence, config.body_rate_min)
}

/// Returns the causes of an error, the deepest last.
fn error_chain(error: &LegacyError) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source())
}

fn is_late(error: &LegacyError) -> bool {
    let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    error_chain(error).any(|error| error.downcast_ref::<io::Error>().is_some_and(timed_out))
}

/// Returns the reason why TLS failed, if it did. With TLS 1.3, an origin can refuse the node's certificate
/// after the handshake.
fn tls_fault(error: &LegacyError) -> Option<TlsFault> {
    error_chain(error).find_map(|error| match error.downcast_ref::<TlsFault>() {
        Some(fault) => Some(fault.clone()),
        None => {
            let error = error.downcast_ref::<io::Error>()?.get_ref()?;
            error.downcast_ref::<rustls::Error>().map(TlsFault::of_tls)
        }
    })
}

fn fault(error: &LegacyError) -> OriginError {
    match tls_fault(error) {
        Some(TlsFault::Timeout) => return OriginError::TlsTimeout,
        Some(_) if error.is_connect() => return OriginError::Tls,
        // The request has been sent. With TLS 1.3, an origin refuses the node's certificate that late; other
        // failures look the same.
        Some(_) => return OriginError::TlsBroken,
        None => {}
    }
    let of_hyper = error_chain(error).find_map(|error| error.downcast_ref::<hyper::Error>());
    let is_parse = of_hyper.is_some_and(hyper::Error::is_parse);
    match (error.is_connect(), is_late(error)) {
        (true, true) => OriginError::ConnectTimeout,
        (true, false) => OriginError::Connect,
        (false, true) => OriginError::WriteTimeout,
        (false, false) if is_parse => OriginError::BadReply,
        (false, false) => OriginError::Closed,
    }
}
