//! Mixes of static documents and CGI programs. Clients request pages and think between them: the workloads of
//! the prototype in the CAP paper (Casalicchio and Colajanni, WWW 2001, section 5).
//!
//! The clients of the paper are those of WebStone 2.1 with think times, embedded objects and Pareto sizes.
//! There are three scenarios:
//!
//! | mix | static | CPU-light | CPU-intensive | CPU and disk |
//! |---|---|---|---|---|
//! | `static` | 100 % | | | |
//! | `light` | 80 % | 20 % | | |
//! | `intensive` | 80 % | 10 % | 6 % | 4 % |
//!
//! As in the paper, shares are shares of the requests: the mix determines every object of a page, base page
//! or embedded. With [`Shares::Pages`] the mix determines only base pages, and embedded objects are static,
//! as in [`super::sessions`].
//!
//! The paper leaves some values open. We chose:
//! - The `light` scenario has 20 % CPU-light requests. The paper prints the numbers only for the dynamic
//!   scenarios together.
//! - Sizes have the Pareto distribution of the tail in its simulation (1.383, from 2,924 bytes), up to 2 MiB,
//!   with a mean of 9.8 kB. Think times and objects per page are those of its simulation.
//! - The tree has 2,000 documents with Zipf popularity of exponent 0.8.
//! - "Three CGI services" are one URL each, with replies of 4 KiB. [`MixRecipe::programs`] sets the number of
//!   URLs.
//! - Service demands are 5 ms of processor time (light), 50 ms (intensive), and 30 ms with 10 disk reads (CPU
//!   and disk). They matter only for a simulator. A live program takes its real time.
//!
//! A mix is a list of [`Sessions`] with one page each, which all begin at time zero. A client of a closed
//! loop takes the next one after its think time.

use core::fmt;
use core::str::FromStr;

use larder_core::class::ServiceClass;

use super::SynthError;
use super::draw::{Pareto, Ranks};
use super::rng::Stream;
use super::sessions::{Page, Session, SessionRecipe, Sessions, Site, SiteItem, round_to_count};

