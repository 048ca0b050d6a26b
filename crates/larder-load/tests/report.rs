//! The outputs of a report: JSON, schema, text, comparison.

mod common;

use common::{Server, reply, run};
use larder_load::{Arrivals, Report, SCHEMA, Warning};

fn report() -> Report {
    let server = Server::start(|request, stream| match request.target {
        "/bad" => reply(stream, "500 Oops", "", b"x"),
        "/hit" => reply(stream, "200 OK", "Cache-Status: node-1; hit\r\n", b"body"),
        _ => reply(stream, "200 OK", "Cache-Status: \"node 2\"; fwd=miss\r\n", b"body"),
    });
    let mut plan = server.plan(&["/hit", "/bad", "/miss"], 300);
    plan.arrivals = Arrivals::Closed { clients: 4 };
    plan.warmup_requests = 30;
    run(plan)
}

#[test]
fn the_json_survives_a_round_trip() {
    let report = report();
    let text = serde_json::to_string(&report).unwrap();
    let back: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(back, report);
    assert_eq!(report.schema, SCHEMA);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["faults"]["status5xx"], 90);
    assert_eq!(json["statuses"]["500"], 90);
    assert_eq!(json["setup"]["load_model"], "closed");
    assert!(json["warnings"].as_array().unwrap().iter().any(|warning| warning["kind"] == "failures"));
}

/// Run with `LARDER_BLESS=1` to write the schemas, and raise the number in a schema's name if a field was removed or changed
/// its meaning.
#[test]
fn the_schema_files_are_up_to_date() {
    for (file, schema) in [
        ("report", schemars::schema_for!(Report)),
        ("users", schemars::schema_for!(larder_load::UsersReport)),
        ("sweep", schemars::schema_for!(larder_load::users::SweepReport)),
        ("dbench", schemars::schema_for!(larder_load::DbenchReport)),
    ] {
        let path = format!("{}/{file}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let schema = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("LARDER_BLESS").is_some() {
            std::fs::write(&path, &schema).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), schema, "{file}");
    }
}

#[test]
fn the_text_has_the_figures_and_no_control_characters() {
    let mut report = report();
    // Names come from the network or from a file.
    let second = report.nodes.iter().position(|node| node.name == "node 2").unwrap();
    report.nodes[second].name = "\u{1b}[31m\r\n".to_owned();
    let text = report.render();
    for part in [
        "closed, 4 clients",
        "180 good, 90 failed",
        "requests/s",
        "node-1",
        "failed: status5xx",
        "warning: 90 of 270",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn reports_compare() {
    let baseline = report();
    let mut faster = baseline.clone();
    faster.requests_per_s = baseline.requests_per_s * 2.0;
    faster.cache.hit_ratio = None;
    let comparison = faster.compare(&baseline);
    assert_eq!(comparison.requests_per_s.ratio, Some(2.0));
    assert_eq!((comparison.hit_ratio.after, comparison.hit_ratio.ratio), (None, None));
    assert!(comparison.differences.is_empty());
    faster.setup.clients = Some(8);
    let text = faster.compare(&baseline).render();
    assert!(text.contains("2.000") && text.contains("not the same load: clients: 4, now 8"), "{text}");
}

#[test]
fn warnings_have_texts() {
    let report = report();
    for warning in &report.warnings {
        assert!(!warning.to_string().is_empty());
    }
    assert!(
        report.warnings.iter().any(|warning| matches!(warning, Warning::TooFewSamples { samples: 180, .. }))
    );
}
