//! Encoded messages decode to themselves, and all other bytes are rejected.

use super::super::holders::tests::{query, reply};
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::IpAddr;

fn connection() -> impl Strategy<Value = Connection> {
    (any::<(IpAddr, u16)>(), 0..SERVICES_MAX)
        .prop_map(|(client, service)| Connection { client: client.into(), service })
}

fn socket() -> impl Strategy<Value = ConnectionId> {
    (connection(), any::<u32>()).prop_map(|(connection, first_seq)| ConnectionId { connection, first_seq })
}

fn keys() -> impl Strategy<Value = CookieKeys> {
    any::<([[u64; 2]; 2], bool)>()
        .prop_map(|(keys, second)| CookieKeys::new(keys.map(CookieKey), usize::from(second)))
}

fn services() -> impl Strategy<Value = Vec<Service>> {
    vec(any::<(u16, bool, bool, bool, bool)>(), 0..usize::from(SERVICES_MAX)).prop_map(|list| {
        let service = |(id, (port, v6, cookie, stash, grace))| Service {
            id,
            address: SocketAddr::new(if v6 { [7; 16].into() } else { IpAddr::from([9; 4]) }, port),
            cookie,
            stash,
            grace,
        };
        let mut list: Vec<Service> = (0..).zip(list).map(service).collect();
        list.sort_by_key(|one| one.address);
        list.dedup_by_key(|one| one.address);
        list
    })
}

fn blob() -> impl Strategy<Value = Blob> {
    vec(any::<u8>(), 0..300).prop_map(Blob)
}

fn tunnel() -> impl Strategy<Value = InboundTunnel> {
    let kind = prop_oneof![
        Just(InboundTunnelKind::Ipip),
        any::<u16>().prop_map(|port| InboundTunnelKind::Gue { port }),
        (any::<u16>(), 0..1_u32 << 24).prop_map(|(port, vni)| InboundTunnelKind::Vxlan { port, vni }),
    ];
    (kind, any::<(IpAddr, IpAddr)>()).prop_map(|(kind, (local, remote))| InboundTunnel {
        kind,
        local,
        remote: Some(remote),
    })
}

fn to_node() -> impl Strategy<Value = ToNode> {
    prop_oneof![
        ("[ -~]{0,64}", 0..=TAG_MAX, keys(), services(), prop::option::of(tunnel())).prop_map(
            |(name, tag, keys, services, tunnel)| ToNode::Hello(Hello { name, tag, keys, services, tunnel })
        ),
        reply().prop_map(ToNode::Holders),
        keys().prop_map(ToNode::Keys),
        services().prop_map(ToNode::Services),
        Just(ToNode::ListConnections),
        (any::<(u64, u32)>(), connection(), blob(), blob()).prop_map(
            |((id, first_seq), connection, checkpoint, request)| {
                ToNode::Handoff(Handoff { id, connection, first_seq, checkpoint, request })
            }
        ),
        connection().prop_map(ToNode::CancelHandoff),
        any::<u64>().prop_map(ToNode::Ping),
        Just(ToNode::ReleaseIdle),
        connection().prop_map(ToNode::RequestState),
        connection().prop_map(ToNode::Transferred),
        connection().prop_map(ToNode::Keep),
        Just(ToNode::ShutdownAcknowledged),
        (0..=TAG_MAX).prop_map(ToNode::Tag),
    ]
}

fn from_node() -> impl Strategy<Value = FromNode> {
    let settings = || {
        (vec(0..SERVICES_MAX, 0..9), any::<(bool, bool, bool, bool)>()).prop_map(
            |(services, (keys, tag, tunnel, cookie_conflict))| SettingsStatus {
                services,
                keys,
                tag,
                tunnel,
                cookie_conflict,
            },
        )
    };
    let welcome = ("[ -~]{0,64}", any::<(u64, bool, bool, bool, Option<[u8; 6]>, u32)>(), settings());
    prop_oneof![
        welcome.prop_map(|(name, (incarnation, cookie, repair, lateral, mac, mtu), settings)| {
            FromNode::Welcome(Welcome { name, incarnation, cookie, repair, lateral, mac, mtu, settings })
        }),
        query().prop_map(FromNode::FindHolders),
        settings().prop_map(FromNode::Settings),
        vec(socket(), 0..=CLOSED_MAX).prop_map(FromNode::Closed),
        (vec(socket(), 0..99), any::<bool>())
            .prop_map(|(connections, last)| FromNode::Connections(ConnectionPage { connections, last })),
        prop::collection::vec(any::<u64>(), 0..5).prop_map(|ids| FromNode::Restored { ids }),
        (any::<u64>(), "\\PC{0,40}").prop_map(|(id, detail)| FromNode::Refused {
            id,
            reason: Refusal::Kernel,
            detail,
        }),
        (any::<u32>(), prop::option::of(0..=1_000_u16), any::<u32>()).prop_map(
            |(connections, cpu_permille, stashed)| FromNode::Load(LoadReport {
                connections,
                cpu_permille,
                stashed
            })
        ),
        any::<u64>().prop_map(FromNode::Pong),
        connection().prop_map(FromNode::Offer),
        (any::<(u64, u32)>(), connection(), blob(), blob()).prop_map(
            |((id, first_seq), connection, checkpoint, request)| {
                FromNode::Transfer(Handoff { id, connection, first_seq, checkpoint, request })
            }
        ),
        connection().prop_map(FromNode::Withdraw),
        Just(FromNode::ShuttingDown),
    ]
}

