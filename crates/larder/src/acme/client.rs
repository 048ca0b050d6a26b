//! HTTPS client for a certificate authority, with limits, and with the authority's `Retry-After` kept.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use larder_edge::{CertificateFault, LoadedTls, OutboundTls, ServerIo};
use larder_http::client::{Client, Limits, tcp};

/// Limits on a reply. A certificate chain takes some KiB.
const LIMITS: Limits = Limits { time: Duration::from_secs(30), body_bytes: 1 << 20 };
const AGENT: &str = concat!("larder/", env!("CARGO_PKG_VERSION"), " instant-acme");

/// Time of the last `Retry-After` of an authority, seconds since 1970. Refusals with 429 and 503 set the
/// time.
#[derive(Clone, Debug, Default)]
pub(super) struct RetryAfter(Arc<Mutex<Option<i64>>>);

impl RetryAfter {
    pub(super) fn take(&self) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn record(&self, status: StatusCode, headers: &HeaderMap) {
        if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            return;
        }
        let text = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim);
        let at = text.and_then(|text| match text.parse::<i64>() {
            Ok(seconds) => Some(now().saturating_add(seconds)),
            Err(_) => httpdate::parse_http_date(text).ok().map(since_1970),
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

fn since_1970(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// Returns the current time in seconds since 1970.
pub(super) fn now() -> i64 {
    since_1970(SystemTime::now())
}

/// HTTP client of one authority. Each request has a connection of its own.
pub(super) struct HttpsClient {
    tls: Arc<LoadedTls>,
    retry_after: RetryAfter,
}

impl HttpsClient {
    /// Loads the root certificates. Blocks on the disk.
    pub(super) fn new(tls: &OutboundTls, retry_after: RetryAfter) -> Result<Self, CertificateFault> {
        Ok(Self { tls: Arc::new(tls.load()?), retry_after })
    }
}

/// Connects to the authority of a URL.
async fn connect(to: &Uri, tls: &LoadedTls) -> io::Result<ServerIo> {
    let host = to.host().filter(|_| to.scheme_str() == Some("https"));
    let host = host.ok_or_else(|| io::Error::other("not an https URL"))?;
    let name = tls.server_name(host).map_err(io::Error::other)?;
    let tcp = tcp(&format!("{host}:{}", to.port_u16().unwrap_or(443))).await?;
    ServerIo::secure(tcp, name, Arc::new(tls.client.clone())).await
}

impl HttpClient for HttpsClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (tls, retry_after) = (Arc::clone(&self.tls), self.retry_after.clone());
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let to = std::mem::take(&mut parts.uri);
            let host = to.authority().map_or("", |authority| authority.as_str());
            parts.uri = to.path_and_query().cloned().map(Uri::from).unwrap_or_default();
            parts.headers.insert(HOST, HeaderValue::from_str(host).map_err(http::Error::from)?);
            parts.headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
            let request = Request::from_parts(parts, body.to_bytes());
            let answer = Client::default().exchange(connect(&to, &tls), request, LIMITS).await;
            let answer = answer.map_err(|error| Error::Other(format!("{host}: {error}").into()))?;
            let (parts, body) = answer.into_parts();
            retry_after.record(parts.status, &parts.headers);
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_recorded_from_refusals_only() {
        let retry_after = RetryAfter::default();
        let record_status = |status, text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(text).unwrap())]);
            retry_after.record(status, &headers);
            retry_after.take()
        };
        let is_in_a_minute = |at: Option<i64>| at.is_some_and(|at| (59..=61).contains(&(at - now())));
        assert!(is_in_a_minute(record_status(StatusCode::TOO_MANY_REQUESTS, "60")));
        assert_eq!(record_status(StatusCode::SERVICE_UNAVAILABLE, "Thu, 01 Jan 1970 00:01:00 GMT"), Some(60));
        assert_eq!(record_status(StatusCode::TOO_MANY_REQUESTS, "soon"), None);
        assert_eq!(record_status(StatusCode::OK, "60"), None);
    }
}
