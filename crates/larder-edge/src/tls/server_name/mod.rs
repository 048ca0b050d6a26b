//! Server names (SNI) with a port at the end, such as `a.test:8443`.
//!
//! Go programs send such a name if they set it from an address. RFC 6066 section 3 does not allow it, and rustls aborts
//! the handshake; nginx, HAProxy and Caddy accept it. So does this module, in two steps:
//!
//! 1. [`FirstRecords`] rewrites the name in the ClientHello before rustls reads it. The length of the message does not
//!    change: the host remains as the only name, and the port becomes an entry of a type that rustls skips.
//! 2. Both sides compute their keys from a hash of all messages (RFC 8446 section 4.4.1; RFC 5246 section 7.4.9). The
//!    hash functions in [`cipher_suites`] therefore see the ClientHello as the client sent it, and so does the
//!    verification of a client's signature in TLS 1.2 ([`restored_signatures`]).
//!
//! A client that sends the rewritten form gains nothing: the server treats it as the form with the port.

mod records;
mod transcript;

pub(crate) use records::FirstRecords;
pub(super) use transcript::{cipher_suites, restored_signatures};

use std::ops::Range;

/// Type of a handshake message (RFC 8446 section 4).
const CLIENT_HELLO: u8 = 1;
/// Type of an extension (RFC 6066 section 3).
const SERVER_NAME: usize = 0;
/// Type of an entry of the list of server names (RFC 6066 section 3).
const HOST_NAME: u8 = 0;
/// Bytes of an entry before its name: its type and the length.
const ENTRY_HEAD: usize = 3;

/// Type of the entry that replaces the colon in `host:port`. Only [`HOST_NAME`] is a defined type.
const PORT: u8 = 0xff;
/// Type of that entry for `[host]:port`: the entry begins with the closing bracket.
const BRACKET_AND_PORT: u8 = 0xfe;
/// Maximum number of digits of a port.
const DIGITS_MAX: usize = 5;

/// Reads fields in order.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    /// Returns the next number, of `width` bytes.
    fn number(&mut self, width: usize) -> Option<usize> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(width)?)?;
        self.at += width;
        Some(bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    }

    /// Skips a field that begins with its length, a number of `width` bytes.
    fn skip(&mut self, width: usize) -> Option<()> {
        let length = self.number(width)?;
        self.at = self.at.checked_add(length)?;
        Some(())
    }
}

/// Finds the entries of the server name list in a ClientHello (RFC 8446 section 4.1.2). The end of the message may be
/// missing, as when a PSK binder is computed (section 4.2.11.2).
fn name_entries(hello: &[u8]) -> Option<Range<usize>> {
    let mut fields = Fields { bytes: hello, at: 0 };
    if fields.number(1)? != usize::from(CLIENT_HELLO) {
        return None;
    }
    // The message length, the version and the random value.
    fields.at += 3 + 2 + 32;
    fields.skip(1)?;
    fields.skip(2)?;
    fields.skip(1)?;
    let end = fields.number(2)? + fields.at;
    while fields.at < end {
        let kind = fields.number(2)?;
        if kind != SERVER_NAME {
            fields.skip(2)?;
            continue;
        }
        let extension = fields.number(2)?;
        let list = fields.number(2)?;
        let entries = fields.at..fields.at + list;
        return (extension == list + 2 && entries.end <= hello.len()).then_some(entries);
    }
    None
}

/// Returns the host in `host:port`, without brackets, and whether it had brackets.
fn host(name: &[u8]) -> Option<(Range<usize>, bool)> {
    let colon = name.iter().rposition(|&byte| byte == b':')?;
    if !is_port(&name[colon + 1..]) {
        return None;
    }
    match &name[..colon] {
        [b'[', inner @ .., b']'] if !inner.is_empty() => Some((1..colon - 1, true)),
        host if !host.is_empty() && !host.contains(&b':') => Some((0..colon, false)),
        _ => None,
    }
}

