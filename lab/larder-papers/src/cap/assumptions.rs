//! The properties of the CAP workload that the paper leaves open.

use larder_core::TargetId;
use larder_sim::cost::Cap01;
use larder_trace::synth::sessions::{SessionRecipe, Sessions, Site};
use serde::Deserialize;

use crate::users::KeyExchange;

/// Mean number of database accesses of a query in the recipe: 5 to 15, equally likely.
const RECIPE_ACCESSES: f64 = 10.0;
/// The beginning of the keys of lightly dynamic documents.
const LIGHT: &str = "/light/";

/// The time at which a lightly dynamic document is found cacheable or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Cacheability {
    /// Once for each document.
    #[default]
    Document,
    /// Anew for each request.
    Request,
}

/// The assumptions. The defaults are those of the recipe.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Assumptions {
    /// The Zipf exponent of the popularity of documents, 0 to 5.
    pub(super) exponent: f64,
    /// The mean number of database accesses of a query, above 0 and at most 1,000.
    pub(super) accesses: f64,
    /// The number of objects of the largest page, 2 to 10,000.
    pub(super) objects_max: f64,
    /// The secure requests that begin with a key exchange.
    pub(super) keys: KeyExchange,
    /// The time at which cacheability is drawn.
    pub(super) cacheable: Cacheability,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            exponent: 0.8,
            accesses: RECIPE_ACCESSES,
            objects_max: 100.0,
            keys: KeyExchange::default(),
            cacheable: Cacheability::default(),
        }
    }
}

impl Assumptions {
    pub(super) fn check(&self) -> Result<(), String> {
        let checks = [
            ("exponent", (0.0..=5.0).contains(&self.exponent), "0 to 5"),
            ("accesses", self.accesses > 0.0 && self.accesses <= 1_000.0, "above 0 and at most 1,000"),
            ("objects_max", (2.0..=10_000.0).contains(&self.objects_max), "2 to 10,000"),
        ];
        let wrong = checks.into_iter().find(|(_, is_good, _)| !is_good);
        wrong.map_or(Ok(()), |(key, _, range)| Err(format!("'{key}' must be {range}")))
    }

    /// Returns the recipe of a site's sessions.
    pub(super) fn recipe(&self, site: Site, sessions_per_s: f64, span_s: f64) -> SessionRecipe {
        let mut recipe =
            SessionRecipe { sessions_per_s, span_s, exponent: self.exponent, ..SessionRecipe::cap01(site) };
        recipe.objects.most = self.objects_max;
        if self.cacheable == Cacheability::Request {
            recipe.light_cacheable = 1.0;
        }
        recipe
    }

    /// Returns the back-end time of one of the recipe's accesses, in ns.
    pub(super) fn access_ns(&self, costs: &Cap01) -> u64 {
        (costs.access_ns() as f64 * self.accesses / RECIPE_ACCESSES) as u64
    }

    /// Draws the cacheability of each request for a lightly dynamic document, if requests decide. The document
    /// gets a twin with the same key that is never kept in memory, and the other requests ask for the twin.
    pub(super) fn draw_cacheability(&self, sessions: &mut Sessions, seed: u64) {
        if self.cacheable == Cacheability::Document {
            return;
        }
        let share = SessionRecipe::cap01(Site::PublishingLight).light_cacheable;
        let mut twins = vec![None; sessions.items.len()];
        for (place, number) in twins.iter_mut().enumerate() {
            let item = &sessions.items[place];
            if item.key.starts_with(LIGHT) {
                let twin = larder_trace::synth::sessions::SiteItem { cacheable: false, ..item.clone() };
                *number = Some(sessions.items.len() as u32);
                sessions.items.push(twin);
            }
        }
        for (number, object) in sessions.objects.iter_mut().enumerate() {
            // The hash serves as a random number that depends on seed and request only.
            let draw = TargetId::of(format!("{seed} {number}").as_bytes()).0 as u32;
            if let Some(twin) = twins[*object as usize]
                && f64::from(draw) / f64::from(u32::MAX) >= share
            {
                *object = twin;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_draw_cacheability_with_the_papers_probability() {
        let assume = Assumptions { cacheable: Cacheability::Request, ..Assumptions::default() };
        let mut sessions = assume.recipe(Site::CommerceA, 50.0, 20.0).sessions(1).expect("in range");
        let before = sessions.clone();
        assume.draw_cacheability(&mut sessions, 1);
        let keys = |sessions: &Sessions| -> Vec<String> {
            sessions.objects.iter().map(|item| sessions.items[*item as usize].key.clone()).collect()
        };
        assert_eq!(keys(&sessions), keys(&before), "each request asks for the same document");
        let light = || {
            let items = sessions.objects.iter().map(|item| &sessions.items[*item as usize]);
            items.filter(|item| item.key.starts_with(LIGHT))
        };
        let share = light().filter(|item| item.cacheable).count() as f64 / light().count() as f64;
        // There are more than 2,000 requests. Six standard deviations are at most 0.062.
        assert!(light().count() > 2_000 && (share - 0.3).abs() < 0.062, "{share}");
        let others = sessions.objects.iter().zip(&before.objects);
        assert!(
            others.filter(|(now, before)| now != before).all(|(now, _)| *now >= before.items.len() as u32)
        );
    }

    #[test]
    fn queries_take_the_assumed_accesses() {
        let costs = Cap01::default();
        assert_eq!(Assumptions::default().access_ns(&costs), costs.access_ns());
        let half = Assumptions { accesses: 5.0, ..Assumptions::default() };
        assert_eq!(half.access_ns(&costs), costs.access_ns() / 2);
    }
}
