//! banlieue-image: builds the measured guest image and predicts its measurements.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use banlieue_image::{
    build::{self, Recipe},
    kernel,
    tree::Programs,
};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Build disk.raw and predictions.yaml.
    Build(Build),
}

#[derive(Parser)]
struct Build {
    /// The SPIRE agent, statically linked.
    #[arg(long)]
    spire_agent: PathBuf,
    /// The guest agent.
    #[arg(long)]
    guest: PathBuf,
    /// The guest half of attestation.
    #[arg(long)]
    attestor_guest: PathBuf,
    /// A linux-image package; without it, Debian's current cloud kernel is downloaded (not installed).
    #[arg(long)]
    kernel_package: Option<PathBuf>,
    /// systemd's EFI stub.
    #[arg(long, default_value = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub")]
    stub: PathBuf,
    /// Where packages are kept and unpacked.
    #[arg(long, default_value = "target/image/kernel")]
    cache: PathBuf,
    /// Name of the image.
    #[arg(long, default_value = "guest")]
    name: String,
    /// Version of the image.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    image_version: String,
    /// Folder to write to.
    #[arg(long)]
    out: PathBuf,
}

fn main() -> Result<()> {
    match Cli::parse().act {
        Act::Build(build) => make(build),
    }
}

fn make(args: Build) -> Result<()> {
    let package = match args.kernel_package {
        Some(package) => package,
        None => kernel::download(&args.cache)?,
    };
    let kernel = kernel::unpack(&package, &args.cache)?;
    println!("kernel {}", kernel.release);
    let programs = Programs { spire_agent: args.spire_agent, guest: args.guest, attestor_guest: args.attestor_guest };
    let recipe = Recipe { name: args.name, version: args.image_version, stub: args.stub, programs, kernel };
    let built = build::build(&recipe)?;
    write(&args.out, "disk.raw", &built.disk)?;
    let predictions = serde_saphyr::to_string(&built.predictions).context("cannot write the predictions as YAML")?;
    write(&args.out, "predictions.yaml", predictions.as_bytes())?;
    println!("image {} of {} MiB in {}", built.predictions.image.digest, built.disk.len() >> 20, args.out.display());
    Ok(())
}

/// Writes by rename, so that nobody ever sees half an image.
fn write(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let to = folder.join(name);
    let part = folder.join(format!(".{name}.part"));
    std::fs::write(&part, content).with_context(|| format!("cannot write {}", part.display()))?;
    std::fs::rename(&part, &to).with_context(|| format!("cannot write {}", to.display()))
}
