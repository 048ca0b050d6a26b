//! The cookie: numbers in a SYN-ACK that prove that a switch answered the SYN, and that carry the SYN's options.
//! `bpf/cookie.h` has the layout; this is the same calculation in Rust.
//!
//! SipHash-2-4: Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.

use crate::flow::mapped;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

const NO_WSCALE: u32 = 15;
/// RFC 7323 section 2.3.
const WSCALE_MAX: u32 = 14;
/// The window scale that a switch offers; `COOKIE_WSCALE` of `bpf/cookie.h`.
pub(crate) const OWN_WSCALE: u8 = 7;

/// A cookie key. 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CookieKey(pub [u64; 2]);

impl CookieKey {
    /// Derives the key of an epoch from a secret. All hosts that share the secret and the clock derive the same keys.
    /// SipHash is a pseudo-random function, so the key of one epoch reveals nothing about that of another.
    pub fn derive(secret: &[u8; 32], epoch: u64) -> Self {
        let word = |at: usize| {
            let bytes = secret[at * 8..at * 8 + 8].iter().rev();
            bytes.fold(0, |word: u64, &byte| word << 8 | u64::from(byte))
        };
        Self([siphash([word(0), word(1)], &[epoch, 0]), siphash([word(2), word(3)], &[epoch, 1])])
    }
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey(..)")
    }
}

/// The options of a client's SYN, as far as a cookie carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptions {
    /// Maximum segment size. A cookie carries the largest of four values that is not above it. Bytes.
    pub mss: u16,
    /// Whether selective acknowledgements are offered.
    pub sack: bool,
    /// Whether timestamps are offered.
    pub timestamps: bool,
    /// Window scale, 0 to 14.
    pub wscale: Option<u8>,
}

/// Bits of the hash in the timestamp; `ECHO_HASH_BITS` of `bpf/cookie.h`.
const ECHO_HASH_BITS: u32 = 12;
/// Bits of the clock above the hash; `CLOCK_BITS` of `bpf/cookie.h`.
const CLOCK_BITS: u32 = 11;
/// Smallest unit of the clock, 2^8 ms: the clock must not wrap while a first segment may be in flight.
const CLOCK_SHIFT_MIN: u32 = 8;
/// Largest result of [`clock_shift`], for keys that live an hour.
const CLOCK_SHIFT_MAX: u32 = 14;

/// Unit of the clock in SYN-ACKs, as a power of two in ms. A cookie is valid for one and a half times `key_life`, which
/// must be at most a quarter of the clock's range.
pub(crate) fn clock_shift(key_life: Duration) -> u32 {
    let range = |shift: u32| Duration::from_millis(1 << (CLOCK_BITS + shift));
    (CLOCK_SHIFT_MIN..CLOCK_SHIFT_MAX).find(|&shift| range(shift) >= key_life * 6).unwrap_or(CLOCK_SHIFT_MAX)
}

/// The sequence number of a SYN-ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub u32);

const MSS_V4: [u16; 4] = [536, 1300, 1400, 1460];
const MSS_V6: [u16; 4] = [536, 1220, 1360, 1440];

impl Cookie {
    /// Returns the options that the cookie carries for IPv4 or IPv6. They are not authenticated;
    /// [`SynAckCookie::check`] does that.
    pub fn options(self, ipv4: bool) -> SynOptions {
        let low = self.0 & 0xff;
        let sizes = if ipv4 { MSS_V4 } else { MSS_V6 };
        SynOptions {
            mss: sizes[(low >> 6) as usize],
            sack: low >> 5 & 1 == 1,
            timestamps: low >> 4 & 1 == 1,
            wscale: u8::try_from(low & 15).ok().filter(|&scale| u32::from(scale) <= WSCALE_MAX),
        }
    }
}

/// The numbers of a SYN-ACK that carry the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynAckCookie {
    /// Sequence number of the SYN-ACK.
    pub cookie: Cookie,
    /// Timestamp of the SYN-ACK, which the client echoes. `None` if the client offered no timestamps.
    pub echo: Option<u32>,
}

impl SynAckCookie {
    /// Makes the cookie for a SYN from `client` to `server` with the initial sequence number `client_isn`. `clock` is
    /// the switch's clock, of which the low 11 bits count.
    pub fn make(
        key: CookieKey,
        (client, server): (SocketAddr, SocketAddr),
        client_isn: u32,
        options: SynOptions,
        clock: u32,
    ) -> Self {
        let sizes = if server.ip().to_canonical().is_ipv4() { MSS_V4 } else { MSS_V6 };
        let index = sizes.iter().rposition(|&size| size <= options.mss).unwrap_or(0);
        let wscale = options.wscale.map_or(NO_WSCALE, |scale| u32::from(scale).min(WSCALE_MAX));
        let flags = u32::from(options.sack) << 5 | u32::from(options.timestamps) << 4;
        let low = u32::try_from(index).unwrap_or(0) << 6 | flags | wscale;
        let clock = if options.timestamps { clock & ((1 << CLOCK_BITS) - 1) } else { 0 };
        let hash = hash(key, (client, server), client_isn, low, clock);
        let cookie = Cookie(((hash & 0xff_ffff) as u32) << 8 | low);
        let proof = (hash >> 24) as u32 & ((1 << ECHO_HASH_BITS) - 1);
        Self { cookie, echo: options.timestamps.then_some(clock << ECHO_HASH_BITS | proof) }
    }

