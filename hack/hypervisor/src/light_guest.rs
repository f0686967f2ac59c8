//! Plays the guest of a light instance: keeps its agent running, as banlieue-guest does in a machine, and powers off when
//! the agent cannot be kept running or the power button is pressed (SIGTERM).

use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

/// Pause before the agent is started again; doubled up to the longest.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(5);
/// An agent that ran this long has an identity, and the count starts anew.
const SETTLED: Duration = Duration::from_secs(20);

/// Runs until power-off. `give_up` is the agent's TTL: an identity that is lost for longer does not come back.
///
/// # Errors
/// The agent's program cannot be run at all.
pub async fn run(argv: &[String], give_up: Duration) -> std::io::Result<()> {
    let mut button = signal(SignalKind::terminate())?;
    let mut pause = SHORTEST;
    let mut settled = Instant::now();
    loop {
        let began = Instant::now();
        let mut agent = start(argv)?;
        tokio::select! {
            status = agent.wait() => tracing::warn!(status = %status?, "the agent ended"),
            _ = button.recv() => {
                agent.kill().await?;
                tracing::info!("power button: off");
                return Ok(());
            }
        }
        if began.elapsed() >= SETTLED {
            pause = SHORTEST;
            settled = Instant::now();
        }
        if settled.elapsed() >= give_up {
            tracing::warn!("the agent's identity does not come back: power-off");
            return Ok(());
        }
        tokio::select! {
            () = sleep(pause) => pause = LONGEST.min(pause * 2),
            _ = button.recv() => return Ok(()),
        }
    }
}

fn start(argv: &[String]) -> std::io::Result<Child> {
    let (program, arguments) = argv.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    Command::new(program).args(arguments).stdin(std::process::Stdio::null()).kill_on_drop(true).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_cannot_stay_is_started_again_until_power_off() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("starts");
        let script = format!("echo x >> {}", file.display());
        let argv = ["sh", "-c", &script].map(String::from);
        run(&argv, Duration::from_millis(600)).await.unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().lines().count() >= 2);
    }

    #[tokio::test]
    async fn a_missing_agent_is_an_error() {
        assert!(run(&["/nonexistent/agent".to_owned()], Duration::ZERO).await.is_err());
        assert!(run(&[], Duration::ZERO).await.is_err());
    }
}
