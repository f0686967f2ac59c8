//! Client of the SPIRE server API: entries, agents, bundles.
