//! ACME (RFC 8555): certificates for the hosts of `[switch.tls.acme]`, ordered and renewed while the switch serves.
//!
//! The process that serves does it; of several with one store, such as two generations at a reload or switches beside each other,
//! the one that has the store's lock. What it gets goes into the store, where all of them find it; what fails is noted there too, so
//! that neither a restart nor another switch asks an authority sooner than this one would.
//!
//! `when` says when (pure), `store` keeps, `client` reaches the authority, `order` gets one certificate.

mod client;
mod order;
mod store;
mod when;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{Account, AccountCredentials, CertificateIdentifier, NewAccount};
use larder_edge::OutboundTls;
use larder_switch::{AcmeStatus, AcmeStore, StoredCertificate, SwitchHandle};
use tokio::sync::{Notify, oneshot};

use self::client::{Asked, Https, now};
use self::order::Failure;
use self::store::Store;
pub(crate) use self::store::folder_of;
use self::when::{Fault, State, Window, next_look, next_order, retry_at};

/// Longest pause between two looks at the store, in which others may have put something.
const LOOK: Duration = Duration::from_secs(60);
/// Pause while another process orders.
const TURN: Duration = Duration::from_secs(1);
/// Pause after the store could not be used.
const STORE_PAUSE: Duration = Duration::from_secs(30);
/// How often an authority is asked for its window, at the most and at the least, seconds (RFC 9773 section 4.3).
const WINDOW_S: std::ops::RangeInclusive<i64> = 3600..=24 * 3600;
/// Longest text of an error that is kept.
const ERROR_CHARS_MAX: usize = 1000;

/// `[switch.tls.acme]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct AcmeRole {
    pub(crate) store: AcmeStore,
    /// The authority's address.
    pub(crate) directory: String,
    pub(crate) contact: Vec<String>,
    /// Trust in the authority's own certificate.
    pub(crate) tls: OutboundTls,
}

/// Sees to it that there are certificates.
#[derive(Debug)]
pub(crate) struct Keeper {
    role: AcmeRole,
    store: Store,
    switch: SwitchHandle,
    /// Somebody wants something.
    wake: Notify,
}

/// A keeper at work.
#[derive(Debug)]
pub(crate) struct Running {
    _stop: oneshot::Sender<()>,
}

/// How it stands with a host.
#[derive(Clone, Debug)]
struct Look {
    host: String,
    held: Option<StoredCertificate>,
    state: State,
    wanted: bool,
}

impl Look {
    fn next_order(&self) -> i64 {
        if self.wanted { 0 } else { next_order(&self.host, self.held.as_ref(), &self.state) }
    }

    /// When there is something to ask the authority.
    fn next_question(&self) -> i64 {
        let look = self.held.as_ref().and_then(|held| next_look(held, &self.state));
        look.unwrap_or(i64::MAX).min(self.next_order())
    }

    fn status(&self, ordering: bool) -> AcmeStatus {
        AcmeStatus {
            host: self.host.clone(),
            not_after: self.held.as_ref().map(|held| held.not_after),
            next_order: self.next_order(),
            ordering,
            failures: self.state.failures,
            error: self.state.error.clone(),
        }
    }
}

impl Keeper {
    pub(crate) fn new(role: AcmeRole, switch: SwitchHandle) -> Arc<Self> {
        let store = Store { shown: role.store.clone() };
        Arc::new(Self { role, store, switch, wake: Notify::new() })
    }

