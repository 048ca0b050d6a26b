//! The routing table as a file: what a node needs to place by yesterday's log, and what whoever reads it needs to know.
//!
//! ```text
//! larder-routes 1
//! {"nodes":4,"names":["a","b","c","d"],"memory_per_node_bytes":67108864, ... }
//! core /index.html
//! 2 /downloads/big.iso
//! end 2
//! ```
//!
//! The first line names the format and its version, the second is a [`RoutesHeader`] as JSON. Then follows a line for
//! each target of core and partition, most requested first: `core` or the owner's number, a space, the target as the
//! log has it (path and query). The last line counts them, so that a file cut short is noticed. A file whose name ends in
//! `.gz` or `.zst` is packed.
//!
//! A table is written beside its place and moved there whole, so that a node that reloads never sees half of one. Reading
//! trusts nothing: every line is checked against the header and the limits, and errors name file and line.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use larder_core::TargetId;
use larder_core::policy::table::{Place, RouteTable, RouteTableError};
use serde::{Deserialize, Serialize};

use super::analysis::{Analysis, WARD_NODES_MAX};
use super::costs::WardCosts;
use crate::error::TraceError;
use crate::line::{Piece, next_line};
use crate::read::Limits;
use crate::source::Source;
use crate::trace::Trace;
use crate::write::pack;

const MAGIC: &str = "larder-routes ";
const VERSION: &str = "1";
/// Longest header: a thousand nodes with names of full length fit.
const HEADER_BYTES_MAX: usize = 512 << 10;
const NAME_BYTES_MAX: usize = 255;

/// What a table was made for and from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutesHeader {
    /// Number of nodes; owners count from 0.
    pub nodes: u16,
    /// The nodes' names in the order of their numbers; none if they have only numbers.
    #[serde(default)]
    pub names: Vec<String>,
    /// Memory of each node's cache.
    pub memory_per_node_bytes: u64,
    /// The prices and where they come from.
    pub costs: WardCosts,
    /// The log's name as given; `-` for a stream.
    pub log: String,
    /// The log's first request in nanoseconds since 1970 UTC; none without times.
    pub log_first_ns: Option<i64>,
    /// The log's last request, likewise.
    pub log_last_ns: Option<i64>,
    /// The log's requests.
    pub log_requests: u64,
    /// Targets in the core.
    pub core_targets: u64,
    /// Their sizes together: what every node keeps.
    pub core_bytes: u64,
    /// Targets in the partition.
    pub partition_targets: u64,
    /// Share of the requests expected to be served where they arrive, 0 to 1.
    pub local_share: f64,
}

impl RoutesHeader {
    /// The header of an analysis of a trace.
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

    /// Whether a table may have this header.
    ///
    /// # Errors
    /// What is wrong with it: the number of nodes, their names, or a price.
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
            return Err(RoutesProblem::Name(shown(name.as_bytes())));
        }
        let mut sorted: Vec<_> = self.names.iter().collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(RoutesProblem::Twice(pair[0].clone()));
        }
        if self.costs.is_valid() { Ok(()) } else { Err(RoutesProblem::Costs) }
    }

    const fn targets(&self) -> u64 {
        self.core_targets.saturating_add(self.partition_targets)
    }
}

/// What is wrong with a routing table.
#[derive(Debug, thiserror::Error)]
pub enum RoutesProblem {
    /// The first line is something else.
    #[error("not a routing table: it starts with \"{0}\" where \"larder-routes 1\" is expected")]
    NotATable(String),
    /// Another version than this one.
    #[error("a routing table of version \"{0}\"; this program reads version 1")]
    Version(String),
    /// The second line is no header.
    #[error("the header is not understood: {0}")]
    Header(serde_json::Error),
    /// Too few or too many nodes.
    #[error("a routing table is for 1 to {WARD_NODES_MAX} nodes, not {0}")]
    Nodes(u16),
    /// Names for other than all nodes.
    #[error("{names} names for {nodes} nodes")]
    Names {
        /// How many names.
        names: usize,
        /// How many nodes.
        nodes: u16,
    },
    /// A name that is none.
    #[error("\"{0}\" is no name of a node: 1 to {NAME_BYTES_MAX} visible ASCII characters")]
    Name(String),
    /// Two nodes of one name.
    #[error("two nodes are named \"{0}\"")]
    Twice(String),
    /// A price is not a number of at least 0.
    #[error("the costs of a handoff and of a byte from disk must be numbers of at least 0")]
    Costs,
    /// A line that is no row.
    #[error("\"{0}\" is no row: `core` or an owner's number, a space, a target")]
    Row(String),
    /// An owner that is not among the nodes.
    #[error("\"{name}\" belongs to node {node}, and the table is for {nodes} nodes, which count from 0")]
    NoSuchNode {
        /// The target.
        name: String,
        /// Its owner.
        node: u16,
        /// How many nodes there are.
        nodes: u16,
    },
    /// A line over [`Limits::line_bytes_max`].
    #[error("a line longer than {0} bytes")]
    LongLine(usize),
    /// More targets than [`Limits::targets_max`].
    #[error("more than {0} targets")]
    TooManyTargets(usize),
    /// The rows are other in number than the header or the last line says.
    #[error("{rows} rows ({core} of the core) where {expected} ({expected_core}) are announced")]
    Count {
        /// Rows found.
        rows: u64,
        /// Of them in the core.
        core: u64,
        /// Rows announced.
        expected: u64,
        /// Of them in the core.
        expected_core: u64,
    },
    /// There is no last line.
    #[error("the file is cut short: there is no line \"end\"")]
    CutShort,
    /// There is something behind the last line.
    #[error("something stands behind the line \"end\"")]
    AfterEnd,
    /// The places make no table.
    #[error(transparent)]
    Table(#[from] RouteTableError),
    /// The file is packed in an unknown way.
    #[error(transparent)]
    Packed(TraceError),
    /// The system failed, or the packed stream is damaged.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
}

/// A routing table that could not be read. The file's fault, unless the problem is [`RoutesProblem::Io`]: reading it
/// again gives the same.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {problem}", path.display())]
pub struct RoutesError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 for the file as a whole.
    pub line: u64,
    /// What is wrong.
    #[source]
    pub problem: RoutesProblem,
}

