//! Datagrams of membership: encoding, decoding and encryption. [`decode`] is a pure function.
//!
//! A datagram is a random nonce of 24 bytes, followed by kind and body encrypted with XChaCha20-Poly1305
//! (draft-irtf-cfrg-xchacha-03) under a key that only members have. A replayed datagram is harmless: SWIM ignores old
//! incarnations. No datagram is longer than the minimum MTU of IPv6 allows (RFC 8200, section 5).

use crate::member::Member;
use crate::name::Name;
use crate::secret::{ClusterSecret, ClusterSecrets, KeyPurpose};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use chacha20poly1305::aead::{AeadInPlace as _, KeyInit as _};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use foca::{Codec as _, Header, Message, PostcardCodec};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Longest datagram, in bytes: the minimum MTU of IPv6 less the headers of IPv6 and UDP.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 1_280 - 40 - 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Longest body of a SWIM datagram. Bytes.
pub(crate) const BODY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - NONCE_BYTES - TAG_BYTES - 1;
/// Associated data of every datagram. Datagrams of another version fail authentication.
const ASSOCIATED_DATA: &[u8] = b"larder peers 1";

/// Identity of a member in SWIM. Of two identities with one name the newer process wins, and for one process the later
/// renewal. Addresses only break ties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) name: Name,
    /// See [`Member::incarnation`].
    pub(crate) incarnation: u64,
    /// Number of times this process has rejoined after it was declared down.
    pub(crate) renewal: u32,
    pub(crate) address: SocketAddr,
}

impl Identity {
    pub(crate) fn member(&self) -> Member {
        Member { name: self.name.clone(), incarnation: self.incarnation, address: self.address }
    }

    fn is_valid(&self) -> bool {
        self.address.port() != 0 && !self.address.ip().is_unspecified() && !self.address.ip().is_multicast()
    }
}

impl foca::Identity for Identity {
    type Addr = Name;

    /// The driver renews the identity itself, because it limits the rate.
    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> Name {
        self.name.clone()
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        let rank = |identity: &Self| (identity.incarnation, identity.renewal, identity.address);
        rank(self) > rank(other)
    }
}

/// A member's knowledge about the sender of a discovery datagram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownIdentity {
    pub(crate) identity: Identity,
    pub(crate) active: bool,
}

/// A decoded datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// A SWIM message: its header, and the members that it carries updates about.
    Swim(Header<Identity>, Vec<foca::Member<Identity>>),
    /// Asks the process at an address for its identity. SWIM addresses members by identity, which a seed's address lacks.
    Discover(Identity),
    /// The reply to [`Self::Discover`]: the identity of the replying member, and what it knows about the asking one.
    DiscoverReply(Identity, Option<KnownIdentity>),
    /// The sender leaves the cluster.
    Leave(Identity),
}

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DatagramError {
    #[error("not authenticated with a secret of the cluster")]
    Unauthenticated,
    #[error("cannot be decoded")]
    Malformed,
}

/// Encrypts datagrams with the first of a member's secrets, and decrypts them with any of the secrets.
pub(crate) struct DatagramCipher {
    first: XChaCha20Poly1305,
    others: Vec<XChaCha20Poly1305>,
    random: SystemRandom,
}

/// A decrypted datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OpenedDatagram<'datagram> {
    /// Kind and body.
    pub(crate) plain: &'datagram [u8],
    /// Whether another secret than the first encrypted the datagram.
    pub(crate) other_secret: bool,
}

impl DatagramCipher {
    pub(crate) fn new(secrets: &ClusterSecrets) -> Self {
        let cipher =
            |secret: &ClusterSecret| XChaCha20Poly1305::new((&secret.key(KeyPurpose::Datagrams)).into());
        let others = secrets.all().skip(1).map(cipher).collect();
        Self { first: cipher(secrets.first()), others, random: SystemRandom::new() }
    }

