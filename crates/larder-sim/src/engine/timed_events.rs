//! Timed events beside the ends of station jobs: ends of pauses, load reports, refreshes, the deadline of the
//! front-end's queue, and the messages between switches.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use larder_core::dispatch::Dispatcher;
use larder_core::nodes::LoadReport;
use larder_core::{NodeId, Ticket, Time};

use super::Engine;
use crate::calendar::EventKey;
use crate::cost::CostModel;
use crate::tally::BusyTimes;

/// A timed event of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimedEvent {
    /// The end of a job's pause.
    Resume(u32),
    /// The late wake-up of a job that has ended at a station.
    Wake { station: u32, number: u32 },
    /// The load reports of all nodes.
    Report,
    /// The refresh of the routing tables.
    Refresh,
    /// The deadline of the front-end's queue.
    Expire,
    /// The periodic update of a switch for its peers.
    Tick(u16),
    /// The arrival of a message between switches.
    Deliver,
}

/// The pending timed events.
#[derive(Debug, Default)]
pub(super) struct TimedEvents {
    heap: BinaryHeap<Reverse<(EventKey, TimedEvent)>>,
    deadline: Option<Time>,
    /// The state of each node at its last report.
    last_reports: Vec<ReportState>,
}

/// The busy times and counts of a node at a load report.
#[derive(Clone, Copy, Debug, Default)]
struct ReportState {
    at: Time,
    busy: BusyTimes,
    served: u64,
    served_ns: u64,
    bytes_read: u64,
}

