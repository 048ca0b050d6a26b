//! Tests of another process taking the plane.

use super::super::run::unread;
use super::*;
use larder_core::TargetId;
use std::slice;

/// This process finishes connections that wait for their decision; later events belong to the other process.
#[tokio::test]
async fn held_connections_are_accepted_here_at_a_reload() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(1));
    bench.punt(key(1), true, 1, GET);
    // One waits for a place, the other for the rest of its header.
    bench.punt(key(2), true, 1, GET);
    bench.punt(key(3), true, 1, &GET[..5]);
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (2, 1, 0)));
    let edge = bench.edge.clone();
    tokio::task::spawn_blocking(move || edge.release_plane()).await.expect("it ends");
    let lengths = [54 + GET.len(), 54 + 5];
    bench.notes(|notes| {
        notes.accepted.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(notes.accepted, lengths);
        assert_eq!((notes.flows[&key(2)], notes.flows[&key(3)]), (Destination::Here, Destination::Here));
        notes.to_report.push_back(PreparedEvent::Punt(key(4)));
    });
    for port in [2, 3] {
        let placed = bench
            .edge
            .take_pending_accept(key(port).client, ([127, 0, 0, 1], 80).into())
            .expect("it is expected");
        assert_eq!(placed.delivery.reason.name(), "reload");
    }
    bench.edge.drain();
    assert_eq!(bench.notes(|notes| notes.to_report.len()), 1, "the other process hears it");
    // A place becomes free: nobody waits for it any more.
    bench.node_ended(key(1), 0, bench.notes(|notes| notes.forwarded[0].0));
    larder_testkit::take_time_async(Duration::from_millis(1)).await;
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
}

/// Packets that arrived after the earlier process had stopped reading.
#[tokio::test]
async fn unread_packets_are_processed_after_a_reload() {
    let bench = Bench::new(|_| {});
    let reused = ReusableDecision { target: TargetId(1), node: NodeId(0), route: 0, service: 0, class: 0 };
    bench.notes(|notes| {
        notes.to_report.extend([
            PreparedEvent::Stale(key(1)),
            PreparedEvent::Opened(key(2), reused),
            PreparedEvent::Punt(key(3)),
        ]);
        notes.holds.extend([1, 2, 3].map(key));
    });
    let left = unread(&bench.datapath, Duration::from_secs(10));
    assert_eq!(left.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [key(3)]);
    bench.edge.process_unread(&left);
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    assert!(bench.notes(|notes| matches!(notes.flows[&key(3)], Destination::Node(_))));
    // A later decision stands, and clients retransmit packets of unknown connections.
    bench.notes(|notes| notes.flows.extend([(key(1), Destination::Here)]));
    bench.notes(|notes| notes.holds.clear());
    for other in [key(1), key(4)] {
        bench.edge.process_unread(slice::from_ref(&(other, left[0].1.clone())));
    }
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    bench.notes(|notes| {
        assert_eq!(
            (notes.accepted.as_slice(), notes.removed.as_slice()),
            (&[54 + GET.len()][..], &[key(4)][..])
        );
    });
}