fn is_port(digits: &[u8]) -> bool {
    (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
}

fn set_length(hello: &mut [u8], entry: usize, length: usize) {
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    hello[entry + 1..entry + ENTRY_HEAD].copy_from_slice(&length.to_be_bytes());
}

/// Returns the only host name of a ClientHello, and the bytes after it in the list.
fn only_name(hello: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    let entries = name_entries(hello)?;
    let mut fields = Fields { bytes: &hello[..entries.end], at: entries.start };
    if fields.number(1)? != usize::from(HOST_NAME) {
        return None;
    }
    let name = fields.number(2)? + fields.at;
    (name <= entries.end).then_some((fields.at..name, name..entries.end))
}

/// Removes the port from the server name, if there is one.
fn hide_port(hello: &mut [u8]) {
    let Some((name, rest)) = only_name(hello) else { return };
    if !rest.is_empty() {
        return;
    }
    let Some((host, bracketed)) = host(&hello[name.clone()]) else { return };
    let length = host.len();
    hello.copy_within(name.start + host.start..name.start + host.end, name.start);
    hello[name.start + length] = if bracketed { BRACKET_AND_PORT } else { PORT };
    set_length(hello, name.start - ENTRY_HEAD, length);
}

/// Restores the ClientHello as it was before [`hide_port`]. Returns `None` if it was not changed.
fn restored(hello: &[u8]) -> Option<Vec<u8>> {
    let (name, rest) = only_name(hello)?;
    let bracketed = match &hello[rest.clone()] {
        [PORT, port @ ..] if is_port(port) => false,
        [BRACKET_AND_PORT, b']', b':', port @ ..] if is_port(port) => true,
        _ => return None,
    };
    let mut hello = hello.to_vec();
    if bracketed {
        hello.copy_within(name.clone(), name.start + 1);
        hello[name.start] = b'[';
    } else {
        hello[name.end] = b':';
    }
    set_length(&mut hello, name.start - ENTRY_HEAD, rest.end - name.start);
    Some(hello)
}

#[cfg(test)]
mod clients_test;

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a ClientHello with three extensions: an unknown one, the server names, and another one.
    pub(crate) fn client_hello(entries: &[u8]) -> Vec<u8> {
        let list = u16::try_from(entries.len()).expect("short");
        let mut extensions = vec![0x12, 0x34, 0, 1, 9, 0, 0];
        extensions.extend((list + 2).to_be_bytes());
        extensions.extend(list.to_be_bytes());
        extensions.extend(entries);
        extensions.extend([0, 23, 0, 0]);
        let mut hello = vec![3, 3];
        hello.extend([7; 32]);
        hello.extend([2, 5, 5]);
        hello.extend([0, 2, 0x13, 1]);
        hello.extend([1, 0]);
        hello.extend(u16::try_from(extensions.len()).expect("short").to_be_bytes());
        hello.extend(extensions);
        let mut message = vec![CLIENT_HELLO, 0];
        message.extend(u16::try_from(hello.len()).expect("short").to_be_bytes());
        message.extend(hello);
        message
    }

    pub(crate) fn entry(name: &[u8]) -> Vec<u8> {
        let mut entry = vec![HOST_NAME];
        entry.extend(u16::try_from(name.len()).expect("short").to_be_bytes());
        entry.extend(name);
        entry
    }

    #[test]
    fn name_with_a_port_is_rewritten_and_restored() {
        for (name, host) in [
            ("a.test:8443", "a.test"),
            ("127.0.0.1:18455", "127.0.0.1"),
            ("a.test:1", "a.test"),
            ("[::1]:8443", "::1"),
            ("[::]:1", "::"),
        ] {
            let sent = client_hello(&entry(name.as_bytes()));
            let mut read = sent.clone();
            hide_port(&mut read);
            let (found, _) = only_name(&read).expect("a name");
            assert_eq!(&read[found], host.as_bytes(), "{name}");
            assert_eq!(read.len(), sent.len());
            assert_eq!(restored(&read).as_deref(), Some(&sent[..]), "{name}");
            // The binder of a PSK is computed without the end of the message.
            let (start, end) = (&read[..read.len() - 3], &sent[..sent.len() - 3]);
            assert_eq!(restored(start).as_deref(), Some(end), "{name}");
        }
    }

    #[test]
    fn other_names_are_unchanged() {
        let long = [&b"a.test:"[..], &[b'1'; DIGITS_MAX + 1]].concat();
        let two = [entry(b"a.test:1"), entry(b"b.test:1")].concat();
        let names = ["a.test", "a.test:", ":1", "::1", "::1:80", "a:b:80", "[::1]", "a.test:8a", "a:\u{661}"];
        let entries = names.iter().map(|name| entry(name.as_bytes()));
        for entries in entries.chain([entry(&long), two, Vec::new(), vec![HOST_NAME, 0, 9, b'a']]) {
            let sent = client_hello(&entries);
            let mut read = sent.clone();
            hide_port(&mut read);
            assert_eq!(read, sent, "{entries:?}");
            assert_eq!(restored(&sent), None, "{entries:?}");
        }
    }

    #[test]
    fn partial_and_damaged_messages_are_unchanged() {
        let whole = client_hello(&entry(b"a.test:8443"));
        for cut in 0..whole.len() {
            let mut part = whole[..cut].to_vec();
            hide_port(&mut part);
            let back = restored(&part).unwrap_or_else(|| part.clone());
            assert_eq!(back, whole[..cut], "{cut}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xfe, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let mut read = damaged.clone();
                hide_port(&mut read);
                if read != damaged {
                    assert_eq!(restored(&read).as_deref(), Some(&damaged[..]), "{at} {value}");
                }
            }
        }
    }
}
