//! Tests of written and read routing tables, and of invalid files.

use std::io::Write;
use std::path::Path;

use larder_core::policy::table::Place;
use larder_core::{Bytes, TargetId};
use proptest::prelude::*;

use super::*;
use crate::{Limits, Trace};

fn id_of(name: &str) -> TargetId {
    TargetId::of(name.as_bytes())
}

fn made(nodes: u16, names: &[&str]) -> (Trace, Analysis, RoutesHeader) {
    let recipe = crate::synth::Recipe::zipf(300, 5_000, 0.9);
    let trace = crate::synth::generate(&recipe, 1, 1.0).expect("possible");
    let memory_per_node = Bytes(trace.working_set().get() / 10);
    let cluster = WardCluster { nodes, memory_per_node, costs: WardCosts::ward01() };
    let analysis = ward_analysis(&Frequencies::of(&trace), &cluster, CoreChoice::Best).expect("a cluster");
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let header = RoutesHeader::of(&analysis, &trace, "a log.clf", &names);
    (trace, analysis, header)
}

fn text(trace: &Trace, analysis: &Analysis, header: &RoutesHeader) -> String {
    let mut text = Vec::new();
    write_routes(header, analysis, trace, &mut text).expect("in memory");
    String::from_utf8(text).expect("ASCII")
}

fn read(bytes: &[u8]) -> Result<(RoutesHeader, larder_core::policy::table::RouteTable), String> {
    let limits = Limits { line_bytes_max: 512, targets_max: 1_000, ..Limits::default() };
    read_routes_from(bytes, Path::new("t.routes"), &limits, id_of).map_err(|error| error.to_string())
}

#[test]
fn a_saved_table_equals_the_analysis() {
    let (trace, analysis, header) = made(3, &["a", "b:80", "c"]);
    assert!(analysis.core.targets > 0 && analysis.partition.targets > 0);
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["t.routes", "t.routes.zst", "t.routes.gz"] {
        let path = folder.path().join(name);
        std::fs::write(&path, "what stood there").expect("written");
        save_routes(&header, &analysis, &trace, &path).expect("saved");
        let (found, table) = read_routes(&path, &Limits::default(), id_of).expect("a table");
        assert_eq!(found, header);
        assert_eq!(Ok(table), analysis.route_table(|target| id_of(&trace.targets[target as usize].name)));
    }
    // No temporary file remains.
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 3);
}

#[test]
fn a_table_is_readable_text() {
    let (trace, analysis, header) = made(3, &[]);
    let text = text(&trace, &analysis, &header);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "larder-routes 1");
    assert!(lines[1].starts_with(r#"{"nodes":3,"names":[],"memory_per_node_bytes":"#), "{}", lines[1]);
    assert!(lines[1].contains(r#""origin":"ward01""#));
    assert!(lines[2].starts_with("core /"), "{}", lines[2]);
    assert_eq!(*lines.last().expect("lines"), format!("end {}", lines.len() - 3));
    let (_, table) = read(text.as_bytes()).expect("a table");
    let first = lines[2].strip_prefix("core ").expect("the core");
    assert_eq!(table.get(id_of(first)), Some(Place::Core));
    assert_eq!(table.get(id_of("/never")), None);
}

#[test]
fn errors_have_file_line_and_problem() {
    let (trace, analysis, header) = made(3, &["a", "b", "c"]);
    let good = text(&trace, &analysis, &header);
    let rows = good.lines().count() - 3;
    let with = |at: usize, line: &str| {
        let lines = good.lines().enumerate().map(|(i, l)| if i + 1 == at { line } else { l });
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let cases = [
        (String::new(), "t.routes:1: not a routing table"),
        ("GET / HTTP/1.1".to_owned(), "t.routes:1: not a routing table: it starts with \"GET / HTTP/1.1\""),
        (with(1, "larder-routes 2"), "t.routes:1: a routing table of version \"2\""),
        (with(2, "{}"), "t.routes:2: invalid header: missing field"),
        (good.replacen("\"log\"", "\"lok\"", 1), "t.routes:2: invalid header: unknown field `lok`"),
        (
            good.replacen("\"nodes\":3", "\"nodes\":0", 1),
            "t.routes:2: a routing table is for 1 to 1024 nodes, not 0",
        ),
        (good.replacen("\"nodes\":3", "\"nodes\":4", 1), "t.routes:2: 3 names for 4 nodes"),
        (good.replacen("\"b\"", "\"a\"", 1), "t.routes:2: two nodes are named \"a\""),
        (good.replacen("\"b\"", "\"\\u0007\"", 1), "t.routes:2: \"\\x07\" is not a name of a node"),
        (good.replacen(":276.0", ":-276.0", 1), "t.routes:2: the costs"),
        (with(3, "core"), "t.routes:3: \"core\" is not a row"),
        (with(3, "core /a b"), "t.routes:3: \"core /a b\" is not a row"),
        (with(3, "70000 /a"), "t.routes:3: \"70000 /a\" is not a row"),
        (with(3, "3 /a"), "t.routes:3: \"/a\" belongs to node 3, and the table is for 3 nodes"),
        (with(3, &format!("core /{}", "x".repeat(600))), "t.routes:3: a line longer than 512 bytes"),
        (with(rows + 3, "end 1"), "rows"),
        (with(3, "0 /a"), "of the core) where"),
        (with(rows + 3, "core /one-too-many"), "the file is truncated"),
        (format!("{good}core /more\n"), "the file continues after"),
    ];
    for (file, expected) in cases {
        let error = read(file.as_bytes()).expect_err(expected);
        assert!(error.contains(expected), "{error}\n  where expected: {expected}");
    }
    let few = Limits { targets_max: 2, ..Limits::default() };
    let error = read_routes_from(good.as_bytes(), Path::new("t"), &few, id_of).expect_err("too many");
    assert_eq!(error.to_string(), "t:5: more than 2 targets");
    let error = read_routes(Path::new("/none/t"), &few, id_of).expect_err("no file");
    assert!(error.to_string().starts_with("/none/t:0: reading failed"), "{error}");
}

proptest! {
    #[test]
    fn damaged_tables_do_not_panic(
        cut in 0_usize..4_000,
        flips in prop::collection::vec((0_usize..4_000, any::<u8>()), 0..4),
    ) {
        let (trace, analysis, header) = made(2, &[]);
        let mut bytes = text(&trace, &analysis, &header).into_bytes();
        let whole = bytes.len();
        bytes.truncate(cut);
        for (at, byte) in flips {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        let found = read(&bytes);
        // Without the last line feed the file is still complete.
        prop_assert!(cut + 1 >= whole || found.is_err());
    }
}

#[test]
fn a_failed_save_keeps_the_old_table() {
    let (trace, analysis, header) = made(2, &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("t.routes");
    std::fs::create_dir(&place).expect("a folder in the way");
    std::fs::File::create(place.join("kept")).and_then(|mut f| f.write_all(b"x")).expect("written");
    save_routes(&header, &analysis, &trace, &place).expect_err("a folder is no file");
    assert!(place.join("kept").exists());
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}
