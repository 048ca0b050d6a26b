//! Scripts of user behaviour: visits, which are sequences of pages with pauses between them, and the resources of the site.
//!
//! A [`Script`] is data. [`crate::users`] simulates users who follow it, arriving at its times or a fixed number at once;
//! [`crate::dbench`] does so with a growing number of users. The sources of scripts are
//!
//! * sessions of the CAP paper ([`Script::sessions`]) and mixes of its prototype ([`Script::mix`]);
//! * profiles of the HACC paper's workloads ([`Script::hacc`]);
//! * a real access log ([`Script::from_trace`]).
//!
//! [`Script::write_manifest`] lists the resources, so that a server knows their names and sizes.

pub(crate) mod extract;
pub(crate) mod prefixes;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use larder_trace::synth::mix::MixRecipe;
use larder_trace::synth::profiles::{ProfileKind, Profiles, profiles};
use larder_trace::synth::sessions::{SessionRecipe, Sessions, SiteItem};
use larder_trace::synth::{ServiceClass, SynthError};

use crate::plan::{PlanError, check_target};
use prefixes::{PathPrefixes, resource_paths};

/// Maximum resources, requests, pages and visits of a script, because indices have 32 bits.
const ENTRIES_MAX: usize = u32::MAX as usize;

/// A resource of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The path as sent in the request line.
    pub path: String,
    /// Body bytes of the reply.
    pub bytes: u64,
    /// Bytes that a server must hold in memory to reply without disk access: `bytes` for documents, the data in the database
    /// for the result of a query.
    pub held_bytes: u64,
    /// The service class of the request.
    pub class: ServiceClass,
    /// Whether a program generates the reply. The size of such a reply is not checked.
    pub dynamic: bool,
}

/// A page: a base object and its embedded objects, and the pause after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Range of the script's objects, not empty. The first is the base object.
    pub objects: Range<u32>,
    /// Time from the end of the page to the start of the next.
    pub pause: Duration,
}

/// A visit of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Start of the visit in an open load, from the start of the run.
    pub at: Duration,
    /// Range of the script's pages, not empty.
    pub pages: Range<u32>,
}

/// A script of user behaviour. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Script {
    name: Arc<str>,
    resources: Arc<[Resource]>,
    objects: Arc<[u32]>,
    pages: Arc<[Page]>,
    visits: Arc<[Visit]>,
}

/// Why a script cannot be created. The caller must change its arguments.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    /// A parameter of a generator is out of range.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// A path cannot be sent in a request.
    #[error(transparent)]
    Target(#[from] PlanError),
    /// A prefix is not a valid path.
    #[error(
        "the prefix of {kind} is '{prefix}': it must begin with '/' and not end with one, such as {usual}"
    )]
    Prefix {
        /// Kind of the resources.
        kind: &'static str,
        /// The given value.
        prefix: String,
        /// The default.
        usual: &'static str,
    },
    /// A parameter of an extraction is out of range.
    #[error("{what} is {value}: it must be {range}")]
    OutOfRange {
        /// Name of the parameter.
        what: &'static str,
        /// The given value.
        value: String,
        /// The allowed range.
        range: &'static str,
    },
    /// The script has no visits.
    #[error("the script has no visits: {why}")]
    NoVisits {
        /// The reason.
        why: &'static str,
    },
    /// There are more than 4,294,967,295 entries of a kind.
    #[error("too large for a script: at most 4294967295 visits, pages and requests")]
    TooLarge,
}

/// Resources that a manifest lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestScope {
    /// Documents, with the sizes of their replies. Handlers generate the other replies.
    Documents,
    /// All resources, with the bytes to hold in memory. For servers without programs, which reply to queries with the data
    /// instead of the result.
    All,
}

impl Script {
    /// Creates a script from the sessions of a recipe. `prefixes` are the prefixes of paths.
    ///
    /// # Errors
    /// [`ScriptError::Synth`], [`ScriptError::Prefix`].
    pub fn sessions(recipe: &SessionRecipe, prefixes: &PathPrefixes, seed: u64) -> Result<Self, ScriptError> {
        Self::from_sessions(recipe.site.name(), &recipe.sessions(seed)?, prefixes)
    }

    /// Creates a script from the pages of a mix, with a visit for each page.
    ///
    /// # Errors
    /// [`ScriptError::Synth`], [`ScriptError::Prefix`].
    pub fn mix(recipe: &MixRecipe, prefixes: &PathPrefixes, seed: u64) -> Result<Self, ScriptError> {
        Self::from_sessions(recipe.mix.name(), &recipe.sessions(seed)?, prefixes)
    }

