//! Tests of completions: their bodies are read, and they go where their prompts are cached.

use super::*;
use crate::abi::{STOP_AND_BUFFER, STOP_ITERATION, STOP_NO_BUFFER};
use crate::prompt::{FIELD, stored};
use std::time::{Duration, Instant};

const POLICY: &str = r#"{"prompts": {"server_tokens": 10000, "body_max": "64KiB", "memory": "128KiB"}}"#;

/// A listener with the filter that reads prompts.
struct Listener(*const c_void);

impl Listener {
    fn new() -> Self {
        let config = filter_config("larder_prompts");
        assert!(!config.is_null());
        Self(config)
    }

    /// Passes the head of a completion.
    fn open(&self) -> Completion {
        envoy(|envoy| {
            envoy.request = request("/v1/chat/completions?x=1");
            envoy.request[0].1 = b"POST".to_vec();
            (envoy.kept, envoy.arrived) = (Vec::new(), Vec::new());
        });
        Completion(unsafe { envoy_dynamic_module_on_http_filter_new(self.0, pointer()) })
    }

    /// Passes a whole completion with this text.
    fn send(&self, text: &str) -> Completion {
        let completion = self.open();
        assert_eq!(completion.head(false), STOP_ITERATION);
        assert_eq!(completion.body(body(text).as_bytes(), true), CONTINUE);
        completion
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        unsafe { envoy_dynamic_module_on_http_filter_config_destroy(self.0) };
    }
}

/// A completion in the filter of its listener.
struct Completion(*const c_void);

impl Completion {
    fn head(&self, is_end: bool) -> i32 {
        unsafe { envoy_dynamic_module_on_http_filter_request_headers(pointer(), self.0, is_end) }
    }

    /// Passes a piece of the body, which Envoy keeps if the filter waits. Envoy adds the last piece to the ones before it.
    fn body(&self, piece: &[u8], is_end: bool) -> i32 {
        envoy(|envoy| {
            envoy.arrived = vec![piece.to_vec()];
            if is_end && !envoy.kept.is_empty() {
                envoy.kept.append(&mut envoy.arrived);
            }
        });
        let result = unsafe { envoy_dynamic_module_on_http_filter_request_body(pointer(), self.0, is_end) };
        if result == STOP_AND_BUFFER {
            envoy(|envoy| envoy.kept.append(&mut envoy.arrived));
        }
        result
    }

    /// Passes a reply of Envoy.
    fn local_reply(&self, details: &str) {
        let details = buffer(details.as_bytes());
        unsafe { envoy_dynamic_module_on_http_filter_local_reply(pointer(), self.0, 503, details, false) };
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        unsafe { envoy_dynamic_module_on_http_filter_destroy(self.0) };
    }
}

fn body(text: &str) -> String {
    serde_json::json!({ "model": "m", "messages": [{ "role": "user", "content": text }] }).to_string()
}

fn text(seed: &str) -> String {
    seed.repeat(4_000 / seed.len())
}

fn named() -> Option<Vec<u8>> {
    envoy(|envoy| envoy.request.iter().find(|(name, _)| name == FIELD).map(|(_, value)| value.clone()))
}

fn status() -> serde_json::Value {
    let page: serde_json::Value = serde_json::from_str(&crate::admin::reply("/status").1).expect("JSON");
    let own = envoy(|envoy| envoy.cluster.clone());
    let clusters = page["clusters"].as_array().expect("clusters");
    clusters.iter().find(|cluster| cluster["cluster"] == own).expect("the cluster")["prompts"].clone()
}

fn last_refusal() -> (u32, String) {
    let (status, body) = envoy(|envoy| envoy.replies.last().cloned()).expect("a reply");
    let error: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    (status, error["error"]["code"].as_str().expect("a code").to_owned())
}

#[test]
fn a_completion_goes_where_the_longest_part_of_its_prompt_is_cached() {
    let worker = Worker::new("prompts", POLICY, &["a:1", "b:1", "c:1"]);
    let listener = Listener::new();
    let mut hosts = Vec::new();
    for seed in ["one ", "two ", "six "] {
        for turn in 0..3 {
            let completion = listener.send(&text(seed).repeat(turn + 1));
            assert!(named().is_some() && stored() == 1);
            let host = worker.choose().expect("a host");
            let attempt = worker.start();
            assert_eq!(named(), None, "nodes do not see the field");
            attempt.reply(&[(":status", "200")], 10);
            hosts.push(host);
            drop(completion);
            assert_eq!(stored(), 0);
        }
    }
    for turns in hosts.chunks(3) {
        assert!(turns.iter().all(|host| *host == turns[0]), "{hosts:?}");
    }
    let count = |name: &str| envoy(|envoy| envoy.metric(name));
    assert_eq!((count("larder.prompts"), count("larder.prompts_read")), (9, 9));
    let (tokens, credited) = (count("larder.prompt_tokens"), count("larder.prompt_tokens_credited"));
    assert!(
        (tokens / 3..tokens / 2).contains(&credited),
        "1 and 2 of 1, 2 and 3 turns: {credited} of {tokens}"
    );
    let status = status();
    assert_eq!((&status["prompts"], &status["tokens_credited"]), (&9.into(), &credited.into()));
    assert_eq!((&status["body_bytes"], Worker::load()), (&0.into(), 0));
}

