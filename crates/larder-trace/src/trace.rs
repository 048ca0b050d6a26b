//! The replayable requests of a file, in memory and in time order.
//!
//! Replayable requests are GET requests with status 200 and a body (see [`Record::is_replayable`]). In
//! formats without methods, status codes or sizes, every request counts as replayable.

use std::ops::ControlFlow;
use std::path::Path;

use larder_core::{Bytes, Time};

use crate::error::TraceError;
use crate::format::Format;
use crate::format::json_fields::JsonFields;
use crate::intern::Interner;
use crate::read::{Limits, Progress, ReadOptions, read};
use crate::record::{Client, Record};
use crate::report::{ReadEnd, ReadReport};
use crate::size_unit::SizeUnit;

/// A requested target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The path with the query, as logged. Bytes that are not allowed in a request line are written as `%XX`.
    /// In formats with numbered targets, it is `/` and the number.
    pub name: String,
    /// Size of the largest reply. In formats without sizes, it is [`LoadOptions::unsized_bytes`].
    pub size: Bytes,
}

/// A request of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time since the first request of the trace. Zero in formats without times.
    pub time: Time,
    /// The target: an index into [`Trace::targets`].
    pub target: u32,
    /// The client: numbered from 1 in order of first appearance; 0 if it is unknown.
    pub client: u32,
    /// Size of the body of this reply.
    pub size: Bytes,
}

/// Requests in time order, with equal times in file order, and their targets in order of first appearance in
/// the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The distinct targets.
    pub targets: Vec<Target>,
    /// The requests.
    pub requests: Vec<Request>,
    /// The unit of sizes.
    pub size_unit: SizeUnit,
    /// Time of the first request in nanoseconds since 1970 UTC, or since the origin of the file; `None`
    /// without times.
    pub origin_ns: Option<i64>,
}

/// Options for loading a trace.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The format. `None`: it is detected from the file.
    pub format: Option<Format>,
    /// The keys of JSON lines, as in [`ReadOptions`].
    pub json_fields: Option<JsonFields>,
    /// Limits on resources.
    pub limits: Limits,
    /// Size of a target in formats without sizes. Default: 1 byte, so that every object counts the same.
    pub unsized_bytes: Bytes,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { format: None, json_fields: None, limits: Limits::default(), unsized_bytes: Bytes(1) }
    }
}

impl Trace {
    /// Loads a file of any known format, compressed or not.
    ///
    /// # Errors
    /// As for [`read`]. A file without a replayable request is no error: the trace has no requests, and the
    /// report shows the contents of the file.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<(Self, ReadReport), TraceError> {
        Self::load_with(path, options, &mut |_| ())
    }

    /// Loads a file as [`Trace::load`] does, and reports the progress every few thousand lines.
    ///
    /// # Errors
    /// As for [`Trace::load`].
    pub fn load_with(
        path: &Path,
        options: &LoadOptions,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, ReadReport), TraceError> {
        Self::load_with_skipped(path, options, &mut |_| (), on_progress)
    }

    /// Loads a file as [`Trace::load_with`] does, and passes each record that cannot be replayed to
    /// `on_skipped`.
    ///
    /// # Errors
    /// As for [`Trace::load`].
    pub fn load_with_skipped(
        path: &Path,
        options: &LoadOptions,
        on_skipped: &mut dyn FnMut(&Record<'_>),
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, ReadReport), TraceError> {
        let mut loader = Loader::new(options);
        let json_fields = options.json_fields.clone();
        let read_options = ReadOptions { format: options.format, json_fields, limits: options.limits };
        let on_record = |record: &Record<'_>| {
            if !record.is_replayable() {
                on_skipped(record);
            }
            loader.take(record)
        };
        let mut report = read(path, &read_options, on_record, on_progress)?;
        report.replayable = loader.replayable;
        report.over_targets_max = loader.over_targets_max;
        if report.ended == ReadEnd::Stopped {
            report.ended = ReadEnd::RequestsMax;
        }
        Ok((loader.finish(report.format), report))
    }

    /// Returns the total size of all targets. A cache of this size holds everything.
    pub fn working_set(&self) -> Bytes {
        self.targets.iter().map(|target| target.size).sum()
    }
}

