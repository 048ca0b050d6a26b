//! The report of `larder plan`: text, tables, and a page.

mod data;
mod page;
mod proxy;
mod tables;
mod text;

pub(crate) use data::{LogInfo, PlanReport};
pub(crate) use page::page;
pub(crate) use proxy::ProxyReport;
pub(crate) use text::write;
