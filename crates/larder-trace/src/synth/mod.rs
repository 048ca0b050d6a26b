//! Synthetic traces from a seed, fitted to the published figures of real traces.
//!
//! Real traces often cannot be published, but their figures are public. A [`Recipe`] has these figures, and
//! [`generate`] creates a trace with them:
//! 1. a popularity curve by rank through the known points ([`Popularity`]),
//! 2. a whole number of requests for each rank, so that the share of every target is exact and not drawn,
//! 3. an order and times ([`Drift`] models daily change, and [`Recipe::locality`] repeats recent targets),
//! 4. sizes by the ranks of the finished trace, so that each published coverage point is met at its request
//!    ([`SizeGoal`]).
//!
//! The same recipe, seed and scale give the same trace on every machine. Random numbers are from
//! xoshiro256++, with streams derived from the seed. Functions are those of `libm` in double precision.
//! Nothing depends on hash order.
//!
//! The requests of a recipe are independent of one another, apart from their counts, days and locality. [`sessions`]
//! and [`mix`] generate users who request pages and think. [`profiles`] generates users who repeat a recorded
//! profile.

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

use crate::size_unit::SizeUnit;
use crate::trace::{Request, Target, Trace};
use crate::write::ORIGIN_S;

pub use larder_core::class::ServiceClass;
pub use order::Drift;
pub use popularity::{Popularity, PopularityPoint};
pub use recipe::{CoverageGoal, HotTargets, Recipe};
pub use rng::Stream;
pub use sizes::SizeGoal;

/// Largest number of targets of a recipe.
const TARGETS_MAX: u64 = 1 << 24;
/// Largest number of requests of a recipe.
const REQUESTS_MAX: u64 = 1_000_000_000;
/// Length of a day in seconds.
const DAY_S: f64 = 86_400.0;

/// Reason why a trace cannot be generated. The caller is at fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SynthError {
    /// No recipe has this name.
    #[error("'{0}' is not a recipe; known are {known}", known = Recipe::NAMES.join(", "))]
    NoSuchRecipe(String),
    /// A parameter is out of range.
    #[error("{what} must be {range}")]
    OutOfRange {
        /// The parameter.
        what: &'static str,
        /// The range.
        range: &'static str,
    },
    /// The scaled trace is too small for the shape of the recipe.
    #[error("too small for this recipe ({what}): use a larger scale, or more targets and requests")]
    TooSmall {
        /// The part of the shape that does not fit.
        what: &'static str,
    },
}