impl<M: CostModel> Engine<'_, M> {
    /// Advances a job after a pause of `ns` nanoseconds.
    pub(super) fn pause(&mut self, ns: u64, number: u32) {
        let at = Time::from_nanos(self.now.as_nanos().saturating_add(ns));
        self.schedule(at, TimedEvent::Resume(number));
    }

    pub(super) fn schedule(&mut self, at: Time, event: TimedEvent) {
        let key = EventKey::new(at, self.next_seq());
        self.timed_events.heap.push(Reverse((key, event)));
        self.set_event_timer();
    }

    /// Schedules the wake-up of a job that has ended at a station. The job notices the end when a timer
    /// expires.
    pub(super) fn schedule_wake(&mut self, station: usize, number: u32) {
        let end_ns = self.tasks.end_ns(number);
        let at = Time::from_nanos(self.model.wake_ns(end_ns)).max(self.now);
        self.schedule(at, TimedEvent::Wake { station: station as u32, number });
    }

    fn wake(&mut self, station: usize, number: u32) {
        self.stations[station].note_wake(self.tasks.end_ns(number), self.now);
        self.advance(number);
    }

    fn set_event_timer(&mut self) {
        let key = self.timed_events.heap.peek().map_or(EventKey::NEVER, |event| event.0.0);
        self.calendar.set(super::TIMED_EVENTS, key);
    }

    pub(super) fn handle_timed_event(&mut self) {
        let Some(Reverse((_, event))) = self.timed_events.heap.pop() else { return };
        self.set_event_timer();
        match event {
            TimedEvent::Resume(number) => self.advance(number),
            TimedEvent::Wake { station, number } => self.wake(station as usize, number),
            TimedEvent::Report => {
                self.report();
                self.schedule_report();
            }
            TimedEvent::Refresh => {
                self.refresh_tables();
                self.schedule_refresh();
            }
            TimedEvent::Expire => self.expire(),
            TimedEvent::Tick(switch) => self.tick_switch(switch),
            TimedEvent::Deliver => self.deliver_message(),
        }
    }

    /// Schedules the next load report, if the run has not ended.
    pub(super) fn schedule_report(&mut self) {
        if let Some(every) = self.scenario.report_every.filter(|_| self.is_active()) {
            self.schedule(self.now + every, TimedEvent::Report);
        }
    }

    /// Schedules the next refresh of the routing tables, if the run has not ended and a table is refreshed.
    pub(super) fn schedule_refresh(&mut self) {
        let every = self.scenario.refresh.as_ref().map(|refresh| refresh.every);
        if let Some(every) = every.filter(|_| self.censuses.iter().any(Option::is_some) && self.is_active()) {
            self.schedule(self.now + every, TimedEvent::Refresh);
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.jobs.len() > self.free.len()
            || !self.waiting.is_empty()
            || !self.next_requests.is_empty()
            || self.source.next_time().is_some()
    }

    fn report(&mut self) {
        let busy = self.busy_times();
        let fresh = |node: usize| ReportState {
            at: self.now,
            busy: busy[node],
            served: self.tally.served_all(node),
            served_ns: self.tally.served_ns_all(node),
            bytes_read: self.tally.read_all(node),
        };
        let fresh: Vec<ReportState> = (0..self.node_stations.len()).map(fresh).collect();
        let last = core::mem::replace(&mut self.timed_events.last_reports, fresh);
        for (index, new) in self.timed_events.last_reports.iter().enumerate() {
            let old = last.get(index).copied().unwrap_or_default();
            let node = NodeId(index as u16);
            let span_ns = new.at.since(old.at).as_nanos().max(1) as u64;
            let permille =
                |busy_ns: u64| (u128::from(busy_ns) * 1_000 / u128::from(span_ns)).min(1_000) as u16;
            let served = new.served - old.served;
            let report = LoadReport {
                // If the model distinguishes sending from computing, sending occupies a server as computing
                // does.
                cpu_permille: Some(permille(
                    (new.busy.cpu_ns - old.busy.cpu_ns).max(new.busy.nic_ns - old.busy.nic_ns),
                )),
                // A back-end server is a second disk of its node. The busier of the two is the node's
                // bottleneck.
                disk_permille: Some(permille(
                    ((new.busy.disk_ns - old.busy.disk_ns) / self.node_stations[index].disk_count as u64)
                        .max(new.busy.back_ns - old.busy.back_ns),
                )),
                processes: Some(self.tally.active(index)),
                service_us: (new.served_ns - old.served_ns)
                    .checked_div(served)
                    .map(|mean_ns| (mean_ns / 1_000).min(u64::from(u32::MAX)) as u32),
                disk_bytes_per_s: Some(
                    ((u128::from(new.bytes_read - old.bytes_read) * 1_000_000_000) / u128::from(span_ns))
                        as u64,
                ),
                queue: Some(u32::try_from(self.queued_jobs(index)).unwrap_or(u32::MAX)),
                // Stations do not model memory pressure, paging and the application's counters.
                ..LoadReport::default()
            };
            for dispatcher in &self.front.dispatchers {
                dispatcher.report(self.now, node, report);
            }
        }
    }

    /// Returns the number of jobs that wait for a device of the node.
    fn queued_jobs(&self, node: usize) -> usize {
        let node_stations = &self.node_stations[node];
        let disks = node_stations.disks..node_stations.disks + node_stations.disk_count;
        let at_disks: usize = disks.map(|disk| self.stations[disk].waiting()).sum();
        let back = if M::STATIONS.back { self.stations[node_stations.back].waiting() } else { 0 };
        if M::STATIONS.pools {
            let slots =
                self.pools[node_stations.slots..node_stations.slots + node_stations.disk_count].iter();
            let pools = slots.chain([&self.pools[node_stations.cpu]]);
            return at_disks + back + pools.map(|pool| pool.waiting(self.now)).sum::<usize>();
        }
        at_disks + back + self.stations[node_stations.cpu].waiting()
    }

    /// Schedules the expiry of the front-end's queue at its next deadline.
    pub(super) fn schedule_expiry(&mut self) {
        let next = self.front.dispatchers.iter().filter_map(Dispatcher::next_deadline).min();
        if let Some(at) = next.filter(|at| self.timed_events.deadline.is_none_or(|planned| *at < planned)) {
            self.timed_events.deadline = Some(at);
            self.schedule(at, TimedEvent::Expire);
        }
    }

    fn expire(&mut self) {
        self.timed_events.deadline = None;
        for switch in 0..self.front.dispatchers.len() {
            let mut expired: Vec<Ticket> = Vec::new();
            self.front.dispatchers[switch].expire(self.now, &mut expired);
            for ticket in expired {
                if let Some(pending) = self.waiting.remove(&(switch as u16, ticket)) {
                    self.refuse(pending);
                }
            }
        }
        self.schedule_expiry();
    }

    /// Returns the busy times of each node's stations until now.
    pub(super) fn busy_times(&self) -> Vec<BusyTimes> {
        let of = |station: usize| self.stations[station].busy_ns(self.now);
        let busy = |node_stations: &super::NodeStations| BusyTimes {
            cpu_ns: if M::STATIONS.pools {
                self.pools[node_stations.cpu].busy_ns(self.now)
            } else {
                of(node_stations.cpu)
            },
            disk_ns: (node_stations.disks..node_stations.disks + node_stations.disk_count).map(of).sum(),
            nic_ns: if M::STATIONS.nic { of(node_stations.nic) } else { 0 },
            back_ns: if M::STATIONS.back { of(node_stations.back) } else { 0 },
        };
        self.node_stations.iter().map(busy).collect()
    }
}
