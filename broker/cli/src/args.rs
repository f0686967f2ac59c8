//! What may be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::SignedDuration;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "mediatore-cli",
    version,
    about = "Claim a sandbox, look at it, release it",
    after_help = "Exit codes: 0 done, 1 other, 2 usage, 3 log in first, 4 forbidden, 5 not found, 6 limit, 7 not available \
                  now, 8 the claim or its workload failed, 130 interrupted."
)]
pub struct Arguments {
    /// Where mediatore and the identity provider are. Default: mediatore/cli.yaml in the folder for configuration.
    #[arg(long, global = true, env = "MEDIATORE_CLI_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// mediatore, instead of the configuration's.
    #[arg(long, global = true, env = "MEDIATORE_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// How long to ask again while mediatore does not answer.
    #[arg(long, global = true, default_value = "1m", value_name = "DURATION", value_parser = duration)]
    pub give_up_after: SignedDuration,
    /// How results and errors are printed.
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// As mediatore answers; errors too, on standard error.
    Json,
    /// Names alone.
    Name,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Log in, and print the token alone on standard output.
    Login(Login),
    /// Forget the token that login kept.
    Logout,
    /// Claim a sandbox and say what runs in it.
    Claim(Box<Claim>),
    /// Show one claim, or all of yours.
    Status(Status),
    /// End claims before their deadline; their machines are destroyed.
    Release(Release),
    /// Show where you may claim.
    Pools {
        #[command(flatten)]
        #[allow(missing_docs)]
        token: Token,
    },
    /// Print a completion script.
    Completions {
        /// For which shell.
        shell: Shell,
    },
}

/// How to log in.
#[derive(Debug, Args)]
pub struct Login {
    /// Show a code to type in at another device, instead of opening a browser here.
    #[arg(long)]
    pub device: bool,
    /// Print the address only, and open no browser.
    #[arg(long, conflicts_with = "device")]
    pub no_browser: bool,
    /// Log in anew, though the token of the last time is still good.
    #[arg(long)]
    pub force: bool,
}

/// Whose token is used.
#[derive(Debug, Args)]
pub struct Token {
    /// A file with the token, or - for standard input, instead of the one that login kept. For agents and services.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// What to claim.
#[derive(Debug, Args)]
pub struct Claim {
    /// The pool: a name in mediatore's default namespace, or namespace/name.
    #[arg(long)]
    pub pool: String,
    /// The workload's OCI image.
    #[arg(long)]
    pub image: String,
    /// How long, such as 90s, 45m or 8h. Default: an hour, or the pool's longest.
    #[arg(long, value_parser = duration)]
    pub ttl: Option<SignedDuration>,
    /// A service that the workload may reach and get tokens for; repeat for more.
    #[arg(long = "audience", value_name = "AUDIENCE")]
    pub audiences: Vec<String>,
    /// A variable of the workload. No secrets: a claim is readable by many.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Whether a finished workload is started again.
    #[arg(long, value_enum, default_value_t = Restart::Never)]
    pub restart: Restart,
    /// CPUs of the jail, such as 500m or 2.
    #[arg(long)]
    pub cpu: Option<String>,
    /// Memory of the jail, such as 512Mi.
    #[arg(long)]
    pub memory: Option<String>,
    /// Processes and threads in the jail.
    #[arg(long)]
    pub pids: Option<u32>,
    /// How far to wait.
    #[arg(long, value_enum, default_value_t = Until::Bound)]
    pub wait: Until,
    /// The same key with the same claim gives the same claim, however often. Default: a new one.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Log in once more and hand mediatore that session, for audiences that rest on one. The session is not kept here.
    #[arg(long, conflicts_with = "token_file")]
    pub with_session: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub token: Token,
    /// The whole argv of the workload, after --. The image's entrypoint is ignored.
    #[arg(last = true, value_name = "ARGV")]
    pub args: Vec<String>,
}

/// Restart policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Restart {
    /// A finished job is finished.
    Never,
    /// Again after a failure.
    OnFailure,
    /// Again always, until the deadline.
    Always,
}

/// How far to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Until {
    /// Until mediatore has it.
    None,
    /// Until it has its machine.
    Bound,
    /// Until the workload runs.
    Running,
    /// Until the workload is finished; its failure is this command's.
    Finished,
}

/// Which claims to show.
#[derive(Debug, Args)]
pub struct Status {
    /// The claim. Default: all of yours.
    pub name: Option<String>,
    /// How far to wait first.
    #[arg(long, value_enum, default_value_t = Until::None, requires = "name")]
    pub wait: Until,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub token: Token,
}

/// Which claims to end.
#[derive(Debug, Args)]
pub struct Release {
    /// The claims.
    #[arg(required = true)]
    pub names: Vec<String>,
    /// Wait until they are gone.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub token: Token,
}

/// `90s`, `1h 30m`, or ISO 8601.
fn duration(text: &str) -> Result<SignedDuration, String> {
    let duration: SignedDuration = text.parse().map_err(|_| "write it like 90s, 45m or 8h".to_owned())?;
    match duration.as_secs() {
        1..=31_536_000 => Ok(duration),
        _ => Err("must be a second to a year".to_owned()),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| "write it NAME=VALUE".to_owned())?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Arguments::command().debug_assert();
    }

    #[rstest]
    #[case("90s", Some(90))]
    #[case("1h", Some(3600))]
    #[case("1h 30m", Some(5400))]
    #[case("1h30m", Some(5400))]
    #[case("PT8H", Some(28800))]
    #[case("0s", None)]
    #[case("-1h", None)]
    #[case("3600", None)]
    #[case("9999999h", None)]
    #[case("", None)]
    fn lifetimes(#[case] text: &str, #[case] seconds: Option<i64>) {
        assert_eq!(duration(text).ok().map(|it| it.as_secs()), seconds);
    }

    #[rstest]
    #[case("A=b", Some(("A", "b")))]
    #[case("A=", Some(("A", "")))]
    #[case("A=b=c", Some(("A", "b=c")))]
    #[case("A", None)]
    fn variables(#[case] text: &str, #[case] pair: Option<(&str, &str)>) {
        assert_eq!(variable(text).ok(), pair.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
