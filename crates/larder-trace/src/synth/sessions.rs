//! Sessions of users at a site with several services: the workload of the CAP paper (Casalicchio and
//! Colajanni, WWW 2001, section 4.2 and table 1).
//!
//! ```text
//! sessions begin           at random times, 100 to 300 per second
//! pages per session        inverse Gaussian, mu 3.86, lambda 9.46
//! objects per page         Pareto, shape 1.33, from 1; the base page included
//! think time               Pareto, shape 1.4, from 2 s
//! object sizes             lognormal body (7.640, 1.705), Pareto tail (1.383, from 2,924 bytes)
//! ```
//!
//! Each page has one kind, which is drawn by the mix of the site. A page is one of:
//! - static;
//! - lightly dynamic: such a document is cacheable with probability 0.3;
//! - a result of a database query (class DB), never cacheable;
//! - secure (class CB);
//! - both a query result and secure (class DCB).
//!
//! The paper leaves some values open. We chose:
//! - Integers are rounded to the nearest and are at least 1. Pages have at most 100 objects (mean 3.2, not
//!   4.0). Think times are at most 100 s (mean 5.6 s, not 7). Sizes are at most 2 MiB.
//! - 7 % of the documents have a size of the tail.
//! - The tree has 8,000 documents, a quarter of them base pages. The share of each kind in the tree is its
//!   share of the pages.
//! - Popularity is Zipf with exponent 0.8 among base pages and among the others, independent of size. The
//!   paper gives the interval between two hits of a page as Weibull, without parameters.
//! - "40 % of the requests" are 40 % of the pages, because a request of a user is for a page. All objects of
//!   a secure page are secure. A page from a database has a base page from the database and static embedded
//!   objects.
//! - A query reads 5 to 15 places of the database, each number equally likely.
//! - The kinds of the pages of a session are independent. Session arrivals are a Poisson process.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use larder_core::class::ServiceClass;

use super::SynthError;
use super::draw::{InverseGaussian, Pareto, Ranks, exponential};
use super::rng::Stream;
use super::sizes::quantiles;

/// Size of the largest document in bytes.
const BYTES_MAX: f64 = (2_u64 << 20) as f64;
/// Number of database places that a query reads.
const PLACES: Range<u64> = 5..16;
/// Share of the documents that are base pages.
const BASE_SHARE: f64 = 0.25;

/// A document, a query result or a program of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteItem {
    /// The key that a switch uses to choose a server. Several items can share a key if the switch does not
    /// distinguish them.
    pub key: String,
    /// Size in bytes.
    pub bytes: u64,
    /// The services that the item needs.
    pub class: ServiceClass,
    /// Whether a server may keep the item in memory.
    pub cacheable: bool,
    /// Number of database places that a server reads to make the item.
    pub places: u16,
    /// Processor time to make the item, in us.
    pub cpu_us: u32,
}

/// A site of the experiments of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// All documents are static.
    PublishingStatic,
    /// All documents are lightly dynamic.
    PublishingLight,
    /// 60 % static and 40 % database.
    Transaction,
    /// 30 % static, 30 % lightly dynamic and 40 % secure.
    CommerceA,
    /// 30 % static, 30 % lightly dynamic, 20 % secure and 20 % database.
    CommerceB,
    /// 30 % static, 30 % lightly dynamic, 20 % secure, 10 % database and 10 % both.
    CommerceC,
}

/// The kinds of pages, in the order of [`Site::mix`].
const KINDS: [&str; 5] = ["static", "light", "db", "cb", "dcb"];
const STATIC: usize = 0;
const LIGHT: usize = 1;
const DB: usize = 2;
const DCB: usize = 4;

impl Site {
    /// All sites.
    pub const ALL: [Self; 6] = [
        Self::PublishingStatic,
        Self::PublishingLight,
        Self::Transaction,
        Self::CommerceA,
        Self::CommerceB,
        Self::CommerceC,
    ];

    /// Returns the name of the site in files.
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

    /// Returns the shares of the pages in thousandths: static, lightly dynamic, database, secure, secure and
    /// database.
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

