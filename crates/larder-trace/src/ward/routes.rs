//! Files with a routing table, from which a node places targets according to a past log.
//!
//! ```text
//! larder-routes 1
//! {"nodes":4,"names":["a","b","c","d"],"memory_per_node_bytes":67108864, ... }
//! core /index.html
//! 2 /downloads/big.iso
//! end 2
//! ```
//!
//! The first line has the format and its version. The second line is a [`RoutesHeader`] as JSON. Then there
//! is a line for each target of core and partition, with the most requested first. Such a line has `core` or
//! the owner's number, a space, and the target as in the log (path and query). The last line has the number
//! of these lines, so that a truncated file is detected. A file with a name that ends in `.gz` or `.zst` is
//! compressed.
//!
//! A table is written to a temporary file and then renamed, so that a node never loads half of a table.
//! Reading checks every line against the header and the limits. Errors contain the file and the line.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use larder_core::TargetId;
use larder_core::policy::table::{Place, RouteTable, RouteTableError};
use serde::{Deserialize, Serialize};

use super::analysis::{Analysis, WARD_NODES_MAX};
use super::costs::WardCosts;
use crate::error::TraceError;
use crate::line::{ReadItem, next_line};
use crate::read::Limits;
use crate::source::Source;
use crate::trace::Trace;
use crate::write::write_compressed;

/// Start of the first line.
const MAGIC: &str = "larder-routes ";
/// Version of the format.
const VERSION: &str = "1";
/// Maximum length of the header in bytes. A thousand nodes with names of full length fit.
const HEADER_BYTES_MAX: usize = 512 << 10;
/// Maximum length of a node name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The cluster and the log of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutesHeader {
    /// Number of nodes. Owners are counted from 0.
    pub nodes: u16,
    /// Names of the nodes in the order of their numbers. The list is empty if they have only numbers.
    #[serde(default)]
    pub names: Vec<String>,
    /// Memory of each node's cache.
    pub memory_per_node_bytes: u64,
    /// The prices and their origin.
    pub costs: WardCosts,
    /// Name of the log as given, or `-` for standard input.
    pub log: String,
    /// Time of the log's first request in ns since 1970 UTC. `None` for a log without times.
    pub log_first_ns: Option<i64>,
    /// Time of the log's last request in ns since 1970 UTC. `None` for a log without times.
    pub log_last_ns: Option<i64>,
    /// Requests of the log.
    pub log_requests: u64,
    /// Targets in the core.
    pub core_targets: u64,
    /// Total size of these targets, which every node keeps.
    pub core_bytes: u64,
    /// Targets in the partition.
    pub partition_targets: u64,
    /// Expected share of requests that the receiving node serves itself, 0 to 1.
    pub local_share: f64,
}

impl RoutesHeader {
    /// Creates the header for an analysis of a trace.
    pub fn of(analysis: &Analysis, trace: &Trace, log: &str, names: &[String]) -> Self {
        let after = |nanos: u64| {
            let nanos = i64::try_from(nanos).unwrap_or(i64::MAX);
            trace.origin_ns.map(|origin| origin.saturating_add(nanos))
        };
        Self {
            nodes: analysis.nodes,
            names: names.to_vec(),
            memory_per_node_bytes: analysis.memory_per_node_bytes,
            costs: analysis.costs.clone(),
            log: log.to_owned(),
            log_first_ns: after(0),
            log_last_ns: after(trace.requests.last().map_or(0, |request| request.time.as_nanos())),
            log_requests: analysis.log.requests,
            core_targets: analysis.core.targets,
            core_bytes: analysis.core.bytes,
            partition_targets: analysis.partition.targets,
            local_share: analysis.local_share,
        }
    }

