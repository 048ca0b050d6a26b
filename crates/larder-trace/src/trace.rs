//! The replayable requests of a file, in memory and in time order.
//!
//! Kept are the requests a cluster can be asked again: GET, status 200, a body (see [`Record::is_replayable`]). In
//! formats without methods, codes or sizes every request counts as such.

use std::ops::ControlFlow;
use std::path::Path;

use larder_core::{Bytes, Time};
use serde::Serialize;

use crate::error::TraceError;
use crate::format::Format;
use crate::format::json_fields::JsonFields;
use crate::intern::Interner;
use crate::read::{Limits, Progress, ReadOptions, read};
use crate::record::{Client, Record};
use crate::report::{Ended, ReadReport};

/// A thing that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Path with query as logged; bytes that cannot stand in a request line are written `%XX`. In formats with
    /// numbered targets, `/` and the number.
    pub name: String,
    /// Its largest reply; [`LoadOptions::unsized_bytes`] in formats without sizes.
    pub size: Bytes,
}

/// One request of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When, counted from the trace's first request. Zero in formats without times.
    pub time: Time,
    /// Which target: an index into [`Trace::targets`].
    pub target: u32,
    /// Who: from 1 in order of first appearance, 0 if unknown.
    pub client: u32,
    /// Body of this reply.
    pub size: Bytes,
}

/// What sizes are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SizeUnit {
    /// Bytes.
    Bytes,
    /// Tokens of a language model.
    Tokens,
    /// The file states no sizes.
    Unknown,
}

impl SizeUnit {
    /// The unit of a file, whose format may leave it to the server whether sizes are logged.
    pub const fn of(format: Format, has_sizes: bool) -> Self {
        match format {
            Format::Mooncake => Self::Tokens,
            Format::Sdsc | Format::Keys64 => Self::Unknown,
            _ if has_sizes => Self::Bytes,
            _ => Self::Unknown,
        }
    }
}

/// Requests in time order (equal times in file order), and their targets in order of first appearance in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The distinct targets.
    pub targets: Vec<Target>,
    /// The requests.
    pub requests: Vec<Request>,
    /// What sizes are counted in.
    pub size_unit: SizeUnit,
    /// The first request's time in nanoseconds since 1970 UTC (or the file's own origin); `None` without times.
    pub origin_ns: Option<i64>,
}

/// How to load a trace.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The format; told from the file if `None`.
    pub format: Option<Format>,
    /// The keys of JSON lines, as in [`ReadOptions`].
    pub json_fields: Option<JsonFields>,
    /// What may be used at most.
    pub limits: Limits,
    /// The size of a target in formats without sizes. Default 1 byte: every object counts the same.
    pub unsized_bytes: Bytes,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { format: None, json_fields: None, limits: Limits::default(), unsized_bytes: Bytes(1) }
    }
}

impl Trace {
    /// Loads a file of any known format, unpacked on the way.
    ///
    /// # Errors
    /// As [`read`]. A trace without a replayable request is no error: its `requests` are empty, and the report says
    /// what was there.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<(Self, ReadReport), TraceError> {
        Self::load_with(path, options, &mut |_| ())
    }

    /// [`Trace::load`] with a progress report every few thousand lines.
    ///
    /// # Errors
    /// As [`Trace::load`].
    pub fn load_with(
        path: &Path,
        options: &LoadOptions,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, ReadReport), TraceError> {
        Self::load_noting(path, options, &mut |_| (), on_progress)
    }

    /// [`Trace::load_with`], each record that cannot be replayed handed to `on_left_out`.
    ///
    /// # Errors
    /// As [`Trace::load`].
    pub fn load_noting(
        path: &Path,
        options: &LoadOptions,
        on_left_out: &mut dyn FnMut(&Record<'_>),
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, ReadReport), TraceError> {
        let mut loader = Loader::new(options);
        let json_fields = options.json_fields.clone();
        let read_options = ReadOptions { format: options.format, json_fields, limits: options.limits };
        let on_record = |record: &Record<'_>| {
            if !record.is_replayable() {
                on_left_out(record);
            }
            loader.take(record)
        };
        let mut report = read(path, &read_options, on_record, on_progress)?;
        report.replayable = loader.replayable;
        report.over_targets_max = loader.over_targets_max;
        if report.ended == Ended::Stopped {
            report.ended = Ended::RequestsMax;
        }
        Ok((loader.finish(report.format), report))
    }

    /// All targets' sizes together: the memory that holds everything.
    pub fn working_set(&self) -> Bytes {
        self.targets.iter().map(|target| target.size).sum()
    }
}

