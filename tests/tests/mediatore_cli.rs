//! `mediatore-cli` as a person at a terminal uses it: real providers whose pages a browser visits, a real mediatore, real
//! claims.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod broker;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::LazyLock;

use banlieue_cluster::idp::{CROSS_CLIENT, DexConfig, MEDIATORE, OidcConfig, Person, Provider, SANDBOX_ACCESS, decode};
use banlieue_cluster::{Cluster, programs};
use banlieue_crds::{VirtualMachineClaim, VirtualMachinePool};
use broker::{IMAGE, Listening, NAME, NAMESPACE, Setup, body, eventually, weightless_pool};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// An audience that rests on a person's session at Dex.
const BY_SESSION: &str = "api://by-session";
/// The two commands of the reference, byte for byte.
const REFERENCE: &str = r#"TOKEN=$(mediatore-cli login)
curl -sS https://mediatore.sandbox.example/v1/claims \
  -H "Authorization: Bearer $TOKEN" \
  -d '{
    "pool_ref": "pool-a",
    "ttl_seconds": 3600,
    "audiences": ["api://trading-data"],
    "workload": {
      "image": "registry.internal:5000/sandbox/claude:latest",
      "args": ["/usr/bin/claude", "-p", "reconcile the ledgers"]
    }
  }'
"#;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
/// Never dropped: it ends with the test process, whose end closes the lifeline.
static WORLD: OnceCell<World> = OnceCell::const_new();

