//! What happens to the cluster while it runs: nodes that join, leave, fail and come back, and WARD's table made anew.

use std::sync::Arc;

use larder_core::census::Census;
use larder_core::dispatch::{CacheEvent, Dispatcher, Found as Had, Request, Served, Started};
use larder_core::nodes::{GroupId, NodeState};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, NodeId, RouteId, Time};
use larder_trace::ward::CoreChoice;

use super::{Engine, Job};
use crate::cost::{CostModel, Found};
use crate::scenario::{Happening, Scenario};
use crate::source::Ask;
use crate::tables::{needs_table, note, routing_table};

/// A request, for whoever watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What was asked for: an index into [`Workload::items`](crate::Workload::items).
    pub item: u32,
    /// Where it was served.
    pub node: u16,
    /// Whether it was in a memory.
    pub hit: bool,
}

/// What a watched run shows beside its outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The requests served, in the order in which they went to their nodes; at most 2^32.
    pub seen: Vec<Seen>,
    /// How many had gone to their nodes at each of [`Scenario::changes`](crate::Scenario::changes).
    pub changed_at: Vec<usize>,
}

impl<M: CostModel> Engine<'_, M> {
    /// The request as the dispatcher sees it.
    pub(super) fn request(&self, ask: &Ask) -> Request {
        let item = &self.workload.items[ask.item as usize];
        let request = Request::new(item.id).with_class(item.class).with_route(item.route);
        match ask.origin {
            Some(origin) => request.with_origin(origin),
            None => request,
        }
    }

    /// Tells the dispatcher how the request went, before its end.
    pub(super) fn tell_served(&self, job: &Job) {
        let found = match job.found {
            Found::Memory | Found::Peer => Some(Had::Hit),
            Found::Read | Found::Shared | Found::Never => Some(Had::Miss),
            Found::Unknown => None,
        };
        let feedback = Served {
            elapsed: self.now.since(job.sent),
            first_byte: (job.ready > Time::ZERO).then(|| job.ready.since(job.sent)),
            found,
        };
        let dispatcher = &self.front.dispatchers[usize::from(job.switch)];
        dispatcher.served(self.now, &self.request(&job.ask), NodeId(job.node), &feedback);
    }

    /// Notes where a request goes; gives the note's number.
    pub(super) fn watch_start(&mut self, item: u32, node: u16) -> u32 {
        let Some(watched) = &mut self.watched else { return 0 };
        watched.seen.push(Seen { item, node, hit: false });
        (watched.seen.len() - 1) as u32
    }

    /// Notes whether it was in memory.
    pub(super) fn watch_end(&mut self, job: &Job) {
        if let Some(watched) = &mut self.watched {
            watched.seen[job.seen as usize].hit = matches!(job.found, Found::Memory | Found::Peer);
        }
    }

    /// Makes the changes that are due after so many requests.
    #[cold]
    pub(super) fn change(&mut self) {
        while let Some(planned) = self.scenario.changes.get(self.changed).copied() {
            if planned.after > self.arrived {
                break;
            }
            self.changed += 1;
            if let Some(watched) = &mut self.watched {
                watched.changed_at.push(watched.seen.len());
            }
            if planned.what == Happening::Restart {
                self.memories.lose(usize::from(planned.node), self.scenario);
            }
            for switch in 0..self.front.dispatchers.len() {
                let mut started = Vec::new();
                self.happen(switch, NodeId(planned.node), planned.what, &mut started);
                self.started_at(switch as u16, &mut started);
            }
        }
        self.next_change = self.scenario.changes.get(self.changed).map_or(u64::MAX, |planned| planned.after);
    }

    fn happen(&self, switch: usize, node: NodeId, what: Happening, started: &mut Vec<Started>) {
        let dispatcher = &self.front.dispatchers[switch];
        match what {
            Happening::Join => {
                let spec = super::spec(node.index(), &self.scenario.nodes[node.index()]);
                let joined = dispatcher.join(self.now, spec, started);
                debug_assert_eq!(joined, Ok(node), "nodes join in order of their numbers");
            }
            Happening::Leave => _ = dispatcher.leave(self.now, node, started),
            Happening::Drain => _ = dispatcher.drain(self.now, node, started),
            Happening::Down => _ = dispatcher.fail(self.now, node, started),
            Happening::Up => {
                // One that was up all along has nothing to say that is not known.
                if dispatcher.recover(self.now, node, started) {
                    self.tell_all_kept(dispatcher, node);
                }
            }
            Happening::Restart => {
                dispatcher.recover(self.now, node, started);
            }
            Happening::Reweigh(weight) => {
                dispatcher.reweigh(self.now, node, weight, started);
            }
        }
    }

    /// A node that is back says what its memory holds, as a live node does to whoever subscribes to its events.
    fn tell_all_kept(&self, dispatcher: &Dispatcher, node: NodeId) {
        if !self.cache_events {
            return;
        }
        for (index, item) in (0_u32..).zip(&self.workload.items) {
            if self.memories.holds(node.index(), index) {
                dispatcher.cache_event(self.now, node, item.id, CacheEvent::Stored);
            }
        }
    }

    /// Counts a request for the table that its route gets next.
    pub(super) fn count(&self, item: u32) {
        let item = &self.workload.items[item as usize];
        if let Some(census) = &self.censuses[usize::from(item.route.0)] {
            note(census, item);
        }
    }

    /// What counts the requests of each route, as in the live switch: of those that go by a table, if any is made anew.
    pub(super) fn censuses(scenario: &Scenario) -> Vec<Option<Census>> {
        let routes = scenario.routes.iter().map(|route| &route.settings);
        let policies = core::iter::once(&scenario.settings).chain(routes).map(|settings| settings.policy);
        let refresh = scenario.refresh.as_ref();
        let census =
            |policy| refresh.filter(|_| needs_table(policy)).map(|refresh| Census::new(refresh.targets_max));
        policies.map(census).collect()
    }

    /// The table that each route begins with; the default route first.
    pub(super) fn tables(scenario: &Scenario) -> Vec<Option<Arc<RouteTable>>> {
        let routes = scenario.routes.iter().map(|route| &route.settings);
        core::iter::once(&scenario.settings).chain(routes).map(|settings| settings.table.clone()).collect()
    }

    /// Gives each route that goes by a table a new one, made from what was asked of it since the last time for the open
    /// nodes of its group. One that cannot be made changes nothing, as in the live switch.
    pub(super) fn refresh(&mut self) {
        let Some(refresh) = &self.scenario.refresh else { return };
        let rows = self.front.first().nodes().rows();
        for (route, census) in (0..).zip(&self.censuses) {
            let Some(census) = census else { continue };
            let group = match usize::from(route).checked_sub(1) {
                Some(at) => self.scenario.routes[at].group,
                None => GroupId::ALL,
            };
            let open = rows.iter().filter(|row| row.state == NodeState::Up && row.groups.contains(group));
            let members: Vec<(NodeId, Bytes)> = open.map(|row| (row.id, row.cache)).collect();
            let counted = census.take(refresh.carry_permille).rows;
            let before = self.tables[usize::from(route)].clone();
            let slots: Vec<u16> = members.iter().map(|(node, _)| node.0).collect();
            let now = before.as_ref().map(|before| before.among(&slots));
            let now = |target| now.as_ref()?(target);
            if let Ok(table) = routing_table(&counted, &members, &refresh.prices, CoreChoice::Best, now) {
                let table = Arc::new(table);
                self.tables[usize::from(route)] = Some(Arc::clone(&table));
                for dispatcher in &self.front.dispatchers {
                    dispatcher.set_table(self.now, RouteId(route), &table);
                }
            }
        }
    }
}