    /// Encrypts a datagram into `out`. Returns `false` if it is too long or no random nonce is available.
    pub(crate) fn encrypt(&self, plain: &[u8], out: &mut Vec<u8>) -> bool {
        let mut nonce = [0; NONCE_BYTES];
        if plain.len() > BODY_BYTES_MAX + 1 || self.random.fill(&mut nonce).is_err() {
            return false;
        }
        out.clear();
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plain);
        let encrypted = self.first.encrypt_in_place_detached(
            XNonce::from_slice(&nonce),
            ASSOCIATED_DATA,
            &mut out[NONCE_BYTES..],
        );
        let Ok(tag) = encrypted else { return false };
        out.extend_from_slice(&tag);
        true
    }

    /// Decrypts a datagram in place.
    pub(crate) fn decrypt<'datagram>(
        &self,
        datagram: &'datagram mut [u8],
    ) -> Result<OpenedDatagram<'datagram>, DatagramError> {
        if !(NONCE_BYTES + TAG_BYTES + 1..=DATAGRAM_BYTES_MAX).contains(&datagram.len()) {
            return Err(DatagramError::Unauthenticated);
        }
        let (nonce, encrypted) = datagram.split_at_mut(NONCE_BYTES);
        let (plain, tag) = encrypted.split_at_mut(encrypted.len() - TAG_BYTES);
        let (nonce, tag) = (XNonce::from_slice(nonce), Tag::from_slice(tag));
        // A cipher that rejects the tag does not change the datagram.
        let mut try_decrypt = |cipher: &XChaCha20Poly1305| {
            cipher.decrypt_in_place_detached(nonce, ASSOCIATED_DATA, plain, tag).is_ok()
        };
        let by_first = try_decrypt(&self.first);
        if by_first || self.others.iter().any(try_decrypt) {
            Ok(OpenedDatagram { plain, other_secret: !by_first })
        } else {
            Err(DatagramError::Unauthenticated)
        }
    }
}

const SWIM: u8 = 0;
const DISCOVER: u8 = 1;
const DISCOVER_REPLY: u8 = 2;
const LEAVE: u8 = 3;

/// Writes kind and body of a SWIM datagram into `out`.
pub(crate) fn encode_swim(body: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(SWIM);
    out.extend_from_slice(body);
}

/// Returns the body of a decrypted datagram.
pub(crate) fn body(plain: &[u8]) -> &[u8] {
    plain.get(1..).unwrap_or_default()
}

/// Encodes kind and body of a datagram. The updates of a SWIM message are not encoded: foca does that.
pub(crate) fn encode(datagram: &Datagram) -> Vec<u8> {
    let (kind, body) = match datagram {
        Datagram::Discover(identity) => (DISCOVER, postcard::to_allocvec(identity)),
        Datagram::DiscoverReply(identity, known) => {
            (DISCOVER_REPLY, postcard::to_allocvec(&(identity, known)))
        }
        Datagram::Leave(identity) => (LEAVE, postcard::to_allocvec(identity)),
        Datagram::Swim(header, _) => {
            let mut body = Vec::new();
            let encoded = PostcardCodec.encode_header(header, &mut body);
            (SWIM, encoded.map(|()| body))
        }
    };
    // Encoding into memory cannot fail for these types.
    let mut plain = vec![kind];
    plain.extend_from_slice(&body.unwrap_or_default());
    plain
}

