//! The encoding of runs of blocks, for snapshots and messages between switches.
//!
//! ```text
//! runs = count (slot (0 | 1 parent:8 bytes) count (block:8 bytes tokens)*)*
//! ```

use crate::cache::{Block, BlockRun};
use crate::id::{NodeId, TargetId};
use crate::wire::{Wire, WireError, put};
use alloc::vec::Vec;

/// The largest number of blocks in a run that is read.
const BLOCKS_MAX: usize = 1 << 24;

pub(crate) fn put_runs(out: &mut Vec<u8>, runs: &[(NodeId, BlockRun)]) {
    put(out, runs.len() as u64);
    for (node, BlockRun { parent, blocks }) in runs {
        put(out, node.0.into());
        out.push(u8::from(parent.is_some()));
        parent.iter().for_each(|parent| out.extend_from_slice(&parent.0.to_le_bytes()));
        put(out, blocks.len() as u64);
        for block in blocks {
            out.extend_from_slice(&block.id.0.to_le_bytes());
            put(out, block.tokens.into());
        }
    }
}

/// Reads at most `runs_max` runs.
pub(crate) fn read_runs(wire: &mut Wire<'_>, runs_max: usize) -> Result<Vec<(NodeId, BlockRun)>, WireError> {
    let count = wire.count("number of runs", runs_max)?;
    let run = |_| {
        let node = wire.node()?;
        let has_parent = wire.one_of(&[false, true], "flag")?;
        let parent = if has_parent { Some(TargetId(wire.word("block")?)) } else { None };
        let count = wire.count("number of blocks", BLOCKS_MAX)?;
        let block =
            |_| Ok(Block { id: TargetId(wire.word("block")?), tokens: wire.small("number of tokens")? });
        let blocks = (0..count).map(block).collect::<Result<_, WireError>>()?;
        Ok((node, BlockRun { parent, blocks }))
    };
    (0..count).map(run).collect()
}
