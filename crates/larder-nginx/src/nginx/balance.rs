//! The balancing of a request: nginx asks for a server before each attempt, and tells the end of each attempt.

use super::context::context_index;
use super::reply::feedback;
use super::upstream::{Place, Upstream, upstream_of};
use super::{BUSY, ERROR, OK, bytes, guard, ngx_int_t, ngx_uint_t, sys};
use crate::log;
use crate::shared::{InFlight, Shared, seconds};
use crate::state::Verdict;
use crate::zone::ZoneError;
use larder_core::{Reason, TargetId};
use larder_embed::{NodeHandle, Outcome, Refusal};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The largest number of servers to which an attempt does not go because of earlier ones.
const EXCLUDE_MAX: usize = 8;

/// The balancing of a request. It is in the memory of the request, and is never dropped.
#[repr(C)]
pub(super) struct Balancing {
    /// nginx's own data. It is the first field, because nginx's functions get a pointer to it.
    round_robin: sys::ngx_http_upstream_rr_peer_data_t,
    request: *mut sys::ngx_http_request_t,
    upstream: *const Upstream,
    target: TargetId,
    /// Whether the request asks for a connection that lasts.
    lasting: bool,
    in_flight: Option<InFlight>,
    /// The number of the state to which the excluded nodes belong.
    epoch: u64,
    exclude: [Option<NodeHandle>; EXCLUDE_MAX],
    /// The server and the reason of the last decision, for variables.
    pub(super) node: sys::ngx_str_t,
    pub(super) reason: Option<Reason>,
    pub(super) is_fallback: bool,
}

/// Prepares the balancing of a request.
pub(super) unsafe extern "C" fn init_peer(
    request: *mut sys::ngx_http_request_t,
    conf: *mut sys::ngx_http_upstream_srv_conf_t,
) -> ngx_int_t {
    guard("init_peer", ERROR, || {
        // SAFETY: nginx passes valid pointers.
        let Some(upstream) = upstream_of(unsafe { &*conf }) else { return ERROR };
        // SAFETY: as above.
        let pool = unsafe { (*request).pool };
        // SAFETY: as above.
        let balancing = unsafe { sys::ngx_pcalloc(pool, size_of::<Balancing>()) }.cast::<Balancing>();
        if balancing.is_null() {
            return ERROR;
        }
        let Some((target, lasting)) = target(request, upstream) else { return ERROR };
        // SAFETY: all zeros is a valid value: nothing yet.
        let round_robin = unsafe { std::mem::zeroed() };
        let value = Balancing {
            round_robin,
            request,
            upstream,
            target,
            lasting,
            in_flight: None,
            epoch: 0,
            exclude: [None; EXCLUDE_MAX],
            node: sys::ngx_str_t { len: 0, data: ptr::null_mut() },
            reason: None,
            is_fallback: false,
        };
        // SAFETY: nginx has allocated so much memory, aligned for any type.
        unsafe { balancing.write(value) };
        // SAFETY: a request that is sent to an upstream has this part.
        let connection = unsafe { &mut (*(*request).upstream).peer };
        connection.data = balancing.cast();
        // SAFETY: nginx passes valid pointers. The function fills the data that the connection has.
        if unsafe { sys::ngx_http_upstream_init_round_robin_peer(request, conf) } != OK {
            return ERROR;
        }
        connection.get = Some(get);
        connection.free = Some(free);
        // SAFETY: a request has a place for each module of HTTP.
        unsafe { *(*request).ctx.add(context_index()) = balancing.cast() };
        OK
    })
}

/// Returns the target of a request, and whether the request asks for a connection that lasts.
fn target(request: *mut sys::ngx_http_request_t, upstream: &Upstream) -> Option<(TargetId, bool)> {
    let mut key = sys::ngx_str_t { len: 0, data: ptr::null_mut() };
    let value = (&raw const upstream.key).cast_mut();
    // SAFETY: nginx reads the compiled text, and writes the result.
    if unsafe { sys::ngx_http_complex_value(request, value, &raw mut key) } != OK {
        return None;
    }
    // SAFETY: the text lives as long as the request.
    let key = unsafe { bytes(key) };
    // SAFETY: nginx passes a valid request.
    let lasting = !unsafe { (*request).headers_in.upgrade }.is_null();
    Some((TargetId::of(key), lasting))
}

/// Chooses the server of an attempt.
unsafe extern "C" fn get(connection: *mut sys::ngx_peer_connection_t, data: *mut c_void) -> ngx_int_t {
    guard("get", ERROR, || {
        // SAFETY: nginx passes what `init_peer` has stored, and a valid connection. No one else uses them now.
        let (balancing, connection) = unsafe { (&mut *data.cast::<Balancing>(), &mut *connection) };
        balancing.choose(connection)
    })
}

