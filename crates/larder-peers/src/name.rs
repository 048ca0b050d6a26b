//! Names of peers. A peer keeps its name when it restarts or gets another address.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name. Bytes. A membership datagram can hold three names of this length and still carry news.
pub const NAME_BYTES_MAX: usize = 100;

/// The name of a peer: 1 to 100 printable ASCII characters. Cheap to clone; ordered by bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

/// The text is not a valid name. The configuration is wrong, or a peer runs another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid peer name: use 1 to {NAME_BYTES_MAX} printable ASCII characters")]
pub struct NameError;

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        if printable && fits { Ok(Self(text.into())) } else { Err(NameError) }
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.as_ref().into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_printable() {
        for name in ["a", "node-1.site", "node 1", &"n".repeat(NAME_BYTES_MAX)] {
            assert_eq!(name.parse::<Name>().expect("a name").as_str(), name);
        }
        for text in ["", "new\nline", "naïve", &"n".repeat(NAME_BYTES_MAX + 1)] {
            assert_eq!(text.parse::<Name>(), Err(NameError), "{text:?}");
        }
    }
}
