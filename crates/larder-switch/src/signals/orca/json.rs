//! The JSON format: protobuf's JSON mapping, with either spelling of field names. Unused fields are skipped.

use super::{OrcaReport, SignalFailure};
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

pub(super) fn read(json: &str) -> Result<OrcaReport, SignalFailure> {
    let message: Message = serde_json::from_str(json).map_err(|_| SignalFailure::Malformed)?;
    let mut orca = OrcaReport::default();
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
                return Err(SignalFailure::Malformed);
            }
            orca.put(&format!("{kind}.{name}"), value)?;
        }
    }
    Ok(orca)
}
