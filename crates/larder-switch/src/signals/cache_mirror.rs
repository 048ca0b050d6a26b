//! Mirror of a node's cache, from the lines of its event stream.
//!
//! A stream begins with a snapshot of all targets in the cache, which replaces the mirrored set: targets that it does
//! not name have left in the meantime. Changes follow. `larder_node`'s stream defines the lines.

use super::failure::SignalFailure;
use larder_core::TargetId;
use larder_core::dispatch::CacheEvent;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

/// Maximum size of a line. Bytes.
pub(super) const LINE_MAX: usize = 1 << 10;

#[derive(Debug, Default, Deserialize)]
struct EventLine<'a> {
    snapshot: Option<serde::de::IgnoredAny>,
    #[serde(borrow)]
    held: Option<Cow<'a, str>>,
    live: Option<bool>,
    #[serde(borrow)]
    stored: Option<Cow<'a, str>>,
    #[serde(borrow)]
    evicted: Option<Cow<'a, str>>,
    beat: Option<u64>,
    #[serde(borrow)]
    cut: Option<Cow<'a, str>>,
    at_us: Option<u64>,
}

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// Part of the snapshot.
    SnapshotPart,
    /// End of the snapshot.
    SnapshotEnd,
    /// A change or a heartbeat, with its time by the node's clock.
    Change(Option<Duration>),
    /// A kind of line that is not known yet.
    Unknown,
}

/// Stage of a stream.
#[derive(Debug)]
enum StreamStage {
    Opening,
    Snapshot(HashSet<TargetId>),
    Live,
}

/// Mirror of a node's cache.
#[derive(Debug)]
pub(super) struct CacheMirror {
    held_targets: HashSet<TargetId>,
    stage: StreamStage,
    targets_max: usize,
    untracked: u64,
}

impl CacheMirror {
    /// Creates an empty mirror for at most `targets_max` targets.
    pub(super) fn new(targets_max: usize) -> Self {
        Self { held_targets: HashSet::new(), stage: StreamStage::Opening, targets_max, untracked: 0 }
    }

    /// Begins a new stream. The mirrored set stays until the snapshot is complete.
    pub(super) fn begin(&mut self) {
        self.stage = StreamStage::Opening;
    }

    /// Returns the number of targets that were not tracked since the last call.
    pub(super) fn take_untracked(&mut self) -> u64 {
        std::mem::take(&mut self.untracked)
    }

    /// Parses a line and passes changes to `tell`.
    pub(super) fn line(
        &mut self,
        line: &[u8],
        mut tell: impl FnMut(TargetId, CacheEvent),
    ) -> Result<LineKind, SignalFailure> {
        let line: EventLine<'_> = serde_json::from_slice(line).map_err(|_| SignalFailure::Malformed)?;
        let at = line.at_us.map(Duration::from_micros);
        if let Some(why) = &line.cut {
            return Err(if why == "lagging" { SignalFailure::Lagging } else { SignalFailure::Ended });
        }
        match (&mut self.stage, &line) {
            (StreamStage::Opening, EventLine { snapshot: Some(_), .. }) => {
                self.stage = StreamStage::Snapshot(HashSet::new());
                Ok(LineKind::SnapshotPart)
            }
            (StreamStage::Snapshot(held), EventLine { held: Some(target), .. }) => {
                let target = id(target)?;
                if held.len() < self.targets_max {
                    held.insert(target);
                } else {
                    self.untracked += 1;
                }
                tell(target, CacheEvent::Stored);
                Ok(LineKind::SnapshotPart)
            }
            (StreamStage::Snapshot(held), EventLine { live: Some(true), .. }) => {
                let before = std::mem::replace(&mut self.held_targets, std::mem::take(held));
                let mut gone: Vec<TargetId> = before.difference(&self.held_targets).copied().collect();
                // The order of a hash table is random, and the events are recorded.
                gone.sort_unstable();
                gone.into_iter().for_each(|target| tell(target, CacheEvent::Gone));
                self.stage = StreamStage::Live;
                Ok(LineKind::SnapshotEnd)
            }
            (StreamStage::Live, EventLine { stored: Some(target), .. }) => {
                let target = id(target)?;
                if self.held_targets.len() < self.targets_max || self.held_targets.contains(&target) {
                    self.held_targets.insert(target);
                } else {
                    self.untracked += 1;
                }
                tell(target, CacheEvent::Stored);
                Ok(LineKind::Change(at))
            }
            (StreamStage::Live, EventLine { evicted: Some(target), .. }) => {
                let target = id(target)?;
                self.held_targets.remove(&target);
                tell(target, CacheEvent::Evicted);
                Ok(LineKind::Change(at))
            }
            (StreamStage::Live, EventLine { beat: Some(_), .. }) => Ok(LineKind::Change(at)),
            (_, EventLine { snapshot: None, held: None, live: None, stored: None, evicted: None, .. }) => {
                Ok(LineKind::Unknown)
            }
            _ => Err(SignalFailure::Malformed),
        }
    }

    #[cfg(test)]
    fn held_targets(&self) -> Vec<u64> {
        let mut held_targets: Vec<u64> = self.held_targets.iter().map(|target| target.0).collect();
        held_targets.sort_unstable();
        held_targets
    }
}

fn id(digits: &str) -> Result<TargetId, SignalFailure> {
    let plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    id.map(TargetId).ok_or(SignalFailure::Malformed)
}

/// Splits a stream of pieces into lines.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    /// Incomplete line.
    partial: Vec<u8>,
}