/// Writes a table.
///
/// # Errors
/// What `out` gives.
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

/// Writes a table to a file, replacing it in one step; packed if its name ends in `.gz` or `.zst`.
///
/// # Errors
/// When the file cannot be made, written or moved to its place. What stood there before then still stands.
pub fn save_routes(header: &RoutesHeader, analysis: &Analysis, trace: &Trace, path: &Path) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    let file = File::create(&beside)?;
    let written = pack(path, &file, |mut out| write_routes(header, analysis, trace, &mut out))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The table has failed already; a rest that cannot be removed changes nothing.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Reads a table from a file; each target's id is `id_of` its name as the log has it.
///
/// # Errors
/// [`RoutesError`], with file and line.
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

/// [`read_routes`] from any reader, packed or not; `path` is its name in errors.
///
/// # Errors
/// As [`read_routes`].
pub fn read_routes_from(
    reader: impl Read,
    path: &Path,
    limits: &Limits,
    id_of: impl Fn(&str) -> TargetId,
) -> Result<(RoutesHeader, RouteTable), RoutesError> {
    lines_of(reader, path, limits, |lines| {
        let mut places = Vec::new();
        let header = lines.rows(|place, name| places.push((id_of(name), place)))?;
        let table = RouteTable::new(header.nodes, places)?;
        Ok((header, table))
    })
}

/// Reads a table row by row, the most requested target first, each with its name as the log has it. Rows are told as they are read, so
/// what follows may still be wrong.
///
/// # Errors
/// As [`read_routes`], but for a target that stands there twice.
pub fn each_route(
    path: &Path,
    limits: &Limits,
    row: impl FnMut(Place, &str),
) -> Result<RoutesHeader, RoutesError> {
    match File::open(path) {
        Ok(file) => lines_of(file, path, limits, |lines| lines.rows(row)),
        Err(error) => Err(RoutesError { path: path.to_path_buf(), line: 0, problem: error.into() }),
    }
}

/// Reads a file's lines, with its name and the line in errors.
fn lines_of<T>(
    reader: impl Read,
    path: &Path,
    limits: &Limits,
    read: impl FnOnce(&mut Lines<'_>) -> Result<T, RoutesProblem>,
) -> Result<T, RoutesError> {
    let mut lines = Lines { line: 0, limits: *limits, source: None };
    let read = match Source::new(reader, None) {
        Ok(source) => {
            lines.source = Some(source);
            read(&mut lines)
        }
        Err(error) => Err(RoutesProblem::Packed(error)),
    };
    read.map_err(|problem| RoutesError { path: path.to_path_buf(), line: lines.line, problem })
}

/// A table's lines, one after the other.
struct Lines<'r> {
    source: Option<Source<'r>>,
    line: u64,
    limits: Limits,
}

/// What stands in a row.
enum Row<'a> {
    Place(Place, &'a str),
    End(u64),
}

impl Lines<'_> {
    /// The next line; `None` at the end of the file.
    fn next(&mut self, bytes_max: usize) -> Result<Option<&[u8]>, RoutesProblem> {
        self.line += 1;
        let Some(source) = &mut self.source else { return Ok(None) };
        match next_line(source, bytes_max)? {
            Piece::Whole(line) => Ok(Some(line)),
            Piece::TooLong => Err(RoutesProblem::LongLine(bytes_max)),
            Piece::Partial | Piece::End => Ok(None),
        }
    }

    fn header(&mut self) -> Result<RoutesHeader, RoutesProblem> {
        let first = self.next(self.limits.line_bytes_max)?.unwrap_or_default();
        let Some(version) = first.strip_prefix(MAGIC.as_bytes()) else {
            return Err(RoutesProblem::NotATable(shown(first)));
        };
        if version != VERSION.as_bytes() {
            return Err(RoutesProblem::Version(shown(version)));
        }
        let second = self.next(HEADER_BYTES_MAX)?.ok_or(RoutesProblem::CutShort)?;
        let header: RoutesHeader = serde_json::from_slice(second).map_err(RoutesProblem::Header)?;
        header.check()?;
        Ok(header)
    }

    fn rows(&mut self, mut each: impl FnMut(Place, &str)) -> Result<RoutesHeader, RoutesProblem> {
        let header = self.header()?;
        let (nodes, targets_max) = (header.nodes, self.limits.targets_max as u64);
        let (mut rows, mut core) = (0, 0);
        let announced = loop {
            let line = self.next(self.limits.line_bytes_max)?.ok_or(RoutesProblem::CutShort)?;
            match row(line).ok_or_else(|| RoutesProblem::Row(shown(line)))? {
                Row::End(announced) => break announced,
                Row::Place(..) if rows >= targets_max => {
                    return Err(RoutesProblem::TooManyTargets(self.limits.targets_max));
                }
                Row::Place(Place::Node(node), name) if node >= nodes => {
                    return Err(RoutesProblem::NoSuchNode { name: shown(name.as_bytes()), node, nodes });
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
        if self.next(self.limits.line_bytes_max)?.is_some() {
            return Err(RoutesProblem::AfterEnd);
        }
        Ok(header)
    }
}

fn row(line: &[u8]) -> Option<Row<'_>> {
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

/// The beginning of foreign bytes, as an error may show it.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(60)].escape_ascii().to_string()
}
