//! What the event stream of a larder node says, line by line, and what it means for the mirror of the node's cache.
//!
//! A stream begins with a snapshot: all targets held. It takes the place of what was known: what it does not name has
//! left while nobody listened, at some time and for some other. After it come changes. See `larder_node`'s stream for the lines.

use super::cause::Cause;
use larder_core::TargetId;
use larder_core::dispatch::CacheEvent;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

/// Bytes of a line.
pub(super) const LINE_MAX: usize = 1 << 10;

#[derive(Debug, Default, Deserialize)]
struct Line<'a> {
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

/// What a line was, apart from the changes that it brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A part of the snapshot.
    Held,
    /// The snapshot is complete.
    Live,
    /// A change, or a heartbeat, and when it was by the node's clock.
    At(Option<Duration>),
    /// A kind of line that a later node may send.
    Unknown,
}

/// Whether a stream is at its beginning, tells what is held, or tells changes.
#[derive(Debug)]
enum Stage {
    Opening,
    Snapshot(HashSet<TargetId>),
    Live,
}

/// What is known of a node's cache.
#[derive(Debug)]
pub(super) struct Mirror {
    known: HashSet<TargetId>,
    stage: Stage,
    targets_max: usize,
    untracked: u64,
}

impl Mirror {
    /// Nothing known, with room for `targets_max` targets.
    pub(super) fn new(targets_max: usize) -> Self {
        Self { known: HashSet::new(), stage: Stage::Opening, targets_max, untracked: 0 }
    }

    /// A stream begins; what is known stays until its snapshot is complete.
    pub(super) fn begin(&mut self) {
        self.stage = Stage::Opening;
    }

    /// Targets that were not remembered since this was asked last.
    pub(super) fn take_untracked(&mut self) -> u64 {
        std::mem::take(&mut self.untracked)
    }

    /// Reads a line and hands what has changed to `tell`.
    pub(super) fn line(
        &mut self,
        line: &[u8],
        mut tell: impl FnMut(TargetId, CacheEvent),
    ) -> Result<Said, Cause> {
        let line: Line<'_> = serde_json::from_slice(line).map_err(|_| Cause::Malformed)?;
        let at = line.at_us.map(Duration::from_micros);
        if let Some(why) = &line.cut {
            return Err(if why == "lagging" { Cause::Lagging } else { Cause::Ended });
        }
        match (&mut self.stage, &line) {
            (Stage::Opening, Line { snapshot: Some(_), .. }) => {
                self.stage = Stage::Snapshot(HashSet::new());
                Ok(Said::Held)
            }
            (Stage::Snapshot(held), Line { held: Some(target), .. }) => {
                let target = id(target)?;
                if held.len() < self.targets_max {
                    held.insert(target);
                } else {
                    self.untracked += 1;
                }
                tell(target, CacheEvent::Stored);
                Ok(Said::Held)
            }
            (Stage::Snapshot(held), Line { live: Some(true), .. }) => {
                let before = std::mem::replace(&mut self.known, std::mem::take(held));
                let mut gone: Vec<TargetId> = before.difference(&self.known).copied().collect();
                // The order of a hash table is chance, and what follows is recorded.
                gone.sort_unstable();
                gone.into_iter().for_each(|target| tell(target, CacheEvent::Gone));
                self.stage = Stage::Live;
                Ok(Said::Live)
            }
            (Stage::Live, Line { stored: Some(target), .. }) => {
                let target = id(target)?;
                if self.known.len() < self.targets_max || self.known.contains(&target) {
                    self.known.insert(target);
                } else {
                    self.untracked += 1;
                }
                tell(target, CacheEvent::Stored);
                Ok(Said::At(at))
            }
            (Stage::Live, Line { evicted: Some(target), .. }) => {
                let target = id(target)?;
                self.known.remove(&target);
                tell(target, CacheEvent::Evicted);
                Ok(Said::At(at))
            }
            (Stage::Live, Line { beat: Some(_), .. }) => Ok(Said::At(at)),
            (_, Line { snapshot: None, held: None, live: None, stored: None, evicted: None, .. }) => {
                Ok(Said::Unknown)
            }
            _ => Err(Cause::Malformed),
        }
    }

    #[cfg(test)]
    fn known(&self) -> Vec<u64> {
        let mut known: Vec<u64> = self.known.iter().map(|target| target.0).collect();
        known.sort_unstable();
        known
    }
}

fn id(digits: &str) -> Result<TargetId, Cause> {
    let plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    id.map(TargetId).ok_or(Cause::Malformed)
}

/// Cuts what comes in pieces into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// A line that has begun.
    begun: Vec<u8>,
}

