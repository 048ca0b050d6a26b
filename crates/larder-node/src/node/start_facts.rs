//! Facts that a node logs at its start.

use larder_core::Bytes;

/// Contents, processor and memory of a node. The facts of a modelled store or processor say that it is modelled.
#[derive(Debug)]
pub struct StartFacts {
    /// Fields of the store: kind, place and read mode.
    pub store: String,
    /// Fields of the processor.
    pub(super) processor: String,
    /// Number of programs that answer requests.
    pub(super) programs: usize,
    /// Size of the memory cache.
    pub(super) memory: Bytes,
}

impl StartFacts {
    /// Logs a line for each fact.
    pub fn log(&self) {
        let Self { store, processor, programs, memory } = self;
        tracing::info!("store: ready {store}");
        tracing::info!("processor: ready {processor}");
        if *programs > 0 {
            tracing::info!(programs, "dynamic content: ready");
        }
        tracing::info!(size = %format_args!("{:#}", memory.exact()), "memory cache: ready");
    }
}
