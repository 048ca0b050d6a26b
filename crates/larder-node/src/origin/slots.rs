//! The slots of an origin: the limit on concurrent requests to it, and the order in which clients get slots.
//!
//! A slot that is held cannot be taken back, so one client's share of the slots is a hard limit. Otherwise a
//! client that took all slots while nobody else asked would still hold them later. A request beyond its
//! client's share, or without a free slot, waits in a queue. Free slots go to waiting clients below their
//! shares, one slot each in turn (round robin). So a client with many queued requests delays another client's
//! request by at most one slot.
//!
//! | limit | outcome |
//! |---|---|
//! | slots of one client: `requests_max * client_share / 100`, at least 1 | the request waits |
//! | waiting requests: `queue_max` in all, and one client's share of them | [`SlotRefusal`] |
//! | time in the queue: `queue_timeout` | [`SlotRefusal`] |
//!
//! The table has an entry for each client that holds a slot or waits for one, so slots and queue bound its
//! size. [`ClientKey::Unknown`] has a turn like any client, but no share, because it stands for many clients.

use super::client_key::ClientKey;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The rules for sharing slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotSettings {
    pub(crate) slots_max: usize,
    /// Percentage of the slots, and of the queue, that one client may use.
    pub(crate) client_share: u8,
    pub(crate) queue_max: usize,
    pub(crate) queue_timeout: Duration,
}

impl SlotSettings {
    fn share_of(self, client: ClientKey, all: usize) -> usize {
        match client {
            ClientKey::Unknown => all,
            ClientKey::V4(_) | ClientKey::V6(_) => {
                (all * usize::from(self.client_share) / 100).max(1).min(all)
            }
        }
    }
}

/// The reason why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotRefusal {
    /// No slot is free.
    Full,
    /// Slots are free, but the client uses its whole share.
    Share,
}

/// The slots of an origin.
#[derive(Debug)]
pub(crate) struct Slots(Mutex<SlotState>);

#[derive(Debug)]
struct SlotState {
    settings: SlotSettings,
    in_use: usize,
    waiting: usize,
    clients: HashMap<ClientKey, ClientUsage>,
    /// The waiting clients below their shares, each once, in the order of their turns.
    turns: VecDeque<ClientKey>,
    next_id: u64,
}

/// The slots and waiting requests of one client.
#[derive(Debug, Default)]
struct ClientUsage {
    in_use: usize,
    queue: VecDeque<(u64, oneshot::Sender<()>)>,
    has_turn: bool,
}

/// A slot, which is released when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    client: ClientKey,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().release(self.client);
    }
}

/// A request in the queue, which leaves the queue when dropped.
struct QueuedRequest {
    slots: Arc<Slots>,
    client: ClientKey,
    id: u64,
    has_slot: bool,
}

impl QueuedRequest {
    fn into_slot(mut self) -> Slot {
        self.has_slot = true;
        Slot { slots: Arc::clone(&self.slots), client: self.client }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if !self.has_slot {
            self.slots.lock().dequeue(self.client, self.id);
        }
    }
}

