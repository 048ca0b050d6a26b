//! Addresses as text, without an allocation.

use std::io::Write as _;
use std::net::IpAddr;

/// Bytes of the longest text of an IPv6 address.
const LENGTH_MAX: usize = 45;

/// An address as the standard library displays it. Each request writes one for `X-Forwarded-For`, the access log and header rules;
/// formatting an IPv4 address with `write!` costs several times as much.
#[derive(Clone, Copy, Debug)]
pub struct AddressText {
    bytes: [u8; LENGTH_MAX],
    length: usize,
}

impl AddressText {
    /// The text of an address.
    pub fn new(address: IpAddr) -> Self {
        let mut text = Self { bytes: [0; LENGTH_MAX], length: 0 };
        match address {
            IpAddr::V4(address) => {
                for (at, octet) in address.octets().into_iter().enumerate() {
                    if at > 0 {
                        text.push(b".");
                    }
                    text.push(itoa::Buffer::new().format(octet).as_bytes());
                }
            }
            IpAddr::V6(address) => {
                let mut rest = &mut text.bytes[..];
                // Every address fits.
                let _ = write!(rest, "{address}");
                text.length = LENGTH_MAX - rest.len();
            }
        }
        text
    }

    /// The text, in ASCII.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, part: &[u8]) {
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_look_as_the_standard_library_displays_them(address: IpAddr) {
            let (ours, standard) = (AddressText::new(address), address.to_string());
            prop_assert_eq!(ours.as_bytes(), standard.as_bytes());
        }
    }
}
