//! What was said and not heard is known to all in the end.

use super::*;

impl World {
    /// A switch ends, and the same begins anew, knowing nobody.
    fn restart(&mut self, at: usize, life: u64) {
        let anew = self.begun(at, life, &settings(PolicyKind::LardR), SwitchesSettings::default());
        self.switches[at] = anew;
        self.silence(at);
    }

    /// Nothing that a switch says comes to any other, nor theirs to it.
    fn silence(&mut self, at: usize) {
        (0..self.switches.len()).for_each(|other| self.lose(at, other));
    }

    /// What two say to each other is lost.
    fn lose(&mut self, left: usize, right: usize) {
        self.cut.push((left.min(right), left.max(right)));
    }

    /// What two say to each other arrives again.
    fn hear(&mut self, left: usize, right: usize) {
        self.cut.retain(|pair| *pair != (left.min(right), left.max(right)));
    }

    /// Membership says to one that another is gone.
    fn left(&mut self, at: usize, other: usize) {
        let (now, name) = (self.own(at), self.switches[other].name.clone());
        let Switch { dispatcher, machine, .. } = &mut self.switches[at];
        machine.left(now, &name, dispatcher, &mut Out::default());
    }

    /// A switch moves a target to where no other would place it.
    fn change(&self, at: usize, target: u64) {
        let (dispatcher, before) = (&self.switches[at].dispatcher, self.ask(at, target));
        let node = dispatcher.nodes().id_of(&before).expect("it is there");
        dispatcher.drain(self.own(at), node, &mut Vec::new());
        assert_ne!(self.ask(at, target), before);
        dispatcher.recover(self.own(at), node, &mut Vec::new());
    }

    fn agree(&self, left: usize, right: usize) -> bool {
        self.sets(left) == self.sets(right)
    }

    fn sets_told(&self) -> u64 {
        self.switches.iter().map(|switch| switch.machine.counts().sets_told).sum()
    }
}

const MOMENT: Duration = Duration::from_millis(40);
const WHILE: Duration = Duration::from_secs(60);

fn three() -> World {
    let mut world = World::of(3, &settings(PolicyKind::LardR));
    (0..50).for_each(|target| _ = world.ask(0, target));
    world.run(Duration::from_secs(2));
    assert!(world.agree(0, 1) && world.agree(0, 2));
    world
}

#[test]
fn what_one_that_ends_has_said_to_some_is_known_to_all() {
    for (span, again) in [(MOMENT, false), (WHILE, false), (MOMENT, true), (WHILE, true)] {
        let mut world = three();
        world.lose(1, 2);
        world.change(2, 7);
        world.run(span);
        if again {
            // It is given up by the one, who has asked already, and still heard by the other.
            world.left(1, 2);
            world.run(span);
            world.change(2, 8);
            world.run(MOMENT);
        }
        world.silence(2);
        assert!(!world.agree(0, 1));
        world.left(1, 2);
        world.run(Duration::from_secs(2));
        world.left(0, 2);
        world.run(MOMENT);
        assert!(world.agree(0, 1), "after {span:?}, {again}");
    }
}

#[test]
fn what_was_learned_late_of_one_that_ends_is_known_to_all() {
    let mut world = three();
    (0..2).for_each(|other| world.part(2, other, true));
    world.change(2, 7);
    world.run(WHILE);
    world.meet(2, 0);
    world.run(MOMENT);
    assert!(world.agree(2, 0) && !world.agree(0, 1), "one has it, with an old date");
    world.silence(2);
    world.left(0, 2);
    world.run(MOMENT);
    assert!(world.agree(0, 1));
}

#[test]
fn who_missed_that_one_ended_finds_out() {
    for ends in [1, 30] {
        let mut world = three();
        (0..2).for_each(|other| world.part(2, other, true));
        world.run(MOMENT);
        world.lose(0, 1);
        // Each life of it is known to one alone.
        for life in 0..ends {
            world.restart(2, 2 + life);
            world.meet(2, 0);
            world.change(2, life);
            world.run(WHILE);
            world.silence(2);
            world.left(0, 2);
            world.run(MOMENT);
        }
        assert!(!world.agree(0, 1));
        world.hear(0, 1);
        world.run(Duration::from_secs(2));
        assert!(world.agree(0, 1), "{ends}");
    }
}

#[test]
fn a_joiner_asks_each_for_all_that_it_knows() {
    let mut world = World::of(2, &settings(PolicyKind::LardR));
    world.part(0, 1, true);
    world.change(0, 1);
    world.change(1, 2);
    world.run(WHILE);
    world.add(&settings(PolicyKind::LardR), SwitchesSettings::default());
    let all = world.sets(2);
    assert!([0, 1].map(|at| world.sets(at)).iter().flatten().all(|(target, set)| all[target] == *set));
}

