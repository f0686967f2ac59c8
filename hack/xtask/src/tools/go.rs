//! Versions in go.mod, and the compilers on this machine.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The text of a module's go.mod.
pub fn read_go_mod(module: &Path) -> anyhow::Result<String> {
    let file = module.join("go.mod");
    fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
}

/// The version that go.mod requires of the module that holds a package; none for a package of our own.
pub fn required_version<'a>(go_mod: &'a str, package: &str) -> Option<&'a str> {
    go_mod
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            let mut words = line.strip_prefix("require ").unwrap_or(line).split_whitespace();
            let (path, version) = (words.next()?, words.next()?);
            let inside = package.strip_prefix(path)?;
            (version.starts_with('v') && (inside.is_empty() || inside.starts_with('/'))).then_some((path, version))
        })
        .max_by_key(|(path, _)| path.len())
        .map(|(_, version)| version)
}

/// The Go version that go.mod asks for.
pub fn minimal_go(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| line.strip_prefix("go ")).map(str::trim)
}

/// Whether Go is here and new enough for all of these modules.
pub fn installed(modules: impl Iterator<Item = PathBuf>) -> anyhow::Result<()> {
    let mut most: Option<(Version, PathBuf)> = None;
    for module in modules {
        let version = minimal_go(&read_go_mod(&module)?).map(numbers).unwrap_or_default();
        if most.as_ref().is_none_or(|(have, _)| *have < version) {
            most = Some((version, module));
        }
    }
    most.map_or(Ok(()), |(_, module)| go_version(&module).map(drop))
}

/// What `go version` says in a module's folder, where Go may switch to a newer toolchain by itself.
pub fn go_version(module: &Path) -> anyhow::Result<String> {
    let go_mod = read_go_mod(module)?;
    let least = minimal_go(&go_mod).with_context(|| format!("{}/go.mod has no go line", module.display()))?;
    let output = match Command::new("go").arg("version").current_dir(module).env("GOWORK", "off").output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("Go is missing: {}", install_go(least)),
        Err(error) => return Err(error).context("starting 'go version'"),
    };
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        bail!("'go version' failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let found = text.split_whitespace().find_map(|word| word.strip_prefix("go").filter(|v| !v.is_empty()));
    match found.map(numbers) {
        Some(version) if version >= numbers(least) => Ok(text),
        _ => bail!("{text} is too old: {}", install_go(least)),
    }
}

fn install_go(least: &str) -> String {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let sudo = if rustix::process::geteuid().is_root() { "" } else { "sudo " };
    if let Some(debian) = debians_go().filter(|version| *version >= FETCHES_ITSELF) {
        let (major, minor, _) = debian;
        return format!(
            "Go {least} or newer is needed. Run '{sudo}apt-get install golang-go' (its {major}.{minor} fetches a newer one \
             by itself), then this again"
        );
    }
    format!(
        "Go {least} or newer is needed. Run '{sudo}rm -rf /usr/local/go && curl -fsSL \
         https://go.dev/dl/go{least}.linux-{machine}.tar.gz | {sudo}tar -C /usr/local -xz', put /usr/local/go/bin first in \
         PATH, then run this again"
    )
}

/// The version of Go that apt would install. Without apt, or without its lists, there is none.
fn debians_go() -> Option<Version> {
    let output = Command::new("apt-cache").args(["policy", "golang-go"]).stderr(Stdio::null()).output().ok()?;
    candidate(&String::from_utf8_lossy(&output.stdout))
}

/// From "  Candidate: 2:1.24~2".
fn candidate(policy: &str) -> Option<Version> {
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| numbers(version))
}

/// Major, minor, patch.
type Version = (u32, u32, u32);

/// From here on Go fetches the toolchain that a module asks for.
const FETCHES_ITSELF: Version = (1, 21, 0);

/// "1.26.8" as (1, 26, 8); what does not read as a number counts as 0, as in "1.27rc1".
fn numbers(version: &str) -> Version {
    let mut parts = version.split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..digits).and_then(|d| d.parse().ok()).unwrap_or(0)
    });
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

/// Go calls the compiler that CC names, else gcc.
pub fn c_compiler() -> anyhow::Result<()> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "gcc".to_owned());
    let name = compiler.split_whitespace().next().unwrap_or("gcc");
    match Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("the C compiler '{name}' is missing: run 'apt-get install gcc libc6-dev', then this again")
        }
        _ => Ok(()), // one that is there and does not work says so itself, in Go's output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        let go_mod = "module m\n\ngo 1.26.0\n\nreplace k8s.io/api => k8s.io/api v0.37.2\n\nrequire example.org/one v1.2.3\n\
                      require (\n\texample.org/two v2.0.0 // indirect\n\texample.org/two/server/v3 v3.7.3\n)\n";
        assert_eq!(minimal_go(go_mod), Some("1.26.0"));
        assert_eq!(required_version(go_mod, "example.org/one/cmd/x"), Some("v1.2.3"));
        assert_eq!(required_version(go_mod, "example.org/two/server/v3"), Some("v3.7.3"));
        assert_eq!(required_version(go_mod, "example.org/twofold"), None);
        assert_eq!(required_version(go_mod, "k8s.io/api"), None);
        assert_eq!(required_version(go_mod, "./ours"), None);
        assert!(numbers("1.26.8") > numbers("1.26.0") && numbers("1.19") < numbers("1.26.0"));
        assert_eq!(numbers("1.27rc1"), (1, 27, 0));
        assert_eq!(candidate("golang-go:\n  Installed: (none)\n  Candidate: 2:1.24~2\n"), Some((1, 24, 0)));
        assert_eq!(candidate("golang-go:\n  Candidate: (none)\n"), None);
    }
}
