//! Requests of a load: one URL, a list, or a trace.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_load::{Replay, TARGET_BYTES_MAX, target};
use larder_trace::{LoadOptions, Trace};

use crate::demo::spinner;
use crate::outcome::usage;

/// Most lines of a list.
const LINES_MAX: usize = 100_000_000;

/// Targets, and the order in which they are requested.
#[derive(Debug)]
pub(super) struct RequestList {
    pub(super) targets: Arc<[String]>,
    pub(super) order: Arc<[u32]>,
    pub(super) sizes: Option<Arc<[u64]>>,
    pub(super) times: Option<Arc<[Duration]>>,
    /// Whether the only target is the URL of the command line.
    pub(super) single: bool,
}

impl RequestList {
    pub(super) fn single(name: &str) -> Self {
        Self {
            targets: [target::request_target(name).into_owned()].into(),
            order: [0].into(),
            sizes: None,
            times: None,
            single: true,
        }
    }

    pub(super) fn trace(path: &Path, quiet: bool) -> anyhow::Result<Self> {
        let spinner = (!quiet).then(|| spinner(&format!("reading {}", path.display())));
        let loaded = Trace::load(path, &LoadOptions::default()).with_context(|| path.display().to_string());
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        let (trace, _) = loaded?;
        let replay = Replay::from(&trace);
        if replay.order.is_empty() {
            return Err(usage(format!(
                "{} has no request that can be replayed (GET, status 200, with a body)",
                path.display()
            )));
        }
        Ok(Self {
            targets: replay.targets,
            order: replay.order,
            sizes: Some(replay.sizes),
            times: Some(replay.times),
            single: false,
        })
    }

    pub(super) fn list(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Self::read_list(BufReader::new(file)).with_context(|| path.display().to_string())
    }

    fn read_list(mut lines: impl BufRead) -> anyhow::Result<Self> {
        let mut indexes: HashMap<String, u32> = HashMap::new();
        let mut sizes: Vec<Option<u64>> = Vec::new();
        let mut order = Vec::new();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            // The limit has room for a size and a tab before the target, and for one byte that reveals a line
            // that is too long.
            let limit = TARGET_BYTES_MAX as u64 + 32;
            if lines.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if line.len() as u64 == limit || order.len() == LINES_MAX {
                return Err(usage(format!("line {number}: too long, or more than {LINES_MAX} lines")));
            }
            let text =
                std::str::from_utf8(&line).map_err(|_| usage(format!("line {number}: invalid UTF-8")))?;
            let text = text.trim_end_matches(['\n', '\r']);
            if text.is_empty() {
                continue;
            }
            let (size, name) = match text.split_once('\t') {
                None => (None, text),
                Some((size, name)) => {
                    let size = size.parse();
                    (Some(size.map_err(|_| usage(format!("line {number}: no size before the tab")))?), name)
                }
            };
            let next = u32::try_from(indexes.len()).context("too many targets")?;
            let index = *indexes.entry(target::request_target(name).into_owned()).or_insert(next);
            if index == next {
                sizes.push(size);
            } else if sizes[index as usize] != size {
                return Err(usage(format!("line {number}: the target is listed twice with different sizes")));
            }
            order.push(index);
        }
        if order.is_empty() {
            return Err(usage("the list is empty"));
        }
        let mut targets = vec![String::new(); indexes.len()];
        for (name, index) in indexes {
            targets[index as usize] = name;
        }
        let sizes: Option<Vec<u64>> = sizes.into_iter().collect();
        Ok(Self {
            targets: targets.into(),
            order: order.into(),
            sizes: sizes.map(Into::into),
            times: None,
            single: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_order_and_names_each_target_once() {
        let source = RequestList::read_list(&b"10\t/a\n20\t/b c\r\n\n10\t/a\n"[..]).unwrap();
        assert_eq!(*source.targets, ["/a", "/b%20c"]);
        assert_eq!(*source.order, [0, 1, 0]);
        assert_eq!(source.sizes.as_deref(), Some(&[10, 20][..]));
        let bare = RequestList::read_list(&b"/a\n3\t/b"[..]).unwrap();
        assert_eq!((bare.order.len(), bare.sizes), (2, None));
    }

    #[test]
    fn an_invalid_list_is_refused_with_the_line_number() {
        let long = format!("/ok\n/{}\n", "x".repeat(TARGET_BYTES_MAX + 40));
        for (text, part) in [
            (&b""[..], "empty"),
            (b"\n\n", "empty"),
            (b"/a\nbig\t/b", "line 2: no size"),
            (b"1\t/a\n2\t/a", "line 2: the target"),
            (b"/\xff", "line 1: invalid UTF-8"),
            (long.as_bytes(), "line 2: too long"),
        ] {
            let error = RequestList::read_list(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
