//! Tests that routes with edits, and connections that may reach them, are relayed.

use super::{Bench, GET, key};
use crate::edits::{DirectReply, Edits};
use crate::handoff::mechanism::{Mechanism, MechanismSetting};
use crate::routes::Route;
use larder_core::rules::Matcher;

/// Mechanism and reason of a connection that asks for `GET`'s target, where `path` is edited.
fn placed(path: &str, setting: MechanismSetting) -> (Mechanism, &'static str, bool) {
    let bench = Bench::new(|config| {
        config.handoff.setting = setting;
        let answer = DirectReply::respond(403, "", "text/plain").expect("an answer");
        let matcher = Matcher::new().path(path).expect("a path");
        let edits = Edits { answer: Some(answer), ..Edits::default() };
        config.routes = vec![Route { edits, ..Route::new("edited", matcher) }];
    });
    bench.punt(key(1), true, 1, GET);
    let placed =
        bench.edge.take_pending_accept(key(1).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert!(bench.notes(|notes| notes.targets.is_empty()), "the plane decides nothing by itself");
    assert_eq!(bench.load(), 0, "nobody was asked");
    (placed.delivery.mechanism, placed.delivery.reason.name(), placed.outcome.is_none())
}

#[tokio::test]
async fn edited_requests_are_relayed_undecided() {
    for setting in
        [MechanismSetting::Auto, MechanismSetting::Cookie, MechanismSetting::Repair, MechanismSetting::Splice]
    {
        assert_eq!(placed("*", setting), (Mechanism::Relay, "edited", true), "{setting:?}");
        assert_eq!(placed("/elsewhere", setting), (Mechanism::Relay, "edits_later", true), "{setting:?}");
    }
}
