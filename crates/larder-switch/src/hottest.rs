//! Most requested targets.
//!
//! Requests are sampled, the fewer the higher the load, and counted under one lock without waiting: a request that
//! finds it taken is not counted. Counts cover the last 30 to 60 seconds.

use larder_core::shadow::Sampler;
use larder_core::top_targets::TopTargets;
use larder_core::{Request, TargetId, Time};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Number of counted targets.
pub(crate) const COUNTED_MAX: usize = 1_024;
/// Maximum length of a target's text. Bytes.
const TEXT_BYTES_MAX: usize = 512;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(30);
/// Range of requests per window: above it the sampling rate falls, below it the rate rises.
const COUNTED: std::ops::RangeInclusive<u64> = 2_048..=16_384;
/// Lowest sampling rate: one in 2^16.
const LEVEL_MAX: u32 = 16;

/// Counts of requests by target.
#[derive(Debug)]
pub(crate) struct HotList {
    /// One in 2^level requests is sampled.
    level: AtomicU32,
    counts: Mutex<HotCounts>,
}

#[derive(Debug)]
struct HotCounts {
    targets: TopTargets<TargetLabel>,
    /// Starts of the current and the previous window.
    began: Time,
    before: Time,
}

/// Text and request of a target.
#[derive(Clone, Debug)]
pub(crate) struct TargetLabel {
    pub(crate) text: Box<str>,
    pub(crate) request: Request,
}

impl HotList {
    pub(crate) fn new(now: Time) -> Self {
        let targets = TopTargets::new(COUNTED_MAX);
        Self { level: AtomicU32::new(0), counts: Mutex::new(HotCounts { targets, began: now, before: now }) }
    }

    /// Counts a finished request. `host` and `path` are those of its head.
    #[inline]
    pub(crate) fn note(&self, now: Time, request: &Request, host: &[u8], path: &[u8]) {
        let level = self.level.load(Relaxed);
        if !Sampler::draws_at_level(request.target, now, level) {
            return;
        }
        let Ok(mut counts) = self.counts.try_lock() else { return };
        counts.targets.count(request.target, || TargetLabel { text: text(host, path), request: *request });
        self.rotate(&mut counts, now, level);
    }

    /// Begins another window when the current one is over or full.
    fn rotate(&self, counts: &mut HotCounts, now: Time, level: u32) {
        let (seen, over) = (counts.targets.window_requests(), now - counts.began >= WINDOW);
        let next = match over {
            true if seen < *COUNTED.start() => level.saturating_sub(1),
            _ if seen > *COUNTED.end() => (level + 1).min(LEVEL_MAX),
            _ => level,
        };
        if next != level {
            // Counts at another rate cannot be compared.
            self.level.store(next, Relaxed);
            counts.targets.clear();
            (counts.before, counts.began) = (now, now);
        } else if over {
            counts.targets.rotate();
            (counts.before, counts.began) = (counts.began, now);
        }
    }

    /// Returns the most requested targets with requests per second, share and label.
    pub(crate) fn top(&self, now: Time, most: usize) -> Vec<(TargetId, f64, f64, TargetLabel)> {
        let level = self.level.load(Relaxed);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if now - counts.began >= 2 * WINDOW {
            // There were no requests for a while.
            counts.targets.clear();
            (counts.before, counts.began) = (now, now);
        }
        let seconds = (now - counts.before).as_secs_f64().max(1.0);
        let all = counts.targets.requests().max(1) as f64;
        let top = counts.targets.top(most).into_iter().map(|hot| {
            let requests = hot.requests as f64;
            (hot.target, requests * f64::from(1_u32 << level) / seconds, requests / all, hot.label.clone())
        });
        top.collect()
    }
}

fn text(host: &[u8], path: &[u8]) -> Box<str> {
    let mut text = String::from_utf8_lossy(host).into_owned();
    text.push_str(&String::from_utf8_lossy(path));
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(n: u64) -> Request {
        Request::new(TargetId::of(&n.to_le_bytes()))
    }

    #[test]
    fn rates_are_estimated_at_any_load() {
        let list = HotList::new(Time::ZERO);
        // 2,000 requests per second for 90 s; one target has a quarter of them.
        for n in 0..180_000_u64 {
            let now = Time::from_nanos(n * 500_000);
            let path = if n.is_multiple_of(4) { "/hot".to_owned() } else { format!("/{n}") };
            list.note(now, &request(if n.is_multiple_of(4) { 0 } else { n }), b"www", path.as_bytes());
        }
        assert!(list.level.load(Relaxed) > 0, "fewer are drawn");
        let top = list.top(Time::from_secs(90), 3);
        let (_, per_s, share, label) = &top[0];
        assert_eq!(&*label.text, "www/hot");
        assert!((per_s / 500.0 - 1.0).abs() < 0.15 && (share / 0.25 - 1.0).abs() < 0.15, "{per_s} {share}");
        assert!(list.top(Time::from_secs(200), 3).is_empty(), "what was long ago is not hot");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let long = "ü".repeat(TEXT_BYTES_MAX);
        assert!(text(b"www", long.as_bytes()).len() <= TEXT_BYTES_MAX);
        assert_eq!(&*text(b"w\xff", b"/a"), "w\u{fffd}/a");
    }
}
