//! Tests of the hooks, with functions that stand in for Envoy's. `tests/envoy` has the tests with real Envoys.

#![expect(unsafe_code, reason = "calls the hooks as Envoy does")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "every block calls hooks with pointers that hooks have returned"
)]

mod fake;
mod prompts;

use crate::abi::{Buffer, CONTINUE};
use crate::hooks::{balancing::*, filters::*};
use fake::{Host, context, envoy, pointer};
use larder_core::{Arrival, Dispatcher, NodeSpec, PolicyKind, Request, RouteId, Settings, TargetId, Time};
use proptest::prelude::*;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

fn buffer(text: &[u8]) -> Buffer {
    Buffer { ptr: text.as_ptr().cast(), length: text.len() }
}

fn host(address: &str) -> Host {
    Host { address: address.to_owned(), weight: 1, healthy: true }
}

/// A cluster with its policy, its filter and a worker.
struct Worker {
    policy: *const c_void,
    filter: *const c_void,
    balancer: *const c_void,
}

impl Worker {
    /// Creates the worker of a cluster with these hosts. The cluster's name must be the test's own.
    fn new(cluster: &str, config: &str, hosts: &[&str]) -> Self {
        envoy(|envoy| {
            envoy.cluster = cluster.to_owned();
            envoy.hosts = vec![hosts.iter().map(|address| host(address)).collect()];
            envoy.request = request("/");
        });
        let filter = filter_config("larder");
        let policy = policy_config(config);
        assert!(!policy.is_null(), "{:?}", envoy(|envoy| envoy.log.clone()));
        let balancer = unsafe { envoy_dynamic_module_on_lb_new(policy, pointer()) };
        assert!(!balancer.is_null(), "{:?}", envoy(|envoy| envoy.log.clone()));
        Self { policy, filter, balancer }
    }

    /// Returns the address of the host that is chosen; `None` if the request is refused.
    fn choose(&self) -> Option<String> {
        self.choose_in(pointer())
    }

    /// Chooses a host in the context of a request.
    fn choose_in(&self, context: *mut c_void) -> Option<String> {
        let (mut priority, mut index) = (u32::MAX, u32::MAX);
        let chosen = unsafe {
            envoy_dynamic_module_on_lb_choose_host(
                pointer(),
                self.balancer,
                context,
                &raw mut priority,
                &raw mut index,
            )
        };
        let address = chosen.then(|| {
            let hosts = envoy(|envoy| envoy.healthy(priority as usize));
            hosts.get(index as usize).expect("an index in range").address.clone()
        });
        envoy(|envoy| envoy.upstream.clone_from(&address));
        address
    }

    /// Chooses a host for a path.
    fn choose_for(&self, path: &str) -> Option<String> {
        envoy(|envoy| envoy.request = request(path));
        self.choose()
    }

    /// Tells the worker that the hosts have changed.
    fn update(&self) {
        unsafe { envoy_dynamic_module_on_lb_on_host_membership_update(pointer(), self.balancer, 0, 0) };
    }

    /// Creates the filter of the attempt.
    fn start(&self) -> Attempt {
        let state = unsafe { envoy_dynamic_module_on_http_filter_new(self.filter, pointer()) };
        assert!(!state.is_null());
        unsafe { envoy_dynamic_module_on_http_filter_request_headers(pointer(), state, true) };
        Attempt(state)
    }

    /// Sends a request for a path, with a whole reply. Returns the address of the host.
    fn serve(&self, path: &str) -> Option<String> {
        let address = self.choose_for(path)?;
        self.start().reply(&[(":status", "200")], 10);
        Some(address)
    }

    /// Returns the load of all nodes.
    fn load() -> u64 {
        Self::sum("load")
    }

    /// Returns the sum of a number over all nodes.
    fn sum(number: &str) -> u64 {
        let (status, body) = crate::admin::reply("/status");
        assert_eq!(status, 200);
        let page: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let own = envoy(|envoy| envoy.cluster.clone());
        let clusters = page["clusters"].as_array().expect("clusters");
        let cluster = clusters.iter().find(|cluster| cluster["cluster"] == own).expect("the cluster");
        let nodes = cluster["nodes"].as_array().expect("nodes");
        nodes.iter().filter_map(|node| node[number].as_u64()).sum()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        unsafe { envoy_dynamic_module_on_lb_destroy(self.balancer) };
        unsafe { envoy_dynamic_module_on_lb_config_destroy(self.policy) };
        unsafe { envoy_dynamic_module_on_http_filter_config_destroy(self.filter) };
    }
}

