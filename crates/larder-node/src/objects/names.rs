//! Names of objects, for requests and for purges.

use super::Objects;
use crate::http::path::{self, PathError};
use crate::memory::Selection;
use crate::store::Store;
use http::Uri;
use larder_edge::Location;
use std::borrow::Cow;

impl Objects {
    /// Returns the name of the object that a request asks for. In a directory it is the path; in a model it is
    /// path and query, unchanged.
    pub(crate) fn name_of<'a>(&self, uri: &'a Uri) -> Result<Cow<'a, [u8]>, PathError> {
        match &self.store {
            Store::Directory(_) => path::resolve(uri.path()),
            Store::Model(_) => {
                let target = uri.path_and_query().map_or("", |target| target.as_str());
                if target.starts_with('/') {
                    Ok(Cow::Borrowed(target.as_bytes()))
                } else {
                    Err(PathError::Malformed)
                }
            }
        }
    }

    /// Returns the name of the object of a target (a path with an optional query); `None` if no such name is
    /// served.
    pub(crate) fn name_of_target<'a>(&self, target: &'a str) -> Option<Cow<'a, [u8]>> {
        match &self.store {
            Store::Directory(_) => path::resolve(target.split('?').next().unwrap_or_default()).ok(),
            Store::Model(_) => Some(target.as_bytes().into()),
        }
    }

    /// Returns the cache entries that a purge of a URL or a URL prefix names; `None` if no entry can ever have
    /// such a name.
    pub(crate) fn selection(&self, location: &Location, prefix: bool) -> Option<Selection> {
        let name = match &self.store {
            Store::Model(_) => location.target().as_bytes().into(),
            Store::Directory(_) => name_of_file(location, prefix)?.into(),
        };
        Some(Selection::Objects { name, prefix })
    }
}

/// Returns the name of a file, or a prefix of names; `None` if no such file can exist.
fn name_of_file(location: &Location, prefix: bool) -> Option<Vec<u8>> {
    let path = location.target().split('?').next().unwrap_or_default();
    let mut name = path::resolve(path).ok()?.into_owned();
    if prefix && path.ends_with('/') {
        name.truncate(name.len() - path::INDEX.len());
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_edge::Purge;

    #[test]
    fn urls_are_names_of_files() {
        for (kind, url, name) in [
            ("url", "http://a/x/y%20z?q", Some("x/y z")),
            ("url", "http://a/", Some("index.html")),
            ("prefix", "http://a/", Some("")),
            ("prefix", "http://a//x/", Some("x/")),
            ("prefix", "http://a/x", Some("x")),
            ("url", "http://a/.hidden", None),
            ("url", "http://a/%", None),
        ] {
            let (Purge::Url(location) | Purge::Prefix(location)) = Purge::new(kind, url).unwrap() else {
                continue;
            };
            let found = name_of_file(&location, kind == "prefix");
            assert_eq!(found.as_deref(), name.map(str::as_bytes), "{kind} {url}");
        }
    }
}
