//! Traces of requests that a switch and its nodes send to a collector.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::http::{ask, get, metrics};
use crate::process::{Process, until};

/// A collector that stores the spans it receives: OTLP/HTTP in JSON.
struct Collector {
    address: SocketAddr,
    /// Each span has the name of its service in `service`.
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let spans = Arc::<Mutex<Vec<Value>>>::default();
        let kept = spans.clone();
        // The thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let (mut line, mut length) = (String::new(), 0);
                reader.read_line(&mut line).unwrap();
                assert_eq!(line.trim(), "POST /v1/traces HTTP/1.1");
                loop {
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                    let Some((name, value)) = line.trim().split_once(':') else { break };
                    match name.to_ascii_lowercase().as_str() {
                        "content-length" => length = value.trim().parse().unwrap(),
                        "content-type" => assert_eq!(value.trim(), "application/json"),
                        "x-api-key" => assert_eq!(value.trim(), "1234"),
                        _ => {}
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                keep(&kept, &serde_json::from_slice(&body).unwrap());
                reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            }
        });
        Self { address, spans }
    }

    /// Waits until a trace has this many spans, and returns them by start time.
    fn trace(&self, id: &str, count: usize) -> Vec<Value> {
        until(format!("{count} spans of {id}"), || {
            let all = self.spans.lock().unwrap();
            let mut of: Vec<Value> = all.iter().filter(|span| span["traceId"] == id).cloned().collect();
            of.sort_by_key(|span| span["startTimeUnixNano"].as_str().unwrap().to_owned());
            (of.len() >= count).then_some(of)
        })
    }
}

fn keep(kept: &Mutex<Vec<Value>>, batch: &Value) {
    for resource in batch["resourceSpans"].as_array().unwrap() {
        let service = attribute(&resource["resource"], "service.name");
        for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
            let mut span = span.clone();
            span["service"] = service.clone();
            kept.lock().unwrap().push(span);
        }
    }
}

fn attribute(of: &Value, name: &str) -> Value {
    let all = of["attributes"].as_array().unwrap();
    let value = all.iter().find(|attribute| attribute["key"] == name).map(|attribute| &attribute["value"]);
    value.map_or(Value::Null, |value| value.as_object().unwrap().values().next().unwrap().clone())
}

fn spans_of<'a>(spans: &'a [Value], service: &str, name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["service"] == service && span["name"] == name).collect()
}

struct TracedCluster {
    collector: Collector,
    switch: Process,
    node: Process,
    _folder: tempfile::TempDir,
}

/// Starts a switch with these lines before a node that traces every request.
fn cluster(lines: &str) -> TracedCluster {
    let collector = Collector::start();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "a").unwrap();
    let traces = format!("endpoint = \"http://{}\"\nheaders = [\"x-api-key: 1234\"]", collector.address);
    let config = folder.path().join("node.toml");
    let root = folder.path().display();
    let text = format!(
        "[node]\nname = \"a\"\nlisten = \"127.0.0.1:0\"\nroot = \"{root}\"\n[node.traces]\n{traces}\nratio = 1.0\n"
    );
    fs::write(&config, text).unwrap();
    let node = Process::start(&["node", "--config", config.to_str().unwrap()]);
    // No server listens on the discard port, so its requests are retried at the next node.
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\npolicy = \"rr\"\nnodes = [{{ name = \"dead\", address = \"127.0.0.1:9\" }}, \
         {{ name = \"a\", address = \"{}\" }}]\n[switch.health]\ncheck = \"off\"\npassive_fall = 0\n[switch.traces]\n{traces}\n{lines}\nservice = \"edge\"\n",
        node.address
    );
    let config = folder.path().join("switch.toml");
    fs::write(&config, text).unwrap();
    let switch = Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"]);
    TracedCluster { collector, switch, node, _folder: folder }
}

