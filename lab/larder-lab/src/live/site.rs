//! HACC's four workloads (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT 1999, section 4) on nodes of unequal
//! memory, HACC against round robin and, for Domino, the least loaded.
//!
//! As there: three nodes of 64, 64 and 32 MB, of which the system takes 24 MB each; the static baseline, a university's
//! files, a database of documents and views, a site with 5 % of scripts. The database's key is the view and the action;
//! scripts go to two nodes and files to the third, by routes and groups.
//!
//! Ours, where the paper is silent or this machine another: machines and pauses are several times as fast as in 1999;
//! the number of users is one that more than fills the cluster under round robin, except for the scripts, where it fills
//! the nodes by about half, as in the paper; a query of the database takes what its documents take to read and to send.

use std::time::Duration;

use larder_core::{Bytes, PolicyKind};
use larder_load::{Keep, Paths, Script};
use larder_trace::synth::profiles::ProfileKind;

use super::bench::Row;
use super::scene::{Drive, Machines, Scene, Tuning, signals};

/// How many times faster than in 1999 machines, and how many times shorter pauses are: as fast as leaves this machine
/// time to spare.
const fn speed(kind: ProfileKind) -> f64 {
    match kind {
        ProfileKind::Fas | ProfileKind::Asp => 5.0,
        ProfileKind::Baseline | ProfileKind::Domino => 10.0,
    }
}

/// What the system leaves of 64, 64 and 32 MB.
const CACHES_MIB: [u64; 3] = [40, 40, 8];

/// The policies: HACC, what the paper compares it with, and LARD/R.
pub(crate) const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Hacc, PolicyKind::Rr, PolicyKind::LeastConn, PolicyKind::LardR];

/// Users.
const fn clients(kind: ProfileKind) -> u32 {
    match kind {
        ProfileKind::Baseline => 150,
        ProfileKind::Fas => 800,
        ProfileKind::Domino => 4_000,
        ProfileKind::Asp => 380,
    }
}

/// A workload for so long.
///
/// # Errors
/// The generator refuses it.
pub(crate) fn scene(kind: ProfileKind, measured: Duration, seed: u64) -> anyhow::Result<Scene> {
    let script = Script::hacc(kind, &Paths::hacc(), seed)?;
    let warmup = Duration::from_secs(6);
    let asp = kind == ProfileKind::Asp;
    let programs = if asp {
        "turn = \"10ms\"\nhandlers = [{ name = \"asp\", paths = \"/asp*\", cpu = \"100ms\", reply = \"6KiB\" }]\n"
    } else {
        ""
    };
    Ok(Scene {
        label: format!("hacc-{}", kind.name()),
        machines: Machines {
            caches: CACHES_MIB.map(Bytes::mib).to_vec(),
            disk_speed: speed(kind),
            processor_speed: speed(kind),
            programs: programs.to_owned(),
            cache_kind: "lru",
            preload: true,
        },
        drive: Drive::Users {
            script,
            clients: clients(kind),
            time_scale: 1.0 / speed(kind),
            keep: Keep::Page,
            warmup,
            duration: warmup + measured,
        },
        classes: if asp { vec!["  { class = \"cb\", path = \"/asp*\" }".to_owned()] } else { Vec::new() },
        shares: if asp { [950, 0, 50, 0] } else { [1_000, 0, 0, 0] },
        key: (kind == ProfileKind::Domino).then_some("{host}{path:3}?{query:#1}"),
        tuning: match kind {
            ProfileKind::Baseline | ProfileKind::Fas => files,
            ProfileKind::Domino => database,
            ProfileKind::Asp => scripts,
        },
    })
}

fn files(policy: PolicyKind) -> Tuning {
    let preset = if policy == PolicyKind::Hacc { "[switch.hacc]\npreset = \"static-files\"\n" } else { "" };
    Tuning { tables: signals(policy, 200) + preset, ..Tuning::default() }
}

fn database(policy: PolicyKind) -> Tuning {
    let preset = if policy == PolicyKind::Hacc { "[switch.hacc]\npreset = \"domino\"\n" } else { "" };
    Tuning { tables: signals(policy, 200) + preset, ..Tuning::default() }
}

/// HACC tells scripts from files; whoever it is compared with does not.
fn scripts(policy: PolicyKind) -> Tuning {
    if policy != PolicyKind::Hacc {
        return Tuning { tables: signals(policy, 200), ..Tuning::default() };
    }
    let routes = "[[switch.routes]]\nname = \"scripts\"\npath = \"/asp*\"\ngroup = \"scripts\"\npolicy = \
                  \"least-conn\"\n[[switch.routes]]\nname = \"files\"\npath = \"*\"\ngroup = \"files\"\npolicy = \"hacc\"\n";
    Tuning {
        tables: signals(policy, 200) + routes,
        groups: vec![vec!["files"], vec!["scripts"], vec!["scripts"]],
    }
}

/// What the paper says of HACC over another policy.
pub(crate) fn published(row: &Row, over: &str) -> &'static str {
    match (row.scene.as_str(), over) {
        ("hacc-baseline", "rr") => "+121 % throughput",
        ("hacc-fas", "rr") => "+40 % throughput, -37 % latency",
        ("hacc-domino", "least-conn") => "+52 % throughput",
        ("hacc-asp", "rr") => "-45 % mean time",
        _ => "",
    }
}
