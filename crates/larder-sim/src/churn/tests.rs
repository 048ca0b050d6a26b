use super::*;
use larder_trace::synth::{Recipe, generate};

fn options(policies: &[PolicyKind]) -> Options {
    Options {
        policies: policies.to_vec(),
        nodes: 4,
        memory: Bytes(1_500_000),
        cache: CacheKind::Gds,
        costs: Costs::Lard98(crate::cost::Lard98::default()),
        settings: Settings { t_low: 5, t_high: 13, ..Settings::default() },
        report_every: Duration::from_millis(200),
        refresh_every: Duration::from_secs(10),
    }
}

fn run(policies: &[PolicyKind]) -> Churn {
    let trace = generate(&Recipe::zipf(1_000, 30_000, 0.9), 1, 1.0).expect("it can be made");
    churn(&Workload::from_trace(&trace), "zipf", &options(policies), &|| {}).expect("it can be run")
}

#[test]
fn every_policy_has_a_row_for_every_event() {
    let policies = PolicyKind::ALL;
    let churn = run(&policies);
    assert_eq!(churn.rows.len(), policies.len() * ChurnEvent::ALL.len());
    for (row, at) in churn.rows.iter().zip(0..) {
        assert_eq!(row.policy, policies[at / ChurnEvent::ALL.len()].name());
        assert_eq!(row.event, ChurnEvent::ALL[at % ChurnEvent::ALL.len()]);
        assert!((0.0..=1.0).contains(&row.moved) && row.hit_before > 0.1, "{row:?}");
        assert_eq!(
            row.moved_meanwhile.is_some(),
            matches!(row.event, ChurnEvent::Flap | ChurnEvent::Restart),
            "{row:?}"
        );
    }
    let text = table(&churn);
    assert_eq!(text.lines().take_while(|line| !line.is_empty()).count(), 1 + churn.rows.len());
    assert!(markdown(&churn, "larder sim churn").contains("| hash | leave |"));
}

#[test]
fn hashing_moves_few_targets_and_round_robin_many() {
    let churn = run(&[PolicyKind::Hash, PolicyKind::Rr]);
    let row = |policy: &str, event| {
        let is_it = |row: &&ChurnRow| (row.policy.as_str(), row.event) == (policy, event);
        churn.rows.iter().find(is_it).expect("it is there").clone()
    };
    let leave = row("hash", ChurnEvent::Leave);
    assert!((leave.moved - 0.25).abs() < 0.06 && leave.moved_anyway == 0.0, "one of four nodes: {leave:?}");
    assert!(leave.hits_lost > 0 && leave.hit_lowest < leave.hit_before, "{leave:?}");
    let (flap, restart) = (row("hash", ChurnEvent::Flap), row("hash", ChurnEvent::Restart));
    assert_eq!(flap.moved, 0.0, "all are back where they were: {flap:?}");
    assert!(flap.moved_meanwhile.is_some_and(|moved| (moved - 0.25).abs() < 0.08), "{flap:?}");
    assert!(restart.hits_lost > flap.hits_lost, "an empty memory costs more");
    let rr = row("rr", ChurnEvent::Leave);
    assert!((rr.moved_anyway - 0.75).abs() < 0.06, "round robin goes anywhere: {rr:?}");
}

#[test]
fn invalid_options_are_refused() {
    let workload =
        Workload { items: vec![crate::Item::file(larder_core::TargetId(1), 1)], ..Workload::default() };
    let refused = |options: &Options| churn(&workload, "none", options, &|| {}).is_err();
    let usual = options(&[PolicyKind::Rr]);
    assert!(refused(&usual) && refused(&Options { nodes: 1, ..usual.clone() }));
    assert!(refused(&Options { policies: Vec::new(), ..usual }));
}