    /// Returns the shares of the pages by class in thousandths, in the order of [`ServiceClass::ALL`].
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

/// The parameters of a set of sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecipe {
    /// The site.
    pub site: Site,
    /// Sessions that begin per second, above 0 and at most 100,000. The paper has 100 to 300.
    pub sessions_per_s: f64,
    /// Time during which sessions begin, in seconds, above 0 and at most 100,000.
    pub span_s: f64,
    /// Number of documents of the tree, 100 to 10,000,000.
    pub documents: u32,
    /// Zipf exponent of their popularity, 0 to 5.
    pub exponent: f64,
    /// Share of the lightly dynamic documents that are cacheable, 0 to 1.
    pub light_cacheable: f64,
    /// Distribution of the pages per session.
    pub pages: InverseGaussian,
    /// Distribution of the objects per page, including the base page.
    pub objects: Pareto,
    /// Distribution of the time from the end of a page to the start of the next page, in seconds.
    pub think_s: Pareto,
}

impl SessionRecipe {
    /// Returns the parameters of the paper, with 100 sessions per second for 100 s.
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

    /// Generates the sessions. The same recipe and seed give the same sessions on every machine.
    ///
    /// # Errors
    /// Returns [`SynthError::OutOfRange`] if a parameter is out of range.
    pub fn sessions(&self, seed: u64) -> Result<Sessions, SynthError> {
        self.check_ranges()?;
        let tree = DocumentTree::new(self, seed);
        let mut sessions =
            Sessions { items: Vec::new(), sessions: Vec::new(), pages: Vec::new(), objects: Vec::new() };
        let (mut arrivals, mut random) = (Stream::new(seed, "sessions"), Stream::new(seed, "pages"));
        let mut at_s = 0.0;
        loop {
            at_s += exponential(1.0 / self.sessions_per_s, &mut arrivals);
            if at_s >= self.span_s {
                break;
            }
            let from = sessions.pages.len() as u32;
            for _ in 0..round_to_count(self.pages.draw(&mut random)) {
                self.add_page(&tree, &mut random, &mut sessions);
            }
            let pages = from..sessions.pages.len() as u32;
            sessions.sessions.push(Session { at_ns: (at_s * 1e9) as u64, pages });
        }
        sessions.items = tree.items;
        Ok(sessions)
    }

    /// Draws one page and appends it and its objects.
    fn add_page(&self, tree: &DocumentTree, random: &mut Stream, sessions: &mut Sessions) {
        let (mut left, mut kind) = (random.below(1_000), 0);
        while left >= u64::from(self.site.mix()[kind]) {
            left -= u64::from(self.site.mix()[kind]);
            kind += 1;
        }
        let from = sessions.objects.len() as u32;
        sessions.objects.push(tree.draw_item(&tree.bases[kind], random));
        let embedded = &tree.embedded[if kind == DB { STATIC } else { kind }];
        for _ in 1..round_to_count(self.objects.draw(random)) {
            sessions.objects.push(tree.draw_item(embedded, random));
        }
        let think_ns = (self.think_s.draw(random) * 1e9) as u64;
        sessions.pages.push(Page {
            objects: from..sessions.objects.len() as u32,
            secure: kind > DB,
            think_ns,
        });
    }