impl LineSplitter {
    /// Passes each complete line to `take`.
    pub(super) fn feed(
        &mut self,
        piece: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), SignalFailure>,
    ) -> Result<(), SignalFailure> {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            if self.partial.len() + line.len() > LINE_MAX {
                return Err(SignalFailure::LineTooLong);
            }
            if self.partial.is_empty() {
                take(line)?;
            } else {
                self.partial.extend_from_slice(line);
                take(&self.partial)?;
                self.partial.clear();
            }
            rest = after;
        }
        if self.partial.len() + rest.len() > LINE_MAX {
            return Err(SignalFailure::LineTooLong);
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CacheEvent::{Evicted, Gone, Stored};
    use proptest::prelude::*;

    /// Feeds lines and returns the reported changes, up to the first error.
    fn feed(mirror: &mut CacheMirror, lines: &str) -> (Vec<(u64, CacheEvent)>, Result<(), SignalFailure>) {
        let mut told = Vec::new();
        let all = lines.lines().try_for_each(|line| {
            mirror.line(line.as_bytes(), |target, event| told.push((target.0, event))).map(|_| ())
        });
        (told, all)
    }

    const FIRST: &str = r#"{"snapshot":{"node":"a","run":"1","targets":2},"at_us":10}
{"held":"0000000000000001","bytes":5}
{"held":"0000000000000002","bytes":5}
{"live":true,"at_us":12}
{"stored":"0000000000000003","bytes":5,"at_us":13}
{"beat":1,"at_us":14}
{"something":"new"}
{"evicted":"0000000000000001","at_us":15}
"#;

    #[test]
    fn a_stream_is_followed() {
        let mut mirror = CacheMirror::new(10);
        let (told, all) = feed(&mut mirror, FIRST);
        assert_eq!(told, [(1, Stored), (2, Stored), (3, Stored), (1, Evicted)]);
        assert_eq!((all, mirror.held_targets()), (Ok(()), vec![2, 3]));
    }

    #[test]
    fn a_new_snapshot_replaces_the_old_one() {
        let mut mirror = CacheMirror::new(10);
        let _ = feed(&mut mirror, FIRST);
        mirror.begin();
        let broken = "{\"snapshot\":{}}\n{\"held\":\"0000000000000009\"}\n";
        assert_eq!(feed(&mut mirror, broken).0, [(9, Stored)]);
        assert_eq!(mirror.held_targets(), [2, 3], "half a snapshot takes nothing out");
        mirror.begin();
        let (told, _) =
            feed(&mut mirror, "{\"snapshot\":{}}\n{\"held\":\"0000000000000003\"}\n{\"live\":true}\n");
        assert_eq!(told, [(3, Stored), (2, Gone)]);
        assert_eq!(mirror.held_targets(), [3]);
    }

    #[test]
    fn targets_beyond_the_limit_are_reported_but_not_tracked() {
        let mut mirror = CacheMirror::new(1);
        let (told, _) = feed(&mut mirror, FIRST);
        assert_eq!(told.len(), 4);
        assert_eq!((mirror.held_targets(), mirror.take_untracked(), mirror.take_untracked()), (vec![], 2, 0));
    }

    #[test]
    fn malformed_lines_end_the_stream() {
        let live = "{\"snapshot\":{}}\n{\"live\":true}\n";
        for (before, line, cause) in [
            ("", "", SignalFailure::Malformed),
            ("", "{", SignalFailure::Malformed),
            ("", "[]", SignalFailure::Malformed),
            ("", "{\"stored\":\"0000000000000001\"}", SignalFailure::Malformed),
            ("", "{\"live\":true}", SignalFailure::Malformed),
            (live, "{\"held\":\"0000000000000001\"}", SignalFailure::Malformed),
            (live, "{\"snapshot\":{}}", SignalFailure::Malformed),
            (live, "{\"stored\":\"1\"}", SignalFailure::Malformed),
            (live, "{\"stored\":\"-000000000000001\"}", SignalFailure::Malformed),
            (live, "{\"stored\":17}", SignalFailure::Malformed),
            (live, "{\"beat\":-1}", SignalFailure::Malformed),
            (live, "{\"cut\":\"lagging\"}", SignalFailure::Lagging),
            (live, "{\"cut\":\"shutdown\"}", SignalFailure::Ended),
        ] {
            let mut mirror = CacheMirror::new(10);
            assert_eq!(feed(&mut mirror, before).1, Ok(()));
            assert_eq!(mirror.line(line.as_bytes(), |_, _| {}), Err(cause), "{line}");
        }
    }

    #[test]
    fn lines_are_split_in_any_pieces() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..=text.len() {
            let (mut lines, mut seen) = (LineSplitter::default(), Vec::new());
            for piece in text.chunks(size) {
                let taken = lines.feed(piece, |line| {
                    seen.push(String::from_utf8_lossy(line).into_owned());
                    Ok(())
                });
                assert_eq!(taken, Ok(()));
            }
            assert_eq!(seen, ["one", "", "two"], "in pieces of {size}");
        }
        let mut lines = LineSplitter::default();
        assert_eq!(lines.feed(&[b'x'; LINE_MAX], |_| Ok(())), Ok(()));
        assert_eq!(
            lines.feed(b"x", |_| Ok(())),
            Err(SignalFailure::LineTooLong),
            "an endless line is cut short"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut mirror = CacheMirror::new(4);
            let _ = LineSplitter::default().feed(&bytes, |line| mirror.line(line, |_, _| {}).map(|_| ()));
        }
    }
}