/// Decodes a decrypted datagram.
///
/// # Errors
/// [`DatagramError::Malformed`] if it cannot be decoded or names an unusable address.
pub(crate) fn decode(plain: &[u8]) -> Result<Datagram, DatagramError> {
    let (&kind, body) = plain.split_first().ok_or(DatagramError::Malformed)?;
    let datagram = match kind {
        SWIM => return decode_swim(body),
        DISCOVER => decode_all(body).map(Datagram::Discover),
        DISCOVER_REPLY => decode_all(body).map(|(identity, known)| Datagram::DiscoverReply(identity, known)),
        LEAVE => decode_all(body).map(Datagram::Leave),
        _ => Err(DatagramError::Malformed),
    }?;
    let valid = match &datagram {
        Datagram::Discover(identity) | Datagram::Leave(identity) => identity.is_valid(),
        Datagram::DiscoverReply(identity, known) => {
            identity.is_valid() && known.iter().all(|known| known.identity.is_valid())
        }
        Datagram::Swim(..) => true,
    };
    if valid { Ok(datagram) } else { Err(DatagramError::Malformed) }
}

fn decode_all<'body, T: Deserialize<'body>>(body: &'body [u8]) -> Result<T, DatagramError> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(DatagramError::Malformed),
    }
}

fn decode_swim(mut body: &[u8]) -> Result<Datagram, DatagramError> {
    let header: Header<Identity> =
        PostcardCodec.decode_header(&mut body).map_err(|_| DatagramError::Malformed)?;
    let valid_message = match &header.message {
        Message::PingReq { target: identity, .. }
        | Message::IndirectPing { origin: identity, .. }
        | Message::IndirectAck { target: identity, .. }
        | Message::ForwardedAck { origin: identity, .. } => identity.is_valid(),
        // larder sends no custom broadcasts.
        Message::Broadcast => false,
        _ => true,
    };
    let mut members: Vec<foca::Member<Identity>> = Vec::new();
    if let Some((count, mut rest)) = body.split_first_chunk() {
        for _ in 0..u16::from_be_bytes(*count) {
            members.push(PostcardCodec.decode_member(&mut rest).map_err(|_| DatagramError::Malformed)?);
        }
        body = rest;
    }
    let valid = valid_message && header.src.is_valid() && header.dst.is_valid();
    if valid && body.is_empty() && members.iter().all(|member| member.id().is_valid()) {
        Ok(Datagram::Swim(header, members))
    } else {
        Err(DatagramError::Malformed)
    }
}

