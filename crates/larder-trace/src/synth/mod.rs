//! Seeded synthetic traces, fitted to the published figures of real ones.
//!
//! Real traces are other people's data; their figures are public. A [`Recipe`] holds such figures, and [`generate`]
//! makes a trace that has them:
//! 1. a popularity curve by rank through what is known ([`Popularity`]);
//! 2. whole numbers of requests for each rank, so that every target's share is exact and not one draw of many;
//! 3. an order and times ([`Drift`] for daily change);
//! 4. sizes, laid on the ranks as the finished trace has them, so that each published coverage point is met to the
//!    request it falls on ([`SizeGoal`]).
//!
//! The same recipe, seed and scale give the same trace on every machine: chance is xoshiro256++ with streams derived
//! from the seed, mathematics are `libm`'s in double precision, and nothing depends on hash order.
//!
//! Requests of a recipe are independent of one another apart from their counts and days. Users who fetch pages and
//! think are made by [`sessions`] and [`mix`], users who go through a profile again and again by [`profiles`].

pub mod draw;
pub mod mix;
mod order;
mod popularity;
pub mod profiles;
mod recipe;
mod rng;
pub mod sessions;
mod sizes;

use larder_core::{Bytes, Time};

use crate::trace::{Request, SizeUnit, Target, Trace};
use crate::write::ORIGIN_S;

pub use larder_core::class::ServiceClass;
pub use order::Drift;
pub use popularity::{CurvePoint, Popularity};
pub use recipe::{CoverageGoal, Hot, Recipe};
pub use rng::Stream;
pub use sizes::SizeGoal;

/// Most targets of a recipe.
const TARGETS_MAX: u64 = 1 << 24;
/// Most requests of a recipe.
const REQUESTS_MAX: u64 = 1_000_000_000;
const DAY_S: f64 = 86_400.0;

/// A trace that cannot be made; the arguments are at fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SynthError {
    /// No recipe has this name.
    #[error("'{0}' is not a recipe; known are {known}", known = Recipe::NAMES.join(", "))]
    NoSuchRecipe(String),
    /// A figure lies outside its range.
    #[error("{what} must be {range}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// What it may be.
        range: &'static str,
    },
    /// The scaled trace is too small to have the recipe's shape.
    #[error("too small for this recipe's shape ({what}): take a larger scale, or more targets and requests")]
    TooSmall {
        /// What does not fit.
        what: &'static str,
    },
}

/// Makes a trace. `scale`, above 0 and at most 1, multiplies targets, requests, bytes and the time span; the shape, the
/// shares and the arrival rate stay.
///
/// # Errors
/// [`SynthError`] when a figure is out of range or the scale leaves too little to have a shape.
pub fn generate(recipe: &Recipe, seed: u64, scale: f64) -> Result<Trace, SynthError> {
    let sketch = Sketch::new(recipe, scale)?;
    let counts = sketch.counts()?;
    let days = order::days(&counts, recipe.drift.as_ref(), seed);
    let numbering = Numbering::new(&counts, &days);
    let sizes = sketch.sizes(&counts, &numbering, seed)?;
    let mut times = Stream::new(seed, "times");
    let mut requests = Vec::with_capacity(days.iter().map(Vec::len).sum());
    for (day, ranks) in days.iter().enumerate() {
        let (start, span) = sketch.day(day);
        let at = order::times(ranks.len(), start, span, &mut times);
        for (&rank, time) in ranks.iter().zip(at) {
            let target = numbering.of_rank[rank as usize];
            requests.push(Request { time, target, client: 0, size: Bytes(sizes[target as usize]) });
        }
    }
    let origin = requests.first().map_or(Time::ZERO, |first| first.time);
    for request in &mut requests {
        request.time = Time::from_nanos(request.time.as_nanos() - origin.as_nanos());
    }
    let targets = sizes
        .iter()
        .enumerate()
        .map(|(i, &size)| Target { name: format!("/{}/{i}", recipe.name), size: Bytes(size) })
        .collect();
    Ok(Trace { targets, requests, size_unit: SizeUnit::Bytes, origin_ns: Some(ORIGIN_S * 1_000_000_000) })
}

/// Target numbers: a trace numbers its targets by first appearance, and statistics rank equal counts by that.
struct Numbering {
    /// Number of each generated rank.
    of_rank: Vec<u32>,
    /// Generated ranks in the order of the statistics' ranking.
    ranking: Vec<u32>,
}

