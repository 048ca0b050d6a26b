//! Tests that lost messages are received by all switches in the end.

use super::*;

impl TestNetwork {
    /// Restarts a switch without any state.
    fn restart(&mut self, at: usize, incarnation: u64) {
        let anew = self.begun(at, incarnation, &settings(PolicyKind::LardR), SwitchesSettings::default());
        self.switches[at] = anew;
        self.silence(at);
    }

    /// Loses all messages from and to a switch.
    fn silence(&mut self, at: usize) {
        (0..self.switches.len()).for_each(|other| self.lose(at, other));
    }

    /// Loses the messages between two switches.
    fn lose(&mut self, left: usize, right: usize) {
        self.cut.push((left.min(right), left.max(right)));
    }

    /// Delivers the messages between two switches again.
    fn hear(&mut self, left: usize, right: usize) {
        self.cut.retain(|pair| *pair != (left.min(right), left.max(right)));
    }

    /// Reports to one switch that another one is gone.
    fn remove_switch(&mut self, at: usize, other: usize) {
        let (now, name) = (self.own(at), self.switches[other].name.clone());
        let TestSwitch { dispatcher, machine, .. } = &mut self.switches[at];
        machine.remove_switch(now, &name, dispatcher, &mut SwitchesOutput::default());
    }

    /// Moves a target to a node where no other switch would place it.
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

    fn sets_sent(&self) -> u64 {
        self.switches.iter().map(|switch| switch.machine.counts().sets_sent).sum()
    }
}

const MOMENT: Duration = Duration::from_millis(40);
const WHILE: Duration = Duration::from_secs(60);

fn three() -> TestNetwork {
    let mut network = TestNetwork::of(3, &settings(PolicyKind::LardR));
    (0..50).for_each(|target| _ = network.ask(0, target));
    network.run(Duration::from_secs(2));
    assert!(network.agree(0, 1) && network.agree(0, 2));
    network
}

#[test]
fn messages_of_an_ended_switch_reach_all() {
    for (span, again) in [(MOMENT, false), (WHILE, false), (MOMENT, true), (WHILE, true)] {
        let mut network = three();
        network.lose(1, 2);
        network.change(2, 7);
        network.run(span);
        if again {
            // One switch, which has asked already, gives it up while the other one still receives it.
            network.remove_switch(1, 2);
            network.run(span);
            network.change(2, 8);
            network.run(MOMENT);
        }
        network.silence(2);
        assert!(!network.agree(0, 1));
        network.remove_switch(1, 2);
        network.run(Duration::from_secs(2));
        network.remove_switch(0, 2);
        network.run(MOMENT);
        assert!(network.agree(0, 1), "after {span:?}, {again}");
    }
}

#[test]
fn late_messages_of_an_ended_switch_reach_all() {
    let mut network = three();
    (0..2).for_each(|other| network.part(2, other, true));
    network.change(2, 7);
    network.run(WHILE);
    network.meet(2, 0);
    network.run(MOMENT);
    assert!(network.agree(2, 0) && !network.agree(0, 1), "one has it, with an old date");
    network.silence(2);
    network.remove_switch(0, 2);
    network.run(MOMENT);
    assert!(network.agree(0, 1));
}

#[test]
fn missed_end_is_noticed() {
    for ends in [1, 30] {
        let mut network = three();
        (0..2).for_each(|other| network.part(2, other, true));
        network.run(MOMENT);
        network.lose(0, 1);
        // Each incarnation of it is known to one switch alone.
        for incarnation in 0..ends {
            network.restart(2, 2 + incarnation);
            network.meet(2, 0);
            network.change(2, incarnation);
            network.run(WHILE);
            network.silence(2);
            network.remove_switch(0, 2);
            network.run(MOMENT);
        }
        assert!(!network.agree(0, 1));
        network.hear(0, 1);
        network.run(Duration::from_secs(2));
        assert!(network.agree(0, 1), "{ends}");
    }
}

#[test]
fn joining_switch_asks_each_switch_for_everything() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    network.part(0, 1, true);
    network.change(0, 1);
    network.change(1, 2);
    network.run(WHILE);
    network.add(&settings(PolicyKind::LardR), SwitchesSettings::default());
    let all = network.sets(2);
    assert!([0, 1].map(|at| network.sets(at)).iter().flatten().all(|(target, set)| all[target] == *set));
}

#[test]
fn changes_of_a_new_incarnation_before_its_first_message_are_requested() {
    let mut network = three();
    network.silence(2);
    (0..2).for_each(|at| network.remove_switch(at, 2));
    network.restart(2, 2);
    // It has sent nothing, and its own clock has just begun.
    network.change(2, 999);
    network.run(MOMENT);
    (0..2).for_each(|other| network.meet(2, other));
    network.run(MOMENT);
    assert!(network.agree(0, 2) && network.agree(0, 1));
}

