//! A zone: the shared memory of an upstream, with the state that all workers use.
//!
//! ```text
//! header | heap with the state | snapshot
//! ```
//!
//! The workers are forked from one process that has mapped the zone and the module. Both are therefore at the same addresses in all of
//! them, and pointers inside of the zone, to functions, and to constants of the module are valid everywhere. nginx itself keeps the
//! zone over a reload only if the module is still the same one: it compares an address of the module.
//!
//! One lock protects the state. [`Locked::change`] and [`Locked::read`] are the only ways to it. Closures that change it may capture and
//! return only values without a destructor (`Copy`), so that nothing in the memory of one process gets into the state.
//!
//! If a worker dies or panics while it changes the state, the state may be half changed. It is discarded as a whole, and created again
//! from the snapshot.

#![expect(unsafe_code, reason = "memory that processes share")]

use crate::arena::{Heap, Scope, leave};
use crate::lock::{SharedMutex, Taken};
use crate::plan::Plan;
use crate::state::State;
use larder_core::Time;
use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of workers of a zone, together with those that end after a reload.
pub(crate) const WORKERS_MAX: usize = 512;

/// The reason why the state cannot be used now. The next call finds a state again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ZoneError {
    #[error("bug in larder: {0}")]
    Panic(String),
    #[error("there is no state")]
    NoState,
    #[error("the memory is full, so that fewer targets are stored from now on; raise memory=")]
    Full,
    #[error("the lock of the shared memory is damaged: {0}")]
    Lock(#[from] io::Error),
}

/// Counters that need no lock, and facts that do not change.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests that went to any server, because the dispatcher knew none that the worker has.
    pub(crate) fallback: AtomicU64,
    /// States that were discarded.
    pub(crate) resets: AtomicU64,
    /// The time at which the next snapshot is due. Nanoseconds.
    pub(crate) save_at: AtomicU64,
    /// The number of configs that have used the zone.
    pub(crate) generations: AtomicU64,
    /// Progress of the record.
    pub(crate) record: crate::record::Progress,
}

/// The beginning of a zone.
#[repr(C)]
struct Header {
    /// The time at which the zone was created. Nanoseconds since 1970.
    started: u64,
    counters: Counters,
    lock: SharedMutex,
    /// A worker holds one of them as long as it lives.
    workers: [SharedMutex; WORKERS_MAX],
    guarded: UnsafeCell<Guarded>,
}

/// The data that the lock protects.
struct Guarded {
    heap: Heap,
    heap_start: NonNull<u8>,
    heap_bytes: usize,
    /// The state, in the heap; null if there is none.
    state: *mut State,
    /// The number of states so far. Requests of an earlier state are not counted in this one.
    epoch: u64,
    targets_max: usize,
    /// The number of targets for which the zone has room.
    capacity: usize,
    /// The number of the latest config whose servers and settings the state has.
    generation: u64,
    snapshot: NonNull<u8>,
    snapshot_bytes_max: usize,
    snapshot_bytes: usize,
}

/// A zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zone(NonNull<Header>);

// SAFETY: all data that changes is atomic, or protected by the lock.
unsafe impl Sync for Zone {}
// SAFETY: as above.
unsafe impl Send for Zone {}

/// The size of the header, with room for alignment.
pub(crate) const HEADER_BYTES: usize = size_of::<Header>() + 2 * align_of::<Header>() + 4_096;

