//! The recipes: what is published of each trace, and what we chose where nothing is.
//!
//! | recipe | source of the figures |
//! |---|---|
//! | `rice-like`, `ibm-like` | LARD (Pai et al., ASPLOS 1998), section 3.2: targets, bytes, hottest share, memory for 97, 98, 99 % |
//! | `deepblue-like`, `rice+hot` | the same, section 4.2: fits one 32 MB cache; 5 to 50 % of the requests to hot targets |
//! | `hp-like` | WARD (Cherkasova and Karlsson, HPL-2001-2), sections 3.1 and 3.4 |
//! | `hp-hours-like` | the same without days and drift: section 3.1's log of a few hours |
//! | `clarknet-like`, `rutgers-like`, `forth-like`, `combined-like` | PRESS (Carrera and Bianchini, PPoPP 2001), table 2: files, mean file, requests, mean reply, exponent; for ClarkNet also the first and tenth target of the log's second week |
//! | `nasa-like` | what is left of PRESS's Combined without its other three; requests of the archive's two logs |
//!
//! MB are 10^6 bytes; PRESS's KB are 1,024.
//!
//! Ours: the number of requests of the LARD traces and of HP's days, time spans where none is stated, the size of
//! `deepblue-like` and its exponent, the tilt (how far popular targets are small) where no mean reply is published,
//! that IBM's and Rice's covering targets have the mean size, and HP's file count at 95.5 %.

use larder_core::Bytes;

use super::SynthError;
use super::order::Drift;
use super::popularity::{CurvePoint, Popularity};
use super::sizes::SizeGoal;

const MB: u64 = 1_000_000;
const KIB: f64 = 1_024.0;
const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 24 * HOUR_S;

/// A published point: the memory that covers a share of the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoverageGoal {
    /// Share of the requests, in thousandths.
    pub requests_permille: u16,
    /// The most requested targets that take it have these bytes together.
    pub bytes: Bytes,
    /// And they are this share of all targets, 0 to 1.
    pub targets_share: f64,
}

/// Extra targets that draw many requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hot {
    /// Share of all requests that go to them, 0.05 to 0.5.
    pub share: f64,
    /// How many they are, 1 to 1,000; they are equally popular.
    pub targets: u32,
    /// Size of each.
    pub size: Bytes,
}

impl Default for Hot {
    /// A fifth of the requests to five targets of 50 kB.
    fn default() -> Self {
        Self { share: 0.2, targets: 5, size: Bytes(50_000) }
    }
}

