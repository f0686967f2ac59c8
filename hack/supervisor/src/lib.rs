//! Owns every process of a local cluster; all of them end with its lifeline.
