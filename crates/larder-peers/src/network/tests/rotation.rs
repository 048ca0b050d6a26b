//! Rotation and revocation of the cluster's secret, with live members.

use super::*;
use crate::counters::CounterValues;
use crate::data_links::tests::{Chunks, body};
use larder_testkit::eventually_async;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const OLD: ClusterSecret = ClusterSecret::new([1; 32]);
const NEW: ClusterSecret = ClusterSecret::new([2; 32]);
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Waits until the counters of all members satisfy `until`.
async fn counted(members: &[Arc<Network>], until: impl Fn(&CounterValues) -> bool) {
    let all = || members.iter().all(|member| until(&member.counters().read()));
    eventually_async("the members' counters", || all().then_some(())).await;
}

/// Three members, each linked with both others. Events other than messages and links are collected.
async fn cluster() -> (Vec<Arc<Network>>, Vec<JoinHandle<Vec<Event>>>) {
    let (mut members, mut followers, mut seeds) = (Vec::new(), Vec::new(), Vec::new());
    for local in NAMES {
        let (member, mut events) = start(local, &seeds).await;
        seeds.push(member.local_addr());
        members.push(Arc::new(member));
        followers.push(tokio::spawn(async move {
            let mut changes = Vec::new();
            while let Some(event) = events.next().await {
                if matches!(event, Event::Joined(_) | Event::Left(..)) {
                    changes.push(event);
                }
            }
            changes
        }));
    }
    // Two links to each of the two others.
    counted(&members, |counted| counted.members == 2 && counted.control_links == 4).await;
    (members, followers)
}

/// A request body that lasts until the sender is dropped.
fn open_body() -> (mpsc::Sender<Bytes>, Chunks) {
    let (send, sent) = mpsc::channel(1);
    let sent = Arc::new(tokio::sync::Mutex::new(sent));
    let next = move |_| {
        let sent = Arc::clone(&sent);
        async move { sent.lock().await.recv().await }
    };
    (send, body(next))
}

/// Forwards requests from each member to each other one until told to stop. Each task returns how many were answered.
fn traffic(members: &[Arc<Network>], stop: &Arc<AtomicBool>) -> Vec<JoinHandle<u32>> {
    let pairs = (0..3).flat_map(|from| (0..3).filter(move |to| *to != from).map(move |to| (from, to)));
    let client = |(from, to): (usize, usize)| {
        let (network, stop, to) = (Arc::clone(&members[from]), Arc::clone(stop), name(NAMES[to]));
        tokio::spawn(async move {
            let mut answered = 0;
            while !stop.load(Relaxed) {
                let request = Request::new(Full::new(Bytes::from_static(b"asked")));
                let reply = network.forward(&to, request).await.expect("a reply");
                reply.into_body().collect().await.expect("a whole body");
                answered += 1;
                tokio::task::yield_now().await;
            }
            answered
        })
    };
    pairs.map(client).collect()
}

