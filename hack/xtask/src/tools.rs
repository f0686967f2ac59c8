//! The pinned programs: reads `hack/tools/tools.toml` and builds what is missing into `target/tools/bin`. Those in Go are
//! built here, scripts by [`crate::scripts`].
//!
//! A program is current while `target/tools/stamps/NAME` holds the digest of everything its build reads. A stamp is
//! removed before its program is replaced and written after, so it never vouches for a program that it did not see.
//! Programs are built one after another under a lock: two Go links at once want more memory than a small machine has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use aws_lc_rs::digest;
use serde::Deserialize;

use crate::scripts::{Install, Script};

/// Every set of programs.
pub const EVERYTHING: &[&str] = &["control-plane", "kubevirt", "spire", "identity"];

/// The sets that the demo needs.
pub const DEMO: &[&str] = &["control-plane", "kubevirt", "spire"];

/// Lines of a build's output that a failure shows; the log has all.
pub(crate) const SHOWN: usize = 20;

/// More compilers than this at once gain little and cost about 0.5 GB each.
const PARALLEL: usize = 4;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    ldflags: BTreeMap<String, Vec<String>>,
    program: Vec<Program>,
    script: Vec<Script>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    name: String,
    set: String,
    module: String,
    package: String,
    ldflags: Option<String>,
    cgo: bool,
    seconds: u64,
}

impl Manifest {
    fn read(root: &Path) -> anyhow::Result<Self> {
        let file = root.join("hack/tools/tools.toml");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("parsing {}", file.display()))
    }

    /// The programs and scripts that these names of programs or sets mean, once each, in the file's order.
    fn select(&self, wanted: &[&str]) -> anyhow::Result<(Vec<&Program>, Vec<&Script>)> {
        let programs = self.program.iter().map(|p| (&p.name, &p.set));
        let scripts = self.script.iter().map(|s| (&s.name, &s.set));
        let known: BTreeSet<&str> = programs.chain(scripts).flat_map(|(name, set)| [name.as_str(), set]).collect();
        if let Some(stranger) = wanted.iter().find(|name| !known.contains(**name)) {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            bail!("no pinned program or set is called '{stranger}': name any of {known}");
        }
        let is_wanted = |name: &str, set: &str| wanted.contains(&name) || wanted.contains(&set);
        Ok((
            self.program.iter().filter(|p| is_wanted(&p.name, &p.set)).collect(),
            self.script.iter().filter(|s| is_wanted(&s.name, &s.set)).collect(),
        ))
    }

    /// The whole value of `-ldflags` for a program of this version.
    fn linker_flags(&self, program: &Program, version: Option<&str>) -> anyhow::Result<String> {
        let mut flags = vec!["-s -w".to_owned()];
        if let Some(key) = &program.ldflags {
            let templates = self.ldflags.get(key).with_context(|| format!("tools.toml has no ldflags '{key}'"))?;
            let version = version
                .and_then(|v| v.strip_prefix('v'))
                .with_context(|| format!("go.mod requires no module that holds {}", program.package))?;
            let mut numbers = version.split('.');
            let major = numbers.next().unwrap_or_default();
            let minor = numbers.next().unwrap_or_default();
            flags.extend(templates.iter().map(|template| {
                template.replace("{version}", version).replace("{major}", major).replace("{minor}", minor)
            }));
        }
        Ok(flags.join(" "))
    }
}

/// Builds those of the named programs and sets that are missing or stale; returns the folder that holds them.
pub fn ensure(root: &Path, wanted: &[&str]) -> anyhow::Result<PathBuf> {
    let manifest = Manifest::read(root)?;
    let (programs, scripts) = manifest.select(wanted)?;
    let store = Store::new(root);
    store.make_folders()?;

    let mut go_versions = BTreeMap::new();
    let mut builds = Vec::new();
    for program in programs {
        if !go_versions.contains_key(program.module.as_str()) {
            let folder = root.join("hack/tools").join(&program.module);
            go_versions.insert(program.module.as_str(), go_version(&folder)?);
        }
        let go_version = go_versions.get(program.module.as_str()).map(String::as_str).unwrap_or_default();
        builds.push(Build::plan(root, &manifest, program, go_version)?);
    }
    let scripts = scripts.into_iter().map(|script| Install::plan(root, script)).collect::<anyhow::Result<Vec<_>>>()?;
    if builds.iter().all(|build| store.is_current(&build.program.name, &build.stamp))
        && scripts.iter().all(|script| store.is_current(script.name(), &script.stamp))
    {
        return Ok(store.bin());
    }

    let _lock = store.lock()?;
    store.sweep();
    // Another caller may have built some of them while this one waited.
    let stale: Vec<&Build<'_>> =
        builds.iter().filter(|build| !store.is_current(&build.program.name, &build.stamp)).collect();
    if stale.iter().any(|build| build.program.cgo) {
        c_compiler()?;
    }
    for build in stale {
        build.run(&store)?;
    }
    for script in scripts.iter().filter(|script| !store.is_current(script.name(), &script.stamp)) {
        script.run(&store)?;
    }
    Ok(store.bin())
}

