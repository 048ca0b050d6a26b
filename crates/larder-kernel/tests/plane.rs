//! Tests of the forwarding plane on real interfaces: a client, a switch and a node in separate namespaces, connected by
//! a bridge. The node runs no program: a packet socket captures what arrives.

mod plane_lab;

use larder_kernel::plane::{
    AttachMode, FlowDestination, NodeRoute, OutboundTunnel, OutboundTunnelKind, Plane, PlaneConfig,
    PlaneEvent, PlaneStop, ServiceSpec,
};
use larder_kernel::{CookieKey, FlowKey};
use libbpf_rs::libbpf_sys::bpf_map_create_opts as MapCreateOpts;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use plane_lab::{Lab, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const VIP: &str = "10.9.0.100:80";
const VIP6: &str = "[fd09::100]:80";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn config(lab: &Lab, attach: AttachMode) -> PlaneConfig {
    PlaneConfig {
        name: lab.name("p"),
        interface: "wf".to_owned(),
        attach,
        flows_max: 4096,
        targets_max: 4096,
        ring_bytes: 1 << 18,
        key_life: larder_kernel::plane::KEY_LIFE,
        hold_packets: 16,
    }
}

fn prepare(plane: &Plane, lab: &Lab) {
    prepare_by(plane, lab, None);
}

/// Sets up the node behind `tunnel`, or on the same layer 2.
fn prepare_by(plane: &Plane, lab: &Lab, tunnel: Option<OutboundTunnel>) {
    let on = ServiceSpec { cookie: true, fast: true, tags: true, grace: true, ..ServiceSpec::default() };
    let spec = ServiceSpec { mss: 1300, ..on };
    plane.set_keys(&[CookieKey([1, 2]), CookieKey([3, 4])], 0).expect("keys");
    for (id, vip) in [(0, VIP), (1, VIP6)] {
        plane.set_service(id, vip.parse().expect("an address"), spec).expect("a service");
    }
    let (ifindex, source_mac) = plane.interface();
    let link = NodeRoute { tag: 1, ifindex, source_mac, next_hop: lab.mac("wn"), tunnel };
    plane.set_link(0, Some(&link)).expect("a link");
}

/// A client that sends every write at once.
fn connected(lab: &Lab, vip: SocketAddr) -> TcpStream {
    let connect = || TcpStream::connect_timeout(&vip, Duration::from_secs(5));
    let client = lab.inside("c", connect).expect("the handshake");
    client.set_nodelay(true).expect("no delay");
    client
}

/// Whether the plane answers SYNs. The stack has no listener, so it would refuse.
fn answers(lab: &Lab) -> bool {
    let vip = VIP.parse().expect("an address");
    match lab.inside("c", || TcpStream::connect_timeout(&vip, Duration::from_secs(5))) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
            false
        }
    }
}

/// Returns the next punted packet.
fn punted(plane: &Plane) -> (FlowKey, bool, Vec<u8>) {
    wait_for("a punted packet", || {
        let mut found = None;
        plane.read_events(|event| {
            if let PlaneEvent::Punt { key, first, packet, .. } = event {
                found.get_or_insert((key, first, packet.to_vec()));
            }
        });
        found
    })
}

