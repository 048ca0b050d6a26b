//! The JSON form: the message by protobuf's JSON rules, with either spelling of its fields. Fields that are not used
//! are passed over, whatever they hold.

use super::{Cause, Orca};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Message {
    #[serde(alias = "cpuUtilization")]
    cpu_utilization: Option<f64>,
    #[serde(alias = "memUtilization")]
    mem_utilization: Option<f64>,
    #[serde(alias = "applicationUtilization")]
    application_utilization: Option<f64>,
    #[serde(alias = "rpsFractional")]
    rps_fractional: Option<f64>,
    eps: Option<f64>,
    #[serde(default)]
    utilization: BTreeMap<String, f64>,
    #[serde(default, alias = "namedMetrics")]
    named_metrics: BTreeMap<String, f64>,
}

pub(super) fn read(json: &str) -> Result<Orca, Cause> {
    let message: Message = serde_json::from_str(json).map_err(|_| Cause::Malformed)?;
    let mut orca = Orca::default();
    for (name, value) in [
        ("cpu_utilization", message.cpu_utilization),
        ("mem_utilization", message.mem_utilization),
        ("application_utilization", message.application_utilization),
        ("rps_fractional", message.rps_fractional),
        ("eps", message.eps),
    ] {
        value.map_or(Ok(()), |value| orca.put(name, value))?;
    }
    for (kind, values) in [("utilization", message.utilization), ("named_metrics", message.named_metrics)] {
        for (name, value) in values {
            if name.is_empty() {
                return Err(Cause::Malformed);
            }
            orca.put(&format!("{kind}.{name}"), value)?;
        }
    }
    Ok(orca)
}
