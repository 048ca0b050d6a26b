//! Regression test of every input in the corpora under `fuzz/corpus`. It runs the code of the fuzz targets
//! without their engine. `cargo xtask fuzz --keep` adds to a corpus.

// The targets import the engine by its name.
extern crate self as libfuzzer_sys;

use flate2::read::GzDecoder;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

macro_rules! targets {
    ($($name:ident = $file:literal,)*) => {
        $(
            #[allow(
                clippy::duplicate_mod,
                clippy::panic,
                unreachable_pub,
                unused_attributes,
                reason = "each is a program by itself when it is fuzzed"
            )]
            #[path = $file]
            mod $name;
        )*
        /// Fuzz targets by name.
        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name::target),)*];
    };
}

targets! {
    http_heads = "../../../../fuzz/fuzz_targets/http_heads.rs",
    http_framing = "../../../../fuzz/fuzz_targets/http_framing.rs",
    core_handover = "../../../../fuzz/fuzz_targets/core_handover.rs",
    core_peers = "../../../../fuzz/fuzz_targets/core_peers.rs",
    core_rules = "../../../../fuzz/fuzz_targets/core_rules.rs",
    core_switches = "../../../../fuzz/fuzz_targets/core_switches.rs",
    front_announced = "../../../../fuzz/fuzz_targets/front_announced.rs",
    front_asked = "../../../../fuzz/fuzz_targets/front_asked.rs",
    front_fields = "../../../../fuzz/fuzz_targets/front_fields.rs",
    front_orca = "../../../../fuzz/fuzz_targets/front_orca.rs",
    front_pages = "../../../../fuzz/fuzz_targets/front_pages.rs",
    front_stream = "../../../../fuzz/fuzz_targets/front_stream.rs",
    handoff_channel = "../../../../fuzz/fuzz_targets/handoff_channel.rs",
    handoff_first = "../../../../fuzz/fuzz_targets/handoff_first.rs",
    handoff_held = "../../../../fuzz/fuzz_targets/handoff_held.rs",
    handoff_repair = "../../../../fuzz/fuzz_targets/handoff_repair.rs",
    load_reply = "../../../../fuzz/fuzz_targets/load_reply.rs",
    node_conditions = "../../../../fuzz/fuzz_targets/node_conditions.rs",
    node_manifest = "../../../../fuzz/fuzz_targets/node_manifest.rs",
    node_path = "../../../../fuzz/fuzz_targets/node_path.rs",
    node_range = "../../../../fuzz/fuzz_targets/node_range.rs",
    peers_datagram = "../../../../fuzz/fuzz_targets/peers_datagram.rs",
    sim_replay = "../../../../fuzz/fuzz_targets/sim_replay.rs",
    trace_any = "../../../../fuzz/fuzz_targets/trace_any.rs",
    trace_binary = "../../../../fuzz/fuzz_targets/trace_binary.rs",
    trace_clf = "../../../../fuzz/fuzz_targets/trace_clf.rs",
    trace_lines = "../../../../fuzz/fuzz_targets/trace_lines.rs",
    trace_mooncake = "../../../../fuzz/fuzz_targets/trace_mooncake.rs",
    trace_routes = "../../../../fuzz/fuzz_targets/trace_routes.rs",
    trace_sdsc = "../../../../fuzz/fuzz_targets/trace_sdsc.rs",
}

/// Returns the path of a file under `fuzz`.
fn fuzz(file: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz")).join(file)
}

#[test]
fn every_target_has_a_test() {
    let manifest = std::fs::read_to_string(fuzz("Cargo.toml")).unwrap();
    let named = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    let here = TARGETS.iter().map(|(name, _)| *name);
    assert_eq!(here.collect::<BTreeSet<_>>(), named.collect::<BTreeSet<_>>());
}

#[test]
fn every_input_of_the_corpora_passes() {
    for (name, target) in TARGETS {
        let file = fuzz(&format!("corpus/{name}.tar.gz"));
        let packed = File::open(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut inputs = 0;
        for entry in tar::Archive::new(GzDecoder::new(packed)).entries().unwrap() {
            let mut entry = entry.unwrap();
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let input = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            // A failure must show the name of the input.
            let held = std::panic::catch_unwind(|| target(&bytes));
            assert!(held.is_ok(), "{name}: {input} of {}", file.display());
            inputs += 1;
        }
        assert!(inputs > 0, "{} holds nothing", file.display());
    }
}

/// Replaces the engine's macro. It stands after the targets, which import it.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        pub(crate) fn target($bytes: &[u8]) {
            $body
        }
    };
}
