//! A node that answers with what it was asked: the request's bytes are the reply's body.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::http::Reply;

/// An origin that runs until the test ends.
pub struct Origin {
    pub name: String,
    pub address: SocketAddr,
    /// What it was asked, whole.
    pub seen: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// One that puts its name and these fields into its replies.
    pub fn start(name: &str, fields: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fields = format!("X-Origin: {name}\r\n{fields}");
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = seen.clone();
        std::thread::spawn(move || {
            while let Ok((tcp, _)) = listener.accept() {
                let (fields, told) = (fields.clone(), told.clone());
                std::thread::spawn(move || serve(tcp, &fields, &told));
            }
        });
        Self { name: name.to_owned(), address, seen }
    }

    /// As an entry of `nodes`, with more keys.
    pub fn entry(&self, more: &str) -> String {
        format!("{{ name = \"{}\", address = \"{}\"{more} }}", self.name, self.address)
    }
}

fn serve(mut tcp: TcpStream, fields: &str, seen: &Mutex<Vec<String>>) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if read_more(&mut tcp, &mut bytes).is_none() {
                return;
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = value(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        while bytes.len() < end + length {
            if read_more(&mut tcp, &mut bytes).is_none() {
                return;
            }
        }
        let body: Vec<u8> = bytes.drain(..end + length).collect();
        seen.lock().unwrap().push(String::from_utf8_lossy(&body).into_owned());
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
        let body = if head.starts_with("HEAD ") { &[][..] } else { &body };
        if tcp.write_all(&[reply.as_bytes(), body].concat()).is_err() {
            return;
        }
    }
}

fn read_more(tcp: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 16_384];
    match tcp.read(&mut buffer) {
        Ok(0) | Err(_) => None,
        Ok(count) => {
            bytes.extend_from_slice(&buffer[..count]);
            Some(())
        }
    }
}

/// All values of a field of what an origin has got.
pub fn values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let lines = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    values(head, name).first().copied()
}

/// What the origin was asked.
pub fn asked(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.head);
    String::from_utf8(reply.body.clone()).unwrap()
}

/// The request line that the origin has got.
pub fn line(asked: &str) -> &str {
    asked.split("\r\n").next().unwrap()
}
