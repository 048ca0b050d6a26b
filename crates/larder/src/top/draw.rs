//! Drawing of an overview on the terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};

use super::overview::NodeRow;
use super::screen::Screen;
use super::text::{figure, format_cluster, percent, rate, size};

const HEAD: Style = Style::new().fg(Color::DarkGray);
const TITLE: Style = Style::new().fg(Color::Cyan);

/// Most lines of each list at the bottom of the screen.
const LIST_LINES: u16 = 12;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let overview = &screen.overview;
    let heads = u16::try_from(overview.sources.len()).unwrap_or(u16::MAX).saturating_add(2);
    let nodes = u16::try_from(overview.nodes.len()).unwrap_or(u16::MAX).saturating_add(3);
    let lower = if overview.hottest.is_empty() && overview.decisions.is_empty() { 0 } else { LIST_LINES + 2 };
    let [top, middle, low, keys] = Layout::vertical([
        Constraint::Length(heads),
        Constraint::Max(nodes.max(4)),
        Constraint::Max(lower),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_heads(frame, top, screen);
    draw_nodes(frame, middle, screen);
    let shadow_width = if overview.shadow.is_empty() { 0 } else { 36 };
    let [hot, decisions, shadow] =
        Layout::horizontal([Constraint::Min(30), Constraint::Length(30), Constraint::Length(shadow_width)])
            .areas(low);
    draw_hottest(frame, hot, screen);
    draw_decisions(frame, decisions, screen);
    draw_shadow(frame, shadow, screen);
    draw_keys(frame, keys, screen);
}

fn draw_heads(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let overview = &screen.overview;
    let mut lines = Vec::with_capacity(overview.sources.len() + 2);
    for source in &overview.sources {
        let mut spans = vec![
            Span::styled("larder ", TITLE.add_modifier(Modifier::BOLD)),
            Span::raw(source.admin.clone()),
        ];
        match (&source.error, source.kind) {
            (Some(error), _) => spans.push(Span::styled(format!("  {error}"), Style::new().fg(Color::Red))),
            (None, kind) => {
                let policy = source.policy.as_deref().unwrap_or("by itself");
                spans.push(Span::styled(format!("  {}, {policy}", kind.unwrap_or("")), HEAD));
            }
        }
        lines.push(Line::from(spans));
    }
    let up = format!("{} of {} nodes up  ", overview.cluster.nodes_up, overview.cluster.nodes);
    let whole = overview.cluster.nodes_up == overview.cluster.nodes;
    let style = Style::new().fg(if whole { Color::Green } else { Color::Yellow });
    lines.push(Line::from(vec![Span::styled(up, style), Span::raw(format_cluster(overview))]));
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let names = ["node", "state", "load", "requests/s", "hit ratio", "errors", "weight", "memory"];
    let head = Row::new(names).style(HEAD);
    let row = |(at, node): (usize, &NodeRow)| {
        let colour = match node.state.as_str() {
            "up" | "standby" => Color::Green,
            "draining" => Color::Yellow,
            _ => Color::Red,
        };
        let weight = node.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string());
        let row = Row::new([
            Cell::from(node.name.clone()),
            Cell::from(Span::styled(node.state.clone(), Style::new().fg(colour))),
            Cell::from(node.load.to_string()),
            Cell::from(rate(node.requests_per_s)),
            Cell::from(percent(node.hit_ratio)),
            Cell::from(node.errors.to_string()),
            Cell::from(weight),
            Cell::from(size(node.memory_bytes)),
        ]);
        if at == screen.selected { row.style(Style::new().add_modifier(Modifier::REVERSED)) } else { row }
    };
    // The table scrolls so that the selected row stays visible.
    let lines = usize::from(area.height.saturating_sub(3)).max(1);
    let first = (screen.selected + 1).saturating_sub(lines);
    let rows = screen.overview.nodes.iter().enumerate().skip(first).map(row);
    let widths = [
        Constraint::Min(16),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(11),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(10),
    ];
    let title = format!("nodes, by {}", screen.sort.name());
    frame.render_widget(Table::new(rows, widths).header(head).block(block(&title)), area);
}

fn draw_hottest(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let rows = screen
        .overview
        .hottest
        .iter()
        .take(usize::from(LIST_LINES))
        .map(|hot| Row::new([hot.target.clone(), rate(Some(hot.requests_per_s)), hot.servers.join(" ")]));
    let widths = [Constraint::Min(16), Constraint::Length(7), Constraint::Length(18)];
    frame.render_widget(Table::new(rows, widths).block(block("hottest targets, requests/s, servers")), area);
}

fn draw_decisions(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let mut all: Vec<_> = screen.overview.decisions.iter().collect();
    all.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
    let rows = all.into_iter().map(|(name, count)| Row::new([name.clone(), count.to_string()]));
    let failed =
        screen.overview.failures.iter().map(|(name, count)| {
            Row::new([name.clone(), count.to_string()]).style(Style::new().fg(Color::Red))
        });
    let widths = [Constraint::Min(12), Constraint::Length(12)];
    frame.render_widget(Table::new(rows.chain(failed), widths).block(block("decisions")), area);
}

fn draw_shadow(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let rows = screen.overview.shadow.iter().map(|shade| {
        let name = if shade.live { format!("{}, live", shade.policy) } else { shade.policy.clone() };
        let row = Row::new([name, percent(shade.hit_ratio), figure(shade.imbalance)]);
        if shade.runs { row.style(Style::new().add_modifier(Modifier::BOLD)) } else { row }
    });
    let widths = [Constraint::Min(14), Constraint::Length(8), Constraint::Length(6)];
    frame.render_widget(Table::new(rows, widths).block(block("shadow: hit ratio, imbalance")), area);
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let line = match (&screen.confirmation, &screen.message) {
        (Some((_, confirmation)), _) => {
            Line::styled(confirmation.clone(), Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD))
        }
        (None, Some((message, _))) => Line::raw(message.clone()),
        (None, None) => Line::styled("q quit  s sort  up, down choose  d drain  u undrain", HEAD),
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn block(title: &str) -> Block<'_> {
    Block::bordered().border_style(HEAD).title(Span::styled(format!(" {title} "), TITLE))
}
