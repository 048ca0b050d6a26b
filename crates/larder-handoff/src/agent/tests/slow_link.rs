//! A control channel over a slow link.

use super::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Relays one connection; bytes to `to` pass at `rate` bytes per second.
async fn slow_link(to: SocketAddr, rate: f64) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.expect("accepted");
        let far = tokio::net::TcpStream::connect(to).await.expect("connected");
        let ((mut from_near, mut to_near), (mut from_far, mut to_far)) =
            (near.into_split(), far.into_split());
        let back = async { tokio::io::copy(&mut from_far, &mut to_near).await };
        let forth = async {
            let mut chunk = vec![0; 16 << 10];
            loop {
                let length = from_near.read(&mut chunk).await?;
                if length == 0 {
                    return io::Result::Ok(0);
                }
                to_far.write_all(&chunk[..length]).await?;
                larder_testkit::take_time_async(Duration::from_secs_f64(length as f64 / rate)).await;
            }
        };
        let _ = tokio::join!(back, forth);
    });
    address
}

/// A message that takes longer than the silence timeout, during which no pings get through.
#[tokio::test]
async fn a_long_message_on_a_slow_link_is_not_silence() {
    let mut fixture = Fixture::new().await;
    let address = slow_link(fixture.agent.address(), 2e6).await;
    let (sink, events) = mpsc::channel(4_096);
    let peer = NodeAddress { node: 0, name: "a".into(), address, key: fixture.node.public() };
    // Shorter than the interval of load reports.
    let timing = Timing { silence: Duration::from_millis(700), ..timing() };
    let told = hello(7, &[service(4, 81)]);
    let channel = NodeChannel::start(peer, fixture.switches[0].clone(), told, timing, sink);
    let mut switch = TestSwitch { channel, events };
    switch.welcome().await;
    switch.listing().await;
    let connection = Connection { client: ([192, 0, 2, 1], 1).into(), service: 4 };
    let (checkpoint, request) = (Blob(vec![7; 4 << 20]), Blob(b"GET /".to_vec()));
    let began = std::time::Instant::now();
    switch
        .channel
        .send(&ToNode::Handoff(Handoff { id: 9, connection, first_seq: 0, checkpoint, request }))
        .expect("room");
    assert_eq!(switch.next_message().await, FromNode::Restored { ids: vec![9] });
    assert!(began.elapsed() > timing.silence * 2, "{:?}: too fast for this test", began.elapsed());
    fixture.sockets.recv().await.expect("a socket");
}
