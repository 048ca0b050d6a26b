//! One client cannot take what is for all, one bad node does not spoil what it is asked, and retries have a budget.

mod support;

use http::HeaderName;
use larder_switch::{ClientLimits, HealthConfig, NodeReloadState, OutlierConfig, RetryConfig};
use larder_testkit::{eventually_asked, take_time_async};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::{Act, Node, Running, config, eventually, ok};

#[tokio::test]
async fn a_client_that_asks_too_often_is_told_when_to_come_back() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    // So slow that the test cannot outlast it.
    config.clients = ClientLimits { rate_per_s: 1, burst: 3, ..ClientLimits::default() };
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(client.get("/").await.status);
    }
    // One more for each second that it took.
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses[..3] == [200; 3] && statuses.contains(&429) && served < 20, "{statuses:?}");
    assert_eq!(node.requests(), served);
    let refused = loop {
        let reply = client.get("/").await;
        if reply.status != 200 {
            break reply;
        }
    };
    assert_eq!(refused.field("x-larder-error"), Some("rate_limited"));
    assert_eq!(refused.field("retry-after"), Some("1"));
    assert_eq!(refused.field("connection"), None, "it may go on, later");
    assert!(switch.metric("larder_switch_failures_total{error=\"rate_limited\"} ") >= 1.0);
    assert_eq!(switch.metric("larder_switch_clients_known "), 1.0);
    switch.settles().await;
}

#[tokio::test]
async fn clients_are_told_apart_by_a_field_if_that_is_wished() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    let header = Some(HeaderName::from_static("x-api-key"));
    config.clients = ClientLimits { rate_per_s: 1, burst: 1, header, ..ClientLimits::default() };
    let switch = Running::start(config);
    let mut client = switch.client().await;
    for key in 0..50 {
        client.send(format!("GET / HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n\r\n")).await;
        assert_eq!(client.reply().await.status, 200);
    }
    assert_eq!(switch.metric("larder_switch_clients_known "), 50.0);
}

#[tokio::test]
async fn a_client_has_so_many_connections_and_no_more() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    config.clients = ClientLimits { connections_max: 2, ..ClientLimits::default() };
    let switch = Running::start(config);
    let (mut first, mut second) = (switch.client().await, switch.client().await);
    assert_eq!((first.get("/").await.status, second.get("/").await.status), (200, 200));
    let mut third = switch.client().await;
    let reply = third.reply().await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (429, Some("client_connections_full")));
    assert!(third.closes().await);
    drop(first);
    eventually_asked("the place of a client that left is free again", async || {
        let mut again = switch.client().await;
        again.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        again.try_reply().await.is_some_and(|reply| reply.status == 200).then_some(())
    })
    .await;
    assert_eq!(second.get("/").await.status, 200);
}

/// A node that answers 500 while told so.
async fn moody(name: &'static str) -> (Node, Arc<AtomicBool>) {
    let bad = Arc::new(AtomicBool::new(true));
    let mood = bad.clone();
    let node = Node::scripted(name, move |_| {
        Act::Reply(if mood.load(SeqCst) {
            b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_vec()
        } else {
            ok(name, name)
        })
    })
    .await;
    (node, bad)
}

fn up(switch: &Running, name: &str) -> bool {
    switch.metric(&format!("larder_switch_node_state{{node=\"{name}\",state=\"up\"}} ")) == 1.0
}

#[tokio::test]
async fn a_node_that_answers_errors_in_a_row_is_out_for_a_while() {
    let (bad, mood) = moody("bad").await;
    let good = Node::named("good").await;
    let mut config = config(&[&bad, &good]);
    // Longer than what follows takes on a busy machine.
    let time = Duration::from_secs(3);
    config.outliers = OutlierConfig { consecutive: 5, time, ..OutlierConfig::default() };
    let switch = Running::start(config);
    let mut client = switch.client().await;
    for number in 0..100 {
        client.get(&format!("/{number}")).await;
        if !up(&switch, "bad") {
            break;
        }
    }
    assert!(!up(&switch, "bad") && up(&switch, "good"));
    assert_eq!(bad.requests(), 5);
    for number in 0..20 {
        assert_eq!(client.get(&format!("/{number}")).await.status, 200);
    }
    mood.store(false, SeqCst);
    eventually("it is back", || up(&switch, "bad")).await;
    assert_eq!(switch.metric("larder_switch_ejections_total{node=\"bad\"} "), 1.0);
    assert_eq!(switch.metric("larder_switch_ejections_total{node=\"good\"} "), 0.0);
}

