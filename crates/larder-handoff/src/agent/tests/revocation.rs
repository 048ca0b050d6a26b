//! Revocation of a switch's key while its channel is up.

use super::*;
use crate::channel::server::HandshakeOutcome;
use larder_testkit::eventually_async;

impl TestSwitch {
    /// Waits until the channel is down.
    async fn down(&mut self) {
        loop {
            let event = timeout(TIMEOUT, self.events.recv()).await.expect("in time").expect("an event");
            if matches!(event.kind, EventKind::Down(_)) {
                return;
            }
        }
    }
}

#[tokio::test]
async fn revoking_a_key_ends_its_channel_and_removes_its_settings() {
    let mut fixture = Fixture::new().await;
    let tunnel = InboundTunnel {
        kind: InboundTunnelKind::Gue { port: 6080 },
        local: [10, 9, 1, 11].into(),
        remote: Some([10, 9, 0, 1].into()),
    };
    let mut bad =
        fixture.connect(0, Hello { tunnel: Some(tunnel), ..hello(7, &[service(0, 80), service(1, 81)]) });
    bad.welcome().await;
    let mut good = fixture.connect(1, hello(9, &[service(0, 81)]));
    good.welcome().await;
    good.listing().await;
    bad.hand_off(1, 0, 5);
    fixture.sockets.recv().await.expect("a socket");
    fixture.kernel.wait_until(|state| state.tunnels.len() == 1).await;
    let outcomes = fixture.agent.handshake_counters();

    // A list without a switch's key keeps it from reconnecting, and leaves its channel alone.
    let keep = fixture.switches[1].public();
    fixture.agent.access_control().set_allowed(vec![keep]);
    bad.hand_off(2, 0, 6);
    fixture.sockets.recv().await.expect("a socket, because the channel is up");
    assert_eq!(outcomes.revoked(), 0);

    fixture.agent.access_control().set_allowed_and_revoke(vec![keep], Vec::new());
    bad.down().await;
    assert_eq!(outcomes.revoked(), 1);
    fixture
        .kernel
        .wait_until(|state| {
            let services: Vec<_> = state.services.keys().copied().collect();
            services == [address(81)]
                && state.keys.is_some_and(|keys| !keys.contains(&CookieKey([7; 2])))
                && state.tunnels.is_empty()
        })
        .await;
    let live = fixture.kernel.with_state(|state| state.live.clone());
    assert_eq!(live, [flow(5, 0), flow(6, 0)], "its connections continue");
    let refused = || (outcomes.count(HandshakeOutcome::UnknownKey) > 0).then_some(());
    eventually_async("the revoked switch is rejected", refused).await;
    good.hand_off(3, 0, 7);
    fixture.sockets.recv().await.expect("a socket, because the other switch stays connected");

    // When its key is allowed again, it reconnects with its settings.
    let both = fixture.switches.iter().map(Identity::public).collect();
    fixture.agent.access_control().set_allowed_and_revoke(both, Vec::new());
    bad.welcome().await;
    fixture.kernel.wait_until(|state| state.services.len() == 2).await;
    assert_eq!(outcomes.revoked(), 1);
}

#[tokio::test]
async fn both_sides_can_replace_their_keys() {
    let fixture = Fixture::new().await;
    let mut switch = fixture.connect(0, hello(7, &[service(0, 80)]));
    switch.welcome().await;
    let (node, new_identity) = (Identity::generate().expect("a key"), Identity::generate().expect("a key"));
    let old = fixture.switches[0].public();
    fixture.agent.access_control().set_identities(vec![fixture.node.clone(), node.clone()]);
    fixture.agent.access_control().set_allowed_and_revoke(vec![old, new_identity.public()], Vec::new());
    switch.channel.set_identity(new_identity.clone(), node.public());
    switch.down().await;
    switch.welcome().await;
    fixture.agent.access_control().set_identities(vec![node]);
    fixture.agent.access_control().set_allowed_and_revoke(vec![new_identity.public()], Vec::new());
    fixture.kernel.wait_until(|state| state.services.contains_key(&address(80))).await;
    switch.channel.send(&ToNode::ListConnections).expect("the channel with the new keys is up");
    switch.listing().await;
    assert_eq!(fixture.agent.handshake_counters().revoked(), 0, "the old channel had ended before");
}
