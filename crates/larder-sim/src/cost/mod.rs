//! Cost models: named models of the time that a request takes at a node.
//!
//! The engine asks a model for a request's next [`ServiceStep`] when the request reaches its node, and again
//! after each step. The model answers from the [`RequestProgress`] and the [`RequestFacts`]. Every station
//! serves in order of arrival, so a step ends at `max(now, station free) + time`. Times are for a node of
//! speed 1; the engine divides them by the node's speed.

mod cap01;
mod file;
mod hacc99;
mod lard98;
mod model;
mod modelled;
mod modern;
mod ward01;

pub use cap01::{Cap01, SwitchLayer};
pub use file::CostsFileError;
pub use hacc99::Hacc99;
pub use lard98::Lard98;
pub use model::{
    CostModel, FrontCost, LookupOutcome, RequestCost, RequestFacts, RequestProgress, ServiceStep, Stations,
};
pub use modelled::ModelledNode;
pub use modern::{Modern, NetworkCosts, NodeCosts, Storage, SwitchCosts};
pub use ward01::Ward01;

use serde::{Deserialize, Serialize};

use crate::SimError;

/// A cost model by its name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
pub enum Costs {
    /// The node of the LARD paper.
    Lard98(Lard98),
    /// The server of the WARD paper.
    Ward01(Ward01),
    /// The cluster of the CAP paper.
    Cap01(Cap01),
    /// The cluster of the HACC paper.
    Hacc99(Hacc99),
    /// The live node over a modelled store.
    Modelled(ModelledNode),
    /// The live switch and nodes on today's hardware.
    Modern(Modern),
}

impl Costs {
    /// The names of all models.
    pub const NAMES: [&'static str; 7] =
        ["lard98", "ward01", "cap01", "hacc99", "modelled", "modern", "modern-object-store"];

    /// Returns the model of that name with its published values. `modern-object-store` is `modern` with
    /// another store.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "lard98" => Self::Lard98(Lard98::default()),
            "ward01" => Self::Ward01(Ward01::default()),
            "cap01" => Self::Cap01(Cap01::default()),
            "hacc99" => Self::Hacc99(Hacc99::default()),
            "modelled" => Self::Modelled(ModelledNode::default()),
            "modern" => Self::Modern(Modern::default()),
            "modern-object-store" => Self::Modern(Modern::over_object_store()),
            _ => return None,
        })
    }

    /// Returns the model's name, as written in a file.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Lard98(_) => "lard98",
            Self::Ward01(_) => "ward01",
            Self::Cap01(_) => "cap01",
            Self::Hacc99(_) => "hacc99",
            Self::Modelled(_) => "modelled",
            Self::Modern(_) => "modern",
        }
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        match self {
            Self::Lard98(model) => model.check(),
            Self::Ward01(model) => model.check(),
            Self::Cap01(model) => model.check(),
            Self::Hacc99(model) => model.check(),
            Self::Modelled(model) => model.check(),
            Self::Modern(model) => model.check(),
        }
    }
}