proptest! {
    #[test]
    fn messages_round_trip(to in to_node(), from in from_node()) {
        prop_assert_eq!(ToNode::decode(&to.encode().unwrap()), Ok(to));
        prop_assert_eq!(FromNode::decode(&from.encode().unwrap()), Ok(from));
    }

    /// Arbitrary bytes give an error, or a message within its limits that encodes and decodes to itself.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..600)) {
        if let Ok(message) = ToNode::decode(&bytes) {
            prop_assert_eq!(ToNode::decode(&message.encode().unwrap()), Ok(message));
        }
        if let Ok(message) = FromNode::decode(&bytes) {
            prop_assert_eq!(FromNode::decode(&message.encode().unwrap()), Ok(message));
        }
    }

    #[test]
    fn corrupted_messages_never_panic(to in to_node(), from in from_node(), at in any::<prop::sample::Index>(),
                                   with in any::<u8>(), cut in any::<prop::sample::Index>()) {
        for mut bytes in [to.encode().unwrap(), from.encode().unwrap()] {
            let place = at.index(bytes.len());
            bytes[place] = with;
            let _ = (ToNode::decode(&bytes), FromNode::decode(&bytes));
            bytes.truncate(cut.index(bytes.len()));
            let _ = (ToNode::decode(&bytes), FromNode::decode(&bytes));
        }
    }
}

#[test]
fn each_limit_has_its_own_error() {
    let one = Connection { client: ([10, 0, 0, 1], 7).into(), service: 0 };
    let socket = ConnectionId { connection: one, first_seq: 0 };
    let service = |id, port| Service {
        id,
        address: ([10, 9, 0, 100], port).into(),
        cookie: true,
        stash: false,
        grace: false,
    };
    let limit = |what: Result<Vec<u8>, MessageError>| match what {
        Err(MessageError::Limit(what)) => what,
        other => panic!("must be beyond a limit: {other:?}"),
    };
    assert_eq!(
        limit(FromNode::Closed(vec![socket; CLOSED_MAX + 1]).encode()),
        "the number of closed connections"
    );
    let live = ConnectionPage { connections: vec![socket; PAGE_CONNECTIONS_MAX + 1], last: true };
    assert_eq!(limit(FromNode::Connections(live).encode()), "the number of connections");
    let far = Connection { service: SERVICES_MAX, ..one };
    assert_eq!(limit(ToNode::CancelHandoff(far).encode()), "the number of a listen address");
    for twice in [[service(1, 80), service(1, 81)], [service(1, 80), service(2, 80)]] {
        assert_eq!(
            limit(ToNode::Services(twice.to_vec()).encode()),
            "the number of duplicate listen addresses"
        );
    }
    let tunnel = |kind, remote| Hello {
        name: String::new(),
        tag: 0,
        keys: CookieKeys::new([CookieKey([0; 2]); 2], 0),
        services: Vec::new(),
        tunnel: Some(InboundTunnel { kind, local: [9; 4].into(), remote }),
    };
    let anybody = ToNode::Hello(tunnel(InboundTunnelKind::Ipip, None));
    assert_eq!(limit(anybody.encode()), "the number of tunnels without a remote address");
    let vxlan = InboundTunnelKind::Vxlan { port: 4789, vni: 1 << 24 };
    assert_eq!(
        limit(ToNode::Hello(tunnel(vxlan, Some([8; 4].into()))).encode()),
        "the VXLAN network identifier"
    );
    let load = LoadReport { cpu_permille: Some(1_001), ..LoadReport::default() };
    assert_eq!(limit(FromNode::Load(load).encode()), "the processor use");
    let detail = "x".repeat(TEXT_BYTES_MAX + 1);
    assert_eq!(truncate_text(detail.clone()).len(), TEXT_BYTES_MAX);
    assert_eq!(truncate_text("é".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
    let refused = FromNode::Refused { id: 1, reason: Refusal::Full, detail };
    assert_eq!(limit(refused.encode()), "the length of a text");
    let checkpoint = Blob(vec![0; MESSAGE_BYTES_MAX]);
    let handoff = Handoff { id: 0, connection: one, first_seq: 0, checkpoint, request: Blob::default() };
    assert!(matches!(ToNode::Handoff(handoff).encode(), Err(MessageError::TooLong(_))));
    let mut bytes = ToNode::ListConnections.encode().unwrap();
    bytes.push(0);
    assert_eq!(ToNode::decode(&bytes), Err(MessageError::Trailing(1)));
}