impl Lines {
    /// Hands each line of `piece` to `take`, with what earlier pieces have begun.
    pub(super) fn feed(
        &mut self,
        piece: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            if self.begun.len() + line.len() > LINE_MAX {
                return Err(Cause::LineTooLong);
            }
            if self.begun.is_empty() {
                take(line)?;
            } else {
                self.begun.extend_from_slice(line);
                take(&self.begun)?;
                self.begun.clear();
            }
            rest = after;
        }
        if self.begun.len() + rest.len() > LINE_MAX {
            return Err(Cause::LineTooLong);
        }
        self.begun.extend_from_slice(rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CacheEvent::{Evicted, Gone, Stored};
    use proptest::prelude::*;

    /// Feeds lines and returns what was told, up to the first error.
    fn feed(mirror: &mut Mirror, lines: &str) -> (Vec<(u64, CacheEvent)>, Result<(), Cause>) {
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
        let mut mirror = Mirror::new(10);
        let (told, all) = feed(&mut mirror, FIRST);
        assert_eq!(told, [(1, Stored), (2, Stored), (3, Stored), (1, Evicted)]);
        assert_eq!((all, mirror.known()), (Ok(()), vec![2, 3]));
    }

    #[test]
    fn a_new_snapshot_takes_the_place_of_what_was_known() {
        let mut mirror = Mirror::new(10);
        let _ = feed(&mut mirror, FIRST);
        mirror.begin();
        let broken = "{\"snapshot\":{}}\n{\"held\":\"0000000000000009\"}\n";
        assert_eq!(feed(&mut mirror, broken).0, [(9, Stored)]);
        assert_eq!(mirror.known(), [2, 3], "half a snapshot takes nothing out");
        mirror.begin();
        let (told, _) =
            feed(&mut mirror, "{\"snapshot\":{}}\n{\"held\":\"0000000000000003\"}\n{\"live\":true}\n");
        assert_eq!(told, [(3, Stored), (2, Gone)]);
        assert_eq!(mirror.known(), [3]);
    }

    #[test]
    fn beyond_the_limit_targets_are_told_and_not_remembered() {
        let mut mirror = Mirror::new(1);
        let (told, _) = feed(&mut mirror, FIRST);
        assert_eq!(told.len(), 4);
        assert_eq!((mirror.known(), mirror.take_untracked(), mirror.take_untracked()), (vec![], 2, 0));
    }

    #[test]
    fn what_makes_no_sense_ends_the_stream() {
        let live = "{\"snapshot\":{}}\n{\"live\":true}\n";
        for (before, line, cause) in [
            ("", "", Cause::Malformed),
            ("", "{", Cause::Malformed),
            ("", "[]", Cause::Malformed),
            ("", "{\"stored\":\"0000000000000001\"}", Cause::Malformed),
            ("", "{\"live\":true}", Cause::Malformed),
            (live, "{\"held\":\"0000000000000001\"}", Cause::Malformed),
            (live, "{\"snapshot\":{}}", Cause::Malformed),
            (live, "{\"stored\":\"1\"}", Cause::Malformed),
            (live, "{\"stored\":\"-000000000000001\"}", Cause::Malformed),
            (live, "{\"stored\":17}", Cause::Malformed),
            (live, "{\"beat\":-1}", Cause::Malformed),
            (live, "{\"cut\":\"lagging\"}", Cause::Lagging),
            (live, "{\"cut\":\"shutdown\"}", Cause::Ended),
        ] {
            let mut mirror = Mirror::new(10);
            assert_eq!(feed(&mut mirror, before).1, Ok(()));
            assert_eq!(mirror.line(line.as_bytes(), |_, _| {}), Err(cause), "{line}");
        }
    }

    #[test]
    fn lines_are_cut_however_they_come() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..=text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for piece in text.chunks(size) {
                let taken = lines.feed(piece, |line| {
                    seen.push(String::from_utf8_lossy(line).into_owned());
                    Ok(())
                });
                assert_eq!(taken, Ok(()));
            }
            assert_eq!(seen, ["one", "", "two"], "in pieces of {size}");
        }
        let mut lines = Lines::default();
        assert_eq!(lines.feed(&[b'x'; LINE_MAX], |_| Ok(())), Ok(()));
        assert_eq!(lines.feed(b"x", |_| Ok(())), Err(Cause::LineTooLong), "an endless line is cut short");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut mirror = Mirror::new(4);
            let _ = Lines::default().feed(&bytes, |line| mirror.line(line, |_, _| {}).map(|_| ()));
        }
    }
}