    /// Returns the options if the numbers were made with `key` for this connection.
    pub fn check(
        self,
        key: CookieKey,
        (client, server): (SocketAddr, SocketAddr),
        client_isn: u32,
    ) -> Option<SynOptions> {
        let options = self.cookie.options(server.ip().to_canonical().is_ipv4());
        let clock = self.echo.unwrap_or(0) >> ECHO_HASH_BITS;
        (Self::make(key, (client, server), client_isn, options, clock) == self).then_some(options)
    }
}

/// Computes the keyed hash.
fn hash(
    key: CookieKey,
    (client, server): (SocketAddr, SocketAddr),
    client_isn: u32,
    low: u32,
    clock: u32,
) -> u64 {
    let mut words = [0; 6];
    let mut used = 0;
    let mut push = |word: u64| {
        words[used] = word;
        used += 1;
    };
    let (from, to) = (mapped(client.ip()), mapped(server.ip()));
    let ipv4 = server.ip().to_canonical().is_ipv4();
    if ipv4 {
        push(u64::from(be32(&from[12..])) << 32 | u64::from(be32(&to[12..])));
    } else {
        for half in [&from[..8], &from[8..], &to[..8], &to[8..]] {
            push(half.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
    }
    push(u64::from(client_isn) << 32 | u64::from(client.port()) << 16 | u64::from(server.port()));
    push(u64::from(clock) << 8 | u64::from(low));
    siphash(key.0, &words[..used])
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// SipHash-2-4 of whole words.
pub(crate) fn siphash(key: [u64; 2], words: &[u64]) -> u64 {
    let mut v = [
        0x736f_6d65_7073_6575 ^ key[0],
        0x646f_7261_6e64_6f6d ^ key[1],
        0x6c79_6765_6e65_7261 ^ key[0],
        0x7465_6462_7974_6573 ^ key[1],
    ];
    let closing = (words.len() as u64 * 8) << 56;
    for &word in words.iter().chain([&closing]) {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: CookieKey = CookieKey([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);

    /// Vectors of the paper's appendix A: the key 00..0f, and messages 00, 01, 02 ... of 8 and 16 bytes.
    #[test]
    fn hash_is_siphash() {
        assert_eq!(siphash(KEY.0, &[0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
        assert_eq!(siphash(KEY.0, &[]), 0x726f_db47_dd0e_0e31);
    }

    #[test]
    fn each_epoch_has_its_own_key() {
        let (one, other) = ([7; 32], [8; 32]);
        let keys = [(one, 1), (one, 2), (other, 1)].map(|(secret, epoch)| CookieKey::derive(&secret, epoch));
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
        assert_eq!(CookieKey::derive(&one, 1), keys[0]);
    }

    fn options() -> impl Strategy<Value = SynOptions> {
        let wscale = prop::option::of(0..15_u8);
        (any::<u16>(), any::<bool>(), any::<bool>(), wscale)
            .prop_map(|(mss, sack, timestamps, wscale)| SynOptions { mss, sack, timestamps, wscale })
    }

    #[test]
    fn clock_outlasts_the_keys() {
        for (key_life, shift) in [(10, 8), (87, 8), (88, 9), (300, 10), (3_600, 14)] {
            assert_eq!(clock_shift(Duration::from_secs(key_life)), shift, "{key_life} s");
            let quarter = Duration::from_millis(1 << (CLOCK_BITS + shift - 2));
            assert!(quarter * 2 >= Duration::from_secs(key_life * 3), "{key_life} s");
        }
    }

    proptest! {
        #[test]
        fn cookie_carries_the_options(ports in any::<(u16, u16)>(), isn in any::<u32>(), offered in options(),
                                        v6 in any::<bool>(), address in any::<[u8; 16]>(), clock in any::<u32>()) {
            let client = if v6 { address.into() } else { std::net::IpAddr::from([10, 0, 0, address[0]]) };
            let server: std::net::IpAddr =
                if v6 { [0x20; 16].into() } else { std::net::IpAddr::from([10, 9, 0, 100]) };
            prop_assume!(!v6 || !client.to_canonical().is_ipv4());
            let ends = (SocketAddr::new(client, ports.0), SocketAddr::new(server, ports.1));
            let answer = SynAckCookie::make(KEY, ends, isn, offered, clock);
            let kept = answer.check(KEY, ends, isn).expect("its own numbers");
            prop_assert_eq!((kept.sack, kept.timestamps, kept.wscale),
                            (offered.sack, offered.timestamps, offered.wscale));
            prop_assert!(kept.mss <= offered.mss.max(536));
            prop_assert!(answer.echo.is_none_or(|echo| echo >> 23 == 0), "the top bits are for tags");
            let other = CookieKey([KEY.0[0] ^ 1, KEY.0[1]]);
            let forged = u32::from(answer.check(other, ends, isn).is_some())
                + u32::from(answer.check(KEY, ends, isn ^ 1).is_some());
            // One in 16 million passes by chance; both at once do not.
            prop_assert!(forged < 2);
            let echo = answer.echo.map(|echo| echo ^ 1);
            let altered = SynAckCookie { echo, ..answer };
            prop_assert!(echo.is_none() || altered.check(KEY, ends, isn).is_none(), "the echo is part of the proof");
        }
    }
}
