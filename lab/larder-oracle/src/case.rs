//! A case: two or three requests for one target, and the origin's replies.
//!
//! A case is a pure function of seed and number, so `SEED:NUMBER` replays it. Two of five cases start from a reply that all
//! clients may share and change a few values, so that a single rule decides. One of five starts from an entry of [`STARTS`],
//! which leads to a state that random draws seldom reach. The others draw many values independently.

use crate::catalogue::{REPLY, REQUEST, SHAREABLE, reply, request};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Names of the clients.
pub const CLIENTS: [&str; 3] = ["alice", "bob", "carol"];
/// Whether the systems under test trust each client as a relay. Pairs and triples contain both kinds.
pub const RELAYS: [bool; 3] = [true, false, true];
/// Maximum requests of a case.
pub const STEPS_MAX: usize = 3;

/// Start values of all steps of a case: of the request, of the reply, and whether the second of three requests is a POST.
type StartValues = (&'static [(usize, &'static str)], &'static [(usize, &'static str)], bool);

/// Start values of cases in which validation, a failing origin, invalidation or a rare rule decides.
pub const STARTS: [StartValues; 10] = [
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

/// Start time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTime {
    /// After all earlier steps have finished.
    After,
    /// While the origin holds the head of its reply to the leading step.
    DuringHead,
    /// While the origin holds the second half of the body of its reply to the leading step.
    DuringBody,
}

/// A request and the origin's reply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index in [`CLIENTS`].
    pub client: usize,
    /// When the request is sent.
    pub start: StartTime,
    /// Number of the node that receives the request, modulo the number of entry points.
    pub entry_point: usize,
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
    /// Whether the origin holds its reply until a second node has sent the request too, so that it is hedged.
    pub hedged: bool,
}

/// Random number generator of a case.
struct Random(Xoshiro256PlusPlus);

impl Random {
    /// A random number below `n`, which is at least 1. The bias is below 2^-50.
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
    /// Draws the case with a number under a seed.
    pub fn draw(seed: u64, number: u64) -> Self {
        let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
        let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(mixed));
        let density = [0, 0, 0, 20, 60][random.below(5)];
        let from = (density == 0 && random.percent(34)).then(|| STARTS[random.below(STARTS.len())]);
        let has_post = from.is_some_and(|(_, _, has_post)| has_post);
        let count = if !has_post && random.percent(70) { 2 } else { STEPS_MAX };
        let mut steps: Vec<Step> = Vec::with_capacity(count);
        for at in 0..count {
            let mut step = match steps.first() {
                Some(first) if random.percent(60) => first.clone(),
                _ => plain(),
            };
            step.client = if random.percent(85) { at } else { random.below(CLIENTS.len()) };
            step.entry_point = random.below(12);
            step.start = match random.below(100) {
                _ if at == 0 || has_post => StartTime::After,
                0..=39 => StartTime::After,
                40..=79 => StartTime::DuringHead,
                _ => StartTime::DuringBody,
            };
            step.vary(density, &mut random);
            if let Some((request, reply, _)) = from {
                step.set(request, reply);
            }
            if has_post && at == 1 {
                step.set(&[(request::METHOD, "POST")], &[]);
            }
            steps.push(step);
        }
        let mut case = Self { seed, number, steps, hedged: random.percent(25) };
        if density == 0 {
            case.perturb(&mut random);
        }
        case
    }

    /// Changes up to four values of a case with only plain values.
    fn perturb(&mut self, random: &mut Random) {
        // Credentials and validators matter most to sharing between clients.
        if random.percent(40) {
            let credentials = random.value(REQUEST[request::CREDENTIALS].values);
            self.steps.iter_mut().for_each(|step| step.request[request::CREDENTIALS] = credentials);
        }
        if random.percent(40) {
            let validator = random.value(REPLY[reply::VALIDATOR].values);
            self.steps.iter_mut().for_each(|step| step.reply[reply::VALIDATOR] = validator);
        }
        for _ in 0..random.below(5) {
            let at = random.below(request::COUNT + reply::COUNT);
            let every_step = random.percent(50);
            let only = random.below(self.steps.len());
            for (number, step) in self.steps.iter_mut().enumerate() {
                if every_step || number == only {
                    step.redraw(at, random);
                }
            }
        }
    }

    /// The step whose reply the origin holds while step `at` starts; `None` if `at` does not start during another step.
    pub fn leader(&self, at: usize) -> Option<usize> {
        if self.steps[at].start == StartTime::After {
            return None;
        }
        (0..at).rev().find(|earlier| self.steps[*earlier].start == StartTime::After)
    }

    /// The point at which the origin holds its reply to step `at` because later steps start during it. If some start during
    /// the head, it is the head.
    pub fn held(&self, at: usize) -> Option<StartTime> {
        let followers = (at + 1..self.steps.len()).filter(|later| self.leader(*later) == Some(at));
        let starts: Vec<StartTime> = followers.map(|later| self.steps[later].start).collect();
        [StartTime::DuringHead, StartTime::DuringBody].into_iter().find(|start| starts.contains(start))
    }
}

