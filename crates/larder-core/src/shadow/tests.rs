use super::*;
use crate::dispatch::Request;
use crate::nodes::{Groups, Weight};

const NODES: u16 = 4;

/// Requests with a Zipf popularity, from a separate generator.
struct TestTraffic {
    cumulative: Vec<f64>,
    state: u64,
}

impl TestTraffic {
    fn new(targets: usize, alpha: f64) -> Self {
        let mut sum = 0.0;
        let weigh = |rank: usize| {
            sum += (rank as f64 + 1.0).powf(-alpha);
            sum
        };
        let cumulative: Vec<f64> = (0..targets).map(weigh).collect();
        Self { cumulative: cumulative.iter().map(|part| part / sum).collect(), state: 7 }
    }

    fn next(&mut self) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (self.state >> 11) as f64 / (1_u64 << 53) as f64;
        self.cumulative.partition_point(|part| *part < unit).min(self.cumulative.len() - 1)
    }
}

fn nodes(memory: Bytes) -> Vec<LiveNode> {
    (0..NODES)
        .map(|n| LiveNode {
            name: format!("n{n}").into(),
            id: NodeId(n),
            weight: Weight::ONE,
            groups: Groups::NONE,
            backup: false,
            state: NodeState::Up,
            memory,
        })
        .collect()
}

fn shadow(one_in: u32, objects_max: usize, memory: Bytes) -> Shadow {
    let settings = ShadowSettings {
        policies: vec![PolicyKind::Rr, PolicyKind::Hash, PolicyKind::Lard, PolicyKind::LbGc],
        objects_max,
        ..ShadowSettings::default()
    };
    let sampler = Arc::new(Sampler::new(one_in));
    let mut shadow = Shadow::new(settings, sampler, &Settings::default(), &[]).expect("in range");
    shadow.update_nodes(Time::ZERO, nodes(memory));
    shadow
}

/// Sends a request per millisecond for objects of 1 to 16 KB, each 4 ms long.
fn drive(shadow: &mut Shadow, requests: usize, targets: usize, alpha: f64) {
    let mut traffic = TestTraffic::new(targets, alpha);
    for n in 0..requests {
        let item = traffic.next();
        let target = TargetId::of(&(item as u64).to_le_bytes());
        shadow.observe(&ObservedRequest {
            at: Time::from_nanos(n as u64 * 1_000_003),
            request: Request::new(target),
            node: NodeId((n % 4) as u16),
            elapsed: Duration::from_millis(4),
            first_byte: None,
            bytes: Some(Bytes(1_000 + target.0 % 15_000)),
            found: None,
            keeps: true,
        });
    }
    shadow.advance_time(Time::from_nanos(requests as u64 * 1_000_003) + HOLD_TIME);
}

/// One client sends one request after the other, so nothing is ever in flight. A target without a server goes to the
/// node of its hash, live and in the shadow.
#[test]
fn sequential_requests_are_decided_sequentially() {
    let mut shadow = shadow(1, 1 << 20, Bytes::mib(64));
    let mut traffic = TestTraffic::new(5_000, 0.6);
    let mut at = Time::from_secs(1);
    for n in 0..20_000_u64 {
        let elapsed = Duration::from_micros(200 + n * 7_919 % 5_000);
        at += elapsed;
        let target = TargetId::of(&(traffic.next() as u64).to_le_bytes());
        let (bytes, keeps) = (Some(Bytes(2_000)), true);
        let node = NodeId(0);
        shadow.observe(&ObservedRequest {
            at,
            request: Request::new(target),
            node,
            elapsed,
            first_byte: None,
            bytes,
            found: None,
            keeps,
        });
        at += Duration::from_micros(10);
    }
    shadow.advance_time(at + HOLD_TIME);
    let report = shadow.report();
    let (lard, hash) = (of(&report, PolicyKind::LardR).all, of(&report, PolicyKind::Hash).all);
    assert_eq!((lard.requests, lard.imbalance, lard.hit_ratio), (20_000, hash.imbalance, hash.hit_ratio));
}

fn of(report: &Report, policy: PolicyKind) -> &PolicyReport {
    report.policies.iter().find(|row| row.policy == policy).expect("it is there")
}

