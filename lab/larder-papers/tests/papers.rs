//! The small run of the papers' experiments: its main claims hold. The result is the same with any number of
//! threads and after an interruption.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_papers::{Experiment, Options, Report, Session, Verdict, catalogue};

fn options(state: Option<PathBuf>) -> Options {
    let (set, version) = ("ci".to_owned(), "test".to_owned());
    Options { set, ci: true, traces: PathBuf::from("nowhere"), state, version, fresh: false }
}

/// Runs the experiments on this number of threads. Returns the report and the number of jobs that were run.
fn run(experiments: Vec<Experiment>, state: Option<PathBuf>, threads: usize) -> (Report, usize) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let calls = AtomicUsize::new(0);
    let session = Session::new(experiments, options(state));
    let report = pool.install(|| {
        session.run(|_| {
            calls.fetch_add(1, Ordering::Relaxed);
        })
    });
    // The first call only states the number of jobs.
    (report.expect("the state directory can be used"), calls.into_inner() - 1)
}

#[test]
fn main_claims_hold_on_the_small_run() {
    let (report, _) = run(catalogue::select("ci").expect("good files"), None, 2);
    assert!(report.totals.all.claims >= 5, "{:?}", report.totals);
    let expected = ["press-fig03/fast-32", "press-fig04/slow-96", "lard-fig07/two-to-four"];
    let mut judged = Vec::new();
    for experiment in &report.experiments {
        assert_eq!(experiment.left_out, None, "{}", experiment.id);
        for claim in &experiment.claims {
            let name = format!("{}/{}", experiment.id, claim.id);
            assert_eq!(claim.verdict, Verdict::Holds, "{name}: ours is {}; {}", claim.ours_text, claim.rule);
            judged.push(name);
        }
    }
    for name in expected {
        assert!(judged.iter().any(|judged| judged == name), "{name} is not among {judged:?}");
    }
}

const SMALL: &str = r#"
id = "small"
paper = "own"
place = "nowhere"
title = "Throughput of three policies"
about = "A test."

[run]
recipe = "rice-like"
scale = 0.02
memory_mib = 1

[sweep]
over = "nodes"
values = [1, 3, 4]

[[line]]
name = "WRR"
set = { policy = "wrr" }

[[line]]
name = "RAN"
set = { policy = "random" }

[[line]]
name = "LARD/R"
set = { policy = "lard-r" }

[[line]]
name = "bound"
set = { bound = true }

[[figure]]
name = "Figure"
title = "Throughput"
x_label = "nodes"
y_label = "requests/s"
metric = "throughput"

[[claim]]
id = "lard"
says = "LARD/R serves more than WRR on 4 nodes"
place = "nowhere"
known = "ours"
published = "more"
evidence = "control"
measure = "value"
line = "LARD/R"
per = "WRR"
metric = "throughput"
at = 4
min = 1
tolerance = "more is more"
ci = true
"#;

fn small() -> Vec<Experiment> {
    vec![Experiment::parse("small.toml", SMALL).expect("a good file")]
}

#[test]
fn threads_and_interruptions_change_nothing() {
    let json = |report: &Report| serde_json::to_string(report).expect("a report can be written");
    let (alone, _) = run(small(), None, 1);
    let (pair, _) = run(small(), None, 2);
    assert_eq!(json(&alone), json(&pair));
    assert_eq!(alone.totals.control.held, 1);

    let directory = std::env::temp_dir().join(format!("larder-paper-{}", std::process::id()));
    let state = || Some(directory.clone());
    let (kept, done) = run(small(), state(), 2);
    assert_eq!((json(&kept), done), (json(&alone), 12));
    // Half of the stored jobs are lost, as after an interruption.
    let file = std::fs::read_dir(&directory).expect("made").next().expect("a file").expect("readable").path();
    let text = std::fs::read_to_string(&file).expect("text");
    let half: Vec<&str> = text.lines().take(6).collect();
    std::fs::write(&file, half.join("\n") + "\n{\"key\": \"to").expect("written");
    let (resumed, done) = run(small(), state(), 2);
    assert_eq!((json(&resumed), done), (json(&alone), 6));
    assert_eq!(run(small(), state(), 1).1, 0, "everything is known now");
    std::fs::remove_dir_all(directory).expect("removed");
}
