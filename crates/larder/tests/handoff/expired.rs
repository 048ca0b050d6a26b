//! Clients whose cookie has expired.

use larder_testkit::take_time;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::cluster::{Cluster, Spec};
use crate::content::Content;

const HANDOFF: &str = "mechanism = \"cookie\"\nkey_life = \"10s\"";

/// A cookie is valid for at most 1.5 times `key_life`. A client whose first request comes later is reset at
/// once.
#[test]
#[ignore = "long: cargo xtask acceptance handoff-trouble"]
fn a_client_with_an_expired_cookie_is_reset() {
    let Some(cluster) = Cluster::new(&Spec { handoff: HANDOFF, ..Spec::default() }, Content::new(&[100], 1))
    else {
        return;
    };
    let client = &cluster.topology.client().namespace;
    let services = cluster.service();
    let early = client.run(|| services.map(|service| TcpStream::connect(service).unwrap())).unwrap();
    take_time(Duration::from_secs(16));
    for mut stream in early {
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let told = stream.read(&mut [0; 100]).map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::ConnectionReset), "{}", cluster.admin("/metrics"));
    }
    assert_eq!(cluster.metric("larder_switch_plane_total", &["\"expired\""]), 2);
}
