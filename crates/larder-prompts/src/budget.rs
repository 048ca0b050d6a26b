//! The memory for bodies that have no reply yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The memory for the bodies of a route.
#[derive(Debug)]
pub struct BodyBudget {
    used: AtomicUsize,
    bytes_max: usize,
}

impl BodyBudget {
    /// Creates a budget of `bytes_max`.
    pub const fn new(bytes_max: usize) -> Self {
        Self { used: AtomicUsize::new(0), bytes_max }
    }

    /// Returns the reserved bytes.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn try_reserve(&self, bytes: usize) -> bool {
        let reserve = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        self.used.fetch_update(Relaxed, Relaxed, reserve).is_ok()
    }
}

/// The reservation of a body in memory. Dropping it returns the bytes.
#[derive(Debug)]
pub struct HeldBody {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl HeldBody {
    /// Creates a reservation of no bytes.
    pub const fn new(budget: Arc<BodyBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Returns the reserved bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves memory for a body that has reached `length` bytes and may have `length_max`: twice as much as before, so that
    /// a body grows in few steps. Returns false if the budget is used up.
    #[must_use]
    pub fn grow_to(&mut self, length: usize, length_max: usize) -> bool {
        if length <= self.bytes {
            return true;
        }
        let wanted = length.next_power_of_two().min(length_max).max(length);
        let reserved = self.budget.try_reserve(wanted - self.bytes);
        if reserved {
            self.bytes = wanted;
        }
        reserved
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}
