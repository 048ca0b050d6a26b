//! Keeps a route's routing table: reads it, makes it anew, hands it to the switch.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use larder_core::policy::table::RouteTable;
use larder_switch::{RouteError, SwitchHandle};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval_at};

use super::file::{self, TableError};
use super::fresh::{self, Change, FreshError};
use crate::config::WardRole;

/// How often a table's file is looked at.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Keeps one route's table. One change at a time.
#[derive(Debug)]
pub(crate) struct Keeper {
    role: WardRole,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    table: Option<Arc<RouteTable>>,
    /// What the file looked like when it was last read.
    stamp: Option<Stamp>,
    from: Option<&'static str>,
    since: Option<Instant>,
    error: Option<String>,
    /// Of the last refresh: targets forgotten for want of room, and the most requests one of them had.
    missed: Option<(u64, u64)>,
}

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

/// A route's table, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TableStatus {
    /// The file it may come from.
    pub(crate) file: Option<String>,
    /// Seconds from one refresh to the next; none without.
    pub(crate) refresh_s: Option<f64>,
    /// Where the one in force is from: `file` or `traffic`; none if there is none yet.
    pub(crate) from: Option<&'static str>,
    /// Seconds since it came.
    pub(crate) age_s: Option<f64>,
    /// Targets in its core.
    pub(crate) core_targets: usize,
    /// Targets with an owner.
    pub(crate) partition_targets: usize,
    /// Why the last try for another one failed; none if it did not.
    pub(crate) error: Option<String>,
    /// Targets that the last refresh did not count for want of room.
    pub(crate) forgotten: u64,
    /// The most requests that one of those had.
    pub(crate) missed_max: u64,
}