impl Zone {
    /// Creates a zone in fresh memory.
    ///
    /// # Safety
    /// The memory is shared, has `plan.memory` bytes, is valid as long as any process uses the zone, and nothing else uses it.
    ///
    /// # Errors
    /// The C library has no mutexes for several processes.
    pub(crate) unsafe fn create(memory: NonNull<u8>, plan: &Plan, started: u64) -> io::Result<Self> {
        let offset = memory.align_offset(Layout::new::<Header>().align());
        // SAFETY: the header fits, because a plan has room for it and for its alignment.
        let header = unsafe { memory.add(offset) }.cast::<Header>();
        // SAFETY: as above.
        let heap_start = unsafe { memory.add(HEADER_BYTES) };
        // SAFETY: the parts of a plan are not larger than the whole.
        let snapshot = unsafe { heap_start.add(plan.heap_bytes) };
        // SAFETY: the memory between header and snapshot is the heap's only.
        let heap = unsafe { Heap::new(heap_start, plan.heap_bytes) };
        let guarded = Guarded {
            heap,
            heap_start,
            heap_bytes: plan.heap_bytes,
            state: ptr::null_mut(),
            epoch: 0,
            targets_max: plan.targets_max,
            capacity: plan.capacity,
            generation: 0,
            snapshot,
            snapshot_bytes_max: plan.snapshot_bytes,
            snapshot_bytes: 0,
        };
        let at = header.as_ptr();
        // SAFETY: the place is valid for writing, and no one reads it yet.
        unsafe { (&raw mut (*at).started).write(started) };
        // SAFETY: as above.
        unsafe { (&raw mut (*at).counters).write(Counters::default()) };
        // SAFETY: as above.
        unsafe { (&raw mut (*at).guarded).write(UnsafeCell::new(guarded)) };
        // SAFETY: as above.
        unsafe { SharedMutex::init(&raw mut (*at).lock) }?;
        for worker in 0..WORKERS_MAX {
            // SAFETY: as above; the index is in range.
            unsafe { SharedMutex::init(&raw mut (*at).workers[worker]) }?;
        }
        Ok(Self(header))
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory is valid as long as any process uses the zone, and only shared references exist.
        unsafe { self.0.as_ref() }
    }

    /// Returns the time at which the zone was created. Nanoseconds since 1970.
    pub(crate) fn started(&self) -> u64 {
        self.header().started
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.header().counters
    }

    /// Returns the progress of the record.
    pub(crate) fn record(&self) -> &'static crate::record::Progress {
        // SAFETY: the zone is never unmapped by a process that uses it.
        unsafe { &(*self.0.as_ptr()).counters.record }
    }

    /// Returns a number that identifies the zone in this process.
    pub(crate) fn id(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Takes the lock. If a process has died while it had the lock, the state is discarded.
    ///
    /// # Errors
    /// The memory is damaged.
    pub(crate) fn lock(&self) -> io::Result<Locked<'_>> {
        warm_up();
        let taken = self.header().lock.lock()?;
        let mut locked = Locked { header: self.header(), has_lost_owner: false };
        if taken == Taken::OwnerDied {
            locked.reset();
            locked.has_lost_owner = true;
        }
        Ok(locked)
    }
}

/// A zone whose lock this process has.
pub(crate) struct Locked<'zone> {
    header: &'zone Header,
    /// Whether the state was discarded because the process that had the lock has died.
    pub(crate) has_lost_owner: bool,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.header.lock.unlock();
    }
}

/// The mutex of a worker, taken by [`Locked::claim_worker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worker(usize);

impl Worker {
    pub(crate) const fn index(self) -> usize {
        self.0
    }

    /// Returns a worker without a mutex, for tests.
    #[cfg(test)]
    pub(crate) const fn of(index: usize) -> Self {
        Self(index)
    }
}