/// Generates a trace. `scale` is above 0 and at most 1. It multiplies targets, requests, bytes and the time
/// span. The shape, the shares and the arrival rate do not change.
///
/// # Errors
/// [`SynthError`] if a parameter is out of range, or the scale is too small for the shape.
pub fn generate(recipe: &Recipe, seed: u64, scale: f64) -> Result<Trace, SynthError> {
    let scaled = ScaledRecipe::new(recipe, scale)?;
    let counts = scaled.counts()?;
    let days = order::order_requests(&counts, recipe.drift.as_ref(), recipe.locality, seed);
    let numbers = TargetNumbers::new(&counts, &days);
    let sizes = scaled.sizes(&counts, &numbers, seed)?;
    let mut times = Stream::new(seed, "times");
    let mut requests = Vec::with_capacity(days.iter().map(Vec::len).sum());
    for (day, ranks) in days.iter().enumerate() {
        let (start, span) = scaled.day_span(day);
        let at = order::draw_times(ranks.len(), start, span, &mut times);
        for (&rank, time) in ranks.iter().zip(at) {
            let target = numbers.by_rank[rank as usize];
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

/// The numbers of the targets. A trace numbers its targets by first appearance, and statistics rank equal
/// counts by these numbers.
struct TargetNumbers {
    /// Number of each generated rank.
    by_rank: Vec<u32>,
    /// The generated ranks in the order of the ranking of the statistics.
    ranking: Vec<u32>,
}

impl TargetNumbers {
    fn new(counts: &[u64], days: &[Vec<u32>]) -> Self {
        let mut by_rank = vec![u32::MAX; counts.len()];
        let mut ranking: Vec<u32> = Vec::with_capacity(counts.len());
        for &rank in days.iter().flatten() {
            let number = &mut by_rank[rank as usize];
            if *number == u32::MAX {
                *number = ranking.len() as u32;
                ranking.push(rank);
            }
        }
        // The sort is stable, so that equal counts stay in order of appearance.
        ranking.sort_by_key(|&rank| std::cmp::Reverse(counts[rank as usize]));
        Self { by_rank, ranking }
    }
}

/// A recipe at a scale.
struct ScaledRecipe<'r> {
    recipe: &'r Recipe,
    scale: f64,
    targets: usize,
    /// Number of requests for targets that are not hot.
    requests: u64,
    /// Number of requests for hot targets.
    requests_hot: u64,
}

impl<'r> ScaledRecipe<'r> {
    /// Checks the ranges of the parameters, and computes the scaled numbers.
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
        check((0.0..1.0).contains(&recipe.locality), "the locality", "0 to below 1")?;
        if let Some(drift) = &recipe.drift {
            check((2..=1_000).contains(&drift.days), "the number of days", "2 to 1,000")?;
        }
        let all = (recipe.requests as f64 * scale).round().max(1.0) as u64;
        let requests_hot = recipe.hot.map_or(0, |hot| (all as f64 * hot.share).round() as u64);
        let targets = (f64::from(recipe.targets) * scale).round().max(1.0) as usize;
        Ok(Self { recipe, scale, targets, requests: all - requests_hot, requests_hot })
    }

    /// Returns the number of requests by generated rank. The hot targets follow the others.
    fn counts(&self) -> Result<Vec<u64>, SynthError> {
        let shares = self.recipe.popularity.shares(self.targets, self.requests)?;
        let mut counts =
            popularity::round_to_counts(&shares, self.requests, u64::from(self.recipe.every_target));
        counts.retain(|&count| count > 0);
        if let Some(hot) = &self.recipe.hot {
            let each = popularity::round_to_counts(
                &vec![1.0 / f64::from(hot.targets); hot.targets as usize],
                self.requests_hot,
                0,
            );
            counts.extend(each);
        }
        Ok(counts)
    }

    /// Returns the sizes by target number. They are fitted along the ranking of the targets that are not hot.
    fn sizes(&self, counts: &[u64], numbers: &TargetNumbers, seed: u64) -> Result<Vec<u64>, SynthError> {
        let hot = self.recipe.hot.map_or((counts.len(), 0), |hot| {
            (counts.len().saturating_sub(hot.targets as usize), hot.size.get())
        });
        let (plain, of_hot): (Vec<u32>, Vec<u32>) =
            numbers.ranking.iter().partition(|&&rank| (rank as usize) < hot.0);
        let ranked: Vec<u64> = plain.iter().map(|&rank| counts[rank as usize]).collect();
        let stretches = self.stretches(&ranked)?;
        let plan = sizes::SizePlan { counts: &ranked, stretches: &stretches, goal: self.recipe.sizes };
        let fitted = sizes::assign_sizes(&plan, &mut Stream::new(seed, "sizes"));
        let mut sizes = vec![hot.1; plain.len() + of_hot.len()];
        for (&rank, size) in plain.iter().zip(fitted) {
            sizes[numbers.by_rank[rank as usize] as usize] = size;
        }
        Ok(sizes)
    }

    /// Returns the end and the bytes of each stretch of ranks between two coverage points.
    fn stretches(&self, ranked: &[u64]) -> Result<Vec<(usize, u64)>, SynthError> {
        let Some(all) = self.recipe.bytes else { return Ok(Vec::new()) };
        let scaled_bytes = |bytes: Bytes| (bytes.get() as f64 * self.scale).round() as u64;
        let requests: u64 = ranked.iter().sum();
        let (mut end, mut covered, mut bytes) = (0, 0, 0);
        let mut stretches = Vec::new();
        for goal in &self.recipe.coverage {
            let start = end;
            while covered * 1_000 < requests * u64::from(goal.requests_permille) {
                covered += ranked[end];
                end += 1;
            }
            if end == start || end == ranked.len() || scaled_bytes(goal.bytes) <= bytes {
                return Err(SynthError::TooSmall { what: "no targets between two coverage points" });
            }
            stretches.push((end, scaled_bytes(goal.bytes) - bytes));
            bytes = scaled_bytes(goal.bytes);
        }
        stretches.push((ranked.len(), scaled_bytes(all).saturating_sub(bytes)));
        Ok(stretches)
    }

    /// Returns the start and the length of a day in seconds. Without drift, they are those of the whole span.
    fn day_span(&self, day: usize) -> (f64, f64) {
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
    fn equal_seeds_give_equal_traces() {
        let recipe = Recipe::by_name("rice-like").expect("a recipe");
        let make = |seed| generate(&recipe, seed, 0.02).expect("possible");
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }

    #[test]
    fn a_trace_is_the_same_on_every_machine() {
        // The hash of the whole trace. If it changes, every published result that depends on a seed changes,
        // and the changelog must mention it.
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
            let hot = HotTargets { share, targets, size: Bytes(30_000) };
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
    fn figures_out_of_range_are_errors() {
        let rice = Recipe::by_name("rice-like").expect("a recipe");
        let out = |recipe: &Recipe, scale| generate(recipe, 1, scale).expect_err("impossible").to_string();
        assert_eq!(out(&rice, 0.0), "the scale must be above 0 and at most 1");
        assert_eq!(out(&rice, f64::NAN), "the scale must be above 0 and at most 1");
        assert!(out(&rice, 0.0001).starts_with("too small"));
        let hot = HotTargets { share: 0.6, ..HotTargets::default() };
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
