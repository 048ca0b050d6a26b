//! A node is killed under load. No GET fails, its targets move, and the node is used again after its return.

use crate::crowd::{Crowd, TARGETS, manifest};
use crate::http::get;
use crate::process::{Process, until};

fn state(switch: &Process, name: &str) -> String {
    let nodes = get(switch.admin.unwrap(), "/nodes").json();
    let row = nodes.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
    row["state"].as_str().unwrap().to_owned()
}

#[test]
fn killing_a_node_under_load_fails_no_get() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let mut nodes: Vec<Process> =
        ["a", "b", "c"].map(|name| Process::model_node(name, "127.0.0.1:0", &manifest)).into();
    let members: Vec<String> = nodes
        .iter()
        .zip(["a", "b", "c"])
        .map(|(node, name)| format!("--node={name}={}", node.address))
        .collect();
    let mut words = vec!["switch", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    words.extend(members.iter().map(String::as_str));
    let switch = Process::start(&words);

    let crowd = Crowd::start(switch.address);
    crowd.more(1_000);
    let address = nodes[1].address.to_string();
    nodes[1].kill();
    until("the switch notices", || (state(&switch, "b") == "down").then_some(()));
    crowd.more(1_000);
    let moved = until("the targets have moved", || {
        let explained = get(switch.admin.unwrap(), "/explain?target=localhost/t1");
        (explained.status == 200).then(|| get(switch.address, "/t1").node_and_hit().0)
    });
    assert_ne!(moved, "b");

    nodes[1] = Process::model_node("b", &address, &manifest);
    until("the switch takes it back", || (state(&switch, "b") == "up").then_some(()));
    // A new target goes to the least loaded node, so the returned node gets some of them.
    crowd.more(500);
    let back = until("the node is used again", || {
        let used = (0..TARGETS).any(|i| {
            get(switch.address, &format!("/t{i}?new"))
                .header("cache-status")
                .is_some_and(|status| status.starts_with('b'))
        });
        used.then_some(true)
    });
    assert!(back);
    let replies = crowd.end();
    assert_eq!(replies.len(), 3, "all three nodes served: {replies:?}");
}
