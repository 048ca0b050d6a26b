//! Checks of values that several sections have: addresses, names, words, and key files.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use larder_edge::AddressRange;

use super::error::Fault;
use super::text::Texts;

/// Returns the fault of a key file that does not exist; `None` if it exists.
pub(super) fn no_key(key: &str, path: &Path) -> Option<Fault> {
    let absent = matches!(std::fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound);
    let what = || Fault::new(key, format!("{} does not exist", path.display()));
    absent
        .then(|| what().hint(format!("make it on the host that uses it: larder keys new {}", path.display())))
}

pub(super) fn addresses(key: &str, texts: &Texts, example: &str) -> Result<Vec<SocketAddr>, Fault> {
    if texts.0.is_empty() {
        return Err(
            Fault::new(key, "missing: an address to listen on").hint(format!("write listen = \"{example}\""))
        );
    }
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            Fault::new(key, format!("'{text}' is not an IP address with a port"))
                .hint(format!("write \"{example}\", \"0.0.0.0:80\" or \"[::]:80\""))
        })
    };
    texts.0.iter().map(parse).collect()
}

pub(super) fn node_name(key: &str, name: &str) -> Result<(), Fault> {
    let plain =
        name.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '/' | '?' | '#' | ','));
    if plain && (1..=128).contains(&name.len()) {
        return Ok(());
    }
    Err(Fault::new(key, format!("'{}' cannot be a node's name", name.escape_debug()))
        .hint("1 to 128 letters, digits and -._:[]; names stand in URLs, logs and headers"))
}

pub(super) fn word<T: FromStr>(key: &str, text: &str, known: &[&str]) -> Result<T, Fault> {
    text.parse().map_err(|_| Fault::unknown(key, text, known))
}

/// Parses a list of ranges of addresses.
pub(crate) fn ranges(key: &str, raw: &Texts) -> Result<Vec<AddressRange>, Fault> {
    raw.0
        .iter()
        .map(|text| {
            text.parse().map_err(|what: String| {
                Fault::new(key, what).hint("write \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.1\"")
            })
        })
        .collect()
}
