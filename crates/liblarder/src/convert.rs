//! Conversions between the structures of the header and the types of `larder_embed`.

use crate::fault::{Fault, LARDER_ERROR_NODE, LARDER_IGNORED, LARDER_OK};
use crate::types::{
    Decision, Feedback, LARDER_CACHE_HIT, LARDER_CACHE_MISS, LARDER_CACHE_UNKNOWN, LARDER_EVENT_EVICTED,
    LARDER_EVENT_GONE, LARDER_EVENT_STORED, NodeHandle, NodeSpec, Request, SignalValue, TableRow,
};
use larder_core::nodes::{LoadReport, Signal};
use larder_core::{Bytes, CacheEvent, CacheResult, NodeState, Reason, ServiceClass, TargetId, Weight};
use larder_embed::{EXCLUDE_MAX, RequestFacts};
use std::ffi::CStr;
use std::time::Duration;

/// The parts of a request that a call reads through pointers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keys<'a> {
    /// The target key; `None` if the host gives the id.
    pub(crate) key: Option<&'a [u8]>,
    /// The nodes at which the request has failed.
    pub(crate) exclude: &'a [NodeHandle],
}

/// Memory on the stack for the nodes of a request's `exclude`; `None` while there are none.
pub(crate) type ExcludedHandles = Option<[larder_embed::NodeHandle; EXCLUDE_MAX]>;

/// Returns the facts of a request.
pub(crate) fn facts<'a>(
    request: &Request,
    keys: Keys<'_>,
    room: &'a mut ExcludedHandles,
) -> Result<RequestFacts<'a>, Fault> {
    Ok(RequestFacts {
        target: keys.key.map_or(TargetId(request.target), TargetId::of),
        class: class(request.service_class)?,
        lasting: flag("lasting", request.lasting)?,
        sticky: larder_embed::NodeHandle::from_raw(request.sticky),
        origin: larder_embed::NodeHandle::from_raw(request.origin),
        exclude: excluded(keys.exclude, room)?,
    })
}

fn excluded<'a>(
    ids: &[NodeHandle],
    room: &'a mut ExcludedHandles,
) -> Result<&'a [larder_embed::NodeHandle], Fault> {
    let Some(first) = ids.first() else { return Ok(&[]) };
    if ids.len() > EXCLUDE_MAX {
        return Err(Fault::range(format!("exclude has more than {EXCLUDE_MAX} nodes")));
    }
    let handles = room.insert([node(*first)?; EXCLUDE_MAX]);
    for (handle, id) in handles.iter_mut().zip(ids) {
        *handle = node(*id)?;
    }
    Ok(&handles[..ids.len()])
}

/// Returns the node with this id.
pub(crate) fn node(id: NodeHandle) -> Result<larder_embed::NodeHandle, Fault> {
    larder_embed::NodeHandle::from_raw(id)
        .ok_or_else(|| Fault::new(LARDER_ERROR_NODE, format!("no node has had the id {id:#x}")))
}

/// Returns a decision that the host passes back. An unknown reason is no error, because no call uses it.
pub(crate) fn decision(decision: &Decision) -> Result<larder_embed::Decision, Fault> {
    Ok(larder_embed::Decision {
        target: TargetId(decision.target),
        class: class(decision.service_class)?,
        long_lived: flag("long_lived", decision.long_lived)?,
        node: node(decision.node)?,
        reason: Reason::ALL.get(usize::from(decision.reason)).copied().unwrap_or(Reason::Random),
    })
}

/// Returns a decision for the host.
pub(crate) fn decision_for_host(decision: &larder_embed::Decision) -> Decision {
    Decision {
        target: decision.target.0,
        node: decision.node.get(),
        reason: reason_code(decision.reason),
        service_class: decision.class.index() as u8,
        long_lived: u8::from(decision.long_lived),
        reserved: 0,
    }
}

/// Returns the result of a request.
pub(crate) fn feedback(feedback: &Feedback) -> Result<larder_embed::Feedback, Fault> {
    let first_byte_ns = feedback.first_byte_ns;
    Ok(larder_embed::Feedback {
        failed: flag("failed", feedback.failed)?,
        cache: match feedback.cache {
            LARDER_CACHE_UNKNOWN => None,
            LARDER_CACHE_HIT => Some(CacheResult::Hit),
            LARDER_CACHE_MISS => Some(CacheResult::Miss),
            other => return Err(Fault::range(format!("{other} is no result of a cache"))),
        },
        elapsed: Duration::from_nanos(feedback.elapsed_ns),
        first_byte: (first_byte_ns > 0).then(|| Duration::from_nanos(first_byte_ns)),
        bytes: feedback.bytes,
        status: feedback.status,
    })
}

/// Returns the configuration of a node that joins.
pub(crate) fn node_spec(name: &str, spec: &NodeSpec) -> Result<larder_core::NodeSpec, Fault> {
    Ok(larder_core::NodeSpec {
        weight: match spec.weight_milli {
            0 => Weight::ONE,
            milli => weight(milli)?,
        },
        cache: Bytes(spec.cache_bytes),
        backup: flag("backup", spec.backup)?,
        ..larder_core::NodeSpec::named(name)
    })
}

/// Returns a load report with these values.
pub(crate) fn load_report(values: &[SignalValue]) -> Result<LoadReport, Fault> {
    let mut report = LoadReport::default();
    for SignalValue { signal, value } in values {
        let known = usize::try_from(*signal).ok().and_then(|index| Signal::ALL.get(index));
        let known = known.ok_or_else(|| Fault::range(format!("{signal} is no signal")))?;
        put(&mut report, *known, *value)?;
    }
    Ok(report)
}