fn test<F: Future<Output = ()>>(body: impl FnOnce(&'static World) -> F) {
    RUNTIME.block_on(async { body(WORLD.get_or_init(World::start).await).await });
}

struct World {
    cluster: Cluster,
    entra: Provider,
    dex: Provider,
    setup: Setup,
    mediatore: Listening,
}

impl World {
    async fn start() -> Self {
        let builder = Cluster::builder().nodes("w-1=weightless").controller();
        let cluster = builder.start().await.unwrap_or_else(|error| panic!("{error}"));
        let entra = cluster.start_oidc(OidcConfig::entra()).await.unwrap_or_else(|error| panic!("{error}"));
        let dex = cluster.start_dex(DexConfig::default()).await.unwrap_or_else(|error| panic!("{error}"));
        let setup = Setup::new(&cluster, &entra, &[NAMESPACE], json!({}));
        setup.edit(|config| {
            config["issuers"].as_array_mut().unwrap().push(json!({
                "name": "dex", "url": dex.issuer, "client_id": "mediatore", "ca_file": dex.ca_file,
                "accepts": "id_token", "display_claim": "name", "clients": ["mediatore-cli"],
            }));
            config["audiences"].as_array_mut().unwrap().push(json!({ "id": BY_SESSION, "backend": "dex-refresh" }));
            config["upstreams"] = json!([{ "issuer": "dex", "backend": "dex-refresh", "client_id": "mediatore-cli" }]);
        });
        let mediatore = setup.start(&cluster, "mediatore").await;
        let pools: Api<VirtualMachinePool> = Api::namespaced(cluster.admin(), NAMESPACE);
        for (name, warm, max) in [("pool-a", 2, 12), ("empty", 0, 0)] {
            let mut pool = weightless_pool(name, warm, max, 2);
            pool.spec.claim_policy.allowed_audiences.push(BY_SESSION.to_owned());
            pools.create(&PostParams::default(), &pool).await.unwrap();
        }
        let world = Self { cluster, entra, dex, setup, mediatore };
        let token = world.service().await;
        eventually("mediatore sees the pools", async || {
            let asking = world.setup.client.get(format!("{}/v1/pools", world.mediatore.user)).bearer_auth(&token);
            body(asking.send().await.unwrap()).await["pools"].as_array().is_some_and(|pools| pools.len() == 2)
        })
        .await;
        world
    }

    async fn service(&self) -> String {
        self.entra.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap().access_token
    }

    /// Somebody whom no other test knows, at the Entra-shaped provider.
    async fn somebody(&self, login: &str, n: u32) -> Person {
        let person = Person::new(&format!("0d0d0d0d-1111-4222-8333-{n:012}"), login);
        self.entra.put_person(&person).await.unwrap();
        person
    }

    async fn claim(&self, name: &str) -> Option<VirtualMachineClaim> {
        let claims: Api<VirtualMachineClaim> = Api::namespaced(self.cluster.admin(), NAMESPACE);
        claims.get_opt(name).await.unwrap()
    }
}

/// A person's home, with a browser that only writes down which address it was told to open.
struct Home {
    folder: TempDir,
}

impl Home {
    /// `~/.config/mediatore/cli.yaml` as an installation's documents would give it.
    fn new(world: &World, provider: &Provider) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let login = if provider.issuer == world.dex.issuer {
            json!({
                "issuer": provider.issuer, "client_id": "mediatore-cli", "ca_file": provider.ca_file, "token": "id_token",
                "scope": format!("openid profile {CROSS_CLIENT}"), "redirect_uri": "http://localhost/callback",
            })
        } else {
            json!({
                "issuer": provider.issuer, "client_id": "mediatore-cli", "ca_file": provider.ca_file,
                "token": "access_token", "scope": format!("openid {SANDBOX_ACCESS}"),
            })
        };
        let ca_file = world.setup.config.with_file_name("tls.crt");
        let config = json!({ "server": world.mediatore.user, "ca_file": ca_file, "login": login });
        let home = Self { folder };
        home.write(".config/mediatore/cli.yaml", &config.to_string());
        home.write(
            "bin/xdg-open",
            "#!/bin/sh\nprintf %s \"$1\" > \"$HOME/address.part\" && mv \"$HOME/address.part\" \"$HOME/address\"\n",
        );
        std::fs::set_permissions(home.path("bin/xdg-open"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = world.mediatore.user.rsplit(':').next().unwrap();
        home.write(".curlrc", &format!("cacert = {}\nconnect-to = {NAME}:443:127.0.0.1:{port}\n", ca_file.display()));
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), content).unwrap();
    }

    /// A program with nothing but this home.
    fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let cli = programs::binary("mediatore-cli").unwrap_or_else(|error| panic!("{error}"));
        let path = format!("{}:{}:/usr/bin:/bin", cli.parent().unwrap().display(), self.path("bin").display());
        let mut command = Command::new(program.as_ref());
        command.args(arguments).env_clear().envs([("PATH", path), ("HOME", self.folder.path().display().to_string())]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    fn cli(&self, arguments: &[&str]) -> Command {
        self.command(programs::binary("mediatore-cli").unwrap(), arguments)
    }

    /// Runs it to its end, with this exit code.
    async fn run(&self, arguments: &[&str], code: i32) -> Output {
        let output = self.cli(arguments).output().await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", said(&output));
        output
    }

    /// Runs it and reads what it printed as JSON.
    async fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.run(arguments, 0).await.stdout).unwrap()
    }

    /// The person logs in at the address that the browser was told to open.
    async fn browse(&self, provider: &Provider, person: &Person) {
        let file = self.path("address");
        eventually("a browser is opened", async || file.exists()).await;
        let address = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        let page = provider.browse(&address, person).await.unwrap();
        assert!(page.contains("You are logged in."), "{page}");
    }

    /// Logged in.
    async fn login(&self, provider: &Provider, person: &Person) {
        let login = self.cli(&["login", "--force"]).spawn().unwrap();
        self.browse(provider, person).await;
        let output = login.wait_with_output().await.unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }

    fn kept(&self) -> PathBuf {
        self.path(".local/state/mediatore/login.json")
    }
}

