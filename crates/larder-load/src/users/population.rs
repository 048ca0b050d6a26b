//! Who comes when: open, closed, or ever more.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use super::bench::Bench;
pub(crate) use super::bench::{Ended, Watch};
use super::board::Board;
use super::browser::Browser;
use super::seen::Seen;
use super::stage::{Job, Keep, system};
use crate::client::usage::{Spent, Usage};
use crate::run::LoadError;
use crate::script::Visit;
use crate::tally::Tally;

/// How often a run is looked at from outside.
const TICK: Duration = Duration::from_millis(50);
/// Users of one profile begin this many requests apart.
const LAP_STRIDE: usize = 7;

/// How users come.
#[derive(Clone, Debug)]
pub(crate) enum Population {
    /// At the script's times.
    Open { at_once_max: u32 },
    /// So many, who come evenly over a time.
    Closed { clients: u32, over: Duration },
    /// As many as are called for, each replaying one visit again and again.
    Called { users: watch::Receiver<u32>, watch: Arc<dyn Watch> },
}

/// What all threads have seen.
#[derive(Debug)]
pub(crate) struct Acted {
    pub(crate) tally: Tally,
    pub(crate) seen: Seen,
    pub(crate) spent: Vec<Spent>,
}

/// Runs the users to their end; `tick` is called every 50 ms and ends the run by [`Board::end`].
pub(crate) async fn act_out(
    job: &Arc<Job>,
    board: &Arc<Board>,
    population: &Population,
    tick: &mut (dyn FnMut(&Board) + Send),
) -> Result<Acted, LoadError> {
    let (cancel, cancelled) = watch::channel(());
    let mut yields = Vec::new();
    for place in 0..job.threads {
        let (send, receive) = oneshot::channel();
        let (job, board, cancelled) = (Arc::clone(job), Arc::clone(board), cancelled.clone());
        let population = population.clone();
        std::thread::Builder::new()
            .name(format!("users-{place}"))
            .spawn(move || {
                // Nobody to tell if the run was dropped.
                let _ = send.send(work(&job, &board, &population, place, cancelled));
            })
            .map_err(LoadError::System)?;
        yields.push(receive);
    }
    let mut all = Acted { tally: Tally::new(job.timeline_interval), seen: Seen::new(), spent: Vec::new() };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    for mut receive in yields {
        let done = loop {
            tokio::select! {
                done = &mut receive => break done,
                _ = ticks.tick() => tick(board),
            }
        };
        let done = done.map_err(|_| LoadError::Panicked)?.map_err(system)?;
        all.tally.merge(&done.tally);
        all.seen.merge(&done.seen);
        all.spent.extend(done.spent);
    }
    tick(board);
    drop(cancel);
    Ok(all)
}

/// The body of a thread.
fn work(
    job: &Arc<Job>,
    board: &Arc<Board>,
    population: &Population,
    place: u32,
    mut cancelled: watch::Receiver<()>,
) -> io::Result<Acted> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let watch = match population {
        Population::Called { watch, .. } => Some(Arc::clone(watch)),
        _ => None,
    };
    let bench = Rc::new(Bench::new(job, board, watch));
    local.block_on(&runtime, async {
        tokio::select! {
            ended = drive(&bench, population, place) => ended,
            // Nothing is ever sent: this is the run being dropped.
            _ = cancelled.changed() => Ok(()),
        }
    })?;
    let now = Usage::of_this_thread();
    let spent = bench.usage_from.get().map_or_else(Spent::default, |from| now.since(&from));
    Ok(Acted {
        tally: bench.tally.replace(Tally::new(job.timeline_interval)),
        seen: bench.seen.replace(Seen::new()),
        spent: vec![spent],
    })
}

/// Runs a thread's users and the timer that wakes them.
async fn drive(bench: &Rc<Bench>, population: &Population, place: u32) -> io::Result<()> {
    let timer = bench.pauses.drive(bench.board.over());
    let users = async {
        match population {
            Population::Open { at_once_max } => open(bench, *at_once_max, place).await,
            Population::Closed { clients, over } => closed(bench, *clients, *over, place).await,
            Population::Called { users, .. } => called(bench, users.clone(), place).await,
        }
    };
    let mut timer = std::pin::pin!(timer);
    let mut users = std::pin::pin!(users);
    tokio::select! {
        () = &mut users => return Ok(()),
        ended = &mut timer => ended?,
    }
    // The run is over, and those who have a page under way finish it.
    users.await;
    Ok(())
}

