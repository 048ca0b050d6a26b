//! When a certificate is ordered. Pure.
//!
//! A certificate is renewed when two thirds of its life are over, a little earlier by a share that is the host's own, so that many
//! do not come at once; or, if its authority says when (RFC 9773), somewhere in that window. What fails is tried again after a pause
//! that grows, so that the limits of authorities are kept: Let's Encrypt takes 5 failed validations of a name in an hour.

use larder_switch::StoredCertificate;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Shortest life for which the authority is asked when to renew, seconds. What it says is good for hours.
pub(super) const WINDOW_LIFE_MIN_S: i64 = 24 * 3600;
/// Shortest time from an order to the next that the authority's window may bring about, seconds.
const WINDOW_PAUSE_S: i64 = 3600;
/// Longest pause that an authority may ask for, seconds.
const ASKED_PAUSE_MAX_S: i64 = 7 * 24 * 3600;
/// Pause after the first failure to reach the authority, doubled by each that follows, and the longest; seconds.
const UNREACHABLE_S: i64 = 5;
const UNREACHABLE_MAX_S: i64 = 1800;
/// Pause after the first refusal; after the second, doubled by each that follows; and the longest; seconds.
const REFUSED_FIRST_S: i64 = 60;
const REFUSED_S: i64 = 600;
const REFUSED_MAX_S: i64 = 12 * 3600;

/// What is known of a host beside its certificate, as it stands in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    /// Orders that have failed since the last that did not.
    pub(super) failures: u32,
    /// Why the last one failed.
    pub(super) error: Option<String>,
    /// Not before then is the next tried, seconds since 1970.
    pub(super) retry_at: i64,
    /// When the certificate came, seconds since 1970.
    pub(super) issued_at: i64,
    /// An order that was begun and is not over.
    pub(super) order: Option<Begun>,
    /// When the authority wants the certificate renewed.
    pub(super) window: Option<Window>,
}

/// An order at the authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) url: String,
    /// The key that the certificate is to be for, PEM; from when it is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
}

/// RFC 9773 section 4.2, and when to look again (section 4.3.2); seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Window {
    /// Start and end; none if the authority has said nothing.
    pub(super) span: Option<(i64, i64)>,
    pub(super) look_at: i64,
}

/// Whose fault a failure is, which says how soon the next try may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The authority is not there, or not itself: asking again costs little.
    Unreachable,
    /// It has said no.
    Refused,
}

/// A number in 0..1000 that is the same for all who ask for the same.
fn lot(host: &str, number: i64) -> i64 {
    i64::try_from(xxh3_64(format!("{host} {number}").as_bytes()) % 1000).unwrap_or(0)
}

/// When the next certificate is ordered, seconds since 1970; what is past is due.
pub(super) fn next_order(host: &str, held: Option<&StoredCertificate>, state: &State) -> i64 {
    held.map_or(0, |held| renewal(host, held, state)).max(state.retry_at)
}

fn renewal(host: &str, held: &StoredCertificate, state: &State) -> i64 {
    let life = (held.not_after - held.not_before).max(0);
    let lot = lot(host, held.not_after);
    let by_life = held.not_before + life / 3 * 2 - life / 30 * lot / 1000;
    match state.window.as_ref().and_then(|window| window.span) {
        Some((start, end)) if life >= WINDOW_LIFE_MIN_S => {
            let moment = start + (end - start).max(0) / 1000 * lot;
            moment.max(state.issued_at + WINDOW_PAUSE_S).min(held.not_after - life / 20)
        }
        _ => by_life,
    }
}

/// When to ask the authority for its window, seconds since 1970; none if the certificate lives too short a time.
pub(super) fn next_look(held: &StoredCertificate, state: &State) -> Option<i64> {
    let long = held.not_after - held.not_before >= WINDOW_LIFE_MIN_S;
    long.then(|| state.window.as_ref().map_or(0, |window| window.look_at))
}

