//! Classes of bytes, and the end of a head.

use memchr::memchr;

const TOKEN: u8 = 1;
const TEXT: u8 = 2;
const TARGET: u8 = 4;

/// The classes of each byte.
static CLASS: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
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

fn all(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|byte| CLASS[usize::from(*byte)] & class != 0)
}

/// Whether this is a token (RFC 9110 section 5.6.2).
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// Whether these bytes may stand in a field's value (RFC 9110 section 5.5).
pub fn is_text(bytes: &[u8]) -> bool {
    all(bytes, TEXT)
}

/// Whether these bytes may stand in a target: printable ASCII but for the mark of a fragment.
pub(super) fn is_target(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TARGET)
}

/// `bytes` without spaces and tabs at both ends (RFC 9110 section 5.6.3).
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let begin = bytes.iter().position(|byte| !blank(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !blank(byte)).map_or(begin, |at| at + 1);
    &bytes[begin..end]
}

/// The search for the end of a head in a buffer that grows. Looks at each byte once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadEnd {
    /// No head ends before this byte.
    from: usize,
}

impl HeadEnd {
    /// A search from the first byte of the head on.
    pub const fn new() -> Self {
        Self { from: 0 }
    }

    /// The length of the head at the beginning of `bytes`, with its empty line. `bytes` begins with those of the call before.
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
                // What follows decides whether the head ends here.
                [] | [b'\r'] => {
                    self.from = next - 1;
                    return None;
                }
                _ => at = next,
            }
        }
    }
}

/// Whether this may stand in `Host` (RFC 9110 section 7.2): a name or an address, and perhaps a port; nothing where there is
/// none. RFC 3986 allows a comma in a name, but here it can only stand between two hosts.
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
