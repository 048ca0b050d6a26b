//! One line to a server: a connection that is made when needed, used for one request after another, and made anew when
//! the server has closed it meanwhile.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::{Broken, Buffers, Connection};
use super::deadline::Deadline;
use crate::plan::Method;
use crate::wire::reply::ReplyReader;

/// Where a line leads, and how it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    pub(crate) method: Method,
    /// Limit for one request, connecting included.
    pub(crate) timeout: Duration,
    /// Whether the connection is kept after a reply.
    pub(crate) keep: bool,
}

/// What an exchange has cost, whether or not it went well.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Effort {
    /// Connections made.
    pub(crate) opened: u64,
    /// Kept connections that were found closed.
    pub(crate) stale: u64,
    /// How long the last connection took to make; `None` if none was made, or none could be.
    pub(crate) connect: Option<Duration>,
}

/// A line. Its memory is kept from request to request.
#[derive(Debug)]
pub(crate) struct Line {
    connection: Option<Connection>,
    pub(crate) reader: ReplyReader,
    deadline: Deadline,
    pub(crate) effort: Effort,
}

impl Line {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            connection: None,
            reader: ReplyReader::new(),
            deadline: Deadline::after(timeout),
            effort: Effort::default(),
        }
    }

    /// Closes the connection, if there is one.
    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    /// Sends `request` and reads the reply to its end, once more on a new connection if the kept one turns out to have
    /// been closed. Returns when the first byte of the reply came; [`Line::effort`] says what it took.
    pub(crate) async fn exchange(
        &mut self,
        way: &Way,
        request: &[u8],
        buffers: &RefCell<Buffers>,
    ) -> Result<Instant, Broken> {
        self.effort = Effort::default();
        self.deadline.restart(Instant::now(), way.timeout);
        let kept = self.connection.is_some();
        let exchanged = match self.exchange_once(way, request, buffers).await {
            Err(broken) if kept && broken.may_be_stale => {
                self.effort.stale += 1;
                self.connection = None;
                self.exchange_once(way, request, buffers).await
            }
            result => result,
        };
        if exchanged.is_err() || !way.keep || !self.reader.keep_alive() {
            self.connection = None;
        }
        exchanged
    }

    async fn exchange_once(
        &mut self,
        way: &Way,
        request: &[u8],
        buffers: &RefCell<Buffers>,
    ) -> Result<Instant, Broken> {
        self.reader.begin(way.method == Method::Head);
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let begun = Instant::now();
                let opened = Connection::open(way.address, &mut self.deadline).await?;
                self.effort.connect = Some(begun.elapsed());
                self.effort.opened += 1;
                none.insert(opened)
            }
        };
        connection.exchange(request, &mut self.reader, buffers, &mut self.deadline).await
    }
}