/// When to try again after the failure that made it `failures`; `asked` is when the authority will hear of it again, if it says so
/// (`Retry-After`). Seconds since 1970.
pub(super) fn retry_at(host: &str, now: i64, failures: u32, fault: Fault, asked: Option<i64>) -> i64 {
    let doubled = |first: i64, times: u32| first << times.min(20);
    let pause = match (fault, failures) {
        (Fault::Unreachable, n) => doubled(UNREACHABLE_S, n.saturating_sub(1)).min(UNREACHABLE_MAX_S),
        (Fault::Refused, 0 | 1) => REFUSED_FIRST_S,
        (Fault::Refused, n) => doubled(REFUSED_S, n - 2).min(REFUSED_MAX_S),
    };
    let own = now + pause + pause / 5 * lot(host, now) / 1000;
    own.max(asked.unwrap_or(0).min(now + ASKED_PAUSE_MAX_S))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    fn held(not_before: i64, life: i64) -> StoredCertificate {
        let (not_after, names) = (not_before + life, vec!["a.test".to_owned()]);
        StoredCertificate { not_before, not_after, names, certificate: Vec::new().into() }
    }

    #[test]
    fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over() {
        let (held, state) = (held(1_000_000, 90 * DAY), State::default());
        let mut moments: Vec<i64> = (0..1000)
            .map(|n| next_order(&format!("{n}.test"), Some(&held), &state) - held.not_before)
            .collect();
        moments.sort_unstable();
        assert!(moments[0] >= 57 * DAY && moments[999] <= 60 * DAY, "{} to {}", moments[0], moments[999]);
        assert!(moments[900] - moments[100] > 2 * DAY, "spread over three days");
        assert_eq!(next_order("a.test", Some(&held), &state), next_order("a.test", Some(&held), &state));
        assert_eq!(next_order("a.test", None, &state), 0, "what is not there is due");
    }

    #[test]
    fn the_authoritys_window_goes_before_our_own_rule() {
        let held = held(0, 90 * DAY);
        let windowed = |span, issued_at| {
            let window = Some(Window { span: Some(span), look_at: 0 });
            next_order("a.test", Some(&held), &State { window, issued_at, ..State::default() })
        };
        assert!((50 * DAY..=52 * DAY).contains(&windowed((50 * DAY, 52 * DAY), 0)));
        // A revoked one is due at once, but not for ever again.
        assert_eq!(windowed((-2, -1), 0), 3600);
        assert_eq!(windowed((-2, -1), 10 * DAY), 10 * DAY + 3600);
        assert!(windowed((200 * DAY, 300 * DAY), 0) < held.not_after, "never after the end");
    }

    #[test]
    fn short_lives_are_not_asked_about() {
        assert_eq!(next_look(&held(0, DAY - 1), &State::default()), None);
        assert_eq!(next_look(&held(0, DAY), &State::default()), Some(0));
    }

    #[test]
    fn refusals_keep_the_limits_of_authorities() {
        let (mut now, mut tries) = (0, vec![0]);
        for failures in 1..12 {
            now = retry_at("a.test", now, failures, Fault::Refused, None);
            tries.push(now);
        }
        let within = |from: i64| tries.iter().filter(|at| (from..from + 3600).contains(*at)).count();
        assert!(tries.iter().all(|from| within(*from) < 5), "{tries:?}");
        let last = tries[11] - tries[10];
        assert!((12 * 3600..=15 * 3600).contains(&last), "{last} s");
    }

    #[test]
    fn an_authority_that_is_away_is_soon_asked_again_and_its_own_wish_is_kept() {
        let pause = |failures, asked| retry_at("a.test", 1000, failures, Fault::Unreachable, asked) - 1000;
        assert!((5..=6).contains(&pause(1, None)), "{}", pause(1, None));
        assert!((1800..=2160).contains(&pause(u32::MAX, None)));
        assert_eq!(pause(1, Some(1000 + 7200)), 7200);
        assert_eq!(pause(1, Some(i64::MAX)), 7 * DAY);
    }
}