#[test]
fn a_body_in_pieces_is_read_as_a_whole_and_its_memory_is_returned() {
    let worker = Worker::new("pieces", POLICY, &["a:1", "b:1"]);
    let listener = Listener::new();
    let content = body(&text("abcd"));
    for cut in [1, 1_000, content.len() - 1] {
        let (head, tail) = content.as_bytes().split_at(cut);
        let completion = listener.open();
        assert_eq!(completion.head(false), STOP_ITERATION);
        assert_eq!(
            envoy(|envoy| envoy.buffer_limit),
            ((2 * 64) << 10) + (1 << 20),
            "more than the filter takes"
        );
        assert_eq!(completion.body(head, false), STOP_AND_BUFFER);
        // The trailers end this one.
        if cut == 1_000 {
            assert_eq!(completion.body(tail, false), STOP_AND_BUFFER);
            let result =
                unsafe { envoy_dynamic_module_on_http_filter_request_trailers(pointer(), completion.0) };
            assert_eq!(result, CONTINUE);
        } else {
            assert_eq!(completion.body(tail, true), CONTINUE);
        }
        worker.choose().expect("a host");
        worker.start().reply(&[(":status", "200")], 10);
        assert!(
            status()["body_bytes"].as_u64() >= Some(content.len() as u64),
            "Envoy may have the body still"
        );
        drop(completion);
        assert_eq!(status()["body_bytes"], 0);
    }
    // The last token of a prompt is always computed.
    let tokens = envoy(|envoy| envoy.metric("larder.prompt_tokens")) / 3;
    assert_eq!(envoy(|envoy| envoy.metric("larder.prompt_tokens_credited")), 2 * (tokens - 1));
}

