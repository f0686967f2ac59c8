//! Tools for people: recording golden boots, printing event logs.

pub mod explain;
pub mod golden;
