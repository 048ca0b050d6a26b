//! The clients. Each has its own address and keeps its connections.

use crate::record::{ClientExchange, Clock, Reply, Request};
use crate::step::request_bytes;
use crate::wire::Wire;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::time::timeout;

/// Maximum time for a reply. It is longer than the time for which the origin holds replies.
const REPLY_MAX: Duration = Duration::from_secs(15);

/// The address of a client: 127.0.1.1 for the first one.
pub fn address(client: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, client as u8 + 1)
}

/// Connects from the address of a client.
///
/// # Errors
/// If the connection fails.
pub async fn connect(client: usize, to: SocketAddr) -> io::Result<Wire> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((address(client), 0).into())?;
    Ok(Wire::new(socket.connect(to).await?))
}

/// Sends a request and receives the reply. Returns the connection if it can carry another request.
pub async fn send(
    wire: Option<Wire>,
    (client, to): (usize, SocketAddr),
    request: Request,
    clock: Clock,
) -> (ClientExchange, Option<Wire>) {
    let bytes = request_bytes(&request);
    let sent = clock.now();
    let exchange = async {
        let mut wire = match wire {
            Some(wire) => wire,
            None => connect(client, to).await?,
        };
        wire.write(&bytes).await?;
        let (reply, kept_alive) = receive(&mut wire, &request.method).await?;
        io::Result::Ok((reply, kept_alive.then_some(wire)))
    };
    let (reply, wire) = match timeout(REPLY_MAX, exchange).await {
        Ok(Ok((reply, wire))) => (Ok(reply), wire),
        Ok(Err(error)) => (Err(error.to_string()), None),
        Err(_) => (Err(format!("no reply within {} s", REPLY_MAX.as_secs())), None),
    };
    (ClientExchange { request, sent, done: clock.now(), reply }, wire)
}

/// Receives a final reply. Returns it with whether the connection can carry another request.
async fn receive(wire: &mut Wire, method: &str) -> io::Result<(Reply, bool)> {
    loop {
        let Some(head) = wire.reply().await? else {
            return Err(io::Error::other("the connection was closed without a reply"));
        };
        if head.status >= 200 {
            let body = wire.reply_body(method, &head).await?;
            let reply =
                Reply { status: head.status, fields: head.fields, body: body.bytes, whole: body.whole };
            return Ok((reply, body.kept_alive));
        }
    }
}

/// Gets a page as text, such as one of the admin interface.
///
/// # Errors
/// If there is no reply or its status is not 200.
pub async fn get(to: SocketAddr, target: &str) -> io::Result<String> {
    let mut wire = connect(0, to).await?;
    wire.write(format!("GET {target} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let (reply, _) = timeout(REPLY_MAX, receive(&mut wire, "GET")).await.map_err(io::Error::other)??;
    match reply.status {
        200 => Ok(String::from_utf8_lossy(&reply.body).into_owned()),
        status => Err(io::Error::other(format!("{target}: status {status}"))),
    }
}
