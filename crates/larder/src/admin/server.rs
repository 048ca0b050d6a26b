//! The HTTP server of the admin interface.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};

use super::{Answer, Ask, Surface, origin};

/// Connections at once; the next one waits in the kernel's backlog.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request's head; a longer one gets 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Time for a head to arrive, also on an idle kept-alive connection; then it is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// At the end, time for the first request on a connection that was accepted before: its client has been told of nothing.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a browser may do with what comes from here: run the page's own script, which may ask here and nobody else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Serves until `shutdown` is ready; then accepts no more, and ends when all that has been asked is answered.
pub(crate) async fn serve(
    listener: TcpListener,
    surface: Arc<dyn Surface>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let ending = watch::Sender::new(false);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, slot)) => {
                let surface = Arc::clone(&surface);
                let ending = ending.subscribe();
                tokio::spawn(async move {
                    connection(stream, surface, ending).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "admin interface cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    ending.send_replace(true);
    let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
    drop(slots.acquire_many(all).await);
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, slot))
}

async fn connection(stream: TcpStream, surface: Arc<dyn Surface>, mut ending: watch::Receiver<bool>) {
    let is_loopback = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let asked = Arc::new(Notify::new());
    let first = Arc::clone(&asked);
    let service = service_fn(move |request| {
        first.notify_one();
        let surface = surface.clone();
        async move { Ok::<_, Infallible>(reply(&request, surface, is_loopback).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let ends = async {
        drop(ending.wait_for(|ending| *ending).await);
        let _ = tokio::time::timeout(FIRST_TIMEOUT, asked.notified()).await;
    };
    let served = tokio::select! {
        served = &mut served => served,
        () = ends => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection ended");
    }
}

async fn reply(
    request: &Request<Incoming>,
    surface: Arc<dyn Surface>,
    is_loopback: bool,
) -> Response<Full<Bytes>> {
    let post = request.method() == Method::POST;
    let answer = match *request.method() {
        _ if !origin::may_read(request.headers(), is_loopback) => Answer::problem(
            403,
            "this host is not known here",
            "ask by an IP address or as localhost: another name could be a web page's way in",
        ),
        Method::POST if !origin::may_change(request.headers()) => Answer::problem(
            403,
            "requests from other web pages are refused",
            "use the page at /, by an IP address or as localhost, or a client that sends no Origin header",
        ),
        Method::GET | Method::HEAD | Method::POST => {
            let uri = request.uri().clone();
            let answer =
                move || surface.answer(&Ask { post, path: uri.path(), query: uri.query().unwrap_or("") });
            // Off the runtime's threads: an answer may read a file or make a table.
            tokio::task::spawn_blocking(answer).await.unwrap_or_else(|error| {
                tracing::error!(%error, "the admin interface has failed");
                Answer::problem(500, "the answer failed", "this is a fault of larder itself; see its log")
            })
        }
        _ => Answer::wrong_method("GET, HEAD, POST"),
    };
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if let Some(allow) = answer.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if post {
        // A body is never read, so the connection cannot go on after a POST.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
