//! Writing of a trace as an access log.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::format::timestamp;
use crate::trace::Trace;

/// Start time of traces without times or without a known origin: 1 June 1998, 00:00 UTC. In seconds since
/// 1970.
pub(crate) const ORIGIN_S: i64 = 896_659_200;

/// Writes a trace in the Common Log Format.
///
/// Each request is a GET with status 200. Times are in UTC and truncated to seconds. Client n is written as
/// `cn`, and an unknown client as `-`. Loading the log gives the same requests and targets, apart from the
/// truncated times.
///
/// # Errors
/// The error of `out`, for example that of a closed pipe.
pub fn write_clf(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let origin_ns = trace.origin_ns.unwrap_or(ORIGIN_S * 1_000_000_000);
    let mut second = None;
    let mut date = [0; 26];
    let mut line: Vec<u8> = Vec::with_capacity(256);
    for request in &trace.requests {
        let since = i64::try_from(request.time.as_nanos()).unwrap_or(i64::MAX);
        let now = origin_ns.saturating_add(since).div_euclid(1_000_000_000);
        if second != Some(now) {
            second = Some(now);
            date = timestamp::write_common(now);
        }
        line.clear();
        match request.client {
            0 => line.push(b'-'),
            client => write!(line, "c{client}")?,
        }
        line.extend_from_slice(b" - - [");
        line.extend_from_slice(&date);
        line.extend_from_slice(b"] \"GET ");
        line.extend_from_slice(trace.targets[request.target as usize].name.as_bytes());
        writeln!(line, " HTTP/1.0\" 200 {}", request.size.get())?;
        out.write_all(&line)?;
    }
    Ok(())
}

/// Writes a trace in the Common Log Format to a file, and replaces the file. The file is compressed if its
/// name ends in `.gz` or `.zst`.
///
/// # Errors
/// The file cannot be created or written.
pub fn save_clf(trace: &Trace, path: &Path) -> io::Result<()> {
    write_compressed(path, &File::create(path)?, |mut out| write_clf(trace, &mut out))
}

/// Passes a writer for the file to `write`. The file is compressed if the name of `path` ends in `.gz` or
/// `.zst`.
pub(crate) fn write_compressed(
    path: &Path,
    file: &File,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(256 << 10, file);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("zst") => {
            let mut packed = BufWriter::new(zstd::stream::write::Encoder::new(file, 3)?);
            write(&mut packed)?;
            packed.into_inner()?.finish()?.flush()
        }
        Some("gz") => {
            let level = flate2::Compression::default();
            let mut packed = BufWriter::new(flate2::write::GzEncoder::new(file, level));
            write(&mut packed)?;
            packed.into_inner()?.finish()?.flush()
        }
        _ => {
            write(&mut file)?;
            file.flush()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use larder_core::{Bytes, Time};
    use proptest::prelude::*;

    use super::*;
    use crate::{LoadOptions, Request, SizeUnit, Target};

    #[test]
    fn compressed_and_plain_logs_are_equal() {
        let recipe = crate::synth::Recipe::zipf(50, 500, 0.8);
        let trace = crate::synth::generate(&recipe, 1, 1.0).expect("possible");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let load = |name: &str| {
            let path = directory.path().join(name);
            save_clf(&trace, &path).expect("written");
            Trace::load(&path, &LoadOptions::default()).expect("loads")
        };
        let (plain, report) = load("a.log");
        assert_eq!(report.compression, crate::Compression::None);
        assert_eq!(plain.targets, trace.targets);
        for (name, compression) in [("a.gz", crate::Compression::Gzip), ("a.zst", crate::Compression::Zstd)] {
            let (loaded, report) = load(name);
            assert_eq!(report.compression, compression);
            assert_eq!(loaded, plain);
        }
    }

    proptest! {
        #[test]
        fn a_written_log_is_loaded_unchanged(asks in prop::collection::vec((0_u64..100_000, 0_u32..5, 0_u32..4), 1..60)) {
            let mut asks = asks;
            asks.sort_by_key(|ask| ask.0);
            // Loading numbers targets and clients in order of first appearance. Times are counted from the
            // first request.
            let first = asks[0].0;
            let (mut targets, mut clients) = (Vec::new(), vec![0]);
            let place = |seen: &mut Vec<u32>, x: u32| {
                seen.iter().position(|&y| y == x).unwrap_or_else(|| { seen.push(x); seen.len() - 1 }) as u32
            };
            let requests: Vec<_> = asks
                .iter()
                .map(|&(at, target, client)| Request {
                    time: Time::from_secs(at - first),
                    target: place(&mut targets, target),
                    client: place(&mut clients, client),
                    size: Bytes(u64::from(target) + 1),
                })
                .collect();
            let targets = targets
                .iter()
                .map(|t| Target { name: format!("/t/{t}?q"), size: Bytes(u64::from(*t) + 1) })
                .collect();
            let origin_ns = Some((ORIGIN_S + first as i64) * 1_000_000_000);
            let trace = Trace { targets, requests, size_unit: SizeUnit::Bytes, origin_ns };
            let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
            let mut text = Vec::new();
            write_clf(&trace, &mut text).expect("in memory");
            file.write_all(&text).expect("written");
            let (loaded, _) = Trace::load(file.path(), &LoadOptions::default()).expect("loads");
            prop_assert_eq!(loaded, trace);
        }
    }
}