/// Returns whether the server may have closed a kept connection before it saw the request. A timeout is a failure of the server.
fn may_be_stale(connection: &sys::ngx_peer_connection_t) -> bool {
    let is_kept = connection.cached() != 0;
    // SAFETY: the pointer is null, or nginx's connection.
    let Some(own) = (unsafe { connection.connection.as_ref() }) else { return is_kept };
    // SAFETY: a connection has both events.
    let (read, write) = unsafe { (&*own.read, &*own.write) };
    is_kept && read.timedout() == 0 && write.timedout() == 0
}

/// Ends an attempt.
unsafe extern "C" fn free(connection: *mut sys::ngx_peer_connection_t, data: *mut c_void, state: ngx_uint_t) {
    guard("free", (), || {
        // SAFETY: as in `get`.
        let balancing = unsafe { &mut *data.cast::<Balancing>() };
        let peer = balancing.round_robin.current;
        // SAFETY: nginx passes a valid connection.
        let is_kept = may_be_stale(unsafe { &*connection });
        // SAFETY: nginx's own data is the first field.
        unsafe { sys::ngx_http_upstream_free_round_robin_peer(connection, data, state) };
        if let Some(request) = balancing.in_flight.take() {
            // SAFETY: a server lives as long as its upstream.
            balancing.end(&request, (state, is_kept), unsafe { peer.as_ref() });
        }
    });
}

