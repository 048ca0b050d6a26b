//! One order, from its creation to a certificate in the store (RFC 8555 section 7.4).
//!
//! An order that another process created is continued. A reload during an order therefore needs no second
//! order.

use std::io;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeStatus, ChallengeType, Error, Identifier,
    NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use larder_switch::AcmeChallenge;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};

use super::schedule::{FailureClass, HostState, PendingOrder};
use super::store::Store;

/// Time that an authority may take to validate a challenge, or to issue a certificate.
const PATIENCE: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(300))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// Reason why no certificate was issued.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) class: FailureClass,
    pub(super) message: String,
    /// Whether an order for any other host would fail in the same way.
    pub(super) affects_all_hosts: bool,
    /// Whether the authority does not know the account.
    pub(super) account_unknown: bool,
}

impl Failure {
    fn refused(message: impl Into<String>) -> Self {
        Self {
            class: FailureClass::Refused,
            message: message.into(),
            affects_all_hosts: false,
            account_unknown: false,
        }
    }

    pub(super) fn unreachable(message: impl Into<String>) -> Self {
        Self {
            class: FailureClass::Unreachable,
            message: message.into(),
            affects_all_hosts: true,
            account_unknown: false,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self {
            class: FailureClass::Unreachable,
            message: format!("the store: {error}"),
            affects_all_hosts: true,
            account_unknown: false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let Error::Api(problem) = error else {
            // After a timeout the next attempt continues the order. Other errors, such as malformed replies,
            // concern all hosts.
            let affects_all_hosts = !matches!(error, Error::Timeout(_));
            return Self { affects_all_hosts, ..Self::unreachable(error.to_string()) };
        };
        let kind = problem.r#type.as_deref().unwrap_or_default();
        let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
        let account_unknown = kind == "accountDoesNotExist";
        let broken = problem.status.is_some_and(|status| status >= 500) || kind == "badNonce";
        let class = if broken || account_unknown { FailureClass::Unreachable } else { FailureClass::Refused };
        let affects_all_hosts =
            broken || matches!(kind, "accountDoesNotExist" | "rateLimited" | "userActionRequired");
        Self { class, message: describe(&problem), affects_all_hosts, account_unknown }
    }
}

/// Formats a problem document as one line.
fn describe(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("about:blank");
    let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("no reason given");
    let further = problem.subproblems.iter().map(|part| format!("; {part}")).collect::<String>();
    format!("{detail} ({kind}){further}")
}

/// Obtains a certificate for a host and saves it in the store. `replaces` is the certificate that it replaces
/// (RFC 9773 section 5).
pub(super) async fn complete_order(
    account: &Account,
    store: &Store,
    host: &str,
    state: &mut HostState,
    replaces: Option<CertificateIdentifier<'_>>,
) -> Result<(), Failure> {
    let mut order = match resume(account, state).await? {
        Some(order) => order,
        None => create_order(account, host, replaces).await?,
    };
    let url = order.url().to_owned();
    if state.order.as_ref().is_none_or(|pending| pending.url != url) {
        state.order = Some(PendingOrder { url, key: None });
        store.set_state(host, state)?;
    }
    let done = finish(&mut order, store, host, state).await;
    // A refused order cannot succeed any more.
    if done.as_ref().is_err_and(|failure| failure.class == FailureClass::Refused) {
        state.order = None;
    }
    let cleared = store.remove_challenges();
    done?;
    Ok(cleared?)
}

/// Returns the unfinished order of an earlier attempt, if it can still be completed.
async fn resume(account: &Account, state: &HostState) -> Result<Option<Order>, Failure> {
    let Some(pending) = &state.order else { return Ok(None) };
    match account.order(pending.url.clone()).await {
        Ok(mut order) => {
            let has_no_key = pending.key.is_none();
            let usable = match order.state().status {
                OrderStatus::Pending | OrderStatus::Ready => true,
                // A finalized order is for one key. Without that key the order is useless.
                OrderStatus::Processing | OrderStatus::Valid => !has_no_key,
                OrderStatus::Invalid => false,
            };
            Ok(usable.then_some(order))
        }
        // The authority has forgotten the order, or it belongs to another account.
        Err(Error::Api(problem)) if problem.status.is_some_and(|status| status < 500) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn create_order(
    account: &Account,
    host: &str,
    replaces: Option<CertificateIdentifier<'_>>,
) -> Result<Order, Failure> {
    let hosts = [Identifier::Dns(host.to_owned())];
    if let Some(before) = replaces {
        match account.new_order(&NewOrder::new(&hosts).replaces(before)).await {
            Ok(order) => return Ok(order),
            // The certificate was replaced already, or the authority does not know it, or does not support
            // `replaces`. Then an order without `replaces` is created. Pebble answers 500 for about one
            // certificate in 500, because it does not find its serial number.
            Err(Error::Unsupported(_)) => {}
            Err(Error::Api(problem)) if matches!(problem.status, Some(400 | 404 | 409 | 500)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(account.new_order(&NewOrder::new(&hosts)).await?)
}

async fn finish(order: &mut Order, store: &Store, host: &str, state: &mut HostState) -> Result<(), Failure> {
    if order.state().status == OrderStatus::Pending {
        answer_challenges(order, store, host).await?;
        match order.poll_ready(&PATIENCE).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) => return Err(Failure::refused(validation_error(order, host, None).await)),
            Err(Error::Api(problem)) if problem.status.is_none_or(|status| status < 500) => {
                return Err(Failure::refused(validation_error(order, host, Some(problem)).await));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if order.state().status == OrderStatus::Ready {
        let (request, key) = create_request(host).map_err(|error| Failure::refused(error.to_string()))?;
        if let Some(pending) = &mut state.order {
            pending.key = Some(key);
        }
        store.set_state(host, state)?;
        order.finalize_csr(&request).await?;
    }
    let chain = order.poll_certificate(&PATIENCE).await?;
    let key = state.order.as_ref().and_then(|pending| pending.key.as_deref());
    let key = key.ok_or_else(|| Failure::refused("the key of the order is lost"))?;
    store
        .save_certificate(host, &format!("{}\n{key}", chain.trim_end()))
        .map_err(|error| Failure::refused(error.to_string()))
}

/// Writes the challenge answers into the store, and asks the authority to validate.
async fn answer_challenges(order: &mut Order, store: &Store, host: &str) -> Result<(), Failure> {
    let kind = match store.files.challenge {
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
            let message =
                format!("the authority offers no {} for {host}", challenge_name(store.files.challenge));
            return Err(Failure::refused(message));
        };
        let answer = challenge.key_authorization();
        let (file, answer) = match store.files.challenge {
            AcmeChallenge::Http01 => {
                let file = store.files.answer(&challenge.token);
                let file =
                    file.ok_or_else(|| Failure::refused("the authority sent an invalid token (RFC 8555)"))?;
                (file, answer.as_str().to_owned())
            }
            AcmeChallenge::TlsAlpn01 => {
                let pem = build_challenge_certificate(host, answer.digest().as_ref());
                let pem = pem.map_err(|error| Failure::refused(error.to_string()))?;
                (store.files.challenge_certificate(host), pem)
            }
        };
        store.write_challenge(&file, answer.as_bytes())?;
        if challenge.status == ChallengeStatus::Pending {
            challenge.set_ready().await?;
        }
    }
    Ok(())
}

fn challenge_name(challenge: AcmeChallenge) -> &'static str {
    match challenge {
        AcmeChallenge::Http01 => "http-01",
        AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
    }
}

/// Returns the reason of a failed validation. The authority reports the reason at the challenge, not at the
/// order.
async fn validation_error(order: &mut Order, host: &str, problem: Option<Problem>) -> String {
    let mut found = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if let Ok(state) = authorization.refresh().await {
            found.extend(
                state.challenges.iter().filter_map(|challenge| challenge.error.as_ref()).map(describe),
            );
        }
    }
    found.extend(problem.filter(|_| found.is_empty()).as_ref().map(describe));
    if found.is_empty() { format!("the order for {host} is invalid") } else { found.join("; ") }
}

/// Creates a certificate signing request (RFC 2986) with a new key. Returns the request as DER and the key as
/// PEM.
fn create_request(host: &str) -> Result<(Vec<u8>, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    Ok((params.serialize_request(&key)?.der().to_vec(), key.serialize_pem()))
}

/// Creates the certificate and key that answer a tls-alpn-01 challenge (RFC 8737 section 3), as PEM.
fn build_challenge_certificate(host: &str, digest: &[u8]) -> Result<String, rcgen::Error> {
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
    fn failures_are_classified() {
        let refused = failure("unauthorized", 403);
        assert_eq!(
            (refused.class, refused.affects_all_hosts, &*refused.message),
            (FailureClass::Refused, false, "why (unauthorized)")
        );
        let limited = failure("rateLimited", 429);
        assert_eq!((limited.class, limited.affects_all_hosts), (FailureClass::Refused, true));
        let gone = failure("accountDoesNotExist", 400);
        assert_eq!((gone.class, gone.account_unknown), (FailureClass::Unreachable, true));
        assert_eq!(failure("serverInternal", 500).class, FailureClass::Unreachable);
        let slow = Failure::from(Error::Timeout(None));
        assert_eq!((slow.class, slow.affects_all_hosts), (FailureClass::Unreachable, false));
    }

    #[test]
    fn the_certificate_of_a_challenge_has_the_digest_and_is_critical() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;
        let pem = build_challenge_certificate("a.test", &[7; 32]).unwrap();
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        // id-pe-acmeIdentifier, critical, an octet string that contains an octet string of 32 bytes (RFC 8737
        // section 3).
        let mut wanted = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x01\x1f\x01\x01\xff\x04\x22\x04\x20".to_vec();
        wanted.extend([7; 32]);
        assert!(der.windows(wanted.len()).any(|part| part == wanted));
    }
}