    /// Checks the header.
    ///
    /// # Errors
    /// Returns an error if the number of nodes, a name or a price is invalid.
    pub fn check(&self) -> Result<(), RoutesProblem> {
        if !(1..=WARD_NODES_MAX).contains(&self.nodes) {
            return Err(RoutesProblem::Nodes(self.nodes));
        }
        if !self.names.is_empty() && self.names.len() != usize::from(self.nodes) {
            return Err(RoutesProblem::Names { names: self.names.len(), nodes: self.nodes });
        }
        let is_name = |name: &String| {
            (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if let Some(name) = self.names.iter().find(|name| !is_name(name)) {
            return Err(RoutesProblem::Name(excerpt(name.as_bytes())));
        }
        let mut sorted: Vec<_> = self.names.iter().collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(RoutesProblem::DuplicateName(pair[0].clone()));
        }
        if self.costs.is_valid() { Ok(()) } else { Err(RoutesProblem::Costs) }
    }

    /// Returns the number of targets of the table.
    const fn targets(&self) -> u64 {
        self.core_targets.saturating_add(self.partition_targets)
    }
}

/// A problem of a routing table.
#[derive(Debug, thiserror::Error)]
pub enum RoutesProblem {
    /// The first line does not start a routing table.
    #[error("not a routing table: it starts with \"{0}\" where \"larder-routes 1\" is expected")]
    NotARouteTable(String),
    /// The version is not supported.
    #[error("a routing table of version \"{0}\"; this program reads version 1")]
    Version(String),
    /// The second line is not a valid header.
    #[error("invalid header: {0}")]
    Header(serde_json::Error),
    /// The number of nodes is out of range.
    #[error("a routing table is for 1 to {WARD_NODES_MAX} nodes, not {0}")]
    Nodes(u16),
    /// The number of names is not the number of nodes.
    #[error("{names} names for {nodes} nodes")]
    Names {
        /// Number of names.
        names: usize,
        /// Number of nodes.
        nodes: u16,
    },
    /// A name is invalid.
    #[error("\"{0}\" is not a name of a node: 1 to {NAME_BYTES_MAX} visible ASCII characters")]
    Name(String),
    /// Two nodes have the same name.
    #[error("two nodes are named \"{0}\"")]
    DuplicateName(String),
    /// A price is not a number of at least 0.
    #[error("the costs of a handoff and of a byte from disk must be numbers of at least 0")]
    Costs,
    /// A line is not a valid row.
    #[error("\"{0}\" is not a row: write `core` or an owner's number, a space, a target")]
    Row(String),
    /// An owner is not one of the nodes.
    #[error("\"{name}\" belongs to node {node}, and the table is for {nodes} nodes, which count from 0")]
    NoSuchNode {
        /// The target.
        name: String,
        /// The owner's number.
        node: u16,
        /// Number of nodes.
        nodes: u16,
    },
    /// A line is longer than [`Limits::line_bytes_max`].
    #[error("a line longer than {0} bytes")]
    LongLine(usize),
    /// There are more targets than [`Limits::targets_max`].
    #[error("more than {0} targets")]
    TooManyTargets(usize),
    /// The number of rows differs from the header or from the last line.
    #[error("{rows} rows ({core} of the core) where {expected} ({expected_core}) are announced")]
    Count {
        /// Number of rows in the file.
        rows: u64,
        /// Rows of the core among them.
        core: u64,
        /// Expected number of rows.
        expected: u64,
        /// Expected rows of the core.
        expected_core: u64,
    },
    /// The last line is missing.
    #[error("the file is truncated: it has no line \"end\"")]
    Truncated,
    /// There is a line after the last line.
    #[error("the file continues after the line \"end\"")]
    AfterEnd,
    /// The places do not form a table.
    #[error(transparent)]
    Table(#[from] RouteTableError),
    /// The compression of the file is unknown.
    #[error(transparent)]
    Compression(TraceError),
    /// The system failed, or the compressed stream is damaged.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
}

/// A failure to read a routing table. Except for [`RoutesProblem::Io`], the file itself is invalid and a new
/// attempt has the same result.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {problem}", path.display())]
pub struct RoutesError {
    /// Path of the file.
    pub path: PathBuf,
    /// Line number from 1, or 0 for the file as a whole.
    pub line: u64,
    /// The problem.
    #[source]
    pub problem: RoutesProblem,
}

/// Writes a table.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write_routes(
    header: &RoutesHeader,
    analysis: &Analysis,
    trace: &Trace,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "{MAGIC}{VERSION}")?;
    serde_json::to_writer(&mut *out, header)?;
    writeln!(out)?;
    let mut rows = 0_u64;
    for (target, place) in analysis.places() {
        let name = &trace.targets[target as usize].name;
        match place {
            Place::Core => writeln!(out, "core {name}")?,
            Place::Node(node) => writeln!(out, "{node} {name}")?,
        }
        rows += 1;
    }
    writeln!(out, "end {rows}")
}

