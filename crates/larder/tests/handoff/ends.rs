//! Lifetime of a connection in the load of its node.

use larder_testkit::http::head_bytes;
use larder_testkit::{PATIENCE, take_time, within};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::cluster::{Cluster, Server, Spec};
use crate::content::Content;

const HANDOFF: &str =
    "mechanism = \"cookie\"\nidle_after = \"20s\"\nfast_age = \"10s\"\nlocality_lost_max = 1.0";
const LOAD: &str = "larder_switch_node_load";
const DELIVERIES: &str = "larder_switch_deliveries_total";
const LARGE: u64 = 20_000_000;
/// Exceeds the kernel's receive buffer of a client that does not read.
const BUFFERED: usize = 8_000_000;

fn ask(stream: &mut TcpStream, path: &str) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // In one segment.
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).unwrap();
}

/// Waits until the load is this number of connections.
fn await_load(cluster: &Cluster, load: u64) {
    within(PATIENCE, || cluster.metric(LOAD, &[]) == load);
    assert_eq!(cluster.metric(LOAD, &[]), load, "{}", cluster.admin("/metrics"));
}

/// A connection that a node has reset is no load, and is not adopted as one from before a restart.
#[test]
fn a_connection_reset_by_its_node_is_no_load() {
    let content = Content::new(&[100], 1);
    let path = content.targets[0].path.clone();
    let Some(cluster) = Cluster::new(&Spec { handoff: HANDOFF, ..Spec::default() }, content) else { return };
    let client = &cluster.topology.client().namespace;
    let services = cluster.service();
    let connect =
        || [services, services].concat().into_iter().map(|s| TcpStream::connect(s).unwrap()).collect();
    let mut streams: Vec<TcpStream> = client.run(connect).unwrap();
    for stream in &mut streams {
        ask(stream, &path);
        let mut reply = Vec::<u8>::new();
        while head_bytes(&reply).is_none() {
            let mut bytes = [0; 1024];
            let got = stream.read(&mut bytes).unwrap();
            assert!(got > 0, "closed");
            reply.extend(&bytes[..got]);
        }
    }
    await_load(&cluster, 4);
    // Old enough to be adopted as one from before a restart.
    take_time(Duration::from_millis(2_500));
    for stream in &mut streams {
        ask(stream, "/reset");
        let told = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::ConnectionReset));
    }
    await_load(&cluster, 0);
    // A connection can also be reset after its first packet, before the switch has read that the plane opened
    // it.
    for service in services.into_iter().cycle().take(20) {
        let mut stream = client.run(|| TcpStream::connect(service).unwrap()).unwrap();
        ask(&mut stream, "/reset");
        assert!(stream.read(&mut [0; 100]).is_err());
    }
    await_load(&cluster, 0);
    // Two sweeps.
    take_time(Duration::from_secs(4));
    assert_eq!(cluster.metric(DELIVERIES, &["mechanism=\"cookie\""]), 24);
    assert!(cluster.metric(DELIVERIES, &["fast"]) > 0, "{}", cluster.admin("/metrics"));
    assert_eq!(cluster.metric(DELIVERIES, &["adopted"]), 0, "{}", cluster.logs());
    assert_eq!(cluster.metric(LOAD, &[]), 0);
}

/// A client that has closed its side in the middle of a reply still receives the rest.
#[test]
fn a_half_closed_connection_counts_while_its_reply_goes_on() {
    let content = Content::new(&[LARGE], 1);
    let path = content.targets[0].path.clone();
    // nginx ends the reply when the client closes its side.
    let spec = Spec { handoff: HANDOFF, server: Server::Apache, ..Spec::default() };
    let Some(cluster) = Cluster::new(&spec, content) else { return };
    let service = cluster.service()[0];
    let client = &cluster.topology.client().namespace;
    let mut stream = client.run(|| TcpStream::connect(service).unwrap()).unwrap();
    ask(&mut stream, &path);
    let mut left = usize::try_from(LARGE).unwrap();
    let mut bytes = vec![0; 100_000];
    stream.read_exact(&mut bytes).unwrap();
    left -= bytes.len();
    stream.shutdown(Shutdown::Write).unwrap();
    // The client's FIN counts as the end of the connection until the client acknowledges more.
    take_time(Duration::from_millis(300));
    // The client continues to read slowly for about three seconds.
    let mut looks = 0;
    while left > BUFFERED {
        let got = stream.read(&mut bytes).unwrap();
        assert!(got > 0, "closed with {left} bytes left");
        left = left.saturating_sub(got);
        take_time(Duration::from_millis(25));
        if cluster.metric(LOAD, &[]) == 1 {
            looks += 1;
        } else {
            // The begin of the connection may not be counted yet. It is counted at once.
            assert_eq!(looks, 0, "{left} bytes left");
        }
    }
    assert!(looks > 10, "{looks}");
    assert_eq!(cluster.metric(DELIVERIES, &["cookie"]), 1);
    stream.read_to_end(&mut bytes).unwrap();
    drop(stream);
    await_load(&cluster, 0);
}
