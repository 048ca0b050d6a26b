//! Waiting in tests.
//!
//! A test waits for an event that it can observe, with a deadline far beyond what a loaded machine needs. It does not sleep for a
//! duration that usually suffices. The tidy test refuses `sleep` in test code outside this file.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Deadline of [`eventually`]. A passing test never waits this long, and a failing one ends.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// First and longest delay between two polls of a condition. Delays grow, so that polling for a slow event does not load the
/// machine.
const POLL_DELAY_MIN: Duration = Duration::from_millis(1);
const POLL_DELAY_MAX: Duration = Duration::from_millis(50);

/// Returns the delays between polls.
fn poll_delays() -> impl FnMut() -> Duration {
    let mut next = POLL_DELAY_MIN;
    move || {
        let delay = next;
        next = (next * 3 / 2).min(POLL_DELAY_MAX);
        delay
    }
}

/// Polls `probe` until it returns a value, and returns that value. `event` is formatted only on failure: with
/// [`std::fmt::from_fn`] it can show the state of that moment.
///
/// # Panics
/// If there is no value within [`PATIENCE`]; the message names `event`.
#[track_caller]
pub fn eventually<T>(event: impl Display, probe: impl FnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, event, probe)
}

/// [`eventually`] with another deadline.
///
/// # Panics
/// If there is no value within `patience`; the message names `event`.
#[track_caller]
pub fn eventually_within<T>(
    patience: Duration,
    event: impl Display,
    mut probe: impl FnMut() -> Option<T>,
) -> T {
    let mut found = None;
    let in_time = within(patience, || {
        found = probe();
        found.is_some()
    });
    assert!(in_time, "waited {patience:?} in vain: {event}");
    found.expect("a probe in time has a value")
}

/// Polls `holds` until it is true. Returns false if it is not within `patience`, for callers that report the state themselves.
pub fn within(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let (start, mut delay) = (Instant::now(), poll_delays());
    loop {
        if holds() {
            return true;
        }
        if start.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(delay());
    }
}

/// [`eventually`] for tests on an async runtime.
///
/// # Panics
/// If there is no value within [`PATIENCE`]; the message names `event`.
pub async fn eventually_async<T>(event: impl Display, mut probe: impl FnMut() -> Option<T>) -> T {
    let (start, mut delay) = (Instant::now(), poll_delays());
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {event}");
        tokio::time::sleep(delay()).await;
    }
}

/// [`eventually_async`] with an async probe, such as a request to a server.
///
/// # Panics
/// If there is no value within [`PATIENCE`]; the message names `event`. A probe in progress is awaited to its end.
pub async fn eventually_asked<T>(event: impl Display, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let (start, mut delay) = (Instant::now(), poll_delays());
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {event}");
        tokio::time::sleep(delay()).await;
    }
}

/// Checks throughout `span` that a condition holds, for events that must *not* happen. The only kind of wait whose duration a test
/// may choose: a longer one finds more, and no duration makes a correct program fail.
///
/// # Panics
/// If the condition is false at some poll; the message names `condition`.
#[track_caller]
pub fn holds_for(span: Duration, condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(holds(), "after {:?}: {condition}", start.elapsed());
        std::thread::sleep(POLL_DELAY_MIN);
    }
    assert!(holds(), "after {span:?}: {condition}");
}

/// [`holds_for`] for tests on an async runtime.
///
/// # Panics
/// If the condition is false at some poll; the message names `condition`.
pub async fn holds_for_async(span: Duration, condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(holds(), "after {:?}: {condition}", start.elapsed());
        tokio::time::sleep(POLL_DELAY_MIN).await;
    }
    assert!(holds(), "after {span:?}: {condition}");
}

/// Sleeps for a duration, to simulate a slow peer, user or disk, or load over some time. It must not be used to wait for an event:
/// the outcome of the test must not depend on it.
pub fn take_time(span: Duration) {
    std::thread::sleep(span);
}

/// [`take_time`] for tests on an async runtime. On a paused clock (`start_paused`) the runtime advances its time instead.
pub async fn take_time_async(span: Duration) {
    tokio::time::sleep(span).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eventually_returns_the_first_value() {
        let mut looks = 0;
        let value = eventually("the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value, 3);
    }

    #[test]
    #[should_panic(expected = "waited 0ns in vain: nothing")]
    fn eventually_ends_at_its_deadline() {
        eventually_within(Duration::ZERO, "nothing", || None::<()>);
    }

    #[test]
    #[should_panic(expected = "it changes")]
    fn a_condition_that_becomes_false_is_detected() {
        let mut looks = 0;
        holds_for(Duration::from_secs(30), "it changes", || {
            looks += 1;
            looks < 3
        });
    }

    #[tokio::test]
    async fn the_async_functions_do_the_same() {
        assert_eq!(eventually_async("a value", || Some(1)).await, 1);
        assert_eq!(eventually_asked("a value", async || Some(2)).await, 2);
        holds_for_async(Duration::ZERO, "true", || true).await;
    }
}
