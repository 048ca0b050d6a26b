//! Routes: each with its policy, its key, its classes and its nodes.

mod support;

use larder_core::dispatch::Admission;
use larder_core::policy::table::{Place, RouteTable};
use larder_core::rules::{ClassRules, KeyTemplate, Matcher, RuleError};
use larder_core::{Bytes, PolicyKind, ServiceClass, Settings, TargetId};
use larder_edge::access::{AccessFormat, AccessLogConfig};
use larder_switch::{NodeEntry, Route, RouteError, RouteStatus, SwitchConfig};
use larder_testkit::take_time_async;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use support::{Act, Client, Node, Running, config, eventually, header, ok};

/// A config over these nodes, each in the groups beside it.
fn grouped(nodes: &[(&Node, &[&str])], routes: Vec<Route>) -> SwitchConfig {
    let plain: Vec<&Node> = nodes.iter().map(|(node, _)| *node).collect();
    let mut config = config(&plain);
    for (entry, (_, groups)) in config.nodes.iter_mut().zip(nodes) {
        entry.groups = groups.iter().map(ToString::to_string).collect();
    }
    config.routes = routes;
    config
}

/// A route by path over a group.
fn route(name: &str, path: &str, group: &str, policy: PolicyKind) -> Route {
    let settings = Settings { policy, ..Settings::default() };
    let matcher = Matcher::new().path(path).expect("a path");
    Route { settings, group: Some(group.to_owned()), ..Route::new(name, matcher) }
}

async fn get(client: &mut Client, host: &str, target: &str) -> support::Reply {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
    client.reply().await
}

fn of(running: &Running, name: &str) -> RouteStatus {
    running.handle.routes().into_iter().find(|route| route.name == name).expect(name)
}

#[tokio::test]
async fn a_request_goes_by_host_and_path_to_its_routes_nodes_and_policy() -> Result<(), RuleError> {
    let (a, b, c) = (Node::named("a").await, Node::named("b").await, Node::named("c").await);
    let mut shop = route("shop", "/shop/*", "left", PolicyKind::Rr);
    shop.matchers = vec![Matcher::new().host("*.shop.example")?, Matcher::new().path("/shop/*")?];
    let api = route("api", "/api/*", "right", PolicyKind::Lard);
    let running = Running::start(grouped(
        &[(&a, &["left"]), (&b, &["left", "right"]), (&c, &["right"])],
        vec![shop, api],
    ));
    let mut client = running.client().await;
    let mut shop = Vec::new();
    for (host, target) in
        [("www.SHOP.example:80", "/x"), ("h", "/shop/x"), ("h", "/shop/x"), ("a.shop.example", "/api/x")]
    {
        shop.push(get(&mut client, host, target).await.text().to_owned());
    }
    assert_eq!(shop, ["a", "b", "a", "b"], "round robin over the group, whatever the target");
    let mut api = BTreeSet::new();
    for target in 0..20 {
        let first = get(&mut client, "h", &format!("/api/{target}")).await.text().to_owned();
        assert_eq!(get(&mut client, "h", &format!("/api/{target}")).await.text(), first, "by target");
        api.insert(first);
    }
    assert_eq!(api, BTreeSet::from(["b".to_owned(), "c".to_owned()]), "b is in both groups");
    let mut other = BTreeSet::new();
    for target in 0..20 {
        other.insert(get(&mut client, "h", &format!("/{target}")).await.text().to_owned());
    }
    assert_eq!(other.len(), 3, "what no route takes uses all nodes");
    running.settles().await;
    let routes = running.handle.routes();
    let shown: Vec<_> = routes
        .iter()
        .map(|route| {
            (
                &*route.name,
                &*route.policy,
                route.group.as_deref(),
                route.nodes_up,
                route.targets,
                route.requests[0],
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("default", "lard-r", None, 3, 20, 20),
            ("shop", "rr", Some("left"), 2, 0, 4),
            ("api", "lard", Some("right"), 2, 20, 40)
        ]
    );
    assert_eq!(routes[1].matchers, ["host=*.shop.example", "path=/shop/*"]);
    let nodes = running.handle.nodes();
    assert_eq!(
        nodes.iter().map(|node| node.groups.join("+")).collect::<Vec<_>>(),
        ["left", "left+right", "right"]
    );
    assert_eq!(
        running.metric("larder_switch_route_requests_total{route=\"api\",service_class=\"n\"} "),
        40.0
    );
    assert_eq!(running.metric("larder_switch_route_decisions_total{route=\"api\",reason=\"local\"} "), 20.0);
    assert_eq!(running.metric("larder_switch_group_outstanding{group=\"left\"} "), 0.0);
    Ok(())
}

#[tokio::test]
async fn a_group_without_a_node_that_answers_fails_alone() {
    let (a, mut b) = (Node::named("a").await, Node::named("b").await);
    let api = route("api", "/api/*", "right", PolicyKind::LardR);
    let mut config = grouped(&[(&a, &[]), (&b, &["right"])], vec![api]);
    config.health.passive_fall = 1;
    let running = Running::start(config);
    let mut client = running.client().await;
    assert_eq!(get(&mut client, "h", "/api/1").await.text(), "b");
    running.handle.drain("b").expect("it is a node");
    let reply = get(&mut client, "h", "/api/1").await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (503, Some("no_node")));
    assert_eq!(reply.field("retry-after"), Some("1"));
    assert_eq!(get(&mut client, "h", "/1").await.text(), "a", "others go on");
    assert_eq!(of(&running, "api").nodes_up, 0);
    let explained = running.handle.explain("h", "/api/1");
    assert_eq!((&*explained.route, explained.node), ("api", None));
    // Traffic alone does not take out the last node of a group, though the cluster has others.
    running.handle.undrain("b").expect("it is a node");
    b.kill().await;
    for _ in 0..3 {
        let reply = get(&mut running.client().await, "h", "/api/1").await;
        assert_eq!((reply.status, reply.field("x-larder-error")), (502, Some("connect_failed")));
    }
    assert_eq!(of(&running, "api").nodes_up, 1);
    running.settles().await;
}

