//! The recipes: the published figures of each trace, and our choices where nothing is published.
//!
//! | recipe | source of the figures |
//! |---|---|
//! | `rice-like`, `ibm-like` | LARD (Pai et al., ASPLOS 1998), section 3.2: targets, bytes, hottest share, memory for 97, 98, 99 % |
//! | `deepblue-like`, `rice+hot` | LARD, section 4.2: fits into one 32 MB cache; 5 to 50 % of the requests go to hot targets |
//! | `hp-like` | WARD (Cherkasova and Karlsson, HPL-2001-2), sections 3.1 and 3.4 |
//! | `hp-hours-like` | WARD without days and drift: the log of a few hours of section 3.1 |
//! | `clarknet-like`, `rutgers-like`, `forth-like`, `combined-like` | PRESS (Carrera and Bianchini, PPoPP 2001), table 2: files, mean file, requests, mean reply, exponent; for ClarkNet also the first and tenth target of the log's second week |
//! | `nasa-like` | the rest of Combined of PRESS without its other three; requests of the archive's two logs |
//!
//! MB are 10^6 bytes. The KB of PRESS are 1,024 bytes.
//!
//! We chose:
//! - the number of requests of the days of HP and of IBM, and that of Rice, which is fitted to published throughputs;
//! - time spans where none is published;
//! - the size of `deepblue-like` and its exponent;
//! - the tilt where no mean reply is published, for Rice a fit (the tilt says how much smaller popular targets are);
//! - the mean target size for the targets at the coverage points of Rice, and 0.3 of it for those of IBM, a fit;
//! - the number of HP files at 95.5 % of the requests;
//! - the locality of HP, which is fitted to the published speed-ups.

use larder_core::Bytes;

use super::SynthError;
use super::order::Drift;
use super::popularity::{Popularity, PopularityPoint};
use super::sizes::SizeGoal;

const MB: u64 = 1_000_000;
const KIB: f64 = 1_024.0;
const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 24 * HOUR_S;

/// A published coverage point: the memory that covers a share of the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoverageGoal {
    /// Share of the requests, in thousandths.
    pub requests_permille: u16,
    /// Total size of the most requested targets that take this share.
    pub bytes: Bytes,
    /// Number of these targets as a share of all targets, 0 to 1.
    pub targets_share: f64,
}

/// Additional targets with many requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotTargets {
    /// Share of all requests to these targets, 0.05 to 0.5.
    pub share: f64,
    /// Number of these targets, 1 to 1,000. They are equally popular.
    pub targets: u32,
    /// Size of each target.
    pub size: Bytes,
}

impl Default for HotTargets {
    /// Returns five targets of 50 kB with a fifth of the requests.
    fn default() -> Self {
        Self { share: 0.2, targets: 5, size: Bytes(50_000) }
    }
}

/// The parameters of a synthetic trace. The public fields can be changed before
/// [`generate`](super::generate).
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Name of the recipe. The names of the targets contain it.
    pub name: String,
    /// Number of distinct targets, 1 to 16,777,216.
    pub targets: u32,
    /// Number of requests, 1 to 1,000,000,000.
    pub requests: u64,
    /// Total size of all targets. With `None` it follows from the size distribution.
    pub bytes: Option<Bytes>,
    /// The distribution of requests over ranks.
    pub popularity: Popularity,
    /// Published coverage points, in rising order.
    pub coverage: Vec<CoverageGoal>,
    /// The relation of size and popularity.
    pub sizes: SizeGoal,
    /// Time from the first request to the last, in seconds.
    pub span_s: u64,
    /// Daily change of the targets. With drift the span is the number of its days at every scale.
    pub drift: Option<Drift>,
    /// Probability that a request repeats a recent target, 0 to below 1. With 0, requests are independent.
    pub locality: f64,
    /// Additional hot targets.
    pub hot: Option<HotTargets>,
    /// Whether every target has at least one request.
    pub every_target: bool,
}

impl Recipe {
    /// The names of all recipes with published figures.
    pub const NAMES: [&'static str; 11] = [
        "rice-like",
        "ibm-like",
        "hp-like",
        "hp-hours-like",
        "clarknet-like",
        "nasa-like",
        "rutgers-like",
        "forth-like",
        "combined-like",
        "deepblue-like",
        "rice+hot",
    ];

