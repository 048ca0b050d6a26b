//! The value of a claim's verdict as evidence.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The kind of evidence behind a claim. Only [`Evidence::Reproduced`] counts in the headline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The run could have refuted the claim: the published value did not determine any choice.
    Reproduced,
    /// Parameters or a variant were chosen by the published value, so agreement shows a good fit.
    Fitted,
    /// The experiment is built such that the claim holds.
    ByConstruction,
    /// The claim follows from another claim: `ID` of the same file or `EXPERIMENT/ID`.
    FollowsFrom(String),
    /// A control of ours, not a claim of the paper, that helps to interpret another claim.
    Control,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reproduced => f.write_str("reproduced"),
            Self::Fitted => f.write_str("fitted"),
            Self::ByConstruction => f.write_str("by-construction"),
            Self::FollowsFrom(id) => write!(f, "follows-from:{id}"),
            Self::Control => f.write_str("control"),
        }
    }
}

impl FromStr for Evidence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "reproduced" => Ok(Self::Reproduced),
            "fitted" => Ok(Self::Fitted),
            "by-construction" => Ok(Self::ByConstruction),
            "control" => Ok(Self::Control),
            _ => match text.strip_prefix("follows-from:") {
                Some(id) if !id.is_empty() => Ok(Self::FollowsFrom(id.to_owned())),
                _ => Err(format!(
                    "'{text}' is no evidence: use reproduced, fitted, by-construction, follows-from:ID or control"
                )),
            },
        }
    }
}

impl Serialize for Evidence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_evidence_is_read_back() {
        let from = |text: &str| text.parse::<Evidence>();
        for text in ["reproduced", "fitted", "by-construction", "follows-from:four", "control"] {
            assert_eq!(from(text).unwrap().to_string(), text);
        }
        assert!(from("follows-from:").is_err() && from("guessed").is_err());
    }
}
