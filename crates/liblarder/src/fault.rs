//! Error codes, their messages, and the guard around each call.

use larder_embed::EmbedError;
use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Success.
pub const LARDER_OK: i32 = 0;
/// The request is refused: no node takes requests. Reply 503.
pub const LARDER_REFUSED_NO_NODE: i32 = 1;
/// The request is refused: the admission limit S is reached. Reply 503, or hold the request and ask again later.
pub const LARDER_REFUSED_LIMIT: i32 = 2;
/// The call changed nothing: no policy uses the signal, or the node already has the state.
pub const LARDER_IGNORED: i32 = 3;
/// A pointer is null or misaligned.
pub const LARDER_ERROR_POINTER: i32 = -1;
/// A number is out of range.
pub const LARDER_ERROR_RANGE: i32 = -2;
/// A text is not UTF-8.
pub const LARDER_ERROR_TEXT: i32 = -3;
/// The config cannot be used.
pub const LARDER_ERROR_CONFIG: i32 = -4;
/// There is no such node, or it was removed.
pub const LARDER_ERROR_NODE: i32 = -5;
/// The node cannot be added: its name is empty or taken, or the table is full.
pub const LARDER_ERROR_JOIN: i32 = -6;
/// The node has no such request in flight.
pub const LARDER_ERROR_REQUEST: i32 = -7;
/// The buffer is too small. Nothing was written.
pub const LARDER_ERROR_BUFFER: i32 = -8;
/// The bytes are not a snapshot of this version.
pub const LARDER_ERROR_SNAPSHOT: i32 = -9;
/// A bug in the library. The call had no effect, or a part of its effect.
pub const LARDER_ERROR_PANIC: i32 = -10;

/// An error: its code and its message.
#[derive(Debug)]
pub(crate) struct Fault {
    code: i32,
    message: Cow<'static, str>,
}

impl Fault {
    pub(crate) fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn range(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(LARDER_ERROR_RANGE, message)
    }
}

impl From<EmbedError> for Fault {
    fn from(error: EmbedError) -> Self {
        let code = match &error {
            EmbedError::Config(_) => LARDER_ERROR_CONFIG,
            EmbedError::Range(_) => LARDER_ERROR_RANGE,
            EmbedError::UnknownNode(_) | EmbedError::UnknownName(_) | EmbedError::RemovedNode(_) => {
                LARDER_ERROR_NODE
            }
            EmbedError::Join(_) => LARDER_ERROR_JOIN,
            EmbedError::NoRequest(_) | EmbedError::LongLived => LARDER_ERROR_REQUEST,
            EmbedError::Snapshot(_) => LARDER_ERROR_SNAPSHOT,
        };
        let message = match error {
            EmbedError::NoRequest(id) => format!(
                "no such request is in flight at the node with the id {id}: larder_done is called once"
            ),
            other => other.to_string(),
        };
        Self::new(code, message)
    }
}

thread_local! {
    static LAST_MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns the message of this thread's last error; empty if there was none.
pub(crate) fn last_message() -> String {
    // A host may call while its thread ends.
    LAST_MESSAGE.try_with(|message| message.borrow().clone()).unwrap_or_default()
}

/// Stores the message that [`last_message`] returns.
pub(crate) fn remember(text: &str) {
    let _ = LAST_MESSAGE.try_with(|message| {
        let mut message = message.borrow_mut();
        message.clear();
        message.push_str(text);
    });
}

/// Makes a call and returns its code. Stores the message of an error. A panic ends here.
pub(crate) fn guard(call: impl FnOnce() -> Result<i32, Fault>) -> i32 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(code)) => code,
        Ok(Err(fault)) => {
            remember(&fault.message);
            fault.code
        }
        Err(payload) => {
            remember(&format!("bug in liblarder: {}", panic_text(&*payload)));
            // The payload's destructor might panic too.
            std::mem::forget(payload);
            LARDER_ERROR_PANIC
        }
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic")
}
