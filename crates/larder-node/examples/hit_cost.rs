//! Measures the cost of a hit beyond the HTTP server: a node and a bare hyper loop send the same bytes.
//!
//! ```text
//! cargo run --release -p larder-node --example hit_cost -- node 8001 1024 10
//! cargo run --release -p larder-node --example hit_cost -- bare 8002 1024 10
//! wrk -t1 -c32 -d8 http://127.0.0.1:8001/file      (while it runs)
//! ```
//!
//! Arguments: which server, the port on loopback, the body's length in bytes, seconds to run. One worker thread
//! serves. At the end it prints the requests served and the CPU time of the process for each.

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use larder_node::{Node, NodeConfig, StoreConfig};
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpListener;

static SERVED: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [which, port, len, seconds] = arguments.as_slice() else {
        return Err("usage: hit_cost node|bare PORT BYTES SECONDS".into());
    };
    let (port, len, time) = (port.parse()?, len.parse()?, Duration::from_secs(seconds.parse()?));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        match which.as_str() {
            "node" => node(listener, len, time).await,
            "bare" => bare(listener, len, time).await,
            _ => Err("the server is node or bare".into()),
        }
    })?;
    let ticks = std::fs::read_to_string("/proc/self/stat")?;
    // Fields 14 and 15 are user and system time in hundredths of a second, after the name in parentheses.
    let after_name = ticks.rsplit(')').next().unwrap_or_default();
    let spent: u64 = after_name.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap_or(0)).sum();
    println!("{which}: {served} requests, {:.2} us of CPU each", spent as f64 * 1e4 / served.max(1) as f64);
    Ok(())
}

async fn node(listener: TcpListener, len: usize, time: Duration) -> Result<u64, Box<dyn Error>> {
    let root = std::env::temp_dir().join(format!("larder-hit-cost-{}", std::process::id()));
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join("file"), vec![b'x'; len])?;
    let store = StoreConfig::Directory { root: root.clone(), bypass_page_cache: false };
    let node = Node::new(NodeConfig::new("n", store))?;
    // The file is new. Its validators become strong before the measurement.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let ended = Arc::clone(&node).serve(listener, tokio::time::sleep(time)).await;
    std::fs::remove_dir_all(root)?;
    ended?;
    Ok(node.stats().requests)
}

async fn bare(listener: TcpListener, len: usize, time: Duration) -> Result<u64, Box<dyn Error>> {
    let body = Bytes::from(vec![b'x'; len]);
    let accepting = async {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let body = body.clone();
            let service = service_fn(move |_| {
                SERVED.fetch_add(1, Relaxed);
                let body = Full::new(body.clone());
                async move { Ok::<_, Infallible>(http::Response::new(body)) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .header_read_timeout(None)
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    };
    let _ = tokio::time::timeout(time, accepting).await;
    Ok(SERVED.load(Relaxed))
}
