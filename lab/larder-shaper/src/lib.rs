//! A link that loses, delays, reorders and duplicates packets, for tests.
//!
//! A program of our own at tc egress of an interface (`bpf/shaper.bpf.c`), since `netem` and the qdiscs that heed a
//! packet's departure time (`fq`, `etf`) are not in every kernel. Loss and duplication happen in the kernel. Packets to
//! come later are copied to a thread of this process, which sends them at their time by a raw socket: what is delayed
//! must be a frame without segments to be cut (`segmentation: false` in a topology) and up to 9 KB.
//!
//! What befalls the k-th packet of a flow follows from the seed, the flow's addresses and k alone, so a run repeats
//! itself as far as the packets do.

use larder_kernel::netns::{Namespace, NamespaceThread, NetnsError, Wire, set_tcp_checksum};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder, TC_EGRESS, TcHook,
    TcHookBuilder,
};
use std::cell::RefCell;
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

static OBJECT: &[u8] = include_bytes!("../bpf/prebuilt/shaper.bpf.o");

/// The program lets packets with this mark pass.
const TREATED: u32 = 0x7368_6170;
/// Delayed frames waiting at most; beyond, they are lost.
const WAITING_MAX: usize = 65_536;
/// How long the thread sleeps at most, and so how long it takes to end.
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// The library waits for the ring in whole milliseconds; less is slept.
const POLL_MIN: Duration = Duration::from_millis(1);

/// What happens to the packets that leave by an interface. All zero: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// Of all chance.
    pub seed: u64,
    /// Share of packets lost. 0 to 1.
    pub loss: f64,
    /// The packet of each TCP connection and direction that is lost, counted from 1 (a client's SYN); 0 for none.
    pub drop_nth: u32,
    /// Share of packets that come twice; the copy is not delayed. 0 to 1.
    pub duplicate: f64,
    /// Of every packet.
    pub delay: Duration,
    /// On top, evenly between 0 and this. Packets overtake each other.
    pub jitter: Duration,
    /// Share of packets that come later by `reorder_by`. 0 to 1.
    pub reorder: f64,
    /// See `reorder`.
    pub reorder_by: Duration,
}

/// What has happened on all interfaces of a [`Shaper`]. Packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShaperCounts {
    /// IP packets that came.
    pub seen: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost by their number.
    pub nth_lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Taken off, to be sent later.
    pub delayed: u64,
    /// Not delayed, for they were too long or to be cut into segments.
    pub too_long: u64,
    /// Lost, for the ring to user space was full.
    pub ring_full: u64,
    /// Lost, for too many waited or the interface refused them.
    pub unsent: u64,
}

/// Why a link cannot be shaped.
#[derive(Debug, thiserror::Error)]
pub enum ShaperError {
    /// The namespace.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The program could not be loaded or attached.
    #[error("{doing}: {source}")]
    Bpf {
        /// What was tried.
        doing: String,
        /// What the library said.
        source: libbpf_rs::Error,
    },
    /// Delayed packets could not be sent by an interface.
    #[error("a raw socket: {0}")]
    Socket(#[from] std::io::Error),
}

/// Shapes what leaves by some interfaces of one namespace; ends on drop, when whatever waits is sent at once.
#[derive(Debug)]
pub struct Shaper {
    interfaces: Vec<(String, u32)>,
    shapes: MapHandle,
    counts: MapHandle,
    unsent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<NamespaceThread<()>>,
}

impl Shaper {
    /// Attaches to the interfaces, with nothing to do yet: see [`Self::set`]. The far ends of the wires in a topology's
    /// hub are the place: what leaves there is what a host receives.
    ///
    /// # Errors
    /// Without the rights (`CAP_NET_ADMIN`, `CAP_BPF`, `CAP_NET_RAW`), or if there is no such interface.
    pub fn start(namespace: &Namespace, interfaces: &[&str]) -> Result<Self, ShaperError> {
        let named: Result<Vec<_>, NetnsError> =
            interfaces.iter().map(|name| Ok(((*name).to_owned(), namespace.ifindex(name)?))).collect();
        let named = named?;
        let (tell, told) = mpsc::sync_channel(1);
        let unsent = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (named, unsent, stop) = (named.clone(), Arc::clone(&unsent), Arc::clone(&stop));
            namespace.thread(move || match Attached::new(&named) {
                Ok((attached, maps)) => {
                    let _ = tell.send(Ok(maps));
                    attached.serve(&stop, &unsent);
                }
                Err(e) => {
                    let _ = tell.send(Err(e));
                }
            })?
        };
        let ended = || ShaperError::Socket(std::io::Error::other("the shaper's thread ended"));
        let (shapes, counts) = told.recv().map_err(|_| ended())??;
        Ok(Self { interfaces: named, shapes, counts, unsent, stop, thread: Some(thread) })
    }

