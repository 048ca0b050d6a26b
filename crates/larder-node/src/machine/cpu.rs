//! The node's processor: a modelled one, or the cores of this machine.
//!
//! A modelled node has one processor, which serves jobs in order of arrival, or in turns if a turn is set. So
//! several nodes on one machine have one processor each, whatever the machine has.

use super::device_queue::DeviceQueue;
use larder_core::cost::ProcessorModel;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A node's processor.
#[derive(Debug)]
pub(crate) enum Cpu {
    /// A modelled processor.
    Modelled(ModelledCpu),
    /// This number of cores of this machine.
    Real(u16),
}

/// A modelled processor.
#[derive(Debug)]
pub(crate) struct ModelledCpu {
    model: ProcessorModel,
    queue: DeviceQueue,
    /// Longest time that a job uses the processor while others wait; `MAX` runs each job to its end.
    turn: Duration,
}

impl Cpu {
    pub(crate) fn modelled(model: ProcessorModel, turn: Option<Duration>) -> Self {
        Self::Modelled(ModelledCpu { model, queue: DeviceQueue::new(), turn: turn.unwrap_or(Duration::MAX) })
    }

    /// Creates a processor of all cores that this process may use.
    pub(crate) fn real() -> Self {
        let cores = std::thread::available_parallelism();
        Self::Real(cores.map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX)))
    }

    /// Uses a modelled processor for a reply with `len` bytes of contents. A real processor is used by sending
    /// the reply.
    pub(crate) async fn reply(&self, len: u64) {
        if let Self::Modelled(cpu) = self {
            cpu.queue.use_for(cpu.model.reply_time(len)).await;
        }
    }

    /// Uses a modelled processor for work that takes `time` at speed 1. A real processor does nothing.
    pub(crate) async fn work(&self, time: Duration) {
        if let Self::Modelled(cpu) = self {
            cpu.queue.use_in_turns(scale_time(time, cpu.model.speed), cpu.turn).await;
        }
    }

    /// Returns whether replies use a modelled processor.
    pub(crate) fn is_modelled(&self) -> bool {
        matches!(self, Self::Modelled(_))
    }

    /// Returns the number of processors.
    pub(crate) fn count(&self) -> u16 {
        match self {
            Self::Modelled(_) => 1,
            Self::Real(cores) => *cores,
        }
    }

    /// Returns the busy time until now. For a real processor, this is the CPU time of the whole process.
    pub(crate) fn busy(&self) -> Duration {
        match self {
            Self::Modelled(cpu) => cpu.queue.busy(),
            Self::Real(_) => process_time(),
        }
    }

    /// Returns the number of jobs that run or wait.
    pub(crate) fn waiting(&self) -> u32 {
        match self {
            Self::Modelled(cpu) => cpu.queue.waiting(),
            Self::Real(_) => 0,
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Modelled(cpu) => {
                format!("kind=model reply_8KiB={:?}", cpu.model.reply_time(8 << 10))
            }
            Self::Real(cores) => format!("kind=real cores={cores}"),
        }
    }
}

fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn scale_time(time: Duration, speed: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() / speed).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
