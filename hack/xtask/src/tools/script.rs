//! The pinned programs in JavaScript: `npm ci` into `target/tools/scripts/NAME`, beside a copy of our own files, and an
//! executable in `target/tools/bin` that starts them.
//!
//! They run on the Node that their package-lock.json names, as an npm package of its binary: Debian 12's is too old for
//! what the scripts build on. npm itself may be any that reads lock files of version 3, Debian's included.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::stamp::stamp;
use super::store::{Store, remove_if_there};
use super::{SHOWN, last_lines, rough};
use crate::packages::{self, Purpose};

/// One `[[script]]` of tools.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Of the program and of its folder in `hack/tools`.
    pub name: String,
    /// What is built together.
    pub set: String,
    /// The file that Node starts.
    pub main: String,
    /// Of an installation with an empty npm cache.
    pub seconds: u64,
}

/// One script, with all that decides what comes out of its installation.
pub struct Install<'a> {
    script: &'a Script,
    files: BTreeMap<String, Vec<u8>>,
    launcher: String,
    /// Digest of everything above.
    pub stamp: String,
}

impl<'a> Install<'a> {
    /// Reads the script's files.
    pub fn plan(root: &Path, script: &'a Script) -> anyhow::Result<Self> {
        let folder = root.join("hack/tools").join(&script.name);
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry.with_context(|| format!("listing {}", folder.display()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".mjs") || name == "package.json" || name == "package-lock.json" {
                files.insert(name, fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
            }
        }
        for needed in ["package.json", "package-lock.json", script.main.as_str()] {
            if !files.contains_key(needed) {
                bail!("{} has no {needed}", folder.display());
            }
        }
        let launcher = launcher(script);
        let stamp = stamp(&files, std::slice::from_ref(&launcher), false, "");
        Ok(Self { script, files, launcher, stamp })
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.script.name
    }

    /// Installs it. The old one stays until the new one is whole.
    pub fn run(&self, store: &Store) -> anyhow::Result<()> {
        let name = self.name();
        println!("installing {name} (about {} cold) …", rough(Duration::from_secs(self.script.seconds)));
        let started = Instant::now();
        let partial = store.partial(name);
        fs::create_dir_all(&partial).with_context(|| format!("creating {}", partial.display()))?;
        for (file, content) in &self.files {
            let path = partial.join(file);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
        npm_ci(name, &partial, &store.log(name))?;

        remove_if_there(&store.stamp(name))?;
        let folder = store.script(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", folder.display()));
            }
            _ => {}
        }
        fs::rename(&partial, &folder).with_context(|| format!("moving {name} to {}", folder.display()))?;
        executable(&store.bin().join(name), &self.launcher)?;
        fs::write(store.stamp(name), &self.stamp).with_context(|| format!("recording the stamp of {name}"))?;
        println!("installed {name} in {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Starts the script on its own Node. It finds both from where it lies itself, so `target/` may be moved.
fn launcher(script: &Script) -> String {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let Script { name, main, .. } = script;
    format!(
        "#!/bin/sh\nhere=\"$(dirname \"$0\")/../scripts/{name}\"\n\
         exec \"$here/node_modules/node-linux-{machine}/bin/node\" \"$here/{main}\" \"$@\"\n"
    )
}

fn npm_ci(name: &str, folder: &Path, log: &Path) -> anyhow::Result<()> {
    let npm = npm()?;
    let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    let errors = output.try_clone().with_context(|| format!("sharing {}", log.display()))?;
    let status = Command::new(npm)
        // No script of a package is needed, so none runs.
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .context("starting npm")?;
    if !status.success() {
        let text = fs::read(log).unwrap_or_default();
        bail!(
            "'npm ci' for {name} failed ({status}); the whole output is in {}, its last lines are:\n{}",
            log.display(),
            last_lines(&String::from_utf8_lossy(&text), SHOWN)
        );
    }
    Ok(())
}

/// npm in the PATH, else Debian's, which root installs and others are told how to.
fn npm() -> anyhow::Result<PathBuf> {
    let found = Command::new("npm").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok("npm".into()),
        _ => {
            packages::ensure(&[Purpose::Npm])?;
            Ok("/usr/bin/npm".into())
        }
    }
}

fn executable(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("making {} executable", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn script(main: &str) -> Script {
        Script { name: "oidc".into(), set: "identity".into(), main: main.into(), seconds: 1 }
    }

    #[test]
    fn a_stamp_depends_on_our_files_and_on_how_they_are_started() {
        let (one, other) = (script("server.mjs"), script("keys.mjs"));
        let plan = Install::plan(&root(), &one).unwrap();
        assert!(plan.files.contains_key("package-lock.json") && plan.files.contains_key("provider.mjs"));
        assert_eq!(plan.stamp, Install::plan(&root(), &one).unwrap().stamp);
        assert_ne!(plan.stamp, Install::plan(&root(), &other).unwrap().stamp);
        let missing = script("absent.mjs");
        let error = Install::plan(&root(), &missing).err().unwrap().to_string();
        assert!(error.contains("has no absent.mjs"), "{error}");
    }

    #[test]
    fn the_lock_pins_a_node_for_this_machine() {
        let lock = fs::read_to_string(root().join("hack/tools/oidc/package-lock.json")).unwrap();
        let launcher = launcher(&script("server.mjs"));
        let package = launcher.split('/').find(|part| part.starts_with("node-linux-")).unwrap();
        assert!(lock.contains(&format!("\"node_modules/{package}\"")), "{package}");
        assert!(!lock.contains("\"resolved\""), "the lock names a registry of somebody's own");
    }
}
