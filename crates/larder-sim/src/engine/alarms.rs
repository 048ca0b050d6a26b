//! Timed events beside the ends of station jobs: ends of pauses, load reports, refreshes, the deadline of the
//! front-end's queue, and the messages between switches.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use larder_core::dispatch::Dispatcher;
use larder_core::nodes::LoadReport;
use larder_core::{NodeId, Ticket, Time};

use super::Engine;
use crate::calendar::Key;
use crate::cost::CostModel;
use crate::tally::Busy;

/// A timed event of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
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
    Hear,
}

/// The pending timed events.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    heap: BinaryHeap<Reverse<(Key, Alarm)>>,
    deadline: Option<Time>,
    /// The state of each node at its last report.
    reported: Vec<Reported>,
}

/// The busy times and counts of a node at a load report.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    at: Time,
    busy: Busy,
    served: u64,
    served_ns: u64,
    bytes_read: u64,
}

impl<M: CostModel> Engine<'_, M> {
    /// Advances a job after a pause of `ns` nanoseconds.
    pub(super) fn pause(&mut self, ns: u64, number: u32) {
        let at = Time::from_nanos(self.now.as_nanos().saturating_add(ns));
        self.set_alarm(at, Alarm::Resume(number));
    }

    pub(super) fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        let key = Key::new(at, self.next_seq());
        self.alarms.heap.push(Reverse((key, alarm)));
        self.set_alarm_clock();
    }

    /// Schedules the wake-up of a job that has ended at a station. The job notices the end when a timer
    /// expires.
    pub(super) fn wake_later(&mut self, station: usize, number: u32) {
        let end_ns = self.tasks.end_ns(number);
        let at = Time::from_nanos(self.model.wake_ns(end_ns)).max(self.now);
        self.set_alarm(at, Alarm::Wake { station: station as u32, number });
    }

    fn wake(&mut self, station: usize, number: u32) {
        self.stations[station].woke(self.tasks.end_ns(number), self.now);
        self.advance(number);
    }

    fn set_alarm_clock(&mut self) {
        let key = self.alarms.heap.peek().map_or(Key::NEVER, |alarm| alarm.0.0);
        self.calendar.set(super::ALARMS, key);
    }

    pub(super) fn strike(&mut self) {
        let Some(Reverse((_, alarm))) = self.alarms.heap.pop() else { return };
        self.set_alarm_clock();
        match alarm {
            Alarm::Resume(number) => self.advance(number),
            Alarm::Wake { station, number } => self.wake(station as usize, number),
            Alarm::Report => {
                self.report();
                self.plan_report();
            }
            Alarm::Refresh => {
                self.refresh();
                self.plan_refresh();
            }
            Alarm::Expire => self.expire(),
            Alarm::Tick(switch) => self.tick(switch),
            Alarm::Hear => self.hear(),
        }
    }

    /// Schedules the next load report, if the run has not ended.
    pub(super) fn plan_report(&mut self) {
        if let Some(every) = self.scenario.report_every.filter(|_| self.goes_on()) {
            self.set_alarm(self.now + every, Alarm::Report);
        }
    }

    /// Schedules the next refresh of the routing tables, if the run has not ended and a table is refreshed.
    pub(super) fn plan_refresh(&mut self) {
        let every = self.scenario.refresh.as_ref().map(|refresh| refresh.every);
        if let Some(every) = every.filter(|_| self.censuses.iter().any(Option::is_some) && self.goes_on()) {
            self.set_alarm(self.now + every, Alarm::Refresh);
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        self.jobs.len() > self.free.len()
            || !self.waiting.is_empty()
            || !self.asks.is_empty()
            || self.source.next_at().is_some()
    }

    fn report(&mut self) {
        let busy = self.busy();
        let fresh = |node: usize| Reported {
            at: self.now,
            busy: busy[node],
            served: self.tally.served_all(node),
            served_ns: self.tally.served_ns_all(node),
            bytes_read: self.tally.read_all(node),
        };
        let fresh: Vec<Reported> = (0..self.places.len()).map(fresh).collect();
        let last = core::mem::replace(&mut self.alarms.reported, fresh);
        for (index, new) in self.alarms.reported.iter().enumerate() {
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
                    ((new.busy.disk_ns - old.busy.disk_ns) / self.places[index].disk_count as u64)
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
                queue: Some(u32::try_from(self.waiting_at(index)).unwrap_or(u32::MAX)),
                // Stations do not model memory pressure, paging and the application's counters.
                ..LoadReport::default()
            };
            for dispatcher in &self.front.dispatchers {
                dispatcher.report(self.now, node, report);
            }
        }
    }

    /// Returns the number of jobs that wait for a device of the node.
    fn waiting_at(&self, node: usize) -> usize {
        let places = &self.places[node];
        let disks = places.disks..places.disks + places.disk_count;
        let at_disks: usize = disks.map(|disk| self.stations[disk].waiting()).sum();
        let back = if M::STATIONS.back { self.stations[places.back].waiting() } else { 0 };
        if M::STATIONS.pools {
            let slots = self.pools[places.slots..places.slots + places.disk_count].iter();
            let pools = slots.chain([&self.pools[places.cpu]]);
            return at_disks + back + pools.map(|pool| pool.waiting(self.now)).sum::<usize>();
        }
        at_disks + back + self.stations[places.cpu].waiting()
    }

    /// Schedules the expiry of the front-end's queue at its next deadline.
    pub(super) fn plan_deadline(&mut self) {
        let next = self.front.dispatchers.iter().filter_map(Dispatcher::next_deadline).min();
        if let Some(at) = next.filter(|at| self.alarms.deadline.is_none_or(|planned| *at < planned)) {
            self.alarms.deadline = Some(at);
            self.set_alarm(at, Alarm::Expire);
        }
    }

    fn expire(&mut self) {
        self.alarms.deadline = None;
        for switch in 0..self.front.dispatchers.len() {
            let mut expired: Vec<Ticket> = Vec::new();
            self.front.dispatchers[switch].expire(self.now, &mut expired);
            for ticket in expired {
                if let Some(arrived) = self.waiting.remove(&(switch as u16, ticket)) {
                    self.refuse(arrived);
                }
            }
        }
        self.plan_deadline();
    }

    /// Returns the busy times of each node's stations until now.
    pub(super) fn busy(&self) -> Vec<Busy> {
        let of = |station: usize| self.stations[station].busy_ns(self.now);
        let busy = |places: &super::Places| Busy {
            cpu_ns: if M::STATIONS.pools { self.pools[places.cpu].busy_ns(self.now) } else { of(places.cpu) },
            disk_ns: (places.disks..places.disks + places.disk_count).map(of).sum(),
            nic_ns: if M::STATIONS.nic { of(places.nic) } else { 0 },
            back_ns: if M::STATIONS.back { of(places.back) } else { 0 },
        };
        self.places.iter().map(busy).collect()
    }
}
