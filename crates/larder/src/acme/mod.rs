//! ACME (RFC 8555): orders and renews certificates for the hosts of `[switch.tls.acme]` while the switch
//! serves.
//!
//! The serving process orders the certificates. If several processes share a store, only the one that holds
//! the store's lock orders. Such processes are two generations during a reload, or peer switches.
//! Certificates go into the store, where all processes find them. Failures are recorded there too. Therefore
//! neither a restart nor a peer switch asks the authority earlier than this process would.
//!
//! `schedule` computes times (pure), `store` keeps files, `client` reaches the authority, and `order` obtains
//! one certificate.

mod client;
mod order;
mod schedule;
mod store;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{Account, AccountCredentials, CertificateIdentifier, NewAccount};
use larder_edge::OutboundTls;
use larder_switch::{AcmeStatus, AcmeStore, StoredCertificate, SwitchHandle};
use tokio::sync::{Notify, oneshot};

use self::client::{HttpsClient, RetryAfter, now};
use self::order::Failure;
use self::schedule::{FailureClass, HostState, RenewalWindow, next_order, next_window_request, retry_at};
use self::store::Store;
pub(crate) use self::store::folder_of;

/// Longest pause between two reads of the store. Other processes may have changed the store.
const STORE_POLL_MAX: Duration = Duration::from_secs(60);
/// Pause while another process holds the lock.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// Pause after an error of the store.
const STORE_PAUSE: Duration = Duration::from_secs(30);
/// Shortest and longest interval between two requests for the renewal window, seconds (RFC 9773 section 4.3).
const WINDOW_S: std::ops::RangeInclusive<i64> = 3600..=24 * 3600;
/// Longest error text that is stored, in characters.
const ERROR_CHARS_MAX: usize = 1000;

/// The valid section `[switch.tls.acme]`.
#[derive(Clone, Debug)]
pub(crate) struct AcmeRole {
    pub(crate) store: AcmeStore,
    /// URL of the authority's directory.
    pub(crate) directory: String,
    pub(crate) contact: Vec<String>,
    /// TLS settings for connections to the authority.
    pub(crate) tls: OutboundTls,
}

/// Orders and renews the certificates of one switch.
#[derive(Debug)]
pub(crate) struct CertificateManager {
    role: AcmeRole,
    store: Store,
    switch: SwitchHandle,
    /// Notified when an operator requests a certificate.
    wake: Notify,
}

/// A running manager. The manager stops when this value is dropped.
#[derive(Debug)]
pub(crate) struct ManagerGuard {
    _stop: oneshot::Sender<()>,
}

/// The certificate and the recorded state of one host.
#[derive(Clone, Debug)]
struct HostRecord {
    host: String,
    certificate: Option<StoredCertificate>,
    state: HostState,
    renewal_requested: bool,
}

impl HostRecord {
    fn next_order(&self) -> i64 {
        if self.renewal_requested {
            0
        } else {
            next_order(&self.host, self.certificate.as_ref(), &self.state)
        }
    }

    /// Returns the time of the next request to the authority.
    fn next_request(&self) -> i64 {
        let window_request =
            self.certificate.as_ref().and_then(|certificate| next_window_request(certificate, &self.state));
        window_request.unwrap_or(i64::MAX).min(self.next_order())
    }

    fn status(&self, ordering: bool) -> AcmeStatus {
        AcmeStatus {
            host: self.host.clone(),
            not_after: self.certificate.as_ref().map(|certificate| certificate.not_after),
            next_order: self.next_order(),
            ordering,
            failures: self.state.failures,
            error: self.state.error.clone(),
        }
    }
}

impl CertificateManager {
    pub(crate) fn new(role: AcmeRole, switch: SwitchHandle) -> Arc<Self> {
        let store = Store { files: role.store.clone() };
        Arc::new(Self { role, store, switch, wake: Notify::new() })
    }

