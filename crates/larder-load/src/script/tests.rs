//! Scripts from generators and from a log.

use std::collections::HashSet;

use larder_trace::synth::mix::Mix;
use larder_trace::synth::sessions::Site;
use larder_trace::{LoadOptions, Trace};

use super::extract::{ExtractionCounts, ProfileExtraction};
use super::*;

fn manifest(script: &Script, listed: ManifestScope) -> Vec<(u64, String)> {
    let mut text = Vec::new();
    script.write_manifest(listed, &mut text).unwrap();
    let split =
        |line: &str| line.split_once('\t').map(|(size, path)| (size.parse().unwrap(), path.to_owned()));
    String::from_utf8(text).unwrap().lines().map(|line| split(line).unwrap()).collect()
}

#[test]
fn the_path_prefix_determines_the_class() {
    let recipe = SessionRecipe { span_s: 5.0, ..SessionRecipe::cap01(Site::CommerceC) };
    let script = Script::sessions(&recipe, &PathPrefixes::default(), 1).unwrap();
    for resource in script.resources() {
        let class = match resource.path.split('/').collect::<Vec<_>>()[1..3] {
            ["static", _] | ["cgi", "light"] => ServiceClass::N,
            ["cgi", "db"] => ServiceClass::Db,
            ["cgi", "cpu"] => ServiceClass::Cb,
            // Objects embedded in encrypted pages from a database need encryption only.
            ["cgi", "disk"] if resource.path.contains("/object/") => ServiceClass::Cb,
            ["cgi", "disk"] => ServiceClass::Dcb,
            _ => panic!("{}", resource.path),
        };
        assert_eq!(resource.class, class, "{}", resource.path);
        assert_eq!(resource.dynamic, resource.path.starts_with("/cgi/"));
    }
    let documents = manifest(&script, ManifestScope::Documents);
    assert!(documents.iter().all(|(size, path)| *size > 0 && path.starts_with("/static/")));
    assert_eq!(manifest(&script, ManifestScope::All).len(), script.resources().len());
    assert!(script.span() < Duration::from_secs(5));
}

#[test]
fn invalid_prefixes_are_refused() {
    let mut prefixes = PathPrefixes::default();
    assert!(prefixes.set("cpu", "/bin/heavy") && !prefixes.set("gpu", "/x"));
    let recipe = MixRecipe { pages: 200, ..MixRecipe::cap01(Mix::Intensive) };
    let script = Script::mix(&recipe, &prefixes, 1).unwrap();
    assert!(
        script
            .resources()
            .iter()
            .any(|resource| resource.path == "/bin/heavy/0" && resource.class == ServiceClass::Cb)
    );
    for bad in ["", "cgi", "/cgi/", "/c g i", "/cgi?x"] {
        prefixes.set("cpu", bad);
        let error = Script::mix(&recipe, &prefixes, 1).unwrap_err().to_string();
        assert!(error.contains("prefix of cpu") && error.contains("/cgi/cpu"), "{error}");
    }
}

#[test]
fn hacc_sites_have_the_published_figures_and_distinct_paths() {
    for (kind, resources, documents) in [
        (ProfileKind::Baseline, 367, 367),
        (ProfileKind::Fas, 5_715, 5_715),
        (ProfileKind::Domino, 924, 0),
        (ProfileKind::Asp, 4_495, 4_465),
    ] {
        let script = Script::hacc(kind, &PathPrefixes::hacc(), 1).unwrap();
        assert_eq!(script.resources().len(), resources, "{kind:?}");
        assert_eq!(script.visits().len(), 500);
        assert_eq!(manifest(&script, ManifestScope::Documents).len(), documents, "{kind:?}");
        let prefixes: HashSet<String> =
            manifest(&script, ManifestScope::All).into_iter().map(|(_, path)| path).collect();
        assert_eq!(prefixes.len(), resources, "{kind:?}");
    }
    let domino = Script::hacc(ProfileKind::Domino, &PathPrefixes::hacc(), 1).unwrap();
    assert!(paths_of_kind(&domino, "OpenView").contains(&"/domino/site.nsf/view0?OpenView"));
    assert!(paths_of_kind(&domino, "OpenDocument").contains(&"/domino/site.nsf/view0/doc9?OpenDocument"));
    let mean = domino.resources().iter().map(|resource| resource.bytes).sum::<u64>() as f64 / 924.0;
    assert!((mean / 6_144.0 - 1.0).abs() < 0.01, "{mean}");
    // 129 MB are 123 MiB.
    let held_mb = domino.resources().iter().map(|resource| resource.held_bytes).sum::<u64>() as f64 / 1e6;
    assert!((held_mb - 129.0).abs() < 5.0, "{held_mb}");
}

fn paths_of_kind<'s>(script: &'s Script, action: &str) -> Vec<&'s str> {
    script.resources().iter().map(|resource| &*resource.path).filter(|path| path.ends_with(action)).collect()
}

