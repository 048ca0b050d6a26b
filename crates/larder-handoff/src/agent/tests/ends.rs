//! Ends: of the node, and of clients of whom nothing is heard any more.

use super::*;

#[tokio::test]
async fn front_ends_know_of_the_end_before_it_comes() {
    let stage = Stage::new().await;
    assert_eq!(stage.agent.farewell().await, 0, "nobody is there");
    let stage = Stage::new().await;
    let mut fronts = [0, 1].map(|which| stage.join(which, hello(7, &[service(4, 81)])));
    for front in &mut fronts {
        front.welcome().await;
        front.live().await;
    }
    let [mut one, mut other] = fronts;
    let telling = async { stage.agent.farewell().await };
    let answering = async {
        assert_eq!(one.heard().await, FromNode::Ending);
        assert_eq!(other.heard().await, FromNode::Ending);
        one.channel.send(&ToNode::Noted).expect("room");
        // The other one goes rather than answer.
        drop(other);
    };
    assert_eq!(timeout(HANGS, async { tokio::join!(telling, answering).0 }).await, Ok(2));
    let mut late = stage.join(1, hello(7, &[service(4, 81)]));
    late.welcome().await;
    assert_eq!(late.heard().await, FromNode::Ending);
    late.live().await;
    stage.kernel.happens([Told::Closed(flow(1, 1))]);
    stage.agent.stop().await;
    assert!(matches!(one.heard().await, FromNode::Closed(list) if list.len() == 1), "told at the end");
}

#[tokio::test]
async fn connections_of_vanished_clients_are_not_kept() {
    let stage = Stage::new().await;
    let mut front = stage.join(0, hello(7, &[service(4, 81)]));
    front.welcome().await;
    front.live().await;
    stage.kernel.see(|state| {
        state.live = vec![flow(1, 1), flow(2, 1), flow(3, 1)];
        state.silent = vec![flow(1, 1), flow(2, 1)];
        state.sockets = vec![(address(81), flow(1, 1).client)];
        state.refuse = true;
    });
    front.channel.send(&ToNode::Live).expect("room");
    assert_eq!(front.live().await.len(), 3, "a list that breaks off proves nothing");
    stage.kernel.see(|state| state.refuse = false);
    front.channel.send(&ToNode::Live).expect("room");
    let ports: Vec<u16> = front.live().await.iter().map(|one| one.client.port()).collect();
    assert_eq!(ports, [1, 3], "idle, gone, at work");
    let FromNode::Closed(list) = front.heard().await else { panic!("must be ended connections") };
    assert_eq!(
        list.iter().map(|one| (one.connection.client.port(), one.first_seq)).collect::<Vec<_>>(),
        [(2, 5)]
    );
}

/// What the kernel has not accepted by itself it knows no number of: the front-end has said it.
#[tokio::test]
async fn a_restored_connection_ends_by_the_number_it_came_with() {
    let mut stage = Stage::new().await;
    let mut front = stage.join(0, hello(7, &[service(4, 81)]));
    front.welcome().await;
    front.live().await;
    stage.kernel.see(|state| state.unnumbered = true);
    front.hand(1, 4, 5);
    assert_eq!(front.heard().await, FromNode::Restored { ids: vec![1] });
    stage.sockets.recv().await.expect("a socket");
    stage.kernel.happens([Told::Closed(flow(5, 1)), Told::Closed(flow(5, 1))]);
    let FromNode::Closed(list) = front.heard().await else { panic!("must be ended connections") };
    assert_eq!(list.iter().map(|one| one.first_seq).collect::<Vec<_>>(), [7, 0], "once");
}