    /// Starts the manager on a thread of its own, because the store blocks on the disk. The manager stops
    /// when the returned value is dropped. A later process continues an unfinished order.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<ManagerGuard> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let manager = self.clone();
        let work = async move {
            tokio::select! {
                () = manager.run() => {}
                // The sender is dropped.
                _ = stopped => {}
            }
        };
        std::thread::Builder::new().name("acme".to_owned()).spawn(move || runtime.block_on(work))?;
        Ok(ManagerGuard { _stop: stop })
    }

    async fn run(&self) {
        loop {
            let pause = self.run_once().await.unwrap_or_else(|error| {
                let folder = self.store.files.folder.display();
                tracing::error!(%folder, %error, "acme: store of certificates not usable");
                STORE_PAUSE
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Requests that a host's certificate is ordered now. Blocks on the disk.
    ///
    /// # Errors
    /// Returns `None` if the host is not configured, else the error of the store.
    pub(crate) fn request_renewal(&self, host: &str) -> Result<(), Option<io::Error>> {
        if !self.role.store.hosts.iter().any(|known| known == host) {
            return Err(None);
        }
        self.store.request_renewal(host).map_err(Some)?;
        self.wake.notify_one();
        Ok(())
    }

    /// Orders what is due. Returns the time until the next action.
    async fn run_once(&self) -> io::Result<Duration> {
        self.store.open()?;
        let records = self.read_hosts();
        self.publish(&records, None);
        let quiet = time_until_due(&records);
        if !quiet.is_zero() {
            return Ok(quiet);
        }
        let Some(_lock) = self.store.lock()? else { return Ok(LOCK_PAUSE) };
        // Another process may have ordered certificates while this one waited for the lock.
        let mut records = self.read_hosts();
        if time_until_due(&records).is_zero() {
            self.order_due(&mut records).await;
        }
        self.publish(&records, None);
        Ok(time_until_due(&records).max(LOCK_PAUSE))
    }

    /// Reads the state of all hosts, and makes the switch load new certificates.
    fn read_hosts(&self) -> Vec<HostRecord> {
        let records = self.role.store.hosts.iter().map(|host| self.read_host(host)).collect();
        self.switch.renew_certificates();
        records
    }

    fn read_host(&self, host: &str) -> HostRecord {
        let certificate = self.store.files.stored(host).unwrap_or_else(|fault| {
            tracing::warn!(%fault, "acme: stored certificate invalid, another is ordered");
            None
        });
        let (state, renewal_requested) = (self.store.state(host), self.store.is_renewal_requested(host));
        HostRecord { host: host.to_owned(), certificate, state, renewal_requested }
    }

    fn publish(&self, records: &[HostRecord], ordering: Option<&str>) {
        let status = records.iter().map(|record| record.status(ordering == Some(&*record.host)));
        self.switch.set_acme(status.collect());
    }

    /// Requests renewal windows and certificates that are due.
    async fn order_due(&self, records: &mut [HostRecord]) {
        let retry_after = RetryAfter::default();
        let account = match self.account(&retry_after).await {
            Ok(account) => account,
            Err(failure) => return self.record_failure_for_all(records, &failure, retry_after.take()),
        };
        for at in 0..records.len() {
            self.update_window(&account, &mut records[at]).await;
            if records[at].next_order() > now() {
                continue;
            }
            let host = records[at].host.clone();
            self.publish(records, Some(&host));
            tracing::info!(host, directory = self.role.directory, "acme: certificate ordered");
            // A `Retry-After` of an earlier request does not apply to this one.
            let _ = retry_after.take();
            match self.order(&account, &mut records[at]).await {
                Ok(()) => {}
                Err(failure) if failure.affects_all_hosts => {
                    return self.record_failure_for_all(&mut records[at..], &failure, retry_after.take());
                }
                Err(failure) => self.record_failure(&mut records[at], &failure, retry_after.take()),
            }
            self.publish(records, None);
        }
    }

    /// Records one failure for all hosts that are due, because their orders would fail in the same way.
    fn record_failure_for_all(
        &self,
        records: &mut [HostRecord],
        failure: &Failure,
        retry_after: Option<i64>,
    ) {
        if failure.account_unknown
            && let Err(error) = self.store.remove_account()
        {
            tracing::warn!(%error, "acme: unknown account not removed from the store");
        }
        for record in records.iter_mut().filter(|record| record.next_order() <= now()) {
            self.record_failure(record, failure, retry_after);
        }
    }

    /// Loads the account, or creates it if there is none.
    async fn account(&self, retry_after: &RetryAfter) -> Result<Account, Failure> {
        let https = HttpsClient::new(&self.role.tls, retry_after.clone())
            .map_err(|fault| Failure::unreachable(fault.to_string()))?;
        let builder = Account::builder_with_http(Box::new(https));
        let contact = &self.role.contact;
        let contacts: Vec<&str> = contact.iter().map(String::as_str).collect();
        let json =
            |error: serde_json::Error| Failure::unreachable(format!("the store: account.json: {error}"));
        if let Some(mut stored) = self.store.account()? {
            let credentials: AccountCredentials =
                serde_json::from_value(stored.credentials.clone()).map_err(json)?;
            let account = builder.from_credentials(credentials).await?;
            if stored.contact != *contact {
                account.update_contacts(&contacts).await?;
                stored.contact.clone_from(contact);
                self.store.set_account(&stored)?;
            }
            return Ok(account);
        }
        let new =
            NewAccount { contact: &contacts, terms_of_service_agreed: true, only_return_existing: false };
        let (account, credentials) = builder.create(&new, self.role.directory.clone(), None).await?;
        let credentials = serde_json::to_value(credentials).map_err(json)?;
        self.store.set_account(&store::StoredAccount { contact: contact.clone(), credentials })?;
        tracing::info!(account = account.id(), "acme: account created");
        Ok(account)
    }

    /// Requests the renewal window if it is due. If the request fails, larder's own rule applies.
    async fn update_window(&self, account: &Account, record: &mut HostRecord) {
        let Some(certificate) = &record.certificate else { return };
        if record.renewal_requested
            || next_window_request(certificate, &record.state).is_none_or(|at| at > now())
        {
            return;
        }
        let Ok(id) = CertificateIdentifier::try_from(&certificate.certificate) else { return };
        let (span, pause) = match account.renewal_info(&id).await {
            Ok((info, pause)) => {
                let window = info.suggested_window;
                let span = (window.start.unix_timestamp(), window.end.unix_timestamp());
                (Some(span), i64::try_from(pause.as_secs()).unwrap_or(i64::MAX))
            }
            Err(error) => {
                tracing::debug!(host = record.host, %error, "acme: renewal time not available");
                (record.state.window.as_ref().and_then(|window| window.span), *WINDOW_S.end())
            }
        };
        let next_request = now() + pause.clamp(*WINDOW_S.start(), *WINDOW_S.end());
        record.state.window = Some(RenewalWindow { span, look_at: next_request });
        self.save_state(record);
    }

    async fn order(&self, account: &Account, record: &mut HostRecord) -> Result<(), Failure> {
        let certificate = record.certificate.clone();
        let replaces = certificate
            .as_ref()
            .and_then(|certificate| CertificateIdentifier::try_from(&certificate.certificate).ok());
        order::complete_order(account, &self.store, &record.host, &mut record.state, replaces).await?;
        record.state = HostState { issued_at: now(), ..HostState::default() };
        record.renewal_requested = false;
        self.store.set_state(&record.host, &record.state)?;
        self.store.clear_renewal_request(&record.host)?;
        *record = self.read_host(&record.host);
        self.switch.renew_certificates();
        self.switch.acme_ordered(true);
        let not_after = record.certificate.as_ref().map(|certificate| certificate.not_after);
        tracing::info!(host = record.host, not_after, "acme: certificate issued");
        Ok(())
    }

    fn record_failure(&self, record: &mut HostRecord, failure: &Failure, retry_after: Option<i64>) {
        let (now, state) = (now(), &mut record.state);
        state.failures = state.failures.saturating_add(1);
        state.error = Some(failure.message.chars().take(ERROR_CHARS_MAX).collect());
        state.retry_at = retry_at(&record.host, now, state.failures, failure.class, retry_after);
        record.renewal_requested = false;
        self.save_state(record);
        if let Err(error) = self.store.clear_renewal_request(&record.host) {
            tracing::warn!(%error, "acme: store not written, the order may be repeated");
        }
        self.switch.acme_ordered(false);
        let (host, error, failures) = (&record.host, &failure.message, record.state.failures);
        let again_in_s = record.state.retry_at - now;
        if failure.class == FailureClass::Unreachable {
            tracing::warn!(
                host,
                error,
                failures,
                again_in_s,
                "acme: authority not reached, it is asked again"
            );
        } else {
            tracing::warn!(
                host,
                error,
                failures,
                again_in_s,
                "acme: certificate refused, it is ordered again"
            );
        }
    }

    fn save_state(&self, record: &HostRecord) {
        if let Err(error) = self.store.set_state(&record.host, &record.state) {
            tracing::warn!(host = record.host, %error, "acme: store not written, the order may be repeated");
        }
    }
}

/// Returns the time until the first host needs a request to the authority.
fn time_until_due(records: &[HostRecord]) -> Duration {
    let first = records.iter().map(HostRecord::next_request).min().unwrap_or(i64::MAX);
    let left = u64::try_from(first.saturating_sub(now())).unwrap_or(0);
    Duration::from_secs(left).min(STORE_POLL_MAX)
}
