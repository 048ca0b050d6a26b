//! Header fields that the node adds to requests to its origin.

use super::stub::{Stub, StubReply};
use super::*;
use http::{HeaderMap, HeaderValue};
use larder_node::{OriginConfig, StoreConfig};

const STORABLE: &str = "Cache-Control: max-age=60\r\n";

fn fields(token: &'static str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert("authorization", HeaderValue::from_static(token));
    fields.insert("x-tier", HeaderValue::from_static("cache"));
    fields
}

#[tokio::test]
async fn configured_fields_replace_those_of_clients_and_leave_sharing_unchanged() {
    let stub = Stub::start(|_| StubReply::new(200, STORABLE, "x")).await;
    let node = stub.node(|origin, _| origin.fields = fields("Bearer node")).await;
    let mut client = node.client().await;
    // The client's field does not reach the origin, so the reply is not specific to the client.
    let first = client
        .get_with("/x", "Authorization: Bearer a\r\nX-Tier: browser\r\nX-Tier: other\r\nX-Own: 1\r\n")
        .await;
    assert_eq!(first.cache_status(), "n; fwd=uri-miss; fwd-status=200; stored");
    node.wait_until(|stats| stats.cache_objects == 1).await;
    for own in ["", "Authorization: Bearer b\r\n", "X-Tier: browser\r\n"] {
        assert!(client.get_with("/x", own).await.cache_status().starts_with("n; hit"), "{own}");
    }
    client.request("POST", "/x", "Content-Length: 0\r\nAuthorization: Bearer a\r\n").await;
    let requests = stub.requests();
    assert_eq!(requests.len(), 2);
    for request in &requests {
        assert_eq!((request.header("authorization"), request.header("x-tier")), ("Bearer node", "cache"));
        assert_eq!(request.head.to_lowercase().matches("x-tier:").count(), 1, "{}", request.head);
    }
    assert_eq!(requests[0].header("x-own"), "1");
}

#[tokio::test]
async fn a_reload_changes_the_fields() {
    let stub = Stub::start(|_| StubReply::new(200, "Cache-Control: no-store\r\n", "x")).await;
    let node = stub.node(|origin, _| origin.fields = fields("Bearer old")).await;
    let mut client = node.client().await;
    client.get("/x").await;
    let mut origin = OriginConfig::new(stub.url());
    origin.fields = fields("Bearer new");
    let config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin)));
    node.node.change(&config, None).unwrap();
    client.get("/x").await;
    let requests = stub.requests();
    let tokens: Vec<&str> = requests.iter().map(|request| request.header("authorization")).collect();
    assert_eq!(tokens, ["Bearer old", "Bearer new"]);
    assert_eq!(requests[1].earlier, 1, "connections are used on");
}

/// The origin returns a TRACE with the fields that only the origin may see.
#[tokio::test]
async fn a_trace_does_not_show_the_fields() {
    let stub =
        Stub::start(|request| StubReply::new(200, "Cache-Control: no-store\r\n", request.head.clone())).await;
    let node = stub.node(|origin, _| origin.fields = fields("Bearer secret")).await;
    let reply = node.client().await.request("TRACE", "/x", "").await;
    assert_eq!((reply.status, stub.requests().len()), (405, 0));
    let node = stub.node(|_, _| {}).await;
    assert_eq!(node.client().await.request("TRACE", "/x", "").await.status, 200);
}
