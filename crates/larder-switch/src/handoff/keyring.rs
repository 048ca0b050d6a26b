//! Keys of cookies, derived from a secret and the time.
//!
//! A key makes cookies for one *epoch* of `key_life` and is accepted for another half epoch. Nodes must know a key
//! before the first cookie is made with it. In the second half of an epoch, the next key is therefore accepted in
//! place of the previous one. A handshake has half a `key_life` to complete.

use larder_kernel::CookieKey;
use larder_kernel::abi::EXPIRED_KEYS;
use std::time::Duration;

/// Keys that are valid at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveKeys {
    /// Accepted keys.
    pub(crate) keys: [CookieKey; 2],
    /// Index of the key that makes cookies.
    pub(crate) current: usize,
}

/// Derives keys.
#[derive(Clone)]
pub(crate) struct Keyring {
    secret: [u8; 32],
    life: Duration,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("life", &self.life).finish_non_exhaustive()
    }
}

impl Keyring {
    pub(crate) fn new(secret: [u8; 32], life: Duration) -> Self {
        Self { secret, life }
    }

    /// Returns the keys at `since_1970`, and how long they stay valid.
    pub(crate) fn keys_at(&self, since_1970: Duration) -> (ActiveKeys, Duration) {
        let half = (self.life / 2).max(Duration::from_millis(1));
        let halves = u64::try_from(since_1970.as_nanos() / half.as_nanos()).unwrap_or(u64::MAX);
        let epoch = halves / 2;
        let other = if halves % 2 == 0 { epoch.wrapping_sub(1) } else { epoch.wrapping_add(1) };
        // A key keeps its index while it is valid.
        let current = (epoch % 2) as usize;
        let mut keys = [CookieKey::derive(&self.secret, epoch); 2];
        keys[1 - current] = CookieKey::derive(&self.secret, other);
        let passed = since_1970.as_nanos() % half.as_nanos();
        let left = half - Duration::from_nanos(u64::try_from(passed).unwrap_or(0));
        (ActiveKeys { keys, current }, left)
    }

    /// Returns the keys that have expired last, the latest first.
    pub(crate) fn expired(&self, since_1970: Duration) -> Vec<CookieKey> {
        let half = (self.life / 2).max(Duration::from_millis(1));
        let halves = u64::try_from(since_1970.as_nanos() / half.as_nanos()).unwrap_or(u64::MAX);
        // In the first half of an epoch, the previous key is still accepted.
        let first = (halves / 2).saturating_sub(u64::from(halves % 2 == 0));
        let epochs = (0..first).rev().take(EXPIRED_KEYS);
        epochs.map(|epoch| CookieKey::derive(&self.secret, epoch)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_accepted_any_more_is_expired() {
        let ring = Keyring::new([3; 32], Duration::from_secs(60));
        let at = |step: u64| Duration::from_secs(6_000 + step * 30);
        for step in 0..8 {
            let (before, after) = (ring.keys_at(at(step)).0, ring.keys_at(at(step + 1)).0);
            let former = ring.expired(at(step + 1));
            assert!(after.keys.iter().all(|key| !former.contains(key)), "none that is believed");
            let gone = |key: &&CookieKey| !after.keys.contains(key);
            assert!(before.keys.iter().filter(gone).all(|key| former.contains(key)));
        }
        assert_eq!(
            ring.expired(Duration::from_secs(90)),
            [CookieKey::derive(&[3; 32], 0)],
            "time has a beginning"
        );
    }

    #[test]
    fn a_key_is_accepted_before_and_after_it_makes_cookies() {
        let ring = Keyring::new([3; 32], Duration::from_secs(60));
        let steps: Vec<ActiveKeys> =
            (0..8).map(|step| ring.keys_at(Duration::from_secs(6_000 + step * 30)).0).collect();
        for pair in steps.windows(2) {
            let [before, after] = [pair[0], pair[1]];
            assert!(before.keys.contains(&after.keys[after.current]), "it is known before it is used");
            assert!(after.keys.contains(&before.keys[before.current]), "and believed for half a life after");
            let moved = (0..2).filter(|place| before.keys[*place] != after.keys[*place]).count();
            assert!(moved <= 1, "a key keeps its place");
        }
        assert_eq!(ring.keys_at(Duration::from_secs(6_010)).1, Duration::from_secs(20));
        assert_eq!(steps[0], ring.keys_at(Duration::from_millis(6_029_999)).0);
    }
}