    /// Creates a script from the profiles of a workload of the HACC paper, with a visit for each profile.
    ///
    /// # Errors
    /// [`ScriptError::Prefix`].
    pub fn hacc(kind: ProfileKind, prefixes: &PathPrefixes, seed: u64) -> Result<Self, ScriptError> {
        Self::from_profiles(kind.name(), &profiles(kind, seed), prefixes)
    }

    fn from_sessions(name: &str, generated: &Sessions, prefixes: &PathPrefixes) -> Result<Self, ScriptError> {
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
            resources(&generated.items, prefixes)?,
            generated.objects.clone(),
            generated.pages.iter().map(page).collect(),
            generated.sessions.iter().map(visit).collect(),
        )
    }

    fn from_profiles(name: &str, generated: &Profiles, prefixes: &PathPrefixes) -> Result<Self, ScriptError> {
        let (mut objects, mut pages, mut visits) = (Vec::new(), Vec::new(), Vec::new());
        for profile in &generated.profiles {
            let from = to_index(pages.len())?;
            for visit in profile {
                let at = to_index(objects.len())?;
                objects.push(visit.item);
                pages.push(Page { objects: at..at + 1, pause: Duration::from_nanos(visit.pause_ns) });
            }
            visits.push(Visit { at: Duration::ZERO, pages: from..to_index(pages.len())? });
        }
        Self::new(name, resources(&generated.items, prefixes)?, objects, pages, visits)
    }

    /// Checks the parts and builds the script.
    fn new(
        name: &str,
        resources: Vec<Resource>,
        objects: Vec<u32>,
        pages: Vec<Page>,
        visits: Vec<Visit>,
    ) -> Result<Self, ScriptError> {
        if [resources.len(), objects.len(), pages.len(), visits.len()].iter().any(|len| *len > ENTRIES_MAX) {
            return Err(ScriptError::TooLarge);
        }
        if visits.is_empty() {
            return Err(ScriptError::NoVisits { why: "no user arrives in the given time" });
        }
        for resource in &resources {
            check_target(&resource.path)?;
        }
        let script = Self {
            name: name.into(),
            resources: resources.into(),
            objects: objects.into(),
            pages: pages.into(),
            visits: visits.into(),
        };
        debug_assert!(script.is_consistent());
        Ok(script)
    }

    /// Whether all ranges and indices are valid.
    fn is_consistent(&self) -> bool {
        self.visits
            .iter()
            .all(|visit| !visit.pages.is_empty() && self.pages.get(bounds(&visit.pages)).is_some())
            && self
                .pages
                .iter()
                .all(|page| !page.objects.is_empty() && self.objects.get(bounds(&page.objects)).is_some())
            && self.objects.iter().all(|object| (*object as usize) < self.resources.len())
    }

    /// The script's name, for reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The resources of the site.
    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// The visits, ordered by start.
    pub fn visits(&self) -> &[Visit] {
        &self.visits
    }

    /// The pages of a visit.
    pub fn pages(&self, visit: &Visit) -> &[Page] {
        &self.pages[bounds(&visit.pages)]
    }

    /// The objects of a page as indices into [`Script::resources`], beginning with the base object.
    pub fn objects(&self, page: &Page) -> &[u32] {
        &self.objects[bounds(&page.objects)]
    }

    /// Number of requests of all visits.
    pub fn requests(&self) -> u64 {
        self.objects.len() as u64
    }

    /// Start of the last visit.
    pub fn span(&self) -> Duration {
        self.visits.last().map_or(Duration::ZERO, |visit| visit.at)
    }

    /// Writes a line `size<TAB>path` for each listed resource, which is the format of a node's modelled store.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write_manifest(&self, scope: ManifestScope, mut to: impl io::Write) -> io::Result<()> {
        for resource in &*self.resources {
            match scope {
                ManifestScope::Documents if resource.dynamic => {}
                ManifestScope::Documents => writeln!(to, "{}\t{}", resource.bytes, resource.path)?,
                ManifestScope::All => writeln!(to, "{}\t{}", resource.held_bytes, resource.path)?,
            }
        }
        to.flush()
    }
}

fn resources(items: &[SiteItem], prefixes: &PathPrefixes) -> Result<Vec<Resource>, ScriptError> {
    prefixes.check()?;
    let placed = resource_paths(items, prefixes);
    let resource = |(item, placed): (&SiteItem, prefixes::ResourcePath)| Resource {
        bytes: placed.reply_bytes.unwrap_or(item.bytes),
        held_bytes: item.bytes,
        path: placed.path,
        class: item.class,
        dynamic: placed.dynamic,
    };
    Ok(items.iter().zip(placed).map(resource).collect())
}

fn to_index(len: usize) -> Result<u32, ScriptError> {
    u32::try_from(len).map_err(|_| ScriptError::TooLarge)
}

fn bounds(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[cfg(test)]
mod tests;
