//! The experiments on HACC's four workloads (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT 1999, section 4) on nodes of unequal
//! memory, HACC against round robin and, for Domino, the least loaded.
//!
//! From the paper: three nodes with 64, 64 and 32 MB, of which the system uses 24 MB each; the static baseline, a university's
//! files, a database of documents and views, and a site with 5 % of scripts. The database's key is the view and the action.
//! Scripts go to two nodes and files to the third, by routes and groups.
//!
//! The experiment's own choices: machines are several times faster than in 1999, and pauses are shorter by the same factor.
//! The number of users exceeds the cluster's capacity under round robin, except for the scripts, where it uses about half of
//! the capacity, as in the paper. A query of the database costs as much as reading and sending its documents.

use std::time::Duration;

use larder_core::{Bytes, PolicyKind};
use larder_load::{ConnectionLifetime, PathPrefixes, Script};
use larder_trace::synth::profiles::ProfileKind;

use super::scenario::{LoadSource, NodeHardware, Scenario, SwitchSettings, signals};

/// Factor by which machines are faster than in 1999 and pauses shorter. It must leave this machine below capacity.
const fn speed(kind: ProfileKind) -> f64 {
    match kind {
        ProfileKind::Fas | ProfileKind::Asp => 5.0,
        ProfileKind::Baseline | ProfileKind::Domino => 10.0,
    }
}

/// Memory that the system leaves of 64, 64 and 32 MB.
const CACHES_MIB: [u64; 3] = [40, 40, 8];

/// HACC, the policies that the paper compares it with, and LARD/R.
pub(crate) const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Hacc, PolicyKind::Rr, PolicyKind::LeastConn, PolicyKind::LardR];

/// Number of users.
const fn clients(kind: ProfileKind) -> u32 {
    match kind {
        ProfileKind::Baseline => 150,
        ProfileKind::Fas => 800,
        ProfileKind::Domino => 4_000,
        ProfileKind::Asp => 380,
    }
}

/// The scenario of a workload.
///
/// # Errors
/// If the generator rejects it.
pub(crate) fn scenario(kind: ProfileKind, measured: Duration, seed: u64) -> anyhow::Result<Scenario> {
    let script = Script::hacc(kind, &PathPrefixes::hacc(), seed)?;
    let warmup = Duration::from_secs(6);
    let asp = kind == ProfileKind::Asp;
    let programs = if asp {
        "turn = \"10ms\"\nprograms = [{ name = \"asp\", paths = \"/asp*\", cpu = \"100ms\", reply = \"6KiB\" }]\n"
    } else {
        ""
    };
    Ok(Scenario {
        label: format!("hacc-{}", kind.name()),
        machines: NodeHardware {
            caches: CACHES_MIB.map(Bytes::mib).to_vec(),
            disk_speed: speed(kind),
            processor_speed: speed(kind),
            programs: programs.to_owned(),
            cache_kind: "lru",
            preload: true,
        },
        load: LoadSource::Users {
            script,
            clients: clients(kind),
            time_scale: 1.0 / speed(kind),
            keep: ConnectionLifetime::Page,
            warmup,
            duration: warmup + measured,
        },
        classes: if asp { vec!["  { class = \"cb\", path = \"/asp*\" }".to_owned()] } else { Vec::new() },
        shares: if asp { [950, 0, 50, 0] } else { [1_000, 0, 0, 0] },
        key: (kind == ProfileKind::Domino).then_some("{host}{path:3}?{query:#1}"),
        settings: match kind {
            ProfileKind::Baseline | ProfileKind::Fas => files,
            ProfileKind::Domino => database,
            ProfileKind::Asp => scripts,
        },
    })
}

fn files(policy: PolicyKind) -> SwitchSettings {
    let preset =
        if policy == PolicyKind::Hacc { "[switch.policies.hacc]\npreset = \"static-files\"\n" } else { "" };
    SwitchSettings { tables: signals(policy, 200) + preset, ..SwitchSettings::default() }
}

fn database(policy: PolicyKind) -> SwitchSettings {
    let preset =
        if policy == PolicyKind::Hacc { "[switch.policies.hacc]\npreset = \"domino\"\n" } else { "" };
    SwitchSettings { tables: signals(policy, 200) + preset, ..SwitchSettings::default() }
}

/// HACC separates scripts from files; the other policies do not.
fn scripts(policy: PolicyKind) -> SwitchSettings {
    if policy != PolicyKind::Hacc {
        return SwitchSettings { tables: signals(policy, 200), ..SwitchSettings::default() };
    }
    let routes = "[[switch.routes]]\nname = \"scripts\"\npath = \"/asp*\"\ngroup = \"scripts\"\npolicy = \
                  \"least-conn\"\n[[switch.routes]]\nname = \"files\"\npath = \"*\"\ngroup = \"files\"\npolicy = \"hacc\"\n";
    SwitchSettings {
        tables: signals(policy, 200) + routes,
        groups: vec![vec!["files"], vec!["scripts"], vec!["scripts"]],
    }
}
