//! A slot for one connection to a server: the connection is opened on demand, reused for further requests, and reopened if
//! the server has closed it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::{Buffers, Connection, ExchangeError};
use super::deadline::Deadline;
use crate::plan::Method;
use crate::wire::reply::ReplyReader;

/// Server address and options of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSettings {
    pub(crate) address: SocketAddr,
    pub(crate) method: Method,
    /// Timeout of one request, including the time to connect.
    pub(crate) timeout: Duration,
    /// Whether the connection is kept open after a reply.
    pub(crate) keep_alive: bool,
}

/// Connections that an exchange needed, whether it succeeded or not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExchangeCost {
    /// Connections opened.
    pub(crate) opened: u64,
    /// Kept-alive connections that the server had closed.
    pub(crate) stale_retries: u64,
    /// Time to open the last connection; `None` if no connection was opened.
    pub(crate) connect: Option<Duration>,
}

/// A slot for one connection. Buffers are reused between requests.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connection: Option<Connection>,
    pub(crate) reader: ReplyReader,
    deadline: Deadline,
    pub(crate) cost: ExchangeCost,
}

impl ConnectionSlot {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            connection: None,
            reader: ReplyReader::new(),
            deadline: Deadline::after(timeout),
            cost: ExchangeCost::default(),
        }
    }

    /// Closes the connection, if any.
    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    /// Sends `request` and reads the whole reply. Retries once on a new connection if the server had closed the kept-alive
    /// one. Returns the time of the reply's first byte and stores the connections needed in [`ConnectionSlot::cost`].
    pub(crate) async fn exchange(
        &mut self,
        settings: &RequestSettings,
        request: &[u8],
        buffers: &RefCell<Buffers>,
    ) -> Result<Instant, ExchangeError> {
        self.cost = ExchangeCost::default();
        self.deadline.restart(Instant::now(), settings.timeout);
        let kept = self.connection.is_some();
        let exchanged = match self.exchange_once(settings, request, buffers).await {
            Err(failed) if kept && failed.may_be_stale => {
                self.cost.stale_retries += 1;
                self.connection = None;
                self.exchange_once(settings, request, buffers).await
            }
            result => result,
        };
        if exchanged.is_err() || !settings.keep_alive || !self.reader.keep_alive() {
            self.connection = None;
        }
        exchanged
    }

    async fn exchange_once(
        &mut self,
        settings: &RequestSettings,
        request: &[u8],
        buffers: &RefCell<Buffers>,
    ) -> Result<Instant, ExchangeError> {
        self.reader.begin(settings.method == Method::Head);
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let begun = Instant::now();
                let opened = Connection::open(settings.address, &mut self.deadline).await?;
                self.cost.connect = Some(begun.elapsed());
                self.cost.opened += 1;
                none.insert(opened)
            }
        };
        connection.exchange(request, &mut self.reader, buffers, &mut self.deadline).await
    }
}