#[tokio::test]
async fn a_key_says_what_counts_as_the_same_target() -> Result<(), RuleError> {
    let (a, b) = (Node::named("a").await, Node::named("b").await);
    let mut notes = Route::new("notes", Matcher::new().host("notes")?);
    notes.key = Some("{host}{path:2}?{query:#1}".parse()?);
    let mut config = grouped(&[(&a, &[]), (&b, &[])], vec![notes]);
    config.key = "{path}|{cookie:user}".parse::<KeyTemplate>()?;
    let running = Running::start(config);
    let mut client = running.client().await;
    // One view and action, whatever the document and the parameters.
    let target = |reply: &Node| header(&reply.last(), "larder-target").map(str::to_owned);
    let mut ids = BTreeSet::new();
    for document in 0..10 {
        let path = format!("/db.nsf/byDate/doc{document}?OpenDocument&Start={document}");
        let node = get(&mut client, "notes", &path).await.text().to_owned();
        ids.insert(target(if node == "a" { &a } else { &b }));
    }
    let explained = running.handle.explain("NOTES", "/db.nsf/byDate/x?OpenDocument&y");
    assert_eq!(
        ids,
        BTreeSet::from([Some(explained.id.clone())]),
        "the node is told the id that is explained"
    );
    assert_eq!((&*explained.route, &*explained.key), ("notes", "notes/db.nsf/byDate?OpenDocument"));
    assert!(explained.known && explained.node.is_some());
    assert_eq!(of(&running, "notes").targets, 1);
    // Elsewhere the user counts and the query does not; what a client says of the target does not count at all.
    for (user, query) in [("1", "a"), ("1", "b"), ("2", "a")] {
        let request =
            format!("GET /x?{query} HTTP/1.1\r\nHost: h\r\nCookie: user={user}\r\nLarder-Target: 0\r\n\r\n");
        client.send(request).await;
        let node = client.reply().await.text().to_owned();
        let seen = if node == "a" { a.last() } else { b.last() };
        let fields = vec![("cookie", format!("user={user}"))];
        let explained = running.handle.explain_request("GET", "h", "/x", &fields, None);
        assert_eq!(header(&seen, "larder-target"), Some(&*explained.id));
        assert_eq!(seen.to_lowercase().matches("larder-target:").count(), 1);
        assert_eq!(explained.key, format!("/x|user={user}").replace("user=", ""));
    }
    assert_eq!(of(&running, "default").targets, 2);
    Ok(())
}

/// Rules for the classes of CAP's figure 2, told apart by path.
fn figure_2_rules() -> Result<ClassRules, RuleError> {
    ClassRules::new(vec![
        (Matcher::new().path("/secure/cgi-bin/*")?, ServiceClass::Dcb),
        (Matcher::new().path("/secure/*")?, ServiceClass::Cb),
        (Matcher::new().path("/cgi-bin/*")?, ServiceClass::Db),
    ])
}