/// Writes a table to a file, which is replaced in one step. The file is compressed if its name ends in `.gz`
/// or `.zst`.
///
/// # Errors
/// Returns an error if the file cannot be created, written or renamed. The previous file then remains.
pub fn save_routes(header: &RoutesHeader, analysis: &Analysis, trace: &Trace, path: &Path) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let file = File::create(&partial)?;
    let written = write_compressed(path, &file, |mut out| write_routes(header, analysis, trace, &mut out))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // Saving has already failed. A temporary file that remains has no effect.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Reads a table from a file. `id_of` gives the identifier of a target name of the log.
///
/// # Errors
/// Returns a [`RoutesError`] with file and line.
pub fn read_routes(
    path: &Path,
    limits: &Limits,
    id_of: impl Fn(&str) -> TargetId,
) -> Result<(RoutesHeader, RouteTable), RoutesError> {
    match File::open(path) {
        Ok(file) => read_routes_from(file, path, limits, id_of),
        Err(error) => Err(RoutesError { path: path.to_path_buf(), line: 0, problem: error.into() }),
    }
}

/// Reads a table from any reader, compressed or not. `path` is the name in errors.
///
/// # Errors
/// Returns the errors of [`read_routes`].
pub fn read_routes_from(
    reader: impl Read + Send,
    path: &Path,
    limits: &Limits,
    id_of: impl Fn(&str) -> TargetId,
) -> Result<(RoutesHeader, RouteTable), RoutesError> {
    read_lines(reader, path, limits, |reader| {
        let mut places = Vec::new();
        let header = reader.read_rows(|place, name| places.push((id_of(name), place)))?;
        let table = RouteTable::new(header.nodes, places)?;
        Ok((header, table))
    })
}

/// Reads a table row by row and calls `row` with each place and target name. The most requested target is
/// first. A later row can still be invalid.
///
/// # Errors
/// Returns the errors of [`read_routes`], but does not detect a target that occurs twice.
pub fn for_each_route(
    path: &Path,
    limits: &Limits,
    row: impl FnMut(Place, &str),
) -> Result<RoutesHeader, RoutesError> {
    match File::open(path) {
        Ok(file) => read_lines(file, path, limits, |reader| reader.read_rows(row)),
        Err(error) => Err(RoutesError { path: path.to_path_buf(), line: 0, problem: error.into() }),
    }
}

/// Reads the lines of a file. Errors get the path and the line number.
fn read_lines<T>(
    reader: impl Read + Send,
    path: &Path,
    limits: &Limits,
    read: impl FnOnce(&mut TableReader<'_>) -> Result<T, RoutesProblem>,
) -> Result<T, RoutesError> {
    let mut table = TableReader { line: 0, limits: *limits, source: None };
    let read = match Source::new(reader, None) {
        Ok(source) => {
            table.source = Some(source);
            read(&mut table)
        }
        Err(error) => Err(RoutesProblem::Compression(error)),
    };
    read.map_err(|problem| RoutesError { path: path.to_path_buf(), line: table.line, problem })
}

/// The lines of a table.
struct TableReader<'r> {
    /// The open file, or `None` if it could not be opened.
    source: Option<Source<'r>>,
    /// Number of the current line, from 1.
    line: u64,
    limits: Limits,
}

