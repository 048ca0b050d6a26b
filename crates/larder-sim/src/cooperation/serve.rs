//! The path of a request, stage by stage.

use larder_core::Bytes;

use super::costs::{Rate, nanos};
use super::engine::{At, Body, Engine, Job, Step};
use super::minds::{Asked, Decision, Place};
use super::servers::{Moving, Server};

impl Engine<'_> {
    /// Advances a request that has ended a stage; `job` is its state at that time. Returns whether the
    /// request has ended.
    pub(super) fn advance(&mut self, task: u32, job: Job) -> bool {
        let costs = &self.cluster.costs;
        let Job { initial, service, .. } = job;
        match job.step {
            Step::Switching => self.switched(task, job),
            Step::Coming => {
                self.begun(initial);
                self.go(task, Step::Parsed, initial, At::Cpu, nanos(costs.parse_s));
            }
            Step::Parsed => self.parsed(task, job),
            Step::Asking => {
                self.pass(task, Step::AskTransfer, initial, self.dispatcher(), costs.request_bytes)
            }
            // Question and answer are short, so the dispatcher's processor receives, decides and answers in
            // one service.
            Step::AskTransfer => {
                let ns = 2 * costs.message.ns(costs.request_bytes) + nanos(costs.decide_s);
                self.go(task, Step::Deciding, self.dispatcher(), At::Cpu, ns);
            }
            Step::Deciding => {
                let place = self.minds.answer(&self.asked(job.initial, job.item));
                self.placed(task, job, place);
                let bytes = self.cluster.costs.request_bytes;
                self.pass(task, Step::AnswerTransfer, self.dispatcher(), initial, bytes);
            }
            Step::AnswerTransfer => {
                let ns = costs.message.ns(costs.request_bytes);
                self.decided(task, job, ns);
            }
            Step::Forwarding => self.forward(task, job),
            Step::ForwardTransfer => {
                self.begun(service);
                let handoff = if self.relays() { 0.0 } else { costs.handoff_s };
                self.go(task, Step::Accepting, service, At::Cpu, nanos(costs.accept_s + handoff));
            }
            Step::Accepting => self.serve(task, job),
            Step::Reading => self.read(task, job),
            Step::Returning => {
                self.ended(service);
                let bytes = self.bytes(job.item);
                self.relayed(bytes);
                self.pass(task, Step::ReplyTransfer, service, initial, bytes);
            }
            Step::ReplyTransfer => {
                self.minds.returned(initial, service);
                let bytes = self.bytes(job.item);
                let ns = costs.relay.ns(bytes) + costs.reply.ns(bytes);
                self.go(task, Step::Replying, initial, At::Cpu, ns);
            }
            Step::Replying => {
                let ns = costs.external.ns(self.bytes(job.item));
                self.go(task, Step::Leaving, self.answering(&job), At::Clients, ns);
            }
            Step::Leaving => {
                self.end(task, job);
                return true;
            }
        }
        false
    }

    /// Enters a stage at a station.
    fn go(&mut self, task: u32, step: Step, node: u16, at: At, ns: u64) {
        self.set(task, |job| job.step = step);
        self.work(node, at, ns, task);
    }

    /// Enters a stage that is a transfer to another node.
    fn pass(&mut self, task: u32, step: Step, from: u16, to: u16, bytes: u64) {
        self.set(task, |job| job.step = step);
        self.send(task, from, to, bytes, 1);
    }

    fn set(&mut self, task: u32, change: impl FnOnce(&mut Job)) {
        if let Body::Request(job) = &mut self.tasks[task as usize].body {
            change(job);
        }
    }

    fn relays(&self) -> bool {
        self.cluster.moving == Moving::Relay
    }

    const fn dispatcher(&self) -> u16 {
        self.cluster.nodes
    }

    pub(super) fn bytes(&self, item: u32) -> u64 {
        self.workload.items[item as usize].bytes
    }

    /// Returns the placement request for an item at a node.
    pub(super) fn asked(&self, node: u16, item: u32) -> Asked {
        let target = self.workload.items[item as usize].id;
        Asked { node, item, target, size: Bytes(self.bytes(item)) }
    }

    /// Returns the node that answers the client.
    fn answering(&self, job: &Job) -> u16 {
        if self.relays() { job.initial } else { job.service }
    }

    fn relayed(&mut self, bytes: u64) {
        if self.measuring {
            self.tally.relayed_bytes += bytes;
        }
    }

    /// Starts a request at the switch.
    pub(super) fn pass_switch(&mut self, task: u32) {
        let ns = nanos(self.cluster.costs.switch_s);
        self.go(task, Step::Switching, self.dispatcher(), At::Cpu, ns);
    }

    /// Sends a request from the switch to a node, where it arrives like any request.
    fn switched(&mut self, task: u32, job: Job) {
        let asked = self.asked(job.initial, job.item);
        let decision = self.minds.decide(self.now, task, &asked, &mut self.out);
        let Decision::Place(place) = decision else { unreachable!("a switch decides at once") };
        self.placed(task, job, place);
        self.set(task, |job| (job.initial, job.step) = (place.node, Step::Coming));
        self.enter(task, place.node);
    }

    /// Requests the placement of a parsed request at its initial node.
    fn parsed(&mut self, task: u32, job: Job) {
        if self.cluster.server == Server::Switch {
            return self.decided(task, job, 0);
        }
        let asked = self.asked(job.initial, job.item);
        match self.minds.decide(self.now, task, &asked, &mut self.out) {
            Decision::Place(place) => {
                let job = self.placed(task, job, place);
                self.decided(task, job, 0);
            }
            Decision::Ask => {
                let costs = &self.cluster.costs;
                let ns = costs.message.ns(costs.request_bytes);
                self.go(task, Step::Asking, job.initial, At::Cpu, ns);
            }
            Decision::Later => {
                let now = self.now;
                self.set(task, |job| job.asked = now);
            }
        }
        self.tell(job.initial);
    }

    /// Completes the placement of a request that waited for it.
    pub(super) fn answered(&mut self, task: u32, place: Place) {
        let Body::Request(job) = self.tasks[task as usize].body else { return };
        let waited = self.now.since(job.asked);
        if self.measuring && !waited.is_zero() {
            self.tally.answers.note(waited.as_nanos() as u64);
        }
        let job = self.placed(task, job, place);
        self.decided(task, job, 0);
    }

    /// Records the placement of a request.
    fn placed(&mut self, task: u32, job: Job, Place { node, why, keep }: Place) -> Job {
        if self.measuring {
            self.tally.reasons[why].1 += 1;
        }
        let job = Job { service: node, keep, ..job };
        self.set(task, |kept| *kept = job);
        job
    }

    /// Starts the service of a placed request. The initial node's processor has `ns` of other work for it
    /// first.
    fn decided(&mut self, task: u32, job: Job, ns: u64) {
        let costs = &self.cluster.costs;
        if job.service != job.initial {
            let handoff = if self.relays() { 0.0 } else { costs.handoff_s };
            let ns = ns + nanos(costs.forward_s + handoff);
            return self.go(task, Step::Forwarding, job.initial, At::Cpu, ns);
        }
        if ns > 0 {
            return self.go(task, Step::Accepting, job.initial, At::Cpu, ns);
        }
        self.serve(task, job);
    }

    /// Sends a prepared request from the initial node to the service node.
    fn forward(&mut self, task: u32, job: Job) {
        let costs = &self.cluster.costs;
        let mut bytes = costs.request_bytes;
        if !self.relays() {
            bytes = costs.handoff_bytes;
            self.served(&job);
            self.ended(job.initial);
            if self.minds.moved(self.now, job.initial, task) {
                self.tell(job.initial);
            }
        }
        self.relayed(bytes);
        self.pass(task, Step::ForwardTransfer, job.initial, job.service, bytes);
    }

    /// Serves a request at the service node, from memory or from disk.
    fn serve(&mut self, task: u32, job: Job) {
        let Job { service, item, .. } = job;
        if job.keep && self.caches[usize::from(service)].touch(&item) {
            return self.produce(task, job);
        }
        self.set(task, |job| job.missed = true);
        if job.keep {
            if let Some(waiting) = self.reads.get_mut(&(service, item)) {
                return waiting.push(task);
            }
            self.reads.insert((service, item), Vec::new());
        }
        if self.measuring {
            self.tally.disk_reads += 1;
        }
        let ns = self.cluster.costs.disk.ns(self.bytes(item));
        self.go(task, Step::Reading, service, At::Disk, ns);
    }

    /// Stores an item that has been read, and continues all requests that waited for it.
    fn read(&mut self, task: u32, job: Job) {
        let Job { service, item, keep, .. } = job;
        if keep {
            self.keep(service, item);
        }
        self.produce(task, job);
        for sharer in self.reads.remove(&(service, item)).unwrap_or_default() {
            if let Body::Request(job) = self.tasks[sharer as usize].body {
                self.produce(sharer, job);
            }
        }
    }

    fn keep(&mut self, node: u16, item: u32) {
        let mut evicted = core::mem::take(&mut self.evicted);
        let cache = &mut self.caches[usize::from(node)];
        cache.insert(item, Bytes(self.workload.items[item as usize].memory), &mut evicted);
        let kept = cache.contains(&item);
        for (gone, _) in evicted.drain(..) {
            self.noted(node, gone, false);
        }
        self.evicted = evicted;
        self.noted(node, item, kept);
    }

    /// Prepares the reply at the service node, which has the item.
    fn produce(&mut self, task: u32, job: Job) {
        let bytes = self.bytes(job.item);
        let ns = |rate: &Rate| rate.ns(bytes);
        let costs = &self.cluster.costs;
        if job.service != job.initial && self.relays() {
            self.go(task, Step::Returning, job.service, At::Cpu, ns(&costs.relay));
        } else {
            self.go(task, Step::Replying, job.service, At::Cpu, ns(&costs.reply));
        }
    }

    /// Ends a request whose reply has left, and begins the client's next request.
    fn end(&mut self, task: u32, job: Job) {
        self.remove(task);
        if self.minds.over(self.now, job.initial, task) {
            self.tell(job.initial);
        }
        let local = job.service == job.initial;
        self.ended(self.answering(&job));
        if local || self.relays() {
            self.served(&job);
        }
        if self.measuring {
            let hit = u64::from(!job.missed);
            let tally = &mut self.tally;
            tally.ended += 1;
            tally.hits += hit;
            tally.served[usize::from(job.service)] += 1;
            if local {
                tally.local += 1;
                tally.hits_local += hit;
            }
            tally.delays.note(self.now.since(job.came).as_nanos() as u64);
        }
        self.come(job.initial);
    }
}
