//! Datagrams of membership: what they say, and their seal. [`decode`] is a pure function.
//!
//! Each is a random nonce of 24 bytes and what XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03) makes of a kind and a
//! body, with a key that only members have. One that is sent again by a stranger says what was said before: SWIM's
//! incarnations make that old news. None is longer than what any path of IPv6 takes in one piece (RFC 8200, section 5).

use crate::member::Member;
use crate::name::Name;
use crate::secret::{ClusterSecret, ClusterSecrets, Purpose};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use chacha20poly1305::aead::{AeadInPlace as _, KeyInit as _};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use foca::{Codec as _, Header, Message, PostcardCodec};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Longest datagram: 1,280 bytes less the heads of IPv6 and UDP. Bytes.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 1_280 - 40 - 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Longest body of SWIM's. Bytes.
pub(crate) const BODY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - NONCE_BYTES - TAG_BYTES - 1;
/// Bound to every datagram: another version's are no datagrams of this one.
const BOUND: &[u8] = b"larder peers 1";

/// One life of a member as membership sees it. Of two with one name the greater wins: the newer process, of one process
/// the later renewal. Addresses only settle ties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) name: Name,
    /// See [`Member::incarnation`].
    pub(crate) incarnation: u64,
    /// How often this process has come back after it was declared down.
    pub(crate) renewal: u32,
    pub(crate) address: SocketAddr,
}

impl Life {
    pub(crate) fn member(&self) -> Member {
        Member { name: self.name.clone(), incarnation: self.incarnation, address: self.address }
    }

    fn is_sound(&self) -> bool {
        self.address.port() != 0 && !self.address.ip().is_unspecified() && !self.address.ip().is_multicast()
    }
}

impl foca::Identity for Life {
    type Addr = Name;

    /// The driver renews, so that it can do so at its own pace.
    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> Name {
        self.name.clone()
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        let rank = |life: &Self| (life.incarnation, life.renewal, life.address);
        rank(self) > rank(other)
    }
}

/// What a member knows of the one that knocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) life: Life,
    pub(crate) active: bool,
}

/// What a datagram says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// SWIM's: its head, and the members it has news of.
    Swim(Header<Life>, Vec<foca::Member<Life>>),
    /// Is there anybody? SWIM speaks to members by name; who knows only an address asks for it.
    Knock(Life),
    /// Who is there, and what is known of the one that knocked.
    Here(Life, Option<Known>),
    /// This member leaves.
    Bye(Life),
}

/// Why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("not sealed with a secret of the cluster, or changed")]
    Forged,
    #[error("says what cannot be said")]
    Malformed,
}

/// Seals datagrams with the first of a member's secrets, and opens them with each.
pub(crate) struct Seal {
    first: XChaCha20Poly1305,
    others: Vec<XChaCha20Poly1305>,
    random: SystemRandom,
}

/// A datagram that was opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened<'datagram> {
    /// Kind and body.
    pub(crate) plain: &'datagram [u8],
    /// It was sealed with another secret than the first.
    pub(crate) by_other: bool,
}

impl Seal {
    pub(crate) fn new(secrets: &ClusterSecrets) -> Self {
        let cipher =
            |secret: &ClusterSecret| XChaCha20Poly1305::new((&secret.key(Purpose::Datagrams)).into());
        let others = secrets.all().skip(1).map(cipher).collect();
        Self { first: cipher(secrets.first()), others, random: SystemRandom::new() }
    }

    /// Writes the sealed datagram into `out`. `false`: it is too long, or there is no randomness.
    pub(crate) fn seal(&self, plain: &[u8], out: &mut Vec<u8>) -> bool {
        let mut nonce = [0; NONCE_BYTES];
        if plain.len() > BODY_BYTES_MAX + 1 || self.random.fill(&mut nonce).is_err() {
            return false;
        }
        out.clear();
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plain);
        let sealed =
            self.first.encrypt_in_place_detached(XNonce::from_slice(&nonce), BOUND, &mut out[NONCE_BYTES..]);
        let Ok(tag) = sealed else { return false };
        out.extend_from_slice(&tag);
        true
    }

    /// Opens a datagram in its place.
    pub(crate) fn open<'datagram>(
        &self,
        datagram: &'datagram mut [u8],
    ) -> Result<Opened<'datagram>, Refused> {
        if !(NONCE_BYTES + TAG_BYTES + 1..=DATAGRAM_BYTES_MAX).contains(&datagram.len()) {
            return Err(Refused::Forged);
        }
        let (nonce, sealed) = datagram.split_at_mut(NONCE_BYTES);
        let (plain, tag) = sealed.split_at_mut(sealed.len() - TAG_BYTES);
        let (nonce, tag) = (XNonce::from_slice(nonce), Tag::from_slice(tag));
        // A cipher that rejects the tag leaves the datagram as it is.
        let mut opens =
            |cipher: &XChaCha20Poly1305| cipher.decrypt_in_place_detached(nonce, BOUND, plain, tag).is_ok();
        let by_first = opens(&self.first);
        if by_first || self.others.iter().any(opens) {
            Ok(Opened { plain, by_other: !by_first })
        } else {
            Err(Refused::Forged)
        }
    }
}

