//! The report of `larder plan`: in words and tables, and as a page.

mod data;
mod page;
mod tables;
mod words;

pub(crate) use data::{LogInfo, PlanReport};
pub(crate) use page::page;
pub(crate) use words::write;
