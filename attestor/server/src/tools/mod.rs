//! Tools for people: recording golden boots, printing event logs.

pub mod evidence;
pub mod explain;
pub mod golden;
