//! Sessions of users at a site that offers several services: the workload of the CAP paper (Casalicchio and
//! Colajanni, WWW 2001, section 4.2 and table 1).
//!
//! ```text
//! sessions begin           at random, so many a second (100 to 300)
//! pages per session        inverse Gaussian, mu 3.86, lambda 9.46
//! objects per page         Pareto, shape 1.33, from 1; the base page included
//! think time               Pareto, shape 1.4, from 2 s
//! object sizes             lognormal body (7.640, 1.705), Pareto tail (1.383, from 2,924 bytes)
//! ```
//!
//! Each page is of one kind, drawn by the site's mix: static; lightly dynamic, of which a document may be kept in
//! memory with probability 0.3; the result of a database query (class DB), never kept; secure (CB); or both (DCB).
//!
//! Ours, where the paper leaves it open:
//! * whole numbers are the nearest, at least 1; pages have at most 100 objects (mean 3.2, not 4.0), think times at most
//!   100 s (mean 5.6 s, not 7), sizes at most 2 MiB;
//! * 7 % of the documents have a size of the tail;
//! * the tree holds 8,000 documents, a quarter of them base pages, and each kind's share of the tree is its share of the
//!   pages; popularity is Zipf with exponent 0.8 among base pages and among the others, independent of size. The paper
//!   gives the interval between two hits of a page as Weibull without its parameters;
//! * "40 % of the requests" are 40 % of the pages: a user's request is for a page. All objects of a secure page are
//!   secure. Of a page made from a database only the base is, its embedded objects being static documents;
//! * a query reads 5 to 15 places of the database, each number equally likely;
//! * kinds of pages are independent of one another within a session; session arrivals are a Poisson process.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use larder_core::class::ServiceClass;

use super::SynthError;
use super::draw::{InverseGaussian, Pareto, Ranks, exponential};
use super::rng::Stream;
use super::sizes::quantiles;

/// Largest document.
const BYTES_MAX: f64 = (2_u64 << 20) as f64;
/// Places of the database that a query reads.
const PLACES: Range<u64> = 5..16;
/// Share of the documents that are base pages.
const BASE_SHARE: f64 = 0.25;

/// Something that a site offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteItem {
    /// What a switch decides by. Several items may share one, where a switch does not look closer.
    pub key: String,
    /// Bytes of it.
    pub bytes: u64,
    /// What it needs.
    pub class: ServiceClass,
    /// Whether a server may keep it in memory.
    pub cacheable: bool,
    /// Places of a database that are read for it.
    pub places: u16,
    /// Processor time of making it, in us.
    pub cpu_us: u32,
}

/// The sites of the paper's experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// All documents static.
    PublishingStatic,
    /// All documents lightly dynamic.
    PublishingLight,
    /// 60 % static, 40 % database.
    Transaction,
    /// 30 % static, 30 % lightly dynamic, 40 % secure.
    CommerceA,
    /// 30 % static, 30 % lightly dynamic, 20 % secure, 20 % database.
    CommerceB,
    /// 30 % static, 30 % lightly dynamic, 20 % secure, 10 % database, 10 % both.
    CommerceC,
}

/// Kinds of pages, in the order of [`Site::mix`].
const KINDS: [&str; 5] = ["static", "light", "db", "cb", "dcb"];
const STATIC: usize = 0;
const LIGHT: usize = 1;
const DB: usize = 2;
const DCB: usize = 4;

impl Site {
    /// Every site.
    pub const ALL: [Self; 6] = [
        Self::PublishingStatic,
        Self::PublishingLight,
        Self::Transaction,
        Self::CommerceA,
        Self::CommerceB,
        Self::CommerceC,
    ];

    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PublishingStatic => "publishing-static",
            Self::PublishingLight => "publishing-light",
            Self::Transaction => "transaction",
            Self::CommerceA => "commerce-a",
            Self::CommerceB => "commerce-b",
            Self::CommerceC => "commerce-c",
        }
    }

    /// Shares of the pages in thousandths: static, lightly dynamic, database, secure, secure from a database.
    pub const fn mix(self) -> [u16; 5] {
        match self {
            Self::PublishingStatic => [1_000, 0, 0, 0, 0],
            Self::PublishingLight => [0, 1_000, 0, 0, 0],
            Self::Transaction => [600, 0, 400, 0, 0],
            Self::CommerceA => [300, 300, 0, 400, 0],
            Self::CommerceB => [300, 300, 200, 200, 0],
            Self::CommerceC => [300, 300, 100, 200, 100],
        }
    }

    /// Shares of the pages by class, in thousandths, in the order of [`ServiceClass::ALL`].
    pub const fn classes(self) -> [u16; ServiceClass::COUNT] {
        let [plain, light, db, cb, dcb] = self.mix();
        [plain + light, db, cb, dcb]
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Site {
    type Err = SynthError;

    fn from_str(name: &str) -> Result<Self, SynthError> {
        let found = Self::ALL.into_iter().find(|site| site.name() == name);
        found.ok_or(SynthError::OutOfRange {
            what: "the site",
            range: "publishing-static, publishing-light, transaction, commerce-a, commerce-b or commerce-c",
        })
    }
}

/// What sessions are made by.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecipe {
    /// What is offered.
    pub site: Site,
    /// Sessions that begin in a second, above 0, at most 100,000. The paper's are 100 to 300.
    pub sessions_per_s: f64,
    /// For how long sessions begin, in seconds, above 0, at most 100,000.
    pub span_s: f64,
    /// Documents of the tree, 100 to 10,000,000.
    pub documents: u32,
    /// Exponent of their popularity, 0 to 5.
    pub exponent: f64,
    /// Share of the lightly dynamic documents that may be kept in memory, 0 to 1.
    pub light_cacheable: f64,
    /// Pages per session.
    pub pages: InverseGaussian,
    /// Objects per page, the base page included.
    pub objects: Pareto,
    /// From a page's end to the next page's begin, in seconds.
    pub think_s: Pareto,
}

