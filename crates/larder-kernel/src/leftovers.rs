//! Removal of pins that killed processes have left in the kernel. A switch or node takes over the pins of its name when
//! it restarts. Tests and the demo do not: they use names of their own, made of a unique prefix and the id of the
//! process, alone or after `node-` for the node programs. These names show whether their process is gone.

use crate::{bpffs, guard, plane};
use std::path::{Path, PathBuf};

/// Removes the pins of planes and guards whose names are one of `prefixes` and the id of a process that is gone.
/// Instances that another process has open, such as a child of the dead one, are skipped. Returns the number of removed
/// instances.
///
/// Links end with their pins. Filters, as kernels before 6.6 have them, are left alone: their notes name interfaces by
/// numbers of the dead process's network namespace, which may be other interfaces here. Failures are logged.
pub fn sweep(prefixes: &[&str]) -> usize {
    let dead =
        [plane::FAMILY, guard::FAMILY].into_iter().flat_map(|family| of_ended_processes(family, prefixes));
    dead.filter(|instance| is_removed(instance)).count()
}

fn of_ended_processes(family: &str, prefixes: &[&str]) -> Vec<PathBuf> {
    let folder = bpffs::existing_family(family);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let dead = names.filter(|name| owner(name, prefixes).is_some_and(has_ended));
    let mut instances: Vec<PathBuf> = dead.map(|name| folder.join(name)).collect();
    instances.sort();
    instances
}

fn is_removed(instance: &Path) -> bool {
    let Ok(_lock) = bpffs::lock(instance) else { return false };
    let removed = std::fs::remove_dir_all(instance);
    if let Err(error) = &removed {
        tracing::debug!(?instance, %error, "kernel programs: those of an ended process not removed");
    }
    removed.is_ok()
}

fn has_ended(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

/// Returns the process id in an instance's name.
fn owner(name: &str, prefixes: &[&str]) -> Option<u32> {
    let name = name.strip_prefix("node-").unwrap_or(name);
    prefixes.iter().find_map(|prefix| {
        let rest = name.strip_prefix(prefix)?;
        let number = rest.split_once('-').map_or(rest, |(number, _)| number);
        // Process ids have no sign.
        number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    static INJECT: &[u8] = include_bytes!("../bpf/prebuilt/inject.bpf.o");

    #[test]
    fn owner_is_parsed_from_an_instance_name() {
        let prefixes = ["ltest", "larder-demo-"];
        for (name, process) in [
            ("ltest12-003-a", Some(12)),
            ("node-ltest12-003-e0", Some(12)),
            ("larder-demo-9", Some(9)),
            ("node-larder-demo-9-n1", Some(9)),
            // Names that an operator might choose.
            ("demo2", None),
            ("node-demo3", None),
            ("t2-a", None),
            ("my-ltest12-a", None),
            ("node-node-ltest12-a", None),
            ("larder-demo-9x", None),
            ("larder-demo-+9", None),
            ("larder-demo-", None),
            ("larder-demo", None),
            ("ltest", None),
            ("ltest99999999999-0", None),
        ] {
            assert_eq!(owner(name, &prefixes), process, "{name}");
        }
    }

    /// One instance of a dead process and one of a live one, wherever the file system is mounted.
    #[test]
    fn leftovers_of_ended_processes_are_removed() {
        if !larder_testkit::needs_root("a BPF file system") {
            return;
        }
        let mut process = std::process::Command::new("true").spawn().expect("a process");
        let (dead, living) = (process.id(), std::process::id());
        process.wait().expect("its end");
        let place =
            |family, process| bpffs::instance(family, &format!("remains{process}-0")).expect("a path");
        let places =
            [plane::FAMILY, guard::FAMILY].map(|family| [place(family, dead), place(family, living)]);
        places.as_flattened().iter().for_each(|path| std::fs::create_dir_all(path).expect("made"));
        let [[held, _], _] = &places;
        let other = bpffs::lock(held).expect("free");
        sweep(&["remains"]);
        assert!(held.exists(), "somebody has it open");
        drop(other);
        // Other tests start processes, which hold the lock too between fork and exec.
        larder_testkit::eventually("the dead process's directory is gone", || {
            sweep(&["remains"]);
            (!held.exists()).then_some(())
        });
        for [dead, living] in &places {
            assert!(!dead.exists() && living.exists(), "{}", dead.display());
            std::fs::remove_dir(living).expect("removed");
        }
    }

    /// The note names interface 1, which exists in every namespace.
    #[test]
    fn filters_of_other_programs_are_kept() {
        use crate::netns::Namespace;
        use larder_testkit::or_skip;
        use libbpf_rs::ObjectBuilder;
        use std::os::fd::AsFd;
        let Some(host) = or_skip(Namespace::new("remains")) else { return };
        host.run(|| {
            let mut process = std::process::Command::new("true").spawn().expect("a process");
            let dead = process.id();
            process.wait().expect("its end");
            let instance = bpffs::instance(guard::FAMILY, &format!("remainders{dead}-0")).expect("a path");
            std::fs::create_dir_all(instance.join("node2/filter-1")).expect("made");
            let object = ObjectBuilder::default().open_memory(INJECT).expect("read").load().expect("loaded");
            let program = object.progs_mut().next().expect("a program");
            let live =
                guard::attach::Attachment::filter(program.as_fd(), 1, crate::plane::syscalls::Hook::TcEgress);
            let live = live.expect("attached");
            assert_eq!(sweep(&["remainders"]), 1);
            assert!(!instance.exists());
            let output =
                std::process::Command::new("tc").args(["filter", "show", "dev", "lo", "egress"]).output();
            let shown = String::from_utf8(output.expect("tc").stdout).expect("text");
            assert!(shown.contains("bpf"), "{shown}");
            live.remove(program.as_fd());
        })
        .expect("entered");
    }
}
