//! User profiles extracted from a real log: the sequence of a user's requests and the pauses between them (DBench: Zhang,
//! Barrientos, Chen and Seltzer, USENIX Windows NT Symposium 1999, section 3.3).
//!
//! ```text
//! per client, in time order:   split where a pause exceeds the gap    -> visits
//! drop visits with too few requests, split those with too many
//! of these, a random sample by the seed                               -> profiles
//! ```
//!
//! The paper defines neither the boundary between visits nor the pause after a profile's last request. larder uses a gap of
//! 30 minutes, which is usual for logs, and the profile's mean pause after its last request. A log has times in whole
//! seconds of a request's *end*. So a pause includes the service time of the next request, and requests of the same second
//! have no pause between them.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use larder_trace::Trace;
use larder_trace::synth::{ServiceClass, Stream};

use super::{Page, Resource, Script, ScriptError, Visit, to_index};
use crate::plan::TARGET_BYTES_MAX;
use crate::target::request_target;

/// Maximum number of profiles.
pub const PROFILES_MAX: u32 = 1_000_000;

/// Parameters of an extraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileExtraction {
    /// Minimum pause that ends a visit. Above 0. Default 30 min.
    pub gap: Duration,
    /// Minimum requests of a visit; shorter visits are dropped. At least 2, because one request has no pause. Default 2.
    pub requests_min: u32,
    /// Maximum requests of a visit; longer visits, such as those of crawlers, are split. Up to 1,000,000. Default 200.
    pub requests_max: u32,
    /// Number of visits to sample, 1 to [`PROFILES_MAX`]; all if there are fewer. Default 500.
    pub profiles: u32,
}

impl Default for ProfileExtraction {
    fn default() -> Self {
        Self { gap: Duration::from_secs(1_800), requests_min: 2, requests_max: 200, profiles: 500 }
    }
}

/// Counts of an extraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtractionCounts {
    /// Clients with at least one request.
    pub clients: u64,
    /// Visits before any was dropped.
    pub visits: u64,
    /// Visits dropped because they have too few requests.
    pub too_short: u64,
    /// Number of times a visit was split because it has too many requests.
    pub split: u64,
    /// Requests dropped because their client is unknown or their target is too long.
    pub unusable: u64,
    /// Profiles sampled.
    pub profiles: u64,
}

impl Script {
    /// Creates a script from the users of a trace. O(n log n) in the number of requests.
    ///
    /// # Errors
    /// [`ScriptError::OutOfRange`]; [`ScriptError::NoVisits`] if the trace has no clients or no times, or no visit is long
    /// enough.
    pub fn from_trace(
        name: &str,
        trace: &Trace,
        extract: &ProfileExtraction,
        seed: u64,
    ) -> Result<(Self, ExtractionCounts), ScriptError> {
        extract.check()?;
        if trace.requests.iter().all(|request| request.client == 0) {
            return Err(ScriptError::NoVisits { why: "the trace does not identify clients" });
        }
        if trace.origin_ns.is_none() {
            return Err(ScriptError::NoVisits { why: "the trace has no times" });
        }
        let mut counts = ExtractionCounts::default();
        let order = by_client(trace, &mut counts)?;
        let mut visits = extract.visits(trace, &order, &mut counts);
        if visits.is_empty() {
            return Err(ScriptError::NoVisits { why: "no client sent enough requests" });
        }
        let mut random = Stream::new(seed, "extract");
        for index in 0..visits.len().min(extract.profiles as usize) {
            let other = index + random.below((visits.len() - index) as u64) as usize;
            visits.swap(index, other);
        }
        visits.truncate(extract.profiles as usize);
        counts.profiles = visits.len() as u64;
        ScriptBuilder::new(trace).write(name, &order, &visits).map(|script| (script, counts))
    }
}

impl ProfileExtraction {
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

    /// Splits `order` into the ranges that are visits.
    fn visits(&self, trace: &Trace, order: &[u32], counts: &mut ExtractionCounts) -> Vec<Range<usize>> {
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
            counts.split += u64::from(full && !parted);
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

/// Returns the requests of known clients, ordered by client and time.
fn by_client(trace: &Trace, counts: &mut ExtractionCounts) -> Result<Vec<u32>, ScriptError> {
    let fit: Vec<bool> =
        trace.targets.iter().map(|target| request_target(&target.name).len() <= TARGET_BYTES_MAX).collect();
    let len = to_index(trace.requests.len())?;
    let usable = |at: &u32| {
        let request = &trace.requests[*at as usize];
        request.client != 0 && fit[request.target as usize]
    };
    let mut order: Vec<u32> = (0..len).filter(usable).collect();
    counts.unusable = u64::from(len) - order.len() as u64;
    // The requests of a trace are in time order, so indices order them by time.
    order.sort_unstable_by_key(|at| (trace.requests[*at as usize].client, *at));
    Ok(order)
}

/// Builds a script from visits. Resources are numbered by first use. Targets with equal paths are one resource, with the
/// larger size.
struct ScriptBuilder<'t> {
    trace: &'t Trace,
    numbers: HashMap<String, u32>,
    resources: Vec<Resource>,
}

impl<'t> ScriptBuilder<'t> {
    fn new(trace: &'t Trace) -> Self {
        Self { trace, numbers: HashMap::new(), resources: Vec::new() }
    }

    fn write(mut self, name: &str, order: &[u32], profiles: &[Range<usize>]) -> Result<Script, ScriptError> {
        let (mut objects, mut pages, mut visits) = (Vec::new(), Vec::new(), Vec::new());
        for profile in profiles {
            let from = to_index(pages.len())?;
            let times: Vec<u64> = order[profile.clone()]
                .iter()
                .map(|at| self.trace.requests[*at as usize].time.as_nanos())
                .collect();
            let span_ns = times[times.len() - 1] - times[0];
            let mean_ns = span_ns / (times.len() as u64 - 1).max(1);
            for (index, at) in order[profile.clone()].iter().enumerate() {
                let pause_ns = times.get(index + 1).map_or(mean_ns, |next| next - times[index]);
                let object = to_index(objects.len())?;
                let number = self.number(self.trace.requests[*at as usize].target)?;
                objects.push(number);
                pages.push(Page { objects: object..object + 1, pause: Duration::from_nanos(pause_ns) });
            }
            visits.push(Visit { at: Duration::ZERO, pages: from..to_index(pages.len())? });
        }
        Script::new(name, self.resources, objects, pages, visits)
    }

    fn number(&mut self, target: u32) -> Result<u32, ScriptError> {
        let target = &self.trace.targets[target as usize];
        let (path, bytes) = (request_target(&target.name), target.size.get());
        if let Some(number) = self.numbers.get(&*path) {
            let resource = &mut self.resources[*number as usize];
            resource.bytes = resource.bytes.max(bytes);
            resource.held_bytes = resource.bytes;
            return Ok(*number);
        }
        let number = to_index(self.resources.len())?;
        let path = path.into_owned();
        self.numbers.insert(path.clone(), number);
        self.resources.push(Resource {
            path,
            bytes,
            held_bytes: bytes,
            class: ServiceClass::N,
            dynamic: false,
        });
        Ok(number)
    }
}