impl SessionRecipe {
    /// The paper's, with 100 sessions a second for 100 s.
    pub fn cap01(site: Site) -> Self {
        Self {
            site,
            sessions_per_s: 100.0,
            span_s: 100.0,
            documents: 8_000,
            exponent: 0.8,
            light_cacheable: 0.3,
            pages: InverseGaussian { mu: 3.86, lambda: 9.46 },
            objects: Pareto { shape: 1.33, scale: 1.0, most: 100.0 },
            think_s: Pareto { shape: 1.4, scale: 2.0, most: 100.0 },
        }
    }

    /// Makes the sessions. The same recipe and seed give the same on every machine.
    ///
    /// # Errors
    /// A figure out of range.
    pub fn sessions(&self, seed: u64) -> Result<Sessions, SynthError> {
        self.check()?;
        let tree = Tree::new(self, seed);
        let mut sessions =
            Sessions { items: Vec::new(), sessions: Vec::new(), pages: Vec::new(), objects: Vec::new() };
        let (mut arrivals, mut chance) = (Stream::new(seed, "sessions"), Stream::new(seed, "pages"));
        let mut at_s = 0.0;
        loop {
            at_s += exponential(1.0 / self.sessions_per_s, &mut arrivals);
            if at_s >= self.span_s {
                break;
            }
            let from = sessions.pages.len() as u32;
            for _ in 0..whole(self.pages.draw(&mut chance)) {
                self.page(&tree, &mut chance, &mut sessions);
            }
            let pages = from..sessions.pages.len() as u32;
            sessions.sessions.push(Session { at_ns: (at_s * 1e9) as u64, pages });
        }
        sessions.items = tree.items;
        Ok(sessions)
    }

    fn page(&self, tree: &Tree, chance: &mut Stream, sessions: &mut Sessions) {
        let (mut left, mut kind) = (chance.below(1_000), 0);
        while left >= u64::from(self.site.mix()[kind]) {
            left -= u64::from(self.site.mix()[kind]);
            kind += 1;
        }
        let from = sessions.objects.len() as u32;
        sessions.objects.push(tree.draw(&tree.bases[kind], chance));
        let embedded = &tree.embedded[if kind == DB { STATIC } else { kind }];
        for _ in 1..whole(self.objects.draw(chance)) {
            sessions.objects.push(tree.draw(embedded, chance));
        }
        let think_ns = (self.think_s.draw(chance) * 1e9) as u64;
        sessions.pages.push(Page {
            objects: from..sessions.objects.len() as u32,
            secure: kind > DB,
            think_ns,
        });
    }

    fn check(&self) -> Result<(), SynthError> {
        let check = |good: bool, what, range| {
            if good { Ok(()) } else { Err(SynthError::OutOfRange { what, range }) }
        };
        let within = |value: f64, most: f64| value > 0.0 && value <= most;
        check(within(self.sessions_per_s, 1e5), "sessions per second", "above 0 and at most 100,000")?;
        check(within(self.span_s, 1e5), "the span", "above 0 and at most 100,000 s")?;
        check(self.sessions_per_s * self.span_s <= 1e7, "the number of sessions", "at most 10,000,000")?;
        check((100..=10_000_000).contains(&self.documents), "the number of documents", "100 to 10,000,000")?;
        check((0.0..=5.0).contains(&self.exponent), "the Zipf exponent", "0 to 5")?;
        check((0.0..=1.0).contains(&self.light_cacheable), "the cacheable share", "0 to 1")?;
        let gauss = within(self.pages.mu, 100.0) && within(self.pages.lambda, 1e6);
        check(
            gauss,
            "pages per session",
            "mu above 0 and at most 100, lambda above 0 and at most 1,000,000",
        )?;
        for (pareto, what) in [(self.objects, "objects per page"), (self.think_s, "the think time")] {
            let good = within(pareto.shape, 100.0) && within(pareto.scale, 1e4) && pareto.most > pareto.scale;
            check(good && pareto.most <= 1e4, what, "a Pareto distribution within 0 to 10,000")?;
        }
        Ok(())
    }
}