#[tokio::test]
async fn what_is_out_or_drains_stays_so_in_the_process_that_takes_over() {
    let (bad, mood) = moody("bad").await;
    let (good, leaves) = (Node::named("good").await, Node::named("leaves").await);
    let mut config = config(&[&bad, &good, &leaves]);
    config.outliers =
        OutlierConfig { consecutive: 2, time: Duration::from_secs(2), ..OutlierConfig::default() };
    let before = Running::start(config.clone());
    before.handle.drain("leaves").unwrap();
    let mut client = before.client().await;
    for number in 0..100 {
        client.get(&format!("/{number}")).await;
    }
    assert!(!up(&before, "bad"));
    let node_reload_states = before.handle.node_reload_states();
    let after = Running::start(config.clone());
    node_reload_states.iter().for_each(|standing| after.handle.restore_node_state(standing).unwrap());
    assert_eq!(after.handle.node_reload_states()[..2], node_reload_states[..2]);
    assert!(!up(&after, "bad") && up(&after, "good") && !up(&after, "leaves"));
    // Not later than the drain began there, by a clock that they share in life.
    let drains = |standing: &NodeReloadState| standing.drains_since_ns;
    let [then, now] = [&node_reload_states, &after.handle.node_reload_states()].map(|all| drains(&all[2]));
    assert!(now > 0 && now <= then, "{now} {then}");
    mood.store(false, SeqCst);
    eventually("it is back", || up(&after, "bad")).await;
    // A switch that looks for no such nodes has none.
    config.outliers = OutlierConfig::default();
    let without = Running::start(config);
    node_reload_states.iter().for_each(|standing| without.handle.restore_node_state(standing).unwrap());
    assert!(up(&without, "bad"));
}

#[tokio::test]
async fn a_node_that_fails_more_than_the_others_is_out_but_not_if_all_fail() {
    let nodes = [moody("a").await, moody("b").await, moody("c").await];
    let mut config = config(&[&nodes[0].0, &nodes[1].0, &nodes[2].0]);
    config.outliers = OutlierConfig {
        failures_above: 0.5,
        requests_min: 10,
        interval: Duration::from_millis(100),
        ..OutlierConfig::default()
    };
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let ejections = |switch: &Running| -> f64 {
        ["a", "b", "c"]
            .map(|name| switch.metric(&format!("larder_switch_ejections_total{{node=\"{name}\"}} ")))
            .iter()
            .sum()
    };
    // All of them are bad: it is not the nodes.
    for number in 0..600 {
        assert_eq!(client.get(&format!("/{number}")).await.status, 500);
        take_time_async(Duration::from_millis(1)).await;
    }
    assert_eq!(ejections(&switch), 0.0);
    nodes[1].1.store(false, SeqCst);
    nodes[2].1.store(false, SeqCst);
    let mut number = 0;
    while up(&switch, "a") {
        client.get(&format!("/{number}")).await;
        number += 1;
        assert!(number < 20_000, "the one that stays bad is found");
    }
    assert!(up(&switch, "b") && up(&switch, "c"));
}

#[tokio::test]
async fn retries_end_with_their_budget() {
    let nodes = [Node::scripted("a", |_| Act::Close).await, Node::scripted("b", |_| Act::Close).await];
    let mut config = config(&[&nodes[0], &nodes[1]]);
    config.health = HealthConfig { passive_fall: 0, active: None, ..HealthConfig::default() };
    config.limits.retries_max = 1;
    config.retries = RetryConfig { share: 0.1, min_per_s: 1 };
    let switch = Running::start(config);
    for number in 0..300 {
        let mut client = switch.client().await;
        assert_eq!(client.get(&format!("/{number}")).await.status, 502);
    }
    let retried = switch.metric("larder_switch_retries_total{kind=\"other_node\"} ");
    let denied = switch.metric("larder_switch_retries_denied_total ");
    assert_eq!(retried + denied, 300.0);
    // The burst, a tenth of the requests, and one per second of the test.
    assert!((10.0..100.0).contains(&retried), "{retried} of 300");
    assert_eq!(nodes[0].requests() + nodes[1].requests(), 300 + retried as usize);
    switch.settles().await;
}
