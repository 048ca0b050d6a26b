//! Parser of routing table files.
//!
//! A row names a target as a log does: a path with its query, optionally with a host (`www.example.com/a`,
//! with or without `http://`). A row's id is the id of a GET request for the target under the route's key
//! template. One file therefore serves all templates that use only the path. If several rows have the same
//! id, the first is used.
//!
//! Owners are numbers in the file, and its header may name them. With names, nodes are found by name in any
//! order. Without names, the numbers follow the order of the route's nodes in the config.

use std::path::PathBuf;

use larder_core::TargetId;
use larder_core::policy::table::{Place, RouteTable, RouteTableError};
use larder_core::rules::{Head, KeyTemplate};
use larder_trace::Limits;
use larder_trace::ward::{RoutesError, RoutesHeader, read_routes};

use crate::config::{TableFile, WardNode};

/// Error of a table. The file or the config is invalid, so reading the file again gives the same error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    /// The file cannot be read or parsed.
    #[error(transparent)]
    Read(#[from] RoutesError),
    /// The table names a node that the route does not have.
    #[error("{}:2: the table names a node '{name}' that the route does not have; the route has {known}", path.display())]
    UnknownNode { path: PathBuf, name: String, known: String },
    /// The table has no names, and more nodes than the route.
    #[error("{}:2: the table is for {nodes} nodes, but the route has {known}", path.display())]
    Nodes { path: PathBuf, nodes: u16, known: usize },
    /// The placements are not a valid table.
    #[error("{}: {error}", path.display())]
    Table { path: PathBuf, error: RouteTableError },
    /// The route has no table file.
    #[error("route '{0}' has no table file: its table is built from traffic")]
    NoFile(String),
}

/// Reads the table of a route with these nodes.
pub(super) fn read(file: &TableFile, nodes: &[WardNode]) -> Result<RouteTable, TableError> {
    let (header, table) =
        read_routes(&file.path, &Limits::default(), |row| target_id(row, &file.host, &file.key))?;
    let numbers = node_numbers(file, &header, nodes)?;
    let here = |place| match place {
        Place::Core => Some(Place::Core),
        Place::Node(owner) => numbers.get(usize::from(owner)).copied().map(Place::Node),
    };
    let places = table.iter().filter_map(|(target, place)| Some((target, here(place)?)));
    let count = nodes.iter().map(|node| node.number + 1).max().unwrap_or(1);
    RouteTable::new(count, places).map_err(|error| TableError::Table { path: file.path.clone(), error })
}

/// Returns the switch's number of each node of the table.
fn node_numbers(file: &TableFile, header: &RoutesHeader, nodes: &[WardNode]) -> Result<Vec<u16>, TableError> {
    if header.names.is_empty() {
        if usize::from(header.nodes) > nodes.len() {
            let path = file.path.clone();
            return Err(TableError::Nodes { path, nodes: header.nodes, known: nodes.len() });
        }
        return Ok(nodes.iter().map(|node| node.number).collect());
    }
    let number = |name: &String| {
        let found = nodes.iter().find(|node| node.name == *name);
        found.map(|node| node.number).ok_or_else(|| TableError::UnknownNode {
            path: file.path.clone(),
            name: name.clone(),
            known: nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    };
    header.names.iter().map(number).collect()
}

/// Returns the id of a GET request for the target of a row.
fn target_id(row: &str, host: &str, key: &KeyTemplate) -> TargetId {
    let bare = row.strip_prefix("http://").or_else(|| row.strip_prefix("https://")).unwrap_or(row);
    let (host, path) = match bare.find('/') {
        Some(0) | None => (host, bare),
        Some(slash) => bare.split_at(slash),
    };
    key.id(&Head::get(host.as_bytes(), path.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn table(text: &str, key: &str) -> Result<RouteTable, TableError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.routes");
        fs::write(&path, text).unwrap();
        let nodes = [("a", 3), ("b", 5)].map(|(name, number)| WardNode { name: name.to_owned(), number });
        let file = TableFile { path, host: "www".to_owned(), key: key.parse().unwrap() };
        read(&file, &nodes)
    }

    fn text(names: &str, rows: &[&str]) -> String {
        let core = rows.iter().filter(|row| row.starts_with("core")).count();
        let count = rows.len();
        let owned = count - core;
        format!(
            "larder-routes 1\n{{\"nodes\":2,\"names\":{names},\"memory_per_node_bytes\":1,\"costs\":{{\"forward_us\":1.0,\
             \"disk_us_per_byte\":1.0,\"origin\":\"x\"}},\"log\":\"-\",\"log_first_ns\":null,\"log_last_ns\":null,\
             \"log_requests\":9,\"core_targets\":{core},\"core_bytes\":1,\"partition_targets\":{owned},\
             \"local_share\":1.0}}\n{}\nend {count}\n",
            rows.join("\n")
        )
    }

    fn id(key: &str, host: &str, path: &str) -> TargetId {
        key.parse::<KeyTemplate>().unwrap().id(&Head::get(host.as_bytes(), path.as_bytes()))
    }

    #[test]
    fn rows_become_the_targets_of_the_switch() {
        let key = KeyTemplate::DEFAULT;
        let rows = ["core /index.html", "0 /a?b=c", "1 other.example/a", "1 http://Third.example/"];
        let table = table(&text("[\"b\",\"a\"]", &rows), key).unwrap();
        assert_eq!(table.get(id(key, "www", "/index.html")), Some(Place::Core));
        assert_eq!(table.get(id(key, "www", "/a?b=c")), Some(Place::Node(5)), "found by its name");
        assert_eq!(table.get(id(key, "other.example", "/a")), Some(Place::Node(3)));
        assert_eq!(table.get(id(key, "third.example", "/")), Some(Place::Node(3)));
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn rows_with_the_same_id_are_read_once() {
        let rows = ["0 /docs/1?v=2", "1 /docs/1?v=3", "1 /docs/2"];
        let table = table(&text("[]", &rows), "{path}").unwrap();
        assert_eq!((table.len(), table.get(id("{path}", "", "/docs/1"))), (2, Some(Place::Node(3))));
    }

    #[test]
    fn errors_name_file_and_line() {
        let error = |text: &str| table(text, "{path}").unwrap_err().to_string();
        let unknown = error(&text("[\"a\",\"c\"]", &["0 /a"]));
        assert!(
            unknown.ends_with(
                "t.routes:2: the table names a node 'c' that the route does not have; the route has a, b"
            ),
            "{unknown}"
        );
        let three = error(&text("[]", &["0 /a"]).replace("\"nodes\":2", "\"nodes\":3"));
        assert!(three.ends_with("t.routes:2: the table is for 3 nodes, but the route has 2"), "{three}");
        let owner = error(&text("[]", &["0 /a", "7 /b"]));
        assert!(owner.contains("t.routes:4: "), "{owner}");
        let none = TableFile {
            path: Path::new("/none.routes").into(),
            host: String::new(),
            key: KeyTemplate::default(),
        };
        assert!(read(&none, &[]).unwrap_err().to_string().starts_with("/none.routes"));
    }
}
