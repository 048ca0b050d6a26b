//! The text form: `name=value` or `name:value`, separated by commas.

use super::{Cause, Orca};

pub(super) fn read(text: &str) -> Result<Orca, Cause> {
    let mut orca = Orca::default();
    for pair in text.split(',') {
        let (name, value) = pair.split_once(['=', ':']).ok_or(Cause::Malformed)?;
        let name = name.trim();
        if name.is_empty() || name.ends_with('.') {
            return Err(Cause::Malformed);
        }
        orca.put(name, value.trim().parse().map_err(|_| Cause::Malformed)?)?;
    }
    Ok(orca)
}
