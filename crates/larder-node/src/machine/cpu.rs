//! The node's processor: a modelled one, or the cores of this machine.
//!
//! A modelled node has one processor, which serves jobs in order of arrival, or in turns if a turn is set. So
//! several nodes on one machine have one processor each, whatever the machine has. Real work runs on the
//! runtime's blocking threads, at most as many at one time as the node has processors. It is measured in the
//! thread's own CPU time, so on a crowded machine it takes longer, as real work does.

use super::device_queue::DeviceQueue;
use larder_core::cost::ProcessorModel;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Bytes that are hashed between two looks at the clock: a few microseconds of work.
const CHUNK: usize = 32 << 10;

/// A node's processor.
#[derive(Debug)]
pub(crate) enum Cpu {
    Modelled(ModelledCpu),
    Real(RealCpu),
}

/// A modelled processor.
#[derive(Debug)]
pub(crate) struct ModelledCpu {
    model: ProcessorModel,
    queue: DeviceQueue,
    /// Longest time that a job uses the processor while others wait; `MAX` runs each job to its end.
    turn: Duration,
}

/// The cores of this machine.
#[derive(Debug)]
pub(crate) struct RealCpu {
    permits: Arc<Semaphore>,
    processors: u16,
    speed: f64,
    turn: Duration,
    waiting: AtomicU32,
}

impl Cpu {
    pub(crate) fn modelled(model: ProcessorModel, turn: Option<Duration>) -> Self {
        Self::Modelled(ModelledCpu { model, queue: DeviceQueue::new(), turn: turn.unwrap_or(Duration::MAX) })
    }

    /// Creates a processor of `processors` cores of this machine (0: all cores), which is `speed` times as fast
    /// as they are.
    pub(crate) fn real(processors: u16, speed: f64, turn: Option<Duration>) -> Self {
        let processors = if processors == 0 { cores() } else { processors };
        Self::Real(RealCpu {
            permits: Arc::new(Semaphore::new(usize::from(processors))),
            processors,
            speed,
            turn: turn.unwrap_or(Duration::MAX),
            waiting: AtomicU32::new(0),
        })
    }

    /// Uses a modelled processor for a reply with `len` bytes of contents. A real processor is used by sending
    /// the reply.
    pub(crate) async fn reply(&self, len: u64) {
        if let Self::Modelled(cpu) = self {
            cpu.queue.use_for(cpu.model.reply_time(len)).await;
        }
    }

    /// Returns whether replies use a modelled processor.
    pub(crate) fn is_modelled(&self) -> bool {
        matches!(self, Self::Modelled(_))
    }

    /// Performs work that takes `time` on a processor of speed 1. If the future is dropped, the work stops
    /// soon.
    pub(crate) async fn work(&self, time: Duration) {
        match self {
            Self::Modelled(cpu) => cpu.queue.use_in_turns(scale_time(time, cpu.model.speed), cpu.turn).await,
            Self::Real(cpu) => cpu.work(scale_time(time, cpu.speed)).await,
        }
    }

    /// Returns the number of processors.
    pub(crate) fn count(&self) -> u16 {
        match self {
            Self::Modelled(_) => 1,
            Self::Real(cpu) => cpu.processors,
        }
    }

    /// Returns the busy time until now. For a real processor, this is the CPU time of the whole process.
    pub(crate) fn busy(&self) -> Duration {
        match self {
            Self::Modelled(cpu) => cpu.queue.busy(),
            Self::Real(_) => clock(ClockId::ProcessCPUTime),
        }
    }

    /// Returns the number of jobs that run or wait.
    pub(crate) fn waiting(&self) -> u32 {
        match self {
            Self::Modelled(cpu) => cpu.queue.waiting(),
            Self::Real(cpu) => cpu.waiting.load(Relaxed),
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Modelled(cpu) => {
                format!("kind=model reply_8KiB={:?}", cpu.model.reply_time(8 << 10))
            }
            Self::Real(cpu) => format!("kind=real cores={}", cpu.processors),
        }
    }
}

impl RealCpu {
    async fn work(&self, time: Duration) {
        self.waiting.fetch_add(1, Relaxed);
        let mut job = Job { cpu: self, is_cancelled: Arc::default() };
        let mut remaining = time;
        while !remaining.is_zero() {
            let turn = remaining.min(self.turn);
            job.run_turn(turn).await;
            remaining -= turn;
        }
    }
}

/// A job on real processors. Dropping it stops the job.
struct Job<'a> {
    cpu: &'a RealCpu,
    is_cancelled: Arc<AtomicBool>,
}

impl Job<'_> {
    async fn run_turn(&mut self, time: Duration) {
        // The semaphore is never closed. If it were, there would be no work to wait for.
        let Ok(permit) = Arc::clone(&self.cpu.permits).acquire_owned().await else { return };
        let is_cancelled = Arc::clone(&self.is_cancelled);
        // This fails only when the runtime shuts down.
        let _ = tokio::task::spawn_blocking(move || {
            use_cpu(time, &is_cancelled);
            drop(permit);
        })
        .await;
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Relaxed);
        self.cpu.waiting.fetch_sub(1, Relaxed);
    }
}

/// Uses `time` of this thread's CPU time, or less if the job is cancelled.
fn use_cpu(time: Duration, is_cancelled: &AtomicBool) {
    let buffer = [0x5A_u8; CHUNK];
    let end = clock(ClockId::ThreadCPUTime).saturating_add(time);
    let mut hash = 0;
    while clock(ClockId::ThreadCPUTime) < end && !is_cancelled.load(Relaxed) {
        hash = black_box(xxhash_rust::xxh3::xxh3_64_with_seed(black_box(&buffer), hash));
    }
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn scale_time(time: Duration, speed: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() / speed).unwrap_or(Duration::MAX)
}

/// Returns the number of cores that this process may use, according to the system.
fn cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn real_work_takes_processor_time_and_ends_when_cancelled() {
        let cpu = Cpu::real(1, 2.0, Some(Duration::from_millis(5)));
        let before = cpu.busy();
        cpu.work(Duration::from_millis(40)).await;
        assert!(cpu.busy() - before >= Duration::from_millis(20), "40 ms at speed 2");
        let is_cancelled =
            tokio::time::timeout(Duration::from_millis(5), cpu.work(Duration::from_secs(3_600))).await;
        assert!(is_cancelled.is_err());
        assert_eq!(cpu.waiting(), 0);
        let freed = tokio::time::timeout(Duration::from_secs(60), cpu.work(Duration::from_millis(1))).await;
        assert!(freed.is_ok(), "the processor is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_modelled_processor_queues_replies_and_work_together() {
        let cpu = Cpu::modelled(ProcessorModel { speed: 2.0, ..ProcessorModel::default() }, None);
        let start = tokio::time::Instant::now();
        tokio::join!(cpu.work(Duration::from_millis(100)), cpu.reply(8 << 10), cpu.reply(8 << 10));
        // 50 ms + 2 * 0.465 ms, and a timer that rounds up to 1 ms.
        let elapsed = start.elapsed().as_micros();
        assert!((50_930..=52_000).contains(&elapsed), "{elapsed}");
        assert_eq!(cpu.busy(), Duration::from_micros(50_930));
    }
}
