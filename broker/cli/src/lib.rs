//! `mediatore-cli`: log in, claim a sandbox, look at it, release it.
//!
//! | module | what |
//! |---|---|
//! | `args` | what may be typed |
//! | `config` | where mediatore and the identity provider are |
//! | `login` | from a person to a token: `browser` (code flow with PKCE), `device`, and the `store` that keeps it |
//! | `api` | mediatore's routes, bounded and repeated when that is safe |
//! | `commands` | what each command does |
//! | `show` | tables and progress |
//! | `fault` | what went wrong, in words and as an exit code |
//!
//! Standard output carries the result alone, so that `TOKEN=$(mediatore-cli login)` works; all else goes to standard error.

pub mod api;
pub mod args;
pub mod commands;
pub mod config;
pub mod fault;
pub mod login;
pub mod show;
