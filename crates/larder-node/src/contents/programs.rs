//! Programs of a modelled store: replies that cost processor and disk time, as CGI programs do.
//!
//! A program is a set of patterns for targets, and the cost of one request: CPU time, reads from the disk, and
//! bytes of the reply. CAP's prototype has three kinds of programs: light on the CPU, heavy on the CPU, and heavy
//! on CPU and disk (Casalicchio and Colajanni, section 5). HACC's document server takes about 200 ms for a
//! document and 0.5 to 2 s for a view (Zhang et al., 4.2). The papers give no other amounts, so the configuration
//! sets them.
//!
//! A request first uses its CPU time and then its reads, one after another, on the node's modelled machine
//! ([`crate::machine`]). Programs answer GET and HEAD; HEAD costs the same as GET. Replies say
//! `Cache-Control: no-store`. `Cache-Status` names the program.

use crate::body::Body;
use crate::config::ProgramConfig;
use crate::counters::Counters;
use crate::http::cache_status::Outcome;
use crate::machine::{Disk, Machine};
use crate::reply::Replies;
use crate::store;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use larder_core::TargetId;
use larder_core::rules::Glob;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a read.
const READ_BYTES: u64 = 8 << 10;

/// The programs of a node.
#[derive(Debug)]
pub(crate) struct Programs {
    programs: Vec<Program>,
    machine: Arc<Machine>,
    replies: Arc<Replies>,
    counters: Arc<Counters>,
}

/// One program.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    patterns: Vec<Glob>,
    cpu: Duration,
    reads: u32,
    reply: u64,
}

impl Programs {
    /// Creates the programs of a validated configuration on this machine.
    pub(super) fn new(
        programs: &[ProgramConfig],
        machine: &Arc<Machine>,
        replies: &Arc<Replies>,
        counters: &Arc<Counters>,
    ) -> Self {
        Self {
            programs: programs.iter().map(Program::new).collect(),
            machine: Arc::clone(machine),
            replies: Arc::clone(replies),
            counters: Arc::clone(counters),
        }
    }

    /// Returns the number of programs.
    pub(crate) fn len(&self) -> usize {
        self.programs.len()
    }

    /// Returns the program of a target.
    pub(crate) fn find(&self, path: &str, target: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.matches(path, target))
    }

    /// Returns the reply of a program. The request's URI has a path.
    pub(super) async fn run(&self, program: &Program, parts: &Parts) -> Response<Body> {
        self.counters.dynamic.add(1);
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return self.replies.method_not_allowed("GET, HEAD");
        }
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes();
        self.machine.cpu.work(program.cpu).await;
        if let Disk::Modelled(disks) = &self.machine.disk {
            let first = TargetId::of(target).0;
            for nth in 0..u64::from(program.reads) {
                disks.read(first.wrapping_add(nth), 0, READ_BYTES).await;
            }
        }
        self.machine.cpu.reply(program.reply).await;
        let body = match parts.method {
            Method::HEAD => Body::empty(),
            _ => Body::from_bytes(store::contents(target, 0, program.reply)),
        };
        let mut reply = self.replies.start(StatusCode::OK, Outcome::Program(program.name), body);
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(program.reply));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply
    }
}

impl Program {
    fn new(config: &ProgramConfig) -> Self {
        Self {
            // Leaked, because a node has few programs and every outcome names one.
            name: Box::leak(config.name.clone().into_boxed_str()),
            patterns: config.paths.iter().map(|path| Glob::new(path)).collect(),
            cpu: config.cpu,
            reads: config.reads,
            reply: config.reply.0,
        }
    }

    /// Returns whether a pattern matches: one with `?` path and query, any other the path.
    fn matches(&self, path: &str, target: &str) -> bool {
        let text = |pattern: &Glob| if pattern.as_str().contains('?') { target } else { path };
        self.patterns.iter().any(|pattern| pattern.matches(text(pattern).as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_with_a_question_mark_match_path_and_query() {
        for (pattern, path, query, fit) in [
            ("*.asp", "/a/b.asp", "x=1", true),
            ("*.asp", "/a/b.aspx", "", false),
            ("/*.nsf/*?OpenView*", "/a.nsf/v", "OpenView&Start=2", true),
            ("/*.nsf/*?OpenView*", "/a.nsf/v", "OpenDocument", false),
            ("/*.nsf/*?OpenView*", "/a.nsf/v", "", false),
        ] {
            let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
            let program = Program::new(&ProgramConfig::new("a", pattern));
            assert_eq!(program.matches(path, &target), fit, "{pattern} {target}");
        }
    }
}