/// Figure 2 of CAP (WWW 2001) through the switch, with requests that stay open, so that what is in service at the end
/// can be counted at the nodes.
async fn figure_2(policy: PolicyKind, start: &[&str]) -> [Vec<String>; 2] {
    let gated = |name: &'static str| {
        Node::scripted(name, move |head| {
            let ends = head.split(' ').nth(1).is_some_and(|path| path.ends_with("/end"));
            if ends { Act::Reply(ok(name, name)) } else { Act::Gated(ok(name, name)) }
        })
    };
    let (a, b) = (gated("a").await, gated("b").await);
    let mut config = config(&[&a, &b]);
    config.settings.policy = policy;
    config.settings.admission = Admission::Unlimited;
    config.classes = figure_2_rules().expect("rules");
    let running = Running::start(config);
    let mut clients = Vec::new();
    let arrivals =
        ["/n/1", "/secure/1", "/secure/2", "/cgi-bin/1", "/secure/cgi-bin/1", "/n/2", "/cgi-bin/2"];
    let known = |node: &Node| node.requests();
    for (at, target) in start.iter().chain(&arrivals).enumerate() {
        let mut client = running.client().await;
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        clients.push(client);
        // One after the other.
        eventually("the request has come to a node", || known(&a) + known(&b) == at + 1).await;
        if target.ends_with("/end") {
            let mut client = clients.pop().expect("it has been sent");
            assert_eq!(client.reply().await.status, 200);
        }
    }
    eventually("what has ended counts no more", || {
        running.loads().iter().sum::<u32>() as usize == clients.len()
    })
    .await;
    let loads = running.loads();
    let paths = |node: &Node| {
        let seen = node.seen.lock().expect("unpoisoned");
        let paths =
            seen.iter().filter_map(|head| head.split(' ').nth(1)).filter(|path| !path.ends_with("/end"));
        paths.map(str::to_owned).collect::<Vec<_>>()
    };
    let served = [paths(&a), paths(&b)];
    assert_eq!(loads, served.each_ref().map(|paths| u32::try_from(paths.len()).expect("few")), "in service");
    for node in [&a, &b] {
        node.gate.add_permits(100);
    }
    for client in &mut clients {
        assert_eq!(client.reply().await.status, 200);
    }
    running.settles().await;
    let requests = of(&running, "default").requests;
    let classes = |of: ServiceClass| {
        let rules = figure_2_rules().expect("rules");
        let all = start.iter().chain(&arrivals);
        all.filter(|path| rules.classify(&larder_core::rules::Head::get(b"h", path.as_bytes())) == of).count()
            as u64
    };
    assert_eq!(requests, ServiceClass::ALL.map(classes));
    served
}

/// Number of requests of each class (N, DB, CB, DCB) at a node.
fn by_class(paths: &[String]) -> [usize; 4] {
    let rules = figure_2_rules().expect("rules");
    let class = |path: &String| rules.classify(&larder_core::rules::Head::get(b"h", path.as_bytes()));
    ServiceClass::ALL.map(|wanted| paths.iter().filter(|path| class(path) == wanted).count())
}

#[tokio::test]
async fn figure_2_of_cap_live() {
    // The state before: A serves one CB and one DCB, B one N and one DB; of N and DB, A's requests have ended.
    let start = ["/secure/0", "/secure/cgi-bin/0", "/n/end", "/n/0", "/cgi-bin/end", "/cgi-bin/0"];
    let [a, b] = figure_2(PolicyKind::Cap, &start).await;
    assert_eq!(a, ["/secure/0", "/secure/cgi-bin/0", "/n/1", "/secure/2", "/cgi-bin/1"], "N1 CB2 DB1");
    assert_eq!(
        b,
        ["/n/0", "/cgi-bin/0", "/secure/1", "/secure/cgi-bin/1", "/n/2", "/cgi-bin/2"],
        "CB1 DCB1 N2 DB2"
    );
    assert_eq!((by_class(&a), by_class(&b)), ([1, 1, 2, 1], [2, 2, 1, 1]));
}

