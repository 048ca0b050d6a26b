//! The description of a policy, which the policy's file provides.

/// The description of a policy, for configuration, documents and programs.
#[derive(Debug)]
pub(super) struct PolicyDescription {
    /// The name used in configuration, tables and logs.
    pub(super) name: &'static str,
    /// The policy's rule, in one line.
    pub(super) summary: &'static str,
    /// Whether a decision also applies to the target's next requests.
    pub(super) by_target: bool,
    /// Whether the policy mirrors the nodes' caches.
    pub(super) mirrors_caches: bool,
}

impl PolicyDescription {
    /// Describes a policy that decides separately for each request: by turn, at random, or by comparison.
    pub(super) const fn by_request(name: &'static str, summary: &'static str) -> Self {
        Self { name, summary, by_target: false, mirrors_caches: false }
    }

    /// Describes a policy whose decision also applies to the target's next requests.
    pub(super) const fn by_target(name: &'static str, summary: &'static str) -> Self {
        Self { name, summary, by_target: true, mirrors_caches: false }
    }

    /// Returns this description for a policy that mirrors the nodes' caches.
    pub(super) const fn mirroring(self) -> Self {
        Self { mirrors_caches: true, ..self }
    }
}
