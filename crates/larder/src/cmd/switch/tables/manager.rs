//! The manager of a route's routing table: reads the file, rebuilds the table, and applies it to the switch.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use larder_core::policy::table::RouteTable;
use larder_switch::{RouteError, SwitchHandle};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval_at};

use super::build::{self, TableBuildError, TableDifference};
use super::file::{self, TableError};
use crate::config::WardRole;

/// Interval at which the file is checked for changes.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Manages the table of one route. Changes are serialized.
#[derive(Debug)]
pub(crate) struct TableManager {
    role: WardRole,
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    table: Option<Arc<RouteTable>>,
    /// Version of the file at the last read.
    version: Option<FileVersion>,
    from: Option<&'static str>,
    since: Option<Instant>,
    error: Option<String>,
    /// Targets that the last refresh could not count for lack of space, and the largest number of requests of
    /// one of them.
    missed: Option<(u64, u64)>,
}

/// Version of a file: its modification time and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    modified: Option<SystemTime>,
    bytes: u64,
}

/// Status of a route's table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TableStatus {
    /// Path of the table file, if there is one.
    pub(crate) file: Option<String>,
    /// Refresh interval, seconds; `None` without a refresh.
    pub(crate) refresh_s: Option<f64>,
    /// Origin of the table in force: `file` or `traffic`; `None` if there is no table.
    pub(crate) from: Option<&'static str>,
    /// Age of the table, seconds.
    pub(crate) age_s: Option<f64>,
    /// Targets in the core.
    pub(crate) core_targets: usize,
    /// Targets with an owner.
    pub(crate) partition_targets: usize,
    /// Error of the last change, if it failed.
    pub(crate) error: Option<String>,
    /// Targets that the last refresh could not count for lack of space.
    pub(crate) forgotten: u64,
    /// Largest number of requests of one of these targets.
    pub(crate) missed_max: u64,
}