/// The nearest whole number, at least 1.
pub(super) fn whole(value: f64) -> u64 {
    (value + 0.5).max(1.0) as u64
}

/// Documents and query results by kind of page, most popular first.
struct Tree {
    items: Vec<SiteItem>,
    bases: Vec<(Range<u32>, Ranks)>,
    embedded: Vec<(Range<u32>, Ranks)>,
}

impl Tree {
    fn new(recipe: &SessionRecipe, seed: u64) -> Self {
        let mut tree = Self { items: Vec::new(), bases: Vec::new(), embedded: Vec::new() };
        let mut chance = Stream::new(seed, "tree");
        for (kind, share) in recipe.site.mix().into_iter().enumerate() {
            let count = f64::from(recipe.documents) * f64::from(share) / 1_000.0;
            let bases = (count * BASE_SHARE).round() as usize;
            // Embedded objects of database pages are static documents: those of its share join the static ones.
            let others = match kind {
                STATIC => {
                    (count + f64::from(recipe.documents) * f64::from(recipe.site.mix()[DB]) / 1_000.0)
                        * (1.0 - BASE_SHARE)
                }
                DB => 0.0,
                _ => count * (1.0 - BASE_SHARE),
            };
            let base = tree.add(recipe, kind, "page", bases, &mut chance);
            let embedded = tree.add(recipe, kind, "object", others.round() as usize, &mut chance);
            tree.bases.push(base);
            tree.embedded.push(embedded);
        }
        tree
    }

    fn add(
        &mut self,
        recipe: &SessionRecipe,
        kind: usize,
        what: &str,
        count: usize,
        chance: &mut Stream,
    ) -> (Range<u32>, Ranks) {
        let from = self.items.len() as u32;
        let mut sizes = quantiles(count);
        chance.shuffle(&mut sizes);
        let class =
            [ServiceClass::N, ServiceClass::N, ServiceClass::Db, ServiceClass::Cb, ServiceClass::Dcb][kind];
        for (number, size) in sizes.into_iter().enumerate() {
            let queried = what == "page" && matches!(kind, DB | DCB);
            self.items.push(SiteItem {
                key: format!("/{}/{what}/{number}", KINDS[kind]),
                bytes: size.clamp(1.0, BYTES_MAX) as u64,
                class: if kind == DCB && !queried { ServiceClass::Cb } else { class },
                cacheable: !queried && (kind != LIGHT || chance.unit() < recipe.light_cacheable),
                places: if queried {
                    (PLACES.start + chance.below(PLACES.end - PLACES.start)) as u16
                } else {
                    0
                },
                cpu_us: 0,
            });
        }
        (from..self.items.len() as u32, Ranks::new(count, recipe.exponent))
    }

    fn draw(&self, (range, ranks): &(Range<u32>, Ranks), chance: &mut Stream) -> u32 {
        range.start + ranks.draw(chance) as u32
    }
}

/// A user's visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// When it begins, in ns.
    pub at_ns: u64,
    /// Its pages, one after another: a range of [`Sessions::pages`].
    pub pages: Range<u32>,
}

/// A request for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Base page first, then what it embeds: a range of [`Sessions::objects`].
    pub objects: Range<u32>,
    /// Whether it comes over an encrypted channel.
    pub secure: bool,
    /// How long the user then thinks before the next page, in ns.
    pub think_ns: u64,
}

/// All sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// What the site offers.
    pub items: Vec<SiteItem>,
    /// By their begin.
    pub sessions: Vec<Session>,
    /// The pages of all sessions.
    pub pages: Vec<Page>,
    /// The objects of all pages: indexes into `items`.
    pub objects: Vec<u32>,
}

impl Sessions {
    /// A page's objects.
    pub fn objects_of(&self, page: &Page) -> &[u32] {
        &self.objects[page.objects.start as usize..page.objects.end as usize]
    }

