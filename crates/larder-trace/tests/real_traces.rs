//! Statistics of real traces. `LARDER_TRACES` is their folder. The default is `../shared/traces` beside the
//! workspace. The traces are third-party data and not part of the project. If a trace is absent, its test is
//! skipped.
//!
//! The expected figures are from an independent count of the same files, with a regular expression and a
//! dictionary.

use std::path::{Path, PathBuf};

use larder_core::cache::{Block, TreeCache};
use larder_core::policy::table::Place;
use larder_core::{Bytes, TargetId};
use larder_trace::{Format, Limits, LoadOptions, Prompts, ReadOptions, Stats, Trace, ward};

fn file(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let path = std::env::var_os("LARDER_TRACES").map_or(beside, PathBuf::from).join(name);
    if path.exists() {
        return Some(path);
    }
    larder_testkit::skip(&format!("needs the trace {} (LARDER_TRACES names the folder)", path.display()));
    None
}

fn stats(path: &Path) -> Stats {
    Stats::of_file(path, &ReadOptions::default(), &mut |_| ()).expect("a readable trace")
}

/// Returns the memory that covers 50, 90, 97, 98 and 99 % of the requests, in MB with one decimal.
fn memory_mb(stats: &Stats) -> Vec<String> {
    [500, 900, 970, 980, 990]
        .iter()
        .filter_map(|&permille| stats.coverage_at(permille)?.bytes)
        .map(|bytes| format!("{:.1}", bytes as f64 / 1e6))
        .collect()
}

/// Returns lines, requests, targets, working set in MB, mean reply in bytes and the share of the hottest
/// target in percent.
fn figures(stats: &Stats) -> (u64, u64, u64, String, String, String) {
    let lines = stats.read.as_ref().expect("read from a file").lines;
    let working_set = format!("{:.1}", stats.working_set.expect("sizes") as f64 / 1e6);
    let reply = format!("{:.0}", stats.reply_mean.expect("sizes"));
    let hottest = format!("{:.1}", stats.hottest_share * 100.0);
    (lines, stats.requests, stats.targets, working_set, reply, hottest)
}

#[test]
fn epa_1995() {
    let Some(path) = file("epa-1995.clf.zst") else { return };
    let stats = stats(&path);
    let expected = (47_726, 35_215, 5_070, "113.2".into(), "8258".into(), "7.0".into());
    assert_eq!(figures(&stats), expected);
    assert_eq!(memory_mb(&stats), ["0.2", "39.1", "89.7", "96.4", "105.7"]);
}

#[test]
fn blog_2016() {
    let Some(path) = file("blog-2016.clf.zst") else { return };
    let stats = stats(&path);
    let expected = (206_839, 94_986, 3_281, "212.9".into(), "57797".into(), "7.9".into());
    assert_eq!(figures(&stats), expected);
    assert_eq!(memory_mb(&stats), ["2.1", "58.3", "116.3", "127.9", "146.9"]);
}

#[test]
fn scarab_2016() {
    let Some(path) = file("scarab-recs-2016.u64be.zst") else { return };
    let stats = stats(&path);
    assert_eq!((stats.requests, stats.targets), (1_245_184, 258_368));
    assert_eq!((stats.working_set, stats.span), (None, None));
}

#[test]
fn mooncake_conversation() {
    let Some(path) = file("mooncake-conversation.jsonl.zst") else { return };
    let stats = stats(&path);
    let read = stats.read.as_ref().expect("read from a file");
    assert_eq!((read.format, read.lines, read.malformed), (Format::Mooncake, 12_031, 0));
    assert_eq!((stats.requests, stats.targets), (288_500, 182_790));
    let tokens = stats.tokens_mean.expect("tokens");
    assert_eq!((tokens.input.round(), tokens.output.round()), (12_035.0, 343.0));
    assert_eq!(format!("{:.1}", stats.endless_hit_ratio * 100.0), "36.6");
}

#[test]
fn a_trace_has_the_figures_of_its_file() {
    let Some(path) = file("epa-1995.clf.zst") else { return };
    let (trace, report) = Trace::load(&path, &LoadOptions::default()).expect("a readable trace");
    let (of_trace, of_file) = (Stats::of_trace(&trace), stats(&path));
    assert_eq!(report.replayable, trace.requests.len() as u64);
    assert_eq!((of_trace.requests, of_trace.targets), (of_file.requests, of_file.targets));
    assert_eq!(of_trace.working_set, of_file.working_set);
    assert_eq!(of_trace.zipf, of_file.zipf);
    assert_eq!(trace.working_set().get(), of_file.working_set.expect("sizes"));
}

#[test]
fn a_per_minute_table_is_refused() {
    let Some(path) = file("clarknet-1995-per-minute.csv.zst") else { return };
    let error = Trace::load(&path, &LoadOptions::default()).expect_err("a CSV of counts");
    assert!(error.to_string().contains("datetime,view"), "{error}");
}

