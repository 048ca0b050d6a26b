//! Checks of the recipes against their published figures, by the statistics of the trace at full length. The
//! tolerance is 2 %, and 5 % for the number of covering targets, which is published for the HP trace only.

use larder_trace::Stats;
use larder_trace::synth::{Popularity, Recipe, SizeGoal, generate};

fn near(what: &str, got: f64, want: f64) {
    within(0.02, what, got, want);
}

fn within(tolerance: f64, what: &str, got: f64, want: f64) {
    assert!((got / want - 1.0).abs() <= tolerance, "{what}: {got} where the recipe has {want}");
}

fn check(name: &str) -> Stats {
    let recipe = Recipe::by_name(name).expect("a recipe");
    let stats = Stats::of_trace(&generate(&recipe, 1, 1.0).expect("possible at full length"));
    near("targets", stats.targets as f64, recipe.targets.into());
    near("requests", stats.requests as f64, recipe.requests as f64);
    near("bytes", stats.working_set.expect("sizes") as f64, recipe.bytes.expect("known").get() as f64);
    match &recipe.popularity {
        Popularity::Curve { hottest, .. } => near("hottest", stats.hottest_share, *hottest),
        Popularity::Knee { top, .. } => near("hottest", stats.hottest_share, top[0].1),
        Popularity::Zipf { exponent } => near("exponent", stats.zipf.expect("a fit").exponent, *exponent),
    }
    for goal in &recipe.coverage {
        let point = stats.coverage_at(goal.requests_permille).expect("on the grid");
        near("memory", point.bytes.expect("sizes") as f64, goal.bytes.get() as f64);
        within(0.05, "covering targets", point.targets_share, goal.targets_share);
    }
    if let SizeGoal::ReplyMean(mean) = recipe.sizes {
        near("mean reply", stats.reply_mean.expect("sizes"), mean);
    }
    println!("{name}: {stats}");
    stats
}

#[test]
fn rice_like() {
    check("rice-like");
}

#[test]
fn ibm_like() {
    check("ibm-like");
}

#[test]
fn clarknet_like() {
    check("clarknet-like");
}

#[test]
fn nasa_like() {
    check("nasa-like");
}

#[test]
fn rutgers_like() {
    check("rutgers-like");
}

#[test]
fn forth_like() {
    check("forth-like");
}

#[test]
fn combined_like() {
    check("combined-like");
}

#[test]
fn deepblue_like_fits_one_cache() {
    assert!(check("deepblue-like").working_set.expect("sizes") < 32_000_000);
}

#[test]
fn hp_like_and_its_days() {
    let stats = check("hp-like");
    let point = stats.coverage_at(955).expect("on the grid");
    near("transferred", point.transferred_share.expect("sizes"), 0.65);
    let core = stats.core90.expect("requests");
    near("core-90 % targets", core.targets_share, 0.045);
    assert!(core.working_set_share.expect("sizes") < 0.02);
    assert_eq!(core.days.len(), 4);
    let (least, most) = (0.005, 0.03);
    for day in &core.days {
        assert!((least..most).contains(&day.new_share), "{day:?}");
    }
}