#[tokio::test]
async fn figure_2_of_cap_under_round_robin_live() {
    let [a, b] = figure_2(PolicyKind::Rr, &[]).await;
    // Requests that the figure adds to the state before it: A one CB and one DCB, B one N and one DB.
    assert_eq!(a, ["/n/1", "/secure/2", "/secure/cgi-bin/1", "/cgi-bin/2"]);
    assert_eq!(b, ["/secure/1", "/cgi-bin/1", "/n/2"]);
    let sum = |paths: &[String], before: [usize; 4]| {
        let after = by_class(paths);
        std::array::from_fn::<_, 4, _>(|class| after[class] + before[class])
    };
    assert_eq!((sum(&a, [0, 0, 1, 1]), sum(&b, [1, 1, 0, 0])), ([1, 1, 2, 2], [2, 2, 1, 0]));
}

/// Under LARD the figure takes a class for a target: DB and CB belong to A, N and DCB to B.
#[tokio::test]
async fn figure_2_of_cap_under_lard_live() -> Result<(), RuleError> {
    let (a, b) = (Node::named("a").await, Node::named("b").await);
    let mut config = config(&[&a, &b]);
    config.settings.policy = PolicyKind::Lard;
    config.key = "{path:1}".parse()?;
    let running = Running::start(config);
    let mut client = running.client().await;
    // Of each class a first segment whose target the policy places where the figure has it.
    let mut names = Vec::new();
    for (class, node) in [("n", "b"), ("db", "a"), ("cb", "a"), ("dcb", "b")] {
        // A client has its reply before the load is given back.
        running.settles().await;
        let there = |name: &String| running.handle.explain("h", name).node.as_deref() == Some(node);
        let name = (0..100).map(|n| format!("/{class}{n}")).find(there).expect("one in two does");
        assert_eq!(client.get(&name).await.text(), node);
        names.push(name);
    }
    let [n, db, cb, dcb] = &names[..] else { panic!("four classes") };
    let mut sent = Vec::new();
    for class in [n, cb, cb, db, dcb, n, db] {
        running.settles().await;
        sent.push(client.get(&format!("{class}/{}", sent.len())).await.text().to_owned());
    }
    assert_eq!(sent, ["b", "a", "a", "a", "b", "b", "a"], "CB1 CB2 DB1 DB2 to A; N1 DCB1 N2 to B");
    Ok(())
}