/// What a synthetic trace is made by. The public fields can be changed before [`generate`](super::generate).
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Its name; targets are named after it.
    pub name: String,
    /// Distinct targets, 1 to 16,777,216.
    pub targets: u32,
    /// Requests, 1 to 1,000,000,000.
    pub requests: u64,
    /// All targets' sizes together; as the size distribution gives if `None`.
    pub bytes: Option<Bytes>,
    /// How popularity falls with rank.
    pub popularity: Popularity,
    /// Published coverage points, rising.
    pub coverage: Vec<CoverageGoal>,
    /// How size and popularity go together.
    pub sizes: SizeGoal,
    /// From the first request to the last, in seconds.
    pub span_s: u64,
    /// Daily change, if any; the span is then its days, whatever the scale.
    pub drift: Option<Drift>,
    /// Hot targets on top, if any.
    pub hot: Option<Hot>,
    /// Whether every target is asked for at least once.
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

    /// The recipe of that name.
    ///
    /// # Errors
    /// [`SynthError::NoSuchRecipe`].
    pub fn by_name(name: &str) -> Result<Self, SynthError> {
        Ok(match name {
            "rice-like" => rice(),
            "ibm-like" => ibm(),
            "hp-like" => hp(),
            "hp-hours-like" => Self { name: name.to_owned(), drift: None, span_s: 4 * HOUR_S, ..hp() },
            "clarknet-like" => clarknet(),
            "nasa-like" => press(name, 5_486, 46.4, 3_461_613, 18.6, 0.78, 62 * DAY_S),
            "rutgers-like" => press(name, 18_370, 27.3, 498_646, 19.0, 0.79, 25 * DAY_S),
            "forth-like" => press(name, 11_931, 19.3, 400_335, 8.8, 0.81, 25 * DAY_S),
            "combined-like" => press(name, 64_651, 21.6, 12_590_736, 16.2, 0.78, 62 * DAY_S),
            "deepblue-like" => deepblue(),
            "rice+hot" => Self { name: name.to_owned(), hot: Some(Hot::default()), ..rice() },
            _ => return Err(SynthError::NoSuchRecipe(name.chars().take(40).collect())),
        })
    }

    /// A plain trace: Zipf-like popularity, lognormal body and Pareto tail sizes independent of popularity. Targets
    /// too rare for the number of requests do not occur.
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
            hot: None,
            every_target: false,
        }
    }

    /// A recipe through published coverage points.
    fn fitted(name: &str, targets: u32, requests: u64, hottest: f64, coverage: Vec<CoverageGoal>) -> Self {
        let point = |goal: &CoverageGoal| CurvePoint {
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

/// A coverage point whose targets have the trace's mean size.
fn even(requests_permille: u16, bytes_mb: u64, working_set_mb: u64) -> CoverageGoal {
    let targets_share = bytes_mb as f64 / working_set_mb as f64;
    CoverageGoal { requests_permille, bytes: Bytes(bytes_mb * MB), targets_share }
}

fn rice() -> Recipe {
    let coverage = vec![even(970, 560, 1_418), even(980, 705, 1_418), even(990, 927, 1_418)];
    Recipe {
        bytes: Some(Bytes(1_418 * MB)),
        sizes: SizeGoal::Tilt(0.25),
        span_s: 61 * DAY_S,
        ..Recipe::fitted("rice-like", 37_703, 2_500_000, 0.02, coverage)
    }
}

fn ibm() -> Recipe {
    let coverage = vec![even(970, 51, 1_029), even(980, 80, 1_029), even(990, 182, 1_029)];
    Recipe {
        bytes: Some(Bytes(1_029 * MB)),
        sizes: SizeGoal::Tilt(0.25),
        span_s: 84 * HOUR_S,
        ..Recipe::fitted("ibm-like", 38_527, 5_000_000, 0.05, coverage)
    }
}

/// 4.5 % of the files take 90 % of the requests and less than 2 % of the working set; 5 % of the working set take
/// 95.5 % of the requests and 65 % of the bytes. Of the requests of a day less than 3 % go to targets that are new in
/// its core. The hottest share is not published.
fn hp() -> Recipe {
    let working_set = 20_166 * MB / 10;
    let coverage = vec![
        CoverageGoal { requests_permille: 900, bytes: Bytes(working_set * 19 / 1_000), targets_share: 0.045 },
        CoverageGoal { requests_permille: 955, bytes: Bytes(working_set / 20), targets_share: 0.13 },
    ];
    Recipe {
        bytes: Some(Bytes(working_set)),
        sizes: SizeGoal::TransferredShare { point: 1, share: 0.65 },
        drift: Some(Drift { days: 5, fresh_popular: 0.01, fresh_rare: 0.15, steady_top: 20 }),
        span_s: 5 * DAY_S,
        ..Recipe::fitted("hp-like", 69_067, 5_000_000, 0.05, coverage)
    }
}

fn clarknet() -> Recipe {
    // The second week's log: 20,731 and 12,465 of 1,486,327 requests of status 200.
    let top = vec![(1, 20_731.0 / 1_486_327.0), (10, 12_465.0 / 1_486_327.0)];
    Recipe {
        popularity: Popularity::Knee { top, exponent: 0.77 },
        ..press("clarknet-like", 28_864, 14.2, 2_978_121, 9.7, 0.77, 14 * DAY_S)
    }
}

fn press(
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

fn deepblue() -> Recipe {
    Recipe {
        name: "deepblue-like".to_owned(),
        bytes: Some(Bytes(24 * MB)),
        sizes: SizeGoal::Tilt(0.25),
        span_s: 9 * DAY_S,
        every_target: true,
        ..Recipe::zipf(1_200, 1_000_000, 1.0)
    }
}
