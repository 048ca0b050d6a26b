//! Cost of a request at the client: this crate's clients and hyper's, in turn, against the same server.
//!
//! `cargo run --release -p larder-load --example client_cost -- ADDRESS PATH CLIENTS REQUESTS`
//!
//! Both run a closed loop on one thread, keep connections open and count body bytes. Prints processor time per
//! request (user and system) and requests per second; five rounds each, alternating, so that a machine that slows
//! down slows both.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be made should stop")]

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use larder_load::{Arrivals, Plan};

struct Load {
    address: SocketAddr,
    path: String,
    clients: u32,
    requests: u64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = |default: &str| args.next().unwrap_or_else(|| default.to_owned());
    let load = Load {
        address: next("127.0.0.1:8080").parse().unwrap(),
        path: next("/"),
        clients: next("64").parse().unwrap(),
        requests: next("100000").parse().unwrap(),
    };
    println!("{:<8}{:>16}{:>14}{:>14}", "client", "CPU us/request", "requests/s", "bytes/reply");
    for _ in 0..5 {
        ours(&load);
        hypers(&load);
    }
}

fn print(name: &str, cpu_us: f64, per_s: f64, bytes: f64) {
    println!("{name:<8}{cpu_us:>16.2}{per_s:>14.0}{bytes:>14.0}");
}

fn ours(load: &Load) {
    let plan = Plan {
        arrivals: Arrivals::Closed { clients: load.clients },
        requests: Some(load.requests),
        warmup_requests: load.requests / 10,
        ..Plan::new(load.address, "test", [load.path.clone()].into(), [0].into())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(larder_load::run(plan, &|_| ())).unwrap();
    assert_eq!(report.failed, 0, "{:?}", report.faults);
    let bytes = report.body_bytes as f64 / report.ok as f64;
    print("ours", report.generator.cpu_us_per_request, report.requests_per_s, bytes);
}

/// The same with hyper's client: a task for each client, the connection polled beside it.
fn hypers(load: &Load) {
    let left = Rc::new(std::cell::Cell::new(load.requests));
    let bytes = Rc::new(std::cell::Cell::new(0u64));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let path: Arc<str> = load.path.as_str().into();
    let begun = (Instant::now(), cpu_us());
    local.block_on(&runtime, async {
        let mut clients = Vec::new();
        for _ in 0..load.clients {
            let (left, bytes, path) = (Rc::clone(&left), Rc::clone(&bytes), Arc::clone(&path));
            let address = load.address;
            clients.push(tokio::task::spawn_local(async move {
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
                tokio::task::spawn_local(connection);
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    let request = hyper::Request::get(&*path)
                        .header("Host", "test")
                        .body(Empty::<bytes::Bytes>::new())
                        .unwrap();
                    sender.ready().await.unwrap();
                    let mut reply = sender.send_request(request).await.unwrap();
                    while let Some(frame) = reply.body_mut().frame().await {
                        let data = frame.unwrap().into_data().map_or(0, |data| data.len());
                        bytes.set(bytes.get() + data as u64);
                    }
                }
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
    });
    let requests = load.requests as f64;
    let cpu = (cpu_us() - begun.1) / requests;
    print("hyper", cpu, requests / begun.0.elapsed().as_secs_f64(), bytes.get() as f64 / requests);
}

fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
