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
//! | waiting requests: `queue_max` in all, and one client's share of them | [`Refused`] |
//! | time in the queue: `queue_timeout` | [`Refused`] |
//!
//! The table has an entry for each client that holds a slot or waits for one, so slots and queue bound its
//! size. [`Client::Unknown`] has a turn like any client, but no share, because it stands for many clients.

use super::client_key::Client;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The rules for sharing slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub(crate) slots_max: usize,
    /// Percentage of the slots, and of the queue, that one client may use.
    pub(crate) client_share: u8,
    pub(crate) queue_max: usize,
    pub(crate) queue_timeout: Duration,
}

impl Sharing {
    fn share_of(self, client: Client, all: usize) -> usize {
        match client {
            Client::Unknown => all,
            Client::V4(_) | Client::V6(_) => (all * usize::from(self.client_share) / 100).max(1).min(all),
        }
    }
}

/// The reason why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No slot is free.
    Full,
    /// Slots are free, but the client uses its whole share.
    Share,
}

/// The slots of an origin.
#[derive(Debug)]
pub(crate) struct Slots(Mutex<State>);

#[derive(Debug)]
struct State {
    sharing: Sharing,
    taken: usize,
    waiting: usize,
    clients: HashMap<Client, Usage>,
    /// The waiting clients below their shares, each once, in the order of their turns.
    turns: VecDeque<Client>,
    next_id: u64,
}

/// The slots and waiting requests of one client.
#[derive(Debug, Default)]
struct Usage {
    taken: usize,
    queue: VecDeque<(u64, oneshot::Sender<()>)>,
    has_turn: bool,
}

/// A slot, which is released when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    client: Client,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().release(self.client);
    }
}

/// A request in the queue, which leaves the queue when dropped.
struct Waiting {
    slots: Arc<Slots>,
    client: Client,
    id: u64,
    has_slot: bool,
}

impl Waiting {
    fn into_slot(mut self) -> Slot {
        self.has_slot = true;
        Slot { slots: Arc::clone(&self.slots), client: self.client }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.has_slot {
            self.slots.lock().leave(self.client, self.id);
        }
    }
}

