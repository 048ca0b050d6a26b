//! Tests of whole clusters.

use larder_core::TargetId;
use larder_core::cache::Block;
use proptest::prelude::*;

use super::workload::PromptRequest;
use super::*;

/// Returns the workload of conversations: (time in ms, number of the conversation, blocks of the prompt, tokens of the reply).
fn workload(requests: &[(u64, u64, u64, u32)]) -> PromptWorkload {
    let mut workload = PromptWorkload::default();
    for (ms, conversation, count, output) in requests {
        let first = workload.blocks.len();
        std::sync::Arc::make_mut(&mut workload.blocks)
            .extend((0..*count).map(|at| Block { id: TargetId(conversation * 1_000_000 + at), tokens: 512 }));
        workload.requests.push(PromptRequest {
            time: Time::from_millis(*ms),
            first,
            count: *count as usize,
            prompt: count * 512,
            output: *output,
        });
    }
    workload
}

fn run(workload: &PromptWorkload, nodes: u16, policy: ChainPolicyKind) -> PromptOutcome {
    let cluster = PromptCluster {
        nodes,
        engine: EngineModel::LLAMA3_8B,
        policy,
        objective_s: DEFAULT_OBJECTIVE_S,
        switches: 1,
        isolated: false,
    };
    simulate_prompts(workload, &cluster).expect("numbers in range")
}

/// Forty conversations of four turns, one turn a minute.
fn conversations() -> PromptWorkload {
    let turns =
        (0..4).flat_map(|turn| (0..40).map(move |user| (turn * 60_000 + user * 500, user, 4 + 4 * turn, 50)));
    workload(&turns.collect::<Vec<_>>())
}

#[test]
fn an_idle_cluster_reuses_what_can_be_reused() {
    let workload = conversations();
    // Of 4 + 8 + 12 + 16 blocks, a turn finds those of the turn before: 0 + 4 + 8 + 12.
    assert_eq!(workload.reuse(u64::MAX), Reuse { blocks: 0.6, tokens: 0.6 });
    let outcome = run(&workload, 4, ChainPolicyKind::LardPrefix);
    assert_eq!((outcome.finished, outcome.refused, outcome.preemptions), (160, 0, 0));
    assert!((outcome.token_hit_ratio - 0.6).abs() < 1e-9, "{}", outcome.token_hit_ratio);
    assert!((outcome.expected_hit_ratio - 0.6).abs() < 1e-9, "{}", outcome.expected_hit_ratio);
    let in_turn = run(&workload, 3, ChainPolicyKind::Rr);
    assert!(
        in_turn.token_hit_ratio < 0.3,
        "turns of a conversation go to all nodes: {}",
        in_turn.token_hit_ratio
    );
    assert!(in_turn.first_token_s.mean > outcome.first_token_s.mean);
}

/// Switches that tell each other of their prompts reuse about as much as one; those that do not, reuse far less.
#[test]
fn several_switches_reuse_as_much_as_one() {
    let workload = PromptWorkload::agents(7, 300.0, 2.0);
    let hits = |switches, isolated| {
        let cluster = PromptCluster {
            nodes: 8,
            engine: EngineModel::LLAMA3_8B,
            policy: ChainPolicyKind::LardPrefix,
            objective_s: DEFAULT_OBJECTIVE_S,
            switches,
            isolated,
        };
        simulate_prompts(&workload, &cluster).expect("in range").token_hit_ratio
    };
    let (one, eight, isolated) = (hits(1, false), hits(8, false), hits(8, true));
    assert!(eight >= 0.95 * one, "{eight} of {one}");
    assert!(isolated < 0.9 * one, "{isolated} of {one}");
}

#[test]
fn equal_runs_are_equal() {
    for policy in ChainPolicyKind::ALL {
        assert_eq!(run(&conversations(), 3, policy), run(&conversations(), 3, policy), "{policy}");
    }
}

#[test]
fn numbers_out_of_range_are_named() {
    let engine = EngineModel { kv_tokens: 0, ..EngineModel::LLAMA3_8B };
    let cluster = PromptCluster {
        nodes: 1,
        engine,
        policy: ChainPolicyKind::Rr,
        objective_s: DEFAULT_OBJECTIVE_S,
        switches: 1,
        isolated: false,
    };
    let error = simulate_prompts(&conversations(), &cluster).expect_err("there is no memory");
    assert!(error.to_string().contains("memory"), "{error}");
    let cluster = PromptCluster {
        nodes: 0,
        engine: EngineModel::LLAMA3_8B,
        policy: ChainPolicyKind::Rr,
        objective_s: DEFAULT_OBJECTIVE_S,
        switches: 1,
        isolated: false,
    };
    assert!(simulate_prompts(&conversations(), &cluster).is_err());
}

#[test]
fn the_table_has_a_line_per_policy() {
    let text = table(&[run(&conversations(), 4, ChainPolicyKind::LardPrefix)]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with("lard-prefix      60.0 %"), "{text}");
}

proptest! {
    /// Hits never exceed those of an endless cache, and every request has one outcome.
    #[test]
    fn no_policy_exceeds_the_ceiling(
        requests in prop::collection::vec((0..20_000_u64, 0..6_u64, 1..40_u64, 1..60_u32), 1..60),
        nodes in 1..5_u16,
        memory in 4_000..60_000_u64,
    ) {
        let mut requests = requests;
        requests.sort_unstable();
        let workload = workload(&requests);
        let engine = EngineModel { kv_tokens: memory, ..EngineModel::LLAMA3_8B };
        for policy in ChainPolicyKind::ALL {
            let outcome = simulate_prompts(&workload, &PromptCluster { nodes, engine, policy, objective_s: DEFAULT_OBJECTIVE_S, switches: 1, isolated: false }).expect("in range");
            prop_assert_eq!(outcome.finished + outcome.refused, requests.len() as u64);
            let ceiling = workload.reuse(u64::MAX).tokens;
            prop_assert!(outcome.token_hit_ratio <= ceiling + 1e-9, "{}: {}", policy, outcome.token_hit_ratio);
            prop_assert!(outcome.imbalance >= 1.0 - 1e-9 || outcome.finished == 0);
        }
    }
}
