//! Profiles of users, extracted from a real log: what each asked for, one request after another, and how long it
//! paused in between (DBench: Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT Symposium 1999, section 3.3).
//!
//! ```text
//! per client, in time order:   cut where a pause exceeds the gap      -> visits
//! drop visits with too few requests, cut those with too many
//! of these, a sample drawn by the seed                                -> profiles
//! ```
//!
//! The paper does not say how it tells one visit from the next, nor what follows a profile's last request. Ours: a gap
//! of 30 minutes, as is usual for logs; a profile that is gone through again and again pauses after its last request
//! as long as it does on average. A log's times are whole seconds and note a request's *end*, so that a pause contains
//! the next request's service time; requests of the same second follow one another without a pause.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use larder_trace::Trace;
use larder_trace::synth::{ServiceClass, Stream};

use super::{Offer, Page, Script, ScriptError, Visit, index};
use crate::plan::TARGET_BYTES_MAX;
use crate::target::wire;

/// Most profiles.
pub const PROFILES_MAX: u32 = 1_000_000;

/// How profiles are extracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extract {
    /// A longer pause of a client ends its visit. Above 0. Default 30 min.
    pub gap: Duration,
    /// Visits with fewer requests are left out. At least 2, as one request shows no pause. Default 2.
    pub requests_min: u32,
    /// A longer visit is cut into several: a crawler is not one patient user. Up to 1,000,000. Default 200.
    pub requests_max: u32,
    /// How many are drawn of all visits, 1 to [`PROFILES_MAX`]; all, if there are fewer. Default 500.
    pub profiles: u32,
}

impl Default for Extract {
    fn default() -> Self {
        Self { gap: Duration::from_secs(1_800), requests_min: 2, requests_max: 200, profiles: 500 }
    }
}

/// What an extraction found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extracted {
    /// Clients with at least one request.
    pub clients: u64,
    /// Visits found, before any was left out.
    pub visits: u64,
    /// Visits left out for having too few requests.
    pub too_short: u64,
    /// How often a visit was cut for having too many.
    pub cut: u64,
    /// Requests of unknown clients, and requests whose target is too long to be sent: left out.
    pub unusable: u64,
    /// Profiles drawn.
    pub profiles: u64,
}

impl Script {
    /// Profiles of a trace's users. O(n log n) in its requests.
    ///
    /// # Errors
    /// [`ScriptError::OutOfRange`]; [`ScriptError::NoVisits`] if the trace names no clients, has no times, or nobody
    /// asked often enough.
    pub fn of_trace(
        name: &str,
        trace: &Trace,
        extract: &Extract,
        seed: u64,
    ) -> Result<(Self, Extracted), ScriptError> {
        extract.check()?;
        if trace.requests.iter().all(|request| request.client == 0) {
            return Err(ScriptError::NoVisits { why: "the trace does not say which client asked" });
        }
        if trace.origin_ns.is_none() {
            return Err(ScriptError::NoVisits { why: "the trace has no times" });
        }
        let mut counts = Extracted::default();
        let order = by_client(trace, &mut counts)?;
        let mut visits = extract.visits(trace, &order, &mut counts);
        if visits.is_empty() {
            return Err(ScriptError::NoVisits { why: "no client asked often enough" });
        }
        let mut chance = Stream::new(seed, "extract");
        for place in 0..visits.len().min(extract.profiles as usize) {
            let other = place + chance.below((visits.len() - place) as u64) as usize;
            visits.swap(place, other);
        }
        visits.truncate(extract.profiles as usize);
        counts.profiles = visits.len() as u64;
        Writer::new(trace).write(name, &order, &visits).map(|script| (script, counts))
    }
}

impl Extract {
    fn check(&self) -> Result<(), ScriptError> {
        let check = |good: bool, what, value: String, range| {
            if good { Ok(()) } else { Err(ScriptError::OutOfRange { what, value, range }) }
        };
        check(!self.gap.is_zero(), "the gap between visits", format!("{:?}", self.gap), "above 0")?;
        let least = self.requests_min;
        check(least >= 2, "the fewest requests of a visit", least.to_string(), "at least 2")?;
        check(
            (least..=1_000_000).contains(&self.requests_max),
            "the most requests of a visit",
            self.requests_max.to_string(),
            "from the fewest to 1000000",
        )?;
        let fit = (1..=PROFILES_MAX).contains(&self.profiles);
        check(fit, "the number of profiles", self.profiles.to_string(), "1 to 1000000")
    }

