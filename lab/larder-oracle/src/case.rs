//! A case: two or three requests for one target, and what the origin replies to each.
//!
//! A case is a pure function of seed and number, so `SEED:NUMBER` replays it. Two of five cases start from a reply
//! that everybody may share and change a few values, so that a single rule decides; one of five starts from a
//! [`STARTS`] entry, which leads to a state that few draws reach. The others draw many values independently.

use crate::catalogue::{REPLY, REQUEST, SHAREABLE, reply, request};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Names of the clients.
pub const CLIENTS: [&str; 3] = ["alice", "bob", "carol"];
/// Whether the systems under test trust each client as a relay. Both kinds follow each other in pairs and in triples.
pub const RELAYS: [bool; 3] = [true, false, true];
/// Requests of a case at most.
pub const STEPS_MAX: usize = 3;

/// Values that all steps of a case start from: those of the request, those of the reply, and whether the second of
/// three requests is a POST.
type Beginning = (&'static [(usize, &'static str)], &'static [(usize, &'static str)], bool);

/// Beginnings of cases in which validation, a failing origin, invalidation or a rare rule decides.
pub const STARTS: [Beginning; 10] = [
    (&[], &[(reply::CACHE_CONTROL, "Cache-Control: no-cache"), (reply::VALIDATOR, "ETag: {tag}")], false),
    (&[], &[(reply::AGE, "Age: 5000"), (reply::VALIDATOR, "ETag: {tag}")], false),
    (&[], &[(reply::AGE, "Age: 130"), (reply::VALIDATOR, "Last-Modified: {date:-1000000}")], false),
    (
        &[],
        &[
            (reply::CACHE_CONTROL, "Cache-Control: max-age=0, must-revalidate"),
            (reply::VALIDATOR, "ETag: W/{tag}"),
        ],
        false,
    ),
    (
        &[],
        &[
            (reply::CACHE_CONTROL, "Cache-Control: max-age=100, stale-if-error=100000"),
            (reply::AGE, "Age: 130"),
            (reply::VALIDATOR, "ETag: {tag}"),
            (reply::VALIDATION, "503"),
        ],
        false,
    ),
    (&[(request::CACHE_CONTROL, "Cache-Control: max-stale=100000")], &[(reply::AGE, "Age: 130")], false),
    (
        &[(request::CACHE_CONTROL, "Cache-Control: max-stale=100000")],
        &[(reply::CACHE_CONTROL, ""), (reply::STATUS, "302")],
        false,
    ),
    (
        &[],
        &[(reply::CACHE_CONTROL, "Cache-Control: must-understand, max-age=100"), (reply::STATUS, "299")],
        false,
    ),
    (&[], &[(reply::VALIDATOR, "ETag: {tag}")], true),
    (&[], &[], true),
];

/// When a step starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After every earlier step has ended.
    After,
    /// While the origin holds the head of its reply to the leading step.
    DuringHead,
    /// While the origin holds the second half of the body of its reply to the leading step.
    DuringBody,
}

/// One request, and the reply that the origin has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index in [`CLIENTS`].
    pub client: usize,
    /// When the request is sent.
    pub start: Start,
    /// Number of the node that receives the request, modulo the number of nodes.
    pub door: usize,
    /// Index of a value in each dimension of [`REQUEST`].
    pub request: [u8; request::COUNT],
    /// Index of a value in each dimension of [`REPLY`].
    pub reply: [u8; reply::COUNT],
}

/// A case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Seed of the run.
    pub seed: u64,
    /// Number within the run.
    pub number: u64,
    /// Requests in the order in which they are sent.
    pub steps: Vec<Step>,
    /// Whether the origin holds its reply until a second node has asked too, so that a hedge takes place.
    pub hedged: bool,
}

/// Random numbers of one case.
struct Dice(Xoshiro256PlusPlus);

impl Dice {
    /// A number below `n`, which is at least 1. The bias is below 2^-50.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn value(&mut self, values: &[&str]) -> u8 {
        self.below(values.len()) as u8
    }
}