/// The filter of an attempt.
struct Attempt(*const c_void);

impl Attempt {
    /// Passes a whole reply.
    fn reply(self, fields: &[(&str, &str)], body_bytes: usize) {
        envoy(|envoy| {
            envoy.reply =
                fields.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
            envoy.body_bytes = body_bytes;
        });
        let results = unsafe {
            [
                envoy_dynamic_module_on_http_filter_response_headers(pointer(), self.0, false),
                envoy_dynamic_module_on_http_filter_response_body(pointer(), self.0, true),
            ]
        };
        assert_eq!(results, [CONTINUE; 2]);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        unsafe { envoy_dynamic_module_on_http_filter_destroy(self.0) };
    }
}

fn request(path: &str) -> Vec<(String, Vec<u8>)> {
    let fields = [(":method", "GET"), (":authority", "tier.example"), (":path", path)];
    fields.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).into()
}

fn policy_config(config: &str) -> *const c_void {
    unsafe { envoy_dynamic_module_on_lb_config_new(pointer(), buffer(b"larder"), buffer(config.as_bytes())) }
}

fn filter_config(name: &str) -> *const c_void {
    unsafe {
        envoy_dynamic_module_on_http_filter_config_new(pointer(), buffer(name.as_bytes()), Buffer::EMPTY)
    }
}

