//! The path of a request, stage by stage.

use larder_core::Bytes;

use super::costs::{LinearCost, nanos};
use super::engine::{CooperationEngine, RequestStage, RequestState, StationKind, TaskBody};
use super::protocols::{Placement, PlacementDecision, PlacementRequest};
use super::servers::{ForwardingMode, RelayedLoad, ServerKind};

impl CooperationEngine<'_> {
    /// Advances a request that has ended a stage; `request` is its state at that time. Returns whether the
    /// request has ended.
    pub(super) fn advance(&mut self, task: u32, request: RequestState) -> bool {
        let costs = &self.cluster.costs;
        let RequestState { initial, service, .. } = request;
        match request.stage {
            RequestStage::AtSwitch => self.leave_switch(task, request),
            RequestStage::Arrival => {
                self.begin_connection(initial);
                self.enter_stage(task, RequestStage::Parse, initial, StationKind::Cpu, nanos(costs.parse_s));
            }
            RequestStage::Parse => self.place_request(task, request),
            RequestStage::AskPrepare => self.transfer_to(
                task,
                RequestStage::AskTransfer,
                initial,
                self.dispatcher(),
                costs.request_bytes,
            ),
            // Question and answer are short, so the dispatcher's processor receives, decides and answers in
            // one service.
            RequestStage::AskTransfer => {
                let ns = 2 * costs.message.ns(costs.request_bytes) + nanos(costs.decide_s);
                self.enter_stage(task, RequestStage::Decide, self.dispatcher(), StationKind::Cpu, ns);
            }
            RequestStage::Decide => {
                let placement = self.protocol.answer(&self.placement_request(request.initial, request.item));
                self.record_placement(task, request, placement);
                let bytes = self.cluster.costs.request_bytes;
                self.transfer_to(task, RequestStage::AnswerTransfer, self.dispatcher(), initial, bytes);
            }
            RequestStage::AnswerTransfer => {
                let ns = costs.message.ns(costs.request_bytes);
                self.start_service(task, request, ns);
            }
            RequestStage::ForwardPrepare => self.forward(task, request),
            RequestStage::ForwardTransfer => {
                self.begin_forwarded(service);
                let handoff = if self.uses_relay() { 0.0 } else { costs.handoff_s };
                let ns = nanos(costs.accept_s + handoff);
                self.enter_stage(task, RequestStage::Accept, service, StationKind::Cpu, ns);
            }
            RequestStage::Accept => self.serve(task, request),
            RequestStage::DiskRead => self.finish_read(task, request),
            RequestStage::ReturnPrepare => {
                self.end_forwarded(service);
                let bytes = self.bytes(request.item);
                self.count_relayed(bytes);
                self.transfer_to(task, RequestStage::ReturnTransfer, service, initial, bytes);
            }
            RequestStage::ReturnTransfer => {
                self.protocol.receive_reply(initial, service);
                let bytes = self.bytes(request.item);
                let ns = costs.relay.ns(bytes) + costs.reply.ns(bytes);
                self.enter_stage(task, RequestStage::ReplyPrepare, initial, StationKind::Cpu, ns);
            }
            RequestStage::ReplyPrepare => {
                let ns = costs.external.ns(self.bytes(request.item));
                self.enter_stage(
                    task,
                    RequestStage::ReplyTransmit,
                    self.replying_node(&request),
                    StationKind::Clients,
                    ns,
                );
            }
            RequestStage::ReplyTransmit => {
                self.end_request(task, request);
                return true;
            }
        }
        false
    }

    /// Enters a stage at a station.
    fn enter_stage(&mut self, task: u32, stage: RequestStage, node: u16, at: StationKind, ns: u64) {
        self.update_state(task, |request| request.stage = stage);
        self.enqueue(node, at, ns, task);
    }

    /// Enters a stage that is a transfer to another node.
    fn transfer_to(&mut self, task: u32, stage: RequestStage, from: u16, to: u16, bytes: u64) {
        self.update_state(task, |request| request.stage = stage);
        self.send(task, from, to, bytes, 1);
    }

    fn update_state(&mut self, task: u32, change: impl FnOnce(&mut RequestState)) {
        if let TaskBody::Request(request) = &mut self.tasks[task as usize].body {
            change(request);
        }
    }

    fn uses_relay(&self) -> bool {
        self.cluster.forwarding == ForwardingMode::Relay
    }

    /// Returns whether a forwarded request counts as load of its service node.
    fn counts_at_service(&self) -> bool {
        !self.uses_relay() || self.cluster.relayed_load == RelayedLoad::Both
    }

    /// Counts a forwarded request as load of its service node, if it counts there.
    fn begin_forwarded(&mut self, service: u16) {
        if self.counts_at_service() {
            self.begin_connection(service);
        }
    }

    fn end_forwarded(&mut self, service: u16) {
        if self.counts_at_service() {
            self.end_connection(service);
        }
    }

    const fn dispatcher(&self) -> u16 {
        self.cluster.nodes
    }

    pub(super) fn bytes(&self, item: u32) -> u64 {
        self.workload.items[item as usize].bytes
    }

    /// Returns the placement request for an item at a node.
    pub(super) fn placement_request(&self, node: u16, item: u32) -> PlacementRequest {
        let target = self.workload.items[item as usize].id;
        PlacementRequest { node, item, target, size: Bytes(self.bytes(item)) }
    }

    /// Returns the node that answers the client.
    fn replying_node(&self, request: &RequestState) -> u16 {
        if self.uses_relay() { request.initial } else { request.service }
    }

    fn count_relayed(&mut self, bytes: u64) {
        if self.measuring {
            self.tally.relayed_bytes += bytes;
        }
    }

    /// Starts a request at the switch.
    pub(super) fn pass_switch(&mut self, task: u32) {
        let ns = nanos(self.cluster.costs.switch_s);
        self.enter_stage(task, RequestStage::AtSwitch, self.dispatcher(), StationKind::Cpu, ns);
    }

    /// Sends a request from the switch to a node, where it arrives like any request.
    fn leave_switch(&mut self, task: u32, request: RequestState) {
        let question = self.placement_request(request.initial, request.item);
        let decision = self.protocol.decide(self.now, task, &question, &mut self.out);
        let PlacementDecision::Placement(placement) = decision else {
            unreachable!("a switch decides at once")
        };
        self.record_placement(task, request, placement);
        self.update_state(task, |request| {
            (request.initial, request.stage) = (placement.node, RequestStage::Arrival);
        });
        self.enter_node(task, placement.node);
    }

    /// Requests the placement of a parsed request at its initial node.
    fn place_request(&mut self, task: u32, request: RequestState) {
        if self.cluster.server == ServerKind::Switch {
            return self.start_service(task, request, 0);
        }
        let question = self.placement_request(request.initial, request.item);
        match self.protocol.decide(self.now, task, &question, &mut self.out) {
            PlacementDecision::Placement(placement) => {
                let request = self.record_placement(task, request, placement);
                self.start_service(task, request, 0);
            }
            PlacementDecision::Ask => {
                let costs = &self.cluster.costs;
                let ns = costs.message.ns(costs.request_bytes);
                self.enter_stage(task, RequestStage::AskPrepare, request.initial, StationKind::Cpu, ns);
            }
            PlacementDecision::Later => {
                let now = self.now;
                self.update_state(task, |request| request.asked_at = now);
            }
        }
        self.run_actions(request.initial);
    }

    /// Completes the placement of a request that waited for it.
    pub(super) fn complete_placement(&mut self, task: u32, placement: Placement) {
        let TaskBody::Request(request) = self.tasks[task as usize].body else { return };
        let wait = self.now.since(request.asked_at);
        if self.measuring && !wait.is_zero() {
            self.tally.answers.note(wait.as_nanos() as u64);
        }
        let request = self.record_placement(task, request, placement);
        self.start_service(task, request, 0);
    }

    /// Records the placement of a request.
    fn record_placement(
        &mut self,
        task: u32,
        request: RequestState,
        Placement { node, why, keep }: Placement,
    ) -> RequestState {
        if self.measuring {
            self.tally.reasons[why].1 += 1;
        }
        let request = RequestState { service: node, keep, ..request };
        self.update_state(task, |kept| *kept = request);
        request
    }

    /// Starts the service of a placed request. The initial node's processor has `ns` of other work for it
    /// first.
    fn start_service(&mut self, task: u32, request: RequestState, ns: u64) {
        let costs = &self.cluster.costs;
        if request.service != request.initial {
            let handoff = if self.uses_relay() { 0.0 } else { costs.handoff_s };
            let ns = ns + nanos(costs.forward_s + handoff);
            return self.enter_stage(
                task,
                RequestStage::ForwardPrepare,
                request.initial,
                StationKind::Cpu,
                ns,
            );
        }
        if ns > 0 {
            return self.enter_stage(task, RequestStage::Accept, request.initial, StationKind::Cpu, ns);
        }
        self.serve(task, request);
    }

    /// Sends a prepared request from the initial node to the service node.
    fn forward(&mut self, task: u32, request: RequestState) {
        let costs = &self.cluster.costs;
        let mut bytes = costs.request_bytes;
        if !self.uses_relay() {
            bytes = costs.handoff_bytes;
            self.complete_request(&request);
            self.end_connection(request.initial);
            if self.protocol.complete_handoff(self.now, request.initial, task) {
                self.run_actions(request.initial);
            }
        }
        self.count_relayed(bytes);
        self.transfer_to(task, RequestStage::ForwardTransfer, request.initial, request.service, bytes);
    }

    /// Serves a request at the service node, from memory or from disk.
    fn serve(&mut self, task: u32, request: RequestState) {
        let RequestState { service, item, .. } = request;
        if request.keep && self.caches[usize::from(service)].touch(&item) {
            return self.prepare_reply(task, request);
        }
        self.update_state(task, |request| request.missed = true);
        if request.keep {
            if let Some(waiting) = self.reads.get_mut(&(service, item)) {
                return waiting.push(task);
            }
            self.reads.insert((service, item), Vec::new());
        }
        if self.measuring {
            self.tally.disk_reads += 1;
        }
        let ns = self.cluster.costs.disk.ns(self.bytes(item));
        self.enter_stage(task, RequestStage::DiskRead, service, StationKind::Disk, ns);
    }

    /// Stores an item that has been read, and continues all requests that waited for it.
    fn finish_read(&mut self, task: u32, request: RequestState) {
        let RequestState { service, item, keep, .. } = request;
        if keep {
            self.store(service, item);
        }
        self.prepare_reply(task, request);
        for sharer in self.reads.remove(&(service, item)).unwrap_or_default() {
            if let TaskBody::Request(request) = self.tasks[sharer as usize].body {
                self.prepare_reply(sharer, request);
            }
        }
    }

    fn store(&mut self, node: u16, item: u32) {
        let mut evicted = core::mem::take(&mut self.evicted);
        let cache = &mut self.caches[usize::from(node)];
        cache.insert(item, Bytes(self.workload.items[item as usize].memory), &mut evicted);
        let kept = cache.contains(&item);
        for (gone, _) in evicted.drain(..) {
            self.report_cache_change(node, gone, false);
        }
        self.evicted = evicted;
        self.report_cache_change(node, item, kept);
    }

    /// Prepares the reply at the service node, which has the item.
    fn prepare_reply(&mut self, task: u32, request: RequestState) {
        let bytes = self.bytes(request.item);
        let ns = |rate: &LinearCost| rate.ns(bytes);
        let costs = &self.cluster.costs;
        if request.service != request.initial && self.uses_relay() {
            self.enter_stage(
                task,
                RequestStage::ReturnPrepare,
                request.service,
                StationKind::Cpu,
                ns(&costs.relay),
            );
        } else {
            self.enter_stage(
                task,
                RequestStage::ReplyPrepare,
                request.service,
                StationKind::Cpu,
                ns(&costs.reply),
            );
        }
    }

    /// Ends a request whose reply has left, and begins the client's next request.
    fn end_request(&mut self, task: u32, request: RequestState) {
        self.remove_task(task);
        if self.protocol.end_request(self.now, request.initial, task) {
            self.run_actions(request.initial);
        }
        let local = request.service == request.initial;
        self.end_connection(self.replying_node(&request));
        if local || self.uses_relay() {
            self.complete_request(&request);
        }
        if self.measuring {
            let hit = u64::from(!request.missed);
            let tally = &mut self.tally;
            tally.ended += 1;
            tally.hits += hit;
            tally.served[usize::from(request.service)] += 1;
            if local {
                tally.local += 1;
                tally.hits_local += hit;
            }
            tally.delays.note(self.now.since(request.arrived_at).as_nanos() as u64);
        }
        self.begin_request(request.initial);
    }
}