/// A row of a table.
enum Row<'a> {
    /// Place and name of a target.
    Place(Place, &'a str),
    /// The last line, with the number of rows.
    End(u64),
}

impl TableReader<'_> {
    /// Returns the next line, or `None` at the end of the file.
    fn next_line(&mut self, bytes_max: usize) -> Result<Option<&[u8]>, RoutesProblem> {
        self.line += 1;
        let Some(source) = &mut self.source else { return Ok(None) };
        match next_line(source, bytes_max)? {
            ReadItem::Whole(line) => Ok(Some(line)),
            ReadItem::TooLong => Err(RoutesProblem::LongLine(bytes_max)),
            ReadItem::Partial | ReadItem::End => Ok(None),
        }
    }

    /// Reads the first two lines.
    fn read_header(&mut self) -> Result<RoutesHeader, RoutesProblem> {
        let first = self.next_line(self.limits.line_bytes_max)?.unwrap_or_default();
        let Some(version) = first.strip_prefix(MAGIC.as_bytes()) else {
            return Err(RoutesProblem::NotARouteTable(excerpt(first)));
        };
        if version != VERSION.as_bytes() {
            return Err(RoutesProblem::Version(excerpt(version)));
        }
        let second = self.next_line(HEADER_BYTES_MAX)?.ok_or(RoutesProblem::Truncated)?;
        let header: RoutesHeader = serde_json::from_slice(second).map_err(RoutesProblem::Header)?;
        header.check()?;
        Ok(header)
    }

    /// Reads the whole file and calls `each` for every target.
    fn read_rows(&mut self, mut each: impl FnMut(Place, &str)) -> Result<RoutesHeader, RoutesProblem> {
        let header = self.read_header()?;
        let (nodes, targets_max) = (header.nodes, self.limits.targets_max as u64);
        let (mut rows, mut core) = (0, 0);
        let announced = loop {
            let line = self.next_line(self.limits.line_bytes_max)?.ok_or(RoutesProblem::Truncated)?;
            match parse_row(line).ok_or_else(|| RoutesProblem::Row(excerpt(line)))? {
                Row::End(announced) => break announced,
                Row::Place(..) if rows >= targets_max => {
                    return Err(RoutesProblem::TooManyTargets(self.limits.targets_max));
                }
                Row::Place(Place::Node(node), name) if node >= nodes => {
                    return Err(RoutesProblem::NoSuchNode { name: excerpt(name.as_bytes()), node, nodes });
                }
                Row::Place(place, name) => {
                    core += u64::from(place == Place::Core);
                    rows += 1;
                    each(place, name);
                }
            }
        };
        if (rows, rows, core) != (announced, header.targets(), header.core_targets) {
            let (expected, expected_core) = (header.targets(), header.core_targets);
            return Err(RoutesProblem::Count { rows, core, expected, expected_core });
        }
        if self.next_line(self.limits.line_bytes_max)?.is_some() {
            return Err(RoutesProblem::AfterEnd);
        }
        Ok(header)
    }
}

/// Parses a row.
fn parse_row(line: &[u8]) -> Option<Row<'_>> {
    let line = str::from_utf8(line).ok()?;
    let (place, rest) = line.split_once(' ')?;
    if rest.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    match place {
        "core" => Some(Row::Place(Place::Core, rest)),
        "end" => rest.parse().ok().map(Row::End),
        node => node.parse().ok().map(|node| Row::Place(Place::Node(node), rest)),
    }
}

/// Returns the start of external bytes in a form for error texts.
fn excerpt(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(60)].escape_ascii().to_string()
}
