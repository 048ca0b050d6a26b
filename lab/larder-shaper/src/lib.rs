//! Network links that lose, delay, reorder and duplicate packets, for tests.
//!
//! A BPF program at the tc egress hook of an interface (`bpf/shaper.bpf.c`) does this, because `netem` and the qdiscs that obey
//! a packet's departure time (`fq`, `etf`) are not in all kernels. Loss and duplication happen in the kernel. Delayed packets
//! are copied to a thread of this process, which sends them at their time by a raw socket. A delayed packet must be a single
//! frame without segmentation offload (`segmentation: false` in a topology) of at most 9 KB.
//!
//! The effect on the k-th packet of a flow depends only on the seed, the flow's addresses and k. So a run is repeatable as far
//! as its packets are.

use larder_kernel::frame::set_tcp_checksum;
use larder_kernel::netns::{Namespace, NamespaceThread, NetnsError, Wire};
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

/// The program does not change packets with this mark.
const PASS_MARK: u32 = 0x7368_6170;
/// Maximum number of delayed frames. Further ones are lost.
const DELAYED_MAX: usize = 65_536;
/// Maximum sleep of the thread, which bounds the time to stop it.
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// The library's timeout has a resolution of milliseconds; shorter waits use sleep.
const POLL_MIN: Duration = Duration::from_millis(1);

/// Impairments of packets that leave an interface. All zero means none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Share of lost packets, 0 to 1.
    pub loss: f64,
    /// Number of the packet that is lost in each direction of each TCP connection, counted from 1 (a client's SYN); 0 for none.
    pub drop_nth: u32,
    /// Share of duplicated packets, 0 to 1. The copy is not delayed.
    pub duplicate: f64,
    /// Delay of each packet.
    pub delay: Duration,
    /// Additional delay, uniform between 0 and this. Packets can overtake each other.
    pub jitter: Duration,
    /// Share of packets that are delayed by `reorder_by`, 0 to 1.
    pub reorder: f64,
    /// Additional delay of reordered packets.
    pub reorder_by: Duration,
}

/// Packet counts of all interfaces of a [`Shaper`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShaperCounts {
    /// IP packets.
    pub seen: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets lost because of `drop_nth`.
    pub nth_lost: u64,
    /// Duplicated packets.
    pub duplicated: u64,
    /// Delayed packets.
    pub delayed: u64,
    /// Packets that were not delayed because they were too long or need segmentation.
    pub too_long: u64,
    /// Packets lost because the ring buffer was full.
    pub ring_full: u64,
    /// Packets lost because too many were delayed or sending failed.
    pub unsent: u64,
}

/// Why a link cannot be shaped.
#[derive(Debug, thiserror::Error)]
pub enum ShaperError {
    /// The namespace cannot be used.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The program could not be loaded or attached.
    #[error("{doing}: {source}")]
    Bpf {
        /// The operation.
        doing: String,
        /// The library's error.
        source: libbpf_rs::Error,
    },
    /// The raw socket for delayed packets failed.
    #[error("cannot use a raw socket: {0}")]
    Socket(#[from] std::io::Error),
}

/// Impairs the packets that leave some interfaces of a namespace, until it is dropped. Delayed packets are sent at once then.
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
    /// Attaches to the interfaces without impairments; see [`Self::set`]. In a topology, use the interfaces of the hub: packets
    /// that leave there are those that a host receives.
    ///
    /// # Errors
    /// If the process lacks rights (`CAP_NET_ADMIN`, `CAP_BPF`, `CAP_NET_RAW`) or an interface does not exist.
    pub fn start(namespace: &Namespace, interfaces: &[&str]) -> Result<Self, ShaperError> {
        let named: Result<Vec<_>, NetnsError> =
            interfaces.iter().map(|name| Ok(((*name).to_owned(), namespace.ifindex(name)?))).collect();
        let named = named?;
        let (result_sender, result) = mpsc::sync_channel(1);
        let unsent = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (named, unsent, stop) = (named.clone(), Arc::clone(&unsent), Arc::clone(&stop));
            namespace.thread(move || match AttachedProgram::new(&named) {
                Ok((attached, maps)) => {
                    let _ = result_sender.send(Ok(maps));
                    attached.serve(&stop, &unsent);
                }
                Err(error) => {
                    let _ = result_sender.send(Err(error));
                }
            })?
        };
        let ended = || ShaperError::Socket(std::io::Error::other("the shaper's thread ended"));
        let (shapes, counts) = result.recv().map_err(|_| ended())??;
        Ok(Self { interfaces: named, shapes, counts, unsent, stop, thread: Some(thread) })
    }

    /// Sets the impairments of all interfaces.
    ///
    /// # Errors
    /// If the kernel rejects the update.
    pub fn set_all(&self, shape: &Shape) -> Result<(), ShaperError> {
        for (name, _) in &self.interfaces {
            self.set(name, shape)?;
        }
        Ok(())
    }

    /// Sets the impairments of one interface.
    ///
    /// # Errors
    /// If the shaper was not started for the interface.
    pub fn set(&self, interface: &str, shape: &Shape) -> Result<(), ShaperError> {
        let bpf = |source| ShaperError::Bpf { doing: format!("shaping {interface}"), source };
        let found = self.interfaces.iter().find(|(name, _)| name == interface);
        let Some((_, ifindex)) = found else {
            return Err(bpf(libbpf_rs::Error::from_raw_os_error(libc::ENODEV)));
        };
        let raw = RawShape::from(*shape);
        self.shapes.update(&ifindex.to_ne_bytes(), raw.as_bytes(), MapFlags::ANY).map_err(bpf)
    }

    /// Reads the packet counts.
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
        // Cannot overflow: the value is between 0 and a million.
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

