//! The metrics of a simulated cluster.

use larder_sim::cooperation::CooperationOutcome;

/// The name of a metric, and the function that computes it from a run with a number of nodes.
type Metric = (&'static str, fn(&CooperationOutcome, f64) -> f64);

/// The metrics.
///
/// | metric | meaning |
/// |---|---|
/// | `throughput`, `throughput_node` | requests per simulated second, of the cluster, of a node |
/// | `hit_rate`, `hit_rate_local`, `miss_rate` | THR, LHR and 1 - THR, 0 to 1 |
/// | `forwarded`, `local` | share of the requests that another node served, or their initial node |
/// | `load_broadcasts`, `cache_broadcasts`, `cache_changes`, `messages`, `message_bytes`, `relayed_bytes`, `disk_reads`, `asks` | per request |
/// | `message_bytes_node_s` | bytes of messages that a node receives per second |
/// | `batch` | mean number of questions per message to a dispatcher |
/// | `answer_mean_s`, `answer_p99_s` | wait of requests for its answer |
/// | `sharing` | share of the nodes' time in which they cooperated |
/// | `imbalance` | requests of the node that served most, over the mean |
/// | `cpu_busy`, `disk_busy`, `external_busy`, `internal_busy` | utilisation, 0 to 1, mean of the nodes |
/// | `talk_busy`, `dispatcher_busy` | share of the processors' time, and of the dispatcher's, that messages and decisions take |
/// | `state_bytes`, `state_bytes_most`, `targets_known` | of a node (mean), and of the node with most, at the end |
/// | `tables`, `table_targets`, `core_targets`, `table_spread_s` | routing tables made, the last one's size, time from the first node to the last |
/// | `table_bytes`, `count_bytes` | sent per table and node |
/// | `delay_mean_s`, `delay_p99_s` | delay of requests |
/// | `why_...` | share of the decisions with that reason |
const MEASURED: [Metric; 57] = [
    ("throughput", |outcome, _| outcome.throughput),
    ("throughput_node", |outcome, nodes| outcome.throughput / nodes),
    ("hit_rate", |outcome, _| outcome.hit_rate),
    ("hit_rate_local", |outcome, _| outcome.hit_rate_local),
    ("miss_rate", |outcome, _| 1.0 - outcome.hit_rate),
    ("forwarded", |outcome, _| outcome.forwarded_share),
    ("local", |outcome, _| 1.0 - outcome.forwarded_share),
    ("load_broadcasts", |outcome, _| outcome.load_broadcasts),
    ("cache_broadcasts", |outcome, _| outcome.cache_broadcasts),
    ("cache_changes", |outcome, _| outcome.cache_changes),
    ("messages", |outcome, _| outcome.messages),
    ("message_bytes", |outcome, _| outcome.message_bytes),
    ("message_bytes_node_s", |outcome, nodes| outcome.message_bytes * outcome.throughput / nodes),
    ("relayed_bytes", |outcome, _| outcome.relayed_bytes),
    ("disk_reads", |outcome, _| outcome.disk_reads),
    ("asks", |outcome, _| outcome.asks),
    ("batch", |outcome, _| outcome.batch),
    ("answer_mean_s", |outcome, _| outcome.answer.mean_s),
    ("answer_p99_s", |outcome, _| outcome.answer.p99_s),
    ("sharing", |outcome, _| outcome.sharing),
    ("imbalance", |outcome, _| outcome.imbalance),
    ("cpu_busy", |outcome, _| outcome.busy.cpu),
    ("disk_busy", |outcome, _| outcome.busy.disk),
    ("external_busy", |outcome, _| outcome.busy.external),
    ("internal_busy", |outcome, _| outcome.busy.internal),
    ("talk_busy", |outcome, _| outcome.busy.talk),
    ("dispatcher_busy", |outcome, _| outcome.busy.dispatcher),
    ("state_bytes", |outcome, _| outcome.state_bytes),
    ("state_bytes_most", |outcome, _| outcome.state_bytes_most),
    ("targets_known", |outcome, _| outcome.targets_known),
    ("tables", |outcome, _| outcome.tables.made as f64),
    ("table_targets", |outcome, _| outcome.tables.targets as f64),
    ("core_targets", |outcome, _| outcome.tables.core_targets as f64),
    ("table_spread_s", |outcome, _| outcome.tables.spread_s),
    ("table_bytes", |outcome, _| outcome.table_bytes),
    ("count_bytes", |outcome, _| outcome.count_bytes),
    ("delay_mean_s", |outcome, _| outcome.delay.mean_s),
    ("delay_p99_s", |outcome, _| outcome.delay.p99_s),
    ("why_alone", |outcome, _| outcome.reason_share("alone")),
    ("why_large", |outcome, _| outcome.reason_share("large")),
    ("why_here", |outcome, _| outcome.reason_share("here")),
    ("why_first", |outcome, _| outcome.reason_share("first")),
    ("why_peer", |outcome, _| outcome.reason_share("peer")),
    ("why_relief", |outcome, _| outcome.reason_share("relief")),
    ("why_spread", |outcome, _| outcome.reason_share("spread")),
    ("why_crowded", |outcome, _| outcome.reason_share("crowded")),
    ("why_silent", |outcome, _| outcome.reason_share("silent")),
    ("why_full", |outcome, _| outcome.reason_share("full")),
    ("why_gone", |outcome, _| outcome.reason_share("gone")),
    ("why_core", |outcome, _| outcome.reason_share("core")),
    ("why_own", |outcome, _| outcome.reason_share("own")),
    ("why_owner", |outcome, _| outcome.reason_share("owner")),
    ("why_heir", |outcome, _| outcome.reason_share("heir")),
    ("why_rest", |outcome, _| outcome.reason_share("rest")),
    ("why_early", |outcome, _| outcome.reason_share("early")),
    ("requests", |outcome, _| outcome.requests as f64),
    ("seconds", |outcome, _| outcome.seconds),
];

/// The relative deviation of the model's throughput from the simulated throughput.
pub(super) const MODEL_ERROR: &str = "model_error";

/// Returns the names of all metrics.
pub(super) fn names() -> Vec<&'static str> {
    MEASURED.iter().map(|(name, _)| *name).chain([MODEL_ERROR]).collect()
}

/// Returns the values of all metrics but [`MODEL_ERROR`].
pub(super) fn values(outcome: &CooperationOutcome, nodes: f64) -> Vec<(&'static str, f64)> {
    MEASURED.iter().map(|(name, of)| (*name, of(outcome, nodes))).collect()
}
