//! Users who repeat recorded profiles: the four workloads of the HACC paper (Zhang, Barrientos, Chen and
//! Seltzer, USENIX Windows NT Symposium 1999, table 1 and section 4).
//!
//! A profile is a sequence of requests with a pause after each. Every simulated user repeats one profile, as
//! DBench in the paper does. The profiles of the paper are from logs that are not public. These profiles are
//! generated, with the published figures where there are some:
//!
//! | workload | published | ours |
//! |---|---|---|
//! | `baseline` | 367 files, 100 MB; 40 % of 5 to 8 KB, the rest to 1.4 MB; each equally likely; 2 s between requests | the rest follows a power law whose exponent gives the sum |
//! | `fas` | 5,715 files, 80 MB, skewed | Zipf with exponent 0.9, sizes of the distribution of [`Recipe`](super::Recipe) scaled to the sum, pauses as in `baseline` |
//! | `domino` | a database of 129 MB, results of about 6 KB, pauses of 29.8 s; OpenDocument about 200 ms, OpenView 0.5 to 2.0 s | 84 views of 256 to 768 KB, ten documents of 96 KB in each (with the views 123 MB); one request in five opens a view; views by Zipf with exponent 0.8, documents equally likely; processor time 30 ms and 100 ms, which with 12 and 32 to 96 pages from disk gives the unloaded times, and the published 20 to 50 % of the processors |
//! | `asp` | 4,495 files, 54 MB, 5 % of the requests run a script; everything fits into 64 MB | as `fas`; 30 scripts of 8 KB with 250 ms of processor time each, which with 3 ms per file gives the published processor shares |
//!
//! KB and MB are 1,024 and 1,024^2 bytes. There are 500 profiles of 40 requests. The paper has about 500 for
//! Domino. The pauses of logs are exponential, with the same mean.

use larder_core::class::ServiceClass;

use super::SynthError;
use super::draw::{Ranks, exponential};
use super::rng::Stream;
use super::sessions::SiteItem;
use super::sizes::quantiles;

const KIB: f64 = 1_024.0;
const MIB: f64 = 1_048_576.0;
/// Number of profiles.
const PROFILES: usize = 500;
/// Requests of a profile.
const REQUESTS: usize = 40;

const VIEWS: usize = 84;
const DOCUMENTS_PER_VIEW: usize = 10;
const DOCUMENT_BYTES: u64 = 96 << 10;
/// Share of the requests of `domino` that open a view, 0 to 1.
const OPEN_VIEW_SHARE: f64 = 0.2;
const SCRIPTS: usize = 30;
/// Share of the requests of `asp` that run a script, 0 to 1.
const SCRIPT_SHARE: f64 = 0.05;

/// A workload of the HACC paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfileKind {
    /// Static files, all equally likely.
    Baseline,
    /// Static files of a university, with skewed popularity.
    Fas,
    /// Documents and views of a database.
    Domino,
    /// Static files and scripts.
    Asp,
}

impl ProfileKind {
    /// All workloads.
    pub const ALL: [Self; 4] = [Self::Baseline, Self::Fas, Self::Domino, Self::Asp];

    /// Returns the name of the workload in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Fas => "fas",
            Self::Domino => "domino",
            Self::Asp => "asp",
        }
    }

    /// Returns the mean pause between two requests of a user, in seconds.
    pub const fn pause_s(self) -> f64 {
        match self {
            Self::Domino => 29.8,
            Self::Baseline | Self::Fas | Self::Asp => 2.0,
        }
    }
}

impl core::str::FromStr for ProfileKind {
    type Err = SynthError;

    fn from_str(name: &str) -> Result<Self, SynthError> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or(SynthError::OutOfRange { what: "the workload", range: "baseline, fas, domino or asp" })
    }
}

/// A request of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The item, as an index into [`Profiles::items`].
    pub item: u32,
    /// Pause from the end of the reply to the next request, in ns.
    pub pause_ns: u64,
}

/// The items and the profiles of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiles {
    /// The items of the site.
    pub items: Vec<SiteItem>,
    /// The profiles. None is empty.
    pub profiles: Vec<Vec<Visit>>,
}