#[tokio::test]
async fn a_cluster_rotates_its_secret_without_losing_a_member_or_a_request() {
    let (members, followers) = cluster().await;
    let stop = Arc::<AtomicBool>::default();
    // A request in flight from before the rotation until the old secret is removed.
    let (sender, open) = open_body();
    let (from, to) = (Arc::clone(&members[0]), name("b"));
    let long = tokio::spawn(async move { from.forward(&to, Request::new(open)).await });
    sender.send(Bytes::from_static(b"begun")).await.expect("sent");
    counted(&members[1..2], |counted| counted.requests_in == 1).await;
    let clients = traffic(&members, &stop);

    for member in &members {
        member.set_secrets(ClusterSecrets::new(OLD, Some(NEW)));
    }
    for (at, member) in members.iter().enumerate() {
        member.set_secrets(ClusterSecrets::new(NEW, Some(OLD)));
        if at == 0 {
            // This member receives datagrams with the old secret, and the others receive its datagrams with the new one.
            counted(&members, |counted| counted.datagrams_other_secret > 0).await;
        }
        counted(&members, |counted| counted.members == 2).await;
    }
    counted(&members[2..], |counted| counted.links_other_secret == 0).await;
    counted(&members[..2], |counted| counted.links_other_secret == 1).await;
    drop(sender);
    let reply = long.await.expect("no panic").expect("the long request's reply");
    reply.into_body().collect().await.expect("its whole body");
    counted(&members, |counted| counted.links_other_secret == 0 && counted.control_links == 4).await;

    for member in &members {
        member.set_secrets(NEW.into());
    }
    // A member that knows only the new secret joins, so the old one is no longer needed.
    let late = config("d", &[members[0].local_addr()], 2);
    let (late, _events) = Network::start(late, echo("d")).await.expect("started");
    counted(&members, |counted| counted.members == 3).await;
    stop.store(true, Relaxed);
    for client in clients {
        assert!(client.await.expect("no request failed") > 0);
    }
    let losses: Vec<CounterValues> = members.iter().map(|member| member.counters().read()).collect();
    assert!(losses.iter().all(|counted| counted.links_revoked == 0), "{losses:#?}");
    assert!(losses.iter().all(|counted| counted.members_left == 0), "{losses:#?}");
    assert!(losses.iter().all(|counted| counted.requests_lost + counted.requests_unsent == 0), "{losses:#?}");
    drop((late, members));
    for follower in followers {
        let changes = follower.await.expect("no panic");
        assert!(changes.iter().all(|change| matches!(change, Event::Joined(_))), "{changes:?}");
    }
}

#[tokio::test]
async fn links_of_a_removed_secret_are_closed_at_once() {
    // The test expects a request whose body breaks off.
    let service = |request: Request<Incoming>, _: Name| async move {
        drop(request.into_body().collect().await);
        Response::new(Full::new(Bytes::new()))
    };
    let (a, mut from_a) = Network::start(config("a", &[], 1), service).await.expect("started");
    let (b, mut from_b) = start("b", &[a.local_addr()]).await;
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    let (sender, open) = open_body();
    let (b, to) = (Arc::new(b), name("a"));
    let from = Arc::clone(&b);
    let forward = tokio::spawn(async move { from.forward(&to, Request::new(open)).await });
    sender.send(Bytes::from_static(b"begun")).await.expect("sent");
    let arrived = || (a.counters().read().requests_in > 0).then_some(());
    eventually_async("the request arrives", arrived).await;
    a.set_secrets(NEW.into());
    let error = timeout(LONG, forward).await.expect("in time").expect("no panic").expect_err("cut");
    assert!(matches!(error, ForwardError::Lost { .. }), "{error}");
    // Both control links are closed long before membership declares the other member down.
    for events in [&mut from_a, &mut from_b] {
        for _ in 0..2 {
            assert!(matches!(next(events).await, Event::LinkDown(..)));
        }
    }
    // The links that b opened are revoked. The link of a is replaced or revoked, whichever comes first.
    let ended = || {
        let counted = a.counters().read();
        (counted.links_revoked >= 2 && counted.links_other_secret == 0).then_some(())
    };
    eventually_async("both links of the other side are revoked", ended).await;
    let refused = b.counters().read().links_failed;
    counted(std::slice::from_ref(&b), |counted| counted.links_failed > refused).await;
}

#[tokio::test]
async fn a_control_link_with_a_replaced_secret_reconnects_without_delay() {
    let pause = Duration::from_secs(10);
    let slow = |local, seeds: &[SocketAddr]| {
        let mut config = config(local, seeds, 1);
        (config.control.retry_min, config.control.retry_max) = (pause, pause);
        config
    };
    let (a, mut from_a) = Network::start(slow("a", &[]), echo("a")).await.expect("started");
    let (b, mut from_b) = Network::start(slow("b", &[a.local_addr()]), echo("b")).await.expect("started");
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    b.set_secrets(ClusterSecrets::new(OLD, Some(NEW)));
    a.set_secrets(ClusterSecrets::new(NEW, Some(OLD)));
    assert!(matches!(next(&mut from_a).await, Event::LinkDown(_, LinkDirection::Outbound)));
    // The shortest delay is three quarters of `retry_min`.
    let again = timeout(pause / 2, next(&mut from_a)).await.expect("no pause");
    assert!(matches!(again, Event::LinkUp(_, LinkDirection::Outbound)), "{again:?}");
}
