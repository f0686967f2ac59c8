//! What each command does.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;
use jiff::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::api::{Claim, Mediatore, Read, Request};
use crate::args::{self, Arguments, Command, Output, Restart, Until};
use crate::config::Config;
use crate::fault::{Fault, Kind};
use crate::login::store::Store;
use crate::login::{self, Session, Way};
use crate::show::{self, Progress, print};

/// Between two looks at a claim: a quarter of what mediatore lets a caller ask by default.
const LOOK: Duration = Duration::from_secs(2);
/// Largest token that is read, in bytes.
const LARGEST_TOKEN: u64 = 64 * 1024;

/// Does what was typed.
///
/// # Errors
/// What went wrong.
pub async fn run(arguments: Arguments) -> Result<(), Fault> {
    let Arguments { config, server, give_up_after, output, command } = arguments;
    let config = || Config::load(config.as_deref());
    let patience = give_up_after.unsigned_abs();
    let place = || config().map(|config| Place { config, server: server.as_deref(), patience });
    let mediatore = |token: &args::Token| {
        let place = place()?;
        place.mediatore(place.token(token.token_file.as_deref())?)
    };
    match command {
        Command::Login(asked) => log_in(&config()?, &asked, output).await,
        Command::Logout => Store::open()?.forget(),
        Command::Claim(asked) => claim(&place()?, &asked, output).await,
        Command::Status(asked) => status(&mediatore(&asked.token)?, &asked, output).await,
        Command::Release(asked) => release(&mediatore(&asked.token)?, &asked).await,
        Command::Pools { token } => pools(&mediatore(&token)?, output).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "mediatore-cli", &mut script);
            print(String::from_utf8_lossy(&script).trim_end())
        }
    }
}

async fn log_in(config: &Config, asked: &args::Login, output: Output) -> Result<(), Fault> {
    let (provider, store) = (config.login()?, Store::open()?);
    let kept = match store.token(provider, Timestamp::now()) {
        _ if asked.force => None,
        Ok(kept) => kept,
        Err(fault) => return Err(fault),
    };
    let token = if let Some(token) = kept {
        eprintln!("You are logged in at {} already; --force logs in anew.", provider.issuer);
        token
    } else {
        let way = match asked {
            args::Login { device: true, .. } => Way::Device,
            args::Login { no_browser: true, .. } => Way::Address,
            args::Login { .. } => Way::Browser,
        };
        let session = login::login(provider, way, false).await?;
        store.keep(provider, &session)?;
        session.token
    };
    match output {
        Output::Json => print(&Zeroizing::new(json!({ "token": token.as_str() }).to_string())),
        Output::Table | Output::Name => print(&token),
    }
}

/// Where to ask.
struct Place<'a> {
    config: Config,
    server: Option<&'a str>,
    patience: Duration,
}

impl Place<'_> {
    /// The token in that file, or the one that login kept.
    fn token(&self, file: Option<&Path>) -> Result<Zeroizing<String>, Fault> {
        if let Some(file) = file {
            return token_in(file);
        }
        let kept = Store::open()?.token(self.config.login()?, Timestamp::now())?;
        kept.ok_or_else(|| Fault::new(Kind::Login, "you are not logged in: run mediatore-cli login"))
    }

    /// mediatore, asked with this token.
    fn mediatore(&self, token: Zeroizing<String>) -> Result<Mediatore, Fault> {
        let server = self.config.server(self.server)?;
        Mediatore::new(server, self.config.ca_file.as_deref(), token, self.patience)
    }
}

fn token_in(file: &Path) -> Result<Zeroizing<String>, Fault> {
    let fail = |error: std::io::Error| Fault::new(Kind::Usage, format!("the token in {}: {error}", file.display()));
    let mut text = Zeroizing::new(String::new());
    if file == Path::new("-") {
        std::io::stdin().take(LARGEST_TOKEN).read_to_string(&mut text).map_err(fail)?;
    } else {
        std::fs::File::open(file).map_err(fail)?.take(LARGEST_TOKEN).read_to_string(&mut text).map_err(fail)?;
    }
    Ok(Zeroizing::new(text.trim().to_owned()))
}

