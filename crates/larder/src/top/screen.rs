//! The screen and its keys.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw::draw;
use super::{Order, Picture, SortBy, Sources};
use crate::cmd::serve;

/// Longest wait for a key before what is new is drawn.
const LOOK: Duration = Duration::from_millis(100);
/// How long what was said stays on the screen.
const SAID_FOR: Duration = Duration::from_secs(8);

/// What the screen shows beside the picture.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) picture: Picture,
    pub(super) sort: SortBy,
    /// The row of the nodes that keys are about.
    pub(super) chosen: usize,
    /// What is to be done if it is meant, and the question.
    pub(super) question: Option<(Order, String)>,
    /// What has come of the last order, and since when it is shown.
    pub(super) said: Option<(String, Instant)>,
}

/// From the one who asks to the screen.
enum News {
    Picture(Box<Picture>),
    /// What has come of an order.
    Done(Result<String, String>),
}

/// Whether the screen goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    On,
    End,
}

/// Shows what `sources` say, anew each `period`, until the user has seen enough.
///
/// # Errors
/// There is no terminal.
pub(crate) fn run(sources: Sources, period: Duration) -> anyhow::Result<()> {
    let (orders, ordered) = channel();
    let (tell, news) = channel();
    let runtime = serve::runtime(1)?;
    // Ends with the process, or once the screen is gone.
    thread::Builder::new()
        .name("top".to_owned())
        .spawn(move || runtime.block_on(ask(sources, period, &ordered, &tell)))
        .context("cannot start a thread")?;
    let mut terminal = ratatui::try_init().context("top needs a terminal; without one: larder top --once")?;
    let shown = show(&mut terminal, &orders, &news);
    ratatui::restore();
    shown
}

/// Asks all sources each period, and passes on orders in between.
async fn ask(mut sources: Sources, period: Duration, orders: &Receiver<Order>, tell: &Sender<News>) {
    let mut before = None;
    loop {
        let now = sources.ask().await;
        let picture = Picture::of(&now, before.as_deref());
        before = Some(now);
        if tell.send(News::Picture(Box::new(picture))).is_err() {
            return;
        }
        let next = tokio::time::Instant::now() + period;
        while tokio::time::Instant::now() < next {
            match orders.try_recv() {
                Ok(order) => {
                    let done = sources.order(&order).await;
                    let said =
                        done.map(|()| format!("done: {}", order.path)).map_err(|error| format!("{error:#}"));
                    if tell.send(News::Done(said)).is_err() {
                        return;
                    }
                    break;
                }
                Err(TryRecvError::Empty) => tokio::time::sleep(LOOK / 2).await,
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}

fn show(terminal: &mut DefaultTerminal, orders: &Sender<Order>, news: &Receiver<News>) -> anyhow::Result<()> {
    let mut view = View::default();
    loop {
        loop {
            match news.try_recv() {
                Ok(News::Picture(picture)) => view.take(*picture),
                Ok(News::Done(said)) => {
                    view.said = Some((said.unwrap_or_else(|error| error), Instant::now()));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => anyhow::bail!("nobody asks any more"),
            }
        }
        view.said = view.said.take().filter(|(_, since)| since.elapsed() < SAID_FOR);
        terminal.draw(|frame| draw(frame, &view))?;
        if event::poll(LOOK)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && view.press(key, orders) == Next::End
        {
            return Ok(());
        }
    }
}

impl View {
    fn take(&mut self, mut picture: Picture) {
        // The row stays with its node.
        let chosen = self.picture.nodes.get(self.chosen).map(|row| (row.source, row.name.clone()));
        picture.sort(self.sort);
        let place = chosen.and_then(|(source, name)| {
            picture.nodes.iter().position(|row| row.source == source && row.name == name)
        });
        self.chosen = place.unwrap_or(self.chosen).min(picture.nodes.len().saturating_sub(1));
        self.picture = picture;
    }

    fn press(&mut self, key: KeyEvent, orders: &Sender<Order>) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Next::End;
        }
        if let Some((order, _)) = self.question.take() {
            if key.code == KeyCode::Char('y') {
                // It is told what has come of it.
                let _ = orders.send(order);
            } else {
                self.said = Some(("left as it is".to_owned(), Instant::now()));
            }
            return Next::On;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.chosen = (self.chosen + 1).min(self.picture.nodes.len().saturating_sub(1));
            }
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                let picture = std::mem::take(&mut self.picture);
                self.picture.nodes.clone_from(&picture.nodes);
                self.take(picture);
            }
            KeyCode::Char('d') => self.ask("drain", "finishes what it has and takes no new requests"),
            KeyCode::Char('u') => self.ask("undrain", "takes requests again"),
            _ => {}
        }
        Next::On
    }

    fn ask(&mut self, verb: &str, what: &str) {
        let Some(row) = self.picture.nodes.get(self.chosen) else { return };
        let by_switch = row.weight.is_some();
        let path =
            if by_switch { format!("/nodes/{}/{verb}", encoded(&row.name)) } else { format!("/{verb}") };
        let question = format!("{verb} {}: it {what}. y: do it, any other key: leave it", row.name);
        self.question = Some((Order { source: row.source, path }, question));
    }
}

/// A name as part of a path.
fn encoded(name: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(byte);
    name.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::picture::NodeRow;

    fn view() -> View {
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
        View { picture: Picture { nodes, ..Picture::default() }, ..View::default() }
    }

    fn press(view: &mut View, keys: &str) -> Vec<Order> {
        let (orders, ordered) = channel();
        for key in keys.chars() {
            view.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE), &orders);
        }
        ordered.try_iter().collect()
    }

    #[test]
    fn nothing_is_done_unless_it_is_meant() {
        let mut view = view();
        assert!(press(&mut view, "jd").is_empty());
        assert!(view.question.as_ref().unwrap().1.starts_with("drain b%"));
        assert!(press(&mut view, "n").is_empty() && view.question.is_none());
        let path = |orders: Vec<Order>| orders.into_iter().map(|order| order.path).collect::<Vec<_>>();
        assert_eq!(path(press(&mut view, "dy")), ["/nodes/b%25/drain"]);
        assert_eq!(path(press(&mut view, "juy")), ["/undrain"], "a node that speaks for itself");
        // While a question waits, no other key means anything else.
        assert!(press(&mut view, "dd").is_empty());
    }

    #[test]
    fn the_chosen_row_stays_with_its_node() {
        let mut view = view();
        press(&mut view, "j");
        press(&mut view, "s");
        assert_eq!((view.sort, view.picture.nodes[0].name.as_str()), (SortBy::Load, "c"));
        assert_eq!(view.picture.nodes[view.chosen].name, "b%");
        press(&mut view, "jjjj");
        assert_eq!(view.chosen, 2);
    }
}