const SWIM: u8 = 0;
const KNOCK: u8 = 1;
const HERE: u8 = 2;
const BYE: u8 = 3;

/// A datagram of SWIM's, kind and body.
pub(crate) fn swim(body: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(SWIM);
    out.extend_from_slice(body);
}

/// The body of a datagram of SWIM's.
pub(crate) fn body(plain: &[u8]) -> &[u8] {
    plain.get(1..).unwrap_or_default()
}

/// A datagram of ours, kind and body. SWIM's are encoded by its library.
pub(crate) fn encode(said: &Said) -> Vec<u8> {
    let (kind, body) = match said {
        Said::Knock(life) => (KNOCK, postcard::to_allocvec(life)),
        Said::Here(life, known) => (HERE, postcard::to_allocvec(&(life, known))),
        Said::Bye(life) => (BYE, postcard::to_allocvec(life)),
        Said::Swim(header, _) => {
            let mut body = Vec::new();
            let encoded = PostcardCodec.encode_header(header, &mut body);
            (SWIM, encoded.map(|()| body))
        }
    };
    // Memory does not run full, and these types have no lengths that are unknown.
    let mut plain = vec![kind];
    plain.extend_from_slice(&body.unwrap_or_default());
    plain
}

/// What an opened datagram says.
pub(crate) fn decode(plain: &[u8]) -> Result<Said, Refused> {
    let (&kind, body) = plain.split_first().ok_or(Refused::Malformed)?;
    let said = match kind {
        SWIM => return decode_swim(body),
        KNOCK => whole(body).map(Said::Knock),
        HERE => whole(body).map(|(life, known)| Said::Here(life, known)),
        BYE => whole(body).map(Said::Bye),
        _ => Err(Refused::Malformed),
    }?;
    let sound = match &said {
        Said::Knock(life) | Said::Bye(life) => life.is_sound(),
        Said::Here(life, known) => life.is_sound() && known.iter().all(|known| known.life.is_sound()),
        Said::Swim(..) => true,
    };
    if sound { Ok(said) } else { Err(Refused::Malformed) }
}

fn whole<'body, T: Deserialize<'body>>(body: &'body [u8]) -> Result<T, Refused> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(Refused::Malformed),
    }
}

fn decode_swim(mut body: &[u8]) -> Result<Said, Refused> {
    let header: Header<Life> = PostcardCodec.decode_header(&mut body).map_err(|_| Refused::Malformed)?;
    let within = match &header.message {
        Message::PingReq { target: life, .. }
        | Message::IndirectPing { origin: life, .. }
        | Message::IndirectAck { target: life, .. }
        | Message::ForwardedAck { origin: life, .. } => life.is_sound(),
        // Nothing is told in this way here.
        Message::Broadcast => false,
        _ => true,
    };
    let mut members: Vec<foca::Member<Life>> = Vec::new();
    if let Some((count, mut rest)) = body.split_first_chunk() {
        for _ in 0..u16::from_be_bytes(*count) {
            members.push(PostcardCodec.decode_member(&mut rest).map_err(|_| Refused::Malformed)?);
        }
        body = rest;
    }
    let sound = within && header.src.is_sound() && header.dst.is_sound();
    if sound && body.is_empty() && members.iter().all(|member| member.id().is_sound()) {
        Ok(Said::Swim(header, members))
    } else {
        Err(Refused::Malformed)
    }
}

