//! Service classes: what a request costs a node beside sending bytes.
//!
//! Client-aware dispatching (CAP; Casalicchio and Colajanni, WWW 2001, section 3) sorts requests by their URL alone
//! into four classes and shares each class out by itself. Which URL is of which class is for the shells to say; a
//! policy that does not look at classes is not touched by them.

use core::fmt;
use core::str::FromStr;

/// What a request costs beside sending bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// Nothing much: static and lightly dynamic pages. The class of requests that nobody has classified.
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
    /// How many there are.
    pub const COUNT: usize = 4;
    /// Every class.
    pub const ALL: [Self; Self::COUNT] = [Self::N, Self::Db, Self::Cb, Self::Dcb];

    /// The name used in configuration, tables and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::N => "n",
            Self::Db => "db",
            Self::Cb => "cb",
            Self::Dcb => "dcb",
        }
    }

    /// Its place in [`ServiceClass::ALL`].
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
#[error("there is no service class '{0}': use one of n, db, cb, dcb")]
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
    fn names_and_places_are_read_back() {
        for (at, class) in ServiceClass::ALL.into_iter().enumerate() {
            assert_eq!((class.name().parse(), class.index()), (Ok(class), at));
        }
        let error = "ssl".parse::<ServiceClass>().expect_err("it is no class").to_string();
        assert_eq!(error, "there is no service class 'ssl': use one of n, db, cb, dcb");
    }
}
