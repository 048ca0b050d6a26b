//! Waiting in tests.
//!
//! A test waits for an event that it can observe, with a deadline far beyond what a loaded machine needs. It does not sleep for a
//! duration that usually suffices. The tidy test refuses `sleep` in test code outside this file.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Deadline of [`eventually`]. A passing test never waits this long, and a failing one ends.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Pauses between two looks at a condition that has no notification: short at first, and longer for events that take long, so
/// that looking does not load the machine.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(50);

/// The pauses between looks.
fn looks() -> impl FnMut() -> Duration {
    let mut next = LOOK_FIRST;
    move || {
        let pause = next;
        next = (next * 3 / 2).min(LOOK_LAST);
        pause
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

/// [`eventually`] with a deadline of its own.
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
    let (start, mut pause) = (Instant::now(), looks());
    loop {
        if holds() {
            return true;
        }
        if start.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(pause());
    }
}

/// [`eventually`] for tests on an async runtime.
///
/// # Panics
/// If there is no value within [`PATIENCE`]; the message names `event`.
pub async fn eventually_async<T>(event: impl Display, mut probe: impl FnMut() -> Option<T>) -> T {
    let (start, mut pause) = (Instant::now(), looks());
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {event}");
        tokio::time::sleep(pause()).await;
    }
}

/// [`eventually_async`] whose probe asks a peer and waits for the reply.
///
/// # Panics
/// If there is no value within [`PATIENCE`]; the message names `event`. A probe in progress is awaited to its end.
pub async fn eventually_asked<T>(event: impl Display, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let (start, mut pause) = (Instant::now(), looks());
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {event}");
        tokio::time::sleep(pause()).await;
    }
}

/// Checks throughout `span` that a condition holds, for events that must *not* happen. The only kind of wait whose duration a test
/// may choose: a longer one finds more, and no duration makes a correct program fail.
///
/// # Panics
/// If the condition does not hold at some look; the message names `condition`.
#[track_caller]
pub fn holds_for(span: Duration, condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(holds(), "after {:?}: {condition}", start.elapsed());
        std::thread::sleep(LOOK_FIRST);
    }
    assert!(holds(), "after {span:?}: {condition}");
}

/// [`holds_for`] for tests on an async runtime.
///
/// # Panics
/// If the condition does not hold at some look; the message names `condition`.
pub async fn holds_for_async(span: Duration, condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(holds(), "after {:?}: {condition}", start.elapsed());
        tokio::time::sleep(LOOK_FIRST).await;
    }
    assert!(holds(), "after {span:?}: {condition}");
}

/// Takes this long, as a slow peer, user or disk does that the test plays, or as load that goes on for a while. Not a wait for
/// an event: the outcome of the test must not depend on it.
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
    fn a_condition_that_ends_is_noticed() {
        let mut looks = 0;
        holds_for(Duration::from_secs(30), "it changes", || {
            looks += 1;
            looks < 3
        });
    }

    #[tokio::test]
    async fn the_async_forms_do_the_same() {
        assert_eq!(eventually_async("a value", || Some(1)).await, 1);
        assert_eq!(eventually_asked("a value", async || Some(2)).await, 2);
        holds_for_async(Duration::ZERO, "true", || true).await;
    }
}
