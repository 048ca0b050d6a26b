//! The demands of an item at the stations of a cost model.
//!
//! The demands are found by asking the model for its steps, as the engine does, once for each result of the lookup.
//! A bound therefore never differs from the engine's costs.

use crate::cost::{CostModel, Costs, LookupOutcome, RequestFacts, RequestProgress, ServiceStep};
use crate::source::ClientConnection;
use crate::workload::Item;

/// The number of kinds of time that a demand has.
pub(super) const KINDS: usize = 6;

/// The kind of a time, as an index into a [`Demand`].
pub(super) mod kind {
    /// Processors of nodes.
    pub(in super::super) const CPU: usize = 0;
    /// Read slots of disks.
    pub(in super::super) const SLOT: usize = 1;
    /// Disks.
    pub(in super::super) const DISK: usize = 2;
    /// Network interfaces.
    pub(in super::super) const NIC: usize = 3;
    /// Back-end servers.
    pub(in super::super) const BACK: usize = 4;
    /// Delays that occupy no station.
    pub(in super::super) const PAUSE: usize = 5;
}

/// Times in ns by [`kind`].
pub(super) type Demand = [f64; KINDS];

/// The least demands of requests for an item.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ItemDemand {
    /// Demand of a request that causes no read.
    pub(super) base: Demand,
    /// Further demand of a request that causes a read.
    pub(super) read: Demand,
    /// Time of the front-end, in ns.
    pub(super) front: f64,
    /// The number of steps of a request, at most.
    pub(super) steps: f64,
}

/// The properties of a cost model that a bound needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelFacts {
    /// Cores of a node.
    pub(super) cores: f64,
    /// Parallel reads of a disk.
    pub(super) read_slots: f64,
    /// Cores of the front-end.
    pub(super) front_cores: f64,
    /// Whether reads are tasks of their own, which overlap with the request.
    pub(super) tasks: bool,
    /// The size above which items are kept in parts.
    pub(super) chunk: u64,
}

/// Calls `show` with the demands of every item, and returns the properties of the model.
pub(super) fn for_each_item(
    costs: &Costs,
    items: &[Item],
    show: impl FnMut(usize, ItemDemand),
) -> ModelFacts {
    match costs {
        Costs::Lard98(model) => visit(&model.times(), items, show),
        Costs::Ward01(model) => visit(model, items, show),
        Costs::Cap01(model) => visit(model, items, show),
        Costs::Hacc99(model) => visit(model, items, show),
        Costs::Modelled(model) => visit(model, items, show),
        Costs::Modern(model) => visit(model, items, show),
    }
}

fn visit<M: CostModel>(model: &M, items: &[Item], mut show: impl FnMut(usize, ItemDemand)) -> ModelFacts {
    for (at, item) in items.iter().enumerate() {
        show(at, item_demand(model, item));
    }
    ModelFacts {
        cores: f64::from(if M::STATIONS.pools { model.cores() } else { 1 }),
        read_slots: f64::from(if M::STATIONS.pools { model.read_slots() } else { 1 }),
        front_cores: f64::from(if M::STATIONS.front_pool { model.front_cores() } else { 1 }),
        tasks: M::STATIONS.tasks,
        chunk: model.chunk_bytes(),
    }
}

fn item_demand<M: CostModel>(model: &M, item: &Item) -> ItemDemand {
    let front = model.front_cost(item, &ClientConnection::default());
    let front_ns = front.request_ns + (front.kib_ns.saturating_mul(item.bytes) >> 10);
    let (mut read, steps) = walk(model, item, LookupOutcome::Read);
    if M::STATIONS.tasks {
        read[kind::DISK] += model.chunk_read_ns(0, item.bytes) as f64;
    }
    let own = if item.cacheable { LookupOutcome::Memory } else { LookupOutcome::Never };
    let mut base = walk(model, item, own).0;
    // A read of an item that may not be kept is shared only if it is a task of its own.
    if item.cacheable || M::STATIONS.tasks {
        let others = [LookupOutcome::Memory, LookupOutcome::Shared, LookupOutcome::Peer];
        for other in others.map(|found| walk(model, item, found).0).into_iter().chain([read]) {
            base = core::array::from_fn(|at| base[at].min(other[at]));
        }
    } else {
        read = base;
    }
    base[kind::PAUSE] += if front_ns == 0 { front.delay_ns as f64 } else { 0.0 };
    read[kind::PAUSE] += if front_ns == 0 { front.delay_ns as f64 } else { 0.0 };
    let more = core::array::from_fn(|at| read[at] - base[at]);
    ItemDemand { base, read: more, front: front_ns as f64, steps }
}

/// Returns the times of the steps of a request whose lookup gives `found`, and the number of these steps.
fn walk<M: CostModel>(model: &M, item: &Item, found: LookupOutcome) -> (Demand, f64) {
    let (mut demand, mut steps) = ([0.0; KINDS], 0_u64);
    let (mut progress, mut looked) = (RequestProgress::default(), LookupOutcome::Unknown);
    loop {
        let connection = ClientConnection::default();
        let facts = RequestFacts { item, found: looked, forwarded: false, connection };
        let (at, ns) = match model.next_step(&mut progress, &facts) {
            ServiceStep::Done => return (demand, steps as f64),
            ServiceStep::Lookup => {
                looked = found;
                continue;
            }
            ServiceStep::Turn | ServiceStep::Await | ServiceStep::NextChunk | ServiceStep::Stored => continue,
            ServiceStep::Cpu(ns)
            | ServiceStep::Serve(ns)
            | ServiceStep::OriginCpu(ns)
            | ServiceStep::PeerCpu(ns) => (kind::CPU, ns),
            ServiceStep::Slot(ns) => (kind::SLOT, ns),
            ServiceStep::Disk(ns) => (kind::DISK, ns),
            ServiceStep::Nic(ns) => (kind::NIC, ns),
            ServiceStep::Back(ns) => (kind::BACK, ns),
            ServiceStep::Pause(ns) => (kind::PAUSE, ns),
        };
        demand[at] += ns as f64;
        steps += 1;
    }
}