fn plain() -> Step {
    let mut reply = [0; reply::COUNT];
    reply[reply::CACHE_CONTROL] = SHAREABLE;
    Step { client: 0, start: StartTime::After, entry_point: 0, request: [0; request::COUNT], reply }
}

impl Step {
    /// Sets values by their texts.
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

    /// Draws each value again with a probability in percent.
    fn vary(&mut self, density: usize, random: &mut Random) {
        for at in 0..request::COUNT + reply::COUNT {
            if random.percent(density) {
                self.redraw(at, random);
            }
        }
    }

    /// Draws the value of a dimension; reply dimensions are numbered after request dimensions. Values that end most cases
    /// early are drawn less often.
    fn redraw(&mut self, at: usize, random: &mut Random) {
        if at < request::COUNT {
            let rare = matches!(at, request::HOST | request::QUERY | request::METHOD | request::RELAYED);
            if !rare || random.percent(40) {
                self.request[at] = random.value(REQUEST[at].values);
            }
        } else {
            let at = at - request::COUNT;
            let rare = matches!(at, reply::STATUS | reply::FRAMING | reply::LENGTH);
            if !rare || random.percent(60) {
                self.reply[at] = random.value(REPLY[at].values);
            }
        }
    }

    /// The value of a request dimension.
    pub fn request_value(&self, dimension: usize) -> &'static str {
        REQUEST[dimension].values[usize::from(self.request[dimension])]
    }

    /// The value of a reply dimension.
    pub fn reply_value(&self, dimension: usize) -> &'static str {
        REPLY[dimension].values[usize::from(self.reply[dimension])]
    }

    /// The values of all dimensions, those of the request first.
    pub fn values(&self) -> impl Iterator<Item = u8> {
        self.request.iter().chain(&self.reply).copied()
    }
}

/// Pairs of values that occurred together in a step.
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
    /// Adds the pairs of a case.
    pub fn add(&mut self, case: &Case) {
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

    /// Adds the pairs of another coverage.
    pub fn merge(&mut self, other: &Self) {
        self.seen.iter_mut().zip(&other.seen).for_each(|(mine, theirs)| *mine |= theirs);
    }

    /// Numbers of pairs that occurred and of all pairs.
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
    fn start_values_exist() {
        for (asks, replies, _) in STARTS {
            let mut step = plain();
            step.set(asks, replies);
            assert!(asks.iter().all(|(dimension, text)| step.request_value(*dimension) == *text));
            assert!(replies.iter().all(|(dimension, text)| step.reply_value(*dimension) == *text));
        }
    }

    #[test]
    fn every_pair_of_values_is_drawn() {
        let mut coverage = Coverage::default();
        for number in 0..200_000 {
            coverage.add(&Case::draw(1, number));
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