#[test]
fn a_request_is_traced_through_the_switch_to_the_node_that_answers() {
    let cluster = cluster("ratio = 0.0");
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let client = "00f067aa0ba902b7";
    for _ in 0..2 {
        let header = format!("traceparent: 00-{trace}-{client}-01\r\n");
        assert_eq!(ask(cluster.switch.address, "GET", "/a.txt", &header).status, 200);
    }
    // Two requests give two decisions and two spans of the node. Each request was sent to the dead node
    // first.
    let spans = cluster.collector.trace(trace, 2 + 2 + 4 + 2);
    let requests = spans_of(&spans, "edge", "request");
    assert_eq!(requests.len(), 2);
    for request in &requests {
        assert_eq!((&request["parentSpanId"], &request["kind"]), (&client.into(), &2.into()));
        assert_eq!(attribute(request, "http.response.status_code"), "200");
        assert_eq!(attribute(request, "url.path"), "/a.txt");
    }
    for decision in spans_of(&spans, "edge", "decision") {
        assert_eq!(attribute(decision, "larder.policy"), "rr");
        assert_eq!(attribute(decision, "larder.target").as_str().unwrap().len(), 16);
        assert!(requests.iter().any(|request| request["spanId"] == decision["parentSpanId"]));
    }
    let relays = spans_of(&spans, "edge", "relay");
    let (failed, done): (Vec<&Value>, Vec<&Value>) =
        relays.into_iter().partition(|relay| attribute(relay, "larder.node") == "dead");
    assert_eq!((failed.len(), done.len()), (2, 2));
    assert_eq!(
        (&failed[0]["status"]["code"], &failed[0]["status"]["message"]),
        (&2.into(), &"connect_failed".into())
    );
    let served = spans_of(&spans, "larder-node", "serve");
    assert_eq!(served.len(), 2);
    for span in served {
        // The node's span is a child of the attempt that reached it.
        assert!(done.iter().any(|relay| relay["spanId"] == span["parentSpanId"]), "{span:#}");
        assert!(attribute(span, "larder.cache_status").as_str().unwrap().starts_with("a; "));
    }
    let metrics = metrics(cluster.switch.admin.unwrap());
    assert!(metrics.contains("larder_switch_spans_total{outcome=\"dropped\"} 0"), "{metrics}");
}

#[test]
fn unsampled_requests_are_not_traced_and_without_a_parent_the_ratio_decides() {
    let cluster = cluster("ratio = 1.0");
    let unsampled = "traceparent: 00-11111111111111111111111111111111-00f067aa0ba902b7-00\r\n";
    assert_eq!(ask(cluster.switch.address, "GET", "/a.txt", unsampled).status, 200);
    assert_eq!(get(cluster.switch.address, "/a.txt").status, 200);
    let begun = until("a trace is begun", || {
        let all = cluster.collector.spans.lock().unwrap();
        all.iter().find(|span| span["name"] == "request").cloned()
    });
    assert!(begun["parentSpanId"].is_null() && begun["service"] == "edge", "{begun:#}");
    // The node continues the trace.
    until("the node's span", || {
        let spans = cluster.collector.trace(begun["traceId"].as_str().unwrap(), 4);
        (spans_of(&spans, "larder-node", "serve").len() == 1).then_some(())
    });
    let all = cluster.collector.spans.lock().unwrap();
    assert!(all.iter().all(|span| span["traceId"] != "11111111111111111111111111111111"));
}

#[test]
fn a_node_traces_no_request_that_the_switch_does_not_trace() {
    let cluster = cluster("ratio = 0.0\nparents = false");
    for fields in
        ["", "traceparent: 00-22222222222222222222222222222222-00f067aa0ba902b7-01\r\ntracestate: a=b\r\n"]
    {
        assert_eq!(ask(cluster.switch.address, "GET", "/a.txt", fields).status, 200);
    }
    // A request that bypasses the switch is traced by the node. Its span arrives after all earlier ones.
    assert_eq!(get(cluster.node.address, "/a.txt").status, 200);
    until("the node's own", || {
        let all = cluster.collector.spans.lock().unwrap();
        assert!(all.len() <= 1, "{all:#?}");
        (all.len() == 1 && all[0]["name"] == "serve").then_some(())
    });
}