async fn claim(place: &Place<'_>, asked: &args::Claim, output: Output) -> Result<(), Fault> {
    let (token, refresh_token) = if asked.with_session {
        let Session { token, refresh_token, .. } = login::login(place.config.login()?, Way::Browser, true).await?;
        (token, refresh_token)
    } else {
        (place.token(asked.token.token_file.as_deref())?, None)
    };
    let mediatore = place.mediatore(token)?;
    let key = asked.idempotency_key.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let request = Request {
        pool_ref: &asked.pool,
        ttl_seconds: asked.ttl.map(|ttl| ttl.as_secs()),
        audiences: &asked.audiences,
        workload: workload(asked),
        refresh_token: refresh_token.as_ref().map(|token| token.as_str()),
    };
    let made = mediatore.claim(&request, &key).await.map_err(|fault| match fault.kind {
        // It may be there all the same.
        Kind::Unavailable => Fault {
            detail: format!("{fault}. The same command with --idempotency-key {key} finds the claim if it was made"),
            ..fault
        },
        _ => fault,
    })?;
    let name = made.it.name.clone();
    let waited = tokio::select! {
        waited = until(&mediatore, made, asked.wait) => waited,
        _ = tokio::signal::ctrl_c() => Err(Fault::new(
            Kind::Interrupted,
            format!("the claim {name} goes on. End it with: mediatore-cli release {name}"),
        )),
    }?;
    show_claim(&waited, output)?;
    verdict(&waited.it, asked.wait)
}

fn workload(asked: &args::Claim) -> Value {
    let restart = match asked.restart {
        Restart::Never => "never",
        Restart::OnFailure => "on_failure",
        Restart::Always => "always",
    };
    let env: Vec<Value> = asked.env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let mut resources = json!({});
    if let Some(fields) = resources.as_object_mut() {
        let text = [("cpu", &asked.cpu), ("memory", &asked.memory)];
        fields.extend(text.into_iter().filter_map(|(name, it)| Some((name.to_owned(), json!(it.as_ref()?)))));
        fields.extend(asked.pids.map(|pids| ("pids".to_owned(), json!(pids))));
    }
    json!({
        "image": asked.image, "args": asked.args, "env": env, "restart_policy": restart, "resources": resources,
    })
}

/// Looks until a claim is as far as that, or will never be.
async fn until(mediatore: &Mediatore, first: Read<Claim>, until: Until) -> Result<Read<Claim>, Fault> {
    let mut progress = Progress::new();
    let mut seen = first;
    while !is_reached(&seen.it, until) {
        progress.say(&how_far(&seen.it));
        tokio::time::sleep(LOOK).await;
        let name = &seen.it.name;
        seen = mediatore.status(name).await.map_err(|fault| match fault.kind {
            // It was there, so it ended, and is cleared away already.
            Kind::NotFound => Fault::new(Kind::Workload, format!("the claim {name} ended and is gone")),
            _ => fault,
        })?;
    }
    progress.say(&how_far(&seen.it));
    Ok(seen)
}

fn is_over(claim: &Claim) -> bool {
    !["Pending", "Bound"].contains(&claim.phase.as_str())
}

fn is_reached(claim: &Claim, until: Until) -> bool {
    let workload = claim.workload_state.as_deref().unwrap_or("pending");
    let far = match workload {
        "finished" | "failed" => Until::Finished,
        "running" => Until::Running,
        _ if claim.phase == "Bound" => Until::Bound,
        _ => Until::None,
    };
    is_over(claim) || far >= until
}

fn how_far(claim: &Claim) -> String {
    let Claim { name, phase, .. } = claim;
    match (phase.as_str(), claim.workload_state.as_deref(), claim.queue_position) {
        ("Pending", _, Some(place)) => format!("{name}: waits for a machine, place {place} in the queue"),
        ("Pending", ..) => format!("{name}: waits for a machine"),
        ("Bound", None, _) => format!("{name}: has its machine"),
        ("Bound", Some(state), _) => format!("{name}: its workload is {state}"),
        _ => {
            let why = claim.termination_reason.as_deref().map(|why| format!(", {why}")).unwrap_or_default();
            format!("{name}: is {}{why}", phase.to_lowercase())
        }
    }
}

/// Whether a claim that was waited for is what was waited for.
fn verdict(claim: &Claim, until: Until) -> Result<(), Fault> {
    let name = &claim.name;
    let why = claim.termination_reason.as_deref().unwrap_or("no reason is known");
    let fail = |what: String| Err(Fault::new(Kind::Workload, what));
    match (claim.phase.as_str(), claim.workload_state.as_deref()) {
        _ if until == Until::None => Ok(()),
        ("Failed", _) => fail(format!("the claim {name} failed: {why}")),
        _ if until == Until::Bound => {
            if is_over(claim) {
                fail(format!("the claim {name} ended: {why}"))
            } else {
                Ok(())
            }
        }
        (_, Some("failed")) => fail(format!("the workload of {name} could not be started")),
        (_, Some("finished")) if until == Until::Finished => match claim.exit_code {
            Some(0) | None => Ok(()),
            Some(code) => fail(format!("the workload of {name} ended with exit code {code}")),
        },
        (_, Some("finished" | "running")) if until == Until::Running => Ok(()),
        _ => fail(format!("the claim {name} ended before its workload did: {why}")),
    }
}

