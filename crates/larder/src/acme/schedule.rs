//! Times at which certificates are ordered. Pure.
//!
//! A certificate is renewed after two thirds of its lifetime, minus a share that depends on the host. The
//! share spreads the orders of many hosts. If the authority suggests a renewal window (RFC 9773), the order
//! is placed at a moment in that window. A failed order is tried again after a growing pause, which respects
//! the rate limits of authorities. Let's Encrypt allows 5 failed validations of a name per hour.

use larder_switch::StoredCertificate;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Shortest lifetime for which the renewal window is requested, seconds. A window is valid for hours, so it
/// is useless for shorter lifetimes.
pub(super) const WINDOW_LIFE_MIN_S: i64 = 24 * 3600;
/// Shortest time between an order and the next one that a renewal window causes, seconds.
const WINDOW_PAUSE_S: i64 = 3600;
/// Longest `Retry-After` that is respected, seconds.
const RETRY_AFTER_MAX_S: i64 = 7 * 24 * 3600;
/// Pause after the first failure to reach the authority, and the longest pause, seconds. The pause doubles
/// with each failure.
const UNREACHABLE_S: i64 = 5;
const UNREACHABLE_MAX_S: i64 = 1800;
/// Pause after the first refusal, after the second, and the longest pause, seconds. The pause doubles from
/// the second refusal on.
const REFUSED_FIRST_S: i64 = 60;
const REFUSED_S: i64 = 600;
const REFUSED_MAX_S: i64 = 12 * 3600;

/// State of a host in the store, without its certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HostState {
    /// Failed orders since the last successful order.
    pub(super) failures: u32,
    /// Error of the last failed order.
    pub(super) error: Option<String>,
    /// Earliest time of the next order, seconds since 1970.
    pub(super) retry_at: i64,
    /// Time at which the certificate was issued, seconds since 1970.
    pub(super) issued_at: i64,
    /// The order that is not finished.
    pub(super) order: Option<PendingOrder>,
    /// Renewal window that the authority suggested.
    pub(super) window: Option<RenewalWindow>,
}

/// An order at the authority that is not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingOrder {
    pub(super) url: String,
    /// Key of the requested certificate, PEM. Set just before the order is finalized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
}

/// Renewal window of a certificate (RFC 9773 section 4.2); seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RenewalWindow {
    /// Start and end; `None` if the authority suggested no window.
    pub(super) span: Option<(i64, i64)>,
    /// Time of the next request for the window (section 4.3.2).
    pub(super) look_at: i64,
}

/// Kind of a failure, which determines the pause before the next order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureClass {
    /// The authority cannot be reached or failed internally. Another request costs little.
    Unreachable,
    /// The authority refused the request.
    Refused,
}

/// Returns a number in 0..1000 that depends only on the arguments.
fn spread(host: &str, number: i64) -> i64 {
    i64::try_from(xxh3_64(format!("{host} {number}").as_bytes()) % 1000).unwrap_or(0)
}

/// Returns the time of the next order, seconds since 1970. A time in the past means that the order is due.
pub(super) fn next_order(host: &str, certificate: Option<&StoredCertificate>, state: &HostState) -> i64 {
    certificate.map_or(0, |certificate| renewal(host, certificate, state)).max(state.retry_at)
}

fn renewal(host: &str, certificate: &StoredCertificate, state: &HostState) -> i64 {
    let life = (certificate.not_after - certificate.not_before).max(0);
    let spread = spread(host, certificate.not_after);
    let by_life = certificate.not_before + life / 3 * 2 - life / 30 * spread / 1000;
    match state.window.as_ref().and_then(|window| window.span) {
        Some((start, end)) if life >= WINDOW_LIFE_MIN_S => {
            let moment = start + (end - start).max(0) / 1000 * spread;
            moment.max(state.issued_at + WINDOW_PAUSE_S).min(certificate.not_after - life / 20)
        }
        _ => by_life,
    }
}

/// Returns the time of the next request for the renewal window, seconds since 1970. Returns `None` if the
/// certificate's lifetime is too short.
pub(super) fn next_window_request(certificate: &StoredCertificate, state: &HostState) -> Option<i64> {
    let long = certificate.not_after - certificate.not_before >= WINDOW_LIFE_MIN_S;
    long.then(|| state.window.as_ref().map_or(0, |window| window.look_at))
}