    /// Sets what happens on all its interfaces from now on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_all(&self, shape: &Shape) -> Result<(), ShaperError> {
        for (name, _) in &self.interfaces {
            self.set(name, shape)?;
        }
        Ok(())
    }

    /// Sets what happens on one interface from now on.
    ///
    /// # Errors
    /// If the interface is none of those it was started for.
    pub fn set(&self, interface: &str, shape: &Shape) -> Result<(), ShaperError> {
        let bpf = |source| ShaperError::Bpf { doing: format!("shaping {interface}"), source };
        let found = self.interfaces.iter().find(|(name, _)| name == interface);
        let Some((_, ifindex)) = found else {
            return Err(bpf(libbpf_rs::Error::from_raw_os_error(libc::ENODEV)));
        };
        let raw = RawShape::from(*shape);
        self.shapes.update(&ifindex.to_ne_bytes(), raw.as_bytes(), MapFlags::ANY).map_err(bpf)
    }

    /// What has happened so far.
    pub fn counts(&self) -> ShaperCounts {
        let count = |index: u32| -> u64 {
            let value = self.counts.lookup(&index.to_ne_bytes(), MapFlags::ANY).ok().flatten();
            value.and_then(|bytes| u64::read_from_bytes(&bytes).ok()).unwrap_or(0)
        };
        ShaperCounts {
            seen: count(0),
            lost: count(1),
            nth_lost: count(2),
            duplicated: count(3),
            delayed: count(4),
            too_long: count(5),
            ring_full: count(6),
            unsent: self.unsent.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Shaper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// `struct shape` of the program.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawShape {
    seed: u64,
    delay_ns: u64,
    jitter_ns: u64,
    reorder_ns: u64,
    loss_ppm: u32,
    duplicate_ppm: u32,
    reorder_ppm: u32,
    drop_nth: u32,
}

impl From<Shape> for RawShape {
    fn from(shape: Shape) -> Self {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        // Between 0 and a million, so it fits.
        let ppm = |share: f64| (share.clamp(0.0, 1.0) * 1e6).round() as u32;
        Self {
            seed: shape.seed,
            delay_ns: ns(shape.delay),
            jitter_ns: ns(shape.jitter),
            reorder_ns: ns(shape.reorder_by),
            loss_ppm: ppm(shape.loss),
            duplicate_ppm: ppm(shape.duplicate),
            reorder_ppm: ppm(shape.reorder),
            drop_nth: shape.drop_nth,
        }
    }
}

/// `struct delayed` of the program: what stands before a frame in the ring.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawDelayed {
    due_ns: u64,
    ifindex: u32,
    bytes: u32,
}

/// A frame that waits. The one due first is the greatest; equal times go in the order they came.
#[derive(PartialEq, Eq)]
struct Waiting {
    due_ns: u64,
    sequence: u64,
    ifindex: u32,
    frame: Vec<u8>,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due_ns, other.sequence).cmp(&(self.due_ns, self.sequence))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Default)]
struct Queue {
    heap: BinaryHeap<Waiting>,
    sequence: u64,
    refused: u64,
}

impl Queue {
    fn put(&mut self, record: &[u8]) {
        let Ok((head, rest)) = RawDelayed::read_from_prefix(record) else { return };
        let Some(frame) = usize::try_from(head.bytes).ok().and_then(|n| rest.get(..n)) else { return };
        if self.heap.len() >= WAITING_MAX {
            self.refused += 1;
            return;
        }
        self.sequence += 1;
        let (due_ns, ifindex, sequence) = (head.due_ns, head.ifindex, self.sequence);
        self.heap.push(Waiting { due_ns, sequence, ifindex, frame: frame.to_vec() });
    }
}