#[test]
fn a_target_stays_at_its_host_and_metrics_tell_why() {
    let worker = Worker::new("stays", r#"{"policy": "lard"}"#, &["a:1", "b:1", "c:1"]);
    let first = worker.serve("/x").expect("a host");
    for _ in 0..10 {
        assert_eq!(worker.serve("/x").as_ref(), Some(&first));
    }
    let count = |name: &str| envoy(|envoy| envoy.metric(name));
    assert_eq!((count("larder.decisions_first"), count("larder.decisions_local")), (1, 10));
    assert_eq!((count("larder.replies"), count("larder.bytes")), (11, 110));
    assert_eq!(envoy(|envoy| envoy.metadata.last().cloned()), Some(("reason".into(), "local".into())));
    assert_eq!(Worker::load(), 0);
}

#[test]
fn the_last_cache_in_the_reply_counts_as_the_node() {
    let worker = Worker::new("caches", "{}", &["a:1"]);
    for field in ["origin; hit, node; fwd=uri-miss", "node; hit", "node; hit"] {
        worker.choose_for("/x").expect("a host");
        worker.start().reply(&[(":status", "200"), ("cache-status", "other"), ("cache-status", field)], 1);
    }
    let count = |name: &str| envoy(|envoy| envoy.metric(name));
    assert_eq!((count("larder.hits"), count("larder.misses")), (2, 1));
}

#[test]
fn an_attempt_that_does_not_begin_ends_before_the_next_decision() {
    let worker = Worker::new("unbegun", "{}", &["a:1"]);
    worker.choose().expect("a host");
    worker.choose().expect("a host");
    assert_eq!(Worker::load(), 1);
    let attempt = worker.start();
    assert_eq!((Worker::load(), envoy(|envoy| envoy.metric("larder.not_started"))), (1, 1));
    drop(attempt);
    assert_eq!(Worker::load(), 0);
    // Something else than the policy has chosen the host of this one.
    drop(worker.start());
    assert_eq!((Worker::load(), envoy(|envoy| envoy.metric("larder.bypassed"))), (0, 1));
}

#[test]
fn a_host_that_the_retry_policy_refuses_is_chosen_only_if_there_is_no_other() {
    let worker = Worker::new("retries", r#"{"policy": "lard"}"#, &["a:1", "b:1"]);
    let first = worker.serve("/x").expect("a host");
    envoy(|envoy| {
        envoy.selection_retries = 3;
        envoy.refused = vec![first.clone()];
    });
    let second = worker.serve("/x").expect("a host");
    assert_ne!(second, first);
    envoy(|envoy| envoy.refused = vec![first.clone(), second.clone()]);
    assert!(worker.serve("/x").is_some(), "a host is better than none");
    envoy(|envoy| envoy.selection_retries = 0);
    assert!(worker.serve("/x").is_some());
    assert_eq!(Worker::load(), 0);
}

#[test]
fn hosts_that_changed_without_a_word_are_noticed() {
    let worker = Worker::new("silent", r#"{"policy": "rr"}"#, &["a:1", "b:1", "c:1"]);
    worker.serve("/x").expect("a host");
    envoy(|envoy| {
        envoy.hosts[0].remove(0);
    });
    for _ in 0..6 {
        let chosen = worker.serve("/x").expect("a host");
        assert!(["b:1", "c:1"].contains(&&*chosen), "{chosen}");
    }
    worker.update();
    envoy(|envoy| envoy.hosts[0].clear());
    assert_eq!(worker.serve("/x"), None, "there is no host");
    worker.update();
    assert_eq!(worker.serve("/x"), None);
    assert_eq!(Worker::load(), 0);
}

#[test]
fn a_worker_that_is_behind_chooses_a_host_that_it_has() {
    let hosts = ["a:1", "b:1"];
    let worker = Worker::new("behind", r#"{"policy": "rr"}"#, &hosts);
    // The other worker has one more host, and has lost one.
    let other = std::thread::spawn(|| {
        let worker = Worker::new("behind", r#"{"policy": "rr"}"#, &["b:1", "c:1"]);
        (0..4).map(|_| worker.serve("/x").expect("a host")).collect::<Vec<_>>()
    });
    assert_eq!(other.join().expect("a worker"), ["b:1"; 4], "the other hosts are not everyone's");
    for _ in 0..4 {
        assert!(hosts.contains(&&*worker.serve("/x").expect("a host")));
    }
}

#[test]
fn a_connection_without_a_request_is_refused() {
    let worker = Worker::new("tcp", "{}", &["a:1"]);
    envoy(|envoy| envoy.request.clear());
    assert_eq!(worker.choose(), None);
    let mut result = (0, 0);
    let chosen = unsafe {
        envoy_dynamic_module_on_lb_choose_host(
            pointer(),
            worker.balancer,
            ptr::null_mut(),
            &raw mut result.0,
            &raw mut result.1,
        )
    };
    assert!(!chosen);
    assert!(envoy(|envoy| envoy.log.iter().any(|line| line.contains("larder balances HTTP requests"))));
}

#[test]
fn a_second_part_of_a_cluster_in_a_thread_is_refused() {
    let worker = Worker::new("subset", "{}", &["a:1"]);
    assert!(worker.serve("/x").is_some());
    assert!(unsafe { envoy_dynamic_module_on_lb_new(worker.policy, pointer()) }.is_null());
    assert!(envoy(|envoy| envoy.log.iter().any(|line| line.contains("splits the cluster"))));
    assert_eq!(worker.serve("/x"), None, "no part of the cluster is served");
}

#[test]
fn a_cluster_without_the_filter_is_refused_until_it_has_one() {
    let worker = Worker::new("unfiltered", "{}", &["a:1"]);
    let served = (0..1_000).filter(|_| worker.choose().is_some()).count();
    assert!((65..90).contains(&served), "{served}");
    assert!(envoy(|envoy| envoy
        .log
        .iter()
        .any(|line| line.contains("the policy needs the HTTP filter larder"))));
    // Requests that probe find the filter.
    let found = (0..100).find(|_| worker.serve("/x").is_some());
    assert!(found.is_some());
    assert!((0..100).all(|_| worker.serve("/x").is_some()));
}

#[test]
fn a_host_for_which_there_is_no_room_is_better_than_none() {
    let worker = Worker::new("last", r#"{"limits": {"nodes_max": 1}}"#, &["a:1", "b:1"]);
    envoy(|envoy| envoy.hosts[0][0].healthy = false);
    worker.update();
    assert_eq!(worker.choose().as_deref(), Some("b:1"));
    assert_eq!(envoy(|envoy| envoy.metric("larder.fallback")), 1);
    drop(worker.start());
    assert_eq!((Worker::load(), envoy(|envoy| envoy.metric("larder.bypassed"))), (0, 1));
}

#[test]
fn a_filter_does_not_take_the_decision_of_another_request() {
    let worker = Worker::new("other", "{}", &["a:1"]);
    worker.choose().expect("a host");
    envoy(|envoy| envoy.upstream = Some("elsewhere:1".to_owned()));
    let attempt = worker.start();
    assert_eq!((Worker::load(), envoy(|envoy| envoy.metric("larder.bypassed"))), (0, 1));
    attempt.reply(&[(":status", "200")], 1);
    assert_eq!(envoy(|envoy| envoy.metric("larder.replies")), 0);
}

#[test]
fn hosts_beyond_the_limit_wait_until_there_is_room() {
    let worker =
        Worker::new("room", r#"{"policy": "rr", "limits": {"nodes_max": 2}}"#, &["a:1", "b:1", "c:1"]);
    let chosen = |worker: &Worker| -> Vec<String> {
        let mut chosen: Vec<String> = (0..6).map(|_| worker.serve("/x").expect("a host")).collect();
        chosen.sort();
        chosen.dedup();
        chosen
    };
    assert_eq!(chosen(&worker), ["a:1", "b:1"]);
    // The place of a node is free once its last request has ended.
    let attempts: Vec<Attempt> = (0..2).filter_map(|_| worker.choose().map(|_| worker.start())).collect();
    envoy(|envoy| {
        envoy.hosts[0].remove(0);
    });
    worker.update();
    assert_eq!(chosen(&worker), ["b:1"]);
    drop(attempts);
    worker.update();
    assert_eq!(chosen(&worker), ["b:1", "c:1"]);
}

#[test]
fn a_host_is_chosen_while_all_hosts_are_being_replaced() {
    let worker = Worker::new("swapped", r#"{"policy": "lard"}"#, &["a:1", "b:1"]);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let worker = Worker::new("swapped", r#"{"policy": "lard"}"#, &["c:1", "d:1"]);
            (0..20).map(|turn| worker.serve(&format!("/{turn}"))).collect::<Vec<_>>()
        });
        let served = other.join().expect("a worker");
        assert!(served.iter().flatten().all(|host| ["c:1", "d:1"].contains(&host.as_str())), "{served:?}");
        assert_eq!(served.iter().flatten().count(), 20);
    });
    assert!((0..20).all(|turn| worker.serve(&format!("/{turn}")).is_some()));
}

/// When a cluster is changed, all workers may have no hosts for a moment.
#[test]
fn nodes_stay_while_no_worker_has_hosts() {
    let worker = Worker::new("changed", "{}", &["a:1", "b:1"]);
    (0..3).for_each(|_| _ = worker.serve("/x").expect("a host"));
    let hosts = envoy(|envoy| std::mem::take(&mut envoy.hosts[0]));
    worker.update();
    assert_eq!(worker.choose(), None);
    envoy(|envoy| envoy.hosts[0] = hosts);
    worker.update();
    worker.serve("/x").expect("a host");
    assert_eq!((Worker::sum("replies"), Worker::load()), (4, 0));
}

#[test]
fn null_pointers_and_unknown_names_are_refused() {
    let null = ptr::null();
    assert!(unsafe { envoy_dynamic_module_on_lb_new(null, pointer()) }.is_null());
    let mut result = (0, 0);
    assert!(!unsafe {
        envoy_dynamic_module_on_lb_choose_host(
            pointer(),
            null,
            pointer(),
            &raw mut result.0,
            &raw mut result.1,
        )
    });
    unsafe {
        envoy_dynamic_module_on_lb_on_host_membership_update(pointer(), null, 1, 1);
        envoy_dynamic_module_on_lb_destroy(null);
        envoy_dynamic_module_on_lb_config_destroy(null);
        envoy_dynamic_module_on_http_filter_config_destroy(null);
        envoy_dynamic_module_on_http_filter_destroy(null);
        assert!(envoy_dynamic_module_on_http_filter_new(null, pointer()).is_null());
        assert_eq!(envoy_dynamic_module_on_http_filter_response_headers(pointer(), null, true), CONTINUE);
        assert_eq!(envoy_dynamic_module_on_http_filter_request_body(pointer(), null, true), CONTINUE);
        assert_eq!(envoy_dynamic_module_on_http_filter_request_trailers(pointer(), null), CONTINUE);
        let details = buffer(b"x");
        assert_eq!(
            envoy_dynamic_module_on_http_filter_local_reply(pointer(), null, 503, details, false),
            CONTINUE
        );
    }
    assert!(filter_config("lader").is_null());
    assert!(
        unsafe { envoy_dynamic_module_on_lb_config_new(pointer(), buffer(b"x"), Buffer::EMPTY) }.is_null()
    );
    assert!(envoy(|envoy| envoy.log.iter().any(|line| line.contains("lb_policy_name is 'x': write larder"))));
}

#[test]
fn a_panic_fails_the_call_and_is_logged() {
    assert_eq!(crate::hooks::guard("on_test", 7, || -> i32 { std::panic::panic_any("the cause") }), 7);
    assert!(envoy(|envoy| envoy
        .log
        .iter()
        .any(|line| line.ends_with("bug in larder, in on_test: the cause"))));
}

#[test]
fn the_admin_filter_replies_with_json() {
    let worker =
        Worker::new("shown", r#"{"policy": "lard", "key": "{path}|{header:X-Size}"}"#, &["a:1", "b:1"]);
    let chosen = worker.serve("/x?y").expect("a host");
    let ask = |path: &str| {
        let (status, body) = crate::admin::reply(path);
        (status, serde_json::from_str::<serde_json::Value>(&body).expect("JSON"))
    };
    let (status, explained) = ask("/explain?cluster=shown&target=tier.example/x");
    assert_eq!((status, &explained["node"]), (200, &serde_json::json!(chosen)));
    let (_, other) = ask("/explain?cluster=shown&target=tier.example/x&header=X-Size:%20big");
    assert_eq!((&other["key"], &other["known"]), (&"/x|big".into(), &false.into()));
    assert_eq!(ask("/explain?cluster=shown").0, 400);
    assert_eq!(ask("/explain?cluster=none&target=h/").0, 404);
    assert_eq!(ask("/").0, 404);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Hosts come, go and fail, replies are whole, cut or missing: a chosen host is healthy, and every attempt ends.
    #[test]
    fn any_sequence_of_events_ends_every_request(
        policy in prop::sample::select(vec!["lard-r", "lard-cost", "bounded", "rr", "p2c", "peak-ewma"]),
        events in prop::collection::vec((0u8..6, 0usize..6, any::<u8>()), 1..80),
    ) {
        let config = format!(r#"{{"policy": "{policy}", "limits": {{"nodes_max": 64}}}}"#);
        let worker = Worker::new("random", &config, &["0:1", "1:1"]);
        let mut attempts = Vec::new();
        for (event, which, detail) in events {
            match event {
                0 => envoy(|envoy| {
                    let known = envoy.hosts[0].iter().position(|host| host.address == format!("{which}:1"));
                    match known {
                        Some(at) if detail % 2 == 0 => {
                            envoy.hosts[0].remove(at);
                        }
                        Some(at) => {
                            envoy.hosts[0][at].healthy ^= true;
                            envoy.hosts[0][at].weight = u32::from(detail);
                        }
                        None => envoy.hosts[0].push(host(&format!("{which}:1"))),
                    }
                }),
                1 => worker.update(),
                2 | 3 => {
                    envoy(|envoy| {
                        envoy.selection_retries = u32::from(detail % 4);
                        envoy.refused = vec![format!("{which}:1")];
                    });
                    if worker.choose_for(&format!("/{}", detail % 16)).is_some() && detail < 250 {
                        attempts.push(worker.start());
                    }
                }
                4 if !attempts.is_empty() => {
                    let attempt = attempts.swap_remove(which % attempts.len());
                    attempt.reply(&[(":status", "200"), ("cache-status", "n;hit")], usize::from(detail));
                }
                _ => attempts.truncate(attempts.len().saturating_sub(which)),
            }
        }
        drop(attempts);
        envoy(|envoy| envoy.hosts = vec![vec![host("0:1")]]);
        worker.update();
        prop_assert_eq!(worker.serve("/end"), Some("0:1".to_owned()));
        prop_assert_eq!(Worker::load(), 0);
    }

    /// The module decides as the dispatcher of a switch with the same nodes does.
    #[test]
    fn decisions_are_those_of_the_dispatcher(
        policy in prop::sample::select(vec![PolicyKind::LardR, PolicyKind::Lard, PolicyKind::Hash, PolicyKind::Rr]),
        targets in prop::collection::vec(0u8..20, 1..100),
    ) {
        let names = ["a:1", "b:1", "c:1"];
        // A cluster with a name that was used before may continue with what the one before has learned.
        static CASES: AtomicUsize = AtomicUsize::new(0);
        let cluster = format!("equal {}", CASES.fetch_add(1, Ordering::Relaxed));
        let worker = Worker::new(&cluster, &format!(r#"{{"policy": "{policy}"}}"#), &names);
        let nodes = names.map(NodeSpec::named);
        let alone = Dispatcher::new(Settings { policy, ..Settings::default() }, &nodes).expect("settings");
        for target in targets {
            let path = format!("/{target}");
            let key = format!("tier.example{path}");
            let arrival = alone.arrive(Time::ZERO, Request::new(TargetId::of(key.as_bytes())));
            let Arrival::Start(decision) = arrival else { panic!("no start: {arrival:?}") };
            let expected = alone.nodes().name(decision.node).to_string();
            alone.try_finish_on(Time::ZERO, RouteId::DEFAULT, decision.node, &mut Vec::new());
            prop_assert_eq!(worker.serve(&path), Some(expected));
        }
    }
}
