//! Service classes: the costs of a request other than sending bytes.
//!
//! Client-aware dispatching (CAP; Casalicchio and Colajanni, WWW 2001, section 3) sorts requests by their URL into
//! four classes and distributes each class separately. The caller classifies URLs. A policy that does not use
//! classes ignores them.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The costs of a request other than sending bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// No notable costs: static and lightly dynamic pages. The class of unclassified requests.
    #[default]
    N,
    /// Disk: database transactions.
    Db,
    /// CPU: encryption.
    Cb,
    /// Disk and CPU.
    Dcb,
}

impl ServiceClass {
    /// The number of classes.
    pub const COUNT: usize = 4;
    /// All classes.
    pub const ALL: [Self; Self::COUNT] = [Self::N, Self::Db, Self::Cb, Self::Dcb];

    /// Returns the name used in configuration, tables and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::N => "n",
            Self::Db => "db",
            Self::Cb => "cb",
            Self::Dcb => "dcb",
        }
    }

    /// Returns the index of the class in [`ServiceClass::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for ServiceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no class has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown service class '{0}': use one of n, db, cb, dcb")]
pub struct UnknownClass(String);

impl FromStr for ServiceClass {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        let found = Self::ALL.into_iter().find(|class| class.name() == name);
        found.ok_or_else(|| UnknownClass(name.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indices_round_trip() {
        for (at, class) in ServiceClass::ALL.into_iter().enumerate() {
            assert_eq!((class.name().parse(), class.index()), (Ok(class), at));
        }
        let error = "ssl".parse::<ServiceClass>().expect_err("it is no class").to_string();
        assert_eq!(error, "unknown service class 'ssl': use one of n, db, cb, dcb");
    }
}