    /// Orders and renews until what it gives is dropped, on a thread of its own: the store blocks on the disk. What was begun is
    /// gone on with by who comes after.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<Running> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let keeper = self.clone();
        let work = async move {
            tokio::select! {
                () = keeper.run() => {}
                // Its other end is dropped.
                _ = stopped => {}
            }
        };
        std::thread::Builder::new().name("acme".to_owned()).spawn(move || runtime.block_on(work))?;
        Ok(Running { _stop: stop })
    }

    async fn run(&self) {
        loop {
            let pause = self.round().await.unwrap_or_else(|error| {
                let folder = self.store.shown.folder.display();
                tracing::error!(%folder, %error, "the store of certificates cannot be used");
                STORE_PAUSE
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Orders a host's certificate now, whenever its time would be. Blocks on the disk.
    ///
    /// # Errors
    /// None if it is not among the hosts; else why it cannot be noted.
    pub(crate) fn want(&self, host: &str) -> Result<(), Option<io::Error>> {
        if !self.role.store.hosts.iter().any(|known| known == host) {
            return Err(None);
        }
        self.store.want(host).map_err(Some)?;
        self.wake.notify_one();
        Ok(())
    }

    /// Does what is due. How long nothing will be.
    async fn round(&self) -> io::Result<Duration> {
        self.store.open()?;
        let looks = self.look();
        self.publish(&looks, None);
        let quiet = idle(&looks);
        if !quiet.is_zero() {
            return Ok(quiet);
        }
        let Some(_lock) = self.store.lock()? else { return Ok(TURN) };
        // What was due may have been done while we waited.
        let mut looks = self.look();
        if idle(&looks).is_zero() {
            self.ask(&mut looks).await;
        }
        self.publish(&looks, None);
        Ok(idle(&looks).max(TURN))
    }

    /// Looks at the store, and lets the switch show what is new there.
    fn look(&self) -> Vec<Look> {
        let looks = self.role.store.hosts.iter().map(|host| self.look_at(host)).collect();
        self.switch.renew_certificates();
        looks
    }

    fn look_at(&self, host: &str) -> Look {
        let held = self.store.shown.stored(host).unwrap_or_else(|fault| {
            tracing::warn!(%fault, "a certificate in the store is spoiled: another is ordered");
            None
        });
        let (state, wanted) = (self.store.state(host), self.store.is_wanted(host));
        Look { host: host.to_owned(), held, state, wanted }
    }

    fn publish(&self, looks: &[Look], ordering: Option<&str>) {
        let status = looks.iter().map(|look| look.status(ordering == Some(&*look.host)));
        self.switch.set_acme(status.collect());
    }

    /// Asks the authority for what is due.
    async fn ask(&self, looks: &mut [Look]) {
        let asked = Asked::default();
        let account = match self.account(&asked).await {
            Ok(account) => account,
            Err(failure) => return self.all_failed(looks, &failure, asked.take()),
        };
        for at in 0..looks.len() {
            self.ask_for_window(&account, &mut looks[at]).await;
            if looks[at].next_order() > now() {
                continue;
            }
            let host = looks[at].host.clone();
            self.publish(looks, Some(&host));
            tracing::info!(host, directory = self.role.directory, "certificate: ordered");
            // What was said to an earlier question is no answer to this one.
            let _ = asked.take();
            match self.order(&account, &mut looks[at]).await {
                Ok(()) => {}
                Err(failure) if failure.of_all => {
                    return self.all_failed(&mut looks[at..], &failure, asked.take());
                }
                Err(failure) => self.failed(&mut looks[at], &failure, asked.take()),
            }
            self.publish(looks, None);
        }
    }

    /// What is due would fail alike.
    fn all_failed(&self, looks: &mut [Look], failure: &Failure, asked: Option<i64>) {
        if failure.account_gone
            && let Err(error) = self.store.forget_account()
        {
            tracing::error!(%error, "the account that the authority does not know cannot be removed");
        }
        for look in looks.iter_mut().filter(|look| look.next_order() <= now()) {
            self.failed(look, failure, asked);
        }
    }

    /// The account, which is made if there is none.
    async fn account(&self, asked: &Asked) -> Result<Account, Failure> {
        let https = Https::new(&self.role.tls, asked.clone())
            .map_err(|fault| Failure::unreachable(fault.to_string()))?;
        let builder = Account::builder_with_http(Box::new(https));
        let contact = &self.role.contact;
        let named: Vec<&str> = contact.iter().map(String::as_str).collect();
        let json =
            |error: serde_json::Error| Failure::unreachable(format!("the store: account.json: {error}"));
        if let Some(mut kept) = self.store.account()? {
            let credentials: AccountCredentials =
                serde_json::from_value(kept.credentials.clone()).map_err(json)?;
            let account = builder.from_credentials(credentials).await?;
            if kept.contact != *contact {
                account.update_contacts(&named).await?;
                kept.contact.clone_from(contact);
                self.store.set_account(&kept)?;
            }
            return Ok(account);
        }
        let new = NewAccount { contact: &named, terms_of_service_agreed: true, only_return_existing: false };
        let (account, credentials) = builder.create(&new, self.role.directory.clone(), None).await?;
        let credentials = serde_json::to_value(credentials).map_err(json)?;
        self.store.set_account(&store::Account { contact: contact.clone(), credentials })?;
        tracing::info!(account = account.id(), "certificate authority: account created");
        Ok(account)
    }

    /// When the authority wants a certificate renewed, if it is time to ask. No answer is no failure: our own rule holds.
    async fn ask_for_window(&self, account: &Account, look: &mut Look) {
        let Some(held) = &look.held else { return };
        if look.wanted || next_look(held, &look.state).is_none_or(|at| at > now()) {
            return;
        }
        let Ok(id) = CertificateIdentifier::try_from(&held.certificate) else { return };
        let (span, pause) = match account.renewal_info(&id).await {
            Ok((info, pause)) => {
                let window = info.suggested_window;
                let span = (window.start.unix_timestamp(), window.end.unix_timestamp());
                (Some(span), i64::try_from(pause.as_secs()).unwrap_or(i64::MAX))
            }
            Err(error) => {
                tracing::debug!(host = look.host, %error, "the authority says nothing of when to renew");
                (look.state.window.as_ref().and_then(|window| window.span), *WINDOW_S.end())
            }
        };
        let look_at = now() + pause.clamp(*WINDOW_S.start(), *WINDOW_S.end());
        look.state.window = Some(Window { span, look_at });
        self.note(look);
    }

    async fn order(&self, account: &Account, look: &mut Look) -> Result<(), Failure> {
        let held = look.held.clone();
        let replaces = held.as_ref().and_then(|held| CertificateIdentifier::try_from(&held.certificate).ok());
        order::order(account, &self.store, &look.host, &mut look.state, replaces).await?;
        look.state = State { issued_at: now(), ..State::default() };
        look.wanted = false;
        self.store.set_state(&look.host, &look.state)?;
        self.store.unwant(&look.host)?;
        *look = self.look_at(&look.host);
        self.switch.renew_certificates();
        self.switch.acme_ordered(true);
        let not_after = look.held.as_ref().map(|held| held.not_after);
        tracing::info!(host = look.host, not_after, "certificate: issued");
        Ok(())
    }

    fn failed(&self, look: &mut Look, failure: &Failure, asked: Option<i64>) {
        let (now, state) = (now(), &mut look.state);
        state.failures = state.failures.saturating_add(1);
        state.error = Some(failure.what.chars().take(ERROR_CHARS_MAX).collect());
        state.retry_at = retry_at(&look.host, now, state.failures, failure.fault, asked);
        look.wanted = false;
        self.note(look);
        if let Err(error) = self.store.unwant(&look.host) {
            tracing::error!(%error, "the store of certificates cannot be written");
        }
        self.switch.acme_ordered(false);
        let (error, again_in_s) = (&failure.what, look.state.retry_at - now);
        let reached = failure.fault != Fault::Unreachable;
        tracing::warn!(
            host = look.host,
            error,
            failures = look.state.failures,
            again_in_s,
            "{}",
            if reached {
                "a certificate was refused"
            } else {
                "the authority could not be asked for a certificate"
            }
        );
    }

    fn note(&self, look: &Look) {
        if let Err(error) = self.store.set_state(&look.host, &look.state) {
            tracing::error!(host = look.host, %error, "the store of certificates cannot be written");
        }
    }
}

/// How long there is nothing to ask for.
fn idle(looks: &[Look]) -> Duration {
    let first = looks.iter().map(Look::next_question).min().unwrap_or(i64::MAX);
    let left = u64::try_from(first.saturating_sub(now())).unwrap_or(0);
    Duration::from_secs(left).min(LOOK)
}
