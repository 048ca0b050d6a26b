//! Weighted routes: another route, with its own policy, nodes and edits, takes a share of a route's requests.
//!
//! A hash assigns requests to routes. The same client (or other key) stays on the same route while the shares stay,
//! and a growing share takes clients without giving any back. The shares of the arms lie one after the other on the
//! line from 0 to 1. The position of a request is `XXH3(key)`, seeded by the route's name, so that two routes do not
//! split at the same clients.

use crate::config_error::SHARE_WHOLE;
use crate::edits::StickyKey;
use larder_core::rules::Head;
use larder_core::{RouteId, TargetId};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Maximum number of routes that take a share of one route.
pub(crate) const ARMS_MAX: usize = 16;

/// Key that assigns requests to shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SplitBy {
    /// The client's address.
    #[default]
    Client,
    /// The target, by the key template of the split route.
    Target,
    /// A key from the request, or the client's address if the request has no such key.
    Key(StickyKey),
}

/// Share of another route's requests that a route takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteShare {
    /// Name of the split route: a route with matchers, or the default route.
    pub route: String,
    /// Share in thousandths of a percent: 0 to 100,000.
    pub share: u32,
}

/// A route that takes a share.
#[derive(Debug)]
pub(crate) struct SplitArm {
    pub(crate) route: RouteId,
    configured: u32,
    share: AtomicU32,
}

/// Split of a route.
#[derive(Debug)]
pub(crate) struct Split {
    by: SplitBy,
    seed: u64,
    arms: Box<[SplitArm]>,
}

impl Split {
    /// Creates the split of the route of this name; `None` if no route takes a share.
    pub(crate) fn new(name: &str, by: SplitBy, arms: Vec<(RouteId, u32)>) -> Option<Self> {
        let arm = |(route, share)| SplitArm { route, configured: share, share: AtomicU32::new(share) };
        let arms: Box<[SplitArm]> = arms.into_iter().map(arm).collect();
        (!arms.is_empty()).then(|| Self { by, seed: xxh3_64(name.as_bytes()), arms })
    }

    /// Returns the route that takes a request; `None` for the split route itself.
    pub(crate) fn choose(
        &self,
        head: &Head<'_>,
        client: Option<IpAddr>,
        target: impl FnOnce() -> TargetId,
    ) -> Option<RouteId> {
        let by_client = || match client?.to_canonical() {
            IpAddr::V4(address) => Some(xxh3_64_with_seed(&address.octets(), self.seed)),
            IpAddr::V6(address) => Some(xxh3_64_with_seed(&address.octets(), self.seed)),
        };
        let number = |number: u64| xxh3_64_with_seed(&number.to_le_bytes(), self.seed);
        let hash = match &self.by {
            SplitBy::Client => by_client()?,
            SplitBy::Target => number(target().0),
            SplitBy::Key(key) => key.session(head).map(number).or_else(by_client)?,
        };
        let position = (((hash >> 32) * u64::from(SHARE_WHOLE)) >> 32) as u32;
        let mut end = 0;
        self.arms.iter().find_map(|arm| {
            end += arm.share.load(Relaxed);
            (position < end).then_some(arm.route)
        })
    }

    /// Returns the current share of a route.
    pub(crate) fn share(&self, route: RouteId) -> Option<u32> {
        self.shares(route).map(|(_, share)| share)
    }

    /// Returns the configured and the current share of a route.
    pub(crate) fn shares(&self, route: RouteId) -> Option<(u32, u32)> {
        let arm = self.arms.iter().find(|arm| arm.route == route)?;
        Some((arm.configured, arm.share.load(Relaxed)))
    }

    /// Sets the share of a route. If there is no room for it, the error is the sum of the other shares.
    pub(crate) fn set_share(&self, route: RouteId, share: u32) -> Result<(), u32> {
        let others = self.arms.iter().filter(|arm| arm.route != route);
        let others: u32 = others.map(|arm| arm.share.load(Relaxed)).sum();
        if others.saturating_add(share) > SHARE_WHOLE {
            return Err(others);
        }
        if let Some(arm) = self.arms.iter().find(|arm| arm.route == route) {
            arm.share.store(share, Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(by: SplitBy, shares: &[u32]) -> Split {
        let arms = shares.iter().zip(1..).map(|(share, id)| (RouteId(id), *share)).collect();
        Split::new("shop", by, arms).expect("arms")
    }

    fn of(split: &Split, client: u32) -> Option<u16> {
        let head = Head::get(b"h", b"/");
        let client = IpAddr::from(client.to_be_bytes());
        split.choose(&head, Some(client), || TargetId(client_id(client))).map(|route| route.0)
    }

    fn client_id(client: IpAddr) -> u64 {
        xxh3_64(client.to_string().as_bytes())
    }

    #[test]
    fn shares_are_exact_and_stable() {
        const CLIENTS: u32 = 20_000;
        for by in [SplitBy::Client, SplitBy::Target] {
            let split = split(by, &[10_000, 25_000]);
            let sides: Vec<_> = (0..CLIENTS).map(|client| of(&split, client)).collect();
            for (arm, share) in [(Some(1), 0.10), (Some(2), 0.25), (None, 0.65)] {
                let count = sides.iter().filter(|side| **side == arm).count() as f64;
                let (n, deviation) =
                    (f64::from(CLIENTS), (f64::from(CLIENTS) * share * (1.0 - share)).sqrt());
                assert!((count - n * share).abs() < 5.0 * deviation, "{arm:?} {count}");
            }
            // The last share grows: clients move only to it.
            assert_eq!(split.set_share(RouteId(2), 50_000), Ok(()));
            for (client, before) in (0..CLIENTS).zip(&sides) {
                let now = of(&split, client);
                assert!(now == *before || now == Some(2) && before.is_none());
            }
            assert_eq!(split.set_share(RouteId(2), 90_001), Err(10_000));
            assert_eq!((split.share(RouteId(2)), split.share(RouteId(3))), (Some(50_000), None));
        }
    }

    #[test]
    fn shares_of_0_and_100_percent_take_none_and_all() {
        let (none, all) = (split(SplitBy::Client, &[0]), split(SplitBy::Client, &[SHARE_WHOLE]));
        assert!((0..5000).all(|client| of(&none, client).is_none() && of(&all, client) == Some(1)));
    }

    #[test]
    fn requests_without_a_key_are_split_by_address() {
        let key = StickyKey::new("{cookie:user}".parse().expect("a template"));
        let (by_key, by_client) = (split(SplitBy::Key(key), &[50_000]), split(SplitBy::Client, &[50_000]));
        assert!((0..200).all(|client| of(&by_key, client) == of(&by_client, client)));
        let side = |user: &str, client: u8| {
            let headers = vec![("Cookie", format!("user={user}"))];
            let head = Head::new(b"GET", b"h", b"/", &headers);
            by_key.choose(&head, Some([10, 0, 0, client].into()), || TargetId(0))
        };
        assert!((0..50).all(|user| side(&user.to_string(), 1) == side(&user.to_string(), 2)));
        let sides: Vec<_> = (0..50).map(|user| side(&user.to_string(), 1).is_some()).collect();
        assert!(sides.contains(&true) && sides.contains(&false));
        assert_eq!(by_client.choose(&Head::get(b"h", b"/"), None, || TargetId(0)), None);
    }
}
