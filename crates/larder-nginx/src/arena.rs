//! The heap in shared memory, and the allocator that uses it.
//!
//! All memory that the shared dispatcher owns must be in shared memory, at the same address in all workers. The allocator of the module
//! therefore has a mode for each thread: while a [`Scope`] exists, new memory comes from the heap of that scope. Otherwise it comes from
//! the process. Memory returns to the heap that has its address.
//!
//! The allocation of a Rust collection cannot fail without ending the process. If the heap has no room, the memory comes from the
//! process, and [`Scope::end`] says so: the shared data has a pointer then that other workers cannot follow, and must be discarded.

#![expect(unsafe_code, reason = "an allocator, and memory that processes share")]

use rlsf::Tlsf;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// Two-level segregated fit: constant time, and blocks of up to 128 GiB.
type Allocator = Tlsf<'static, u32, u32, 32, 32>;

/// A heap that lives in the memory that it manages, or beside it.
pub(crate) struct Heap {
    allocator: Allocator,
    start: usize,
    end: usize,
    used: usize,
}

impl Heap {
    /// Creates a heap that manages the memory of `bytes` bytes at `start`.
    ///
    /// # Safety
    /// The memory is valid for reading and writing as long as the heap or memory from it is used, and nothing else uses it.
    pub(crate) unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        let mut allocator = Allocator::new();
        let block = NonNull::slice_from_raw_parts(start, bytes);
        // SAFETY: as the caller promises.
        unsafe { allocator.insert_free_block_ptr(block) };
        let start = start.as_ptr() as usize;
        Self { allocator, start, end: start + bytes, used: 0 }
    }

    /// Returns the number of allocated bytes, without those that the heap needs for itself.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// Returns the size of the heap. Bytes.
    pub(crate) const fn size(&self) -> usize {
        self.end - self.start
    }

    fn contains(&self, memory: *mut u8) -> bool {
        (self.start..self.end).contains(&(memory as usize))
    }

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let memory = self.allocator.allocate(layout)?;
        self.used += layout.size();
        Some(memory)
    }

    /// # Safety
    /// `memory` was allocated here with this layout.
    unsafe fn deallocate(&mut self, memory: NonNull<u8>, layout: Layout) {
        self.used -= layout.size();
        // SAFETY: as the caller promises.
        unsafe { self.allocator.deallocate(memory, layout.align()) };
    }
}

/// The mode of a thread.
#[derive(Clone, Copy)]
struct Mode {
    /// The heap to which memory may return; null outside of a scope.
    heap: *mut Heap,
    /// Whether new memory comes from it.
    allocates: bool,
    /// Whether it had no room for new memory.
    is_exhausted: bool,
}

const OUTSIDE: Mode = Mode { heap: ptr::null_mut(), allocates: false, is_exhausted: false };

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(OUTSIDE) };
}

/// A time in which this thread's new memory comes from a heap.
pub(crate) struct Scope {
    before: Mode,
}

impl Scope {
    /// Begins a scope. If `allocates` is false, memory only returns to the heap.
    ///
    /// # Safety
    /// The heap is valid until the scope ends, and no other thread or process uses it.
    pub(crate) unsafe fn begin(heap: *mut Heap, allocates: bool) -> Self {
        Self { before: MODE.replace(Mode { heap, allocates, is_exhausted: false }) }
    }

    /// Ends the scope. Returns whether the heap had room for all memory.
    pub(crate) fn end(self) -> bool {
        !MODE.get().is_exhausted
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        MODE.set(self.before);
    }
}

/// Runs `run` with the memory of the process, also inside of a scope.
pub(crate) fn in_process_memory<T>(run: impl FnOnce() -> T) -> T {
    /// Restores the mode also after a panic.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MODE.set(Mode { allocates: self.0, ..MODE.get() });
        }
    }
    let mode = MODE.get();
    MODE.set(Mode { allocates: false, ..mode });
    let _restore = Restore(mode.allocates);
    run()
}

/// Lets new memory come from the process until the scope ends. For the hook of panics: their messages must not be in shared memory.
pub(crate) fn leave() {
    MODE.set(Mode { allocates: false, ..MODE.get() });
}

/// The allocator of the module.
pub(crate) struct ModuleAllocator;

