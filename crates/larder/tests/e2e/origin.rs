//! An origin that echoes requests: the body of a reply is the whole request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use larder_testkit::http;

use crate::http::Reply;

/// An origin that runs until the test ends.
pub struct Origin {
    pub name: String,
    pub address: SocketAddr,
    /// Complete requests.
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// Starts an origin that puts its name and these fields into its replies.
    pub fn start(name: &str, fields: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fields = format!("X-Origin: {name}\r\n{fields}");
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let shared = requests.clone();
        std::thread::spawn(move || {
            while let Ok((tcp, _)) = listener.accept() {
                let (fields, requests) = (fields.clone(), shared.clone());
                std::thread::spawn(move || serve(tcp, &fields, &requests));
            }
        });
        Self { name: name.to_owned(), address, requests }
    }

    /// Returns an entry of `nodes` with further keys.
    pub fn entry(&self, more: &str) -> String {
        format!("{{ name = \"{}\", address = \"{}\"{more} }}", self.name, self.address)
    }
}

fn serve(mut tcp: TcpStream, fields: &str, requests: &Mutex<Vec<String>>) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = http::head_bytes(&bytes) {
                break end;
            }
            if read_more(&mut tcp, &mut bytes).is_none() {
                return;
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut body = bytes[..end].to_vec();
        if http::header(&head, "transfer-encoding") == Some("chunked") {
            let Some(()) = read_chunks(&mut tcp, &mut bytes, end, &mut body) else { return };
        } else {
            let length = http::header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
            while bytes.len() < end + length {
                if read_more(&mut tcp, &mut bytes).is_none() {
                    return;
                }
            }
            body.extend(bytes.drain(..end + length).skip(end));
        }
        requests.lock().unwrap().push(String::from_utf8_lossy(&body).into_owned());
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
        let body = if head.starts_with("HEAD ") { &[][..] } else { &body };
        if tcp.write_all(&[reply.as_bytes(), body].concat()).is_err() {
            return;
        }
    }
}

/// Removes a head of `head` bytes and a chunked body without trailers, and appends the content of its chunks.
fn read_chunks(tcp: &mut TcpStream, bytes: &mut Vec<u8>, head: usize, content: &mut Vec<u8>) -> Option<()> {
    let mut at = head;
    loop {
        let line = bytes[at..].windows(2).position(|pair| pair == b"\r\n").map(|length| at + length);
        let size = line.map(|line| {
            let size = std::str::from_utf8(&bytes[at..line]).unwrap();
            (line + 2, usize::from_str_radix(size, 16).unwrap())
        });
        match size {
            Some((begin, size)) if bytes.len() >= begin + size + 2 => {
                content.extend_from_slice(&bytes[begin..begin + size]);
                at = begin + size + 2;
                if size == 0 {
                    bytes.drain(..at);
                    return Some(());
                }
            }
            _ => read_more(tcp, bytes)?,
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

/// Returns all values of a field of a head.
pub fn values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    http::values(head, name).collect()
}

/// Returns the request that the origin received, from its reply.
pub fn echoed_request(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.head);
    String::from_utf8(reply.body.clone()).unwrap()
}

/// Returns the request line.
pub fn line(asked: &str) -> &str {
    asked.split("\r\n").next().unwrap()
}
