//! What is learned of targets and routes: how large replies are, what a log line says of a target, how often later
//! requests on a connection belong elsewhere.
//!
//! Targets share a table of fixed size: a target has one place, by its id, and the later one displaces the earlier. What
//! is displaced is learned again.

use super::lock::lock;
use super::text::{Text, Texts};
use larder_core::{RouteId, TargetId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// How much the latest value counts in a mean.
const WEIGHT: f64 = 1.0 / 16.0;
/// Later requests of a route that must have been seen before they count.
const LATER_MIN: u32 = 32;

#[derive(Clone, Debug, Default)]
struct Target {
    id: u64,
    /// Mean of the latest replies; 0 if none was seen.
    reply_bytes: u64,
    text: Option<Arc<Text>>,
    /// Different requests had this id: a log line that goes by the id alone would name one for another.
    ambiguous: bool,
}

/// Later requests of a route.
#[derive(Clone, Copy, Debug, Default)]
struct Later {
    seen: u32,
    /// The share of them that belonged elsewhere.
    elsewhere: f64,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Learned {
    /// Locks over parts of the table.
    parts: Box<[Mutex<Box<[Target]>>]>,
    routes: Mutex<HashMap<RouteId, Later>>,
    asked: AtomicU64,
    /// Bounds what log lines will say.
    pub(crate) texts: Texts,
}

/// Of the connections of a route that loses too much locality, how many are handed over all the same.
const PROBE_ONE_IN: u64 = 16;
const PARTS: usize = 16;

impl Learned {
    /// Room for about so many targets.
    pub(crate) fn new(targets_max: usize) -> Self {
        let each = targets_max.div_ceil(PARTS).max(1);
        let part = |_| Mutex::new(vec![Target::default(); each].into());
        Self {
            parts: (0..PARTS).map(part).collect(),
            routes: Mutex::default(),
            asked: AtomicU64::new(1),
            texts: Texts::default(),
        }
    }

    fn with<R>(&self, id: TargetId, act: impl FnOnce(&mut Target) -> R) -> R {
        let mut part = lock(&self.parts[(id.0 % PARTS as u64) as usize]);
        let at = (id.0 / PARTS as u64 % part.len() as u64) as usize;
        act(&mut part[at])
    }

    /// Keeps what a log line says of a target, unless another request had the same id; gives what a line of this request says.
    pub(crate) fn text(&self, id: TargetId, text: Text) -> Arc<Text> {
        self.with(id, |target| {
            if target.id != id.0 {
                *target = Target { id: id.0, ..Target::default() };
            }
            match &target.text {
                Some(kept) if **kept == text => kept.clone(),
                None if !target.ambiguous => target.text.insert(Arc::new(text)).clone(),
                Some(_) | None => {
                    target.ambiguous = true;
                    target.text = None;
                    Arc::new(text)
                }
            }
        })
    }

    /// The URL in log lines of the target's requests; `None` if it is unknown, or if requests with this id differ.
    pub(crate) fn text_of(&self, id: TargetId) -> Option<Arc<Text>> {
        self.with(id, |target| target.text.clone().filter(|_| target.id == id.0))
    }

    /// A reply was so long. Bytes.
    pub(crate) fn note_reply(&self, id: TargetId, bytes: u64) {
        self.with(id, |target| {
            if target.id != id.0 {
                *target = Target { id: id.0, ..Target::default() };
            }
            let before = if target.reply_bytes == 0 { bytes } else { target.reply_bytes };
            target.reply_bytes = (before as f64 + (bytes as f64 - before as f64) * WEIGHT).max(1.0) as u64;
        });
    }

    /// How long its replies are. Bytes; `None` if none was seen.
    pub(crate) fn reply_bytes(&self, id: TargetId) -> Option<u64> {
        self.with(id, |target| (target.id == id.0 && target.reply_bytes > 0).then_some(target.reply_bytes))
    }

    /// A later request on a connection of this route belonged to the connection's node, or elsewhere.
    pub(crate) fn note_later(&self, route: RouteId, elsewhere: bool) {
        let mut routes = lock(&self.routes);
        let later = routes.entry(route).or_default();
        later.seen = later.seen.saturating_add(1);
        later.elsewhere +=
            (f64::from(u8::from(elsewhere)) - later.elsewhere) * WEIGHT.max(1.0 / f64::from(later.seen));
    }

    /// The share of later requests that belong elsewhere; `None` until enough were seen.
    pub(crate) fn elsewhere(&self, route: RouteId) -> Option<f64> {
        lock(&self.routes).get(&route).filter(|later| later.seen >= LATER_MIN).map(|later| later.elsewhere)
    }

    /// Whether it is more than `max`. One connection in sixteen is told that it is not, so that a change shows.
    pub(crate) fn locality_lost(&self, route: RouteId, max: f64) -> bool {
        self.elsewhere(route).is_some_and(|share| share > max)
            && !self.asked.fetch_add(1, Relaxed).is_multiple_of(PROBE_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::super::first::Asked;
    use super::*;

    #[test]
    fn a_target_displaces_another_and_takes_nothing_over() {
        let learned = Learned::new(1);
        let (one, other) = (TargetId(16), TargetId(32));
        assert_eq!(learned.reply_bytes(one), None);
        learned.note_reply(one, 1_000);
        assert_eq!((learned.reply_bytes(one), learned.reply_bytes(other)), (Some(1_000), None));
        learned.note_reply(one, 2_600);
        assert_eq!(learned.reply_bytes(one), Some(1_100), "a sixteenth of the way");
        let asked = Asked { method: "GET", target: "/a", host: b"h", minor: 1, fields: Vec::new() };
        let text = || learned.texts.of(&asked).expect("room");
        let kept = learned.text(other, text());
        assert_eq!((learned.reply_bytes(one), learned.text_of(other)), (None, Some(kept)));
        assert!(Arc::ptr_eq(&learned.text(other, text()), &learned.text(other, text())));
    }

    /// Two URLs with one id, by a crafted collision or by a key template: no line says the one for the other.
    #[test]
    fn no_text_is_given_for_an_id_that_different_requests_have() {
        let learned = Learned::new(1);
        let asked = |target| Asked { method: "GET", target, host: b"h", minor: 1, fields: Vec::new() };
        let text = |target| learned.texts.of(&asked(target)).expect("room");
        let id = TargetId(16);
        learned.text(id, text("/victim"));
        assert_eq!(&*learned.text_of(id).expect("known").target, "/victim");
        assert_eq!(&*learned.text(id, text("/crafted")).target, "/crafted", "its own line has its own text");
        assert!(learned.text_of(id).is_none(), "neither of the two");
        assert_eq!(&*learned.text(id, text("/victim")).target, "/victim");
        assert!(learned.text_of(id).is_none(), "it stays so");
        learned.text(TargetId(32), text("/other"));
        learned.text(id, text("/victim"));
        assert_eq!(&*learned.text_of(id).expect("known").target, "/victim", "forgotten with its place");
    }

    #[test]
    fn locality_counts_once_enough_was_seen() {
        let learned = Learned::new(1);
        let route = RouteId(0);
        for _ in 0..31 {
            learned.note_later(route, true);
        }
        assert!(!learned.locality_lost(route, 0.2));
        learned.note_later(route, true);
        assert!(learned.locality_lost(route, 0.2));
        (0..40).for_each(|_| learned.note_later(route, false));
        assert!(!learned.locality_lost(route, 0.2), "{:?}", learned.elsewhere(route));
    }
}
