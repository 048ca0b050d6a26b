//! Addresses as text, without an allocation.

use std::io::Write as _;
use std::net::IpAddr;

/// Length of the longest text of an IPv6 address, in bytes.
const LENGTH_MAX: usize = 45;

/// An address as text, as the standard library displays it. Each request needs one for `X-Forwarded-For`, the access
/// log and header rules; formatting an IPv4 address with `write!` costs several times as much.
#[derive(Clone, Copy, Debug)]
pub struct AddressText {
    bytes: [u8; LENGTH_MAX],
    length: usize,
}

impl AddressText {
    /// Formats an address.
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

    /// Returns the text, in ASCII.
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
        fn text_is_that_of_the_standard_library(address: IpAddr) {
            let (ours, standard) = (AddressText::new(address), address.to_string());
            prop_assert_eq!(ours.as_bytes(), standard.as_bytes());
        }
    }
}