#[test]
fn new_incarnation_with_a_lower_number_is_accepted() {
    let mut network = three();
    for (incarnation, told) in [(9, true), (3, true), (2, false)] {
        network.restart(2, incarnation);
        for other in 0..2 {
            if told {
                network.remove_switch(other, 2);
            }
            network.meet(2, other);
        }
        network.change(2, incarnation);
        network.run(MOMENT);
        assert!(network.agree(0, 2) && network.agree(0, 1), "{incarnation}");
        // Late messages of an earlier incarnation are ignored.
        let head = MessageHeader {
            incarnation: incarnation - 1,
            number: 1 << 40,
            to_all: true,
            ..MessageHeader::default()
        };
        let late = Message::Missed { since: Time::ZERO }.encode(&head);
        let (now, name) = (network.own(0), network.switches[2].name.clone());
        let TestSwitch { dispatcher, machine, .. } = &mut network.switches[0];
        let mut out = SwitchesOutput::default();
        machine.receive(now, &name, &late, dispatcher, &mut out).expect("it makes sense");
        assert_eq!(out.messages, []);
    }
}

#[test]
fn late_answer_to_an_earlier_question_is_ignored() {
    let mut network = three();
    let names = [0, 1].map(|at| network.switches[at].name.clone());
    let (now, theirs) = (network.own(0), network.own(1));
    let questions = [(); 2].map(|()| {
        let TestSwitch { dispatcher, machine, .. } = &mut network.switches[0];
        let mut out = SwitchesOutput::default();
        machine.link_up(&names[1], now, dispatcher, &mut out);
        let asks = |message: &&OutgoingMessage| Switches::is_question(&message.message);
        out.messages.iter().find(asks).expect("the link was down").message.clone()
    });
    let answers = questions.map(|question| {
        let TestSwitch { dispatcher, machine, .. } = &mut network.switches[1];
        let mut out = SwitchesOutput::default();
        machine.receive(theirs, &names[0], &question, dispatcher, &mut out).expect("it makes sense");
        assert_eq!(out.messages.len(), 1);
        out.messages.remove(0).message
    });
    for (answer, requesting) in answers.iter().zip([true, false]) {
        let TestSwitch { dispatcher, machine, .. } = &mut network.switches[0];
        machine
            .receive(now, &names[1], answer, dispatcher, &mut SwitchesOutput::default())
            .expect("it makes sense");
        assert_eq!(machine.statuses(now)[0].requesting, requesting);
    }
}

#[test]
fn unsent_changes_do_not_count_as_received() {
    let many = Settings { shards: 256, ..settings(PolicyKind::LardR) };
    let mut network = TestNetwork::new();
    let how = SwitchesSettings { sets_max: 1, ..SwitchesSettings::default() };
    (0..2).for_each(|_| network.add(&many, how));
    network.run(Duration::from_secs(1));
    (0..2_000).for_each(|target| _ = network.ask(0, target));
    network.run(Duration::from_millis(4_500));
    assert!(!network.agree(0, 1), "about one shard a period");
    network.lose(0, 1);
    network.run(Duration::from_secs(2));
    network.hear(0, 1);
    network.run(WHILE);
    assert!(network.agree(0, 1));
}

#[test]
fn end_of_an_incarnation_requests_only_recent_sets() {
    let mut network = TestNetwork::of(8, &settings(PolicyKind::LardR));
    (0..3_000).for_each(|target| _ = network.ask((target % 8) as usize, target));
    network.run(WHILE);
    (0..10).for_each(|target| network.change(7, target));
    network.run(MOMENT);
    let before = network.sets_sent();
    network.silence(7);
    network.run(Duration::from_secs(3));
    (0..7).for_each(|at| network.remove_switch(at, 7));
    network.run(Duration::from_secs(5));
    let (told, most) = (network.sets_sent() - before, 7 * 6 * 10);
    assert!((10..=most).contains(&told), "{told} sets were told");
    network.run(WHILE);
    // A restarted switch asks seven others for everything. They ask it too, and get only what it has received
    // meanwhile.
    let before = network.sets_sent();
    network.restart(7, 2);
    (0..7).for_each(|other| network.meet(7, other));
    network.run(Duration::from_secs(10));
    let (told, most) = (network.sets_sent() - before, 2 * 7 * 3_000);
    assert!((7 * 3_000..=most).contains(&told), "{told} sets were told");
    assert!((0..7).all(|at| network.agree(at, 7)));
}

/// Each side considers the other one ended during the split.
#[test]
fn after_a_split_only_the_changes_since_are_requested() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    (0..3_000).for_each(|target| _ = network.ask((target % 2) as usize, target));
    network.run(WHILE);
    network.part(0, 1, true);
    network.run(Duration::from_secs(5));
    (5_000..5_010).for_each(|target| _ = network.ask(0, target));
    let before = network.sets_sent();
    network.meet(0, 1);
    network.run(WHILE);
    let sent = network.sets_sent() - before;
    assert!((10..=100).contains(&sent), "{sent} sets were sent");
    assert!(network.agree(0, 1));
}
