//! The description of a policy, which its file gives.

/// The description of a policy, for configuration, documents and shells.
#[derive(Debug)]
pub(super) struct About {
    /// The name used in configuration, tables and logs.
    pub(super) name: &'static str,
    /// The policy's rule, in one line.
    pub(super) summary: &'static str,
    /// Whether a decision holds for the target's next requests too.
    pub(super) by_target: bool,
    /// Whether the policy mirrors the nodes' caches.
    pub(super) mirrors_caches: bool,
}

impl About {
    /// A policy that gives each request a turn, a lot or a comparison of its own.
    pub(super) const fn by_request(name: &'static str, summary: &'static str) -> Self {
        Self { name, summary, by_target: false, mirrors_caches: false }
    }

    /// A policy whose decision holds for the target's next requests too.
    pub(super) const fn by_target(name: &'static str, summary: &'static str) -> Self {
        Self { name, summary, by_target: true, mirrors_caches: false }
    }

    /// This policy, which mirrors the nodes' caches.
    pub(super) const fn mirroring(self) -> Self {
        Self { mirrors_caches: true, ..self }
    }
}
