//! Revocation of a switch's key while its channel is up.

use super::*;
use crate::channel::server::Outcome;
use larder_testkit::eventually_async;

impl Front {
    /// Waits until the channel is down.
    async fn down(&mut self) {
        loop {
            let event = timeout(HANGS, self.events.recv()).await.expect("in time").expect("an event");
            if matches!(event.what, What::Down(_)) {
                return;
            }
        }
    }
}

#[tokio::test]
async fn the_channel_of_a_revoked_key_ends_at_once_and_what_it_wanted_goes() {
    let mut stage = Stage::new().await;
    let tunnel = Tunnel {
        kind: TunnelKind::Gue { port: 6080 },
        local: [10, 9, 1, 11].into(),
        remote: Some([10, 9, 0, 1].into()),
    };
    let mut bad =
        stage.join(0, Hello { tunnel: Some(tunnel), ..hello(7, &[service(0, 80), service(1, 81)]) });
    bad.welcome().await;
    let mut good = stage.join(1, hello(9, &[service(0, 81)]));
    good.welcome().await;
    good.live().await;
    bad.hand(1, 0, 5);
    stage.sockets.recv().await.expect("a socket");
    stage.kernel.wait(|state| state.tunnels.len() == 1).await;
    let outcomes = stage.agent.outcomes();

    // A list without a key keeps that switch from coming back, and leaves its channel alone.
    let keep = stage.switches[1].public();
    stage.agent.admitted().set(vec![keep]);
    bad.hand(2, 0, 6);
    stage.sockets.recv().await.expect("a socket: its channel is up");
    assert_eq!(outcomes.revoked(), 0);

    stage.agent.admitted().replace(vec![keep], Vec::new());
    bad.down().await;
    assert_eq!(outcomes.revoked(), 1);
    stage
        .kernel
        .wait(|state| {
            let services: Vec<_> = state.services.keys().copied().collect();
            services == [address(81)]
                && state.keys.is_some_and(|keys| !keys.contains(&CookieKey([7; 2])))
                && state.tunnels.is_empty()
        })
        .await;
    let live = stage.kernel.see(|state| state.live.clone());
    assert_eq!(live, [flow(5, 0), flow(6, 0)], "its connections go on");
    let refused = || (outcomes.count(Outcome::Stranger) > 0).then_some(());
    eventually_async("it is turned away when it comes back", refused).await;
    good.hand(3, 0, 7);
    stage.sockets.recv().await.expect("the other switch goes on");

    // It comes back when its key does, and says anew what it wants.
    let both = stage.switches.iter().map(Identity::public).collect();
    stage.agent.admitted().replace(both, Vec::new());
    bad.welcome().await;
    stage.kernel.wait(|state| state.services.len() == 2).await;
    assert_eq!(outcomes.revoked(), 1);
}

#[tokio::test]
async fn a_channel_moves_to_new_keys_of_both_sides() {
    let stage = Stage::new().await;
    let mut front = stage.join(0, hello(7, &[service(0, 80)]));
    front.welcome().await;
    let (node, switch) = (Identity::generate().expect("a key"), Identity::generate().expect("a key"));
    let old = stage.switches[0].public();
    stage.agent.admitted().set_identities(vec![stage.node.clone(), node.clone()]);
    stage.agent.admitted().replace(vec![old, switch.public()], Vec::new());
    front.channel.set_identity(switch.clone(), node.public());
    front.down().await;
    front.welcome().await;
    stage.agent.admitted().set_identities(vec![node]);
    stage.agent.admitted().replace(vec![switch.public()], Vec::new());
    stage.kernel.wait(|state| state.services.contains_key(&address(80))).await;
    front.channel.send(&ToNode::Live).expect("the channel with the new keys goes on");
    front.live().await;
    assert_eq!(stage.agent.outcomes().revoked(), 0, "the old channel had ended by itself");
}
