//! An upstream with larder's policies: its config, its shared memory, and its servers as a worker sees them.

use super::context::{context_index, tag};
use super::{ERROR, OK, bytes, guard, ngx_int_t, sys};
use crate::config::PolicyConfig;
use crate::log;
use crate::shared::Shared;
use crate::state::Server;
use crate::zone::Zone;
use larder_core::Time;
use larder_embed::state_file::nanos_since_1970;
use larder_embed::{NodeHandle, relative_weight};
use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

/// The shortest time between two readings of the nodes of an upstream.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// The config of the module for all upstreams.
#[derive(Default)]
pub(super) struct MainConf {
    pub(super) upstreams: Vec<NonNull<Upstream>>,
}

/// The config of the module for one upstream.
#[derive(Default)]
pub(super) struct ServerConf {
    pub(super) upstream: Option<NonNull<Upstream>>,
}

/// An upstream.
pub(super) struct Upstream {
    name: String,
    pub(super) config: Arc<PolicyConfig>,
    pub(super) key: sys::ngx_http_complex_value_t,
    conf: *mut sys::ngx_http_upstream_srv_conf_t,
    servers: OnceCell<Vec<Server>>,
    shared: OnceCell<Shared>,
    places: RefCell<Places>,
}

/// The servers of an upstream in nginx's lists, by the slots of their nodes.
#[derive(Default)]
struct Places {
    epoch: u64,
    read_at: Time,
    slots: Vec<Option<Place>>,
}

/// A server in nginx's lists.
#[derive(Clone, Copy)]
pub(super) struct Place {
    node: NodeHandle,
    pub(super) peer: NonNull<sys::ngx_http_upstream_rr_peer_t>,
    /// The list, and the position there.
    pub(super) peers: NonNull<sys::ngx_http_upstream_rr_peers_t>,
    pub(super) index: usize,
    pub(super) is_backup: bool,
}

