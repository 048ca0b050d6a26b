//! Zones in memory that a test and its child processes share.

use super::*;
use crate::config::PolicyConfig;
use crate::state::Server;
use larder_core::{TargetId, Weight};
use larder_embed::Outcome;
use std::path::PathBuf;

/// Maps memory that child processes share.
pub(crate) fn map(bytes: usize) -> NonNull<u8> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory is mapped anywhere.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    NonNull::new(memory.cast()).expect("an address")
}

/// Creates a zone. Its memory is never unmapped.
pub(crate) fn zone(plan: &Plan) -> Zone {
    // SAFETY: the memory is new and stays mapped.
    unsafe { Zone::create(map(plan.memory), plan, 1) }.expect("a zone")
}

/// Runs `run` in a child process, and returns the status with which the child ends.
pub(crate) fn in_child(run: impl FnOnce()) -> i32 {
    // SAFETY: the child uses only the memory of its one thread, and ends without the destructors of the parent.
    match unsafe { libc::fork() } {
        0 => {
            let result = catch_unwind(AssertUnwindSafe(run));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is valid for writing.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(ended, child);
            status
        }
    }
}

/// Kills this process as a crash does.
pub(crate) fn die() {
    // SAFETY: ends the process.
    unsafe { libc::raise(libc::SIGKILL) };
}

pub(crate) fn config(parameters: &[&str]) -> PolicyConfig {
    PolicyConfig::parse(parameters, |_, path| PathBuf::from(path)).expect("a config")
}

pub(crate) fn servers(names: &[&str]) -> Vec<Server> {
    let server =
        |name: &&str| Server { name: (*name).to_owned(), weight: Weight::ONE, backup: false, down: false };
    names.iter().map(server).collect()
}

fn create(locked: &mut Locked<'_>, config: &PolicyConfig, servers: &[Server]) {
    let targets_max = config.plan.targets_max;
    assert!(locked.create(|| State::new(config, servers, targets_max, None)).expect("it fits"));
}

fn decide(locked: &mut Locked<'_>, target: u64) -> u32 {
    let outcome = locked
        .change(|state| state.decide(Time::ZERO, Worker::of(0), (TargetId(target), false), &[]))
        .expect("a state");
    let Outcome::Start(decision) = outcome else { panic!("{outcome:?}") };
    decision.node.get()
}

#[test]
fn a_state_that_one_process_has_created_is_used_by_another() {
    let (config, servers) = (config(&["memory=8m"]), servers(&["a", "b", "c"]));
    let zone = zone(&config.plan);
    let status = in_child(|| {
        let mut locked = zone.lock().expect("a lock");
        create(&mut locked, &config, &servers);
        for target in 0..1_000 {
            decide(&mut locked, target << 32);
        }
    });
    assert_eq!(status, 0);
    let mut locked = zone.lock().expect("a lock");
    assert!(!locked.has_lost_owner && locked.has_state());
    // Targets of the other process are known, and the tables still grow.
    let known = locked.read(|state| state.status(Time::ZERO)["targets"].clone()).expect("no panic");
    assert_eq!(known, Some(1_000.into()));
    for target in 0..3_000 {
        decide(&mut locked, target << 32);
    }
    let (used, size) = locked.memory();
    assert!(used > 100_000 && used < size, "{used} of {size}");
}

#[test]
fn a_process_that_dies_with_the_lock_costs_the_state_and_no_more() {
    let (config, servers) = (config(&["memory=8m"]), servers(&["a", "b"]));
    let zone = zone(&config.plan);
    create(&mut zone.lock().expect("a lock"), &config, &servers);
    let status = in_child(|| {
        let mut locked = zone.lock().expect("a lock");
        let _ = locked.change(|_| die());
    });
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    let mut locked = zone.lock().expect("the lock is not lost");
    assert!(locked.has_lost_owner && !locked.has_state());
    create(&mut locked, &config, &servers);
    decide(&mut locked, 1);
    assert_eq!((locked.epoch(), zone.counters().resets.load(Ordering::Relaxed)), (2, 1));
}

#[test]
fn a_panic_discards_the_state_and_is_reported() {
    let (config, servers) = (config(&["memory=8m"]), servers(&["a"]));
    let zone = zone(&config.plan);
    let mut locked = zone.lock().expect("a lock");
    create(&mut locked, &config, &servers);
    let result = locked.change(|_| std::panic::panic_any("the cause"));
    let Err(ZoneError::Panic(text)) = result else { panic!("it has panicked") };
    assert!(text.starts_with("the cause at "), "{text}");
    assert!(!locked.has_state());
    let result = locked.read(|_| ());
    assert!(matches!(result, Ok(None)));
}

#[test]
fn a_full_memory_discards_the_state_and_stores_fewer_targets() {
    let (config, servers) = (config(&["memory=8m"]), servers(&["a"]));
    let zone = zone(&config.plan);
    let mut locked = zone.lock().expect("a lock");
    create(&mut locked, &config, &servers);
    let targets_max = locked.targets_max();
    let result = locked.change(|_| {
        // A bug that allocates without bound.
        let hoard: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 1 << 20]).collect();
        hoard.len()
    });
    assert!(matches!(result, Err(ZoneError::Full)));
    assert_eq!((locked.has_state(), locked.targets_max()), (false, targets_max / 2));
    create(&mut locked, &config, &servers);
    decide(&mut locked, 1);
}

/// The plan holds for every policy: a dispatcher that has as many targets as fit has not run out of memory.
#[test]
fn the_memory_is_enough_for_the_targets_of_every_policy() {
    let names: Vec<String> = (0..64).map(|node| format!("10.0.0.{node}:80")).collect();
    let servers = servers(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for policy in larder_core::PolicyKind::ALL {
        if larder_embed::extra_input(policy).is_some() {
            continue;
        }
        let config = config(&["memory=24m", &format!("policy={policy}")]);
        let zone = zone(&config.plan);
        let mut locked = zone.lock().expect("a lock");
        create(&mut locked, &config, &servers);
        let targets = config.plan.targets_max as u64;
        for turn in 0..targets * 5 / 4 {
            decide(&mut locked, TargetId::of(&turn.to_le_bytes()).0);
        }
        let learned = locked.read(State::save).expect("no panic").expect("a state");
        let (used, size) = locked.memory();
        assert!(locked.store_snapshot(&learned), "{policy}: {} bytes for {targets} targets", learned.len());
        assert_eq!(zone.counters().resets.load(Ordering::Relaxed), 0, "{policy}: {used} of {size}");
        println!("{policy}: {targets} targets, {used} of {size} bytes, snapshot {} bytes", learned.len());
    }
}
