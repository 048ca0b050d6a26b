//! The text format: `name=value` or `name:value`, separated by commas.

use super::{OrcaReport, SignalFailure};

pub(super) fn read(text: &str) -> Result<OrcaReport, SignalFailure> {
    let mut orca = OrcaReport::default();
    for pair in text.split(',') {
        let (name, value) = pair.split_once(['=', ':']).ok_or(SignalFailure::Malformed)?;
        let name = name.trim();
        if name.is_empty() || name.ends_with('.') {
            return Err(SignalFailure::Malformed);
        }
        orca.put(name, value.trim().parse().map_err(|_| SignalFailure::Malformed)?)?;
    }
    Ok(orca)
}
