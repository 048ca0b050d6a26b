//! TLS terminated by the nodes: curl at the client, and nginx with a certificate at the nodes.

use larder_testkit::{PATIENCE, within};
use std::process::Command;

use crate::cluster::{Cluster, Spec};
use crate::content::Content;
use crate::degrade::{with_any_port, without_rights};

const SIZES: [u64; 4] = [1, 1_000, 65_536, 2_000_000];
const DELIVERIES: &str = "larder_switch_deliveries_total";
const COOKIE: &str = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";

/// Fetches every target once, by IPv4 and IPv6 in turn, and verifies the certificate and every byte.
fn fetch_all(cluster: &Cluster) {
    let certificate = cluster.path("tls.pem");
    for (number, target) in cluster.content.targets.iter().enumerate() {
        let ip = cluster.service()[number % 2].ip();
        let ip = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--http1.1", "--max-time", "10", "--cacert"]).arg(&certificate);
        curl.args(["--resolve", &format!("www.example.com:443:{ip}")]);
        curl.arg(format!("https://www.example.com{}", target.path));
        let got = cluster.topology.client().namespace.output(&mut curl).unwrap();
        let said = String::from_utf8_lossy(&got.stderr);
        assert!(got.status.success(), "{ip}: {:?} {said} {}", got.status, cluster.logs());
        assert_eq!(
            (got.stdout.len() as u64, target.first_difference(0, &got.stdout)),
            (target.bytes, None),
            "{target:?}"
        );
    }
}

/// A TLS connection goes unopened to the node that has the name. Without handover it is spliced, because the
/// switch cannot read it.
#[test]
fn tls_passes_through_by_name() {
    let spec = Spec { handoff: COOKIE, tls: true, ..Spec::default() };
    let Some(mut cluster) = Cluster::new(&spec, Content::new(&SIZES, 3)) else { return };
    let all = cluster.content.targets.len() as u64;
    fetch_all(&cluster);
    assert!(cluster.metric(DELIVERIES, &["cookie"]) >= all - 3, "{}", cluster.admin("/metrics"));
    cluster.await_idle();
    for agent in cluster.agents.iter_mut().flatten() {
        assert!(agent.stop());
    }
    let down = within(PATIENCE, || !cluster.admin("/nodes").contains("\"channel\": \"up\""));
    assert!(down, "{}", cluster.admin("/nodes"));
    fetch_all(&cluster);
    let spliced = cluster.metric(DELIVERIES, &["mechanism=\"splice\"", "why=\"channel\""]);
    assert_eq!(spliced, all, "{}", cluster.admin("/metrics"));
    cluster.await_idle();
}

/// TLS is spliced with the setting `splice`, and at a switch without agents. HTTP on the other port works.
#[test]
fn tls_is_spliced_where_nothing_is_handed_over() {
    let helpless = [with_any_port(), without_rights()].concat();
    for (mechanism, switch_by, http) in [("splice", Vec::new(), "splice"), ("auto", helpless, "relay")] {
        let handoff = format!("mechanism = \"{mechanism}\"");
        let spec = Spec { handoff: &handoff, tls: true, agents: false, switch_by, ..Spec::default() };
        let Some(cluster) = Cluster::new(&spec, Content::new(&SIZES, 2)) else { return };
        fetch_all(&cluster);
        let delivered =
            |by: &str| cluster.metric(DELIVERIES, &[&format!("mechanism=\"{by}\""), "why=\"configured\""]);
        let all = cluster.content.targets.len() as u64;
        assert_eq!(delivered("splice"), all, "{mechanism}: {}", cluster.admin("/metrics"));
        let before = delivered(http);
        let mut curl = Command::new("curl");
        curl.args(["-s", "--max-time", "10"]).arg(format!("http://{}/1000/0", cluster.service()[0]));
        let got = cluster.topology.client().namespace.output(&mut curl).unwrap();
        assert!(got.status.success() && got.stdout.len() == 1_000, "{mechanism}: {:?}", got.status);
        assert_eq!(delivered(http), before + 1, "{mechanism}: {}", cluster.admin("/metrics"));
        cluster.await_idle();
    }
}
