//! The live view: the busiest connections first, until q.

use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use super::report::{Connection, Report};
use super::source::Sources;
use super::table;
use super::watch::{self, Watch};

/// How soon a signal is noticed.
const SLICE: Duration = Duration::from_millis(100);
/// Columns, in characters, of processes and of endpoints; names take what is left.
const PROCESS_WIDTHS: [u16; 10] = [7, 6, 0, 7, 5, 8, 10, 8, 10, 8];
const ENDPOINT_WIDTHS: [u16; 12] = [21, 21, 7, 0, 11, 4, 10, 8, 8, 8, 8, 4];

/// What is on the screen.
struct View {
    report: Report,
    /// Why there is nothing newer.
    trouble: Option<String>,
    /// Lines of connections that are scrolled over.
    offset: usize,
    /// Lines of them that were on the screen last.
    page: usize,
}

/// Draws until q, Ctrl-C, a signal or the end of the terminal; whatever happens the terminal is as it was.
///
/// # Errors
///
/// No monitor answers at the start, or the terminal cannot be used.
pub(super) fn run(sources: &mut Sources, interval: Duration) -> Result<(), String> {
    let report = sources.query()?;
    let mut view = View { report, trouble: None, offset: 0, page: 1 };
    let watch = Watch::start().map_err(|error| format!("signals cannot be handled: {error}"))?;
    let failed = |error: io::Error| format!("the terminal cannot be used: {error}; use --once");
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = view.follow(&mut terminal, sources, interval, &watch);
    match outcome.and(ratatui::try_restore()) {
        Err(_) if watch::hung_up() => watch::end_at_once(),
        outcome => outcome.map_err(failed),
    }
}

impl View {
    fn follow(
        &mut self,
        terminal: &mut DefaultTerminal,
        sources: &mut Sources,
        interval: Duration,
        watch: &Watch,
    ) -> io::Result<()> {
        let mut next = Instant::now() + interval;
        while !watch.says_end() {
            terminal.draw(|frame| self.draw(frame))?;
            let mut changed = false;
            while !changed && !watch.says_end() {
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                if event::poll(left.min(SLICE))? {
                    match event::read()? {
                        Event::Key(key) if key.kind != KeyEventKind::Release => {
                            if self.press(key) {
                                return Ok(());
                            }
                            changed = true;
                        }
                        Event::Resize(..) => changed = true,
                        _ => {}
                    }
                }
            }
            if Instant::now() >= next {
                self.refresh(sources);
                next = Instant::now() + interval;
            }
        }
        Ok(())
    }

    fn refresh(&mut self, sources: &mut Sources) {
        match sources.query() {
            Ok(report) => {
                self.report = report;
                self.trouble = None;
                for monitor in &mut self.report.monitors {
                    // Stable: those without traffic stay in the order in which they came.
                    monitor.connections.sort_by_key(|connection| std::cmp::Reverse(traffic(connection)));
                }
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    /// True if the key ends the view.
    fn press(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Up => self.offset = self.offset.saturating_sub(1),
            KeyCode::Down => self.offset += 1,
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(self.page),
            KeyCode::PageDown => self.offset += self.page,
            KeyCode::Home => self.offset = 0,
            _ => {}
        }
        false
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let monitors = &self.report.monitors;
        let mut heading = Vec::new();
        for monitor in monitors {
            heading.push(Line::from(table::heading(monitor)));
            heading.push(Line::from(table::refusals(monitor)));
        }
        if let Some(trouble) = &self.trouble {
            heading.push(Line::styled(
                format!("the monitor does not answer, so these numbers are old: {trouble}"),
                Modifier::REVERSED,
            ));
        }
        let processes = monitors.iter().map(|monitor| monitor.processes.len()).sum::<usize>();
        let third = usize::from(frame.area().height) / 3;
        let [top, middle, rest, keys] = Layout::vertical([
            Constraint::Length(heading.len() as u16),
            Constraint::Length(processes.saturating_add(2).min(third.max(3)) as u16),
            Constraint::Min(2),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(Text::from(heading)), top);

        let lines = monitors.iter().flat_map(|monitor| &monitor.processes).map(table::process);
        grid(frame, middle, &table::PROCESS_TITLES, &PROCESS_WIDTHS, lines);

        let connections = monitors.iter().flat_map(|monitor| &monitor.connections);
        let endpoints: usize = connections.map(|connection| connection.endpoints.len()).sum();
        self.page = usize::from(rest.height.saturating_sub(1)).max(1);
        self.offset = self.offset.min(endpoints.saturating_sub(self.page));
        let lines = monitors.iter().flat_map(|monitor| &monitor.connections).flat_map(table::endpoints);
        grid(frame, rest, &table::ENDPOINT_TITLES, &ENDPOINT_WIDTHS, lines.skip(self.offset));
        if endpoints == 0 && rest.height > 1 {
            let below = Rect { y: rest.y + 1, height: rest.height - 1, ..rest };
            frame.render_widget(Paragraph::new(table::NO_CONNECTION), below);
        }

        let (first, last) = ((self.offset + 1).min(endpoints), (self.offset + self.page).min(endpoints));
        let shown = format!("{first}-{last} of {endpoints} endpoints");
        frame.render_widget(Line::from(format!("q quit   arrows, PgUp, PgDn, Home scroll   {shown}")), keys);
    }
}

/// What goes through it, in bytes a second.
fn traffic(connection: &Connection) -> u64 {
    let states = connection.endpoints.iter().filter_map(|endpoint| endpoint.state.as_ref());
    states.filter_map(|state| state.sent.bytes_per_s).fold(0, u64::saturating_add)
}

/// A title line and as many lines as there is room for. Only those are made.
fn grid(
    frame: &mut Frame<'_>,
    area: Rect,
    titles: &[&str],
    widths: &[u16],
    lines: impl Iterator<Item = Vec<String>>,
) {
    let columns = widths.iter().map(|width| match width {
        0 => Constraint::Min(8),
        width => Constraint::Length(*width),
    });
    let rows = lines.take(area.height.into()).map(|line| {
        Row::new(line.into_iter().zip(titles).map(|(cell, title)| {
            let text = Text::from(cell);
            Cell::from(if table::is_left(title) { text } else { text.right_aligned() })
        }))
    });
    let header = Row::new(titles.iter().map(|title| {
        let text = Text::from(*title);
        Cell::from(if table::is_left(title) { text } else { text.right_aligned() })
    }));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Table::new(rows, columns).header(header.style(bold)), area);
}