/// `/` and more than a segment, so that the receiver's kernel may merge segments.
fn stream() -> Vec<u8> {
    (0..9000_u32).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// The nodes' network is behind another interface.
fn forwards_by_another_interface(attach: AttachMode) {
    let Some(lab) = Lab::new() else { return };
    // With GRO, the node's end of the veth accepts packets that XDP redirects.
    assert!(lab.can(
        "ip link add wg netns FRONT type veth peer name wm netns NODE && ip -n FRONT link set wg up && \
         ip -n NODE link set wm address 02:00:00:00:00:45 up && \
         ip netns exec NODE ethtool -K wm gro on >/dev/null && ip netns exec FRONT ethtool -K wg gro on >/dev/null"
    ));
    let plane = lab.inside("f", || Plane::start(&config(&lab, attach))).expect("a plane");
    prepare(&plane, &lab);
    let (ifindex, source_mac) = plane.interface_named("wg").expect("the interface");
    assert!(plane.interface_named("nope").is_err());
    let link = NodeRoute { tag: 1, ifindex, source_mac, next_hop: [2, 0, 0, 0, 0, 0x45], tunnel: None };
    plane.set_link(0, Some(&link)).expect("a link");
    let node = lab.sniffer("n");
    let mut client = connected(&lab, VIP.parse().expect("an address"));
    client.write_all(GET).expect("sent");
    let (key, _, packet) = punted(&plane);
    plane.forward(0, &packet).expect("forwarded");
    assert!(node.sees(GET));
    plane.put_flow(key, FlowDestination::Node(0)).expect("a flow");
    client.write_all(&stream()).expect("sent");
    assert!(node.collects(&stream()), "redirected");
    plane.stop(PlaneStop::RemoveAll).expect("stopped");
}

#[test]
fn native_xdp_redirects() {
    forwards_by_another_interface(AttachMode::Native);
}

#[test]
fn generic_xdp_redirects() {
    forwards_by_another_interface(AttachMode::Generic);
}

#[test]
fn tc_redirects() {
    forwards_by_another_interface(AttachMode::Tc);
}

/// A node's kernel unwraps packets of the programs and of user space.
fn tunnels_to_a_vxlan_device(attach: AttachMode) {
    let Some(lab) = Lab::new() else { return };
    let vxlan = "ip -n NODE link add vx0 type vxlan id 42 dstport 4789 local 10.9.0.4 dev wn udp6zerocsumrx && \
                 ip -n NODE link set vx0 address 02:00:00:00:00:44 up";
    if !lab.can(vxlan) {
        return larder_testkit::skip("needs a kernel with VXLAN");
    }
    let plane = lab.inside("f", || Plane::start(&config(&lab, attach))).expect("a plane");
    let kind = OutboundTunnelKind::Vxlan { port: 4789, vni: 42, mac: [2, 0, 0, 0, 0, 0x44] };
    let (local, remote) = ([10, 9, 0, 3].into(), [10, 9, 0, 4].into());
    prepare_by(&plane, &lab, Some(OutboundTunnel { kind, local, remote }));
    for vip in [VIP, VIP6] {
        let node = lab.sniffer("n");
        let mut client = connected(&lab, vip.parse().expect("an address"));
        client.write_all(GET).expect("sent");
        let (key, _, packet) = punted(&plane);
        plane.forward(0, &packet).expect("forwarded");
        assert!(node.sees(GET), "user space wraps");
        plane.put_flow(key, FlowDestination::Node(0)).expect("a flow");
        client.write_all(&stream()).expect("sent");
        assert!(node.collects(&stream()), "the program wraps");
    }
    plane.stop(PlaneStop::RemoveAll).expect("stopped");
}

#[test]
fn native_xdp_tunnels() {
    tunnels_to_a_vxlan_device(AttachMode::Native);
}

#[test]
fn generic_xdp_tunnels() {
    tunnels_to_a_vxlan_device(AttachMode::Generic);
}

#[test]
fn tc_tunnels() {
    tunnels_to_a_vxlan_device(AttachMode::Tc);
}

/// A client's kernel accepts the SYN-ACK, its request is held, user space forwards it, and the program forwards what
/// follows. Then the node dies, and the client is reset.
fn connects_and_is_forwarded(attach: AttachMode) {
    let Some(lab) = Lab::new() else { return };
    if attach != AttachMode::Native {
        // Packets arrive with partial checksums; replies and held packets must cope.
        assert!(lab.can("ip netns exec CLIENT ethtool -K wc tx on tso off gso off >/dev/null"));
    }
    let plane = lab.inside("f", || Plane::start(&config(&lab, attach))).expect("a plane");
    assert_eq!(plane.attached(), attach);
    prepare(&plane, &lab);
    let node = lab.sniffer("n");
    for (service, vip) in [(0, VIP), (1, VIP6)] {
        let vip: SocketAddr = vip.parse().expect("an address");
        let mut client = connected(&lab, vip);
        client.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        client.write_all(GET).expect("sent");
        let (key, first, packet) = punted(&plane);
        assert_eq!(key, FlowKey::new(client.local_addr().expect("an address"), service));
        assert!(first && packet.ends_with(GET));
        plane.forward(0, &packet).expect("forwarded");
        assert!(node.sees(GET), "the held packet reaches the node");
        plane.put_flow(key, FlowDestination::Node(0)).expect("a flow");
        client.write_all(b"the second segment").expect("sent");
        assert!(node.sees(b"the second segment"), "the program forwards");
        client.write_all(&stream()).expect("sent");
        assert!(node.collects(&stream()), "every byte of it");
        plane.reset_client(key).expect("reset");
        let error = client.read(&mut [0; 16]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    plane.stop(PlaneStop::RemoveAll).expect("stopped");
    assert!(!answers(&lab), "no program answers any more");
    assert!(!lab.has_xdp("f", "wf"));
}

#[test]
fn native_xdp_forwards() {
    connects_and_is_forwarded(AttachMode::Native);
}

#[test]
fn generic_xdp_forwards() {
    connects_and_is_forwarded(AttachMode::Generic);
}

#[test]
fn tc_forwards() {
    connects_and_is_forwarded(AttachMode::Tc);
}

/// Returns a pinned map of the plane, and its pin.
fn pinned(config: &PlaneConfig, map: &str) -> (MapHandle, PathBuf) {
    let instances =
        ["/sys/fs/bpf/larder", "/run/larder/bpf/larder"].map(|at| Path::new(at).join(&config.name));
    let instance = instances.iter().find(|instance| instance.exists()).expect("it is pinned");
    let layout = fs::read_dir(instance).expect("read").next().expect("one").expect("read").path();
    let pin = layout.join(map);
    (MapHandle::from_pinned_path(&pin).expect("the map"), pin)
}

/// A successor finds the connections of the one before and replaces its programs; what a crash leaves can be cleaned.
/// Tables keep their size until then.
#[test]
fn new_process_takes_over() {
    let Some(lab) = Lab::new() else { return };
    let start = |config: &PlaneConfig| lab.inside("f", || Plane::start(config)).expect("a plane");
    let config = config(&lab, AttachMode::Auto);
    let first = start(&config);
    assert!(!first.adopted());
    assert_eq!(first.attached(), AttachMode::Native);
    prepare(&first, &lab);
    let vip: SocketAddr = VIP.parse().expect("an address");
    let mut client = connected(&lab, vip);
    // Nothing is acknowledged here, and small writes would wait for that.
    client.set_nodelay(true).expect("set");
    client.write_all(GET).expect("sent");
    let (key, ..) = punted(&first);
    first.put_flow(key, FlowDestination::Node(0)).expect("a flow");
    let node = lab.sniffer("n");
    first.stop(PlaneStop::KeepPrograms).expect("stopped");

    // No process is running, and the connection continues.
    client.write_all(b"while nobody looks").expect("sent");
    assert!(node.sees(b"while nobody looks"));

    let second = start(&config);
    let twice = lab.inside("f", || Plane::start(&config)).expect_err("one process at a time");
    assert!(twice.to_string().contains("pins"), "{twice}");
    assert!(second.adopted());
    let flow = second.flow(key).expect("the flow of the first");
    assert_eq!((flow.node, flow.state), (0, 2));
    assert_eq!(second.services().len(), 2);
    let node = lab.sniffer("n");
    client.write_all(b"and after").expect("sent");
    // If the start took long, the client sends what came before again, and no more until that is acknowledged.
    assert!(node.sees_one_of(&[b"and after", b"while nobody looks", GET]));

    // A crash without a shutdown. The next plane is to have other sizes.
    drop(second);
    let resized = PlaneConfig { flows_max: 8192, targets_max: 1024, ring_bytes: 1 << 16, ..config.clone() };
    let sizes = || ["flows", "targets", "events"].map(|map| pinned(&config, map).0.max_entries());
    let third = start(&resized);
    assert!(third.adopted());
    assert_eq!(sizes(), [4096, 4096, 1 << 18]);
    assert_eq!(third.flow(key).map(|flow| (flow.node, flow.state)), Some((0, 2)));
    assert_eq!(third.services().len(), 2);
    // Nothing was acknowledged, so the client retransmits everything, at growing intervals.
    let forwarded = || third.flow(key).map_or(0, |flow| flow.packets);
    let before = forwarded();
    larder_testkit::eventually("a retransmission is forwarded", || (forwarded() > before).then_some(()));
    // At another hook: the old one's program is detached.
    drop(third);
    let fourth = start(&PlaneConfig { attach: AttachMode::Tc, ..resized.clone() });
    assert!(fourth.adopted());
    assert!(!lab.has_xdp("f", "wf"));
    prepare(&fourth, &lab);
    drop(fourth);
    assert!(answers(&lab), "a crash stops no program");
    Plane::clean(&config.name).expect("cleaned");
    assert!(!answers(&lab));
    Plane::clean(&config.name).expect("nothing left to clean");
    let fifth = start(&resized);
    assert!(!fifth.adopted());
    assert_eq!(sizes(), [8192, 1024, 1 << 16]);
}

/// Tables of a version with a shorter entry are replaced by new ones of the configured size.
#[test]
fn tables_of_another_layout_are_replaced() {
    let Some(lab) = Lab::new() else { return };
    let config = config(&lab, AttachMode::Auto);
    let start = || lab.inside("f", || Plane::start(&config)).expect("a plane");
    let first = start();
    prepare(&first, &lab);
    let key = FlowKey::new("10.9.0.2:40000".parse().expect("an address"), 0);
    first.put_flow_seen(key, FlowDestination::Node(0), 11, 22).expect("a flow");
    drop(first);
    let (now, pin) = pinned(&config, "flows");
    let (kind, keys, shorter) = (now.map_type(), now.key_size(), now.value_size() - 16);
    let options = MapCreateOpts { sz: size_of::<MapCreateOpts>() as _, ..MapCreateOpts::default() };
    let mut old = MapHandle::create(kind, Some("flows"), keys, shorter, 1024, &options).expect("a map");
    old.update(&vec![1; keys as usize], &vec![0; shorter as usize], MapFlags::ANY).expect("room");
    fs::remove_file(&pin).expect("removed");
    old.pin(&pin).expect("pinned");

    let second = start();
    assert!(!second.adopted());
    assert!(second.flow(key).is_none() && second.services().is_empty());
    let (now, _) = pinned(&config, "flows");
    assert_eq!((now.value_size(), now.max_entries()), (shorter + 16, 4096));
}

#[test]
fn plane_is_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Plane>();
}

#[test]
fn start_errors_are_described() {
    let Some(lab) = Lab::new() else { return };
    let good = config(&lab, AttachMode::Auto);
    let refused =
        |config: PlaneConfig| lab.inside("f", || Plane::start(&config)).expect_err("no plane").to_string();
    assert!(refused(PlaneConfig { interface: "nope".to_owned(), ..good.clone() }).contains("nope"));
    assert!(refused(PlaneConfig { flows_max: 0, ..good.clone() }).contains("flows_max"));
    assert!(refused(PlaneConfig { ring_bytes: 5000, ..good.clone() }).contains("ring_bytes"));
    assert!(refused(PlaneConfig { hold_packets: 0, ..good.clone() }).contains("hold_packets"));
    assert!(refused(PlaneConfig { name: "../x".to_owned(), ..good }).contains("name"));
}