impl Case {
    /// The case with this number under a seed.
    pub fn draw(seed: u64, number: u64) -> Self {
        let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
        let mut dice = Dice(Xoshiro256PlusPlus::seed_from_u64(mixed));
        let density = [0, 0, 0, 20, 60][dice.below(5)];
        let from = (density == 0 && dice.percent(34)).then(|| STARTS[dice.below(STARTS.len())]);
        let has_post = from.is_some_and(|(_, _, has_post)| has_post);
        let count = if !has_post && dice.percent(70) { 2 } else { STEPS_MAX };
        let mut steps: Vec<Step> = Vec::with_capacity(count);
        for at in 0..count {
            let mut step = match steps.first() {
                Some(first) if dice.percent(60) => first.clone(),
                _ => plain(),
            };
            step.client = if dice.percent(85) { at } else { dice.below(CLIENTS.len()) };
            step.door = dice.below(12);
            step.start = match dice.below(100) {
                _ if at == 0 || has_post => Start::After,
                0..=39 => Start::After,
                40..=79 => Start::DuringHead,
                _ => Start::DuringBody,
            };
            step.vary(density, &mut dice);
            if let Some((request, reply, _)) = from {
                step.set(request, reply);
            }
            if has_post && at == 1 {
                step.set(&[(request::METHOD, "POST")], &[]);
            }
            steps.push(step);
        }
        let mut case = Self { seed, number, steps, hedged: dice.percent(25) };
        if density == 0 {
            case.perturb(&mut dice);
        }
        case
    }

    /// Changes up to four values of a case in which everything is plain.
    fn perturb(&mut self, dice: &mut Dice) {
        // Requests of different clients are what the oracle is about.
        if dice.percent(40) {
            let credentials = dice.value(REQUEST[request::CREDENTIALS].values);
            self.steps.iter_mut().for_each(|step| step.request[request::CREDENTIALS] = credentials);
        }
        if dice.percent(40) {
            let validator = dice.value(REPLY[reply::VALIDATOR].values);
            self.steps.iter_mut().for_each(|step| step.reply[reply::VALIDATOR] = validator);
        }
        for _ in 0..dice.below(5) {
            let at = dice.below(request::COUNT + reply::COUNT);
            let every_step = dice.percent(50);
            let only = dice.below(self.steps.len());
            for (number, step) in self.steps.iter_mut().enumerate() {
                if every_step || number == only {
                    step.redraw(at, dice);
                }
            }
        }
    }

    /// The step that the origin holds for the sake of step `at`, if `at` starts during another step.
    pub fn leader(&self, at: usize) -> Option<usize> {
        if self.steps[at].start == Start::After {
            return None;
        }
        (0..at).rev().find(|earlier| self.steps[*earlier].start == Start::After)
    }

    /// Returns where the origin holds its reply to step `at` if a later step starts meanwhile: at the head if one of them
    /// starts there.
    pub fn held(&self, at: usize) -> Option<Start> {
        let followers = (at + 1..self.steps.len()).filter(|later| self.leader(*later) == Some(at));
        let starts: Vec<Start> = followers.map(|later| self.steps[later].start).collect();
        [Start::DuringHead, Start::DuringBody].into_iter().find(|start| starts.contains(start))
    }
}

fn plain() -> Step {
    let mut reply = [0; reply::COUNT];
    reply[reply::CACHE_CONTROL] = SHAREABLE;
    Step { client: 0, start: Start::After, door: 0, request: [0; request::COUNT], reply }
}

impl Step {
    /// Sets values by their text.
    fn set(&mut self, asks: &[(usize, &str)], replies: &[(usize, &str)]) {
        let index =
            |values: &[&str], text: &str| values.iter().position(|value| *value == text).unwrap_or(0) as u8;
        for (dimension, text) in asks {
            self.request[*dimension] = index(REQUEST[*dimension].values, text);
        }
        for (dimension, text) in replies {
            self.reply[*dimension] = index(REPLY[*dimension].values, text);
        }
    }

    /// Draws each value anew with a chance in percent.
    fn vary(&mut self, density: usize, dice: &mut Dice) {
        for at in 0..request::COUNT + reply::COUNT {
            if dice.percent(density) {
                self.redraw(at, dice);
            }
        }
    }

