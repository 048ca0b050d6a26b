//! A blocking HTTP/2 client without TLS.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::http::Reply;

/// Sends one request on a new connection. `fields` are `name: value` lines.
pub fn ask(address: SocketAddr, method: &str, uri: &str, fields: &str) -> Reply {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await;
        let (mut sender, connection) = made.unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in fields.lines().filter_map(|line| line.split_once(": ")) {
            request = request.header(name, value);
        }
        let reply = sender.send_request(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
        let mut head = format!("HTTP/2 {}\r\n", reply.status().as_u16());
        for (name, value) in reply.headers() {
            head += &format!("{name}: {}\r\n", value.to_str().unwrap());
        }
        let status = reply.status().as_u16();
        Reply { status, head, body: reply.into_body().collect().await.unwrap().to_bytes().to_vec() }
    })
}