/// A function that draws the index of the next item.
type ItemSampler = Box<dyn Fn(&mut Stream) -> usize>;

/// Generates a workload. The same seed gives the same workload on every machine.
pub fn profiles(kind: ProfileKind, seed: u64) -> Profiles {
    let mut sizes = Stream::new(seed, "profile-sizes");
    let mut random = Stream::new(seed, "profiles");
    let (items, draw): (Vec<SiteItem>, ItemSampler) = match kind {
        ProfileKind::Baseline => {
            let ranks = Ranks::new(367, 0.0);
            (make_files(baseline_sizes(), &mut sizes), Box::new(move |random| ranks.draw(random)))
        }
        ProfileKind::Fas => {
            let ranks = Ranks::new(5_715, 0.9);
            (
                make_files(scaled_sizes(5_715, 80.0 * MIB), &mut sizes),
                Box::new(move |random| ranks.draw(random)),
            )
        }
        ProfileKind::Domino => {
            let views = Ranks::new(VIEWS, 0.8);
            let draw = move |random: &mut Stream| {
                let view = views.draw(random) * (DOCUMENTS_PER_VIEW + 1);
                let opens = random.unit() < OPEN_VIEW_SHARE;
                view + if opens { 0 } else { 1 + random.below(DOCUMENTS_PER_VIEW as u64) as usize }
            };
            (make_database(&mut sizes), Box::new(draw))
        }
        ProfileKind::Asp => {
            let ranks = Ranks::new(4_495 - SCRIPTS, 0.9);
            let scripts = Ranks::new(SCRIPTS, 0.9);
            let mut items: Vec<SiteItem> = (0..SCRIPTS).map(make_script).collect();
            items.extend(make_files(scaled_sizes(4_495 - SCRIPTS, 54.0 * MIB), &mut sizes));
            let draw = move |random: &mut Stream| {
                if random.unit() < SCRIPT_SHARE { scripts.draw(random) } else { SCRIPTS + ranks.draw(random) }
            };
            (items, Box::new(draw))
        }
    };
    let mut visit = || {
        let item = draw(&mut random) as u32;
        let pause_s = match kind {
            ProfileKind::Baseline | ProfileKind::Fas => kind.pause_s(),
            ProfileKind::Domino | ProfileKind::Asp => exponential(kind.pause_s(), &mut random),
        };
        Visit { item, pause_ns: (pause_s * 1e9) as u64 }
    };
    let profiles = (0..PROFILES).map(|_| (0..REQUESTS).map(|_| visit()).collect()).collect();
    Profiles { items, profiles }
}

/// Returns files with these sizes, in random order of popularity.
fn make_files(mut sizes: Vec<f64>, random: &mut Stream) -> Vec<SiteItem> {
    random.shuffle(&mut sizes);
    let file = |(number, bytes): (usize, f64)| SiteItem {
        key: format!("/dir{}/file{number}", number % 20),
        bytes: bytes.max(1.0) as u64,
        class: ServiceClass::N,
        cacheable: true,
        places: 0,
        cpu_us: 0,
    };
    sizes.into_iter().enumerate().map(file).collect()
}

/// Returns the file sizes of `baseline`. Two in five are evenly spaced between 5 and 8 KB. The rest are
/// between 8 KB and 1.4 MB, with a density proportional to x^-b. The exponent b is chosen so that the sum is
/// 100 MB.
fn baseline_sizes() -> Vec<f64> {
    let small = 147;
    let even = |i: usize, n: usize| (i as f64 + 0.5) / n as f64;
    let sizes = |b: f64| -> Vec<f64> {
        let (low, high, power) = (8.0 * KIB, 1.4 * MIB, 1.0 - b);
        let (from, to) = (libm::pow(low, power), libm::pow(high, power));
        let large = |i: usize| libm::pow(from + even(i, 367 - small) * (to - from), 1.0 / power);
        let of_small = |i: usize| (5.0 + 3.0 * even(i, small)) * KIB;
        (0..small).map(of_small).chain((0..367 - small).map(large)).collect()
    };
    let (mut low, mut high) = (0.0, 0.99);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        // A larger exponent gives a smaller sum.
        if sizes(middle).iter().sum::<f64>() > 100.0 * MIB { low = middle } else { high = middle }
    }
    sizes((low + high) / 2.0)
}