impl Locked<'_> {
    fn guarded(&self) -> &Guarded {
        // SAFETY: this process has the lock, and `guarded_mut` borrows the value exclusively.
        unsafe { &*self.header.guarded.get() }
    }

    fn guarded_mut(&mut self) -> &mut Guarded {
        // SAFETY: this process has the lock, and the value is borrowed exclusively.
        unsafe { &mut *self.header.guarded.get() }
    }

    /// Returns the number of states so far, including the present one.
    pub(crate) fn epoch(&self) -> u64 {
        self.guarded().epoch
    }

    /// Returns the largest number of stored targets.
    pub(crate) fn targets_max(&self) -> usize {
        self.guarded().targets_max
    }

    /// Sets the largest number of stored targets, for the next state. It is at most what the zone was created for.
    pub(crate) fn set_targets_max(&mut self, targets_max: usize) {
        let guarded = self.guarded_mut();
        guarded.targets_max = targets_max.min(guarded.capacity);
    }

    /// Returns the number of the latest config that a process has applied.
    pub(crate) fn generation(&self) -> u64 {
        self.guarded().generation
    }

    /// Makes a config the one that the state has. Returns false if the state has a later one.
    pub(crate) fn take_generation(&mut self, generation: u64) -> bool {
        let guarded = self.guarded_mut();
        guarded.generation = guarded.generation.max(generation);
        guarded.generation == generation
    }

    /// Returns the used and the whole memory for the state. Bytes.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.guarded().heap.used(), self.guarded().heap.size())
    }

    /// Returns whether there is a state.
    pub(crate) fn has_state(&self) -> bool {
        !self.guarded().state.is_null()
    }

    /// Discards the state and all memory of it.
    pub(crate) fn reset(&mut self) {
        self.header.counters.resets.fetch_add(1, Ordering::Relaxed);
        let guarded = self.guarded_mut();
        guarded.state = ptr::null_mut();
        // SAFETY: nothing uses the memory any more: the state was the only owner.
        guarded.heap = unsafe { Heap::new(guarded.heap_start, guarded.heap_bytes) };
    }

    /// Creates the state. `create` returns `None` if it cannot.
    ///
    /// # Errors
    /// The state does not fit, or `create` has panicked.
    pub(crate) fn create(
        &mut self,
        create: impl FnOnce() -> Option<State> + Copy,
    ) -> Result<bool, ZoneError> {
        if self.has_state() {
            self.reset();
        }
        let made =
            self.in_heap(|_| create().map_or(ptr::null_mut(), |state| Box::into_raw(Box::new(state))))?;
        let guarded = self.guarded_mut();
        guarded.state = made;
        guarded.epoch += 1;
        Ok(!made.is_null())
    }

    /// Changes the state. All memory that `change` allocates is shared.
    ///
    /// # Errors
    /// There is no state any more: `change` has panicked, or the heap was full.
    pub(crate) fn change<T: Copy>(
        &mut self,
        change: impl FnOnce(&mut State) -> T + Copy,
    ) -> Result<T, ZoneError> {
        self.in_heap(|state| {
            // SAFETY: the pointer is null, or made by `create` and not used elsewhere while the lock is held.
            match unsafe { state.as_mut() } {
                Some(state) => change(state),
                // The callers create a state before they change it.
                None => unreachable!("there is no state"),
            }
        })
    }

    /// Runs `run` with the memory of the heap.
    fn in_heap<T: Copy>(&mut self, run: impl FnOnce(*mut State) -> T + Copy) -> Result<T, ZoneError> {
        let guarded = self.guarded_mut();
        let (state, heap): (_, *mut Heap) = (guarded.state, &raw mut guarded.heap);
        // SAFETY: the heap is valid, and the lock keeps everyone else from it.
        let scope = unsafe { Scope::begin(heap, true) };
        let result = catch_unwind(AssertUnwindSafe(|| run(state)));
        // The payload may be in the heap.
        let result = result.map_err(std::mem::forget);
        let had_room = scope.end();
        match result {
            Ok(result) if had_room => Ok(result),
            Ok(_) => {
                let guarded = self.guarded_mut();
                guarded.targets_max = (guarded.targets_max / 2).max(1_024);
                self.reset();
                Err(ZoneError::Full)
            }
            Err(()) => {
                self.reset();
                Err(ZoneError::Panic(take_panic()))
            }
        }
    }

    /// Reads the state. Memory that `read` allocates belongs to this process, so that `read` must not store any of it in the state: an
    /// explanation may, and is a change.
    ///
    /// # Errors
    /// `read` has panicked.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> Result<Option<T>, ZoneError> {
        // SAFETY: the pointer is null, or made by `create`; the lock keeps others from changing the state.
        let Some(state) = (unsafe { self.guarded().state.as_ref() }) else { return Ok(None) };
        // SAFETY: the pointer is valid.
        let heap = unsafe { &raw mut (*self.header.guarded.get()).heap };
        // SAFETY: the heap is valid, and the lock keeps everyone else from it.
        let scope = unsafe { Scope::begin(heap, false) };
        let result = catch_unwind(AssertUnwindSafe(|| read(state)));
        scope.end();
        result.map(Some).map_err(|payload| {
            std::mem::forget(payload);
            ZoneError::Panic(take_panic())
        })
    }

    /// Returns the stored snapshot; empty if there is none.
    pub(crate) fn snapshot(&self) -> &[u8] {
        let guarded = self.guarded();
        // SAFETY: so many bytes were written there, and the lock keeps others from writing.
        unsafe { std::slice::from_raw_parts(guarded.snapshot.as_ptr(), guarded.snapshot_bytes) }
    }

    /// Stores a snapshot. Returns false if it is too large.
    pub(crate) fn store_snapshot(&mut self, bytes: &[u8]) -> bool {
        let guarded = self.guarded_mut();
        if bytes.len() > guarded.snapshot_bytes_max {
            return false;
        }
        // If the process dies now, there is no snapshot rather than half a snapshot.
        guarded.snapshot_bytes = 0;
        std::sync::atomic::fence(Ordering::Release);
        // SAFETY: the place has room for so many bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), guarded.snapshot.as_ptr(), bytes.len()) };
        std::sync::atomic::fence(Ordering::Release);
        guarded.snapshot_bytes = bytes.len();
        true
    }

    /// Takes the mutex of a worker that does not exist any more, or has never existed. The flag tells whether its last owner has died
    /// without releasing it. `None` if there are more than [`WORKERS_MAX`] workers.
    pub(crate) fn claim_worker(&mut self) -> io::Result<Option<(Worker, bool)>> {
        for (index, mutex) in self.header.workers.iter().enumerate() {
            if let Some(taken) = mutex.try_lock()? {
                return Ok(Some((Worker(index), taken == Taken::OwnerDied)));
            }
        }
        Ok(None)
    }

    /// Returns the workers that have died since the last call, and whether a worker lives.
    pub(crate) fn dead_workers(&mut self) -> io::Result<(Vec<Worker>, bool)> {
        let (mut dead, mut is_any_alive) = (Vec::new(), false);
        for (index, mutex) in self.header.workers.iter().enumerate() {
            let Some(taken) = mutex.try_lock()? else {
                is_any_alive = true;
                continue;
            };
            mutex.unlock();
            if taken == Taken::OwnerDied {
                dead.push(Worker(index));
            }
        }
        Ok((dead, is_any_alive))
    }

    /// Releases the mutex of a worker, which this process has.
    pub(crate) fn release_worker(&mut self, worker: Worker) {
        if let Some(mutex) = self.header.workers.get(worker.0) {
            mutex.unlock();
        }
    }
}

thread_local! {
    static IS_WARM: Cell<bool> = const { Cell::new(false) };
    static PANIC: Cell<Option<String>> = const { Cell::new(None) };
}

/// Makes the core allocate what it keeps for each thread, such as the places of arc-swap, in the memory of this process.
fn warm_up() {
    if IS_WARM.replace(true) {
        return;
    }
    install_panic_hook();
    let _ = catch_unwind(|| crate::state::exercise(Time::ZERO));
}

/// Keeps the text of a panic, and keeps it out of the shared memory.
fn install_panic_hook() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            leave();
            if cfg!(test) {
                before(info);
            }
            let payload = info.payload_as_str().unwrap_or("panic");
            let place = info.location().map_or_else(String::new, |at| format!(" at {at}"));
            // The thread may be ending.
            let _ = PANIC.try_with(|text| text.set(Some(format!("{payload}{place}"))));
        }));
    });
}

/// Returns the text of this thread's last panic.
pub(crate) fn take_panic() -> String {
    PANIC.try_with(Cell::take).ok().flatten().unwrap_or_else(|| "panic".to_owned())
}

#[cfg(test)]
pub(crate) mod tests;