#[tokio::test]
async fn routes_and_classes_are_logged() -> Result<(), RuleError> {
    for format in [AccessFormat::Combined, AccessFormat::Json] {
        let a = Node::named("a").await;
        let mut pay = Route::new("pay", Matcher::new().path("/pay*")?);
        pay.classes = Some(ClassRules::new(vec![(Matcher::new().method("POST")?, ServiceClass::Dcb)])?);
        let mut config = grouped(&[(&a, &[])], vec![pay]);
        let path = std::env::temp_dir().join(format!("larder-routes-{format:?}-{}", std::process::id()));
        config.access_log = Some(AccessLogConfig { format: format.clone(), ..AccessLogConfig::file(&path) });
        let mut running = Running::start(config);
        let mut client = running.client().await;
        client.send("POST /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(client.reply().await.status, 200);
        assert_eq!(client.get("/other").await.status, 200);
        drop(client);
        running.stop();
        (&mut running.task).await.expect("no panic").expect("no error");
        drop(running);
        let mut text = String::new();
        // The writer ends when the last connection has let go of the log.
        eventually("both lines are written", || {
            text = std::fs::read_to_string(&path).unwrap_or_default();
            text.lines().count() == 2
        })
        .await;
        std::fs::remove_file(&path).expect("removes");
        let expected = match format {
            AccessFormat::Custom(_) => unreachable!("not among them"),
            AccessFormat::Combined => ["route=pay class=dcb", "route=default class=n"],
            AccessFormat::Json => {
                ["\"route\":\"pay\",\"class\":\"dcb\"", "\"route\":\"default\",\"class\":\"n\""]
            }
        };
        for (line, expected) in text.lines().zip(expected) {
            assert!(line.contains(expected), "{line}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_node_joins_the_groups_it_names() {
    let (a, b) = (Node::named("a").await, Node::named("b").await);
    let api = route("api", "/api/*", "right", PolicyKind::Rr);
    let running = Running::start(grouped(&[(&a, &["right"])], vec![api]));
    let entry =
        |groups: &[&str]| NodeEntry { groups: groups.iter().map(ToString::to_string).collect(), ..b.entry() };
    let refused = running.handle.join(&entry(&["rigth"])).expect_err("no such group").to_string();
    assert_eq!(refused, "nodes.b.groups: no route uses group 'rigth': routes use right");
    assert_eq!(running.handle.nodes().len(), 1, "nothing half applies");
    running.handle.join(&entry(&["right"])).expect("joins");
    let mut client = running.client().await;
    let mut served = BTreeSet::new();
    for _ in 0..4 {
        served.insert(get(&mut client, "h", "/api/").await.text().to_owned());
    }
    assert_eq!(served.len(), 2);
    assert_eq!(of(&running, "api").nodes_up, 2);
}

#[tokio::test]
async fn a_route_that_goes_by_a_table_counts_for_it_and_takes_another() {
    let (a, b) = (
        Node::named("a").await,
        Node::scripted("b", |head| match head.contains("/ward/gone") {
            true => Act::Reply(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone".to_vec()),
            false => Act::Reply(ok("b", "bb")),
        })
        .await,
    );
    let ward = route("ward", "/ward/*", "both", PolicyKind::Ward);
    let running = Running::start(grouped(&[(&a, &["both"]), (&b, &["both"])], vec![ward]));
    let mut client = running.client().await;
    for (target, times) in [("/ward/x", 3), ("/ward/y", 1), ("/ward/gone", 2), ("/elsewhere", 1)] {
        for _ in 0..times {
            assert_ne!(get(&mut client, "h", target).await.status, 503);
        }
    }
    running.settles().await;
    let explained = running.handle.explain("h", "/ward/x");
    let taken = running.handle.take_census("ward", 0).expect("it counts");
    let x = taken.rows.iter().find(|row| row.target.to_string() == explained.id).expect("it was asked for");
    assert_eq!(x.requests, 3);
    assert!(x.size == Bytes(1) || x.size == Bytes(2), "{x:?}");
    let known: BTreeSet<_> = taken.rows.iter().map(|row| row.target.to_string()).collect();
    assert!(known.contains(&running.handle.explain("h", "/ward/y").id));
    assert!(!known.contains(&running.handle.explain("h", "/elsewhere").id), "of this route only");
    assert_eq!(running.handle.take_census("ward", 0).map(|taken| taken.rows.len()), Ok(0));
    let id = TargetId(u64::from_str_radix(&explained.id, 16).expect("16 digits"));
    let table = |node| Arc::new(RouteTable::new(2, [(id, Place::Node(node))]).expect("a table"));
    for (place, name) in [(1, "b"), (0, "a")] {
        assert_eq!(running.handle.set_table("ward", &table(place)), Ok(()));
        assert_eq!(get(&mut client, "h", "/ward/x").await.text()[..1], *name, "by the new table");
    }
    let table = table(0);
    let fault = running.handle.set_table("default", &table).expect_err("it uses none");
    assert_eq!(fault, RouteError::NoTable { route: "default".to_owned(), policy: PolicyKind::LardR });
    let text = "route 'default' has policy 'lard-r', which uses no routing table: use ward or part";
    assert_eq!(fault.to_string(), text);
    assert_eq!(running.handle.take_census("x", 0).map(drop), Err(RouteError::Unknown("x".to_owned())));
    assert_eq!(running.handle.take_census("default", 0).map(drop), Err(fault));
}

/// Delay of the slow node.
const LATE: Duration = Duration::from_millis(100);

/// Peak EWMA goes by what replies take: once both nodes have answered, it leaves the one that was late alone.
#[tokio::test]
async fn what_replies_take_is_told_to_the_policy() {
    for status in [200, 500] {
        let reply = move |name: &str| {
            let text = String::from_utf8(ok(name, name)).expect("text");
            text.replacen("200", &status.to_string(), 1).into_bytes()
        };
        let late = Node::scripted("late", move |_| Act::Gated(reply("late"))).await;
        let quick = Node::scripted("quick", move |_| Act::Reply(reply("quick"))).await;
        let mut config = config(&[&late, &quick]);
        config.settings.policy = PolicyKind::PeakEwma;
        let running = Running::start(config);
        // Lets every request to the late node go after a while that no quick reply takes.
        let (seen, gate) = (late.seen.clone(), late.gate.clone());
        let opens = tokio::spawn(async move {
            for request in 0.. {
                eventually("requests end", || seen.lock().expect("unpoisoned").len() > request).await;
                take_time_async(LATE).await;
                gate.add_permits(1);
            }
        });
        let mut client = running.client().await;
        for round in 0..20 {
            assert_eq!(client.get(&format!("/{round}")).await.status, status);
        }
        assert_eq!((late.requests(), quick.requests()), (1, 19), "{status}");
        opens.abort();
    }
}