impl Balancing {
    fn upstream(&self) -> &'static Upstream {
        // SAFETY: an upstream lives as long as its cycle, and its requests do not live longer.
        unsafe { &*self.upstream }
    }

    fn choose(&mut self, connection: &mut sys::ngx_peer_connection_t) -> ngx_int_t {
        let upstream = self.upstream();
        let Some(shared) = upstream.shared() else { return self.fall_back(connection) };
        // Each round excludes a node.
        for _ in 0..2 * EXCLUDE_MAX {
            let now = crate::now();
            let exclude: Vec<NodeHandle> = self.exclude.into_iter().flatten().collect();
            let (outcome, epoch) =
                match shared.decide(now, (self.target, self.lasting), (self.epoch, &exclude)) {
                    Ok(Some(decided)) => decided,
                    Ok(None) => return self.fall_back(connection),
                    Err(error @ ZoneError::Panic(_)) => {
                        log::error(&format!("upstream {}: {error}", upstream.name()));
                        return ERROR;
                    }
                    Err(error) => {
                        log::limited_error!("upstream {}: {error}", upstream.name());
                        return self.fall_back(connection);
                    }
                };
            let Some(request) = Shared::in_flight(now, outcome, epoch) else {
                if outcome != Outcome::Refused(Refusal::Limit) {
                    return self.fall_back(connection);
                }
                log::limited_error!("upstream {}: admission.limit is reached", upstream.name());
                // SAFETY: nginx's lists live as long as the upstream. As its own methods do, name no server.
                connection.name = unsafe { (*upstream.first_list()).name };
                return BUSY;
            };
            let node = request.started.decision.node;
            let place = upstream.place(now, epoch, node);
            if let Some(place) = place.filter(|place| self.take(place, connection)) {
                self.in_flight = Some(request);
                self.reason = Some(request.started.decision.reason);
                self.is_fallback = false;
                // SAFETY: a server lives as long as its upstream.
                self.node = unsafe { place.peer.as_ref() }.name;
                return OK;
            }
            if let Err(error) = shared.done(now, &request, (None, Verdict::Unknown)) {
                log::limited_error!("upstream {}: {error}", upstream.name());
            }
            self.exclude(epoch, node);
        }
        self.fall_back(connection)
    }

    /// Notes that the request has become a connection of its own.
    pub(super) fn become_long_lived(&mut self) {
        let upstream = self.upstream();
        if let (Some(shared), Some(request)) = (upstream.shared(), &mut self.in_flight)
            && let Err(error) = shared.become_long_lived(crate::now(), request)
        {
            log::error(&format!("upstream {}: {error}", upstream.name()));
        }
    }

    /// Notes that later attempts do not go to a node. Beyond [`EXCLUDE_MAX`] nodes, the earliest is forgotten.
    fn exclude(&mut self, epoch: u64, node: NodeHandle) {
        if self.epoch != epoch {
            self.exclude = [None; EXCLUDE_MAX];
            self.epoch = epoch;
        }
        self.exclude.rotate_left(1);
        self.exclude[EXCLUDE_MAX - 1] = Some(node);
    }

    /// Takes a server for an attempt, as nginx's own methods do. Returns false if it has as many connections as it may have.
    fn take(&mut self, place: &Place, connection: &mut sys::ngx_peer_connection_t) -> bool {
        let _lock = Lock::write(place.peers.as_ptr());
        // SAFETY: a server lives as long as its upstream, and the lock keeps other workers away.
        let peer = unsafe { &mut *place.peer.as_ptr() };
        if peer.max_conns > 0 && peer.conns >= peer.max_conns {
            return false;
        }
        let data = &mut self.round_robin;
        data.peers = place.peers.as_ptr();
        data.current = peer;
        if !place.is_backup {
            let bits = usize::BITS as usize;
            // SAFETY: nginx's list of bits has one for each ordinary server.
            unsafe { *data.tried.add(place.index / bits) |= 1 << (place.index % bits) };
        }
        // SAFETY: nginx sets the variable at its start.
        let now = unsafe { (*sys::ngx_cached_time).sec };
        let is_marked = peer.max_fails > 0 && peer.fails >= peer.max_fails;
        // A success resets the failures that nginx has seen before the last check.
        if is_marked || now - peer.checked > peer.fail_timeout {
            peer.checked = now;
        }
        peer.conns += 1;
        connection.set_cached(0);
        connection.connection = ptr::null_mut();
        connection.sockaddr = peer.sockaddr;
        connection.socklen = peer.socklen;
        connection.name = &raw mut peer.name;
        true
    }

    /// Lets nginx choose: the dispatcher knows no server that this worker has.
    fn fall_back(&mut self, connection: &mut sys::ngx_peer_connection_t) -> ngx_int_t {
        let upstream = self.upstream();
        self.reason = None;
        self.is_fallback = true;
        self.round_robin.peers = upstream.first_list();
        if let Some(shared) = upstream.shared() {
            shared.zone().counters().fallback.fetch_add(1, Ordering::Relaxed);
        }
        let data = (&raw mut self.round_robin).cast();
        // SAFETY: both are valid, and the data is nginx's own.
        let result = unsafe { sys::ngx_http_upstream_get_round_robin_peer(connection, data) };
        // SAFETY: nginx has set the server that it has chosen.
        if let Some(peer) = unsafe { self.round_robin.current.as_ref() }.filter(|_| result == OK) {
            self.node = peer.name;
        }
        result
    }

    /// Tells the dispatcher the end of an attempt, whose connection may have been a kept one that the server had closed. `peer` is its server, after nginx has
    /// updated it.
    fn end(
        &mut self,
        request: &InFlight,
        (state, is_kept): (ngx_uint_t, bool),
        peer: Option<&sys::ngx_http_upstream_rr_peer_t>,
    ) {
        let now = crate::now();
        let has_failed = state & sys::NGX_PEER_FAILED as ngx_uint_t != 0;
        if state & (sys::NGX_PEER_FAILED | sys::NGX_PEER_NEXT) as ngx_uint_t != 0 {
            self.exclude(request.epoch(), request.started.decision.node);
        }
        // SAFETY: the request lives until its last attempt has ended.
        let mut feedback = unsafe { feedback(self.request, now.since(request.started.at), has_failed) };
        // The server has closed a kept connection while the request was on its way, which is no failure of the server.
        let is_stale = has_failed && is_kept && feedback.is_none_or(|feedback| feedback.first_byte.is_none());
        if is_stale {
            feedback = None;
        } else if request.started.decision.long_lived
            && let Some(feedback) = &mut feedback
        {
            // The time of a tunnel tells nothing about replies.
            feedback.elapsed = Duration::ZERO;
        }
        // SAFETY: nginx's lists live as long as the upstream. A single server is never marked as failed.
        let is_single = unsafe { self.round_robin.peers.as_ref() }.is_some_and(|peers| peers.single() != 0);
        let mark = peer.filter(|peer| !is_single && peer.max_fails > 0 && peer.fails >= peer.max_fails);
        let verdict = match (has_failed, mark, &feedback) {
            (true, Some(peer), _) if !is_stale => Verdict::Failed(seconds(peer.fail_timeout)),
            (false, _, Some(feedback)) if !feedback.failed => Verdict::Healthy,
            _ => Verdict::Unknown,
        };
        let upstream = self.upstream();
        let Some(shared) = upstream.shared() else { return };
        if let Err(error) = shared.done(now, request, (feedback.as_ref(), verdict)) {
            log::error(&format!("upstream {}: {error}", upstream.name()));
        }
    }
}

/// The lock of nginx's list of servers, which exists if the list is in shared memory.
struct Lock(*mut sys::ngx_http_upstream_rr_peers_t);

impl Lock {
    fn write(peers: *mut sys::ngx_http_upstream_rr_peers_t) -> Self {
        // SAFETY: nginx's lists live as long as the upstream.
        if !unsafe { (*peers).shpool }.is_null() {
            // SAFETY: as above.
            unsafe { sys::ngx_rwlock_wlock(&raw mut (*peers).rwlock) };
        }
        Self(peers)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: as in `write`.
        if !unsafe { (*self.0).shpool }.is_null() {
            // SAFETY: as above.
            unsafe { sys::ngx_rwlock_unlock(&raw mut (*self.0).rwlock) };
        }
    }
}