/// Fuzz entry point: decodes any bytes and checks that the result survives a round trip.
#[doc(hidden)]
pub fn fuzz_datagram(plain: &[u8]) {
    match decode(plain) {
        Ok(Datagram::Swim(header, members)) => {
            let again = decode(&encode(&Datagram::Swim(header.clone(), Vec::new())));
            assert_eq!(again, Ok(Datagram::Swim(header, Vec::new())));
            assert!(members.len() <= plain.len());
        }
        Ok(datagram) => assert_eq!(decode(&encode(&datagram)), Ok(datagram)),
        Err(error) => assert_eq!(error, DatagramError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity(name: &str, renewal: u32) -> Identity {
        let address = "[2001:db8::1]:65535".parse().expect("an address");
        Identity { name: name.parse().expect("a name"), incarnation: u64::MAX, renewal, address }
    }

    fn cipher(key: u8) -> DatagramCipher {
        DatagramCipher::new(&ClusterSecret::new([key; 32]).into())
    }

    fn encrypted(cipher: &DatagramCipher, datagram: &Datagram) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(cipher.encrypt(&encode(datagram), &mut out));
        out
    }

    #[test]
    fn datagrams_survive_a_round_trip_and_the_longest_fits() {
        let cipher = cipher(1);
        let longest = identity(&"n".repeat(100), u32::MAX);
        let known = KnownIdentity { identity: longest.clone(), active: true };
        for datagram in [
            Datagram::Discover(identity("a", 0)),
            Datagram::DiscoverReply(longest.clone(), Some(known)),
            Datagram::DiscoverReply(identity("a", 0), None),
            Datagram::Leave(longest.clone()),
        ] {
            let mut bytes = encrypted(&cipher, &datagram);
            assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
            assert_eq!(cipher.decrypt(&mut bytes).and_then(|opened| decode(opened.plain)), Ok(datagram));
        }
        let (src, dst) = (longest.clone(), longest.clone());
        let message = Message::PingReq { target: longest.clone(), probe_number: 9 };
        let header = Header { src, src_incarnation: u16::MAX, dst, message };
        let mut plain = encode(&Datagram::Swim(header.clone(), Vec::new()));
        let members = vec![foca::Member::alive(longest.clone()), foca::Member::down(longest)];
        plain.extend_from_slice(&2_u16.to_be_bytes());
        for member in &members {
            PostcardCodec.encode_member(member, &mut plain).expect("encoded");
        }
        assert!(plain.len() <= BODY_BYTES_MAX + 1, "room for updates beside the longest names");
        assert_eq!(decode(&plain), Ok(Datagram::Swim(header, members)));
    }

    #[test]
    fn other_keys_and_every_changed_bit_are_rejected() {
        let (cipher, other) = (cipher(1), cipher(2));
        let datagram = encrypted(&cipher, &Datagram::Discover(identity("a", 0)));
        assert_eq!(other.decrypt(&mut datagram.clone()), Err(DatagramError::Unauthenticated));
        let both = ClusterSecrets::new(ClusterSecret::new([2; 32]), Some(ClusterSecret::new([1; 32])));
        let both = DatagramCipher::new(&both);
        let plain = encode(&Datagram::Discover(identity("a", 0)));
        let by = |other_secret| Ok(OpenedDatagram { plain: &plain, other_secret });
        assert_eq!(both.decrypt(&mut datagram.clone()), by(true), "decrypted with the second secret");
        let sent = encrypted(&both, &Datagram::Discover(identity("a", 0)));
        assert_eq!(other.decrypt(&mut sent.clone()), by(false), "encrypted with the first secret");
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(cipher.decrypt(&mut changed), Err(DatagramError::Unauthenticated), "bit {bit}");
        }
        for length in (0..datagram.len()).chain([DATAGRAM_BYTES_MAX + 1]) {
            let mut changed = datagram.clone();
            changed.resize(length, 0);
            assert_eq!(cipher.decrypt(&mut changed), Err(DatagramError::Unauthenticated), "length {length}");
        }
        assert!(
            encrypted(&cipher, &Datagram::Discover(identity("a", 0))) != datagram,
            "no nonce is used twice"
        );
        assert!(!cipher.encrypt(&[0; BODY_BYTES_MAX + 2], &mut Vec::new()));
    }

    #[test]
    fn unusable_addresses_are_malformed() {
        for address in ["0.0.0.0:1", "10.0.0.1:0", "[::]:1", "224.0.0.1:1"] {
            let identity = Identity { address: address.parse().expect("an address"), ..identity("a", 0) };
            assert_eq!(
                decode(&encode(&Datagram::Discover(identity))),
                Err(DatagramError::Malformed),
                "{address}"
            );
        }
        let mut long = encode(&Datagram::Leave(identity("a", 0)));
        long.push(0);
        assert_eq!(decode(&long), Err(DatagramError::Malformed));
    }

    proptest! {
        #[test]
        fn the_decoder_accepts_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0_u8..5,
            flip in any::<(usize, u8)>(),
        ) {
            fuzz_datagram(&bytes);
            let header = Header {
                src: identity("a", 1), src_incarnation: 3, dst: identity("b", 2), message: Message::Gossip,
            };
            let mut plain = match kind {
                0 => encode(&Datagram::Discover(identity("a", 0))),
                1 => encode(&Datagram::DiscoverReply(identity("a", 0), Some(KnownIdentity { identity: identity("b", 7), active: false }))),
                _ => encode(&Datagram::Swim(header, Vec::new())),
            };
            plain.extend_from_slice(&bytes);
            fuzz_datagram(&plain);
            let at = flip.0 % plain.len();
            plain[at] ^= flip.1;
            fuzz_datagram(&plain);
        }
    }
}
