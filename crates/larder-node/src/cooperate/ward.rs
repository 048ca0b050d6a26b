//! WARD at a running node: every node decides by a shared routing table.
//!
//! Each node counts its clients' requests in a census. The time for taking the census, and for making a table
//! from all counts, grows with the number of targets. Both run on other threads, without the lock.

use super::adapter::{BroadcastKind, FORWARDED, LOCAL, PeersMemory, PolicyAdapter, PolicyOutput, UNANSWERED};
use larder_core::census::Census;
use larder_core::peers::{AnalysisInput, Ward, WardMessage, WardOutput, WardReason, WardSettings};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;
use std::fmt::Debug;
use std::sync::Arc;

/// Settings of WARD.
#[derive(Clone, Debug)]
pub struct WardConfig {
    /// Settings of the protocol.
    pub settings: WardSettings,
    /// The part of a target's count that is carried over into the next period, in thousandths.
    pub carry_permille: u16,
    /// Makes routing tables from counts.
    pub analyst: Arc<dyn Analyst>,
}

/// Makes a routing table from a cluster's request counts.
pub trait Analyst: Debug + Send + Sync {
    /// Returns the table. Its owners are indices into [`AnalysisInput::nodes`]. May block.
    ///
    /// # Errors
    /// Returns the reason why there is no table. A retry with the same counts fails too.
    fn table(&self, analyse: &AnalysisInput) -> Result<RouteTable, String>;
}

/// The protocol's state at this node.
#[derive(Debug)]
pub(super) struct WardAdapter {
    pub(super) ward: Ward,
    pub(super) census: Arc<Census>,
    pub(super) carry_permille: u16,
    pub(super) analyst: Arc<dyn Analyst>,
    /// A buffer that is empty between two calls.
    out: Vec<WardOutput>,
}

impl WardAdapter {
    pub(super) fn new(name: &Name, epoch: u64, config: WardConfig) -> Self {
        let WardConfig { settings, carry_permille, analyst } = config;
        Self {
            ward: Ward::new(LOCAL, name.as_str(), epoch, settings),
            census: Arc::new(Census::new(settings.targets_max)),
            carry_permille,
            analyst,
            out: Vec::new(),
        }
    }

    pub(super) fn reasons() -> Vec<&'static str> {
        let own = WardReason::ALL.iter().map(|why| why.name());
        own.chain([FORWARDED, UNANSWERED]).collect()
    }

    pub(super) fn with<R>(
        &mut self,
        out: &mut Vec<PolicyOutput>,
        act: impl FnOnce(&mut Ward, &mut Vec<WardOutput>) -> R,
    ) -> R {
        let result = act(&mut self.ward, &mut self.out);
        out.extend(self.out.drain(..).map(|output| match output {
            WardOutput::Send { to, message } => PolicyOutput::Send(to, message.encode()),
            WardOutput::Broadcast(message) => PolicyOutput::Broadcast(message.encode(), BroadcastKind::Table),
            WardOutput::TakeCensus { keep: whole } => PolicyOutput::TakeCensus { whole },
            WardOutput::Analyse(analyse) => PolicyOutput::MakeTable(Box::new(analyse)),
        }));
        result
    }
}

impl PolicyAdapter for WardAdapter {
    fn resize_memory(&mut self, memory: PeersMemory) -> bool {
        self.ward.resize(memory.memory);
        true
    }

    fn next_deadline(&self) -> Time {
        self.ward.due()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<PolicyOutput>) {
        self.with(out, |ward, out| ward.tick(now, out));
    }

    fn add_member(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<PolicyOutput>) {
        self.with(out, |ward, out| ward.add_node(now, node, name.as_str(), out));
    }

    fn remove_member(&mut self, now: Time, node: NodeId, out: &mut Vec<PolicyOutput>) {
        self.with(out, |ward, out| ward.remove_node(now, node, out));
    }

    fn handle_message(
        &mut self,
        now: Time,
        from: NodeId,
        bytes: &[u8],
        out: &mut Vec<PolicyOutput>,
    ) -> Result<(), WireError> {
        let message = WardMessage::decode(bytes)?;
        self.with(out, |ward, out| ward.receive(now, from, message, out));
        Ok(())
    }

    fn record_served(
        &mut self,
        _now: Time,
        target: TargetId,
        size: Bytes,
        _missed: bool,
        _out: &mut Vec<PolicyOutput>,
    ) {
        self.census.count(target, size);
    }

    fn record_answer(&mut self, node: NodeId) {
        self.ward.record_reply(node);
    }

    fn record_no_answer(&mut self, now: Time, node: NodeId, _target: TargetId, is_fault: bool) {
        if is_fault {
            self.ward.record_failure(now, node);
        }
    }
}
