//! The screen of `larder top` and its keys.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw::draw;
use super::{Action, Overview, SortBy, Sources};
use crate::cmd::serve;

/// Longest wait for a key before the screen is drawn again.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Time that a message stays on the screen.
const MESSAGE_TIME: Duration = Duration::from_secs(8);

/// State of the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    pub(super) overview: Overview,
    pub(super) sort: SortBy,
    /// Index of the selected node row.
    pub(super) selected: usize,
    /// The action that waits for the user's confirmation, and the question on the screen.
    pub(super) confirmation: Option<(Action, String)>,
    /// The result of the last action, and the time at which it was shown.
    pub(super) message: Option<(String, Instant)>,
}

/// Message from the polling thread to the screen.
enum Update {
    Overview(Box<Overview>),
    /// Result of an action.
    Done(Result<String, String>),
}

/// Whether the screen continues after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOutcome {
    Continue,
    Quit,
}

/// Shows an overview of `sources`, refreshed every `period`, until the user quits.
///
/// # Errors
/// Returns an error if there is no terminal.
pub(crate) fn run(sources: Sources, period: Duration) -> anyhow::Result<()> {
    let (actions, received) = channel();
    let (sender, updates) = channel();
    let runtime = serve::runtime(1)?;
    // The thread ends with the process, or when the screen's end of the channel is dropped.
    thread::Builder::new()
        .name("top".to_owned())
        .spawn(move || runtime.block_on(poll(sources, period, &received, &sender)))
        .context("cannot start a thread")?;
    let mut terminal = ratatui::try_init().context("top needs a terminal; without one: larder top --once")?;
    let shown = show(&mut terminal, &actions, &updates);
    ratatui::restore();
    shown
}

/// Polls all sources every period, and executes actions in between.
async fn poll(mut sources: Sources, period: Duration, actions: &Receiver<Action>, updates: &Sender<Update>) {
    let mut before = None;
    loop {
        let now = sources.poll().await;
        let overview = Overview::new(&now, before.as_deref());
        before = Some(now);
        if updates.send(Update::Overview(Box::new(overview))).is_err() {
            return;
        }
        let next = tokio::time::Instant::now() + period;
        while tokio::time::Instant::now() < next {
            match actions.try_recv() {
                Ok(action) => {
                    let done = sources.execute(&action).await;
                    let message =
                        done.map(|()| format!("done: {}", action.path)).map_err(|error| format!("{error:#}"));
                    if updates.send(Update::Done(message)).is_err() {
                        return;
                    }
                    break;
                }
                Err(TryRecvError::Empty) => tokio::time::sleep(KEY_WAIT / 2).await,
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    actions: &Sender<Action>,
    updates: &Receiver<Update>,
) -> anyhow::Result<()> {
    let mut view = Screen::default();
    loop {
        loop {
            match updates.try_recv() {
                Ok(Update::Overview(overview)) => view.set_overview(*overview),
                Ok(Update::Done(message)) => {
                    view.message = Some((message.unwrap_or_else(|error| error), Instant::now()));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => anyhow::bail!("the program has ended"),
            }
        }
        view.message = view.message.take().filter(|(_, since)| since.elapsed() < MESSAGE_TIME);
        terminal.draw(|frame| draw(frame, &view))?;
        if event::poll(KEY_WAIT)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && view.press(key, actions) == KeyOutcome::Quit
        {
            return Ok(());
        }
    }
}

impl Screen {
    fn set_overview(&mut self, mut overview: Overview) {
        // The selection follows the node, not the index.
        let selected = self.overview.nodes.get(self.selected).map(|row| (row.source, row.name.clone()));
        overview.sort(self.sort);
        let place = selected.and_then(|(source, name)| {
            overview.nodes.iter().position(|row| row.source == source && row.name == name)
        });
        self.selected = place.unwrap_or(self.selected).min(overview.nodes.len().saturating_sub(1));
        self.overview = overview;
    }

    fn press(&mut self, key: KeyEvent, actions: &Sender<Action>) -> KeyOutcome {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return KeyOutcome::Quit;
        }
        if let Some((action, _)) = self.confirmation.take() {
            if key.code == KeyCode::Char('y') {
                // The result arrives as a message.
                let _ = actions.send(action);
            } else {
                self.message = Some(("not changed".to_owned(), Instant::now()));
            }
            return KeyOutcome::Continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyOutcome::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.selected = (self.selected + 1).min(self.overview.nodes.len().saturating_sub(1));
            }
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                let overview = std::mem::take(&mut self.overview);
                self.overview.nodes.clone_from(&overview.nodes);
                self.set_overview(overview);
            }
            KeyCode::Char('d') => self.confirm("drain", "finishes its requests and gets no new ones"),
            KeyCode::Char('u') => self.confirm("undrain", "gets requests again"),
            _ => {}
        }
        KeyOutcome::Continue
    }

    fn confirm(&mut self, verb: &str, what: &str) {
        let Some(row) = self.overview.nodes.get(self.selected) else { return };
        let by_switch = row.weight.is_some();
        let path = if by_switch {
            format!("/nodes/{}/{verb}", percent_encoded(&row.name))
        } else {
            format!("/{verb}")
        };
        let confirmation = format!("{verb} {}: it {what}. y: confirm, any other key: cancel", row.name);
        self.confirmation = Some((Action { source: row.source, path }, confirmation));
    }
}

/// Percent-encodes a name for a path.
fn percent_encoded(name: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(byte);
    name.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::overview::NodeRow;

    fn view() -> Screen {
        let row = |name: &str, load, weight| NodeRow {
            source: 0,
            name: name.to_owned(),
            state: "up".to_owned(),
            load,
            requests_per_s: None,
            hit_ratio: None,
            errors: 0,
            weight,
            memory_bytes: 0,
        };
        let nodes = vec![row("a", 1, Some(1.0)), row("b%", 2, Some(1.0)), row("c", 3, None)];
        Screen { overview: Overview { nodes, ..Overview::default() }, ..Screen::default() }
    }

    fn press(view: &mut Screen, keys: &str) -> Vec<Action> {
        let (actions, received) = channel();
        for key in keys.chars() {
            view.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE), &actions);
        }
        received.try_iter().collect()
    }

    #[test]
    fn an_action_needs_a_confirmation() {
        let mut view = view();
        assert!(press(&mut view, "jd").is_empty());
        assert!(view.confirmation.as_ref().unwrap().1.starts_with("drain b%"));
        assert!(press(&mut view, "n").is_empty() && view.confirmation.is_none());
        let path = |actions: Vec<Action>| actions.into_iter().map(|action| action.path).collect::<Vec<_>>();
        assert_eq!(path(press(&mut view, "dy")), ["/nodes/b%25/drain"]);
        assert_eq!(path(press(&mut view, "juy")), ["/undrain"], "a node that speaks for itself");
        // While a question waits, every other key cancels.
        assert!(press(&mut view, "dd").is_empty());
    }

    #[test]
    fn the_selection_follows_its_node() {
        let mut view = view();
        press(&mut view, "j");
        press(&mut view, "s");
        assert_eq!((view.sort, view.overview.nodes[0].name.as_str()), (SortBy::Load, "c"));
        assert_eq!(view.overview.nodes[view.selected].name, "b%");
        press(&mut view, "jjjj");
        assert_eq!(view.selected, 2);
    }
}
