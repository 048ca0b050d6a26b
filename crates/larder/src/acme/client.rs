//! How an authority is reached: HTTPS, with a limit on everything, and its wish for a pause kept.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Longest wait for a whole answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer; a chain of certificates has some KiB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const AGENT: &str = concat!("larder/", env!("CARGO_PKG_VERSION"), " instant-acme");

/// When an authority wants to be asked again, seconds since 1970, if its last refusal has said so.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<Mutex<Option<i64>>>);

impl Asked {
    pub(super) fn take(&self) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, status: StatusCode, headers: &HeaderMap) {
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

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    since_1970(SystemTime::now())
}

/// A client of one authority.
pub(super) struct Https {
    client: Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    asked: Asked,
}

impl Https {
    /// Trusts the roots of a file, PEM, or the system's. Blocks on the disk.
    pub(super) fn new(roots: Option<&Path>, asked: Asked) -> anyhow::Result<Self> {
        let provider = rustls::crypto::ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let builder = match roots {
            None => builder
                .with_provider_and_native_roots(provider)
                .context("the system's roots of trust (package ca-certificates) cannot be read")?,
            Some(file) => {
                let config = ClientConfig::builder_with_provider(Arc::new(provider))
                    .with_safe_default_protocol_versions()?
                    .with_root_certificates(read_roots(file)?)
                    .with_no_client_auth();
                builder.with_tls_config(config)
            }
        };
        let client = Client::builder(TokioExecutor::new()).build(builder.https_only().enable_http1().build());
        Ok(Self { client, asked })
    }
}

/// The roots in a file; at least one.
pub(crate) fn read_roots(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).with_context(|| file.display().to_string())? {
        let certificate = certificate.with_context(|| format!("{} is no PEM", file.display()))?;
        roots.add(certificate).with_context(|| format!("{} holds no root of trust", file.display()))?;
    }
    anyhow::ensure!(!roots.is_empty(), "{} holds no certificate", file.display());
    Ok(roots)
}

/// An error with what it comes from, which libraries leave out of their own words.
fn whole(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    let mut text = error.to_string();
    for cause in causes {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl HttpClient for Https {
    fn request(
        &self,
        mut request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let (sent, asked) = (self.client.request(request), self.asked.clone());
        Box::pin(async move {
            let failed = |what: String| Error::Other(format!("{host}: {what}").into());
            let exchange = async {
                let (parts, body) = sent.await.map_err(|error| failed(whole(&error)))?.into_parts();
                let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
                let body = body.map_err(|error| failed(whole(&*error)))?.to_bytes();
                Ok::<_, Error>((parts, body))
            };
            let late = |_| failed(format!("no answer within {} s", PATIENCE.as_secs()));
            let (parts, body) = tokio::time::timeout(PATIENCE, exchange).await.map_err(late)??;
            asked.note(parts.status, &parts.headers);
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_for_a_pause_is_heard_of_who_refuses() {
        let asked = Asked::default();
        let said = |status, text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(text).unwrap())]);
            asked.note(status, &headers);
            asked.take()
        };
        let about = |at: Option<i64>| at.is_some_and(|at| (59..=61).contains(&(at - now())));
        assert!(about(said(StatusCode::TOO_MANY_REQUESTS, "60")));
        assert_eq!(said(StatusCode::SERVICE_UNAVAILABLE, "Thu, 01 Jan 1970 00:01:00 GMT"), Some(60));
        assert_eq!(said(StatusCode::TOO_MANY_REQUESTS, "soon"), None);
        assert_eq!(said(StatusCode::OK, "60"), None);
    }
}
