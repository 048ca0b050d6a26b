//! The record of a client's connection, which its requests share.

mod in_flight;

pub(crate) use in_flight::InFlight;

use crate::contents::Later;
use crate::cooperate::Departure;
use crate::counts::Counters;
use crate::edge::Entered;
use crate::handover::{Bound, Life, Standing};
use crate::http::hop::REQUESTS;
use crate::origin::tunnel::{Opened, Upgradable};
use larder_kernel::FlowKey;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The record of a client's connection.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) counters: Arc<Counters>,
    /// A request has been read.
    used: AtomicBool,
    /// A switch has handed the connection over, and has decided by the first request alone.
    pub(crate) handed: Option<Later>,
    /// The addresses, if the connection can be handed over to a peer.
    flow: Option<FlowKey>,
    /// The address at the other end: the client's own if the connection was handed over.
    pub(crate) peer: Option<IpAddr>,
    /// The announced client and the state of TLS, if there are any.
    entered: Option<Arc<Entered>>,
    /// See [`Bound`]; of the next request.
    bound: Mutex<Bound>,
    /// The count of requests, if the connection can be handed over to a peer or was.
    life: Mutex<Option<Life>>,
    /// The connection leaves, with the request that is being handled.
    departure: Mutex<Option<Departure>>,
    departs: AtomicBool,
    /// The place where the connection becomes a tunnel to the origin.
    pub(crate) tunnel: Opened,
}

/// A connection's addresses and history when it comes.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// A switch has handed it over.
    pub(crate) handed: Option<Later>,
    /// It has had requests elsewhere.
    pub(crate) used: bool,
    /// Its addresses, if it can be handed over to a peer.
    pub(crate) flow: Option<FlowKey>,
    pub(crate) bound: Bound,
    pub(crate) life: Option<Life>,
    pub(crate) entered: Option<Arc<Entered>>,
    /// The address at its other end; `None` if the connection is gone.
    pub(crate) peer: Option<IpAddr>,
}

impl Shared {
    /// The record of a connection that has come.
    pub(crate) fn new(counters: Arc<Counters>, brought: Brought) -> Arc<Self> {
        let Brought { handed, used, flow, bound, life, entered, peer } = brought;
        Arc::new(Self {
            counters,
            handed,
            flow,
            entered,
            peer,
            bound: Mutex::new(bound),
            life: Mutex::new(life),
            departure: Mutex::default(),
            departs: AtomicBool::new(false),
            tunnel: Opened::default(),
            used: AtomicBool::new(used),
        })
    }

    /// Takes the decision about the request that has just been read, which counts from here on.
    pub(crate) fn take_bound(&self, parts: &mut http::request::Parts) -> Bound {
        let bound = std::mem::take(&mut *lock(&self.bound));
        let told = parts.headers.remove(REQUESTS);
        if let Some(life) = &mut *lock(&self.life) {
            life.brings(bound, parts, told.as_ref());
        }
        bound
    }

    /// The announced client and the state of TLS, if there are any.
    pub(crate) fn entered(&self) -> Option<&Entered> {
        self.entered.as_deref()
    }

    /// The announced client, or the address at the other end.
    pub(crate) fn sender(&self) -> Option<IpAddr> {
        self.entered().and_then(Entered::client).or(self.peer)
    }

    /// Whether a peer has handed the connection over with the request that has just been read.
    pub(crate) fn is_taken(&self) -> bool {
        *lock(&self.bound) == Bound::Taken
    }

    /// The count of requests, for whoever serves the connection from now on.
    pub(crate) fn take_life(&self) -> Option<Life> {
        lock(&self.life).take()
    }

    /// The state of the connection towards being handed over.
    pub(crate) fn standing(&self) -> Standing {
        let requests = lock(&self.life).as_ref().map_or(0, Life::requests);
        Standing { flow: self.flow, requests }
    }

    /// Has the connection handed over, with the request that is being handled: its handler ends here.
    pub(crate) async fn depart(&self, departure: Departure) -> std::convert::Infallible {
        *lock(&self.departure) = Some(departure);
        self.departs.store(true, Relaxed);
        std::future::pending().await
    }

    /// Whether the connection is to be handed over.
    pub(crate) fn departs(&self) -> bool {
        self.departs.load(Relaxed)
    }

    /// The departure, if the connection is to be handed over.
    pub(crate) fn take_departure(&self) -> Option<Departure> {
        lock(&self.departure).take()
    }

    /// Notes that a request has been read. Returns whether the connection has had one before.
    fn note_request(&self) -> bool {
        self.used.swap(true, Relaxed)
    }
}

impl Upgradable for Shared {
    fn opened(&self) -> &Opened {
        &self.tunnel
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
