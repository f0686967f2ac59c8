//! Claims as state: the `VirtualMachineClaim` is the record, and nothing that one replica knows is missing on another.
//!
//! - [`name`]: what a claim is called, and the digest of the request that it answers (pure);
//! - [`record`]: from an accepted request to the object, and whether an object is what the request would make (pure);
//! - [`grant`]: the sealed proof that mediatore made a claim, and for whom (pure);
//! - [`grants`]: what a claim has for a grant, now, and what it means when it has none;
//! - [`releasing`]: releases on their way, which refuse tokens until the claim says it itself;
//! - [`slots`]: which of a subject's slots to take, and which are free again (pure);
//! - [`lend`]: the two-way check between a claim and its member (pure);
//! - [`store`]: watches into memory; [`cluster`] and [`deny`]: calls to the API server;
//! - [`keeper`]: what is done without being asked: freeing slots, releasing claims without a grant.

pub mod cluster;
pub mod deny;
pub mod grant;
pub mod grants;
pub mod keeper;
pub mod lend;
pub mod name;
pub mod record;
pub mod releasing;
pub mod slots;
pub mod store;
