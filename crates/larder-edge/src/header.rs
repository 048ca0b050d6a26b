//! Access to header fields, independent of how they are stored.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use larder_http::h1;
use std::fmt::Debug;

/// Lookup of field values by name, ignoring case.
pub trait Lookup: Debug {
    /// Returns the value of the first field with this name.
    fn first(&self, name: &str) -> Option<&[u8]>;
}

/// Header fields that can be changed.
pub trait Fields: Lookup {
    /// Returns the values of all fields with this name, in order.
    fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]>;

    /// Removes all fields with this name.
    fn remove(&mut self, name: &str);

    /// Removes the fields with unwanted names. Returns their number.
    fn remove_if(&mut self, is_unwanted: impl Fn(&[u8]) -> bool) -> u64;

    /// Replaces all fields with this name by one. If the value is invalid, the fields are only removed.
    fn set(&mut self, name: &str, value: &[u8]);

    /// Appends a field, if its value is valid.
    fn add(&mut self, name: &str, value: &[u8]);

    /// Checks whether there is a field with this name.
    fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }
}

impl Lookup for HeaderMap {
    fn first(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(HeaderValue::as_bytes)
    }
}

impl Fields for HeaderMap {
    fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.get_all(name).into_iter().map(HeaderValue::as_bytes)
    }

    fn remove(&mut self, name: &str) {
        Self::remove(self, name);
    }

    fn remove_if(&mut self, is_unwanted: impl Fn(&[u8]) -> bool) -> u64 {
        let names: Vec<HeaderName> =
            self.keys().filter(|name| is_unwanted(name.as_str().as_bytes())).cloned().collect();
        let before = self.len();
        for name in names {
            Self::remove(self, name);
        }
        (before - self.len()) as u64
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { return };
        match HeaderValue::from_bytes(value) {
            Ok(value) => drop(self.insert(name, value)),
            Err(_) => drop(Self::remove(self, name)),
        }
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            self.append(name, value);
        }
    }
}

impl Lookup for h1::Fields {
    fn first(&self, name: &str) -> Option<&[u8]> {
        self.get(name.as_bytes())
    }
}

impl Fields for h1::Fields {
    fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.all(name.as_bytes())
    }

    fn remove(&mut self, name: &str) {
        Self::remove(self, name.as_bytes());
    }

    fn remove_if(&mut self, is_unwanted: impl Fn(&[u8]) -> bool) -> u64 {
        let before = self.len();
        self.retain(|field| !is_unwanted(field.name));
        (before - self.len()) as u64
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        if Self::set(self, name.as_bytes(), value).is_err() {
            Self::remove(self, name.as_bytes());
        }
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        // Heads are read with spare room for the fields that a proxy adds.
        let _ = self.append(name.as_bytes(), value);
    }
}