    /// Returns the recipe with this name.
    ///
    /// # Errors
    /// Returns [`SynthError::NoSuchRecipe`] for an unknown name.
    pub fn by_name(name: &str) -> Result<Self, SynthError> {
        Ok(match name {
            "rice-like" => rice_recipe(),
            "ibm-like" => ibm_recipe(),
            "hp-like" => hp_recipe(),
            "hp-hours-like" => Self { name: name.to_owned(), drift: None, span_s: 4 * HOUR_S, ..hp_recipe() },
            "clarknet-like" => clarknet_recipe(),
            "nasa-like" => press_recipe(name, 5_486, 46.4, 3_461_613, 18.6, 0.78, 62 * DAY_S),
            "rutgers-like" => press_recipe(name, 18_370, 27.3, 498_646, 19.0, 0.79, 25 * DAY_S),
            "forth-like" => press_recipe(name, 11_931, 19.3, 400_335, 8.8, 0.81, 25 * DAY_S),
            "combined-like" => press_recipe(name, 64_651, 21.6, 12_590_736, 16.2, 0.78, 62 * DAY_S),
            "deepblue-like" => deepblue_recipe(),
            "rice+hot" => Self { name: name.to_owned(), hot: Some(HotTargets::default()), ..rice_recipe() },
            _ => return Err(SynthError::NoSuchRecipe(name.chars().take(40).collect())),
        })
    }

    /// Returns a plain trace with Zipf popularity. Sizes have a lognormal body and a Pareto tail, and are
    /// independent of popularity. Targets that are too rare for the number of requests do not occur.
    pub fn zipf(targets: u32, requests: u64, exponent: f64) -> Self {
        Self {
            name: "zipf".to_owned(),
            targets,
            requests,
            bytes: None,
            popularity: Popularity::Zipf { exponent },
            coverage: Vec::new(),
            sizes: SizeGoal::Tilt(0.0),
            span_s: DAY_S,
            drift: None,
            locality: 0.0,
            hot: None,
            every_target: false,
        }
    }

    /// Sets the mean size of the targets at the coverage points, as a share of the mean size of all targets.
    /// Smaller covering targets are more targets, because their bytes are published. Recipes without coverage
    /// points do not change. [`generate`](super::generate) refuses a size that needs more targets than there are.
    pub fn set_covering_size(&mut self, size: f64) {
        let Some(all) = self.bytes.filter(|_| size > 0.0) else { return };
        for goal in &mut self.coverage {
            goal.targets_share = goal.bytes.get() as f64 / all.get() as f64 / size;
        }
        if let Popularity::Curve { points, .. } = &mut self.popularity {
            for (point, goal) in points.iter_mut().zip(&self.coverage) {
                point.targets = goal.targets_share;
            }
        }
    }

    /// Returns a recipe whose popularity curve goes through the published coverage points.
    fn with_coverage(
        name: &str,
        targets: u32,
        requests: u64,
        hottest: f64,
        coverage: Vec<CoverageGoal>,
    ) -> Self {
        let point = |goal: &CoverageGoal| PopularityPoint {
            targets: goal.targets_share,
            requests: f64::from(goal.requests_permille) / 1_000.0,
        };
        let points = coverage.iter().map(point).collect();
        Self {
            name: name.to_owned(),
            popularity: Popularity::Curve { hottest, points },
            coverage,
            every_target: true,
            ..Self::zipf(targets, requests, 0.0)
        }
    }
}

/// Returns a coverage point whose targets have the mean size of the trace.
fn mean_size_goal(requests_permille: u16, bytes_mb: u64, working_set_mb: u64) -> CoverageGoal {
    let targets_share = bytes_mb as f64 / working_set_mb as f64;
    CoverageGoal { requests_permille, bytes: Bytes(bytes_mb * MB), targets_share }
}

