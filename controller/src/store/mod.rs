//! What the controller knows: watches and write replies go in, snapshots come out. No decisions here.
//!
//! One synchronous [`Index`] joins pools, members, claims, instances, launcher pods and nodes. It is fed by watches
//! (`watch`) and by the replies of our own writes, whichever comes first, so a worker always reads its own writes.
//! Newer beats older by resourceVersion; a uid that was seen deleted never comes back.

mod apply;
mod facts;
mod index;
mod key;
mod snapshot;
mod table;
mod unreadable;
mod warm;
pub mod watch;

pub use facts::{ConfigMapFacts, InstanceFacts, NodeFacts, PodFacts};
pub use index::{Assignment, DestroySteps, Index, PoolFacts};
pub use key::ObjectKey;
pub use snapshot::{ClaimSnapshot, MemberSnapshot, PoolSnapshot};
pub use table::{Source, Stored, Table};
pub use unreadable::{Unread, Unreadables};
pub use watch::{Change, ChangeEvent};
