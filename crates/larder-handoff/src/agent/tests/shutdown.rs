//! Shutdown of the node, and removal of connections whose clients have disappeared.

use super::*;

#[tokio::test]
async fn switches_learn_of_a_shutdown_in_advance() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.agent.announce_shutdown().await, 0, "no switch is connected");
    let fixture = Fixture::new().await;
    let mut switches = [0, 1].map(|which| fixture.connect(which, hello(7, &[service(4, 81)])));
    for switch in &mut switches {
        switch.welcome().await;
        switch.listing().await;
    }
    let [mut first, mut second] = switches;
    let announcing = async { fixture.agent.announce_shutdown().await };
    let answering = async {
        assert_eq!(first.next_message().await, FromNode::ShuttingDown);
        assert_eq!(second.next_message().await, FromNode::ShuttingDown);
        first.channel.send(&ToNode::ShutdownAcknowledged).expect("room");
        // The other switch disconnects instead of acknowledging.
        drop(second);
    };
    assert_eq!(timeout(TIMEOUT, async { tokio::join!(announcing, answering).0 }).await, Ok(2));
    let mut late = fixture.connect(1, hello(7, &[service(4, 81)]));
    late.welcome().await;
    assert_eq!(late.next_message().await, FromNode::ShuttingDown);
    late.listing().await;
    fixture.kernel.emit([PlayedEvent::Closed(flow(1, 1))]);
    fixture.agent.stop().await;
    assert!(
        matches!(first.next_message().await, FromNode::Closed(list) if list.len() == 1),
        "reported when the agent stops"
    );
}

#[tokio::test]
async fn connections_of_vanished_clients_are_removed() {
    let fixture = Fixture::new().await;
    let mut switch = fixture.connect(0, hello(7, &[service(4, 81)]));
    switch.welcome().await;
    switch.listing().await;
    fixture.kernel.with_state(|state| {
        state.live = vec![flow(1, 1), flow(2, 1), flow(3, 1)];
        state.silent = vec![flow(1, 1), flow(2, 1)];
        state.sockets = vec![(address(81), flow(1, 1).client)];
        state.failing = true;
    });
    switch.channel.send(&ToNode::ListConnections).expect("room");
    assert_eq!(switch.listing().await.len(), 3, "an incomplete listing removes nothing");
    fixture.kernel.with_state(|state| state.failing = false);
    switch.channel.send(&ToNode::ListConnections).expect("room");
    let ports: Vec<u16> = switch.listing().await.iter().map(|one| one.client.port()).collect();
    assert_eq!(ports, [1, 3], "2 is stale");
    let FromNode::Closed(list) = switch.next_message().await else { panic!("expected closed connections") };
    assert_eq!(
        list.iter().map(|one| (one.connection.client.port(), one.first_seq)).collect::<Vec<_>>(),
        [(2, 5)]
    );
}

/// The kernel knows first sequence numbers only of connections that it accepted; the switch supplies those of restored
/// ones.
#[tokio::test]
async fn a_restored_connection_closes_with_the_first_seq_of_its_handoff() {
    let mut fixture = Fixture::new().await;
    let mut switch = fixture.connect(0, hello(7, &[service(4, 81)]));
    switch.welcome().await;
    switch.listing().await;
    fixture.kernel.with_state(|state| state.without_first_seq = true);
    switch.hand_off(1, 4, 5);
    assert_eq!(switch.next_message().await, FromNode::Restored { ids: vec![1] });
    fixture.sockets.recv().await.expect("a socket");
    fixture.kernel.emit([PlayedEvent::Closed(flow(5, 1)), PlayedEvent::Closed(flow(5, 1))]);
    let FromNode::Closed(list) = switch.next_message().await else { panic!("expected closed connections") };
    assert_eq!(
        list.iter().map(|one| one.first_seq).collect::<Vec<_>>(),
        [7, 0],
        "only the first close is known"
    );
}
