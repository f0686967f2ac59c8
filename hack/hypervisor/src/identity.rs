//! Whose machine it is: what names an instance on this host, in its folder, its logs and its endorsement report.

use serde::{Deserialize, Serialize};

/// An instance and the node that it was given to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// uid of the instance.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Our node that runs it.
    pub node: String,
}