impl Slots {
    pub(crate) fn new(sharing: Sharing) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            sharing,
            taken: 0,
            waiting: 0,
            clients: HashMap::new(),
            turns: VecDeque::new(),
            next_id: 0,
        })))
    }

    /// Changes the sharing rules. Slots that are held stay held.
    pub(crate) fn set(&self, sharing: Sharing) {
        let mut state = self.lock();
        state.sharing = sharing;
        let clients: Vec<Client> = state.clients.keys().copied().collect();
        for client in clients {
            state.give_turn(client);
        }
        state.grant();
    }

    /// Takes a slot if one is free for this client.
    pub(crate) fn try_take(self: &Arc<Self>, client: Client) -> Option<Slot> {
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
    pub(crate) async fn take(self: &Arc<Self>, client: Client) -> Result<Slot, Refused> {
        let (granted, id, patience) = {
            let mut state = self.lock();
            if state.is_free_for(client) {
                state.take(client);
                return Ok(Slot { slots: Arc::clone(self), client });
            }
            let patience = state.sharing.queue_timeout;
            let (granted, id) = state.enter(client)?;
            (granted, id, patience)
        };
        let waiting = Waiting { slots: Arc::clone(self), client, id, has_slot: false };
        match timeout(patience, granted).await {
            Ok(Ok(())) => Ok(waiting.into_slot()),
            _ => Err(self.lock().refusal()),
        }
    }

    /// Returns the number of taken slots, and the number of waiting requests.
    pub(crate) fn levels(&self) -> (usize, usize) {
        let state = self.lock();
        (state.taken, state.waiting)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn share_of(&self, client: Client) -> usize {
        self.sharing.share_of(client, self.sharing.slots_max)
    }

    fn is_below_share(&self, client: Client) -> bool {
        self.clients.get(&client).map_or(0, |usage| usage.taken) < self.share_of(client)
    }

    /// Returns whether a request of this client gets a slot at once. If slots are free, no waiting client is
    /// below its share.
    fn is_free_for(&self, client: Client) -> bool {
        self.taken < self.sharing.slots_max && self.is_below_share(client)
    }

    fn refusal(&self) -> Refused {
        if self.taken < self.sharing.slots_max { Refused::Share } else { Refused::Full }
    }

    fn take(&mut self, client: Client) {
        self.taken += 1;
        self.clients.entry(client).or_default().taken += 1;
    }

    /// Appends a request to its client's queue.
    fn enter(&mut self, client: Client) -> Result<(oneshot::Receiver<()>, u64), Refused> {
        let queue_max = self.sharing.queue_max;
        let own = self.clients.get(&client).map_or(0, |usage| usage.queue.len());
        if self.waiting >= queue_max || own >= self.sharing.share_of(client, queue_max) {
            return Err(self.refusal());
        }
        let (grant, granted) = oneshot::channel();
        let id = self.next_id;
        self.next_id += 1;
        self.waiting += 1;
        self.clients.entry(client).or_default().queue.push_back((id, grant));
        self.give_turn(client);
        Ok((granted, id))
    }

    /// Removes a request from the queue, or releases the slot that it has been granted meanwhile.
    fn leave(&mut self, client: Client, id: u64) {
        let usage = self.clients.entry(client).or_default();
        match usage.queue.iter().position(|(waiting, _)| *waiting == id) {
            Some(at) => {
                drop(usage.queue.remove(at));
                self.waiting -= 1;
                if usage.queue.is_empty() && std::mem::take(&mut usage.has_turn) {
                    self.turns.retain(|next| *next != client);
                }
                self.forget_if_idle(client);
            }
            None => self.release(client),
        }
    }

    fn release(&mut self, client: Client) {
        self.taken -= 1;
        if let Some(usage) = self.clients.get_mut(&client) {
            usage.taken -= 1;
        }
        self.give_turn(client);
        self.forget_if_idle(client);
        self.grant();
    }

    /// Grants the free slots to the clients whose turns come first.
    fn grant(&mut self) {
        while self.taken < self.sharing.slots_max
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
                self.give_turn(client);
            }
        }
    }

    /// Appends a client to the turns, if it waits and is below its share.
    fn give_turn(&mut self, client: Client) {
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

    fn forget_if_idle(&mut self, client: Client) {
        if self.clients.get(&client).is_some_and(|usage| usage.taken == 0 && usage.queue.is_empty()) {
            self.clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::{JoinHandle, yield_now};

    const A: Client = Client::V4(1);
    const B: Client = Client::V4(2);
    const SHARING: Sharing =
        Sharing { slots_max: 20, client_share: 10, queue_max: 20, queue_timeout: Duration::from_secs(1) };

    fn many(slots: &Arc<Slots>, client: Client) -> Vec<Slot> {
        std::iter::from_fn(|| slots.try_take(client)).collect()
    }

    /// Starts a request that waits; returns once it is in the queue.
    async fn waits(slots: &Arc<Slots>, client: Client) -> JoinHandle<Result<Slot, Refused>> {
        let (before, waiting) = (slots.levels().1, Arc::clone(slots));
        let task = tokio::spawn(async move { waiting.take(client).await });
        while slots.levels().1 == before {
            yield_now().await;
        }
        task
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_never_holds_more_than_its_share() {
        let slots = Slots::new(SHARING);
        let (a, b) = (many(&slots, A), many(&slots, B));
        assert_eq!((a.len(), b.len()), (2, 2), "a tenth of 20 each");
        assert_eq!(slots.take(A).await.unwrap_err(), Refused::Share);
        let unknown = many(&slots, Client::Unknown);
        assert_eq!(unknown.len(), 16, "many clients have no share");
        assert_eq!(slots.take(Client::V4(3)).await.unwrap_err(), Refused::Full);
        drop((a, b, unknown));
        assert_eq!(slots.levels(), (0, 0));
        assert!(slots.lock().clients.is_empty());
        let few = Slots::new(Sharing { slots_max: 3, ..SHARING });
        assert_eq!(many(&few, A).len(), 1, "at least one");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_wait_get_slots_in_turn() {
        let slots = Slots::new(Sharing { slots_max: 2, client_share: 50, ..SHARING });
        let (held, others) = (many(&slots, A), many(&slots, Client::V4(9)));
        assert_eq!((held.len(), others.len()), (1, 1));
        let (first, second) = (waits(&slots, A).await, waits(&slots, A).await);
        let other = waits(&slots, B).await;
        drop(others);
        let other = other.await.unwrap().unwrap();
        assert!(!first.is_finished(), "A holds its share");
        drop(held);
        let first = first.await.unwrap().unwrap();
        assert!(!second.is_finished());
        drop((first, other));
        drop(second.await.unwrap().unwrap());
        assert!(slots.lock().clients.is_empty() && slots.lock().turns.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_in_all_and_for_each_client() {
        let slots = Slots::new(Sharing { slots_max: 1, queue_max: 20, ..SHARING });
        let held = many(&slots, Client::Unknown);
        let mut waiting = vec![waits(&slots, A).await, waits(&slots, A).await];
        assert_eq!(slots.lock().enter(A).unwrap_err(), Refused::Full, "a tenth of 20");
        for client in 10..28 {
            waiting.push(waits(&slots, Client::V4(client)).await);
        }
        assert_eq!(slots.lock().enter(B).unwrap_err(), Refused::Full, "20 wait");
        for task in &waiting {
            task.abort();
        }
        for task in waiting {
            assert!(task.await.is_err());
        }
        assert_eq!(slots.levels(), (1, 0), "requests that went away have left the queue");
        assert!(slots.lock().turns.is_empty() && slots.lock().clients.len() == 1);
        drop(held);
        assert_eq!(slots.levels(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn more_slots_go_to_those_who_wait_and_fewer_are_taken_back_as_they_come_free() {
        let slots = Slots::new(Sharing { slots_max: 1, ..SHARING });
        let held = many(&slots, Client::Unknown);
        let waiting = waits(&slots, A).await;
        slots.set(Sharing { slots_max: 2, ..SHARING });
        let more = waiting.await.unwrap().unwrap();
        slots.set(Sharing { slots_max: 1, ..SHARING });
        drop(held);
        assert!(slots.try_take(B).is_none(), "one is held, and there is one");
        drop(more);
        assert!(slots.try_take(B).is_some());
    }
}