impl Slots {
    pub(crate) fn new(settings: SlotSettings) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SlotState {
            settings,
            in_use: 0,
            waiting: 0,
            clients: HashMap::new(),
            turns: VecDeque::new(),
            next_id: 0,
        })))
    }

    /// Changes the sharing rules. Slots that are held stay held.
    pub(crate) fn set(&self, settings: SlotSettings) {
        let mut state = self.lock();
        state.settings = settings;
        let clients: Vec<ClientKey> = state.clients.keys().copied().collect();
        for client in clients {
            state.schedule(client);
        }
        state.grant();
    }

    /// Takes a slot if one is free for this client.
    pub(crate) fn try_take(self: &Arc<Self>, client: ClientKey) -> Option<Slot> {
        let mut state = self.lock();
        state.is_free_for(client).then(|| {
            state.take(client);
            Slot { slots: Arc::clone(self), client }
        })
    }

    /// Takes a slot when it is the client's turn.
    ///
    /// # Errors
    /// Fails if the queue is full, or if no slot comes free within `queue_timeout`.
    pub(crate) async fn take(self: &Arc<Self>, client: ClientKey) -> Result<Slot, SlotRefusal> {
        let (granted, id, time_limit) = {
            let mut state = self.lock();
            if state.is_free_for(client) {
                state.take(client);
                return Ok(Slot { slots: Arc::clone(self), client });
            }
            let time_limit = state.settings.queue_timeout;
            let (granted, id) = state.enqueue(client)?;
            (granted, id, time_limit)
        };
        let waiting = QueuedRequest { slots: Arc::clone(self), client, id, has_slot: false };
        match timeout(time_limit, granted).await {
            Ok(Ok(())) => Ok(waiting.into_slot()),
            _ => Err(self.lock().refusal()),
        }
    }

    /// Returns the number of taken slots, and the number of waiting requests.
    pub(crate) fn occupancy(&self) -> (usize, usize) {
        let state = self.lock();
        (state.in_use, state.waiting)
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotState {
    fn share_of(&self, client: ClientKey) -> usize {
        self.settings.share_of(client, self.settings.slots_max)
    }

    fn is_below_share(&self, client: ClientKey) -> bool {
        self.clients.get(&client).map_or(0, |usage| usage.in_use) < self.share_of(client)
    }

    /// Returns whether a request of this client gets a slot at once. If slots are free, no waiting client is
    /// below its share.
    fn is_free_for(&self, client: ClientKey) -> bool {
        self.in_use < self.settings.slots_max && self.is_below_share(client)
    }

    fn refusal(&self) -> SlotRefusal {
        if self.in_use < self.settings.slots_max { SlotRefusal::Share } else { SlotRefusal::Full }
    }

    fn take(&mut self, client: ClientKey) {
        self.in_use += 1;
        self.clients.entry(client).or_default().in_use += 1;
    }

    /// Appends a request to its client's queue.
    fn enqueue(&mut self, client: ClientKey) -> Result<(oneshot::Receiver<()>, u64), SlotRefusal> {
        let queue_max = self.settings.queue_max;
        let own = self.clients.get(&client).map_or(0, |usage| usage.queue.len());
        if self.waiting >= queue_max || own >= self.settings.share_of(client, queue_max) {
            return Err(self.refusal());
        }
        let (grant, granted) = oneshot::channel();
        let id = self.next_id;
        self.next_id += 1;
        self.waiting += 1;
        self.clients.entry(client).or_default().queue.push_back((id, grant));
        self.schedule(client);
        Ok((granted, id))
    }

    /// Removes a request from the queue, or releases the slot that it has been granted meanwhile.
    fn dequeue(&mut self, client: ClientKey, id: u64) {
        let usage = self.clients.entry(client).or_default();
        match usage.queue.iter().position(|(waiting, _)| *waiting == id) {
            Some(at) => {
                drop(usage.queue.remove(at));
                self.waiting -= 1;
                if usage.queue.is_empty() && std::mem::take(&mut usage.has_turn) {
                    self.turns.retain(|next| *next != client);
                }
                self.remove_if_idle(client);
            }
            None => self.release(client),
        }
    }

    fn release(&mut self, client: ClientKey) {
        self.in_use -= 1;
        if let Some(usage) = self.clients.get_mut(&client) {
            usage.in_use -= 1;
        }
        self.schedule(client);
        self.remove_if_idle(client);
        self.grant();
    }

    /// Grants the free slots to the clients whose turns come first.
    fn grant(&mut self) {
        while self.in_use < self.settings.slots_max
            && let Some(client) = self.turns.pop_front()
        {
            let below_share = self.is_below_share(client);
            let Some(usage) = self.clients.get_mut(&client) else { continue };
            usage.has_turn = false;
            if below_share && let Some((_, grant)) = usage.queue.pop_front() {
                self.waiting -= 1;
                self.take(client);
                // This fails if the request is about to leave the queue. The request then releases the slot.
                let _ = grant.send(());
                self.schedule(client);
            }
        }
    }

    /// Appends a client to the turns, if it waits and is below its share.
    fn schedule(&mut self, client: ClientKey) {
        let below_share = self.is_below_share(client);
        if let Some(usage) = self.clients.get_mut(&client)
            && below_share
            && !usage.has_turn
            && !usage.queue.is_empty()
        {
            usage.has_turn = true;
            self.turns.push_back(client);
        }
    }

    fn remove_if_idle(&mut self, client: ClientKey) {
        if self.clients.get(&client).is_some_and(|usage| usage.in_use == 0 && usage.queue.is_empty()) {
            self.clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::{JoinHandle, yield_now};

    const A: ClientKey = ClientKey::V4(1);
    const B: ClientKey = ClientKey::V4(2);
    const SETTINGS: SlotSettings = SlotSettings {
        slots_max: 20,
        client_share: 10,
        queue_max: 20,
        queue_timeout: Duration::from_secs(1),
    };

    fn acquire_many(slots: &Arc<Slots>, client: ClientKey) -> Vec<Slot> {
        std::iter::from_fn(|| slots.try_take(client)).collect()
    }

    /// Starts a request that waits; returns once it is in the queue.
    async fn spawn_waiter(slots: &Arc<Slots>, client: ClientKey) -> JoinHandle<Result<Slot, SlotRefusal>> {
        let (before, waiting) = (slots.occupancy().1, Arc::clone(slots));
        let task = tokio::spawn(async move { waiting.take(client).await });
        while slots.occupancy().1 == before {
            yield_now().await;
        }
        task
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_never_holds_more_than_its_share() {
        let slots = Slots::new(SETTINGS);
        let (a, b) = (acquire_many(&slots, A), acquire_many(&slots, B));
        assert_eq!((a.len(), b.len()), (2, 2), "a tenth of 20 each");
        assert_eq!(slots.take(A).await.unwrap_err(), SlotRefusal::Share);
        let unknown = acquire_many(&slots, ClientKey::Unknown);
        assert_eq!(unknown.len(), 16, "many clients have no share");
        assert_eq!(slots.take(ClientKey::V4(3)).await.unwrap_err(), SlotRefusal::Full);
        drop((a, b, unknown));
        assert_eq!(slots.occupancy(), (0, 0));
        assert!(slots.lock().clients.is_empty());
        let few = Slots::new(SlotSettings { slots_max: 3, ..SETTINGS });
        assert_eq!(acquire_many(&few, A).len(), 1, "at least one");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_wait_get_slots_in_turn() {
        let slots = Slots::new(SlotSettings { slots_max: 2, client_share: 50, ..SETTINGS });
        let (slots_held, others) = (acquire_many(&slots, A), acquire_many(&slots, ClientKey::V4(9)));
        assert_eq!((slots_held.len(), others.len()), (1, 1));
        let (first, second) = (spawn_waiter(&slots, A).await, spawn_waiter(&slots, A).await);
        let other = spawn_waiter(&slots, B).await;
        drop(others);
        let other = other.await.unwrap().unwrap();
        assert!(!first.is_finished(), "A holds its share");
        drop(slots_held);
        let first = first.await.unwrap().unwrap();
        assert!(!second.is_finished());
        drop((first, other));
        drop(second.await.unwrap().unwrap());
        assert!(slots.lock().clients.is_empty() && slots.lock().turns.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_in_all_and_for_each_client() {
        let slots = Slots::new(SlotSettings { slots_max: 1, queue_max: 20, ..SETTINGS });
        let slots_held = acquire_many(&slots, ClientKey::Unknown);
        let mut waiting = vec![spawn_waiter(&slots, A).await, spawn_waiter(&slots, A).await];
        assert_eq!(slots.lock().enqueue(A).unwrap_err(), SlotRefusal::Full, "a tenth of 20");
        for client in 10..28 {
            waiting.push(spawn_waiter(&slots, ClientKey::V4(client)).await);
        }
        assert_eq!(slots.lock().enqueue(B).unwrap_err(), SlotRefusal::Full, "20 wait");
        for task in &waiting {
            task.abort();
        }
        for task in waiting {
            assert!(task.await.is_err());
        }
        assert_eq!(slots.occupancy(), (1, 0), "requests that went away have left the queue");
        assert!(slots.lock().turns.is_empty() && slots.lock().clients.len() == 1);
        drop(slots_held);
        assert_eq!(slots.occupancy(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn added_slots_go_to_waiters_and_removed_ones_are_taken_as_they_come_free() {
        let slots = Slots::new(SlotSettings { slots_max: 1, ..SETTINGS });
        let slots_held = acquire_many(&slots, ClientKey::Unknown);
        let waiting = spawn_waiter(&slots, A).await;
        slots.set(SlotSettings { slots_max: 2, ..SETTINGS });
        let more = waiting.await.unwrap().unwrap();
        slots.set(SlotSettings { slots_max: 1, ..SETTINGS });
        drop(slots_held);
        assert!(slots.try_take(B).is_none(), "one is held, and there is one");
        drop(more);
        assert!(slots.try_take(B).is_some());
    }
}
