//! Stopping, and what is written down.

mod support;

use larder_edge::access::{AccessFormat, AccessLogConfig, LineFormat};
use larder_switch::ACCESS_FIELDS;
use std::time::Duration;
use support::{Act, Node, PATIENCE, Running, config, eventually, ok};

#[tokio::test]
async fn a_stopping_switch_finishes_what_it_has() {
    let node = Node::scripted("a", |head| {
        if head.starts_with("GET /slow") { Act::Gated(ok("a", "slow")) } else { Act::Reply(ok("a", "quick")) }
    })
    .await;
    let mut switch = Running::start(config(&[&node]));
    let (mut idle, mut busy) = (switch.client().await, switch.client().await);
    assert_eq!(idle.get("/").await.text(), "quick");
    busy.send("GET /slow HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it is in flight", || node.requests() == 2).await;
    switch.stop();
    assert!(idle.closes().await);
    // The listener is closed.
    eventually("the port is closed", || std::net::TcpStream::connect(switch.address).is_err()).await;
    assert!(!switch.task.is_finished());
    node.gate.add_permits(1);
    let reply = busy.reply().await;
    assert_eq!(reply.text(), "slow");
    assert!(busy.closes().await);
    tokio::time::timeout(PATIENCE, &mut switch.task)
        .await
        .expect("ends")
        .expect("no panic")
        .expect("no error");
    assert_eq!(switch.loads(), [0]);
}

#[tokio::test]
async fn the_drain_deadline_cuts_what_is_left() {
    let node = Node::scripted("a", |_| Act::Hang).await;
    let mut config = config(&[&node]);
    config.timeouts.drain = Duration::from_millis(50);
    let mut switch = Running::start(config);
    let mut client = switch.client().await;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it is in flight", || switch.loads() == [1]).await;
    switch.stop();
    assert!(client.closes().await);
    tokio::time::timeout(PATIENCE, &mut switch.task)
        .await
        .expect("ends")
        .expect("no panic")
        .expect("no error");
    assert_eq!((switch.loads(), switch.handle.status().outstanding), (vec![0], 0));
}

#[tokio::test]
async fn requests_are_written_down() {
    let dir = std::env::temp_dir().join(format!("larder-drain-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let own =
        LineFormat::parse("{client} {target} {reply:content-length} {header:user-agent}", &ACCESS_FIELDS)
            .expect("a format");
    for (format, name) in [
        (AccessFormat::Combined, "combined"),
        (AccessFormat::Json, "json"),
        (AccessFormat::Custom(own), "own"),
    ] {
        let node = Node::named("a").await;
        let path = dir.join(name);
        let mut config = config(&[&node]);
        config.access_log = Some(AccessLogConfig { format: format.clone(), ..AccessLogConfig::file(&path) });
        let mut switch = Running::start(config);
        let mut client = switch.client().await;
        client.send("GET /x?y HTTP/1.1\r\nHost: test\r\nUser-Agent: t\"t\r\n\r\n").await;
        assert_eq!(client.reply().await.status, 200);
        drop(client);
        switch.stop();
        tokio::time::timeout(PATIENCE, &mut switch.task)
            .await
            .expect("ends")
            .expect("no panic")
            .expect("no error");
        drop(switch);
        let read = || std::fs::read_to_string(&path).unwrap_or_default();
        eventually("the line is written", || read().ends_with('\n')).await;
        let line = read();
        match format {
            AccessFormat::Combined => {
                assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
                let rest = "\"GET /x?y HTTP/1.1\" 200 1 \"-\" \"t\\x22t\" node=a reason=first error=- tries=1 cache=hit queue_us=- connect_us=";
                assert!(line.contains(rest), "{line}");
            }
            AccessFormat::Custom(_) => assert_eq!(line, "127.0.0.1 /x?y 1 t\\x22t\n"),
            AccessFormat::Json => {
                let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                assert_eq!((&value["target"], &value["status"]), (&"/x?y".into(), &200.into()));
                assert!(value["total_us"].as_u64() >= value["first_byte_us"].as_u64(), "{line}");
            }
        }
    }
    std::fs::remove_dir_all(&dir).expect("removes");
}

#[tokio::test]
async fn the_metrics_text_holds_every_metric_of_the_table() {
    let node = Node::named("a").await;
    let switch = Running::start(config(&[&node]));
    assert_eq!(switch.client().await.get("/").await.status, 200);
    let text = switch.handle.metrics_text();
    for metric in larder_switch::METRICS {
        // A family may have no line, such as the ages of reports where there are none.
        let family = format!("# TYPE {} ", metric.name.strip_suffix("_total").unwrap_or(metric.name));
        assert!(text.contains(&family), "{} is missing in\n{text}", metric.name);
    }
    assert!(text.ends_with("# EOF\n"));
}