/// `struct delayed` of the program: the header of a frame in the ring buffer.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawDelayed {
    due_ns: u64,
    ifindex: u32,
    bytes: u32,
}

/// A delayed frame. The frame that is due first is the greatest; equal times are ordered by arrival.
#[derive(PartialEq, Eq)]
struct DelayedFrame {
    due_ns: u64,
    sequence: u64,
    ifindex: u32,
    frame: Vec<u8>,
}

impl Ord for DelayedFrame {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due_ns, other.sequence).cmp(&(self.due_ns, self.sequence))
    }
}

impl PartialOrd for DelayedFrame {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Default)]
struct FrameQueue {
    heap: BinaryHeap<DelayedFrame>,
    sequence: u64,
    dropped: u64,
}

impl FrameQueue {
    /// Adds a record of the ring buffer. Invalid records are ignored.
    fn put(&mut self, record: &[u8]) {
        let Ok((head, rest)) = RawDelayed::read_from_prefix(record) else { return };
        let Some(frame) = usize::try_from(head.bytes).ok().and_then(|n| rest.get(..n)) else { return };
        if self.heap.len() >= DELAYED_MAX {
            self.dropped += 1;
            return;
        }
        self.sequence += 1;
        let (due_ns, ifindex, sequence) = (head.due_ns, head.ifindex, self.sequence);
        self.heap.push(DelayedFrame { due_ns, sequence, ifindex, frame: frame.to_vec() });
    }
}

/// The attached program and the sender of delayed frames. It lives on a thread in the namespace.
struct AttachedProgram {
    object: Object,
    hooks: Vec<TcHook>,
    wire: Wire,
}

impl AttachedProgram {
    fn new(interfaces: &[(String, u32)]) -> Result<(Self, (MapHandle, MapHandle)), ShaperError> {
        let bpf = |doing: &str| {
            let doing = doing.to_owned();
            move |source| ShaperError::Bpf { doing, source }
        };
        let wire = Wire::open_here()?;
        wire.mark(PASS_MARK)?;
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

    /// Receives and sends delayed frames until `stop` is set.
    fn serve(mut self, stop: &AtomicBool, unsent: &AtomicU64) {
        let queue = RefCell::new(FrameQueue::default());
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
                let dropped = self.send_due(&queue, now_ns());
                unsent.fetch_add(dropped, Ordering::Relaxed);
                wait(&ring, &queue);
            }
            detach(&mut self.hooks);
            let _ = ring.consume();
        }
        unsent.fetch_add(self.send_due(&queue, u64::MAX), Ordering::Relaxed);
    }

    /// Sends the frames that are due. Returns the number of lost frames.
    fn send_due(&self, queue: &RefCell<FrameQueue>, now: u64) -> u64 {
        let mut queue = queue.borrow_mut();
        let mut lost = std::mem::take(&mut queue.dropped);
        while queue.heap.peek().is_some_and(|first| first.due_ns <= now) {
            let Some(mut first) = queue.heap.pop() else { break };
            // With checksum offload, the frame has no checksum yet.
            set_tcp_checksum(&mut first.frame);
            if self.wire.send(first.ifindex, &first.frame).is_err() {
                lost += 1;
            }
        }
        lost
    }
}

impl Drop for AttachedProgram {
    fn drop(&mut self) {
        detach(&mut self.hooks);
    }
}

fn detach(hooks: &mut Vec<TcHook>) {
    for mut hook in hooks.drain(..) {
        // The interface may have been removed together with the program.
        let _ = hook.detach();
    }
}

/// Waits until a frame arrives or is due.
fn wait(ring: &RingBuffer<'_>, queue: &RefCell<FrameQueue>) {
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