/// The program on its interfaces, and what sends the delayed; lives on a thread in the namespace.
struct Attached {
    object: Object,
    hooks: Vec<TcHook>,
    wire: Wire,
}

impl Attached {
    fn new(interfaces: &[(String, u32)]) -> Result<(Self, (MapHandle, MapHandle)), ShaperError> {
        let bpf = |doing: &str| {
            let doing = doing.to_owned();
            move |source| ShaperError::Bpf { doing, source }
        };
        let wire = Wire::open_here()?;
        wire.mark(TREATED)?;
        let object = ObjectBuilder::default()
            .open_memory(OBJECT)
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(bpf("loading the shaping program"))?;
        let map = |name: &str| {
            let found = object.maps().find(|m| m.name() == name);
            let missing = || libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
            found.ok_or_else(missing).and_then(|m| MapHandle::try_from(&m)).map_err(bpf(name))
        };
        let maps = (map("shapes")?, map("counts")?);
        let mut attached = Self { object, hooks: Vec::new(), wire };
        for (name, ifindex) in interfaces {
            let hook = attached.attach(*ifindex).map_err(bpf(&format!("attaching to {name}")))?;
            attached.hooks.push(hook);
        }
        Ok((attached, maps))
    }

    fn attach(&self, ifindex: u32) -> libbpf_rs::Result<TcHook> {
        let missing = || libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
        let program = self.object.progs().find(|p| p.name() == "shape").ok_or_else(missing)?;
        let index = i32::try_from(ifindex).unwrap_or(i32::MAX);
        let mut hook =
            TcHookBuilder::new(program.as_fd()).ifindex(index).handle(1).priority(1).hook(TC_EGRESS);
        hook.create()?;
        hook.attach()
    }

    fn serve(mut self, stop: &AtomicBool, unsent: &AtomicU64) {
        let queue = RefCell::new(Queue::default());
        {
            let map = self.object.maps().find(|m| m.name() == "delayed");
            let Some(map) = map else { return };
            let mut builder = RingBufferBuilder::new();
            let take = |record: &[u8]| {
                queue.borrow_mut().put(record);
                0
            };
            if builder.add(&map, take).is_err() {
                return;
            }
            let Ok(ring) = builder.build() else { return };
            while !stop.load(Ordering::Relaxed) {
                let refused = self.send_due(&queue, now_ns());
                unsent.fetch_add(refused, Ordering::Relaxed);
                wait(&ring, &queue);
            }
            detach(&mut self.hooks);
            let _ = ring.consume();
        }
        unsent.fetch_add(self.send_due(&queue, u64::MAX), Ordering::Relaxed);
    }

    /// Sends what is due; gives how many frames are lost.
    fn send_due(&self, queue: &RefCell<Queue>, now: u64) -> u64 {
        let mut queue = queue.borrow_mut();
        let mut lost = std::mem::take(&mut queue.refused);
        while queue.heap.peek().is_some_and(|first| first.due_ns <= now) {
            let Some(mut first) = queue.heap.pop() else { break };
            // Where the sender left that to its interface, the frame that the program saw had none.
            set_tcp_checksum(&mut first.frame);
            if self.wire.send(first.ifindex, &first.frame).is_err() {
                lost += 1;
            }
        }
        lost
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        detach(&mut self.hooks);
    }
}

fn detach(hooks: &mut Vec<TcHook>) {
    for mut hook in hooks.drain(..) {
        // The interface may be gone, and the program with it.
        let _ = hook.detach();
    }
}

/// Waits until a frame comes or one is due.
fn wait(ring: &RingBuffer<'_>, queue: &RefCell<Queue>) {
    let due =
        queue.borrow().heap.peek().map(|first| Duration::from_nanos(first.due_ns.saturating_sub(now_ns())));
    let pause = due.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
    if pause >= POLL_MIN {
        let _ = ring.poll(pause);
    } else {
        std::thread::sleep(pause);
        let _ = ring.consume();
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests;