/// The chains of prompts find the same blocks in an endless tree as single blocks find: every block has its parents.
#[test]
fn mooncake_prompts_reuse_a_third_of_their_blocks() {
    let Some(path) = file("mooncake-conversation.jsonl.zst") else { return };
    let (trace, report) = Prompts::load(&path, &Limits::default()).expect("a readable trace");
    assert_eq!((report.records, report.malformed), (12_031, 0));
    let mut cache = TreeCache::new(u64::MAX, usize::MAX);
    let (mut blocks, mut hits) = (0, 0);
    for (prompt, stamp) in trace.prompts().iter().zip(0..) {
        let block = |id: &u64| Block { id: TargetId(*id), tokens: trace.block_tokens() };
        let chain: Vec<Block> = trace.blocks(prompt).iter().map(block).collect();
        blocks += chain.len();
        hits += cache.depth(&chain);
        assert_eq!(cache.touch(&chain, stamp), chain.len());
    }
    assert_eq!((blocks, cache.len()), (288_500, 182_790));
    assert_eq!(format!("{:.1}", hits as f64 / blocks as f64 * 100.0), "36.6");
}

/// Runs ward-analysis of a real log. Each node has memory for a fifth of the log.
fn ward(trace: &Trace, nodes: u16) -> ward::Analysis {
    let memory_per_node = Bytes(trace.working_set().get() / 5);
    let cluster = ward::WardCluster { nodes, memory_per_node, costs: ward::WardCosts::ward01() };
    ward::ward_analysis(&ward::Frequencies::of(trace), &cluster, ward::CoreChoice::Best).expect("a cluster")
}

#[test]
fn epa_1995_has_an_even_partition_and_the_best_core() {
    let Some(path) = file("epa-1995.clf.zst") else { return };
    let (trace, _) = Trace::load(&path, &LoadOptions::default()).expect("a readable trace");
    let found = ward(&trace, 4);
    assert!(found.core.targets > 0 && found.local_share > 0.5, "{found}");
    assert!(found.balance.bytes_max_over_mean < 1.01, "{found}");
    assert!(found.balance.load_max_over_mean < 1.01, "{found}");
    assert!(found.overheads.ward_us <= found.overheads.part_us.min(found.overheads.local_us), "{found}");
    assert_eq!(found.log.requests, trace.requests.len() as u64);
    // Four fifths of the bytes fit. Few targets are omitted.
    assert!(found.on_disk.targets + found.other.targets < found.log.targets / 4, "{found}");
}

#[test]
fn blog_2016_has_few_requests_to_new_targets() {
    let Some(path) = file("blog-2016.clf.zst") else { return };
    let (trace, _) = Trace::load(&path, &LoadOptions::default()).expect("a readable trace");
    let stability = ward::Stability::of(&trace);
    assert!(stability.days.len() > 30);
    assert!(stability.new_requests_share_mean.expect("days") < 0.05, "{stability}");
    let days = trace.days();
    assert_eq!(days.iter().map(|day| day.requests.len()).sum::<usize>(), trace.requests.len());
}

/// The place of each target by index. Before the first table it is a hash of the target.
type Serving = Vec<Place>;

/// Makes a series of tables. Each is made from the last requests and half of the earlier counts. For each
/// table the result has the number of targets that change from one owner to another, and the largest load of
/// a node divided by the mean.
fn tables_in_turn(trace: &Trace, every: usize, nodes: u16, stays: bool) -> Vec<(usize, f64)> {
    let memory_per_node = Bytes(trace.working_set().get() / 5);
    let cluster = ward::WardCluster { nodes, memory_per_node, costs: ward::WardCosts::ward01() };
    let hash = |target: usize| (TargetId::of(&target.to_le_bytes()).0 % u64::from(nodes)) as u16;
    let mut serves: Serving = (0..trace.targets.len()).map(|target| Place::Node(hash(target))).collect();
    let mut counts = vec![0_u64; trace.targets.len()];
    let mut found = Vec::new();
    for part in trace.requests.chunks_exact(every) {
        part.iter().for_each(|request| counts[request.target as usize] += 1);
        let row = |(target, requests): (u32, &u64)| ward::Frequency {
            target,
            requests: *requests,
            bytes: trace.targets[target as usize].size.get(),
        };
        let log = ward::Frequencies::from_rows((0..).zip(&counts).map(row));
        let now = |target: u32| stays.then(|| serves[target as usize]);
        let made = ward::ward_analysis_after(&log, &cluster, ward::CoreChoice::Best, now).expect("a cluster");
        let mut moved = 0;
        for (target, place) in made.places() {
            let before = std::mem::replace(&mut serves[target as usize], place);
            moved += usize::from(before != place && before.owner().is_some() && place.owner().is_some());
        }
        found.push((moved, made.balance.load_max_over_mean));
        counts.iter_mut().for_each(|count| *count /= 2);
    }
    found
}

#[test]
fn successive_tables_of_epa_1995_move_few_targets() {
    let Some(path) = file("epa-1995.clf.zst") else { return };
    let (trace, _) = Trace::load(&path, &LoadOptions::default()).expect("a readable trace");
    let (stay, anew) = (tables_in_turn(&trace, 4_000, 8, true), tables_in_turn(&trace, 4_000, 8, false));
    println!(
        "targets that get another owner, and the most load over the mean: {stay:?}; made of nothing: {anew:?}"
    );
    assert!(stay.len() > 6);
    let sum = |found: &[(usize, f64)]| found.iter().map(|(moved, _)| moved).sum::<usize>();
    assert!(sum(&stay) * 20 < sum(&anew));
    for ((_, load), (_, of_nothing)) in stay.iter().zip(&anew) {
        assert!(*load < of_nothing + 0.06, "{stay:?}");
    }
}
