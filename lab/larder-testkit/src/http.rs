//! Reading of HTTP/1 heads. The tests' clients and servers send any bytes, so each reads bodies by rules of its own.

use std::io::{self, Read};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The empty line at the end of a head, with the end of the line before it.
const END: &[u8; 4] = b"\r\n\r\n";

/// Returns the length of the head at the start of `bytes`, with its empty line. `None` if the head is incomplete.
pub fn head_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.windows(END.len()).position(|four| four == END).map(|at| at + END.len())
}

/// Removes the head from the start of `bytes`, and returns it with its empty line. `None` if the head is incomplete.
///
/// # Panics
/// If the head is not UTF-8.
pub fn take_head(bytes: &mut Vec<u8>) -> Option<String> {
    let end = head_bytes(bytes)?;
    Some(text(bytes.drain(..end).collect()))
}

/// Reads a head, and not a byte more.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the stream ends before the head does.
///
/// # Panics
/// If the head is not UTF-8.
pub fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(END) {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(text(head))
}

/// [`read_head`] for tests on an async runtime.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the stream ends before the head does.
///
/// # Panics
/// If the head is not UTF-8.
pub async fn read_head_async(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(END) {
        head.push(stream.read_u8().await?);
    }
    Ok(text(head))
}

fn text(head: Vec<u8>) -> String {
    String::from_utf8(head).expect("a head in UTF-8")
}

/// Returns the status of a reply's head.
pub fn status(head: &str) -> Option<u16> {
    head.split(' ').nth(1)?.parse().ok()
}

/// Returns the values of all fields with this name.
pub fn values<'a>(head: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Returns the value of the first field with this name.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    values(head, name).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nA: 1\r\nb:2 \r\na: 3\r\n\r\n";

    #[test]
    fn heads_end_with_their_empty_line() {
        let mut bytes = [HEAD.as_bytes(), b"\r\nbody"].concat();
        for length in 0..HEAD.len() {
            assert_eq!(head_bytes(&bytes[..length]), None);
            let error = read_head(&mut &bytes[..length]).expect_err("incomplete");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        let mut stream = &bytes[..];
        assert_eq!(read_head(&mut stream).expect("complete"), HEAD);
        assert_eq!(stream, b"\r\nbody");
        assert_eq!(take_head(&mut bytes).as_deref(), Some(HEAD));
        assert_eq!((&bytes[..], take_head(&mut bytes.clone())), (&b"\r\nbody"[..], None));
    }

    #[tokio::test]
    async fn the_async_function_does_the_same() {
        let mut stream = HEAD.as_bytes();
        assert_eq!(read_head_async(&mut stream).await.expect("complete"), HEAD);
        let error = read_head_async(&mut stream).await.expect_err("at its end");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn fields_are_found_by_their_names_in_any_case() {
        assert_eq!(status(HEAD), Some(200));
        assert_eq!((header(HEAD, "B"), header(HEAD, "HTTP/1.1 200 OK")), (Some("2"), None));
        assert!(values(HEAD, "a").eq(["1", "3"]));
    }
}