#[test]
fn policies_by_target_hit_more_and_the_live_policy_is_included() {
    let mut shadow = shadow(1, 1 << 20, Bytes::mib(8));
    drive(&mut shadow, 60_000, 10_000, 0.8);
    let report = shadow.report();
    let hits = |policy| of(&report, policy).lately.hit_ratio.expect("known");
    assert_eq!(report.policies[0].policy, PolicyKind::LardR, "what runs live");
    assert!(hits(PolicyKind::LardR) > hits(PolicyKind::Rr) + 0.15, "{report:?}");
    assert!(hits(PolicyKind::LbGc) > hits(PolicyKind::Rr) + 0.15, "its mirror follows: {report:?}");
    let even = |policy| of(&report, policy).all.imbalance.expect("known");
    assert!(even(PolicyKind::Rr) < 1.001 && even(PolicyKind::Hash) > 1.02, "{report:?}");
    assert_eq!((report.one_in, report.sampled, report.live.0.hit_ratio), (1, 60_000, None));
}

/// Checks the accuracy that docs/operate/shadow.md states: sampling changes hit ratios by less than 3 points and
/// imbalance by less than a tenth.
#[test]
fn sample_agrees_with_all_requests() {
    let mut whole = shadow(1, 1 << 20, Bytes::mib(16));
    let mut sample = shadow(8, 1 << 20, Bytes::mib(16));
    for shadow in [&mut whole, &mut sample] {
        drive(shadow, 600_000, 40_000, 0.9);
    }
    let (whole, sample) = (whole.report(), sample.report());
    assert!(sample.hot > 10 && sample.state_bytes * 5 < whole.state_bytes, "{sample:?} {whole:?}");
    for row in &whole.policies {
        let other = of(&sample, row.policy);
        let (exact, guess) = (row.lately.hit_ratio.unwrap(), other.lately.hit_ratio.unwrap());
        assert!((exact - guess).abs() < 0.03, "{}: {exact} {guess}", row.policy);
        let (exact, guess) = (row.lately.imbalance.unwrap(), other.lately.imbalance.unwrap());
        assert!((guess / exact - 1.0).abs() < 0.1, "{}: {exact} {guess}", row.policy);
    }
}

#[test]
fn state_is_bounded() {
    let mut shadow = shadow(1, 1_024, Bytes(1 << 40));
    drive(&mut shadow, 200_000, 100_000, 0.3);
    let report = shadow.report();
    assert!(report.one_in >= 64, "{report:?}");
    assert!(shadow.clusters.iter().all(|cluster| cluster.objects() <= 1_024 + CHECK_EVERY as usize));
    assert!(report.state_bytes < 5 * 1_280 * 200, "{report:?}");
}

#[test]
fn failed_node_returns_empty_and_removed_node_is_forgotten() {
    let mut shadow = shadow(1, 1 << 20, Bytes::mib(64));
    drive(&mut shadow, 20_000, 1_000, 0.8);
    let full = shadow.clusters[0].objects();
    let mut now = nodes(Bytes::mib(64));
    now[0].state = NodeState::Down;
    shadow.update_nodes(shadow.now, now.clone());
    assert!(shadow.clusters[0].objects() < full);
    now[0].state = NodeState::Up;
    now.pop();
    shadow.update_nodes(shadow.now, now);
    drive(&mut shadow, 20_000, 1_000, 0.8);
    let even = of(&shadow.report(), PolicyKind::Rr).all.imbalance.unwrap();
    assert!((1.0..1.8).contains(&even), "three nodes share what comes: {even}");
}

#[test]
fn without_memory_sizes_no_hits_are_reported() {
    let mut shadow = shadow(1, 1 << 20, Bytes::ZERO);
    drive(&mut shadow, 5_000, 100, 0.8);
    let report = shadow.report();
    assert!(report.policies.iter().all(|row| row.all.hit_ratio == Some(0.0) && row.memory_used.is_none()));

    // Once the sizes are known, the counts start again.
    shadow.update_nodes(shadow.now, nodes(Bytes::mib(8)));
    assert!(shadow.report().policies.iter().all(|row| row.all.hit_ratio.is_none()));
}