    /// Ranges of `order` that are visits.
    fn visits(&self, trace: &Trace, order: &[u32], counts: &mut Extracted) -> Vec<Range<usize>> {
        let gap_ns = u64::try_from(self.gap.as_nanos()).unwrap_or(u64::MAX);
        let mut visits = Vec::new();
        let mut begin = 0;
        for at in 1..=order.len() {
            let before = &trace.requests[order[at - 1] as usize];
            let next = order.get(at).map(|next| &trace.requests[*next as usize]);
            let other_client = next.is_none_or(|next| next.client != before.client);
            let parted = other_client
                || next.is_some_and(|next| next.time.as_nanos() - before.time.as_nanos() > gap_ns);
            let full = at - begin >= self.requests_max as usize;
            counts.clients += u64::from(other_client);
            if !parted && !full {
                continue;
            }
            counts.visits += u64::from(parted);
            counts.cut += u64::from(full && !parted);
            if at - begin >= self.requests_min as usize {
                visits.push(begin..at);
            } else {
                counts.too_short += 1;
            }
            begin = at;
        }
        visits
    }
}

/// Requests of known clients, by client and then by time.
fn by_client(trace: &Trace, counts: &mut Extracted) -> Result<Vec<u32>, ScriptError> {
    let fit: Vec<bool> =
        trace.targets.iter().map(|target| wire(&target.name).len() <= TARGET_BYTES_MAX).collect();
    let len = index(trace.requests.len())?;
    let usable = |at: &u32| {
        let request = &trace.requests[*at as usize];
        request.client != 0 && fit[request.target as usize]
    };
    let mut order: Vec<u32> = (0..len).filter(usable).collect();
    counts.unusable = u64::from(len) - order.len() as u64;
    // A trace's requests are in time order: places break ties.
    order.sort_unstable_by_key(|at| (trace.requests[*at as usize].client, *at));
    Ok(order)
}

/// Writes visits into a script, targets numbered by their first use. Targets that are sent alike are one, of the larger
/// size.
struct Writer<'t> {
    trace: &'t Trace,
    numbers: HashMap<String, u32>,
    offers: Vec<Offer>,
}

impl<'t> Writer<'t> {
    fn new(trace: &'t Trace) -> Self {
        Self { trace, numbers: HashMap::new(), offers: Vec::new() }
    }

    fn write(mut self, name: &str, order: &[u32], profiles: &[Range<usize>]) -> Result<Script, ScriptError> {
        let (mut objects, mut pages, mut visits) = (Vec::new(), Vec::new(), Vec::new());
        for profile in profiles {
            let from = index(pages.len())?;
            let times: Vec<u64> = order[profile.clone()]
                .iter()
                .map(|at| self.trace.requests[*at as usize].time.as_nanos())
                .collect();
            let span_ns = times[times.len() - 1] - times[0];
            let mean_ns = span_ns / (times.len() as u64 - 1).max(1);
            for (place, at) in order[profile.clone()].iter().enumerate() {
                let pause_ns = times.get(place + 1).map_or(mean_ns, |next| next - times[place]);
                let object = index(objects.len())?;
                let number = self.number(self.trace.requests[*at as usize].target)?;
                objects.push(number);
                pages.push(Page { objects: object..object + 1, pause: Duration::from_nanos(pause_ns) });
            }
            visits.push(Visit { at: Duration::ZERO, pages: from..index(pages.len())? });
        }
        Script::new(name, self.offers, objects, pages, visits)
    }

    fn number(&mut self, target: u32) -> Result<u32, ScriptError> {
        let target = &self.trace.targets[target as usize];
        let (path, bytes) = (wire(&target.name), target.size.get());
        if let Some(number) = self.numbers.get(&*path) {
            let offer = &mut self.offers[*number as usize];
            offer.bytes = offer.bytes.max(bytes);
            offer.held_bytes = offer.bytes;
            return Ok(*number);
        }
        let number = index(self.offers.len())?;
        let path = path.into_owned();
        self.numbers.insert(path.clone(), number);
        self.offers.push(Offer { path, bytes, held_bytes: bytes, class: ServiceClass::N, made: false });
        Ok(number)
    }
}
