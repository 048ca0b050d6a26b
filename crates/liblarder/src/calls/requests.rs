//! The life of a request: decide, retry, become long-lived, done.

#![expect(unsafe_code, reason = "functions of a C interface")]

use crate::arguments::{Argument, Place, input, optional, output, several};
use crate::calls::at;
use crate::convert::{self, Keys};
use crate::fault::{Fault, LARDER_IGNORED, LARDER_OK, LARDER_REFUSED_LIMIT, LARDER_REFUSED_NO_NODE, guard};
use crate::handle::Handle;
use crate::types::{Decision, Feedback, Request};
use larder_embed::{Outcome, Refusal};
use std::time::Duration;

/// Returns the parts of a request that are behind pointers.
///
/// # Safety
/// As for [`Argument::read`].
pub(super) unsafe fn keys(request: &Request) -> Result<Keys<'_>, Fault> {
    let key = several("request.key", request.key.cast::<u8>(), request.key_len);
    let exclude = several("request.exclude", request.exclude, request.exclude_len);
    // SAFETY: the caller's promise is the same.
    let (key, exclude) = unsafe { (key, exclude).read() }?;
    Ok(Keys { key: (!request.key.is_null()).then_some(key), exclude })
}

fn answer(outcome: Outcome, place: &mut Place<Decision>) -> i32 {
    match outcome {
        Outcome::Start(decision) => {
            place.set(convert::decision_for_host(&decision));
            LARDER_OK
        }
        Outcome::Refused(refusal) => {
            place.set(Decision::default());
            match refusal {
                Refusal::NoNode => LARDER_REFUSED_NO_NODE,
                Refusal::Limit => LARDER_REFUSED_LIMIT,
            }
        }
    }
}

/// Decides which node serves a request, and counts the request as load of that node. Allocates no memory for a known target.
///
/// LARDER_OK: the request starts at `decision->node`, and must be ended with larder_done. LARDER_REFUSED_NO_NODE and
/// LARDER_REFUSED_LIMIT: the request is refused, and nothing is counted. The library does not queue requests.
///
/// `now_ns` is the time of the host's monotonic clock. All calls on a dispatcher use the same clock.
///
/// # Safety
/// `dispatcher` and `request` are valid, with the pointers in `request`, and `decision` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_decide(
    dispatcher: *const Handle,
    now_ns: u64,
    request: *const Request,
    decision: *mut Decision,
) -> i32 {
    guard(|| {
        let arguments =
            (input("dispatcher", dispatcher), input("request", request), output("decision", decision));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, request, mut place) = unsafe { arguments.read() }?;
        // SAFETY: as above.
        let keys = unsafe { keys(request) }?;
        let mut excluded = None;
        let facts = convert::facts(request, keys, &mut excluded)?;
        Ok(answer(handle.0.decide(at(now_ns), &facts)?, &mut place))
    })
}

/// Moves a request that failed at `failed->node` to another node. `waited_ns` is the time from that decision to the failure.
///
/// LARDER_OK: the request is at `decision->node` now, and ends with that decision. LARDER_REFUSED_NO_NODE: no node is left, and the
/// request has ended. `decision` may be the same structure as `failed`.
///
/// # Safety
/// `dispatcher`, `request` and `failed` are valid, with the pointers in `request`, and `decision` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_retry(
    dispatcher: *const Handle,
    now_ns: u64,
    request: *const Request,
    failed: *const Decision,
    waited_ns: u64,
    decision: *mut Decision,
) -> i32 {
    guard(|| {
        let arguments = (
            input("dispatcher", dispatcher),
            input("request", request),
            input("failed", failed),
            output("decision", decision),
        );
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, request, failed, mut place) = unsafe { arguments.read() }?;
        // SAFETY: as above.
        let keys = unsafe { keys(request) }?;
        let mut excluded = None;
        let facts = convert::facts(request, keys, &mut excluded)?;
        let failed = convert::decision(failed)?;
        let outcome = handle.0.retry(at(now_ns), &facts, &failed, Duration::from_nanos(waited_ns))?;
        Ok(answer(outcome, &mut place))
    })
}

/// Ends a request: its last byte was sent, or it was aborted. Every request that larder_decide has started must be ended exactly
/// once. `feedback` is what the policy may learn, and may be null.
///
/// # Safety
/// `dispatcher` and `decision` are valid, and `feedback` is valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_done(
    dispatcher: *const Handle,
    now_ns: u64,
    decision: *const Decision,
    feedback: *const Feedback,
) -> i32 {
    guard(|| {
        let arguments =
            (input("dispatcher", dispatcher), input("decision", decision), optional("feedback", feedback));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, decision, feedback) = unsafe { arguments.read() }?;
        let decision = convert::decision(decision)?;
        let feedback = feedback.map(convert::feedback).transpose()?;
        handle.0.done(at(now_ns), &decision, feedback.as_ref())?;
        Ok(LARDER_OK)
    })
}

/// Marks a request as long-lived, such as a WebSocket or a stream: it leaves the admission limit and remains load of its node. The
/// call changes `decision`, with which the request ends. LARDER_IGNORED: the request is long-lived already, or its node has
/// `admission.long_lived.max_per_node` such requests.
///
/// # Safety
/// `dispatcher` is valid, and `decision` for reading and writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_long_lived(
    dispatcher: *const Handle,
    now_ns: u64,
    decision: *mut Decision,
) -> i32 {
    guard(|| {
        let arguments = (input("dispatcher", dispatcher), output("decision", decision));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (handle, mut place) = unsafe { arguments.read() }?;
        let decision = place.get();
        if handle.0.become_long_lived(at(now_ns), &convert::decision(&decision)?)?.is_none() {
            return Ok(LARDER_IGNORED);
        }
        place.set(Decision { long_lived: 1, ..decision });
        Ok(LARDER_OK)
    })
}
