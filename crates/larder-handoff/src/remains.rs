//! What killed processes have left pinned in the kernel. A switch or node comes back under its name and takes over what is
//! there; tests, benches and the demo do not, since they take names of their own: a word and the number of the process that chose
//! it, alone or behind `switch-`, `node-` or the like. What such a process has left is found by that.

use crate::guard::Guard;
use crate::plane::Plane;
use crate::{bpffs, guard, plane};
use std::path::Path;

/// Takes off the planes and guards whose names are one of `words` and the number of a process that is gone, unless another process
/// has them open, such as a child of that one; gives how many. What cannot be taken off stays; the log says why.
pub fn sweep(words: &[&str]) -> usize {
    let planes = of_the_dead(plane::FAMILY, words);
    let guards = of_the_dead(guard::FAMILY, words);
    let planes = planes.iter().map(|name| (name, Plane::clean(name).map_err(|error| error.to_string())));
    let guards = guards.iter().map(|name| (name, Guard::clean(name).map_err(|error| error.to_string())));
    let mut swept = 0;
    for (name, cleaned) in planes.chain(guards) {
        match cleaned {
            Ok(()) => swept += 1,
            Err(error) => tracing::debug!(name, error, "what a killed process left in the kernel stays"),
        }
    }
    swept
}

fn of_the_dead(family: &str, words: &[&str]) -> Vec<String> {
    let folder = bpffs::family_if_any(family);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| owner(name, words).is_some_and(is_gone) && bpffs::lock(&folder.join(name)).is_ok())
        .collect();
    names.sort();
    names
}

fn is_gone(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

/// The process in a name.
fn owner(name: &str, words: &[&str]) -> Option<u32> {
    let behind = name.split_once('-').map(|(_, rest)| rest);
    [Some(name), behind].into_iter().flatten().find_map(|name| {
        words.iter().find_map(|word| {
            let rest = name.strip_prefix(word)?;
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (number, rest) = rest.split_at(digits);
            (rest.is_empty() || rest.starts_with('-')).then(|| number.parse().ok()).flatten()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is() {
        let words = ["t", "race-", "demo"];
        for (name, process) in [
            ("t12-003-a", Some(12)),
            ("node-t12-003-e0", Some(12)),
            ("race-7-0", Some(7)),
            ("demo9", Some(9)),
            ("switch-demo9-n1", Some(9)),
            ("demo", None),
            ("demo9x", None),
            ("tiles-1", None),
            ("node-n0", None),
            ("t99999999999-0", None),
        ] {
            assert_eq!(owner(name, &words), process, "{name}");
        }
    }

    /// Of a process that is gone and of one that lives, wherever the file system is.
    #[test]
    fn what_the_dead_have_left_is_swept() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root (a BPF file system)");
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
        sweep(&["remains"]);
        for [dead, living] in &places {
            assert!(!dead.exists() && living.exists(), "{}", dead.display());
            std::fs::remove_dir(living).expect("removed");
        }
    }
}