    /// Draws the value of one dimension; those of the reply come after those of the request. Values that end most
    /// cases early are drawn less often.
    fn redraw(&mut self, at: usize, dice: &mut Dice) {
        if at < request::COUNT {
            let rare = matches!(at, request::HOST | request::QUERY | request::METHOD | request::RELAYED);
            if !rare || dice.percent(40) {
                self.request[at] = dice.value(REQUEST[at].values);
            }
        } else {
            let at = at - request::COUNT;
            let rare = matches!(at, reply::STATUS | reply::FRAMING | reply::LENGTH);
            if !rare || dice.percent(60) {
                self.reply[at] = dice.value(REPLY[at].values);
            }
        }
    }

    /// The value of a request dimension.
    pub fn asks(&self, dimension: usize) -> &'static str {
        REQUEST[dimension].values[usize::from(self.request[dimension])]
    }

    /// The value of a reply dimension.
    pub fn replies(&self, dimension: usize) -> &'static str {
        REPLY[dimension].values[usize::from(self.reply[dimension])]
    }

    /// The values of all dimensions, those of the request first.
    pub fn values(&self) -> impl Iterator<Item = u8> {
        self.request.iter().chain(&self.reply).copied()
    }
}

/// Pairs of values that cases have had in one step.
#[derive(Clone, Debug)]
pub struct Coverage {
    seen: Vec<bool>,
    offsets: Vec<usize>,
}

impl Default for Coverage {
    fn default() -> Self {
        let mut offsets = vec![0];
        for dimension in REQUEST.iter().chain(&REPLY) {
            offsets.push(offsets[offsets.len() - 1] + dimension.values.len());
        }
        let values = offsets[offsets.len() - 1];
        Self { seen: vec![false; values * values], offsets }
    }
}

impl Coverage {
    /// Notes the pairs of a case.
    pub fn note(&mut self, case: &Case) {
        let width = self.offsets[self.offsets.len() - 1];
        for step in &case.steps {
            let values: Vec<usize> =
                step.values().zip(&self.offsets).map(|(value, offset)| offset + usize::from(value)).collect();
            for (at, first) in values.iter().enumerate() {
                for second in &values[at + 1..] {
                    self.seen[first * width + second] = true;
                }
            }
        }
    }

    /// Adds what another one has seen.
    pub fn merge(&mut self, other: &Self) {
        self.seen.iter_mut().zip(&other.seen).for_each(|(mine, theirs)| *mine |= theirs);
    }

    /// Pairs that were seen, and pairs that there are.
    pub fn pairs(&self) -> (usize, usize) {
        let lens: Vec<usize> = REQUEST.iter().chain(&REPLY).map(|dimension| dimension.values.len()).collect();
        let total: usize = lens.iter().sum();
        let squares: usize = lens.iter().map(|len| len * len).sum();
        (self.seen.iter().filter(|seen| **seen).count(), (total * total - squares) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_depends_on_seed_and_number_alone() {
        assert_eq!(Case::draw(1, 7), Case::draw(1, 7));
        assert_ne!(Case::draw(1, 7).steps, Case::draw(1, 8).steps);
        assert_ne!(Case::draw(1, 7).steps, Case::draw(2, 7).steps);
    }

    #[test]
    fn starts_name_values_that_there_are() {
        for (asks, replies, _) in STARTS {
            let mut step = plain();
            step.set(asks, replies);
            assert!(asks.iter().all(|(dimension, text)| step.asks(*dimension) == *text));
            assert!(replies.iter().all(|(dimension, text)| step.replies(*dimension) == *text));
        }
    }

    #[test]
    fn every_pair_of_values_is_drawn() {
        let mut coverage = Coverage::default();
        for number in 0..200_000 {
            coverage.note(&Case::draw(1, number));
        }
        let (seen, all) = coverage.pairs();
        assert_eq!(seen, all);
    }

    #[test]
    fn a_leader_is_held_for_its_followers() {
        let case = (0..).map(|number| Case::draw(1, number));
        let case = case.into_iter().find(|case| case.steps.len() == 3 && case.leader(2) == Some(0)).unwrap();
        assert_eq!(case.leader(0), None);
        assert!(case.held(0).is_some());
        assert_eq!(case.held(2), None);
    }
}