impl Upstream {
    pub(super) fn new(
        config: PolicyConfig,
        key: sys::ngx_http_complex_value_t,
        conf: NonNull<sys::ngx_http_upstream_srv_conf_t>,
    ) -> Self {
        let conf = conf.as_ptr();
        // SAFETY: the config of an upstream lives as long as its cycle, and so does its name.
        let name = unsafe { bytes((*conf).host) };
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            config: Arc::new(config),
            key,
            conf,
            servers: OnceCell::new(),
            shared: OnceCell::new(),
            places: RefCell::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the shared state; `None` as long as nginx has not mapped it.
    pub(super) fn shared(&self) -> Option<&Shared> {
        self.shared.get()
    }

    /// Takes the servers, when nginx has read all of them. The text of an error names the remedy.
    pub(super) fn set_servers(&self) -> Result<(), String> {
        let servers = self.read_servers();
        let nodes_max = usize::from(self.config.settings.nodes_max);
        if servers.len() > nodes_max {
            return Err(format!(
                "{} servers are more than limits.nodes_max = {nodes_max}: raise it in the file of config=",
                servers.len()
            ));
        }
        let mut names = HashSet::new();
        if let Some(twice) = servers.iter().find(|server| !names.insert(server.name.as_str())) {
            return Err(format!(
                "two servers have the address {}: larder needs each address once",
                twice.name
            ));
        }
        let _ = self.servers.set(servers);
        Ok(())
    }

    /// Returns whether nginx has asked for the servers, which it does if no other method is used.
    pub(super) fn has_servers(&self) -> bool {
        self.servers.get().is_some()
    }

    /// Returns the servers in nginx's lists, ordinary ones first.
    fn read_servers(&self) -> Vec<Server> {
        let weight = |peer: &sys::ngx_http_upstream_rr_peer_t| u32::try_from(peer.weight).unwrap_or(1).max(1);
        let peers = self.peers();
        let read = |(_, peer): &(Position, NonNull<sys::ngx_http_upstream_rr_peer_t>)| {
            // SAFETY: the servers live as long as the upstream.
            weight(unsafe { peer.as_ref() })
        };
        let heaviest = peers.iter().map(read).max().unwrap_or(1);
        let server = |(place, peer): &(Position, NonNull<sys::ngx_http_upstream_rr_peer_t>)| {
            // SAFETY: as above.
            let peer = unsafe { peer.as_ref() };
            Server {
                name: name(peer),
                weight: relative_weight(weight(peer), heaviest),
                backup: place.is_backup,
                down: peer.down != 0,
            }
        };
        peers.iter().map(server).collect()
    }

    /// Returns nginx's servers with their places.
    fn peers(&self) -> Vec<(Position, NonNull<sys::ngx_http_upstream_rr_peer_t>)> {
        let mut found = Vec::new();
        let mut list = NonNull::new(self.first_list());
        let mut is_backup = false;
        while let Some(peers) = list {
            // SAFETY: nginx's lists live as long as the upstream.
            let mut next = unsafe { peers.as_ref() }.peer;
            let mut index = 0;
            while let Some(peer) = NonNull::new(next) {
                found.push((Position { peers, index, is_backup }, peer));
                index += 1;
                // SAFETY: as above.
                next = unsafe { peer.as_ref() }.next;
            }
            if is_backup {
                break;
            }
            is_backup = true;
            // SAFETY: as above.
            list = NonNull::new(unsafe { peers.as_ref() }.next);
        }
        found
    }

    /// Returns nginx's list of the ordinary servers, which `zone` moves to shared memory.
    pub(super) fn first_list(&self) -> *mut sys::ngx_http_upstream_rr_peers_t {
        // SAFETY: the config of the upstream lives as long as this value.
        unsafe { (*self.conf).peer.data }.cast()
    }

    /// Starts the upstream in a worker.
    pub(super) fn start(&self) {
        let Some(shared) = self.shared() else { return };
        if let Err(error) = shared.join() {
            log::error(&format!("upstream {}: {error}", self.name));
        }
    }

    /// Returns the place of a node; `None` if this process does not have the server.
    pub(super) fn place(&self, now: Time, epoch: u64, node: NodeHandle) -> Option<Place> {
        let mut places = self.places.borrow_mut();
        let find = |places: &Places| {
            let place = (*places.slots.get(usize::from(node.slot()))?)?;
            (places.epoch == epoch && place.node == node).then_some(place)
        };
        if let Some(place) = find(&places) {
            return Some(place);
        }
        if places.epoch == epoch && now.since(places.read_at) < REFRESH_INTERVAL {
            return None;
        }
        *places = self.read_places(now)?;
        find(&places)
    }

    fn read_places(&self, now: Time) -> Option<Places> {
        let peers = self.peers();
        // SAFETY: the servers live as long as the upstream.
        let names: Vec<String> = peers.iter().map(|(_, peer)| name(unsafe { peer.as_ref() })).collect();
        let (epoch, nodes) = match self.shared()?.nodes(names.iter().map(String::as_str)) {
            Ok(nodes) => nodes,
            Err(error) => {
                log::limited_error!("upstream {}: {error}", self.name);
                return None;
            }
        };
        let mut slots = Vec::new();
        for ((Position { peers, index, is_backup }, peer), node) in peers.into_iter().zip(nodes) {
            let Some(node) = node else { continue };
            let slot = usize::from(node.slot());
            if slots.len() <= slot {
                slots.resize(slot + 1, None);
            }
            slots[slot] = Some(Place { node, peer, peers, index, is_backup });
        }
        Some(Places { epoch, read_at: now, slots })
    }
}

/// The position of a server in nginx's lists.
#[derive(Clone, Copy)]
struct Position {
    peers: NonNull<sys::ngx_http_upstream_rr_peers_t>,
    index: usize,
    is_backup: bool,
}

/// Returns the address of a server, which is the name of its node.
fn name(peer: &sys::ngx_http_upstream_rr_peer_t) -> String {
    // SAFETY: the text lives as long as the server.
    String::from_utf8_lossy(unsafe { bytes(peer.name) }).into_owned()
}

/// Maps the shared memory of an upstream. `data` is the upstream of the previous cycle, if its memory is used further.
pub(super) unsafe extern "C" fn init_zone(zone: *mut sys::ngx_shm_zone_t, data: *mut c_void) -> ngx_int_t {
    guard("init_zone", ERROR, || {
        // SAFETY: nginx passes the zone that the directive has created.
        let Some(zone) = (unsafe { zone.as_ref() }) else { return ERROR };
        // SAFETY: the directive has stored the upstream there.
        let Some(upstream) = (unsafe { zone.data.cast::<Upstream>().as_ref() }) else { return ERROR };
        // SAFETY: the upstream of the previous cycle lives until this cycle is in use.
        let before = unsafe { data.cast::<Upstream>().as_ref() }.and_then(Upstream::shared);
        let memory = match before {
            Some(before) => before.zone(),
            None => match create_zone(zone, upstream) {
                Ok(zone) => zone,
                Err(error) => {
                    log::error(&format!("upstream {}: cannot use the shared memory: {error}", upstream.name));
                    return ERROR;
                }
            },
        };
        let servers = upstream.servers.get().cloned().unwrap_or_default();
        let shared = Shared::new(memory, &upstream.name, &upstream.config, servers);
        if before.is_none() {
            inherit(zone, &shared);
        }
        let _ = upstream.shared.set(shared);
        OK
    })
}

fn create_zone(zone: &sys::ngx_shm_zone_t, upstream: &Upstream) -> std::io::Result<Zone> {
    let plan = &upstream.config.plan;
    // SAFETY: nginx has put a slab pool at the beginning of the memory.
    let memory = unsafe { sys::ngx_slab_alloc(zone.shm.addr.cast(), plan.memory) };
    let memory = NonNull::new(memory.cast::<u8>()).ok_or_else(|| std::io::Error::other("it is too small"))?;
    // SAFETY: nginx has allocated so many bytes in memory that all workers share, at the same address.
    unsafe { Zone::create(memory, plan, nanos_since_1970()) }
}

/// Takes the learned state from the memory of the previous cycle, if the size has changed and nginx therefore uses new memory.
fn inherit(zone: &sys::ngx_shm_zone_t, shared: &Shared) {
    // SAFETY: nginx has a cycle, the previous one, while it reads a config.
    let Some(cycle) = (unsafe { sys::ngx_cycle.as_ref() }) else { return };
    // SAFETY: the name lives as long as the cycle.
    let name = unsafe { bytes(zone.shm.name) };
    let mut part: *const sys::ngx_list_part_t = &raw const cycle.shared_memory.part;
    // SAFETY: nginx's list is valid.
    while let Some(list) = unsafe { part.as_ref() } {
        for index in 0..list.nelts {
            // SAFETY: the part has so many elements.
            let old = unsafe { &*list.elts.cast::<sys::ngx_shm_zone_t>().add(index) };
            // SAFETY: the name lives as long as the cycle. A zone with this tag has an upstream of this module.
            let is_same = old.tag == tag() && unsafe { bytes(old.shm.name) } == name && !ptr::eq(old, zone);
            // SAFETY: as above.
            let before = if is_same { unsafe { old.data.cast::<Upstream>().as_ref() } } else { None };
            if let Some(Ok(Some(learned))) = before.and_then(Upstream::shared).map(Shared::learned) {
                match shared.inherit(&learned) {
                    Ok(true) => {}
                    Ok(false) => log::warn("the new memory has no room for the learned state"),
                    Err(error) => log::error(&format!("cannot keep the learned state: {error}")),
                }
            }
        }
        part = list.next;
    }
}

/// Returns the upstreams of a cycle.
///
/// # Safety
/// The cycle is valid during `'a`.
pub(super) unsafe fn of_cycle<'a>(cycle: *mut sys::ngx_cycle_t) -> Vec<&'a Upstream> {
    // SAFETY: nginx writes the number of the module before it reads a config.
    let http = unsafe { sys::ngx_http_module.index };
    // SAFETY: the list has a place for each module.
    let context = unsafe { *(*cycle).conf_ctx.add(http) }.cast::<sys::ngx_http_conf_ctx_t>();
    // SAFETY: the pointer is null if there is no http block.
    let Some(context) = (unsafe { context.as_ref() }) else { return Vec::new() };
    // SAFETY: as the caller promises.
    unsafe { of_context(context) }
}

/// Returns the upstreams of a config.
///
/// # Safety
/// The context is that of the block `http`, and its cycle is valid during `'a`.
pub(super) unsafe fn of_context<'a>(context: &sys::ngx_http_conf_ctx_t) -> Vec<&'a Upstream> {
    // SAFETY: the list has a place for each module of HTTP.
    let main = unsafe { *context.main_conf.add(context_index()) }.cast::<MainConf>();
    // SAFETY: `create_main_conf` has made it.
    let Some(main) = (unsafe { main.as_ref() }) else { return Vec::new() };
    // SAFETY: the upstreams live as long as the cycle.
    main.upstreams.iter().map(|upstream| unsafe { upstream.as_ref() }).collect()
}

/// Returns the module's part of an upstream.
pub(super) fn upstream_of(conf: &sys::ngx_http_upstream_srv_conf_t) -> Option<&Upstream> {
    // SAFETY: an upstream has a list with a place for each module of HTTP.
    let conf = unsafe { *conf.srv_conf.add(context_index()) }.cast::<ServerConf>();
    // SAFETY: `create_server_conf` has made it.
    let upstream = unsafe { conf.as_ref() }?.upstream?;
    // SAFETY: an upstream lives as long as its cycle.
    Some(unsafe { upstream.as_ref() })
}