/// Why a route's table stays as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error(transparent)]
    File(#[from] TableError),
    #[error(transparent)]
    Fresh(#[from] FreshError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("route '{0}' has its table from a file alone: set policies.ward.refresh to make it of its traffic")]
    NoRefresh(String),
    #[error("nothing was asked for on route '{0}' since the last time: its table stays")]
    NoTraffic(String),
    #[error("no node of route '{0}' takes requests: its table stays")]
    NoNode(String),
}

impl Keeper {
    /// Reads the file, if there is one: a switch does not start on a table that it cannot use.
    pub(crate) fn new(role: WardRole) -> Result<Self, TableError> {
        let mut state = State::default();
        if let Some(file) = &role.table {
            state.stamp = Stamp::of(&file.path);
            let table = file::read(file, &role.nodes)?;
            state.put(Arc::new(table), "file");
        }
        Ok(Self { role, state: Mutex::new(state) })
    }

    /// The route's name.
    pub(crate) fn route(&self) -> &str {
        &self.role.route
    }

    /// Whether its table may come from a file.
    pub(crate) fn has_file(&self) -> bool {
        self.role.table.is_some()
    }

    /// The table in force.
    pub(crate) fn table(&self) -> Option<Arc<RouteTable>> {
        self.lock().table.clone()
    }

    /// The table as an operator sees it.
    pub(crate) fn status(&self) -> TableStatus {
        let state = self.lock();
        let core = state.table.as_ref().map_or(0, |table| table.core_len());
        let (forgotten, missed_max) = state.missed.unwrap_or_default();
        TableStatus {
            file: self.role.table.as_ref().map(|file| file.path.display().to_string()),
            refresh_s: self.role.refresh.as_ref().map(|refresh| refresh.every.as_secs_f64()),
            from: state.from,
            age_s: state.since.map(|since| since.elapsed().as_secs_f64()),
            core_targets: core,
            partition_targets: state.table.as_ref().map_or(0, |table| table.len()) - core,
            error: state.error.clone(),
            forgotten,
            missed_max,
        }
    }

    /// Reads the file again. Blocks. A failure is logged and kept for [`Keeper::status`]; the table stays.
    ///
    /// # Errors
    /// There is no file, or it cannot be used.
    pub(crate) fn reload(&self, switch: &SwitchHandle) -> Result<(), KeepError> {
        let mut state = self.lock();
        let read = match &self.role.table {
            Some(file) => {
                state.stamp = Stamp::of(&file.path);
                file::read(file, &self.role.nodes)
            }
            None => Err(TableError::NoFile(self.role.route.clone())),
        };
        self.settle(switch, &mut state, read.map_err(KeepError::from), "file")
    }

    /// Makes a table of what was asked for since the last time. Blocks. A failure is logged and kept for
    /// [`Keeper::status`]; the table stays.
    ///
    /// # Errors
    /// The route has no refresh, nothing was asked for, no node takes requests, or the analysis fails.
    pub(crate) fn refresh(&self, switch: &SwitchHandle) -> Result<(), KeepError> {
        let mut state = self.lock();
        let made = self.make(switch, &mut state);
        self.settle(switch, &mut state, made, "traffic")
    }

    fn make(&self, switch: &SwitchHandle, state: &mut State) -> Result<RouteTable, KeepError> {
        let route = &self.role.route;
        let refresh = self.role.refresh.as_ref().ok_or_else(|| KeepError::NoRefresh(route.clone()))?;
        let up: Vec<String> =
            switch.nodes().into_iter().filter(|node| node.state == "up").map(|node| node.name).collect();
        let nodes = self.role.nodes.iter().filter(|node| up.contains(&node.name));
        let numbers: Vec<u16> = nodes.map(|node| node.number).collect();
        if numbers.is_empty() {
            return Err(KeepError::NoNode(route.clone()));
        }
        let taken = switch.take_census(route, refresh.carry_permille)?;
        if taken.rows.is_empty() {
            return Err(KeepError::NoTraffic(route.clone()));
        }
        state.missed = Some((taken.forgotten, taken.missed_max));
        let now = state.table.as_deref().map(|before| before.among(&numbers));
        let now = |target| now.as_ref()?(target);
        let (analysis, table) = fresh::table(&taken, refresh, &numbers, now)?;
        tracing::debug!(
            route,
            local_share = analysis.local_share,
            memory_share = analysis.memory_share,
            "analysed"
        );
        Ok(table)
    }

    /// Puts a new table in force, or says why there is none.
    fn settle(
        &self,
        switch: &SwitchHandle,
        state: &mut State,
        made: Result<RouteTable, KeepError>,
        from: &'static str,
    ) -> Result<(), KeepError> {
        let route = &self.role.route;
        let put = made.and_then(|table| {
            let table = Arc::new(table);
            switch.set_table(route, &table)?;
            Ok(table)
        });
        match put {
            Ok(table) => {
                let Change { added, dropped, moved } = fresh::change(state.table.as_deref(), &table);
                let (core, targets) = (table.core_len(), table.len());
                let core_before = state.table.as_ref().map_or(0, |table| table.core_len());
                tracing::info!(
                    route,
                    from,
                    core,
                    core_before,
                    targets,
                    added,
                    dropped,
                    moved,
                    "routing table: replaced"
                );
                state.put(table, from);
                Ok(())
            }
            Err(error) => {
                match error {
                    KeepError::NoTraffic(_) | KeepError::NoNode(_) => {
                        tracing::info!(route, %error, "routing table: not replaced");
                    }
                    _ => {
                        tracing::error!(route, %error, "routing table: the new one is rejected, the one before stays");
                    }
                }
                state.error = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Watches the file and the clock for as long as the runtime runs.
    pub(crate) async fn watch(self: Arc<Self>, switch: SwitchHandle) {
        let now = tokio::time::Instant::now();
        let every = self.role.refresh.as_ref().map(|refresh| refresh.every);
        // Without a refresh the timer is never asked.
        let mut fresh = interval_at(now + every.unwrap_or(WATCH_PERIOD), every.unwrap_or(WATCH_PERIOD));
        let mut look = interval_at(now + WATCH_PERIOD, WATCH_PERIOD);
        for timer in [&mut fresh, &mut look] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            let refresh = tokio::select! {
                _ = fresh.tick(), if every.is_some() => true,
                _ = look.tick(), if self.role.table.is_some() => false,
                else => return,
            };
            let (keeper, switch) = (self.clone(), switch.clone());
            let done = tokio::task::spawn_blocking(move || {
                if refresh {
                    // A failure is logged and shown by the admin interface.
                    let _ = keeper.refresh(&switch);
                } else if keeper.is_changed() {
                    let _ = keeper.reload(&switch);
                }
            });
            if done.await.is_err() {
                tracing::error!(route = self.role.route, "routing table: its task has failed");
            }
        }
    }

    /// Whether the file is another than the one read last. A file that is gone is none: it may be on its way back.
    fn is_changed(&self) -> bool {
        let now = self.role.table.as_ref().and_then(|file| Stamp::of(&file.path));
        now.is_some() && now != self.lock().stamp
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, table: Arc<RouteTable>, from: &'static str) {
        *self = Self {
            table: Some(table),
            from: Some(from),
            since: Some(Instant::now()),
            error: None,
            stamp: self.stamp,
            missed: self.missed,
        };
    }
}

impl Stamp {
    /// What a file looks like; None if there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self { modified: metadata.modified().ok(), bytes: metadata.len() })
    }
}
