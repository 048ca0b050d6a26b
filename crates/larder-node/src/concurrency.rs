//! A limit on concurrent users that can change while permits are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Semaphore;

/// A limit on concurrent users.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    permits: Arc<Semaphore>,
    most: AtomicUsize,
}

impl ConcurrencyLimit {
    /// Creates a limit of `most`, at most [`Semaphore::MAX_PERMITS`].
    pub(crate) fn new(most: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(most)), most: AtomicUsize::new(most) }
    }

    /// Returns the permits. Each user holds one of them.
    pub(crate) fn permits(&self) -> &Arc<Semaphore> {
        &self.permits
    }

    /// Changes the limit. If more permits are held than the new limit, their holders stay, and new ones wait.
    /// Call this from one thread at a time, within the runtime.
    pub(crate) fn set(&self, most: usize) {
        let before = self.most.swap(most, Relaxed);
        // Permits that are still owed from an earlier reduction are withdrawn first.
        self.permits.add_permits(most.saturating_sub(before));
        let fewer = before.saturating_sub(most);
        let excess = fewer - self.permits.forget_permits(fewer);
        if excess > 0 {
            tokio::spawn(withdraw_permits(Arc::clone(&self.permits), excess));
        }
    }
}

/// Withdraws `excess` permits as they are released. It precedes all later waiters.
async fn withdraw_permits(permits: Arc<Semaphore>, excess: usize) {
    let mut remaining = excess;
    while remaining > 0 {
        let now = u32::try_from(remaining).unwrap_or(u32::MAX);
        match permits.acquire_many(now).await {
            Ok(taken) => taken.forget(),
            Err(_) => return,
        }
        remaining -= now as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::OwnedSemaphorePermit;

    fn take(limit: &ConcurrencyLimit) -> Option<OwnedSemaphorePermit> {
        Arc::clone(limit.permits()).try_acquire_owned().ok()
    }

    #[tokio::test]
    async fn a_lower_limit_holds_once_enough_permits_are_returned() {
        let limit = ConcurrencyLimit::new(4);
        let mut permits: Vec<_> = (0..3).filter_map(|_| take(&limit)).collect();
        limit.set(1);
        tokio::task::yield_now().await;
        assert_eq!(permits.len(), 3, "all of them stay");
        for _ in 0..2 {
            permits.pop();
            tokio::task::yield_now().await;
            assert!(take(&limit).is_none(), "{} are there", permits.len());
        }
        permits.pop();
        tokio::task::yield_now().await;
        assert!(take(&limit).is_some());
    }

    #[tokio::test]
    async fn a_higher_limit_holds_at_once_even_with_permits_to_return() {
        let limit = ConcurrencyLimit::new(3);
        let permits: Vec<_> = (0..3).filter_map(|_| take(&limit)).collect();
        limit.set(1);
        tokio::task::yield_now().await;
        limit.set(4);
        tokio::task::yield_now().await;
        let one = take(&limit);
        assert!(one.is_some() && take(&limit).is_none(), "3 and 1 are there");
        drop((permits, one));
        tokio::task::yield_now().await;
        let all: Vec<_> = (0..5).filter_map(|_| take(&limit)).collect();
        assert_eq!(all.len(), 4);
    }
}