    /// Checks the ranges of the parameters.
    fn check_ranges(&self) -> Result<(), SynthError> {
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

/// Rounds to the nearest integer that is at least 1.
pub(super) fn round_to_count(value: f64) -> u64 {
    (value + 0.5).max(1.0) as u64
}

/// The documents and query results by kind of page, with the most popular first.
struct DocumentTree {
    /// All items.
    items: Vec<SiteItem>,
    /// The base pages by kind, as ranges of `items`.
    bases: Vec<(Range<u32>, Ranks)>,
    /// The embedded objects by kind, as ranges of `items`.
    embedded: Vec<(Range<u32>, Ranks)>,
}

impl DocumentTree {
    fn new(recipe: &SessionRecipe, seed: u64) -> Self {
        let mut tree = Self { items: Vec::new(), bases: Vec::new(), embedded: Vec::new() };
        let mut random = Stream::new(seed, "tree");
        for (kind, share) in recipe.site.mix().into_iter().enumerate() {
            let count = f64::from(recipe.documents) * f64::from(share) / 1_000.0;
            let bases = (count * BASE_SHARE).round() as usize;
            // The embedded objects of database pages are static documents. Therefore the database share of
            // them is added to the static ones.
            let others = match kind {
                STATIC => {
                    (count + f64::from(recipe.documents) * f64::from(recipe.site.mix()[DB]) / 1_000.0)
                        * (1.0 - BASE_SHARE)
                }
                DB => 0.0,
                _ => count * (1.0 - BASE_SHARE),
            };
            let base = tree.add_items(recipe, kind, "page", bases, &mut random);
            let embedded = tree.add_items(recipe, kind, "object", others.round() as usize, &mut random);
            tree.bases.push(base);
            tree.embedded.push(embedded);
        }
        tree
    }

    /// Adds `count` items of a kind and returns their range and popularity.
    fn add_items(
        &mut self,
        recipe: &SessionRecipe,
        kind: usize,
        what: &str,
        count: usize,
        random: &mut Stream,
    ) -> (Range<u32>, Ranks) {
        let from = self.items.len() as u32;
        let mut sizes = quantiles(count);
        random.shuffle(&mut sizes);
        let class =
            [ServiceClass::N, ServiceClass::N, ServiceClass::Db, ServiceClass::Cb, ServiceClass::Dcb][kind];
        for (number, size) in sizes.into_iter().enumerate() {
            let queried = what == "page" && matches!(kind, DB | DCB);
            self.items.push(SiteItem {
                key: format!("/{}/{what}/{number}", KINDS[kind]),
                bytes: size.clamp(1.0, BYTES_MAX) as u64,
                class: if kind == DCB && !queried { ServiceClass::Cb } else { class },
                cacheable: !queried && (kind != LIGHT || random.unit() < recipe.light_cacheable),
                places: if queried {
                    (PLACES.start + random.below(PLACES.end - PLACES.start)) as u16
                } else {
                    0
                },
                cpu_us: 0,
            });
        }
        (from..self.items.len() as u32, Ranks::new(count, recipe.exponent))
    }

    /// Draws the index of an item.
    fn draw_item(&self, (range, ranks): &(Range<u32>, Ranks), random: &mut Stream) -> u32 {
        range.start + ranks.draw(random) as u32
    }
}

/// A visit of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Start of the session, in ns.
    pub at_ns: u64,
    /// The pages of the session in order, as a range of [`Sessions::pages`].
    pub pages: Range<u32>,
}

/// A request for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The base page and then the embedded objects, as a range of [`Sessions::objects`].
    pub objects: Range<u32>,
    /// Whether the request uses an encrypted channel.
    pub secure: bool,
    /// Think time of the user before the next page, in ns.
    pub think_ns: u64,
}

/// A set of sessions with all pages and objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// The items of the site.
    pub items: Vec<SiteItem>,
    /// The sessions, ordered by start.
    pub sessions: Vec<Session>,
    /// The pages of all sessions.
    pub pages: Vec<Page>,
    /// The objects of all pages, as indexes into `items`.
    pub objects: Vec<u32>,
}

impl Sessions {
    /// Returns the objects of a page.
    pub fn objects_of(&self, page: &Page) -> &[u32] {
        &self.objects[page.objects.start as usize..page.objects.end as usize]
    }

    /// Returns the total bytes of all documents, without the results of queries.
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
        // 10,000 are expected. Six standard deviations are 600.
        assert!(sessions.sessions.len().abs_diff(10_000) < 600);
        assert!(sessions.sessions.is_sorted_by_key(|session| session.at_ns));
        let pages = mean(sessions.pages.len() as f64, sessions.sessions.len());
        assert!((pages - 3.86).abs() < 0.08, "{pages}");
        // The expected value of a Pareto draw within 1 to 100, rounded to the nearest integer: 1 + sum of P(X
        // >= n + 1/2).
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
        // The median of the body is e^7.640 = 2,080 bytes. The tail is above 2,924 bytes and increases the
        // median by 7 / 93 of a half.
        assert!((2_080..2_500).contains(&sizes[sizes.len() / 2]), "{}", sizes[sizes.len() / 2]);
        assert_eq!(sizes.len(), 8_000);
    }

    #[test]
    fn pages_have_the_mix_of_the_site() {
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
        // 2,400 are expected. Six standard deviations are 246.
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
    fn figures_out_of_range_are_errors() {
        let recipe = SessionRecipe::cap01(Site::CommerceA);
        let out = |recipe: SessionRecipe| recipe.sessions(1).expect_err("out of range").to_string();
        assert!(out(SessionRecipe { sessions_per_s: 0.0, ..recipe.clone() }).contains("sessions per second"));
        assert!(out(SessionRecipe { span_s: f64::NAN, ..recipe.clone() }).contains("the span"));
        assert!(out(SessionRecipe { documents: 5, ..recipe.clone() }).contains("documents"));
        let endless = Pareto { most: f64::INFINITY, ..recipe.objects };
        assert!(out(SessionRecipe { objects: endless, ..recipe }).contains("objects per page"));
    }
}