#[test]
fn a_completion_that_cannot_be_read_is_refused_as_the_api_does() {
    let _worker = Worker::new("unread", POLICY, &["a:1"]);
    let listener = Listener::new();
    let completion = listener.open();
    assert_eq!(completion.head(true), STOP_ITERATION);
    assert_eq!(last_refusal(), (400, "no_prompt".to_owned()));
    let completion = listener.open();
    assert_eq!(completion.head(false), STOP_ITERATION);
    assert_eq!(completion.body(&vec![b' '; 64 << 10], false), STOP_AND_BUFFER);
    assert_eq!(completion.body(b" ", true), STOP_NO_BUFFER);
    assert_eq!(last_refusal(), (413, "body_too_large".to_owned()));
    drop(completion);
    for (piece, wanted) in [
        (b"no json".to_vec(), (400, "no_prompt")),
        (br#"{"model": "m"}"#.to_vec(), (400, "no_prompt")),
        (vec![b' '; (64 << 10) + 1], (413, "body_too_large")),
    ] {
        let completion = listener.open();
        assert_eq!(completion.head(false), STOP_ITERATION);
        assert_eq!(completion.body(&piece, true), STOP_NO_BUFFER);
        assert_eq!(last_refusal(), (wanted.0, wanted.1.to_owned()));
    }
    let open: Vec<Completion> = (0..2)
        .map(|_| {
            let completion = listener.open();
            assert_eq!(completion.head(false), STOP_ITERATION);
            assert_eq!(completion.body(&vec![b' '; 64 << 10], false), STOP_AND_BUFFER);
            completion
        })
        .collect();
    let third = listener.open();
    assert_eq!(third.head(false), STOP_ITERATION);
    assert_eq!(third.body(b"{", false), STOP_NO_BUFFER);
    assert_eq!(last_refusal(), (503, "prompt_memory_full".to_owned()));
    drop(open);
    assert_eq!((&status()["body_bytes"], stored()), (&0.into(), 0));
}

/// A client must not hold memory by sending its body slowly, or without end.
#[test]
fn the_body_of_a_completion_has_a_time_limit() {
    let _worker = Worker::new("slow", r#"{"prompts": {"body_timeout": "10ms"}}"#, &["a:1"]);
    let listener = Listener::new();
    let began = Instant::now();
    let completion = listener.open();
    assert_eq!(completion.head(false), STOP_ITERATION);
    while completion.body(b" ", false) == STOP_AND_BUFFER {
        assert!(began.elapsed() < Duration::from_secs(60), "the body has no end");
    }
    assert!(began.elapsed() >= Duration::from_millis(10));
    assert_eq!(last_refusal(), (408, "body_timeout".to_owned()));
    drop(completion);
    // The end of the body may be late too.
    let completion = listener.open();
    assert_eq!(completion.head(false), STOP_ITERATION);
    larder_testkit::take_time(Duration::from_millis(11));
    let result = unsafe { envoy_dynamic_module_on_http_filter_request_trailers(pointer(), completion.0) };
    assert_eq!((result, last_refusal()), (STOP_ITERATION, (408, "body_timeout".to_owned())));
    assert_eq!(envoy(|envoy| envoy.metric("larder.prompts_timed_out")), 2);
    drop(completion);
    assert_eq!((&status()["body_bytes"], stored()), (&0.into(), 0));
}

#[test]
fn a_client_cannot_name_the_prompt_of_another_request() {
    let worker = Worker::new("named", POLICY, &["a:1", "b:1"]);
    let listener = Listener::new();
    let first = listener.send(&text("abcd"));
    let name = named().expect("a name");
    // A request that is no completion, or that another cluster serves, loses the field too.
    let other = listener.open();
    envoy(|envoy| {
        envoy.request[2].1 = b"/v1/models".to_vec();
        envoy.request.push((FIELD.to_owned(), name));
    });
    assert_eq!(other.head(true), CONTINUE);
    assert_eq!(named(), None);
    worker.choose().expect("a host");
    worker.start().reply(&[(":status", "200")], 1);
    assert_eq!(envoy(|envoy| envoy.metric("larder.prompts")), 0);
    drop((first, other));
}

#[test]
fn a_retry_is_placed_by_the_prompt_at_another_host() {
    let worker = Worker::new("retried", POLICY, &["a:1", "b:1"]);
    let listener = Listener::new();
    let completion = listener.send(&text("abcd"));
    let first = worker.choose().expect("a host");
    drop(worker.start());
    assert_eq!(named(), None, "the filter of the attempt has removed the field");
    envoy(|envoy| {
        envoy.selection_retries = 3;
        envoy.refused = vec![first.clone()];
    });
    let second = worker.choose().expect("a host");
    assert_ne!(second, first);
    worker.start().reply(&[(":status", "200")], 10);
    assert_eq!(envoy(|envoy| envoy.metric("larder.prompts")), 2);
    drop(completion);
    // The request is gone, and its context may belong to another one.
    envoy(|envoy| envoy.refused = Vec::new());
    worker.choose_for("/other").expect("a host");
    worker.start().reply(&[(":status", "200")], 10);
    assert_eq!((envoy(|envoy| envoy.metric("larder.prompts")), Worker::load()), (2, 0));
}

#[test]
fn only_a_host_that_has_failed_loses_its_credits() {
    let worker = Worker::new("lost", POLICY, &["a:1"]);
    let listener = Listener::new();
    let credits = || status()["credits"].as_u64().expect("a number");
    let attempt = |details: Option<&str>| {
        let completion = listener.send(&text("abcd"));
        worker.choose().expect("a host");
        drop(worker.start());
        if let Some(details) = details {
            completion.local_reply(details);
        }
    };
    // The client leaves, a circuit breaker stops the request, the node does not reply in time.
    for details in [None, Some("upstream_reset_before_response_started{overflow}"), Some("response_timeout")]
    {
        for _ in 0..3 {
            attempt(details);
            assert!(credits() > 0, "{details:?}");
        }
    }
    attempt(Some(
        "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}",
    ));
    assert_eq!(credits(), 0, "no one listens");
    // One lost connection may have been idle; a reply shows that the node is alive.
    let lost = Some("upstream_reset_before_response_started{connection_termination}");
    attempt(lost);
    assert!(credits() > 0);
    let completion = listener.send(&text("abcd"));
    worker.choose().expect("a host");
    worker.start().reply(&[(":status", "200")], 10);
    drop(completion);
    attempt(lost);
    assert!(credits() > 0);
    attempt(lost);
    assert_eq!(credits(), 0);
}

#[test]
fn a_host_that_fails_twice_in_a_row_loses_its_credits() {
    let worker = Worker::new("told", POLICY, &["a:1"]);
    let listener = Listener::new();
    let completion = listener.send(&text("abcd"));
    let attempt = || {
        let credited = || envoy(|envoy| envoy.metric("larder.prompt_tokens_credited"));
        let before = credited();
        worker.choose().expect("a host");
        drop(worker.start());
        credited() > before
    };
    assert_eq!([attempt(), attempt(), attempt(), attempt()], [false, true, false, true]);
    drop(completion);
}

#[test]
fn a_mirror_is_placed_by_the_prompt_and_tells_nothing_about_the_request() {
    let worker = Worker::new("mirrored", POLICY, &["a:1", "b:1"]);
    let listener = Listener::new();
    let completion = listener.send(&text("abcd"));
    let name = named().expect("a name");
    worker.choose_in(context(1)).expect("a host");
    let attempt = worker.start();
    envoy(|envoy| envoy.request.push((FIELD.to_owned(), name)));
    worker.choose_in(context(2)).expect("a host");
    drop(worker.start());
    completion.local_reply("upstream_reset_before_response_started{connection_failure}");
    assert!(status()["credits"].as_u64() > Some(0), "the attempt of the request has not ended");
    attempt.reply(&[(":status", "200")], 10);
    // Another request has the context of the mirror now.
    envoy(|envoy| envoy.request = request("/v1/models"));
    worker.choose_in(context(2)).expect("a host");
    drop(worker.start());
    assert_eq!(envoy(|envoy| envoy.metric("larder.prompts")), 2);
    drop(completion);
    assert_eq!(stored(), 0);
}

#[test]
fn completions_without_the_filter_are_placed_by_their_heads_and_the_log_says_so() {
    let worker = Worker::new("unfiltered", POLICY, &["a:1"]);
    let log = || envoy(|envoy| envoy.log.join("\n"));
    worker.choose_for("/v1/completions").expect("a host");
    drop(worker.start());
    assert!(!log().contains("completions are not placed"), "a GET has no prompt: {}", log());
    envoy(|envoy| envoy.request[0].1 = b"POST".to_vec());
    worker.choose().expect("a host");
    drop(worker.start());
    let log = log();
    assert!(log.contains("cluster unfiltered: completions are not placed by their prompts"), "{log}");
    assert_eq!(status()["prompts"], 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever hosts, clients and nodes do, no prompt, body or load is left.
    #[test]
    fn any_sequence_of_completions_leaves_nothing(
        events in prop::collection::vec((0u8..6, 0usize..4, any::<u8>()), 1..60),
    ) {
        let worker = Worker::new("left", POLICY, &["0:1", "1:1"]);
        let listener = Listener::new();
        let (mut completions, mut attempts) = (Vec::new(), Vec::new());
        for (event, which, detail) in events {
            match event {
                0 => {
                    envoy(|envoy| {
                        let at = which % 2;
                        envoy.hosts[0][at].healthy ^= true;
                        envoy.hosts[0][at].address = format!("{}:1", which * usize::from(detail % 3));
                    });
                    worker.update();
                }
                1 => {
                    let completion = listener.open();
                    let piece = vec![detail; usize::from(detail) << 9];
                    if completion.head(which == 0) == STOP_ITERATION {
                        completion.body(&piece, which == 1);
                    }
                    completions.push(completion);
                }
                2 | 3 => {
                    let completion = listener.open();
                    completion.head(false);
                    // The memory for bodies may be used up, and the request is refused.
                    let is_read = completion.body(body(&text(&format!("{which} "))).as_bytes(), true) == CONTINUE;
                    completions.push(completion);
                    envoy(|envoy| {
                        envoy.selection_retries = u32::from(detail % 4);
                        envoy.refused = vec![format!("{which}:1")];
                    });
                    if is_read && worker.choose().is_some() && detail < 250 {
                        attempts.push(worker.start());
                    }
                }
                4 if !attempts.is_empty() => {
                    let attempt = attempts.swap_remove(which % attempts.len());
                    attempt.reply(&[(":status", if detail % 2 == 0 { "200" } else { "503" })], usize::from(detail));
                }
                _ => {
                    attempts.truncate(attempts.len().saturating_sub(which));
                    completions.truncate(completions.len().saturating_sub(which));
                }
            }
        }
        drop((attempts, completions));
        worker.choose_for("/end");
        drop(worker.start());
        prop_assert_eq!((Worker::load(), stored(), &status()["body_bytes"]), (0, 0, &0.into()));
    }
}