    /// Bytes of all documents; results of queries are none.
    pub fn tree_bytes(&self) -> u64 {
        self.items.iter().filter(|item| item.places == 0).map(|item| item.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(site: Site) -> Sessions {
        SessionRecipe::cap01(site).sessions(1).expect("the recipe is in range")
    }

    #[test]
    fn sessions_have_the_papers_figures() {
        let sessions = made(Site::PublishingStatic);
        let mean = |sum: f64, count: usize| sum / count as f64;
        // 10,000 expected; six standard deviations are 600.
        assert!(sessions.sessions.len().abs_diff(10_000) < 600);
        assert!(sessions.sessions.is_sorted_by_key(|session| session.at_ns));
        let pages = mean(sessions.pages.len() as f64, sessions.sessions.len());
        assert!((pages - 3.86).abs() < 0.08, "{pages}");
        // The nearest whole number of a Pareto draw within 1 to 100, at least 1: 1 + sum of P(X >= n + 1/2).
        let (recipe, shape) = (SessionRecipe::cap01(Site::PublishingStatic), 1.33_f64);
        let above = |x: f64| (x.powf(-shape) - 100_f64.powf(-shape)) / (1.0 - 100_f64.powf(-shape));
        let expected = 1.0 + (1..100).map(|n| above(f64::from(n) + 0.5)).sum::<f64>();
        let objects = mean(sessions.objects.len() as f64, sessions.pages.len());
        assert!((objects - expected).abs() < 0.1, "{objects} for {expected}");
        let think =
            mean(sessions.pages.iter().map(|page| page.think_ns as f64 / 1e9).sum(), sessions.pages.len());
        assert!((think / recipe.think_s.mean() - 1.0).abs() < 0.03, "{think}");
        let mut sizes: Vec<u64> = sessions.items.iter().map(|item| item.bytes).collect();
        sizes.sort_unstable();
        // The body's median is e^7.640 = 2,080 bytes; the tail lies above 2,924 and moves it up by 7 / 93 of a half.
        assert!((2_080..2_500).contains(&sizes[sizes.len() / 2]), "{}", sizes[sizes.len() / 2]);
        assert_eq!(sizes.len(), 8_000);
    }

    #[test]
    fn pages_are_mixed_as_the_site_says() {
        for site in Site::ALL {
            let sessions = made(site);
            let mut classes = [0.0; ServiceClass::COUNT];
            for page in &sessions.pages {
                let objects = sessions.objects_of(page);
                let base = &sessions.items[objects[0] as usize];
                classes[base.class.index()] += 1.0 / sessions.pages.len() as f64;
                let encrypted = |item: &u32| {
                    matches!(sessions.items[*item as usize].class, ServiceClass::Cb | ServiceClass::Dcb)
                };
                assert!(objects.iter().all(|item| encrypted(item) == page.secure), "{site}");
                let queried = matches!(base.class, ServiceClass::Db | ServiceClass::Dcb);
                assert_eq!(
                    (base.places > 0, !base.cacheable && base.places > 0),
                    (queried, queried),
                    "{site}"
                );
            }
            for (got, want) in classes.into_iter().zip(site.classes()) {
                assert!((got - f64::from(want) / 1_000.0).abs() < 0.01, "{site}: {classes:?}");
            }
            assert_eq!(site.name().parse(), Ok(site));
        }
        assert!("shop".parse::<Site>().is_err());
    }

    #[test]
    fn lightly_dynamic_documents_are_cacheable_with_their_probability() {
        let sessions = made(Site::PublishingLight);
        let cacheable = sessions.items.iter().filter(|item| item.cacheable).count() as f64;
        // 2,400 expected; six standard deviations are 246.
        assert!((cacheable - 2_400.0).abs() < 246.0, "{cacheable}");
        assert!(made(Site::PublishingStatic).items.iter().all(|item| item.cacheable));
    }

    #[test]
    fn the_same_seed_gives_the_same_sessions_on_every_machine() {
        let sessions = made(Site::CommerceC);
        assert_eq!(sessions, made(Site::CommerceC));
        let mut text = String::new();
        for page in &sessions.pages {
            let objects = sessions.objects_of(page);
            text.push_str(&format!("{} {} {:?}\n", page.think_ns, page.secure, objects));
        }
        insta::assert_snapshot!(
            "sessions_commerce_c",
            larder_core::TargetId::of(text.as_bytes()).to_string()
        );
    }

    #[test]
    fn figures_out_of_range_are_named() {
        let recipe = SessionRecipe::cap01(Site::CommerceA);
        let out = |recipe: SessionRecipe| recipe.sessions(1).expect_err("out of range").to_string();
        assert!(out(SessionRecipe { sessions_per_s: 0.0, ..recipe.clone() }).contains("sessions per second"));
        assert!(out(SessionRecipe { span_s: f64::NAN, ..recipe.clone() }).contains("the span"));
        assert!(out(SessionRecipe { documents: 5, ..recipe.clone() }).contains("documents"));
        let endless = Pareto { most: f64::INFINITY, ..recipe.objects };
        assert!(out(SessionRecipe { objects: endless, ..recipe }).contains("objects per page"));
    }
}