/// Error of a table change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableChangeError {
    #[error(transparent)]
    File(#[from] TableError),
    #[error(transparent)]
    Build(#[from] TableBuildError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("route '{0}' has its table from a file only: set policies.ward.refresh to build it from traffic")]
    NoRefresh(String),
    #[error("route '{0}' got no requests since the last refresh: the table is unchanged")]
    NoTraffic(String),
    #[error("no node of route '{0}' accepts requests: the table is unchanged")]
    NoNode(String),
}

impl TableManager {
    /// Creates the manager and reads the file, if there is one. A switch does not start with an invalid
    /// table.
    pub(crate) fn new(role: WardRole) -> Result<Self, TableError> {
        let mut state = TableState::default();
        if let Some(file) = &role.table {
            state.version = FileVersion::of(&file.path);
            let table = file::read(file, &role.nodes)?;
            state.set_table(Arc::new(table), "file");
        }
        Ok(Self { role, state: Mutex::new(state) })
    }

    /// Returns the route's name.
    pub(crate) fn route(&self) -> &str {
        &self.role.route
    }

    /// Whether the route has a table file.
    pub(crate) fn has_file(&self) -> bool {
        self.role.table.is_some()
    }

    /// Returns the table in force.
    pub(crate) fn table(&self) -> Option<Arc<RouteTable>> {
        self.lock().table.clone()
    }

    /// Returns the table's status for operators.
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

    /// Reads the file again. Blocks. An error is logged and stored for [`TableManager::status`], and the
    /// previous table stays in force.
    ///
    /// # Errors
    /// Returns an error if there is no file or it is invalid.
    pub(crate) fn reload(&self, switch: &SwitchHandle) -> Result<(), TableChangeError> {
        let mut state = self.lock();
        let read = match &self.role.table {
            Some(file) => {
                state.version = FileVersion::of(&file.path);
                file::read(file, &self.role.nodes)
            }
            None => Err(TableError::NoFile(self.role.route.clone())),
        };
        self.apply(switch, &mut state, read.map_err(TableChangeError::from), "file")
    }

    /// Builds a table from the requests since the last refresh. Blocks. An error is logged and stored for
    /// [`TableManager::status`], and the previous table stays in force.
    ///
    /// # Errors
    /// Returns an error if the route has no refresh, there were no requests, no node takes requests, or the
    /// analysis fails.
    pub(crate) fn refresh(&self, switch: &SwitchHandle) -> Result<(), TableChangeError> {
        let mut state = self.lock();
        let made = self.build(switch, &mut state);
        self.apply(switch, &mut state, made, "traffic")
    }

    fn build(&self, switch: &SwitchHandle, state: &mut TableState) -> Result<RouteTable, TableChangeError> {
        let route = &self.role.route;
        let refresh = self.role.refresh.as_ref().ok_or_else(|| TableChangeError::NoRefresh(route.clone()))?;
        let up: Vec<String> =
            switch.nodes().into_iter().filter(|node| node.state == "up").map(|node| node.name).collect();
        let nodes = self.role.nodes.iter().filter(|node| up.contains(&node.name));
        let numbers: Vec<u16> = nodes.map(|node| node.number).collect();
        if numbers.is_empty() {
            return Err(TableChangeError::NoNode(route.clone()));
        }
        let taken = switch.take_census(route, refresh.carry_permille)?;
        if taken.rows.is_empty() {
            return Err(TableChangeError::NoTraffic(route.clone()));
        }
        state.missed = Some((taken.evicted, taken.evicted_requests_max));
        let now = state.table.as_deref().map(|before| before.among(&numbers));
        let now = |target| now.as_ref()?(target);
        let (analysis, table) = build::build_table(&taken, refresh, &numbers, now)?;
        tracing::debug!(
            route,
            local_share = analysis.local_share,
            memory_share = analysis.memory_share,
            "routing table: analysed"
        );
        Ok(table)
    }

    /// Applies a new table, or records the error.
    fn apply(
        &self,
        switch: &SwitchHandle,
        state: &mut TableState,
        made: Result<RouteTable, TableChangeError>,
        from: &'static str,
    ) -> Result<(), TableChangeError> {
        let route = &self.role.route;
        let applied = made.and_then(|table| {
            let table = Arc::new(table);
            switch.set_table(route, &table)?;
            Ok(table)
        });
        match applied {
            Ok(table) => {
                let TableDifference { added, dropped, moved } =
                    build::compare(state.table.as_deref(), &table);
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
                state.set_table(table, from);
                Ok(())
            }
            Err(error) => {
                match error {
                    TableChangeError::NoTraffic(_) | TableChangeError::NoNode(_) => {
                        tracing::debug!(route, %error, "routing table: not replaced");
                    }
                    _ => {
                        tracing::warn!(route, %error, "routing table: rejected, the previous one stays");
                    }
                }
                state.error = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Watches the file and the refresh timer until the runtime ends.
    pub(crate) async fn watch(self: Arc<Self>, switch: SwitchHandle) {
        let now = tokio::time::Instant::now();
        let every = self.role.refresh.as_ref().map(|refresh| refresh.every);
        // Without a refresh the timer is not polled.
        let mut refresh_timer =
            interval_at(now + every.unwrap_or(WATCH_PERIOD), every.unwrap_or(WATCH_PERIOD));
        let mut watch_timer = interval_at(now + WATCH_PERIOD, WATCH_PERIOD);
        for timer in [&mut refresh_timer, &mut watch_timer] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            let refresh = tokio::select! {
                _ = refresh_timer.tick(), if every.is_some() => true,
                _ = watch_timer.tick(), if self.role.table.is_some() => false,
                else => return,
            };
            let (manager, switch) = (self.clone(), switch.clone());
            let done = tokio::task::spawn_blocking(move || {
                if refresh {
                    // Failures are logged and shown by the admin interface.
                    let _ = manager.refresh(&switch);
                } else if manager.is_changed() {
                    let _ = manager.reload(&switch);
                }
            });
            if done.await.is_err() {
                tracing::warn!(
                    route = self.role.route,
                    "routing table: refresh panicked, the previous one stays"
                );
            }
        }
    }

    /// Whether the file has changed since the last read. A missing file is not a change, because it may be
    /// replaced at the moment.
    fn is_changed(&self) -> bool {
        let now = self.role.table.as_ref().and_then(|file| FileVersion::of(&file.path));
        now.is_some() && now != self.lock().version
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    fn set_table(&mut self, table: Arc<RouteTable>, from: &'static str) {
        *self = Self {
            table: Some(table),
            from: Some(from),
            since: Some(Instant::now()),
            error: None,
            version: self.version,
            missed: self.missed,
        };
    }
}

impl FileVersion {
    /// Returns the version of a file; `None` if the file is missing.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self { modified: metadata.modified().ok(), bytes: metadata.len() })
    }
}