fn said(output: &Output) -> String {
    format!("{} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The first line of standard error that has this, and the reader of the rest.
async fn line_with(child: &mut Child, wanted: &str) -> String {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    loop {
        let line = lines.next_line().await.unwrap().unwrap_or_else(|| panic!("it never said {wanted}"));
        if line.contains(wanted) {
            // Nobody blocks on a full pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return line;
        }
    }
}

async fn rest(mut child: Child) -> (i32, String) {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    (child.wait().await.unwrap().code().unwrap(), text)
}

#[test]
fn the_two_commands_of_the_reference() {
    test(async |world| {
        let (home, ada) = (Home::new(world, &world.dex), Person::ada());
        let shell = home.command("/bin/bash", &["-ec", REFERENCE]).spawn().unwrap();
        home.browse(&world.dex, &ada).await;
        let output = shell.wait_with_output().await.unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let made: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
        let claim = world.claim(made["name"].as_str().unwrap_or_else(|| panic!("{made}"))).await.unwrap();
        assert_eq!(claim.spec.subject.issuer, world.dex.issuer);
        assert_eq!(claim.spec.pool_ref.name, "pool-a");
        assert_eq!(claim.spec.workload.args, ["/usr/bin/claude", "-p", "reconcile the ledgers"]);
        let kept: Value = serde_json::from_slice(&std::fs::read(home.kept()).unwrap()).unwrap();
        let token = decode(kept["token"].as_str().unwrap()).unwrap().1;
        assert_eq!(json!(claim.spec.subject.id), token["sub"]);
        home.run(&["release", &claim.name_any()], 0).await;
    });
}

#[test]
fn a_login_prints_the_token_alone_and_keeps_it_for_its_owner() {
    test(async |world| {
        let (home, person) = (Home::new(world, &world.entra), world.somebody("login", 1).await);
        let mut login = home.cli(&["login", "--no-browser"]).spawn().unwrap();
        let line = line_with(&mut login, "https://").await;
        let address = line.split_once("https://").map(|(_, rest)| format!("https://{rest}")).unwrap();
        // Whoever else is on this machine can reach the port, but not end or take over the login.
        let start = reqwest::Url::parse(&address).unwrap();
        let back = start.query_pairs().find(|(name, _)| name == "redirect_uri").unwrap().1.into_owned();
        assert!(start.query_pairs().any(|it| it == ("code_challenge_method".into(), "S256".into())), "{address}");
        for forged in ["", "?code=x", "?state=x&code=x", "?state=&error=access_denied"] {
            let answer = reqwest::get(format!("{back}{forged}")).await.unwrap();
            assert_eq!(answer.status(), 400, "{forged}");
        }
        assert!(world.entra.browse(&address, &person).await.unwrap().contains("You are logged in."));
        let (code, printed) = rest(login).await;
        assert_eq!(code, 0);
        let token = printed.strip_suffix('\n').unwrap();
        let claims = world.entra.verified(token).await.unwrap();
        assert_eq!((&claims["aud"], &claims["oid"]), (&json!("mediatore"), &json!(person.id)));
        assert_eq!(std::fs::metadata(home.kept()).unwrap().mode() & 0o777, 0o600);
        assert!(!home.path("address").exists(), "a browser was opened");
        // The same token while it is good; nobody is asked.
        assert_eq!(stdout(&home.run(&["login"], 0).await), printed);
        home.login(&world.entra, &person).await;
        assert_ne!(stdout(&home.run(&["login"], 0).await), printed, "--force logs in anew");

        std::fs::set_permissions(home.kept(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(said(&home.run(&["pools"], 3).await).contains("others may read"));
        home.run(&["logout"], 0).await;
        assert!(!home.kept().exists());
        assert!(said(&home.run(&["pools"], 3).await).contains("mediatore-cli login"));
    });
}

#[test]
fn a_person_who_does_not_want_to_is_not_logged_in() {
    test(async |world| {
        let home = Home::new(world, &world.entra);
        let mut login = home.cli(&["login", "--no-browser"]).spawn().unwrap();
        let line = line_with(&mut login, "https://").await;
        let start = reqwest::Url::parse(&format!("https://{}", line.split_once("https://").unwrap().1)).unwrap();
        let asked = |name: &str| start.query_pairs().find(|(it, _)| it == name).unwrap().1.into_owned();
        let mut back = reqwest::Url::parse(&asked("redirect_uri")).unwrap();
        // As a provider sends the browser back (RFC 6749, 4.1.2.1), with what a terminal would obey.
        let answer =
            [("state", asked("state")), ("error", "access_denied".into()), ("error_description", "no\u{1b}[2J".into())];
        back.query_pairs_mut().extend_pairs(answer);
        assert!(reqwest::get(back).await.unwrap().text().await.unwrap().contains("failed"));
        assert_eq!(rest(login).await, (3, String::new()));
        assert!(!home.kept().exists());
    });
}

#[test]
fn a_login_with_a_browser_elsewhere() {
    test(async |world| {
        let (home, person) = (Home::new(world, &world.entra), world.somebody("device", 2).await);
        let mut login = home.cli(&["login", "--device"]).spawn().unwrap();
        let line = line_with(&mut login, "Or open").await;
        let address = line.split(['"', ' ', ',']).find(|word| word.starts_with("https://")).unwrap();
        world.entra.browse(address, &person).await.unwrap();
        let (code, printed) = rest(login).await;
        assert_eq!(code, 0);
        let claims = world.entra.verified(printed.trim()).await.unwrap();
        assert_eq!(claims["oid"], json!(person.id));
        // Dex has no such flow, and says so.
        let output = Home::new(world, &world.dex).run(&["login", "--device"], 2).await;
        assert!(said(&output).contains("leave --device away"), "{}", said(&output));
    });
}

#[test]
fn from_pools_to_release() {
    test(async |world| {
        let (home, person) = (Home::new(world, &world.entra), world.somebody("whole", 3).await);
        home.login(&world.entra, &person).await;
        let table = stdout(&home.run(&["pools"], 0).await);
        assert!(table.starts_with("POOL ") && table.contains("sandboxes/pool-a"), "{table}");
        assert_eq!(home.json(&["pools", "-o", "json"]).await["pools"][1]["pool_ref"], "sandboxes/pool-a");
        assert_eq!(stdout(&home.run(&["status"], 0).await), "");

        let ask = ["claim", "--pool", "pool-a", "--image", IMAGE, "--ttl", "45m", "--audience", "api://trading-data"];
        let more = ["--env", "MODE=fast", "--memory", "512Mi", "--restart", "on-failure", "--idempotency-key", "once"];
        let workload = ["--", "/usr/bin/claude", "--print", "-x"];
        let whole = [&ask[..], &more[..], &["-o", "json"][..], &workload[..]].concat();
        let claim = home.json(&whole).await;
        assert_eq!(claim["phase"], "Bound", "{claim}");
        let name = claim["name"].as_str().unwrap();
        let spec = world.claim(name).await.unwrap().spec;
        assert_eq!(spec.workload.args, ["/usr/bin/claude", "--print", "-x"]);
        assert_eq!((spec.workload.env[0].name.as_str(), spec.workload.env[0].value.as_str()), ("MODE", "fast"));
        // The same key is the same claim.
        assert_eq!(home.json(&whole).await["name"], *name);
        let other = [&ask[..], &more[..], &["--", "other"][..]].concat();
        assert!(said(&home.run(&other, 2).await).contains("another request"));

        let table = stdout(&home.run(&["status"], 0).await);
        assert!(table.starts_with("NAME ") && table.contains(name) && table.contains("44m"), "{table}");
        assert_eq!(stdout(&home.run(&["status", name, "-o", "name"], 0).await), format!("{name}\n"));
        assert_eq!(home.json(&["status", name, "-o", "json"]).await["phase"], "Bound");

        // One waits for the workload, the other ends the claim.
        let mut waiting = home.cli(&["status", name, "--wait", "finished"]).spawn().unwrap();
        line_with(&mut waiting, "has its machine").await;
        home.run(&["release", name, "--wait"], 0).await;
        assert_eq!(rest(waiting).await.0, 8);
        let output = home.run(&["status", name, "-o", "json"], 5).await;
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["error"], "not_found");
        home.run(&["release", name], 5).await;
    });
}

#[test]
fn each_refusal_has_its_exit_code() {
    test(async |world| {
        let (home, person) = (Home::new(world, &world.entra), world.somebody("refused", 4).await);
        home.login(&world.entra, &person).await;
        let claim = |pool: &'static str| ["claim", "--pool", pool, "--image", IMAGE, "--wait", "none"];
        home.run(&claim("nowhere"), 5).await;
        let denied = home.run(&["claim", "--pool", "pool-a", "--image", "elsewhere/x"], 2).await;
        assert!(said(&denied).contains("workload.image"), "{}", said(&denied));
        home.run(&["claim", "--pool", "empty"], 2).await; // clap's own
        home.run(&["--config", "/nowhere.yaml", "pools"], 2).await;
        home.run(&["--server", "http://127.0.0.1", "pools"], 2).await;

        // A pool without room: it waits, place in the queue and all, until the person has enough.
        let mut waiting = home.cli(&["claim", "--pool", "empty", "--image", IMAGE]).spawn().unwrap();
        let line = line_with(&mut waiting, "waits for a machine").await;
        let pid = rustix::process::Pid::from_raw(waiting.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(rest(waiting).await, (130, String::new()));
        let name = line.split_once(':').unwrap().0;
        assert_eq!(world.claim(name).await.unwrap().spec.subject.id, person.id, "it goes on");

        home.run(&claim("empty"), 0).await;
        let third = home.run(&claim("empty"), 6).await;
        assert!(said(&third).contains("release"), "it says what to do: {}", said(&third));
        let names = stdout(&home.run(&["status", "-o", "name"], 0).await);
        let names: Vec<&str> = names.lines().collect();
        assert_eq!(names.len(), 2);
        home.run(&[&["release"][..], &names[..]].concat(), 0).await;

        // Tokens of others, by file and by pipe.
        let service = world.service().await;
        home.write("token", &format!("{service}\n"));
        let token = home.path("token").display().to_string();
        home.run(&["pools", "--token-file", &token], 0).await;
        home.write(
            "token",
            &world.entra.login("mediatore-cli", &person, "api://kubernetes/access").await.unwrap().access_token,
        );
        let refused = home.run(&["pools", "--token-file", &token], 3).await;
        assert!(said(&refused).contains("the token is for \"kubernetes\""), "{}", said(&refused));
        home.write("token", "two words");
        home.run(&["pools", "--token-file", &token], 2).await;
        let stranger = world.entra.client_credentials("stranger", &format!("{MEDIATORE}/.default")).await.unwrap();
        let mut piped = home.cli(&["pools", "--token-file", "-"]);
        let mut piped = piped.stdin(Stdio::piped()).spawn().unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut piped.stdin.take().unwrap(), stranger.access_token.as_bytes())
            .await
            .unwrap();
        assert_eq!(rest(piped).await.0, 4);

        // Nobody listens there, until there is.
        let port = world.cluster.port().unwrap();
        let nowhere = format!("https://127.0.0.1:{port}");
        let output = home.run(&["--server", &nowhere, "--give-up-after", "1s", "pools"], 7).await;
        assert!(
            said(&output).contains("does not answer") && said(&output).contains("trying again"),
            "{}",
            said(&output)
        );
    });
}

#[test]
fn a_session_is_handed_over_and_not_kept() {
    test(async |world| {
        let (home, grace) = (Home::new(world, &world.dex), Person::grace());
        home.login(&world.dex, &grace).await;
        let ask = ["claim", "--pool", "pool-a", "--image", IMAGE, "--audience", BY_SESSION, "-o", "json"];
        let without = home.run(&ask, 2).await;
        assert!(said(&without).contains("refresh_token"), "{}", said(&without));
        let claim = home.cli(&[&ask[..], &["--with-session"][..]].concat()).spawn().unwrap();
        home.browse(&world.dex, &grace).await;
        let output = claim.wait_with_output().await.unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let claim: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(claim["phase"], "Bound");
        let kept: Value = serde_json::from_slice(&std::fs::read(home.kept()).unwrap()).unwrap();
        let fields: Vec<&String> = kept.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["client_id", "expires_at", "issuer", "scope", "token"]);
        home.run(&["release", claim["name"].as_str().unwrap(), "--wait"], 0).await;
    });
}

#[test]
fn completions_for_each_shell() {
    test(async |world| {
        let home = Home::new(world, &world.entra);
        for shell in ["bash", "zsh", "fish"] {
            let script = stdout(&home.run(&["completions", shell], 0).await);
            assert!(script.contains("mediatore-cli") && script.contains("idempotency-key"), "{shell}");
        }
        // bash takes it.
        let check = "source <(mediatore-cli completions bash) && complete -p mediatore-cli";
        let output = home.command("/bin/bash", &["-c", check]).output().await.unwrap();
        assert!(output.status.success(), "{}", said(&output));
    });
}