impl Numbering {
    fn new(counts: &[u64], days: &[Vec<u32>]) -> Self {
        let mut of_rank = vec![u32::MAX; counts.len()];
        let mut ranking: Vec<u32> = Vec::with_capacity(counts.len());
        for &rank in days.iter().flatten() {
            let number = &mut of_rank[rank as usize];
            if *number == u32::MAX {
                *number = ranking.len() as u32;
                ranking.push(rank);
            }
        }
        // Stable: equal counts stay in order of appearance.
        ranking.sort_by_key(|&rank| std::cmp::Reverse(counts[rank as usize]));
        Self { of_rank, ranking }
    }
}

/// A recipe at a scale.
struct Sketch<'r> {
    recipe: &'r Recipe,
    scale: f64,
    targets: usize,
    /// Requests to all but the hot targets.
    requests: u64,
    requests_hot: u64,
}

impl<'r> Sketch<'r> {
    fn new(recipe: &'r Recipe, scale: f64) -> Result<Self, SynthError> {
        let check = |good: bool, what, range| {
            if good { Ok(()) } else { Err(SynthError::OutOfRange { what, range }) }
        };
        check(scale > 0.0 && scale <= 1.0, "the scale", "above 0 and at most 1")?;
        check(
            (1..=TARGETS_MAX).contains(&recipe.targets.into()),
            "the number of targets",
            "1 to 16,777,216",
        )?;
        check((1..=REQUESTS_MAX).contains(&recipe.requests), "the number of requests", "1 to 1,000,000,000")?;
        let exponent = match recipe.popularity {
            Popularity::Zipf { exponent } | Popularity::Knee { exponent, .. } => exponent,
            Popularity::Curve { .. } => 0.0,
        };
        check((0.0..=5.0).contains(&exponent), "the Zipf exponent", "0 to 5")?;
        if let Some(hot) = &recipe.hot {
            check((0.05..=0.5).contains(&hot.share), "the hot targets' share", "0.05 to 0.5")?;
            check((1..=1_000).contains(&hot.targets), "the number of hot targets", "1 to 1,000")?;
            check((1..1 << 40).contains(&hot.size.get()), "the hot targets' size", "1 byte to 1 TiB")?;
        }
        if let Some(drift) = &recipe.drift {
            check((2..=1_000).contains(&drift.days), "the number of days", "2 to 1,000")?;
        }
        let all = (recipe.requests as f64 * scale).round().max(1.0) as u64;
        let requests_hot = recipe.hot.map_or(0, |hot| (all as f64 * hot.share).round() as u64);
        let targets = (f64::from(recipe.targets) * scale).round().max(1.0) as usize;
        Ok(Self { recipe, scale, targets, requests: all - requests_hot, requests_hot })
    }

    /// Requests by generated rank; the hot targets stand behind the others.
    fn counts(&self) -> Result<Vec<u64>, SynthError> {
        let shares = self.recipe.popularity.shares(self.targets, self.requests)?;
        let mut counts = popularity::counts(&shares, self.requests, u64::from(self.recipe.every_target));
        counts.retain(|&count| count > 0);
        if let Some(hot) = &self.recipe.hot {
            let each = popularity::counts(
                &vec![1.0 / f64::from(hot.targets); hot.targets as usize],
                self.requests_hot,
                0,
            );
            counts.extend(each);
        }
        Ok(counts)
    }

    /// Sizes by number, fitted along the statistics' ranking of the targets that are not hot.
    fn sizes(&self, counts: &[u64], numbering: &Numbering, seed: u64) -> Result<Vec<u64>, SynthError> {
        let hot = self.recipe.hot.map_or((counts.len(), 0), |hot| {
            (counts.len().saturating_sub(hot.targets as usize), hot.size.get())
        });
        let (plain, of_hot): (Vec<u32>, Vec<u32>) =
            numbering.ranking.iter().partition(|&&rank| (rank as usize) < hot.0);
        let ranked: Vec<u64> = plain.iter().map(|&rank| counts[rank as usize]).collect();
        let stretches = self.stretches(&ranked)?;
        let plan = sizes::Plan { counts: &ranked, stretches: &stretches, goal: self.recipe.sizes };
        let fitted = sizes::by_rank(&plan, &mut Stream::new(seed, "sizes"));
        let mut sizes = vec![hot.1; plain.len() + of_hot.len()];
        for (&rank, size) in plain.iter().zip(fitted) {
            sizes[numbering.of_rank[rank as usize] as usize] = size;
        }
        Ok(sizes)
    }

