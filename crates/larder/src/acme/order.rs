//! One order, from its beginning to a certificate in the store (RFC 8555 section 7.4).
//!
//! An order that another process has begun is gone on with, so that a reload in its midst costs no second one.

use std::io;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeStatus, ChallengeType, Error, Identifier,
    NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use larder_switch::AcmeChallenge;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};

use super::store::Store;
use super::when::{Begun, Fault, State};

/// How long an authority may take to look at a challenge, or to issue.
const PATIENCE: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(300))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// Why there is no certificate.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) what: String,
    /// It would be the same for every other host.
    pub(super) of_all: bool,
    /// The authority does not know the account.
    pub(super) account_gone: bool,
}

impl Failure {
    fn refused(what: impl Into<String>) -> Self {
        Self { fault: Fault::Refused, what: what.into(), of_all: false, account_gone: false }
    }

    pub(super) fn unreachable(what: impl Into<String>) -> Self {
        Self { fault: Fault::Unreachable, what: what.into(), of_all: true, account_gone: false }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self {
            fault: Fault::Unreachable,
            what: format!("the store: {error}"),
            of_all: true,
            account_gone: false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let Error::Api(problem) = error else {
            // An order that takes its time is gone on with by the next try; what else is said badly is no word of the authority's.
            let of_all = !matches!(error, Error::Timeout(_));
            return Self { of_all, ..Self::unreachable(error.to_string()) };
        };
        let kind = problem.r#type.as_deref().unwrap_or_default();
        let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
        let account_gone = kind == "accountDoesNotExist";
        let broken = problem.status.is_some_and(|status| status >= 500) || kind == "badNonce";
        let fault = if broken || account_gone { Fault::Unreachable } else { Fault::Refused };
        let of_all = broken || matches!(kind, "accountDoesNotExist" | "rateLimited" | "userActionRequired");
        Self { fault, what: told(&problem), of_all, account_gone }
    }
}

/// A problem in one line.
fn told(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("about:blank");
    let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("no reason given");
    let further = problem.subproblems.iter().map(|part| format!("; {part}")).collect::<String>();
    format!("{detail} ({kind}){further}")
}

/// Gets a certificate for a host into the store. `replaces`: the one that it follows (RFC 9773 section 5).
pub(super) async fn order(
    account: &Account,
    store: &Store,
    host: &str,
    state: &mut State,
    replaces: Option<CertificateIdentifier<'_>>,
) -> Result<(), Failure> {
    let mut order = match take_up(account, state).await? {
        Some(order) => order,
        None => begin(account, host, replaces).await?,
    };
    let url = order.url().to_owned();
    if state.order.as_ref().is_none_or(|begun| begun.url != url) {
        state.order = Some(Begun { url, key: None });
        store.set_state(host, state)?;
    }
    let done = go_on(&mut order, store, host, state).await;
    // Nothing can come of this one any more.
    if done.as_ref().is_err_and(|failure| failure.fault == Fault::Refused) {
        state.order = None;
    }
    let cleared = store.clear_challenges();
    done?;
    Ok(cleared?)
}

/// The order that was under way, if it still can come to something.
async fn take_up(account: &Account, state: &State) -> Result<Option<Order>, Failure> {
    let Some(begun) = &state.order else { return Ok(None) };
    match account.order(begun.url.clone()).await {
        Ok(mut order) => {
            let keyless = begun.key.is_none();
            let usable = match order.state().status {
                OrderStatus::Pending | OrderStatus::Ready => true,
                // It is for a key that nobody has, unless it was kept.
                OrderStatus::Processing | OrderStatus::Valid => !keyless,
                OrderStatus::Invalid => false,
            };
            Ok(usable.then_some(order))
        }
        // It is forgotten there, or another account's.
        Err(Error::Api(problem)) if problem.status.is_some_and(|status| status < 500) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn begin(
    account: &Account,
    host: &str,
    replaces: Option<CertificateIdentifier<'_>>,
) -> Result<Order, Failure> {
    let hosts = [Identifier::Dns(host.to_owned())];
    if let Some(before) = replaces {
        match account.new_order(&NewOrder::new(&hosts).replaces(before)).await {
            Ok(order) => return Ok(order),
            // The certificate was replaced already, or the authority does not find it or knows no replacement: an order like any other.
            // Pebble answers 500 to the number of about one certificate in 500, which it does not find.
            Err(Error::Unsupported(_)) => {}
            Err(Error::Api(problem)) if matches!(problem.status, Some(400 | 404 | 409 | 500)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(account.new_order(&NewOrder::new(&hosts)).await?)
}

async fn go_on(order: &mut Order, store: &Store, host: &str, state: &mut State) -> Result<(), Failure> {
    if order.state().status == OrderStatus::Pending {
        challenges(order, store, host).await?;
        match order.poll_ready(&PATIENCE).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) => return Err(Failure::refused(refusal(order, host, None).await)),
            Err(Error::Api(problem)) if problem.status.is_none_or(|status| status < 500) => {
                return Err(Failure::refused(refusal(order, host, Some(problem)).await));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if order.state().status == OrderStatus::Ready {
        let (request, key) = request(host).map_err(|error| Failure::refused(error.to_string()))?;
        if let Some(begun) = &mut state.order {
            begun.key = Some(key);
        }
        store.set_state(host, state)?;
        order.finalize_csr(&request).await?;
    }
    let chain = order.poll_certificate(&PATIENCE).await?;
    let key = state.order.as_ref().and_then(|begun| begun.key.as_deref());
    let key = key.ok_or_else(|| Failure::refused("the key of the order is lost"))?;
    store
        .keep(host, &format!("{}\n{key}", chain.trim_end()))
        .map_err(|fault| Failure::refused(fault.to_string()))
}

/// Lays out the answers, and asks the authority to look.
async fn challenges(order: &mut Order, store: &Store, host: &str) -> Result<(), Failure> {
    let kind = match store.shown.challenge {
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
    };
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let Some(mut challenge) = authorization.challenge(kind.clone()) else {
            let what = format!("the authority offers no {} for {host}", name(store.shown.challenge));
            return Err(Failure::refused(what));
        };
        let answer = challenge.key_authorization();
        let (file, answer) = match store.shown.challenge {
            AcmeChallenge::Http01 => {
                let file = store.shown.answer(&challenge.token);
                let file =
                    file.ok_or_else(|| Failure::refused("the authority's token is none (RFC 8555)"))?;
                (file, answer.as_str().to_owned())
            }
            AcmeChallenge::TlsAlpn01 => {
                let shown = shown(host, answer.digest().as_ref());
                let shown = shown.map_err(|error| Failure::refused(error.to_string()))?;
                (store.shown.challenge_certificate(host), shown)
            }
        };
        store.challenge(&file, answer.as_bytes())?;
        if challenge.status == ChallengeStatus::Pending {
            challenge.set_ready().await?;
        }
    }
    Ok(())
}

fn name(challenge: AcmeChallenge) -> &'static str {
    match challenge {
        AcmeChallenge::Http01 => "http-01",
        AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
    }
}

/// What the authority found when it looked, which is said of the challenge rather than of the order.
async fn refusal(order: &mut Order, host: &str, problem: Option<Problem>) -> String {
    let mut found = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if let Ok(state) = authorization.refresh().await {
            found.extend(state.challenges.iter().filter_map(|challenge| challenge.error.as_ref()).map(told));
        }
    }
    found.extend(problem.filter(|_| found.is_empty()).as_ref().map(told));
    if found.is_empty() { format!("the order for {host} is invalid") } else { found.join("; ") }
}

/// A request for a certificate (RFC 2986) with a key of its own: DER, and PEM.
fn request(host: &str) -> Result<(Vec<u8>, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    Ok((params.serialize_request(&key)?.der().to_vec(), key.serialize_pem()))
}

/// The certificate that answers tls-alpn-01 (RFC 8737 section 3), with its key, PEM.
fn shown(host: &str, digest: &[u8]) -> Result<String, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    Ok(params.self_signed(&key)?.pem() + &key.serialize_pem())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: &str, status: u16) -> Failure {
        let kind = format!("urn:ietf:params:acme:error:{kind}");
        let problem = serde_json::json!({"type": kind, "detail": "why", "status": status});
        Error::Api(serde_json::from_value(problem).unwrap()).into()
    }

    #[test]
    fn whose_fault_a_failure_is_and_whom_it_concerns() {
        let refused = failure("unauthorized", 403);
        assert_eq!(
            (refused.fault, refused.of_all, &*refused.what),
            (Fault::Refused, false, "why (unauthorized)")
        );
        let limited = failure("rateLimited", 429);
        assert_eq!((limited.fault, limited.of_all), (Fault::Refused, true));
        let gone = failure("accountDoesNotExist", 400);
        assert_eq!((gone.fault, gone.account_gone), (Fault::Unreachable, true));
        assert_eq!(failure("serverInternal", 500).fault, Fault::Unreachable);
        let slow = Failure::from(Error::Timeout(None));
        assert_eq!((slow.fault, slow.of_all), (Fault::Unreachable, false));
    }

    #[test]
    fn the_certificate_of_a_challenge_has_the_digest_and_is_critical() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;
        let pem = shown("a.test", &[7; 32]).unwrap();
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        // id-pe-acmeIdentifier, critical, an octet string with an octet string of 32 bytes (RFC 8737 section 3).
        let mut wanted = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x01\x1f\x01\x01\xff\x04\x22\x04\x20".to_vec();
        wanted.extend([7; 32]);
        assert!(der.windows(wanted.len()).any(|part| part == wanted));
    }
}
