//! Wrong arguments: each call returns an error with a text, and changes nothing.

use super::*;
use larder_core::nodes::LoadReport;
use larder_core::{CacheEvent, NodeSpec, NodeState, Weight};
use std::time::Duration;

fn range(text: &str) -> EmbedError {
    EmbedError::Range(text.to_owned())
}

fn handle(raw: u32) -> NodeHandle {
    NodeHandle::from_raw(raw).expect("not 0")
}

#[test]
fn ids_have_slots() {
    assert_eq!(NodeHandle::from_raw(0), None);
    let id = handle(0x0003_0002);
    assert_eq!((id.get(), id.slot(), id.to_string()), (0x0003_0002, 2, "0x30002".to_owned()));
    assert_eq!(NodeHandle::new(3, 2), id);
}

#[test]
fn config_that_was_changed_is_an_error() {
    let mut config: EmbeddedConfig = "nodes = [\"a\", \"b\"]".parse().expect("a config");
    config.nodes.push(NodeSpec::named("a"));
    let error = Embedded::new(config).expect_err("two nodes have the same name");
    assert!(error.to_string().starts_with("cannot use the config: "), "{error}");
}

#[test]
fn facts() {
    let dispatcher = embedded("nodes = [\"a\", \"b\"]\n");
    let a = dispatcher.find("a").expect("it is there");
    let many = [a; EXCLUDE_MAX + 1];
    let unknown = [handle(7)];
    for (facts, error) in [
        (RequestFacts { exclude: &many, ..target(1) }, range("exclude has more than 64 nodes")),
        (RequestFacts { exclude: &unknown, ..target(1) }, EmbedError::UnknownNode(unknown[0])),
        (
            RequestFacts { sticky: Some(handle(u32::MAX)), ..target(1) },
            EmbedError::UnknownNode(handle(u32::MAX)),
        ),
        (
            RequestFacts { origin: Some(handle(0x0001_00FF)), ..target(1) },
            EmbedError::UnknownNode(handle(0x0001_00FF)),
        ),
        (
            RequestFacts { sticky: Some(a), origin: Some(a), ..target(1) },
            range("a request has a sticky node or an origin, not both"),
        ),
    ] {
        assert_eq!(dispatcher.decide(at(1), &facts), Err(error.clone()));
        assert_eq!(dispatcher.explain(at(1), &facts), Err(error));
    }
    assert!(dispatcher.decide(at(1), &RequestFacts { exclude: &many[1..], ..target(1) }).is_ok());
    assert_eq!(EmbedError::UnknownNode(unknown[0]).to_string(), "no node has had the id 0x7");
    assert_eq!(dispatcher.outstanding(), 1, "only the valid request has started");
}

#[test]
fn requests_that_are_not_in_flight() {
    let dispatcher = embedded("nodes = [\"a\", \"b\"]\n");
    let flying = start(&dispatcher, 0, &target(1));
    let other = ["a", "b"].map(|name| dispatcher.find(name).expect("it is there"));
    let other = other.into_iter().find(|node| *node != flying.node).expect("there are two");
    let no_long = Decision { long_lived: true, ..flying };
    for (decision, error) in [
        (Decision { node: other, ..flying }, EmbedError::NoRequest(other)),
        (no_long, EmbedError::NoRequest(flying.node)),
        (Decision { node: handle(9), ..flying }, EmbedError::UnknownNode(handle(9))),
    ] {
        assert_eq!(dispatcher.done(at(1), &decision, None), Err(error.clone()));
        assert_eq!(dispatcher.become_long_lived(at(1), &decision), Err(error.clone()));
        assert_eq!(dispatcher.retry(at(1), &target(1), &decision, Duration::ZERO), Err(error));
    }
    let bad = Feedback { status: STATUS_MAX + 1, ..Feedback::default() };
    assert_eq!(dispatcher.done(at(1), &flying, Some(&bad)), Err(range("1000 is no HTTP status")));
    let huge = Feedback {
        elapsed: Duration::MAX,
        first_byte: Some(Duration::MAX),
        bytes: u64::MAX,
        status: STATUS_MAX,
        ..Feedback::default()
    };
    let long = dispatcher.become_long_lived(at(1), &flying).expect("it is in flight").expect("it changes");
    assert_eq!(dispatcher.retry(at(1), &target(1), &long, Duration::MAX), Err(EmbedError::LongLived));
    assert_eq!(dispatcher.done(at(u64::MAX), &long, Some(&huge)), Ok(()), "the request is still there");
    let late = start(&dispatcher, 0, &RequestFacts { class: ServiceClass::Dcb, ..target(1) });
    assert_eq!(dispatcher.done(at(0), &late, Some(&huge)), Ok(()), "a clock that goes back is no error");
}

#[test]
fn members_and_signals() {
    let dispatcher = embedded("nodes = [\"a\", \"b\"]\n");
    let before = dispatcher.status(at(0));
    let add = |name: String| dispatcher.add(at(1), NodeSpec::named(name));
    assert_eq!(add("n".repeat(NAME_BYTES_MAX + 1)), Err(range("a node's name has 1025 bytes: at most 1024")));
    for name in ["", "a"] {
        assert!(matches!(add(name.to_owned()), Err(EmbedError::Join(_))), "'{name}'");
    }
    let error = dispatcher.find(&"\n".repeat(100)).expect_err("no such node");
    assert_eq!(error.to_string(), format!("no node has the name '{}'", "\\n".repeat(60)));
    for id in [handle(1), handle(0x0002_0000), handle(u32::MAX)] {
        let unknown = EmbedError::UnknownNode(id);
        assert_eq!(dispatcher.state(id), Err(unknown.clone()));
        assert_eq!(dispatcher.set_state(at(1), id, NodeState::Up), Err(unknown.clone()));
        assert_eq!(dispatcher.set_weight(at(1), id, Weight::ONE), Err(unknown.clone()));
        assert_eq!(dispatcher.set_backup(at(1), id, true), Err(unknown.clone()));
        assert_eq!(dispatcher.report(at(1), id, LoadReport::default()), Err(unknown.clone()));
        assert_eq!(dispatcher.cache_event(at(1), id, TargetId(7), CacheEvent::Stored), Err(unknown.clone()));
        assert_eq!(dispatcher.set_table(at(1), [(TargetId(7), Some(id))]), Err(unknown));
    }
    assert_eq!(dispatcher.status(at(0)), before, "nothing has changed");
}