/// A request before the first time of the trace is known.
struct LoadedRequest {
    time_ns: i64,
    target: u32,
    client: u32,
    size: u64,
}

/// The state of loading a trace.
struct Loader {
    requests_max: usize,
    unsized_bytes: u64,
    targets: Interner,
    sizes: Vec<u64>,
    clients: Interner,
    loaded: Vec<LoadedRequest>,
    has_times: bool,
    has_sizes: bool,
    replayable: u64,
    over_targets_max: u64,
}

impl Loader {
    fn new(options: &LoadOptions) -> Self {
        let limits = options.limits;
        Self {
            requests_max: limits.requests_max,
            unsized_bytes: options.unsized_bytes.get(),
            targets: Interner::new(limits.targets_max, limits.target_name_bytes_max),
            sizes: Vec::new(),
            // The name of a client is at most one line long. Host names and addresses rarely exceed 64 bytes.
            clients: Interner::new(limits.clients_max, limits.clients_max.saturating_mul(64)),
            loaded: Vec::new(),
            has_times: false,
            has_sizes: false,
            replayable: 0,
            over_targets_max: 0,
        }
    }

    fn take(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if !record.is_replayable() {
            return ControlFlow::Continue(());
        }
        if self.loaded.len() >= self.requests_max {
            return ControlFlow::Break(());
        }
        self.replayable += 1;
        let Some(target) = self.targets.intern_key(record.target) else {
            self.over_targets_max += 1;
            return ControlFlow::Continue(());
        };
        let size = record.body.unwrap_or(self.unsized_bytes);
        match self.sizes.get_mut(target as usize) {
            Some(largest) => *largest = size.max(*largest),
            None => self.sizes.push(size),
        }
        let client = match record.client {
            Client::Name(name) => self.clients.intern(name).map_or(0, |index| index + 1),
            Client::Number(number) => self.clients.intern(&number.to_be_bytes()).map_or(0, |index| index + 1),
            Client::Unknown => 0,
        };
        self.has_times |= record.time_ns.is_some();
        self.has_sizes |= record.body.is_some();
        self.loaded.push(LoadedRequest { time_ns: record.time_ns.unwrap_or(0), target, client, size });
        ControlFlow::Continue(())
    }

    fn finish(mut self, format: Format) -> Trace {
        // Servers write a line when the reply ends, with the time at which the request arrived. Lines are
        // therefore slightly out of order. The sort is stable, so that requests of the same second stay in
        // file order.
        if !self.loaded.is_sorted_by_key(|request| request.time_ns) {
            self.loaded.sort_by_key(|request| request.time_ns);
        }
        let has_sizes = self.has_sizes || self.loaded.is_empty();
        let origin = self.loaded.first().map_or(0, |first| first.time_ns);
        let origin_ns = (self.has_times && !self.loaded.is_empty()).then_some(origin);
        let since = |time_ns: i64| Time::from_nanos(time_ns.abs_diff(origin));
        let numbered = format.has_numbered_targets();
        let targets = (0_u32..)
            .zip(&self.sizes)
            .map(|(index, &size)| Target {
                name: target_name(self.targets.key(index), numbered),
                size: Bytes(size),
            })
            .collect();
        // In place: both types have one size.
        let requests = self
            .loaded
            .into_iter()
            .map(|t| Request {
                time: since(t.time_ns),
                target: t.target,
                client: t.client,
                size: Bytes(t.size),
            })
            .collect();
        Trace { targets, requests, size_unit: format.size_unit(has_sizes), origin_ns }
    }
}