/// Returns the recipe of the Rice trace. The tilt and the number of requests are fitted together to four published
/// figures: LARD/R over WRR on 8 and on 16 nodes (3.9 and about 4.5), the miss ratio of LARD/R on 16 (2 %), and
/// the end of figure 12's axis (30,000 to 35,000 requests/s).
fn rice_recipe() -> Recipe {
    let coverage = vec![
        mean_size_goal(970, 560, 1_418),
        mean_size_goal(980, 705, 1_418),
        mean_size_goal(990, 927, 1_418),
    ];
    Recipe {
        bytes: Some(Bytes(1_418 * MB)),
        sizes: SizeGoal::Tilt(0.2),
        span_s: 61 * DAY_S,
        ..Recipe::with_coverage("rice-like", 37_703, 8_000_000, 0.02, coverage)
    }
}

/// Returns the recipe of the IBM trace. The size of the covering targets is fitted to the throughput of LARD/R over
/// WRR, which is slightly more than 2 from 4 nodes on. The paper says that popular files of this trace are likely small.
fn ibm_recipe() -> Recipe {
    let coverage =
        vec![mean_size_goal(970, 51, 1_029), mean_size_goal(980, 80, 1_029), mean_size_goal(990, 182, 1_029)];
    let mut recipe = Recipe {
        bytes: Some(Bytes(1_029 * MB)),
        sizes: SizeGoal::Tilt(0.25),
        span_s: 84 * HOUR_S,
        ..Recipe::with_coverage("ibm-like", 38_527, 5_000_000, 0.05, coverage)
    };
    recipe.set_covering_size(0.3);
    recipe
}

/// Returns the recipe of the HP trace. 4.5 % of the files take 90 % of the requests and less than 2 % of the
/// working set. 5 % of the working set take 95.5 % of the requests and 65 % of the bytes. Less than 3 % of a
/// day's requests go to targets that are new in the core of that day. The share of the most popular file is
/// not published. The locality is fitted to the speed-ups on 16 nodes (section 3.3: 12, 21 and 31).
fn hp_recipe() -> Recipe {
    let working_set = 20_166 * MB / 10;
    let coverage = vec![
        CoverageGoal { requests_permille: 900, bytes: Bytes(working_set * 19 / 1_000), targets_share: 0.045 },
        CoverageGoal { requests_permille: 955, bytes: Bytes(working_set / 20), targets_share: 0.13 },
    ];
    Recipe {
        bytes: Some(Bytes(working_set)),
        sizes: SizeGoal::TransferredShare { point: 1, share: 0.65 },
        drift: Some(Drift { days: 5, fresh_popular: 0.01, fresh_rare: 0.15, steady_top: 20 }),
        locality: 0.2,
        span_s: 5 * DAY_S,
        ..Recipe::with_coverage("hp-like", 69_067, 5_000_000, 0.05, coverage)
    }
}

fn clarknet_recipe() -> Recipe {
    // The log of the second week has 1,486,327 requests of status 200. The first target has 20,731 of them
    // and the tenth 12,465.
    let top = vec![(1, 20_731.0 / 1_486_327.0), (10, 12_465.0 / 1_486_327.0)];
    Recipe {
        popularity: Popularity::Knee { top, exponent: 0.77 },
        ..press_recipe("clarknet-like", 28_864, 14.2, 2_978_121, 9.7, 0.77, 14 * DAY_S)
    }
}

/// Returns a recipe from the figures of PRESS, table 2.
fn press_recipe(
    name: &str,
    targets: u32,
    target_kib: f64,
    requests: u64,
    reply_kib: f64,
    exponent: f64,
    span_s: u64,
) -> Recipe {
    Recipe {
        name: name.to_owned(),
        bytes: Some(Bytes((f64::from(targets) * target_kib * KIB).round() as u64)),
        sizes: SizeGoal::ReplyMean(reply_kib * KIB),
        span_s,
        every_target: true,
        ..Recipe::zipf(targets, requests, exponent)
    }
}

fn deepblue_recipe() -> Recipe {
    Recipe {
        name: "deepblue-like".to_owned(),
        bytes: Some(Bytes(24 * MB)),
        sizes: SizeGoal::Tilt(0.25),
        span_s: 9 * DAY_S,
        every_target: true,
        ..Recipe::zipf(1_200, 1_000_000, 1.0)
    }
}
