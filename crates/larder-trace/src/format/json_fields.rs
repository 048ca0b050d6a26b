//! The keys of JSON lines: of a known server, or of the user.

use std::borrow::Cow;

/// Largest number of keys in a table. A set of keys is a bit mask.
pub(crate) const KEYS_MAX: usize = 20;

/// The part of a request that the value of a key gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Time,
    Method,
    Path,
    Query,
    /// The method, the target and the protocol, as in a request line.
    Request,
    Status,
    Bytes,
    Client,
}

/// The keys of the log of a server. If a line has several keys for a field, the first one in the table is
/// used.
pub(crate) type KeyTable = &'static [(Field, &'static str)];

/// The fields by the names that a user gives.
const NAMES: [(&str, Field); 8] = [
    ("time", Field::Time),
    ("method", Field::Method),
    ("path", Field::Path),
    ("query", Field::Query),
    ("request", Field::Request),
    ("status", Field::Status),
    ("bytes", Field::Bytes),
    ("client", Field::Client),
];

/// The keys of other JSON lines, written as `time=ts,path=request.uri,...`.
///
/// The fields are `time`, `method`, `path`, `query`, `request` (a request line), `status`, `bytes` and
/// `client`. One of `path` and `request` is required. Without `method`, every request is a GET. Without
/// `status`, every reply has status 200. Without `bytes`, sizes are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonFields(Keys);

/// A table of keys, of a server or of the user.
pub(crate) type Keys = Vec<(Field, Cow<'static, str>)>;

impl JsonFields {
    /// Returns the keys.
    pub(crate) const fn keys(&self) -> &Keys {
        &self.0
    }

    /// Parses the notation of the user.
    ///
    /// # Errors
    /// Returns the problem as text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Keys::new();
        for part in text.split(',') {
            let (name, key) = part.split_once('=').unwrap_or((part, ""));
            let Some((_, field)) = NAMES.iter().find(|(known, _)| *known == name.trim()) else {
                let known = NAMES.map(|(known, _)| known).join(", ");
                return Err(format!("'{}' is not a field; known are {known}", name.trim()));
            };
            if key.trim().is_empty() {
                return Err(format!("'{name}' has no key: write {name}=KEY"));
            }
            if keys.iter().any(|(known, _)| known == field) {
                return Err(format!("'{name}' is given twice"));
            }
            keys.push((*field, Cow::Owned(key.trim().to_owned())));
        }
        if !keys.iter().any(|(field, _)| matches!(field, Field::Path | Field::Request)) {
            return Err("neither 'path' nor 'request' is given: add path=KEY".to_owned());
        }
        Ok(Self(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_checked() {
        for (text, problem) in [
            ("path=a,color=b", "'color' is not a field; known are time, method, path"),
            ("time=a", "neither 'path' nor 'request'"),
            ("path", "'path' has no key"),
            ("path=a,path=b", "'path' is given twice"),
            ("", "'' is not a field"),
        ] {
            let error = text.parse::<JsonFields>().expect_err("wrong fields").to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert_eq!(" path = a , time=b".parse::<JsonFields>().expect("good fields").0.len(), 2);
    }
}