fn show_claim(claim: &Read<Claim>, output: Output) -> Result<(), Fault> {
    print(&match output {
        Output::Table => show::claims(std::slice::from_ref(&claim.it), Timestamp::now()),
        Output::Json => pretty(&claim.whole),
        Output::Name => show::plain(&claim.it.name),
    })
}

/// As JSON that a terminal may show: serde escapes control characters, and the rest is escaped here.
fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

async fn status(mediatore: &Mediatore, asked: &args::Status, output: Output) -> Result<(), Fault> {
    if let Some(name) = &asked.name {
        let first = mediatore.status(name).await?;
        let seen = until(mediatore, first, asked.wait).await?;
        show_claim(&seen, output)?;
        return verdict(&seen.it, asked.wait);
    }
    let Read { it: claims, whole } = mediatore.claims().await?;
    match output {
        Output::Json => print(&pretty(&whole)),
        Output::Name => claims.iter().try_for_each(|claim| print(&show::plain(&claim.name))),
        Output::Table if claims.is_empty() => {
            eprintln!("You have no claims.");
            Ok(())
        }
        Output::Table => print(&show::claims(&claims, Timestamp::now())),
    }
}

async fn release(mediatore: &Mediatore, asked: &args::Release) -> Result<(), Fault> {
    // One that fails keeps none of the others.
    let mut failed = None;
    for name in &asked.names {
        match mediatore.release(name).await {
            Ok(()) => eprintln!("{}: is released", show::plain(name)),
            Err(fault) => {
                eprintln!("{}: {fault}", show::plain(name));
                failed = Some(fault);
            }
        }
    }
    if let Some(fault) = failed {
        return Err(fault);
    }
    if asked.wait {
        let mut progress = Progress::new();
        for name in &asked.names {
            loop {
                match mediatore.status(name).await {
                    Ok(claim) => progress.say(&how_far(&claim.it)),
                    Err(fault) if fault.kind == Kind::NotFound => break,
                    Err(fault) => return Err(fault),
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
    Ok(())
}

async fn pools(mediatore: &Mediatore, output: Output) -> Result<(), Fault> {
    let Read { it: pools, whole } = mediatore.pools().await?;
    match output {
        Output::Json => print(&pretty(&whole)),
        Output::Name => pools.iter().try_for_each(|pool| print(&show::plain(&pool.pool_ref))),
        Output::Table if pools.is_empty() => {
            eprintln!("There is no pool for you.");
            Ok(())
        }
        Output::Table => print(&show::pools(&pools)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn claim(phase: &str, workload: Option<&str>, exit_code: Option<i32>) -> Claim {
        let json = json!({
            "name": "c-1", "phase": phase, "pool_ref": "n/p", "workload_state": workload, "exit_code": exit_code,
        });
        serde_json::from_value(json).unwrap()
    }

    #[rstest]
    #[case("Pending", None, None, Until::None, Some(true))]
    #[case("Pending", None, None, Until::Bound, None)]
    #[case("Bound", None, None, Until::Bound, Some(true))]
    #[case("Bound", Some("pulling"), None, Until::Running, None)]
    #[case("Bound", Some("running"), None, Until::Running, Some(true))]
    #[case("Bound", Some("running"), None, Until::Finished, None)]
    #[case("Bound", Some("finished"), Some(0), Until::Finished, Some(true))]
    #[case("Bound", Some("finished"), Some(3), Until::Finished, Some(false))]
    #[case("Bound", Some("finished"), Some(3), Until::Running, Some(true))]
    #[case("Bound", Some("failed"), None, Until::Running, Some(false))]
    #[case("Released", Some("finished"), Some(0), Until::Finished, Some(true))]
    #[case("Released", Some("running"), None, Until::Finished, Some(false))]
    #[case("Releasing", None, None, Until::Bound, Some(false))]
    #[case("Failed", None, None, Until::Bound, Some(false))]
    #[case("Failed", None, None, Until::None, Some(true))]
    fn how_long_to_wait_and_what_for(
        #[case] phase: &str,
        #[case] workload: Option<&str>,
        #[case] exit_code: Option<i32>,
        #[case] until: Until,
        #[case] ends: Option<bool>,
    ) {
        let claim = claim(phase, workload, exit_code);
        let ended = is_reached(&claim, until).then(|| verdict(&claim, until).is_ok());
        assert_eq!(ended, ends);
    }
}
