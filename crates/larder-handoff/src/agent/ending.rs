//! The end of the server in this process: front-ends are told before it takes no connections any more, so that none comes
//! in vain.

use super::core::Core;
use crate::channel::identity::PublicKey;
use crate::channel::message::FromNode;
use std::collections::BTreeSet;
use tokio::sync::oneshot;

/// Front-ends have to be told; the sender goes when all know, with how many were told.
pub(super) type Farewell = oneshot::Sender<usize>;

/// The node ends soon.
#[derive(Debug)]
pub(super) struct Ending {
    /// Those that have not answered.
    unanswered: BTreeSet<PublicKey>,
    told: usize,
    all_know: Option<Farewell>,
}

impl Core {
    /// Tells all front-ends that nothing new is to come.
    pub(super) fn farewell(&mut self, all_know: Farewell) {
        self.ending = Some(Ending { unanswered: BTreeSet::new(), told: 0, all_know: Some(all_know) });
        let keys: Vec<PublicKey> = self.fronts.keys().copied().collect();
        keys.into_iter().for_each(|key| self.tell_ending(key));
        self.say_all_know();
    }

    /// Tells a front-end, if there is something to tell.
    pub(super) fn tell_ending(&mut self, key: PublicKey) {
        let Some(ending) = &mut self.ending else { return };
        ending.told += 1;
        ending.unanswered.insert(key);
        self.tell(key, &FromNode::Ending);
    }

    /// A front-end has answered, or is gone.
    pub(super) fn noted(&mut self, key: PublicKey) {
        if self.ending.as_mut().is_some_and(|ending| ending.unanswered.remove(&key)) {
            self.say_all_know();
        }
    }

    fn say_all_know(&mut self) {
        if let Some(ending) = self.ending.as_mut().filter(|ending| ending.unanswered.is_empty())
            && let Some(all_know) = ending.all_know.take()
        {
            // Who asked may have given up waiting.
            let _ = all_know.send(ending.told);
        }
    }
}