/// Decodes anything; what is sound has to be the same when it is encoded and decoded again.
#[doc(hidden)]
pub fn fuzz_datagram(plain: &[u8]) {
    match decode(plain) {
        Ok(Said::Swim(header, members)) => {
            let again = decode(&encode(&Said::Swim(header.clone(), Vec::new())));
            assert_eq!(again, Ok(Said::Swim(header, Vec::new())));
            assert!(members.len() <= plain.len());
        }
        Ok(said) => assert_eq!(decode(&encode(&said)), Ok(said)),
        Err(refused) => assert_eq!(refused, Refused::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn life(name: &str, renewal: u32) -> Life {
        let address = "[2001:db8::1]:65535".parse().expect("an address");
        Life { name: name.parse().expect("a name"), incarnation: u64::MAX, renewal, address }
    }

    fn seal_of(key: u8) -> Seal {
        Seal::new(&ClusterSecret::new([key; 32]).into())
    }

    fn sealed(seal: &Seal, said: &Said) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(seal.seal(&encode(said), &mut out));
        out
    }

    #[test]
    fn what_is_said_is_heard_and_the_longest_fits() {
        let seal = seal_of(1);
        let longest = life(&"n".repeat(100), u32::MAX);
        let known = Known { life: longest.clone(), active: true };
        for said in [
            Said::Knock(life("a", 0)),
            Said::Here(longest.clone(), Some(known)),
            Said::Here(life("a", 0), None),
            Said::Bye(longest.clone()),
        ] {
            let mut datagram = sealed(&seal, &said);
            assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
            assert_eq!(seal.open(&mut datagram).and_then(|opened| decode(opened.plain)), Ok(said));
        }
        let (src, dst) = (longest.clone(), longest.clone());
        let message = Message::PingReq { target: longest.clone(), probe_number: 9 };
        let header = Header { src, src_incarnation: u16::MAX, dst, message };
        let mut plain = encode(&Said::Swim(header.clone(), Vec::new()));
        let members = vec![foca::Member::alive(longest.clone()), foca::Member::down(longest)];
        plain.extend_from_slice(&2_u16.to_be_bytes());
        for member in &members {
            PostcardCodec.encode_member(member, &mut plain).expect("encoded");
        }
        assert!(plain.len() <= BODY_BYTES_MAX + 1, "room for news of others beside the longest names");
        assert_eq!(decode(&plain), Ok(Said::Swim(header, members)));
    }

    #[test]
    fn other_keys_and_every_change_are_noticed() {
        let (seal, other) = (seal_of(1), seal_of(2));
        let datagram = sealed(&seal, &Said::Knock(life("a", 0)));
        assert_eq!(other.open(&mut datagram.clone()), Err(Refused::Forged));
        let both = ClusterSecrets::new(ClusterSecret::new([2; 32]), Some(ClusterSecret::new([1; 32])));
        let both = Seal::new(&both);
        let plain = encode(&Said::Knock(life("a", 0)));
        let by = |by_other| Ok(Opened { plain: &plain, by_other });
        assert_eq!(both.open(&mut datagram.clone()), by(true), "opened with the second secret");
        let sent = sealed(&both, &Said::Knock(life("a", 0)));
        assert_eq!(other.open(&mut sent.clone()), by(false), "sealed with the first secret");
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(seal.open(&mut changed), Err(Refused::Forged), "bit {bit}");
        }
        for length in (0..datagram.len()).chain([DATAGRAM_BYTES_MAX + 1]) {
            let mut changed = datagram.clone();
            changed.resize(length, 0);
            assert_eq!(seal.open(&mut changed), Err(Refused::Forged), "length {length}");
        }
        assert!(sealed(&seal, &Said::Knock(life("a", 0))) != datagram, "no nonce is used twice");
        assert!(!seal.seal(&[0; BODY_BYTES_MAX + 2], &mut Vec::new()));
    }

    #[test]
    fn unsound_members_are_refused() {
        for address in ["0.0.0.0:1", "10.0.0.1:0", "[::]:1", "224.0.0.1:1"] {
            let life = Life { address: address.parse().expect("an address"), ..life("a", 0) };
            assert_eq!(decode(&encode(&Said::Knock(life))), Err(Refused::Malformed), "{address}");
        }
        let mut long = encode(&Said::Bye(life("a", 0)));
        long.push(0);
        assert_eq!(decode(&long), Err(Refused::Malformed));
    }

    proptest! {
        #[test]
        fn nothing_breaks_the_decoder(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0_u8..5,
            flip in any::<(usize, u8)>(),
        ) {
            fuzz_datagram(&bytes);
            let header = Header {
                src: life("a", 1), src_incarnation: 3, dst: life("b", 2), message: Message::Gossip,
            };
            let mut plain = match kind {
                0 => encode(&Said::Knock(life("a", 0))),
                1 => encode(&Said::Here(life("a", 0), Some(Known { life: life("b", 7), active: false }))),
                _ => encode(&Said::Swim(header, Vec::new())),
            };
            plain.extend_from_slice(&bytes);
            fuzz_datagram(&plain);
            let at = flip.0 % plain.len();
            plain[at] ^= flip.1;
            fuzz_datagram(&plain);
        }
    }
}