/// A request before the trace's first time is known.
struct Taken {
    time_ns: i64,
    target: u32,
    client: u32,
    size: u64,
}

struct Loader {
    requests_max: usize,
    unsized_bytes: u64,
    targets: Interner,
    sizes: Vec<u64>,
    clients: Interner,
    taken: Vec<Taken>,
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
            // A client's name is at most a line long; host names and addresses rarely pass 64 bytes.
            clients: Interner::new(limits.clients_max, limits.clients_max.saturating_mul(64)),
            taken: Vec::new(),
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
        if self.taken.len() >= self.requests_max {
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
        self.taken.push(Taken { time_ns: record.time_ns.unwrap_or(0), target, client, size });
        ControlFlow::Continue(())
    }

    fn finish(mut self, format: Format) -> Trace {
        // Servers write a line when the reply ends and stamp it with the request's begin: lines are a little out of
        // order. The sort is stable, so what a second holds stays in file order.
        if !self.taken.is_sorted_by_key(|taken| taken.time_ns) {
            self.taken.sort_by_key(|taken| taken.time_ns);
        }
        let has_sizes = self.has_sizes || self.taken.is_empty();
        let origin = self.taken.first().map_or(0, |first| first.time_ns);
        let since = |time_ns: i64| Time::from_nanos(time_ns.abs_diff(origin));
        let numbered = format.has_numbered_targets();
        let targets = (0_u32..)
            .zip(&self.sizes)
            .map(|(index, &size)| Target { name: name(self.targets.key(index), numbered), size: Bytes(size) })
            .collect();
        let requests = self
            .taken
            .iter()
            .map(|t| Request {
                time: since(t.time_ns),
                target: t.target,
                client: t.client,
                size: Bytes(t.size),
            })
            .collect();
        let origin_ns = (self.has_times && !self.taken.is_empty()).then_some(origin);
        Trace { targets, requests, size_unit: SizeUnit::of(format, has_sizes), origin_ns }
    }
}

/// A key as it can stand in a request line.
pub(crate) fn name(key: &[u8], numbered: bool) -> String {
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
    fn what_is_left_out_is_handed_over() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(LOG.as_bytes()).expect("written");
        let mut seen = Vec::new();
        let mut note = |record: &Record<'_>| seen.push((record.method, record.status, record.body));
        let options = LoadOptions::default();
        let (trace, _) = Trace::load_noting(file.path(), &options, &mut note, &mut |_| ()).expect("loads");
        assert_eq!(trace.requests.len(), 3);
        use crate::record::Method::{Get, Head};
        assert_eq!(seen, [(Head, 200, Some(10)), (Get, 404, Some(10)), (Get, 200, Some(0))]);
    }

    #[test]
    fn limits_end_in_named_outcomes() {
        let few = |targets_max, requests_max| LoadOptions {
            limits: Limits { targets_max, requests_max, ..Limits::default() },
            ..LoadOptions::default()
        };
        let (trace, report) = load(LOG.as_bytes(), &few(1, 100));
        assert_eq!((trace.targets.len(), report.over_targets_max), (1, 1));
        let (trace, report) = load(LOG.as_bytes(), &few(100, 2));
        assert_eq!((trace.requests.len(), report.ended), (2, Ended::RequestsMax));
    }

    #[test]
    fn keys_have_no_times_and_a_size_by_choice() {
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
