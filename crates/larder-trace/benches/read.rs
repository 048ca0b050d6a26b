//! Speed of log reading, in bytes of log per second on one core.
//!
//! `cargo bench -p larder-trace --bench read`. The log is a synthetic one of a million lines (78 bytes each, 64,651
//! targets), already in memory: what is measured is parsing, and parsing with counting, not the disk. A Combined log is
//! the same with a referrer and a user agent of usual length behind each line.

use std::hint::black_box;
use std::ops::ControlFlow;
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

fn read(criterion: &mut Criterion) {
    let common = common();
    let combined = combined(&common);
    let options = ReadOptions::default();
    for (name, log) in [("common", &common), ("combined", &combined)] {
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