/// Folders under `target/tools`.
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    fn new(root: &Path) -> Self {
        Self { folder: root.join("target/tools") }
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    pub(crate) fn stamp(&self, name: &str) -> PathBuf {
        self.folder.join("stamps").join(name)
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join("log").join(format!("{name}.log"))
    }

    /// Where a program is linked before it is renamed into place: the same file system, never in `bin`.
    pub(crate) fn partial(&self, name: &str) -> PathBuf {
        self.folder.join("partial").join(format!("{name}.{}", std::process::id()))
    }

    /// Where a script lives with its packages.
    pub(crate) fn script(&self, name: &str) -> PathBuf {
        self.folder.join("scripts").join(name)
    }

    /// Under the lock: what is in `partial` is left from builds that were killed.
    fn sweep(&self) {
        for entry in fs::read_dir(self.folder.join("partial")).into_iter().flatten().flatten() {
            // One that will not go only takes space.
            let _ =
                if entry.path().is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        }
    }

    fn make_folders(&self) -> anyhow::Result<()> {
        for name in ["bin", "stamps", "log", "partial", "scripts"] {
            let folder = self.folder.join(name);
            fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        Ok(())
    }

    /// Held until the file is dropped, or the process ends in any way.
    fn lock(&self) -> anyhow::Result<File> {
        let path = self.folder.join("lock");
        let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                println!("waiting for another process that builds the pinned programs …");
                file.lock().with_context(|| format!("locking {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
        Ok(file)
    }

    /// Whether a program was built from what this stamp is the digest of.
    fn is_current(&self, name: &str, stamp: &str) -> bool {
        let recorded = fs::read_to_string(self.stamp(name)).unwrap_or_default();
        recorded.trim_end() == stamp && self.bin().join(name).is_file()
    }
}

/// One program, with all that decides what comes out of its build.
struct Build<'a> {
    program: &'a Program,
    folder: PathBuf,
    version: Option<String>,
    arguments: Vec<String>,
    stamp: String,
}

impl<'a> Build<'a> {
    fn plan(root: &Path, manifest: &Manifest, program: &'a Program, go_version: &str) -> anyhow::Result<Self> {
        let folder = root.join("hack/tools").join(&program.module);
        let go_mod = read_go_mod(&folder)?;
        let version = required_version(&go_mod, &program.package).map(str::to_owned);
        // What the environment says in GOFLAGS still holds; these win where both speak.
        let arguments = [
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            "-ldflags",
            &manifest.linker_flags(program, version.as_deref())?,
            &program.package,
        ]
        .map(str::to_owned)
        .to_vec();
        let mut files = BTreeMap::new();
        collect_sources(&folder, Path::new(""), &mut files)?;
        let stamp = stamp(&files, &arguments, program.cgo, go_version);
        Ok(Self { program, folder, version, arguments, stamp })
    }

    fn run(&self, store: &Store) -> anyhow::Result<()> {
        let name = &self.program.name;
        let version = self.version.as_deref().map(|v| format!(" {v}")).unwrap_or_default();
        println!("building {name}{version} (about {} cold) …", rough(Duration::from_secs(self.program.seconds)));
        let started = Instant::now();
        let (log, partial) = (store.log(name), store.partial(name));
        let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("sharing {}", log.display()))?;
        let parallel = std::thread::available_parallelism().map_or(1, usize::from).min(PARALLEL);
        let (verb, rest) = self.arguments.split_first().context("a build without arguments")?;
        let status = Command::new("go")
            .arg(verb)
            .args(["-p", &parallel.to_string(), "-o"])
            .arg(&partial)
            .args(rest)
            .current_dir(&self.folder)
            .env("CGO_ENABLED", if self.program.cgo { "1" } else { "0" })
            .env("GOWORK", "off") // a workspace file in a folder above would replace the pinned versions
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .status()
            .context("starting go")?;
        if !status.success() {
            // What was linked so far is of no use, and nothing to report on.
            let _ = fs::remove_file(&partial);
            let text = fs::read(&log).unwrap_or_default();
            bail!(
                "building {name}{version} failed ({status}); the whole output is in {}, its last lines are:\n{}",
                log.display(),
                last_lines(&String::from_utf8_lossy(&text), SHOWN)
            );
        }
        remove_if_there(&store.stamp(name))?;
        let binary = store.bin().join(name);
        fs::rename(&partial, &binary).with_context(|| format!("moving {name} to {}", binary.display()))?;
        fs::write(store.stamp(name), &self.stamp).with_context(|| format!("recording the stamp of {name}"))?;
        println!("built {name}{version} in {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Digest, in hex, of all that decides what a build makes. Every part is preceded by its length, so that no two
/// different inputs read the same.
pub(crate) fn stamp(files: &BTreeMap<String, Vec<u8>>, arguments: &[String], cgo: bool, go_version: &str) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut part = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    };
    part(go_version.as_bytes());
    part(&[u8::from(cgo)]);
    part(&(arguments.len() as u64).to_le_bytes());
    for argument in arguments {
        part(argument.as_bytes());
    }
    for (path, content) in files {
        part(path.as_bytes());
        part(content);
    }
    hex::encode(context.finish())
}

/// Adds go.mod, go.sum and the `.go` files of a module, by path below it.
fn collect_sources(module: &Path, below: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let folder = module.join(below);
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
        let path = below.join(entry.file_name());
        if entry.file_type().with_context(|| format!("looking at {}", path.display()))?.is_dir() {
            collect_sources(module, &path, files)?;
        } else if path.extension().is_some_and(|e| e == "go" || e == "mod" || e == "sum") {
            let content = fs::read(entry.path()).with_context(|| format!("reading {}", entry.path().display()))?;
            files.insert(path.to_string_lossy().into_owned(), content);
        }
    }
    Ok(())
}

fn read_go_mod(module: &Path) -> anyhow::Result<String> {
    let file = module.join("go.mod");
    fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
}

/// The version that go.mod requires of the module that holds a package; none for a package of our own.
fn required_version<'a>(go_mod: &'a str, package: &str) -> Option<&'a str> {
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
fn minimal_go(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| line.strip_prefix("go ")).map(str::trim)
}

