//! Character classes, and the search for the end of a head.

use memchr::memchr;

// Bits of the character classes.
const TOKEN: u8 = 1;
const TEXT: u8 = 2;
const TARGET: u8 = 4;

/// The classes of each byte.
static CLASS: [u8; 256] = byte_classes();

/// Computes the classes of each byte.
const fn byte_classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let value = byte as u8;
        let punctuation = matches!(
            value,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        );
        if value.is_ascii_alphanumeric() || punctuation {
            table[byte] |= TOKEN;
        }
        if value >= 0x20 && value != 0x7f || value == b'\t' {
            table[byte] |= TEXT;
        }
        if value > 0x20 && value < 0x7f && value != b'#' {
            table[byte] |= TARGET;
        }
        byte += 1;
    }
    table
}

/// Returns whether all bytes are of this class.
fn all_in_class(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|byte| CLASS[usize::from(*byte)] & class != 0)
}

/// Returns whether these bytes are a token (RFC 9110 section 5.6.2).
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all_in_class(bytes, TOKEN)
}

/// Returns whether these bytes may be the value of a field (RFC 9110 section 5.5).
pub fn is_text(bytes: &[u8]) -> bool {
    all_in_class(bytes, TEXT)
}

/// Returns whether these bytes may be a request target: printable ASCII without `#`, which starts a fragment.
pub(super) fn is_target(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all_in_class(bytes, TARGET)
}

/// Removes spaces and tabs at both ends (RFC 9110 section 5.6.3).
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let begin = bytes.iter().position(|byte| !blank(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !blank(byte)).map_or(begin, |at| at + 1);
    &bytes[begin..end]
}

/// A search for the end of a head in a growing buffer. It examines each byte once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadEnd {
    /// No head ends before this byte.
    from: usize,
}

impl HeadEnd {
    /// Creates a search that starts at the first byte of a head.
    pub const fn new() -> Self {
        Self { from: 0 }
    }

    /// Returns the length of the head at the start of `bytes`, including its empty line. Returns `None` if
    /// the head is incomplete. `bytes` must start with the bytes of the previous call.
    pub fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = self.from;
        loop {
            let Some(line) = memchr(b'\n', bytes.get(at..)?) else {
                self.from = bytes.len();
                return None;
            };
            let next = at + line + 1;
            match bytes[next..] {
                [b'\n', ..] => return Some(next + 1),
                [b'\r', b'\n', ..] => return Some(next + 2),
                // The next bytes decide whether the head ends here.
                [] | [b'\r'] => {
                    self.from = next - 1;
                    return None;
                }
                _ => at = next,
            }
        }
    }
}

/// Returns whether this is a valid value of `Host` (RFC 9110 section 7.2): a name or an address, with an
/// optional port, or nothing.
///
/// RFC 3986 allows a comma in a name. Here a comma could only separate two hosts, and is refused.
pub fn is_host(value: &[u8]) -> bool {
    let (host, port) = match value {
        [b'[', rest @ ..] => {
            let Some(end) = memchr(b']', rest) else { return false };
            let address = &rest[..end];
            let valid = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            if address.is_empty() || !address.iter().all(valid) {
                return false;
            }
            (&b""[..], &rest[end + 1..])
        }
        _ => value.split_at(memchr(b':', value).unwrap_or(value.len())),
    };
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte);
    let digits = match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    host.iter().all(name) && digits
}