/// Converts a key to a name that is allowed in a request line.
pub(crate) fn target_name(key: &[u8], numbered: bool) -> String {
    if let (true, Ok(number)) = (numbered, <[u8; 8]>::try_from(key)) {
        return format!("/{}", u64::from_be_bytes(number));
    }
    let mut name = String::with_capacity(key.len());
    for &byte in key {
        if byte.is_ascii_graphic() {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LOG: &str = r#"b - - [20/Feb/2016:00:00:47 -0500] "GET /big HTTP/1.1" 200 10
a - - [20/Feb/2016:00:00:45 -0500] "GET /small x HTTP/1.1" 200 1
a - - [20/Feb/2016:00:00:46 -0500] "HEAD /big HTTP/1.1" 200 10

a - - [20/Feb/2016:00:00:46 -0500] "GET /gone HTTP/1.1" 404 10
a - - [20/Feb/2016:00:00:46 -0500] "GET /none HTTP/1.1" 200 -
not a line
b - - [20/Feb/2016:00:00:47 -0500] "GET /big HTTP/1.1" 200 30
"#;

    fn load(bytes: &[u8], options: &LoadOptions) -> (Trace, ReadReport) {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(bytes).expect("written");
        Trace::load(file.path(), options).expect("loads")
    }

    #[test]
    fn only_replayable_requests_are_kept_in_time_order() {
        let (trace, report) = load(LOG.as_bytes(), &LoadOptions::default());
        let target = |name: &str, size| Target { name: name.to_owned(), size: Bytes(size) };
        assert_eq!(trace.targets, [target("/big", 30), target("/small%20x", 1)]);
        let requests: Vec<_> =
            trace.requests.iter().map(|r| (r.time, r.target, r.client, r.size.get())).collect();
        let at = Time::from_secs;
        assert_eq!(requests, [(at(0), 1, 2, 1), (at(2), 0, 1, 10), (at(2), 0, 1, 30)]);
        assert_eq!((report.lines, report.records, report.replayable, report.malformed), (8, 6, 3, 1));
        assert_eq!(report.first_malformed[0].to_string(), "line 7: no valid time");
        assert_eq!(trace.working_set(), Bytes(31));
    }

    #[test]
    fn skipped_records_are_reported() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(LOG.as_bytes()).expect("written");
        let mut seen = Vec::new();
        let mut note = |record: &Record<'_>| seen.push((record.method, record.status, record.body));
        let options = LoadOptions::default();
        let (trace, _) =
            Trace::load_with_skipped(file.path(), &options, &mut note, &mut |_| ()).expect("loads");
        assert_eq!(trace.requests.len(), 3);
        use crate::record::Method::{Get, Head};
        assert_eq!(seen, [(Head, 200, Some(10)), (Get, 404, Some(10)), (Get, 200, Some(0))]);
    }

    #[test]
    fn limits_are_reported() {
        let few = |targets_max, requests_max| LoadOptions {
            limits: Limits { targets_max, requests_max, ..Limits::default() },
            ..LoadOptions::default()
        };
        let (trace, report) = load(LOG.as_bytes(), &few(1, 100));
        assert_eq!((trace.targets.len(), report.over_targets_max), (1, 1));
        let (trace, report) = load(LOG.as_bytes(), &few(100, 2));
        assert_eq!((trace.requests.len(), report.ended), (2, ReadEnd::RequestsMax));
    }

    #[test]
    fn bare_keys_have_no_times_and_the_given_size() {
        let keys: Vec<u8> = [7_u64, 9, 7].iter().flat_map(|key| key.to_be_bytes()).collect();
        let options = LoadOptions {
            format: Some(Format::Keys64),
            unsized_bytes: Bytes(4_096),
            ..LoadOptions::default()
        };
        let (trace, _) = load(&keys, &options);
        assert_eq!(trace.targets[0], Target { name: "/7".to_owned(), size: Bytes(4_096) });
        assert_eq!(trace.requests.iter().map(|r| r.target).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!((trace.origin_ns, trace.size_unit), (None, SizeUnit::Unknown));
    }
}