    /// Where the coverage points fall in these ranked counts, and the bytes between them.
    fn stretches(&self, ranked: &[u64]) -> Result<Vec<(usize, u64)>, SynthError> {
        let Some(all) = self.recipe.bytes else { return Ok(Vec::new()) };
        let scaled = |bytes: Bytes| (bytes.get() as f64 * self.scale).round() as u64;
        let requests: u64 = ranked.iter().sum();
        let (mut end, mut covered, mut bytes) = (0, 0, 0);
        let mut stretches = Vec::new();
        for goal in &self.recipe.coverage {
            let start = end;
            while covered * 1_000 < requests * u64::from(goal.requests_permille) {
                covered += ranked[end];
                end += 1;
            }
            if end == start || end == ranked.len() || scaled(goal.bytes) <= bytes {
                return Err(SynthError::TooSmall { what: "no targets between two coverage points" });
            }
            stretches.push((end, scaled(goal.bytes) - bytes));
            bytes = scaled(goal.bytes);
        }
        stretches.push((ranked.len(), scaled(all).saturating_sub(bytes)));
        Ok(stretches)
    }

    /// Start and length of a day in seconds; without drift, of the whole span.
    fn day(&self, day: usize) -> (f64, f64) {
        match self.recipe.drift {
            Some(_) => (day as f64 * DAY_S, DAY_S),
            None => (0.0, self.recipe.span_s as f64 * self.scale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stats;

    #[test]
    fn the_same_seed_gives_the_same_trace_and_another_another() {
        let recipe = Recipe::by_name("rice-like").expect("a recipe");
        let make = |seed| generate(&recipe, seed, 0.02).expect("possible");
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }

    #[test]
    fn a_trace_is_the_same_on_every_machine() {
        // The hash of the whole trace as this generator makes it. A change of it changes every published result that
        // rests on a seed: it belongs into the changelog.
        let recipe = Recipe::by_name("ibm-like").expect("a recipe");
        let trace = generate(&recipe, 42, 0.02).expect("possible");
        let mut log = Vec::new();
        crate::write_clf(&trace, &mut log).expect("in memory");
        insta::assert_snapshot!("ibm_like_42", larder_core::TargetId::of(&log).to_string());
    }

    #[test]
    fn a_smaller_scale_keeps_the_shape() {
        for name in ["rice-like", "ibm-like"] {
            let recipe = Recipe::by_name(name).expect("a recipe");
            let stats = Stats::of_trace(&generate(&recipe, 1, 0.05).expect("possible"));
            for goal in &recipe.coverage {
                let got = stats.coverage_at(goal.requests_permille).and_then(|point| point.bytes);
                let want = goal.bytes.get() as f64 * 0.05;
                let off = got.expect("a point") as f64 / want - 1.0;
                assert!(off.abs() < 0.02, "{name} {goal:?}: off by {off}");
            }
        }
    }

    #[test]
    fn hot_targets_take_their_share_and_have_their_size() {
        for (share, targets) in [(0.05, 50), (0.5, 1)] {
            let hot = Hot { share, targets, size: Bytes(30_000) };
            let recipe = Recipe { hot: Some(hot), ..Recipe::by_name("rice+hot").expect("a recipe") };
            let trace = generate(&recipe, 1, 0.02).expect("possible");
            let (mut counts, mut to_hot) = (vec![0_u64; trace.targets.len()], 0);
            for request in &trace.requests {
                counts[request.target as usize] += 1;
            }
            for (target, count) in trace.targets.iter().zip(counts) {
                if target.size == Bytes(30_000)
                    && count as f64 > 0.9 * trace.requests.len() as f64 * share / f64::from(targets)
                {
                    to_hot += count;
                }
            }
            let got = to_hot as f64 / trace.requests.len() as f64;
            assert!((got / share - 1.0).abs() < 0.02, "{got} for {share}");
        }
    }

    #[test]
    fn figures_out_of_range_are_named() {
        let rice = Recipe::by_name("rice-like").expect("a recipe");
        let out = |recipe: &Recipe, scale| generate(recipe, 1, scale).expect_err("impossible").to_string();
        assert_eq!(out(&rice, 0.0), "the scale must be above 0 and at most 1");
        assert_eq!(out(&rice, f64::NAN), "the scale must be above 0 and at most 1");
        assert!(out(&rice, 0.0001).starts_with("too small"));
        let hot = Hot { share: 0.6, ..Hot::default() };
        assert!(out(&Recipe { hot: Some(hot), ..rice }, 0.1).contains("0.05 to 0.5"));
        assert!(out(&Recipe::zipf(0, 10, 1.0), 1.0).contains("number of targets"));
        assert!(matches!(Recipe::by_name("x"), Err(SynthError::NoSuchRecipe(_))));
    }

    #[test]
    fn a_plain_zipf_trace_has_its_exponent() {
        let stats =
            Stats::of_trace(&generate(&Recipe::zipf(10_000, 500_000, 0.9), 1, 1.0).expect("possible"));
        let exponent = stats.zipf.expect("popular targets").exponent;
        assert!((exponent - 0.9).abs() < 0.02, "{exponent}");
        assert_eq!(stats.requests, 500_000);
    }
}