/// Users at the script's times, those of every `threads`-th visit on this thread.
async fn open(bench: &Rc<Bench>, at_once_max: u32, place: u32) {
    let threads = bench.job.threads;
    let room = at_once_max / threads + u32::from(place < at_once_max % threads);
    let room = Arc::new(Semaphore::new(room as usize));
    let mut tasks = JoinSet::new();
    let visits = bench.job.script.visits();
    let mut numbers = (place as usize..visits.len()).step_by(threads as usize);
    while let Some(number) = numbers.next() {
        let due = visits[number].at;
        let mut permit = None;
        if bench.until(due).await {
            bench.seen.borrow_mut().waits += u64::from(room.available_permits() == 0);
            permit = Arc::clone(&room).acquire_owned().await.ok();
        }
        // Room that is found after the end of the run is of no use.
        let Some(permit) = permit.filter(|_| bench.board.now() < bench.board.until()) else {
            let until = bench.board.until();
            let missed = std::iter::once(number).chain(numbers).filter(|number| visits[*number].at < until);
            bench.seen.borrow_mut().missed += missed.count() as u64;
            break;
        };
        let bench = Rc::clone(bench);
        tasks.spawn_local(async move {
            let _permit = permit;
            let _there = There::new(&bench);
            let visit = &bench.job.script.visits()[number];
            one_visit(&bench, &mut Browser::default(), visit, due, true).await;
        });
        while let Some(ended) = tasks.try_join_next() {
            resume_panic(ended);
        }
    }
    finish(tasks).await;
}

/// A fixed number of users, every `threads`-th on this thread.
async fn closed(bench: &Rc<Bench>, clients: u32, over: Duration, place: u32) {
    let mut tasks = JoinSet::new();
    for client in (place..clients).step_by(bench.job.threads as usize) {
        let bench = Rc::clone(bench);
        tasks.spawn_local(async move {
            let mut due = over.mul_f64(f64::from(client) / f64::from(clients));
            if !bench.until(due).await {
                return;
            }
            let _there = There::new(&bench);
            let (mut browser, visits) = (Browser::default(), bench.job.script.visits());
            loop {
                let visit = &visits[(bench.board.claim_visit() % visits.len() as u64) as usize];
                match one_visit(&bench, &mut browser, visit, due, false).await {
                    Some(next) => due = next,
                    None => return,
                }
            }
        });
    }
    finish(tasks).await;
}

/// As many users as are called for, every `threads`-th on this thread.
async fn called(bench: &Rc<Bench>, mut users: watch::Receiver<u32>, place: u32) {
    let mut over = bench.board.over();
    let (mut tasks, mut begun, threads) = (JoinSet::new(), place, bench.job.threads);
    while !*over.borrow_and_update() {
        let wanted = *users.borrow_and_update();
        while begun < wanted {
            let (bench, user) = (Rc::clone(bench), begun as usize);
            tasks.spawn_local(async move {
                let _there = There::new(&bench);
                replay(&bench, user).await;
            });
            begun += threads;
        }
        tokio::select! {
            changed = users.changed() => if changed.is_err() { break },
            changed = over.changed() => if changed.is_err() { break },
        }
    }
    finish(tasks).await;
}

/// Goes through a visit. A user who is `fickle` leaves when a base page fails, and does not pause after the last one.
/// When the next visit is due; `None` if there is to be none.
async fn one_visit(
    bench: &Bench,
    browser: &mut Browser,
    visit: &Visit,
    mut due: Duration,
    fickle: bool,
) -> Option<Duration> {
    let pages = bench.job.script.pages(visit);
    bench.seen.borrow_mut().begun += 1;
    for (place, page) in pages.iter().enumerate() {
        let fetched = browser.page(bench, page, due).await;
        if fickle && fetched.base.is_err() {
            bench.seen.borrow_mut().abandoned += 1;
            return None;
        }
        due = fetched.done.saturating_add(bench.job.scaled(page.pause));
        if place + 1 == pages.len() {
            if bench.job.keep == Keep::Visit {
                browser.close();
            }
            if fickle {
                return None;
            }
        }
        if !bench.until(due).await {
            return None;
        }
    }
    Some(due)
}

/// Goes through one profile again and again. Users of the same profile are spread over it.
async fn replay(bench: &Bench, user: usize) {
    let visits = bench.job.script.visits();
    let pages = bench.job.script.pages(&visits[user % visits.len()]);
    let first = user / visits.len() * LAP_STRIDE;
    let (mut browser, mut due) = (Browser::default(), bench.board.now());
    bench.seen.borrow_mut().begun += 1;
    for page in pages.iter().cycle().skip(first % pages.len()) {
        if !bench.until(due).await {
            return;
        }
        let fetched = browser.page(bench, page, due).await;
        due = fetched.done.saturating_add(bench.job.scaled(page.pause));
        if page.pause.is_zero() {
            // Pauses of nothing must not keep others from their turn.
            tokio::task::yield_now().await;
        }
    }
}

/// Counts a user as there for as long as it lives.
struct There<'b>(&'b Bench);

impl<'b> There<'b> {
    fn new(bench: &'b Bench) -> Self {
        bench.board.come();
        Self(bench)
    }
}

impl Drop for There<'_> {
    fn drop(&mut self) {
        self.0.board.leave();
    }
}

async fn finish(mut tasks: JoinSet<()>) {
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
