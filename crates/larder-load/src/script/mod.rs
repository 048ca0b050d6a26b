//! What users do: visits, which are sequences of pages with pauses between them, and what a site offers for it.
//!
//! A [`Script`] is data. [`crate::users`] has users act it out, beginning at its times or a fixed number at once;
//! [`crate::dbench`] has ever more of them do so. It is made from
//!
//! * sessions of the CAP paper ([`Script::sessions`]) and mixes of its prototype ([`Script::mix`]);
//! * profiles of the HACC paper's workloads ([`Script::hacc`]);
//! * a real access log ([`Script::of_trace`]).
//!
//! [`Script::write_manifest`] lists what is offered, so that whoever serves it knows names and sizes.

pub(crate) mod extract;
pub(crate) mod paths;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use larder_trace::synth::mix::MixRecipe;
use larder_trace::synth::profiles::{ProfileKind, Profiles, profiles};
use larder_trace::synth::sessions::{SessionRecipe, Sessions, SiteItem};
use larder_trace::synth::{ServiceClass, SynthError};

use crate::plan::{PlanError, check_target};
use paths::{Paths, paths_of};

/// Most users, visits and requests a script may hold together with what it offers: indices are 32 bits.
const ENTRIES_MAX: usize = u32::MAX as usize;

/// Something a site offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// As sent in the request line.
    pub path: String,
    /// Body bytes of the reply.
    pub bytes: u64,
    /// Bytes that a server must hold in memory to answer without its disk. As `bytes` for documents; for the result of
    /// a query, what of the database it is made from.
    pub held_bytes: u64,
    /// What a server does for it.
    pub class: ServiceClass,
    /// Whether a program makes the reply. Its size is then the program's affair and is not checked.
    pub made: bool,
}

/// A page: a base and what it embeds, and the pause that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Base first: a range of the script's objects; not empty.
    pub objects: Range<u32>,
    /// From the page's end to the next page's begin.
    pub pause: Duration,
}

/// A user's visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// When it begins in an open load, from the start of the run.
    pub at: Duration,
    /// Its pages: a range of the script's pages; not empty.
    pub pages: Range<u32>,
}

/// What users do. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Script {
    name: Arc<str>,
    offers: Arc<[Offer]>,
    objects: Arc<[u32]>,
    pages: Arc<[Page]>,
    visits: Arc<[Visit]>,
}

/// A script that cannot be made. The caller's to mend.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    /// A figure of a generator is out of range.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// A path cannot be sent.
    #[error(transparent)]
    Target(#[from] PlanError),
    /// A prefix is no path.
    #[error(
        "the prefix of {kind} is '{prefix}': it must begin with '/' and not end with one, such as {usual}"
    )]
    Prefix {
        /// Of what.
        kind: &'static str,
        /// As given.
        prefix: String,
        /// The default.
        usual: &'static str,
    },
    /// A number of an extraction is out of range.
    #[error("{what} is {value}: it must be {range}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// As given.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// No visit came out.
    #[error("no visit can be made from it: {why}")]
    NoVisits {
        /// What is missing.
        why: &'static str,
    },
    /// More than 4,294,967,295 of a kind.
    #[error("too large for a script: at most 4294967295 visits, pages and requests")]
    TooLarge,
}

/// What a manifest lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Documents, with the bytes of their replies. Programs are for handlers to answer.
    Documents,
    /// Everything, with the bytes that must be held in memory: for servers without programs, which then answer queries
    /// with what they are made from.
    Everything,
}

impl Script {
    /// The sessions of a recipe; paths begin with `paths`.
    ///
    /// # Errors
    /// [`ScriptError::Synth`], [`ScriptError::Prefix`].
    pub fn sessions(recipe: &SessionRecipe, paths: &Paths, seed: u64) -> Result<Self, ScriptError> {
        Self::of_sessions(recipe.site.name(), &recipe.sessions(seed)?, paths)
    }

    /// The pages of a mix, a visit each; paths begin with `paths`.
    ///
    /// # Errors
    /// [`ScriptError::Synth`], [`ScriptError::Prefix`].
    pub fn mix(recipe: &MixRecipe, paths: &Paths, seed: u64) -> Result<Self, ScriptError> {
        Self::of_sessions(recipe.mix.name(), &recipe.sessions(seed)?, paths)
    }

    /// The profiles of a workload of the HACC paper, a visit each; paths begin with `paths`.
    ///
    /// # Errors
    /// [`ScriptError::Prefix`].
    pub fn hacc(kind: ProfileKind, paths: &Paths, seed: u64) -> Result<Self, ScriptError> {
        Self::of_profiles(kind.name(), &profiles(kind, seed), paths)
    }