/// Returns the time of the next attempt after `failures` failures, seconds since 1970. `retry_after` is the time
/// that the authority sent in `Retry-After`.
pub(super) fn retry_at(
    host: &str,
    now: i64,
    failures: u32,
    class: FailureClass,
    retry_after: Option<i64>,
) -> i64 {
    let doubled = |first: i64, times: u32| first << times.min(20);
    let pause = match (class, failures) {
        (FailureClass::Unreachable, n) => doubled(UNREACHABLE_S, n.saturating_sub(1)).min(UNREACHABLE_MAX_S),
        (FailureClass::Refused, 0 | 1) => REFUSED_FIRST_S,
        (FailureClass::Refused, n) => doubled(REFUSED_S, n - 2).min(REFUSED_MAX_S),
    };
    let own = now + pause + pause / 5 * spread(host, now) / 1000;
    own.max(retry_after.unwrap_or(0).min(now + RETRY_AFTER_MAX_S))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    fn certificate(not_before: i64, life: i64) -> StoredCertificate {
        let (not_after, names) = (not_before + life, vec!["a.test".to_owned()]);
        StoredCertificate { not_before, not_after, names, certificate: Vec::new().into() }
    }

    #[test]
    fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over() {
        let (certificate, state) = (certificate(1_000_000, 90 * DAY), HostState::default());
        let mut moments: Vec<i64> = (0..1000)
            .map(|n| next_order(&format!("{n}.test"), Some(&certificate), &state) - certificate.not_before)
            .collect();
        moments.sort_unstable();
        assert!(moments[0] >= 57 * DAY && moments[999] <= 60 * DAY, "{} to {}", moments[0], moments[999]);
        assert!(moments[900] - moments[100] > 2 * DAY, "spread over three days");
        assert_eq!(
            next_order("a.test", Some(&certificate), &state),
            next_order("a.test", Some(&certificate), &state)
        );
        assert_eq!(next_order("a.test", None, &state), 0, "what is not there is due");
    }

    #[test]
    fn a_renewal_window_overrides_our_own_rule() {
        let certificate = certificate(0, 90 * DAY);
        let windowed = |span, issued_at| {
            let window = Some(RenewalWindow { span: Some(span), look_at: 0 });
            next_order("a.test", Some(&certificate), &HostState { window, issued_at, ..HostState::default() })
        };
        assert!((50 * DAY..=52 * DAY).contains(&windowed((50 * DAY, 52 * DAY), 0)));
        // A window in the past, as for a revoked certificate, makes the order due at once, but only once an
        // hour.
        assert_eq!(windowed((-2, -1), 0), 3600);
        assert_eq!(windowed((-2, -1), 10 * DAY), 10 * DAY + 3600);
        assert!(windowed((200 * DAY, 300 * DAY), 0) < certificate.not_after, "never after the end");
    }

    #[test]
    fn short_lifetimes_request_no_window() {
        assert_eq!(next_window_request(&certificate(0, DAY - 1), &HostState::default()), None);
        assert_eq!(next_window_request(&certificate(0, DAY), &HostState::default()), Some(0));
    }

    #[test]
    fn pauses_after_refusals_respect_rate_limits() {
        let (mut now, mut attempts) = (0, vec![0]);
        for failures in 1..12 {
            now = retry_at("a.test", now, failures, FailureClass::Refused, None);
            attempts.push(now);
        }
        let within = |from: i64| attempts.iter().filter(|at| (from..from + 3600).contains(*at)).count();
        assert!(attempts.iter().all(|from| within(*from) < 5), "{attempts:?}");
        let last = attempts[11] - attempts[10];
        assert!((12 * 3600..=15 * 3600).contains(&last), "{last} s");
    }

    #[test]
    fn an_unreachable_authority_is_retried_soon_and_retry_after_is_respected() {
        let pause = |failures, retry_after| {
            retry_at("a.test", 1000, failures, FailureClass::Unreachable, retry_after) - 1000
        };
        assert!((5..=6).contains(&pause(1, None)), "{}", pause(1, None));
        assert!((1800..=2160).contains(&pause(u32::MAX, None)));
        assert_eq!(pause(1, Some(1000 + 7200)), 7200);
        assert_eq!(pause(1, Some(i64::MAX)), 7 * DAY);
    }
}
