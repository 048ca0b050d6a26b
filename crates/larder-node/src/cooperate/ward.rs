//! WARD at a live node: every node decides by the routing table that all have.
//!
//! Each counts what its clients ask for in a census. Taking it, and making a table of all nodes' counts, takes time by the
//! number of targets: both are done beside, without the lock.

use super::side::{Say, Side, Told};
use super::{Cooperation, ME};
use crate::node::Node;
use crate::store::Store;
use crate::terms::PeersMemory;
use http::Request;
use http::header::HOST;
use larder_core::census::Census;
use larder_core::peers::{Analyse, Ward, WardMessage, WardOutput, WardSettings, WardWhy};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;
use std::fmt::Debug;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// How a node works with a routing table.
#[derive(Clone, Debug)]
pub struct WardConfig {
    /// The protocol.
    pub settings: WardSettings,
    /// How much of a target's count goes over into the next period, in thousandths.
    pub carry_permille: u16,
    /// Makes tables of counts.
    pub analyst: Arc<dyn Analyst>,
}

/// Makes a routing table of what a cluster was asked for.
pub trait Analyst: Debug + Send + Sync {
    /// The table, whose owners are places in [`Analyse::nodes`]. May block.
    ///
    /// # Errors
    /// Why there is none. Another try with the same counts fails too.
    fn table(&self, analyse: &Analyse) -> Result<RouteTable, String>;
}

/// The protocol's state.
#[derive(Debug)]
pub(super) struct WardSide {
    pub(super) ward: Ward,
    census: Arc<Census>,
    carry_permille: u16,
    analyst: Arc<dyn Analyst>,
    /// Empty between two calls.
    out: Vec<WardOutput>,
}

impl WardSide {
    pub(super) fn new(name: &Name, epoch: u64, config: WardConfig) -> Self {
        let WardConfig { settings, carry_permille, analyst } = config;
        Self {
            ward: Ward::new(ME, name.as_str(), epoch, settings),
            census: Arc::new(Census::new(settings.targets_max)),
            carry_permille,
            analyst,
            out: Vec::new(),
        }
    }

    pub(super) fn reasons() -> Vec<&'static str> {
        let own = WardWhy::ALL.iter().map(|why| why.name());
        own.chain([super::FORWARDED, super::UNANSWERED]).collect()
    }

    fn with<R>(&mut self, out: &mut Vec<Say>, act: impl FnOnce(&mut Ward, &mut Vec<WardOutput>) -> R) -> R {
        let result = act(&mut self.ward, &mut self.out);
        out.extend(self.out.drain(..).map(|output| match output {
            WardOutput::Send { to, message } => Say::To(to, message.encode()),
            WardOutput::Tell(message) => Say::All(message.encode(), Told::Table),
            WardOutput::Count { whole } => Say::Count { whole },
            WardOutput::Analyse(analyse) => Say::Analyse(Box::new(analyse)),
        }));
        result
    }
}

impl Side for WardSide {
    fn resized(&mut self, memory: PeersMemory) -> bool {
        self.ward.resize(memory.memory);
        true
    }

    fn due(&self) -> Time {
        self.ward.due()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Say>) {
        self.with(out, |ward, out| ward.tick(now, out));
    }

    fn joined(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<Say>) {
        self.with(out, |ward, out| ward.joined(now, node, name.as_str(), out));
    }

    fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<Say>) {
        self.with(out, |ward, out| ward.left(now, node, out));
    }

    fn hear(&mut self, now: Time, from: NodeId, bytes: &[u8], out: &mut Vec<Say>) -> Result<(), WireError> {
        let message = WardMessage::decode(bytes)?;
        self.with(out, |ward, out| ward.hear(now, from, message, out));
        Ok(())
    }

    fn served(&mut self, _now: Time, target: TargetId, size: Bytes, _missed: bool, _out: &mut Vec<Say>) {
        self.census.count(target, size);
    }

    fn answered(&mut self, node: NodeId) {
        self.ward.replied(node);
    }

    fn unanswered(&mut self, now: Time, node: NodeId, _target: TargetId, to_blame: bool) {
        if to_blame {
            self.ward.unanswered(now, node);
        }
    }
}

/// What takes too long to be done with the lock held.
#[derive(Debug)]
pub(super) enum Job {
    Count { whole: bool },
    Analyse(Box<Analyse>),
}

impl Cooperation {
    /// Does it, and says what came of it.
    pub(super) async fn work(self: Arc<Self>, job: Job) {
        let tools = self.with_ward(|ward, _, _| {
            (Arc::clone(&ward.census), ward.carry_permille, Arc::clone(&ward.analyst))
        });
        let Some((census, carry_permille, analyst)) = tools else { return };
        match job {
            Job::Count { whole } => {
                let carry_permille = if whole { 1_000 } else { carry_permille };
                // Where taking fails there is nothing to tell, and nobody waits in vain.
                let taken = spawn_blocking(move || census.take(carry_permille)).await.unwrap_or_default();
                self.with_ward(|ward, now, out| ward.with(out, |ward, out| ward.counted(now, taken, out)));
            }
            Job::Analyse(analyse) => {
                let round = analyse.round;
                let made = spawn_blocking(move || analyst.table(&analyse)).await;
                let made = made.unwrap_or_else(|error| Err(error.to_string()));
                self.made(round, made);
            }
        }
    }

    fn made(&self, round: u64, made: Result<RouteTable, String>) {
        let made = made.inspect_err(|error| tracing::error!(%error, "no routing table was made"));
        self.with_ward(|ward, now, out| match made {
            Ok(table) => {
                let (core, targets) = (table.core_len(), table.len());
                tracing::info!(core, targets, "routing table: made");
                ward.with(out, |ward, out| ward.made(now, round, table, out));
            }
            Err(_) => ward.ward.unmade(now, round),
        });
    }
}

impl Node {
    /// Gives a routing table, such as one made of yesterday's log, to all peers, as the newest; its owners are named by their
    /// numbers in it. False: this node goes by none, or the table has more targets than it may, or another number of owners.
    pub fn give_table(&self, owners: &[&str], table: RouteTable) -> bool {
        let Some(cooperation) = self.cooperation.get() else { return false };
        let given = cooperation
            .with_ward(|ward, now, out| ward.with(out, |ward, out| ward.load(now, owners, table, out)));
        given == Some(true)
    }

    /// The target of a row of a log: a path with its query, or a host before it. None: it is none here. `host` is that of rows
    /// which name none, and matters before an origin only.
    pub fn target_of_row(&self, row: &str, host: &str) -> Option<TargetId> {
        let bare = row.strip_prefix("http://").or_else(|| row.strip_prefix("https://")).unwrap_or(row);
        let (host, path) = match bare.find('/') {
            Some(0) | None => (host, bare),
            Some(slash) => bare.split_at(slash),
        };
        if matches!(self.store, Store::Origin(_)) && host.is_empty() {
            return None;
        }
        let mut request = Request::builder().uri(path);
        if !host.is_empty() {
            request = request.header(HOST, host);
        }
        let (parts, ()) = request.body(()).ok()?.into_parts();
        self.target_of(&parts)
    }
}