    fn of_sessions(name: &str, made: &Sessions, paths: &Paths) -> Result<Self, ScriptError> {
        let page = |page: &larder_trace::synth::sessions::Page| Page {
            objects: page.objects.clone(),
            pause: Duration::from_nanos(page.think_ns),
        };
        let visit = |session: &larder_trace::synth::sessions::Session| Visit {
            at: Duration::from_nanos(session.at_ns),
            pages: session.pages.clone(),
        };
        Self::new(
            name,
            offers(&made.items, paths)?,
            made.objects.clone(),
            made.pages.iter().map(page).collect(),
            made.sessions.iter().map(visit).collect(),
        )
    }

    fn of_profiles(name: &str, made: &Profiles, paths: &Paths) -> Result<Self, ScriptError> {
        let (mut objects, mut pages, mut visits) = (Vec::new(), Vec::new(), Vec::new());
        for profile in &made.profiles {
            let from = index(pages.len())?;
            for visit in profile {
                let at = index(objects.len())?;
                objects.push(visit.item);
                pages.push(Page { objects: at..at + 1, pause: Duration::from_nanos(visit.pause_ns) });
            }
            visits.push(Visit { at: Duration::ZERO, pages: from..index(pages.len())? });
        }
        Self::new(name, offers(&made.items, paths)?, objects, pages, visits)
    }

    /// Checks what the parts promise one another.
    fn new(
        name: &str,
        offers: Vec<Offer>,
        objects: Vec<u32>,
        pages: Vec<Page>,
        visits: Vec<Visit>,
    ) -> Result<Self, ScriptError> {
        if [offers.len(), objects.len(), pages.len(), visits.len()].iter().any(|len| *len > ENTRIES_MAX) {
            return Err(ScriptError::TooLarge);
        }
        if visits.is_empty() {
            return Err(ScriptError::NoVisits { why: "nobody comes in the time given" });
        }
        for offer in &offers {
            check_target(&offer.path)?;
        }
        let script = Self {
            name: name.into(),
            offers: offers.into(),
            objects: objects.into(),
            pages: pages.into(),
            visits: visits.into(),
        };
        debug_assert!(script.is_sound());
        Ok(script)
    }

    fn is_sound(&self) -> bool {
        self.visits
            .iter()
            .all(|visit| !visit.pages.is_empty() && self.pages.get(bounds(&visit.pages)).is_some())
            && self
                .pages
                .iter()
                .all(|page| !page.objects.is_empty() && self.objects.get(bounds(&page.objects)).is_some())
            && self.objects.iter().all(|object| (*object as usize) < self.offers.len())
    }

    /// Its name, for reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the site offers.
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// The visits, by their begin.
    pub fn visits(&self) -> &[Visit] {
        &self.visits
    }

    /// The pages of a visit.
    pub fn pages(&self, visit: &Visit) -> &[Page] {
        &self.pages[bounds(&visit.pages)]
    }

    /// What a page asks for: indices into [`Script::offers`], base first.
    pub fn objects(&self, page: &Page) -> &[u32] {
        &self.objects[bounds(&page.objects)]
    }

    /// Requests of all visits together.
    pub fn requests(&self) -> u64 {
        self.objects.len() as u64
    }

    /// When the last visit begins.
    pub fn span(&self) -> Duration {
        self.visits.last().map_or(Duration::ZERO, |visit| visit.at)
    }

    /// Lists what is offered, a line `size<TAB>path` each: the form in which a node's modelled store reads its targets.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_manifest(&self, listed: Listed, mut to: impl io::Write) -> io::Result<()> {
        for offer in &*self.offers {
            match listed {
                Listed::Documents if offer.made => {}
                Listed::Documents => writeln!(to, "{}\t{}", offer.bytes, offer.path)?,
                Listed::Everything => writeln!(to, "{}\t{}", offer.held_bytes, offer.path)?,
            }
        }
        to.flush()
    }
}

fn offers(items: &[SiteItem], paths: &Paths) -> Result<Vec<Offer>, ScriptError> {
    paths.check()?;
    let placed = paths_of(items, paths);
    let offer = |(item, placed): (&SiteItem, paths::Placed)| Offer {
        bytes: placed.reply_bytes.unwrap_or(item.bytes),
        held_bytes: item.bytes,
        path: placed.path,
        class: item.class,
        made: placed.made,
    };
    Ok(items.iter().zip(placed).map(offer).collect())
}

fn index(len: usize) -> Result<u32, ScriptError> {
    u32::try_from(len).map_err(|_| ScriptError::TooLarge)
}

fn bounds(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[cfg(test)]
mod tests;