fn put(report: &mut LoadReport, signal: Signal, value: u64) -> Result<(), Fault> {
    let share = || Some(u16::try_from(value.min(1_000)).unwrap_or(1_000));
    let count = || {
        let count = u32::try_from(value);
        count.map(Some).map_err(|_| Fault::range(format!("{} = {value} exceeds 32 bits", signal.name())))
    };
    match signal {
        Signal::Cpu => report.cpu_permille = share(),
        Signal::Disk => report.disk_permille = share(),
        Signal::Memory => report.memory_permille = share(),
        Signal::Processes => report.processes = count()?,
        Signal::ServiceTime => report.service_us = count()?,
        Signal::DiskBytes => report.disk_bytes_per_s = Some(value),
        Signal::Paging => report.paging_per_s = count()?,
        Signal::Queue => report.queue = count()?,
        Signal::App(which) => report.app[usize::from(which)] = count()?,
    }
    Ok(())
}

/// Returns a row of the routing table: the target and its owner.
pub(crate) fn table_row(row: &TableRow) -> (TargetId, Option<larder_embed::NodeHandle>) {
    (TargetId(row.target), larder_embed::NodeHandle::from_raw(row.node))
}

pub(crate) fn weight(milli: u32) -> Result<Weight, Fault> {
    Weight::from_milli(milli)
        .ok_or_else(|| Fault::range(format!("a weight of {milli} is out of range: 1 to 100000, in 1/1000")))
}

fn class(number: u8) -> Result<ServiceClass, Fault> {
    let known = ServiceClass::ALL.get(usize::from(number)).copied();
    known.ok_or_else(|| Fault::range(format!("{number} is no service class")))
}

pub(crate) fn flag(name: &str, value: u8) -> Result<bool, Fault> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::range(format!("{name} is {other}: 0 or 1"))),
    }
}

pub(crate) fn node_state(number: u8) -> Result<NodeState, Fault> {
    let states = [NodeState::Up, NodeState::Draining, NodeState::Down, NodeState::Removed];
    let known = states.get(usize::from(number)).copied();
    known.ok_or_else(|| Fault::range(format!("{number} is no state of a node")))
}

pub(crate) fn cache_event(number: u8) -> Result<CacheEvent, Fault> {
    match number {
        LARDER_EVENT_STORED => Ok(CacheEvent::Stored),
        LARDER_EVENT_EVICTED => Ok(CacheEvent::Evicted),
        LARDER_EVENT_GONE => Ok(CacheEvent::Gone),
        other => Err(Fault::range(format!("{other} is no cache event"))),
    }
}

/// Returns the code of a call that has changed something, or nothing.
pub(crate) const fn changed(changed: bool) -> i32 {
    if changed { LARDER_OK } else { LARDER_IGNORED }
}

/// Returns the code of a reason: its index in the list of all reasons.
fn reason_code(reason: Reason) -> u8 {
    reason as u8
}

/// The names of the reasons, by code.
const REASON_NAMES: [&CStr; Reason::ALL.len()] = [
    c"random",
    c"turn",
    c"least_loaded",
    c"hash",
    c"first",
    c"lost",
    c"local",
    c"shrink",
    c"migrate",
    c"replicate",
    c"retry",
    c"core",
    c"owner",
    c"origin",
    c"oldest",
    c"overflow",
    c"quickest",
    c"reuse",
    c"sticky",
    c"sticky_full",
    c"sticky_down",
    c"sticky_drained",
    c"placed",
];

/// Returns the name of a reason; `None` for another number.
pub(crate) fn reason_name(code: u8) -> Option<&'static CStr> {
    REASON_NAMES.get(usize::from(code)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LARDER_SIGNAL_APP1, LARDER_SIGNAL_QUEUE};

    #[test]
    fn reasons_have_their_names() {
        for reason in Reason::ALL {
            let name = reason_name(reason_code(reason)).expect("a name");
            assert_eq!(name.to_str(), Ok(reason.name()));
        }
        assert_eq!(reason_name(Reason::ALL.len() as u8), None);
    }

    #[test]
    fn signals_have_the_numbers_of_the_header() {
        assert_eq!(Signal::ALL[LARDER_SIGNAL_QUEUE as usize], Signal::Queue);
        assert_eq!(Signal::ALL[LARDER_SIGNAL_APP1 as usize], Signal::App(0));
        for (index, signal) in Signal::ALL.into_iter().enumerate() {
            let mut report = LoadReport::default();
            put(&mut report, signal, 7 + index as u64).expect("in range");
            assert_eq!(report.get(signal), Some(7 + index as u64), "{signal}");
        }
    }

    #[test]
    fn decisions_come_back_as_they_were() {
        for (reason, class) in Reason::ALL.into_iter().zip(ServiceClass::ALL.into_iter().cycle()) {
            let original = larder_embed::Decision {
                target: TargetId(u64::MAX),
                node: node(0x0001_0002).expect("an id"),
                reason,
                class,
                long_lived: class == ServiceClass::N,
            };
            assert_eq!(decision(&decision_for_host(&original)).ok(), Some(original));
        }
        let unknown_reason = Decision { node: 0x0001_0002, reason: u8::MAX, ..Decision::default() };
        assert!(decision(&unknown_reason).is_ok());
    }

    #[test]
    fn excluded_nodes_are_all_passed() {
        for count in [0, 1, 2, EXCLUDE_MAX] {
            let ids: Vec<NodeHandle> = (1..=count as u32).collect();
            let mut room = None;
            let passed = excluded(&ids, &mut room).expect("valid ids");
            assert!(passed.iter().map(|node| node.get()).eq(ids.iter().copied()), "{count}");
        }
        assert!(excluded(&[1; EXCLUDE_MAX + 1], &mut None).is_err());
        assert!(excluded(&[1, 0], &mut None).is_err());
    }
}
