//! Speed of log reading, in bytes of log per second on one core.
//!
//! The command is `cargo bench -p larder-trace --bench read`. The log is synthetic, with a million lines of
//! 78 bytes and 64,651 targets. It is in memory, so that the benchmark measures parsing, with and without
//! counting, but not the disk.
//!
//! The Combined log is the same log with a referrer and a user agent of usual length on each line. The
//! samples of the other formats are those of `tests/logs`, repeated to 16 MB.
//! of `tests/logs`, repeated to 16 MB.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder_trace::synth::{Recipe, generate};
use larder_trace::{ReadOptions, Stats, read_from, write_clf};

const REFERRER_AND_AGENT: &[u8] =
    b" \"https://www.example.org/some/page.html\" \"Mozilla/5.0 (X11; Linux x86_64; \
    rv:140.0) Gecko/20100101 Firefox/140.0\"";

fn common() -> Vec<u8> {
    let recipe = Recipe::by_name("combined-like").expect("a recipe");
    let recipe = Recipe { requests: 1_000_000, every_target: false, ..recipe };
    let mut log = Vec::new();
    write_clf(&generate(&recipe, 1, 1.0).expect("possible"), &mut log).expect("in memory");
    log
}

fn combined(common: &[u8]) -> Vec<u8> {
    let with = |line: &[u8]| [line, REFERRER_AND_AGENT, b"\n"].concat();
    common.strip_suffix(b"\n").unwrap_or(common).split(|&b| b == b'\n').flat_map(with).collect()
}

/// Returns a sample of the tests, repeated to about 16 MB.
fn repeated(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name);
    let sample = std::fs::read(path).expect("a sample");
    sample.repeat((16 << 20) / sample.len())
}

fn read(criterion: &mut Criterion) {
    let common = common();
    let combined = combined(&common);
    let options = ReadOptions::default();
    let samples = ["haproxy.log", "alb.log", "s3.log", "iis.log", "caddy.json", "larder.json", "nginx.json"];
    let samples = samples.map(|name| (name, repeated(name)));
    let logs = [("common", &common), ("combined", &combined)].into_iter();
    for (name, log) in logs.chain(samples.iter().map(|(name, log)| (*name, log))) {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(log.len() as u64));
        group.sample_size(20).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(6));
        group.bench_function("parse", |bencher| {
            bencher.iter(|| {
                let mut bytes = 0;
                let report = read_from(
                    log.as_slice(),
                    &options,
                    |record| {
                        bytes += record.body.unwrap_or(0);
                        ControlFlow::Continue(())
                    },
                    &mut |_| (),
                );
                black_box((bytes, report.expect("a good log")))
            });
        });
        if name.contains('.') {
            continue;
        }
        group.bench_function("stats", |bencher| {
            bencher.iter(|| {
                black_box(Stats::of_reader(log.as_slice(), &options, &mut |_| ()).expect("a good log"))
            });
        });
        group.finish();
    }
}

criterion_group!(benches, read);
criterion_main!(benches);
