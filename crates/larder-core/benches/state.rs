//! The memory that cooperating nodes use: `cargo bench -p larder-core --bench state`.
//!
//! There is one row for each kind of entry: the bytes of resident memory (`/proc/self/statm`) per entry, the minimum
//! and the maximum over several counts, since tables double. Beside it is the number that the simulator uses. A
//! table goes to stderr, JSON to stdout.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the system, prints, and may stop on its own mistakes"
)]

use larder_core::census::Census;
use larder_core::peers::{
    CHANGES_MAX, CacheChange, Card, CardSettings, Press, PressMessage, PressSettings, SharingSettings, Ward,
    WardSettings,
};
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{Bytes, NodeId, TargetId, Time};
use std::hint::black_box;
use std::process::Command;

/// The numbers of entries: from just above a power of two to just below the next.
const COUNTS: [usize; 4] = [530_000, 660_000, 830_000, 1_040_000];

/// A kind of entry: its name, the simulator's bytes per entry, the counts, and a function that creates this many and
/// returns their bytes per entry.
type Kind = (&'static str, f64, &'static [usize], fn(usize) -> f64);

const KINDS: [Kind; 8] = [
    ("press: a target that a peer has", 34.0, &COUNTS, |count| {
        bytes_per_entry(count, |count| reported_targets(count, 1))
    }),
    ("press: a target that four peers have", 34.0, &COUNTS, |count| {
        bytes_per_entry(count, |count| reported_targets(count, 4))
    }),
    ("press: a target in memory here", 17.0, &COUNTS, |count| bytes_per_entry(count, cached_targets)),
    ("press: a peer", 240.0, &[60_000], |count| bytes_per_entry(count, peers)),
    ("card: a peer", 575.0, &[60_000], |count| bytes_per_entry(count, card)),
    ("ward: a peer", 112.0, &[60_000], |count| bytes_per_entry(count, ward)),
    ("ward: a target of the table", 12.0, &COUNTS, |count| bytes_per_entry(count, table)),
    ("ward: a target counted", 48.0, &COUNTS, |count| bytes_per_entry(count, census)),
];

/// Measures each count in a separate process, because freed memory stays with a process.
fn main() {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    if let (Some(kind), Some(count)) = (words.next(), words.next()) {
        println!("{}", KINDS[kind].3(count));
        return;
    }
    let mut rows = Vec::new();
    for (number, (name, simulated, counts, _)) in KINDS.iter().enumerate() {
        let each: Vec<f64> = counts.iter().map(|count| in_a_process(number, *count)).collect();
        let (least, most) =
            each.iter().fold((f64::MAX, 0.0_f64), |(least, most), each| (least.min(*each), most.max(*each)));
        eprintln!("{name:<38} {least:>6.1} to {most:>6.1} bytes   simulated: {simulated}");
        rows.push(format!(
            r#"{{"entry":"{name}","least":{least:.1},"most":{most:.1},"simulated":{simulated}}}"#
        ));
    }
    println!("[{}]", rows.join(","));
}

fn in_a_process(kind: usize, count: usize) -> f64 {
    let program = std::env::current_exe().unwrap();
    let ran = Command::new(program).args([kind.to_string(), count.to_string()]).output().unwrap();
    String::from_utf8(ran.stdout).unwrap().trim().parse().unwrap()
}

/// Returns the bytes per entry of this number of entries.
fn bytes_per_entry<T>(count: usize, make: impl Fn(usize) -> T) -> f64 {
    let before = resident();
    let made = black_box(make(count));
    let bytes = (resident() - before) as f64 / count as f64;
    drop(made);
    bytes
}

/// Returns the resident bytes of this process.
fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: i64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn target(number: usize) -> TargetId {
    TargetId::of(&number.to_le_bytes())
}

fn press() -> Press {
    let sharing = SharingSettings { on_permille: 0, off_permille: 0, ..SharingSettings::default() };
    Press::new(NodeId(0), 1, PressSettings { sharing, targets_max: 2_000_000, ..PressSettings::default() })
}

/// Returns a node whose peers have reported this number of targets.
fn reported_targets(count: usize, peers: u16) -> Press {
    let (mut press, mut out) = (press(), Vec::new());
    for peer in 1..=peers {
        press.add_peer(Time::ZERO, NodeId(peer), &mut out);
        let shares = PressMessage::Load { epoch: 1, load: 0, sharing: true, changes: 0 };
        press.receive(Time::ZERO, NodeId(peer), shares, &mut out);
        for first in (0..count).step_by(CHANGES_MAX) {
            let items = (first..count.min(first + CHANGES_MAX))
                .map(|number| CacheChange { target: target(number), cached: true })
                .collect();
            let message = PressMessage::Changes { epoch: 1, first: first as u64 + 1, items };
            press.receive(Time::ZERO, NodeId(peer), message, &mut out);
            out.clear();
        }
    }
    assert_eq!(press.table_sizes().0, count);
    press
}

fn cached_targets(count: usize) -> Press {
    let (mut press, mut out) = (press(), Vec::new());
    for number in 0..count {
        press.set_cached(Time::ZERO, target(number), true, &mut out);
        out.clear();
    }
    assert_eq!(press.table_sizes().1, count);
    press
}

fn peers(count: usize) -> Press {
    let (mut press, mut out) = (press(), Vec::new());
    for peer in 1..=count {
        press.add_peer(Time::ZERO, NodeId(peer as u16), &mut out);
        let message = PressMessage::Load { epoch: 1, load: 3, sharing: true, changes: 0 };
        press.receive(Time::ZERO, NodeId(peer as u16), message, &mut out);
        out.clear();
    }
    press
}

fn card(count: usize) -> Card {
    let mut card = Card::new(NodeId(0), "node-0", 1, CardSettings::default()).unwrap();
    let mut out = Vec::new();
    for peer in 1..=count {
        card.add_node(Time::ZERO, NodeId(peer as u16), &format!("node-{peer}"), &mut out);
        out.clear();
    }
    card
}

fn ward(count: usize) -> Ward {
    let mut ward = Ward::new(NodeId(0), "node-0", 1, WardSettings::default());
    let mut out = Vec::new();
    for peer in 1..=count {
        ward.add_node(Time::ZERO, NodeId(peer as u16), &format!("node-{peer}"), &mut out);
        out.clear();
    }
    ward
}

fn table(count: usize) -> RouteTable {
    RouteTable::new(64, (0..count).map(|number| (target(number), Place::Node((number % 64) as u16)))).unwrap()
}

fn census(count: usize) -> Census {
    let census = Census::new(2_000_000);
    (0..count).for_each(|number| census.count(target(number), Bytes(1_000)));
    assert_eq!(census.len(), count);
    census
}