/// Lines of a log: client, seconds after noon, path, bytes.
fn trace(lines: &[(&str, u32, &str, u64)]) -> Trace {
    let file = std::env::temp_dir().join(format!("larder-extract-{}-{:p}", std::process::id(), lines));
    let mut text = String::new();
    for (client, at, path, bytes) in lines {
        let (h, m, s) = (12 + at / 3_600, at / 60 % 60, at % 60);
        let time = format!("01/Jan/2020:{h:02}:{m:02}:{s:02} +0000");
        text.push_str(&format!("{client} - - [{time}] \"GET {path} HTTP/1.0\" 200 {bytes}\n"));
    }
    std::fs::write(&file, text).unwrap();
    let loaded = Trace::load(&file, &LoadOptions::default());
    std::fs::remove_file(&file).unwrap();
    loaded.unwrap().0
}

#[test]
fn visits_end_at_a_long_pause_and_keep_their_pauses() {
    let trace = trace(&[
        ("a", 0, "/1", 10),
        ("b", 1, "/2", 20),
        ("a", 4, "/2", 20),
        ("a", 10, "/3", 30),
        // 30 minutes and a second later: another visit, of one request.
        ("a", 1_811, "/1", 10),
        ("b", 61, "/1", 10),
        ("c", 5, "/1", 10),
    ]);
    let (script, counts) = Script::from_trace("log", &trace, &ProfileExtraction::default(), 1).unwrap();
    assert_eq!(
        counts,
        ExtractionCounts { clients: 3, visits: 4, too_short: 2, split: 0, unusable: 0, profiles: 2 }
    );
    let visit =
        |pages: usize| script.visits().iter().find(|visit| script.pages(visit).len() == pages).unwrap();
    let visited = |visit: &Visit| -> Vec<(String, u64)> {
        let pages = script.pages(visit).iter();
        pages
            .map(|page| {
                let object = script.objects(page)[0];
                (script.resources()[object as usize].path.clone(), page.pause.as_secs())
            })
            .collect()
    };
    let page = |path: &str, pause| (path.to_owned(), pause);
    assert_eq!(visited(visit(3)), [page("/1", 4), page("/2", 6), page("/3", 5)]);
    assert_eq!(visited(visit(2)), [page("/2", 60), page("/1", 60)]);
}

#[test]
fn the_sample_depends_on_the_seed_and_is_bounded() {
    let names: Vec<String> = (0..60).map(|client| format!("client{client}")).collect();
    let lines: Vec<(&str, u32, &str, u64)> = (0..300)
        .map(|at| (&*names[at % 60], at as u32, if at % 2 == 0 { "/even" } else { "/odd" }, 5))
        .collect();
    let trace = trace(&lines);
    let draw = |profiles, seed| {
        let extract = ProfileExtraction { profiles, ..ProfileExtraction::default() };
        let (script, counts) = Script::from_trace("log", &trace, &extract, seed).unwrap();
        assert_eq!((counts.visits, counts.profiles), (60, script.visits().len() as u64));
        format!("{:?} {:?}", script.visits, script.objects)
    };
    assert_eq!(draw(10, 1), draw(10, 1));
    assert_ne!(draw(10, 1), draw(10, 2));
    let all = ProfileExtraction { profiles: 500, ..ProfileExtraction::default() };
    assert_eq!(Script::from_trace("log", &trace, &all, 1).unwrap().1.profiles, 60);
    let cut = ProfileExtraction { requests_max: 2, ..ProfileExtraction::default() };
    let (script, counts) = Script::from_trace("log", &trace, &cut, 1).unwrap();
    // Five requests each: two, two, and one that is too short.
    assert_eq!((counts.split, counts.too_short, script.visits().len()), (120, 60, 120));
}

#[test]
fn invalid_extractions_are_refused() {
    let log = trace(&[("a", 0, "/1", 1), ("b", 1, "/1", 1)]);
    let error =
        |trace: &Trace, extract| Script::from_trace("log", trace, &extract, 1).unwrap_err().to_string();
    assert!(error(&log, ProfileExtraction::default()).contains("enough requests"));
    assert!(
        error(&log, ProfileExtraction { gap: Duration::ZERO, ..ProfileExtraction::default() })
            .contains("gap")
    );
    assert!(
        error(&log, ProfileExtraction { requests_min: 1, ..ProfileExtraction::default() })
            .contains("at least 2")
    );
    assert!(
        error(&log, ProfileExtraction { profiles: 0, ..ProfileExtraction::default() })
            .contains("1 to 1000000")
    );
    let mut nobody = log.clone();
    for request in &mut nobody.requests {
        request.client = 0;
    }
    assert!(error(&nobody, ProfileExtraction::default()).contains("identify clients"));
    let timeless = Trace { origin_ns: None, ..log };
    assert!(error(&timeless, ProfileExtraction::default()).contains("no times"));
}