/// The first part of every key, in the order of [`Mix::shares`].
const KINDS: [&str; 4] = ["static", "light", "cpu", "disk"];
/// Size of the reply of a program in bytes.
const REPLY_BYTES: u64 = 4_096;
/// Size of the largest document in bytes.
const BYTES_MAX: f64 = (2_u64 << 20) as f64;

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mix {
    /// Documents only.
    Static,
    /// A fifth of the requests runs programs with a low demand.
    Light,
    /// A fifth of the requests runs programs, half of them with a high demand.
    Intensive,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Self; 3] = [Self::Static, Self::Light, Self::Intensive];

    /// Returns the name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Light => "light",
            Self::Intensive => "intensive",
        }
    }

    /// Returns the shares in thousandths: static, CPU-light, CPU-intensive, CPU and disk.
    pub const fn shares(self) -> [u16; 4] {
        match self {
            Self::Static => [1_000, 0, 0, 0],
            Self::Light => [800, 200, 0, 0],
            Self::Intensive => [800, 100, 60, 40],
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mix {
    type Err = SynthError;

    fn from_str(name: &str) -> Result<Self, SynthError> {
        let found = Self::ALL.into_iter().find(|mix| mix.name() == name);
        found.ok_or(SynthError::OutOfRange { what: "the mix", range: "static, light or intensive" })
    }
}

/// The objects to which the shares of a mix apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shares {
    /// Requests: the mix determines each object of a page.
    #[default]
    Requests,
    /// Pages: the mix determines each base page. Embedded objects are static.
    Pages,
}

/// The parameters of a mix.
#[derive(Clone, Debug, PartialEq)]
pub struct MixRecipe {
    /// The scenario.
    pub mix: Mix,
    /// The objects to which the shares of the scenario apply.
    pub of: Shares,
    /// Number of pages, 1 to 10,000,000. Clients start again after the last page.
    pub pages: u32,
    /// Number of documents, 1 to 10,000,000.
    pub documents: u32,
    /// Zipf exponent of the popularity of documents, 0 to 5.
    pub exponent: f64,
    /// Distribution of document sizes in bytes.
    pub bytes: Pareto,
    /// Number of URLs of each kind of program, 1 to 1,000,000. They are equally likely.
    pub programs: u32,
    /// Distribution of objects per page, including the base page.
    pub objects: Pareto,
    /// Distribution of the time from the end of a page to the start of the next page, in seconds.
    pub think_s: Pareto,
}

impl MixRecipe {
    /// Returns the parameters of the paper, with 20,000 pages.
    pub fn cap01(mix: Mix) -> Self {
        let SessionRecipe { objects, think_s, .. } = SessionRecipe::cap01(Site::PublishingStatic);
        Self {
            mix,
            of: Shares::Requests,
            pages: 20_000,
            documents: 2_000,
            exponent: 0.8,
            bytes: Pareto { shape: 1.383, scale: 2_924.0, most: BYTES_MAX },
            programs: 1,
            objects,
            think_s,
        }
    }

    /// Generates the pages. The same recipe and seed give the same pages on every machine.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn sessions(&self, seed: u64) -> Result<Sessions, SynthError> {
        self.check_ranges()?;
        let (items, documents) = (self.make_items(seed), self.documents as usize);
        let ranks = Ranks::new(documents, self.exponent);
        let mut random = Stream::new(seed, "mix");
        let mut made = Sessions { items, sessions: Vec::new(), pages: Vec::new(), objects: Vec::new() };
        for number in 0..self.pages {
            let from = made.objects.len() as u32;
            for place in 0..round_to_count(self.objects.draw(&mut random)) {
                let drawn = place == 0 || self.of == Shares::Requests;
                let kind = if drawn { self.draw_kind(&mut random) } else { 0 };
                made.objects.push(match kind {
                    0 => ranks.draw(&mut random) as u32,
                    kind => {
                        let first = self.documents + (kind as u32 - 1) * self.programs;
                        first + random.below(u64::from(self.programs)) as u32
                    }
                });
            }
            let think_ns = (self.think_s.draw(&mut random) * 1e9) as u64;
            made.pages.push(Page { objects: from..made.objects.len() as u32, secure: false, think_ns });
            made.sessions.push(Session { at_ns: 0, pages: number..number + 1 });
        }
        Ok(made)
    }

    /// Draws the kind of an object.
    fn draw_kind(&self, random: &mut Stream) -> usize {
        let (mut left, mut kind) = (random.below(1_000), 0);
        while left >= u64::from(self.mix.shares()[kind]) {
            left -= u64::from(self.mix.shares()[kind]);
            kind += 1;
        }
        kind
    }

    /// Returns the documents, most popular first, followed by the programs of each kind.
    fn make_items(&self, seed: u64) -> Vec<SiteItem> {
        let count = f64::from(self.documents);
        let mut sizes: Vec<f64> =
            (0..self.documents).map(|i| self.bytes.quantile((f64::from(i) + 0.5) / count)).collect();
        Stream::new(seed, "mix-sizes").shuffle(&mut sizes);
        let document = |(number, bytes): (usize, f64)| SiteItem {
            key: format!("/{}/{number}", KINDS[0]),
            bytes: bytes.max(1.0) as u64,
            class: ServiceClass::N,
            cacheable: true,
            places: 0,
            cpu_us: 0,
        };
        let mut items: Vec<SiteItem> = sizes.into_iter().enumerate().map(document).collect();
        for (kind, class, places, cpu_us) in [
            (1, ServiceClass::N, 0, 5_000),
            (2, ServiceClass::Cb, 0, 50_000),
            (3, ServiceClass::Dcb, 10, 30_000),
        ] {
            items.extend((0..self.programs).map(|number| SiteItem {
                key: format!("/{}/{number}", KINDS[kind]),
                bytes: REPLY_BYTES,
                class,
                cacheable: false,
                places,
                cpu_us,
            }));
        }
        items
    }

    /// Checks the ranges of the parameters.
    fn check_ranges(&self) -> Result<(), SynthError> {
        let check = |good: bool, what, range| {
            if good { Ok(()) } else { Err(SynthError::OutOfRange { what, range }) }
        };
        check((1..=10_000_000).contains(&self.pages), "the number of pages", "1 to 10,000,000")?;
        check((1..=10_000_000).contains(&self.documents), "the number of documents", "1 to 10,000,000")?;
        check((1..=1_000_000).contains(&self.programs), "the number of programs", "1 to 1,000,000")?;
        check((0.0..=5.0).contains(&self.exponent), "the Zipf exponent", "0 to 5")?;
        for (pareto, what, most) in [
            (self.bytes, "sizes", 1e12),
            (self.objects, "objects per page", 1e4),
            (self.think_s, "the think time", 1e4),
        ] {
            let good = pareto.shape > 0.0
                && pareto.shape <= 100.0
                && pareto.scale > 0.0
                && pareto.most > pareto.scale
                && pareto.most <= most;
            check(good, what, "a Pareto distribution within 0 to 10,000 (of bytes: 0 to 10^12)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(made: &Sessions, kind: &str) -> f64 {
        let of_kind = |item: &&u32| made.items[**item as usize].key.starts_with(kind);
        made.objects.iter().filter(of_kind).count() as f64 / made.objects.len() as f64
    }

    #[test]
    fn requests_have_the_papers_shares() {
        for mix in Mix::ALL {
            let made = MixRecipe::cap01(mix).sessions(1).expect("in range");
            for (kind, permille) in KINDS.into_iter().zip(mix.shares()) {
                let (got, want) = (share(&made, &format!("/{kind}/")), f64::from(permille) / 1_000.0);
                // There are about 64,000 requests: six standard deviations are below 0.01.
                assert!((got - want).abs() < 0.01, "{mix} {kind}: {got}");
            }
            assert_eq!(mix.name().parse(), Ok(mix));
            assert_eq!(mix.shares().iter().sum::<u16>(), 1_000);
        }
    }

    #[test]
    fn page_shares_make_only_base_pages_programs() {
        let recipe = MixRecipe { of: Shares::Pages, ..MixRecipe::cap01(Mix::Intensive) };
        let made = recipe.sessions(1).expect("in range");
        let is_static = |item: u32| item < recipe.documents;
        let bases = made.pages.iter().filter(|page| is_static(made.objects_of(page)[0])).count();
        assert!((bases as f64 / made.pages.len() as f64 - 0.8).abs() < 0.017);
        assert!(made.pages.iter().all(|page| made.objects_of(page)[1..].iter().all(|item| is_static(*item))));
    }

    #[test]
    fn sizes_and_think_times_are_pareto() {
        let recipe = MixRecipe::cap01(Mix::Static);
        let made = recipe.sessions(3).expect("in range");
        let mean = made.items[..2_000].iter().map(|item| item.bytes as f64).sum::<f64>() / 2_000.0;
        // The quantiles leave out the last half step of the tail.
        assert!((mean / recipe.bytes.mean() - 1.0).abs() < 0.05, "{mean} for {}", recipe.bytes.mean());
        let mut sizes: Vec<u64> = made.items[..2_000].iter().map(|item| item.bytes).collect();
        sizes.sort_unstable();
        let within = 1.0 - (2_924.0_f64 / BYTES_MAX).powf(1.383);
        let median = 2_924.0 * (1.0 - 0.5 * within).powf(-1.0 / 1.383);
        assert!((sizes[1_000] as f64 / median - 1.0).abs() < 0.01);
        let think = made.pages.iter().map(|page| page.think_ns as f64 / 1e9).sum::<f64>() / 20_000.0;
        assert!((think / recipe.think_s.mean() - 1.0).abs() < 0.05, "{think}");
    }

    #[test]
    fn a_seed_is_deterministic_and_bad_figures_are_errors() {
        let recipe = MixRecipe { pages: 500, programs: 7, ..MixRecipe::cap01(Mix::Intensive) };
        assert_eq!(recipe.sessions(1), recipe.sessions(1));
        assert_ne!(recipe.sessions(1), recipe.sessions(2));
        let bad = |recipe: MixRecipe| recipe.sessions(1).expect_err("out of range").to_string();
        assert!(bad(MixRecipe { pages: 0, ..recipe.clone() }).contains("number of pages"));
        assert!(bad(MixRecipe { exponent: f64::NAN, ..recipe.clone() }).contains("Zipf"));
        let endless = Pareto { most: f64::INFINITY, ..recipe.think_s };
        assert!(bad(MixRecipe { think_s: endless, ..recipe }).contains("think time"));
        assert!("heavy".parse::<Mix>().expect_err("no mix").to_string().contains("intensive"));
    }
}
