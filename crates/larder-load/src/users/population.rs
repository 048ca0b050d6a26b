//! The population of users: open, closed, or controlled by the caller.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use super::browser::Browser;
use super::context::UserContext;
pub(crate) use super::context::{FinishedRequest, RequestObserver};
use super::page_stats::PageStats;
use super::run_state::UserRunState;
use super::settings::{CheckedSettings, ConnectionLifetime};
use crate::client::cpu::{CpuSample, CpuUsage};
use crate::run::LoadError;
use crate::script::Visit;
use crate::tally::Tally;

/// Period of the caller's callback.
const TICK: Duration = Duration::from_millis(50);
/// Distance in requests between the starts of users with the same profile.
const LAP_STRIDE: usize = 7;

/// Arrival of users.
#[derive(Clone, Debug)]
pub(crate) enum Population {
    /// Users arrive at the script's times.
    Open { at_once_max: u32 },
    /// A fixed number of users, who arrive evenly within `over`.
    Closed { clients: u32, over: Duration },
    /// A number of users that the caller raises. Each replays one visit repeatedly.
    Controlled { users: watch::Receiver<u32>, observer: Arc<dyn RequestObserver> },
}

/// The results of all threads.
#[derive(Debug)]
pub(crate) struct UsersResult {
    pub(crate) tally: Tally,
    pub(crate) page_stats: PageStats,
    pub(crate) cpu_usage: Vec<CpuUsage>,
}

/// Runs the users until the run ends. `tick` is called every 50 ms and ends the run with [`UserRunState::end`].
pub(crate) async fn run_users(
    job: &Arc<CheckedSettings>,
    state: &Arc<UserRunState>,
    population: &Population,
    tick: &mut (dyn FnMut(&UserRunState) + Send),
) -> Result<UsersResult, LoadError> {
    let (cancel, cancelled) = watch::channel(());
    let mut results = Vec::new();
    for thread in 0..job.threads {
        let (send, receive) = oneshot::channel();
        let (job, state, cancelled) = (Arc::clone(job), Arc::clone(state), cancelled.clone());
        let population = population.clone();
        std::thread::Builder::new()
            .name(format!("users-{thread}"))
            .spawn(move || {
                // An error means that the run was dropped.
                let _ = send.send(run_thread(&job, &state, &population, thread, cancelled));
            })
            .map_err(LoadError::System)?;
        results.push(receive);
    }
    let mut all = UsersResult {
        tally: Tally::new(job.timeline_interval),
        page_stats: PageStats::new(),
        cpu_usage: Vec::new(),
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    for mut receive in results {
        let done = loop {
            tokio::select! {
                done = &mut receive => break done,
                _ = ticks.tick() => tick(state),
            }
        };
        let done = done.map_err(|_| LoadError::Panicked)?.map_err(LoadError::System)?;
        all.tally.merge(&done.tally);
        all.page_stats.merge(&done.page_stats);
        all.cpu_usage.extend(done.cpu_usage);
    }
    tick(state);
    drop(cancel);
    Ok(all)
}

/// Runs the users of one thread.
fn run_thread(
    job: &Arc<CheckedSettings>,
    state: &Arc<UserRunState>,
    population: &Population,
    thread: u32,
    mut cancelled: watch::Receiver<()>,
) -> io::Result<UsersResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let observer = match population {
        Population::Controlled { observer, .. } => Some(Arc::clone(observer)),
        _ => None,
    };
    let context = Rc::new(UserContext::new(job, state, observer));
    local.block_on(&runtime, async {
        tokio::select! {
            result = drive(&context, population, thread) => result,
            // Nothing is ever sent on this channel. It closes when the run is dropped.
            _ = cancelled.changed() => Ok(()),
        }
    })?;
    let now = CpuSample::current_thread();
    let cpu_usage = context.cpu_start.get().map_or_else(CpuUsage::default, |from| now.since(&from));
    Ok(UsersResult {
        tally: context.tally.replace(Tally::new(job.timeline_interval)),
        page_stats: context.page_stats.replace(PageStats::new()),
        cpu_usage: vec![cpu_usage],
    })
}

/// Runs the users of a thread and their timer queue.
async fn drive(context: &Rc<UserContext>, population: &Population, thread: u32) -> io::Result<()> {
    let timer = context.timers.drive(context.state.over());
    let users = async {
        match population {
            Population::Open { at_once_max } => open(context, *at_once_max, thread).await,
            Population::Closed { clients, over } => closed(context, *clients, *over, thread).await,
            Population::Controlled { users, .. } => controlled(context, users.clone(), thread).await,
        }
    };
    let mut timer = std::pin::pin!(timer);
    let mut users = std::pin::pin!(users);
    tokio::select! {
        () = &mut users => return Ok(()),
        ended = &mut timer => ended?,
    }
    // The run is over. Users finish their current page.
    users.await;
    Ok(())
}