/// What `go version` says in a module's folder, where Go may switch to a newer toolchain by itself.
fn go_version(module: &Path) -> anyhow::Result<String> {
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
    format!(
        "install Go {least} or newer with 'curl -fsSL https://go.dev/dl/go{least}.linux-{machine}.tar.gz | tar -C \
         /usr/local -xz', put /usr/local/go/bin first in PATH, then run this again"
    )
}

/// "1.26.8" as (1, 26, 8); what does not read as a number counts as 0, as in "1.27rc1".
fn numbers(version: &str) -> (u32, u32, u32) {
    let mut parts = version.split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..digits).and_then(|d| d.parse().ok()).unwrap_or(0)
    });
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

/// Go calls the compiler that CC names, else gcc.
fn c_compiler() -> anyhow::Result<()> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "gcc".to_owned());
    let name = compiler.split_whitespace().next().unwrap_or("gcc");
    match Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("the C compiler '{name}' is missing: run 'apt-get install gcc libc6-dev', then this again")
        }
        _ => Ok(()), // one that is there and does not work says so itself, in Go's output
    }
}

pub(crate) fn remove_if_there(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// "40 s", "4 min".
pub(crate) fn rough(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..90 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn files(list: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        list.iter().map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec())).collect()
    }

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_stamp_depends_on_every_input_and_on_nothing_else() {
        let sources = files(&[("go.mod", "module m"), ("go.sum", "x h1:1"), ("cmd/main.go", "package main")]);
        let arguments = words(&["build", "-trimpath", "./cmd"]);
        let base = stamp(&sources, &arguments, false, "go1.26.8");
        assert_eq!(base, stamp(&sources.clone(), &arguments.clone(), false, "go1.26.8"));
        assert_eq!(base.len(), 64);

        let mut seen = BTreeSet::from([base]);
        let mut differs = |other: String| assert!(seen.insert(other), "a change left the stamp as it was");
        for path in ["go.mod", "go.sum", "cmd/main.go"] {
            let mut changed = sources.clone();
            changed.get_mut(path).unwrap().push(b' ');
            differs(stamp(&changed, &arguments, false, "go1.26.8"));
            let mut missing = sources.clone();
            missing.remove(path);
            differs(stamp(&missing, &arguments, false, "go1.26.8"));
        }
        let mut more = sources.clone();
        more.insert("cmd/more.go".to_owned(), Vec::new());
        differs(stamp(&more, &arguments, false, "go1.26.8"));
        differs(stamp(&sources, &words(&["build", "./cmd"]), false, "go1.26.8"));
        differs(stamp(&sources, &arguments, true, "go1.26.8"));
        differs(stamp(&sources, &arguments, false, "go1.26.9"));
    }

    #[test]
    fn a_byte_that_moves_between_parts_changes_the_stamp() {
        let none = BTreeMap::new();
        assert_ne!(stamp(&none, &words(&["ab", "c"]), false, ""), stamp(&none, &words(&["a", "bc"]), false, ""));
        assert_ne!(stamp(&files(&[("a", "bc")]), &[], false, ""), stamp(&files(&[("ab", "c")]), &[], false, ""));
        // A file must not read as two more arguments.
        assert_ne!(stamp(&files(&[("a", "b")]), &[], false, ""), stamp(&none, &words(&["a", "b"]), false, ""));
    }

    #[test]
    fn a_program_is_current_only_with_its_stamp_and_its_binary() {
        let folder = std::env::temp_dir().join(format!("xtask-tools-{}", std::process::id()));
        let store = Store { folder: folder.clone() };
        store.make_folders().unwrap();
        let manifest = Manifest::read(&root()).unwrap();
        let program = manifest.program.first().unwrap();
        let build = Build::plan(&root(), &manifest, program, "go version go1.26.8 linux/amd64").unwrap();
        assert!(!store.is_current(&program.name, &build.stamp), "neither");
        fs::write(store.stamp(&program.name), &build.stamp).unwrap();
        assert!(!store.is_current(&program.name, &build.stamp), "no binary");
        fs::write(store.bin().join(&program.name), "").unwrap();
        assert!(store.is_current(&program.name, &build.stamp));
        fs::write(store.stamp(&program.name), "another").unwrap();
        assert!(!store.is_current(&program.name, &build.stamp), "the stamp of another build");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_manifest_agrees_with_the_modules() {
        let manifest = Manifest::read(&root()).unwrap();
        let of_scripts = manifest.script.iter().map(|s| (s.name.as_str(), s.set.as_str()));
        let all: Vec<_> =
            manifest.program.iter().map(|p| (p.name.as_str(), p.set.as_str())).chain(of_scripts).collect();
        let sets: BTreeSet<&str> = all.iter().map(|(_, set)| *set).collect();
        assert_eq!(sets, EVERYTHING.iter().copied().collect());
        let names: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), all.len(), "names are unique");
        assert!(names.is_disjoint(&sets), "a name means a program or a set, not both");
        for program in &manifest.program {
            let go_mod = read_go_mod(&root().join("hack/tools").join(&program.module)).unwrap();
            assert!(minimal_go(&go_mod).is_some(), "{}", program.module);
            let version = required_version(&go_mod, &program.package);
            let ours = program.package.starts_with("./");
            assert_eq!(version.is_none(), ours, "{}", program.name);
            assert!(
                ours || go_mod.lines().any(|line| line.trim() == program.package),
                "no tool line: {}",
                program.name
            );
            let flags = manifest.linker_flags(program, version).unwrap();
            assert!(!flags.contains('{'), "{flags}");
        }
        let apiserver = manifest.select(&["kube-apiserver"]).unwrap().0.pop().unwrap();
        let flags = manifest.linker_flags(apiserver, Some("v1.37.2")).unwrap();
        for flag in ["version.gitVersion=v1.37.2 ", "version.gitMajor=1 ", "version.gitMinor=37 "] {
            assert!(flags.contains(flag), "{flags}");
        }
    }

    #[test]
    fn names_and_sets_select_each_program_once() {
        let manifest = Manifest::read(&root()).unwrap();
        let names = |wanted: &[&str]| -> Vec<String> {
            let (programs, scripts) = manifest.select(wanted).unwrap();
            programs.iter().map(|p| p.name.clone()).chain(scripts.iter().map(|s| s.name.clone())).collect()
        };
        assert_eq!(names(&["identity"]), ["dex", "oidc"]);
        assert_eq!(names(&["spire-agent", "spire", "etcd"]), ["etcd", "spire-server", "spire-agent"]);
        assert!(names(&[]).is_empty());
        let error = manifest.select(&["kubelet"]).unwrap_err().to_string();
        assert!(error.contains("'kubelet'") && error.contains("kube-apiserver"), "{error}");
    }

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
    }

    #[test]
    fn output_is_cut_to_its_end_and_times_are_rounded() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 20), "a");
        assert_eq!(rough(Duration::from_secs(40)), "40 s");
        assert_eq!(rough(Duration::from_secs(234)), "4 min");
    }
}
