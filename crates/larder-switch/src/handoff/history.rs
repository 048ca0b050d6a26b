//! History of targets and routes: sizes of replies, log texts of targets, and how often later requests on a
//! connection belong to another node.
//!
//! Targets share a table of fixed size. A target has one entry, by its id, and replaces the target that was there.

use super::log_text::{LogText, LogTexts};
use crate::lock::lock;
use larder_core::{RouteId, TargetId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Weight of the latest value in a mean.
const WEIGHT: f64 = 1.0 / 16.0;
/// Minimum number of later requests of a route before their share counts.
const LATER_MIN: u32 = 32;

#[derive(Clone, Debug, Default)]
struct TargetRecord {
    id: u64,
    /// Mean size of the latest replies; 0 if there was none.
    reply_bytes: u64,
    text: Option<Arc<LogText>>,
    /// Whether different requests had this id. A log text by id could then name the wrong request.
    ambiguous: bool,
}

/// Statistics of a route's later requests.
#[derive(Clone, Copy, Debug, Default)]
struct RouteLocality {
    seen: u32,
    /// Share of requests that belonged to another node.
    misplaced: f64,
}

/// History of targets and routes.
#[derive(Debug)]
pub(crate) struct TrafficHistory {
    /// Parts of the table, each with a lock.
    parts: Box<[Mutex<Box<[TargetRecord]>>]>,
    routes: Mutex<HashMap<RouteId, RouteLocality>>,
    locality_checks: AtomicU64,
    /// Budget of log texts.
    pub(crate) texts: LogTexts,
}

/// One in this number of connections is handed off although the route loses too much locality.
const PROBE_ONE_IN: u64 = 16;
const PARTS: usize = 16;

impl TrafficHistory {
    /// Creates a history for about this number of targets.
    pub(crate) fn new(targets_max: usize) -> Self {
        let each = targets_max.div_ceil(PARTS).max(1);
        let part = |_| Mutex::new(vec![TargetRecord::default(); each].into());
        Self {
            parts: (0..PARTS).map(part).collect(),
            routes: Mutex::default(),
            locality_checks: AtomicU64::new(1),
            texts: LogTexts::default(),
        }
    }

    fn with_record<R>(&self, id: TargetId, act: impl FnOnce(&mut TargetRecord) -> R) -> R {
        let mut part = lock(&self.parts[(id.0 % PARTS as u64) as usize]);
        let at = (id.0 / PARTS as u64 % part.len() as u64) as usize;
        act(&mut part[at])
    }

    /// Stores the log text of a target, unless another request had the same id. Returns the text for this request.
    pub(crate) fn store_text(&self, id: TargetId, text: LogText) -> Arc<LogText> {
        self.with_record(id, |target| {
            if target.id != id.0 {
                *target = TargetRecord { id: id.0, ..TargetRecord::default() };
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

    /// Returns the log text of a target; `None` if it is unknown or ambiguous.
    pub(crate) fn text(&self, id: TargetId) -> Option<Arc<LogText>> {
        self.with_record(id, |target| target.text.clone().filter(|_| target.id == id.0))
    }

    /// Records the size of a reply. Bytes.
    pub(crate) fn note_reply(&self, id: TargetId, bytes: u64) {
        self.with_record(id, |target| {
            if target.id != id.0 {
                *target = TargetRecord { id: id.0, ..TargetRecord::default() };
            }
            let before = if target.reply_bytes == 0 { bytes } else { target.reply_bytes };
            target.reply_bytes = (before as f64 + (bytes as f64 - before as f64) * WEIGHT).max(1.0) as u64;
        });
    }

    /// Returns the mean size of a target's replies in bytes; `None` if there was none.
    pub(crate) fn reply_bytes(&self, id: TargetId) -> Option<u64> {
        self.with_record(id, |target| {
            (target.id == id.0 && target.reply_bytes > 0).then_some(target.reply_bytes)
        })
    }

    /// Records whether a later request on a connection of this route belonged to another node.
    pub(crate) fn note_later_request(&self, route: RouteId, misplaced: bool) {
        let mut routes = lock(&self.routes);
        let locality = routes.entry(route).or_default();
        locality.seen = locality.seen.saturating_add(1);
        locality.misplaced += (f64::from(u8::from(misplaced)) - locality.misplaced)
            * WEIGHT.max(1.0 / f64::from(locality.seen));
    }

    /// Returns the share of later requests that belong to another node; `None` until there were enough.
    pub(crate) fn misplaced_share(&self, route: RouteId) -> Option<f64> {
        lock(&self.routes)
            .get(&route)
            .filter(|locality| locality.seen >= LATER_MIN)
            .map(|locality| locality.misplaced)
    }

    /// Whether this share exceeds `max`. Returns false for one in sixteen connections, so that a change is noticed.
    pub(crate) fn locality_lost(&self, route: RouteId, max: f64) -> bool {
        self.misplaced_share(route).is_some_and(|share| share > max)
            && !self.locality_checks.fetch_add(1, Relaxed).is_multiple_of(PROBE_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::super::opening::RequestHeader;
    use super::*;

    #[test]
    fn a_new_target_replaces_the_old_one() {
        let history = TrafficHistory::new(1);
        let (one, other) = (TargetId(16), TargetId(32));
        assert_eq!(history.reply_bytes(one), None);
        history.note_reply(one, 1_000);
        assert_eq!((history.reply_bytes(one), history.reply_bytes(other)), (Some(1_000), None));
        history.note_reply(one, 2_600);
        assert_eq!(history.reply_bytes(one), Some(1_100), "a sixteenth of the way");
        let asked = RequestHeader { method: "GET", target: "/a", host: b"h", minor: 1, fields: Vec::new() };
        let text = || history.texts.create(&asked).expect("room");
        let kept = history.store_text(other, text());
        assert_eq!((history.reply_bytes(one), history.text(other)), (None, Some(kept)));
        assert!(Arc::ptr_eq(&history.store_text(other, text()), &history.store_text(other, text())));
    }

    /// Two URLs may have one id, by a crafted collision or by the key template. No log line shows the wrong URL.
    #[test]
    fn an_ambiguous_id_has_no_text() {
        let history = TrafficHistory::new(1);
        let asked =
            |target| RequestHeader { method: "GET", target, host: b"h", minor: 1, fields: Vec::new() };
        let text = |target| history.texts.create(&asked(target)).expect("room");
        let id = TargetId(16);
        history.store_text(id, text("/victim"));
        assert_eq!(&*history.text(id).expect("known").target, "/victim");
        assert_eq!(
            &*history.store_text(id, text("/crafted")).target,
            "/crafted",
            "its own line has its own text"
        );
        assert!(history.text(id).is_none(), "neither of the two");
        assert_eq!(&*history.store_text(id, text("/victim")).target, "/victim");
        assert!(history.text(id).is_none(), "it stays so");
        history.store_text(TargetId(32), text("/other"));
        history.store_text(id, text("/victim"));
        assert_eq!(&*history.text(id).expect("known").target, "/victim", "forgotten with its place");
    }

    #[test]
    fn locality_counts_after_enough_requests() {
        let history = TrafficHistory::new(1);
        let route = RouteId(0);
        for _ in 0..31 {
            history.note_later_request(route, true);
        }
        assert!(!history.locality_lost(route, 0.2));
        history.note_later_request(route, true);
        assert!(history.locality_lost(route, 0.2));
        (0..40).for_each(|_| history.note_later_request(route, false));
        assert!(!history.locality_lost(route, 0.2), "{:?}", history.misplaced_share(route));
    }
}
