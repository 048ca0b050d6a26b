//! Fallback from cookie to repair to relay on machines that lack a capability, with the reason in the log.
//!
//! A missing kernel function is simulated by type information (BTF) that does not name it, or by no type
//! information at all. Both are mounted over `/sys/kernel/btf` in the process's own mount namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{self, ClientSettings};
use crate::cluster::{Cluster, Server, Spec};
use crate::content::Content;
use crate::plans::mixed;

const SETUP: ClientSettings =
    ClientSettings { threads: 8, first_port: 20_000, stall: Duration::from_secs(5) };
const DELIVERIES: &str = "larder_switch_deliveries_total";
const BTF: &str = "/sys/kernel/btf/vmlinux";
const COUNT: usize = 160;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Returns a command that starts a process with a file in place of the kernel's type information.
fn with_btf(file: &Path) -> Vec<String> {
    let script = format!("mount --bind {} {BTF} && exec \"$@\"", file.display());
    ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

/// Writes the kernel's type information without the function that makes a listener accept.
fn without_kfunc(folder: &Path) -> Option<PathBuf> {
    let mut btf = fs::read(BTF).ok()?;
    let name = b"\0bpf_sk_assign_tcp_reqsk\0";
    let at = btf.windows(name.len()).position(|bytes| bytes == name)?;
    btf[at + name.len() - 2] = b'x';
    let path = folder.join("btf");
    fs::write(&path, btf).unwrap();
    Some(path)
}

/// Returns a command that starts a process without any capability.
pub fn without_rights() -> Vec<String> {
    words("setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --")
}

/// Runs clients of every behaviour without a fault. Returns the number of deliveries with these labels and
/// the logs.
fn deliveries(spec: &Spec<'_>, labels: [&str; 2]) -> Option<(u64, String)> {
    let cluster = Cluster::new(spec, Content::new(&[1, 1_000, 65_536, 300_000], 2))?;
    let plans = mixed(21, COUNT, &cluster.service(), &cluster.content.targets);
    let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{labels:?}: {tally}");
    tally.assert_faultless();
    // Nodes send events in batches.
    cluster.await_idle();
    let metrics = cluster.admin("/metrics");
    metrics.lines().filter(|line| line.starts_with(DELIVERIES)).for_each(|line| println!("{line}"));
    Some((cluster.metric(DELIVERIES, &labels), cluster.logs()))
}

fn auto() -> Spec<'static> {
    let handoff =
        "mechanism = \"auto\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0\nheader_wait = \"20ms\"";
    let mut spec = Spec { server: Server::Larder, handoff, ..Spec::default() };
    spec.topology.nodes = 2;
    spec
}

const COOKIE: [&str; 2] = ["mechanism=\"cookie\"", "why="];
const REPAIR: [&str; 2] = ["mechanism=\"repair\"", "why=\"repair\""];
const RELAY: [&str; 2] = ["mechanism=\"relay\"", "why="];
/// Connections whose header arrives in one segment: nearly all.
const MOST: u64 = COUNT as u64 * 8 / 10;

#[test]
fn nodes_use_the_best_available_mechanism() {
    let folder = tempfile::tempdir().unwrap();
    let Some((cookie, log)) = deliveries(&auto(), COOKIE) else { return };
    assert!(cookie > MOST, "{cookie} of {COUNT}\n{log}");
    let Some(old) = without_kfunc(folder.path()) else { return };

    let (repair, log) = deliveries(&Spec { nodes_by: with_btf(&old), ..auto() }, REPAIR).unwrap();
    assert!(repair > MOST, "no function in the nodes: {repair} of {COUNT} by repair\n{log}");

    let spec = Spec { nodes_by: with_btf(&old), node_handoff: "repair = false\n", ..auto() };
    let (relay, log) = deliveries(&spec, ["mechanism=\"relay\"", "why=\"node\""]).unwrap();
    assert!(relay > MOST, "no function, no repair: {relay} of {COUNT} by relay\n{log}");

    let spec = Spec { nodes_by: without_rights(), ..auto() };
    let (relay, log) = deliveries_on_any_port(spec, ["mechanism=\"relay\"", "why=\"node\""]).unwrap();
    assert!(relay > MOST, "nodes without rights: {relay} of {COUNT} by relay\n{log}");
    assert!(log.contains("no connections can be taken"), "{log}");
}

#[test]
fn a_switch_uses_the_best_available_mechanism() {
    let folder = tempfile::tempdir().unwrap();
    let Some(old) = without_kfunc(folder.path()) else { return };
    let Some((repair, log)) = deliveries(&Spec { switch_by: with_btf(&old), ..auto() }, REPAIR) else {
        return;
    };
    assert!(repair > MOST, "no function in the switch: {repair} of {COUNT} by repair\n{log}");
    assert!(log.contains("handoff: not possible on this machine"), "{log}");

    // Without type information the program that inspects sockets cannot be loaded. The forwarding plane can.
    let spec = Spec { switch_by: with_btf(Path::new("/dev/null")), ..auto() };
    let (repair, log) = deliveries(&spec, REPAIR).unwrap();
    assert!(repair > MOST, "no type information in the switch: {repair} of {COUNT} by repair\n{log}");

    let spec = Spec { switch_by: without_rights(), ..auto() };
    let (relay, log) = deliveries_on_any_port(spec, RELAY).unwrap();
    assert_eq!(relay, COUNT as u64, "{log}");
    assert!(log.contains("CAP_NET_ADMIN") || log.contains("not permitted"), "{log}");
}

/// Returns a command that permits all processes to use port 80 and then starts a process without
/// capabilities.
pub fn with_any_port() -> Vec<String> {
    let open = "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start && exec \"$@\"";
    ["sh", "-c", open, "sh"].map(str::to_owned).to_vec()
}

fn deliveries_on_any_port(mut spec: Spec<'_>, labels: [&str; 2]) -> Option<(u64, String)> {
    let first = with_any_port();
    for by in [&mut spec.switch_by, &mut spec.nodes_by] {
        if !by.is_empty() {
            *by = first.iter().chain(by.iter()).cloned().collect();
        }
    }
    deliveries(&spec, labels)
}