#[global_allocator]
static ALLOCATOR: ModuleAllocator = ModuleAllocator;

impl ModuleAllocator {
    /// Returns the heap of this thread's scope, if it has this address.
    fn heap_of<'a>(memory: *mut u8) -> Option<&'a mut Heap> {
        // SAFETY: the pointer is null, or valid and not used by others while the scope exists. No reference to it is kept.
        let heap = unsafe { MODE.get().heap.as_mut() }?;
        heap.contains(memory).then_some(heap)
    }

    /// Allocates memory of this thread's scope; `None` if the memory of the process is to be used.
    fn allocate(layout: Layout) -> Option<NonNull<u8>> {
        let mode = MODE.get();
        if !mode.allocates {
            return None;
        }
        // SAFETY: as in `heap_of`.
        let memory = unsafe { mode.heap.as_mut() }?.allocate(layout);
        if memory.is_none() {
            MODE.set(Mode { is_exhausted: true, ..mode });
        }
        memory
    }
}

// SAFETY: memory comes from one of two allocators, and returns to the one that has its address. No method panics.
unsafe impl GlobalAlloc for ModuleAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Self::allocate(layout) {
            Some(memory) => memory.as_ptr(),
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Self::allocate(layout) {
            Some(memory) => {
                // SAFETY: the memory has this size.
                unsafe { memory.write_bytes(0, layout.size()) };
                memory.as_ptr()
            }
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match (Self::heap_of(memory), NonNull::new(memory)) {
            // SAFETY: the memory is this heap's, and the layout is the one with which it was allocated.
            (Some(heap), Some(memory)) => unsafe { heap.deallocate(memory, layout) },
            // SAFETY: as the caller promises; the memory is not the heap's.
            _ => unsafe { System.dealloc(memory, layout) },
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Self::heap_of(memory).is_none() && !MODE.get().allocates {
            // SAFETY: as the caller promises; the memory is not the heap's.
            return unsafe { System.realloc(memory, layout, size) };
        }
        // SAFETY: as the caller promises, the size is not larger than a layout permits.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller promises that the size is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are valid for the smaller size, and different.
            unsafe { ptr::copy_nonoverlapping(memory, moved, layout.size().min(size)) };
            // SAFETY: as the caller promises.
            unsafe { self.dealloc(memory, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `run` with a heap of `bytes` bytes.
    fn with_heap<T>(bytes: usize, run: impl FnOnce(&mut Heap) -> T) -> T {
        let mut memory = vec![0_u64; bytes / 8];
        let start = NonNull::new(memory.as_mut_ptr().cast()).expect("an address");
        // SAFETY: the memory lives longer than the heap, which alone uses it.
        let mut heap = unsafe { Heap::new(start, bytes) };
        run(&mut heap)
    }

    #[test]
    fn memory_comes_from_the_heap_only_in_a_scope_and_returns_there() {
        with_heap(1 << 20, |heap| {
            let outside = vec![1_u8; 100];
            let at: *mut Heap = heap;
            // SAFETY: the heap is valid and only this thread's.
            let scope = unsafe { Scope::begin(at, true) };
            let mut inside = vec![2_u8; 100];
            inside.resize(10_000, 3);
            let hidden = in_process_memory(|| vec![4_u8; 100]);
            drop(outside);
            assert!(scope.end());
            assert!(heap.contains(inside.as_mut_ptr()) && !heap.contains(hidden.as_ptr().cast_mut()));
            assert_eq!(heap.used(), inside.capacity());
            // SAFETY: as above.
            let scope = unsafe { Scope::begin(at, false) };
            let read = inside.clone();
            drop(inside);
            assert!(scope.end());
            assert!(!heap.contains(read.as_ptr().cast_mut()));
            assert_eq!(heap.used(), 0);
        });
    }

    #[test]
    fn a_full_heap_is_reported_and_does_not_end_the_process() {
        with_heap(1 << 16, |heap| {
            let at: *mut Heap = heap;
            // SAFETY: the heap is valid and only this thread's.
            let scope = unsafe { Scope::begin(at, true) };
            let too_large = vec![7_u8; 1 << 20];
            assert!(!scope.end());
            assert_eq!(too_large.len(), 1 << 20);
        });
    }
}