#[test]
fn what_a_new_life_changed_before_it_was_heard_is_asked_for() {
    let mut world = three();
    world.silence(2);
    (0..2).for_each(|at| world.left(at, 2));
    world.restart(2, 2);
    // It tells nobody, and its own clock has just begun.
    world.change(2, 999);
    world.run(MOMENT);
    (0..2).for_each(|other| world.meet(2, other));
    world.run(MOMENT);
    assert!(world.agree(0, 2) && world.agree(0, 1));
}

#[test]
fn a_new_life_is_heard_though_its_number_is_lower() {
    let mut world = three();
    for (life, told) in [(9, true), (3, true), (2, false)] {
        world.restart(2, life);
        for other in 0..2 {
            if told {
                world.left(other, 2);
            }
            world.meet(2, other);
        }
        world.change(2, life);
        world.run(MOMENT);
        assert!(world.agree(0, 2) && world.agree(0, 1), "{life}");
        // What an earlier life says late is not heard any more.
        let head = Head { life: life - 1, number: 1 << 40, to_all: true, ..Head::default() };
        let late = Message::Missed { since: Time::ZERO }.encode(&head);
        let (now, name) = (world.own(0), world.switches[2].name.clone());
        let Switch { dispatcher, machine, .. } = &mut world.switches[0];
        let mut out = Out::default();
        machine.message(now, &name, &late, dispatcher, &mut out).expect("it makes sense");
        assert_eq!(out.messages, []);
    }
}

#[test]
fn a_late_answer_to_an_earlier_question_ends_nothing() {
    let mut world = three();
    let names = [0, 1].map(|at| world.switches[at].name.clone());
    let (now, theirs) = (world.own(0), world.own(1));
    let questions = [(); 2].map(|()| {
        let Switch { dispatcher, machine, .. } = &mut world.switches[0];
        let mut out = Out::default();
        machine.up(&names[1], now, dispatcher, &mut out);
        let asks = |message: &&Outgoing| Switches::is_question(&message.message);
        out.messages.iter().find(asks).expect("the link was down").message.clone()
    });
    let answers = questions.map(|question| {
        let Switch { dispatcher, machine, .. } = &mut world.switches[1];
        let mut out = Out::default();
        machine.message(theirs, &names[0], &question, dispatcher, &mut out).expect("it makes sense");
        assert_eq!(out.messages.len(), 1);
        out.messages.remove(0).message
    });
    for (answer, asking) in answers.iter().zip([true, false]) {
        let Switch { dispatcher, machine, .. } = &mut world.switches[0];
        machine.message(now, &names[1], answer, dispatcher, &mut Out::default()).expect("it makes sense");
        assert_eq!(machine.others(now)[0].asking, asking);
    }
}

#[test]
fn what_is_not_told_yet_is_not_taken_for_heard() {
    let many = Settings { shards: 256, ..settings(PolicyKind::LardR) };
    let mut world = World::new();
    let how = SwitchesSettings { sets_max: 1, ..SwitchesSettings::default() };
    (0..2).for_each(|_| world.add(&many, how));
    world.run(Duration::from_secs(1));
    (0..2_000).for_each(|target| _ = world.ask(0, target));
    world.run(Duration::from_millis(4_500));
    assert!(!world.agree(0, 1), "about one shard a period");
    world.lose(0, 1);
    world.run(Duration::from_secs(2));
    world.hear(0, 1);
    world.run(WHILE);
    assert!(world.agree(0, 1));
}

#[test]
fn an_end_costs_what_was_learned_of_late_and_no_more() {
    let mut world = World::of(8, &settings(PolicyKind::LardR));
    (0..3_000).for_each(|target| _ = world.ask((target % 8) as usize, target));
    world.run(WHILE);
    (0..10).for_each(|target| world.change(7, target));
    world.run(MOMENT);
    let before = world.sets_told();
    world.silence(7);
    world.run(Duration::from_secs(3));
    (0..7).for_each(|at| world.left(at, 7));
    world.run(Duration::from_secs(5));
    let (told, most) = (world.sets_told() - before, 7 * 6 * 10);
    assert!((10..=most).contains(&told), "{told} sets were told");
    world.run(WHILE);
    // One that begins anew asks seven for all, and is asked by them: for nothing, unless it has learned it meanwhile.
    let before = world.sets_told();
    world.restart(7, 2);
    (0..7).for_each(|other| world.meet(7, other));
    world.run(Duration::from_secs(10));
    let (told, most) = (world.sets_told() - before, 2 * 7 * 3_000);
    assert!((7 * 3_000..=most).contains(&told), "{told} sets were told");
    assert!((0..7).all(|at| world.agree(at, 7)));
}