/// Returns sizes with the distribution of logs, scaled to the sum `bytes`.
fn scaled_sizes(count: usize, bytes: f64) -> Vec<f64> {
    let sizes = quantiles(count);
    let factor = bytes / sizes.iter().sum::<f64>();
    sizes.into_iter().map(|size| size * factor).collect()
}

/// Returns the views, each followed by its documents. A switch distinguishes views and actions, but not
/// documents (HACC, section 3.1).
fn make_database(random: &mut Stream) -> Vec<SiteItem> {
    let mut items = Vec::new();
    for view in 0..VIEWS {
        let opened = |action: &str, bytes: u64, cpu_us| SiteItem {
            key: format!("/site.nsf/view{view}?{action}"),
            bytes,
            class: ServiceClass::Dcb,
            cacheable: true,
            places: (bytes / (8 << 10)) as u16,
            cpu_us,
        };
        items.push(opened("OpenView", (256 + random.below(513)) << 10, 100_000));
        items.extend((0..DOCUMENTS_PER_VIEW).map(|_| opened("OpenDocument", DOCUMENT_BYTES, 30_000)));
    }
    items
}

/// Returns a script of `asp`.
fn make_script(number: usize) -> SiteItem {
    SiteItem {
        key: format!("/script{number}.asp"),
        bytes: 8 << 10,
        class: ServiceClass::Cb,
        cacheable: true,
        places: 0,
        cpu_us: 250_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(items: &[SiteItem]) -> f64 {
        items.iter().map(|item| item.bytes).sum::<u64>() as f64 / MIB
    }

    #[test]
    fn sites_have_the_published_figures() {
        for (kind, items, bytes) in [
            (ProfileKind::Baseline, 367, 100.0),
            (ProfileKind::Fas, 5_715, 80.0),
            (ProfileKind::Domino, 924, 123.0),
            (ProfileKind::Asp, 4_495, 54.3),
        ] {
            let made = profiles(kind, 1);
            assert_eq!(made.items.len(), items, "{kind:?}");
            assert!((mib(&made.items) / bytes - 1.0).abs() < 0.05, "{kind:?}: {}", mib(&made.items));
            assert_eq!(made.profiles.len(), 500);
            let visits: Vec<&Visit> = made.profiles.iter().flatten().collect();
            let pause =
                visits.iter().map(|visit| visit.pause_ns as f64 / 1e9).sum::<f64>() / visits.len() as f64;
            assert!((pause / kind.pause_s() - 1.0).abs() < 0.03, "{kind:?}: {pause}");
            assert_eq!(made, profiles(kind, 1));
            assert_ne!(made, profiles(kind, 2));
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let baseline = profiles(ProfileKind::Baseline, 1).items;
        let small = baseline.iter().filter(|item| (5 << 10..8 << 10).contains(&item.bytes)).count();
        assert_eq!((small as f64 / 3.67).round() as u32, 40);
        assert!(baseline.iter().all(|item| item.bytes <= (1.4 * MIB) as u64));
    }

    #[test]
    fn request_kinds_have_their_shares() {
        let share = |kind, wanted: fn(&SiteItem) -> bool| {
            let made = profiles(kind, 1);
            let visits: Vec<&Visit> = made.profiles.iter().flatten().collect();
            let count = visits.iter().filter(|visit| wanted(&made.items[visit.item as usize])).count();
            count as f64 / visits.len() as f64
        };
        // There are 20,000 draws. Six standard deviations are 0.017 and 0.009.
        assert!((share(ProfileKind::Domino, |item| item.cpu_us == 100_000) - 0.2).abs() < 0.017);
        assert!((share(ProfileKind::Asp, |item| item.class == ServiceClass::Cb) - 0.05).abs() < 0.009);
        assert!(share(ProfileKind::Fas, |item| item.key == "/dir0/file0") > 0.03);
    }
}