/// Runs users at the script's times. This thread runs every `threads`-th visit.
async fn open(context: &Rc<UserContext>, at_once_max: u32, thread: u32) {
    let threads = context.job.threads;
    let permits = at_once_max / threads + u32::from(thread < at_once_max % threads);
    let permits = Arc::new(Semaphore::new(permits as usize));
    let mut tasks = JoinSet::new();
    let visits = context.job.script.visits();
    let mut numbers = (thread as usize..visits.len()).step_by(threads as usize);
    while let Some(number) = numbers.next() {
        let due = visits[number].at;
        let mut permit = None;
        if context.wait_until(due).await {
            context.page_stats.borrow_mut().waits += u64::from(permits.available_permits() == 0);
            permit = Arc::clone(&permits).acquire_owned().await.ok();
        }
        // A permit acquired after the end of the run is not used.
        let Some(permit) = permit.filter(|_| context.state.now() < context.state.until()) else {
            let until = context.state.until();
            let missed = std::iter::once(number).chain(numbers).filter(|number| visits[*number].at < until);
            context.page_stats.borrow_mut().missed += missed.count() as u64;
            break;
        };
        let context = Rc::clone(context);
        tasks.spawn_local(async move {
            let _permit = permit;
            let _there = UserPresence::new(&context);
            let visit = &context.job.script.visits()[number];
            run_visit(&context, &mut Browser::default(), visit, due, true).await;
        });
        while let Some(ended) = tasks.try_join_next() {
            resume_panic(ended);
        }
    }
    join_all(tasks).await;
}

/// Runs a fixed number of users. This thread runs every `threads`-th user.
async fn closed(context: &Rc<UserContext>, clients: u32, over: Duration, thread: u32) {
    let mut tasks = JoinSet::new();
    for client in (thread..clients).step_by(context.job.threads as usize) {
        let context = Rc::clone(context);
        tasks.spawn_local(async move {
            let mut due = over.mul_f64(f64::from(client) / f64::from(clients));
            if !context.wait_until(due).await {
                return;
            }
            let _there = UserPresence::new(&context);
            let (mut browser, visits) = (Browser::default(), context.job.script.visits());
            loop {
                let visit = &visits[(context.state.claim_visit() % visits.len() as u64) as usize];
                match run_visit(&context, &mut browser, visit, due, false).await {
                    Some(next) => due = next,
                    None => return,
                }
            }
        });
    }
    join_all(tasks).await;
}

/// Runs as many users as requested. This thread runs every `threads`-th user.
async fn controlled(context: &Rc<UserContext>, mut users: watch::Receiver<u32>, thread: u32) {
    let mut over = context.state.over();
    let (mut tasks, mut started, threads) = (JoinSet::new(), thread, context.job.threads);
    while !*over.borrow_and_update() {
        let wanted = *users.borrow_and_update();
        while started < wanted {
            let (context, user) = (Rc::clone(context), started as usize);
            tasks.spawn_local(async move {
                let _there = UserPresence::new(&context);
                replay(&context, user).await;
            });
            started += threads;
        }
        tokio::select! {
            changed = users.changed() => if changed.is_err() { break },
            changed = over.changed() => if changed.is_err() { break },
        }
    }
    join_all(tasks).await;
}

/// Runs a visit. With `leaves_on_error`, the user leaves if a base object fails and does not pause after the last page.
/// Returns the due time of the next visit; `None` if there is none.
async fn run_visit(
    context: &UserContext,
    browser: &mut Browser,
    visit: &Visit,
    mut due: Duration,
    leaves_on_error: bool,
) -> Option<Duration> {
    let pages = context.job.script.pages(visit);
    context.page_stats.borrow_mut().started += 1;
    for (thread, page) in pages.iter().enumerate() {
        let fetched = browser.fetch_page(context, page, due).await;
        if leaves_on_error && fetched.base.is_err() {
            context.page_stats.borrow_mut().abandoned += 1;
            return None;
        }
        due = fetched.done.saturating_add(context.job.scaled(page.pause));
        if thread + 1 == pages.len() {
            if context.job.keep == ConnectionLifetime::Visit {
                browser.close();
            }
            if leaves_on_error {
                return None;
            }
        }
        if !context.wait_until(due).await {
            return None;
        }
    }
    Some(due)
}

/// Replays one profile repeatedly. Users with the same profile start at different requests.
async fn replay(context: &UserContext, user: usize) {
    let visits = context.job.script.visits();
    let pages = context.job.script.pages(&visits[user % visits.len()]);
    let first = user / visits.len() * LAP_STRIDE;
    let (mut browser, mut due) = (Browser::default(), context.state.now());
    context.page_stats.borrow_mut().started += 1;
    for page in pages.iter().cycle().skip(first % pages.len()) {
        if !context.wait_until(due).await {
            return;
        }
        let fetched = browser.fetch_page(context, page, due).await;
        due = fetched.done.saturating_add(context.job.scaled(page.pause));
        if page.pause.is_zero() {
            // Without pauses, this task would starve the others.
            tokio::task::yield_now().await;
        }
    }
}

/// Counts a user as present until it is dropped.
struct UserPresence<'b>(&'b UserContext);

impl<'b> UserPresence<'b> {
    fn new(context: &'b UserContext) -> Self {
        context.state.user_arrived();
        Self(context)
    }
}

impl Drop for UserPresence<'_> {
    fn drop(&mut self) {
        self.0.state.user_left();
    }
}

async fn join_all(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        resume_panic(ended);
    }
}

fn resume_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
