//! banlieue-image: builds the measured guest image and predicts its measurements.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use banlieue_image::{
    build::{self, Recipe},
    kernel, light, sbom, tamper,
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
    /// List what an image is made of, as CycloneDX.
    Sbom(Sbom),
    /// Make a dishonest variant of an image, which attestation must refuse.
    Tamper(Tamper),
    /// Make the light form of an image from its golden boot: a recording in place of a boot.
    Light(Light),
}

#[derive(Parser)]
struct Tamper {
    /// The honest disk.
    #[arg(long)]
    disk: PathBuf,
    /// The disk to write.
    #[arg(long)]
    out: PathBuf,
    /// The file of the initrd to change one byte of.
    #[arg(long, default_value = tamper::QUIET_FILE, conflicts_with = "lay_credential")]
    file: String,
    /// Leave the image honest and lay a credential file beside it.
    #[arg(long)]
    lay_credential: bool,
}

#[derive(Parser)]
struct Light {
    /// The golden boot's console output.
    #[arg(long)]
    evidence: PathBuf,
    /// The honest image's measurements document.
    #[arg(long)]
    measurements: PathBuf,
    /// The host's program that has the node identity of light members; banlieue-guest beside this program by default.
    #[arg(long)]
    node: Option<PathBuf>,
    /// Folder to write light.json, eventlog.bin and measurements.yaml to.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Parser)]
struct Sbom {
    /// What the image was built from.
    #[command(flatten)]
    build: Build,
    /// The Rust workspace that our programs were built in.
    #[arg(long, default_value = ".")]
    workspace: PathBuf,
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

fn main() -> ExitCode {
    let done = match Cli::parse().act {
        Act::Build(build) => make(build),
        Act::Sbom(sbom) => list(sbom),
        Act::Tamper(tamper) => spoil(&tamper),
        Act::Light(light) => record(&light),
    };
    // Not by returning the error: that would print it with a stack trace, which helps nobody here.
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("banlieue-image: {error:#}");
            ExitCode::FAILURE
        }
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

/// Beside the disk that the same arguments have built.
fn list(Sbom { build: args, workspace }: Sbom) -> Result<()> {
    let disk = read(&args.out.join("disk.raw"))?;
    let kernel_package = args.kernel_package.map_or_else(|| kernel::download(&args.cache), Ok)?;
    let programs = Programs { spire_agent: args.spire_agent, guest: args.guest, attestor_guest: args.attestor_guest };
    let parts = sbom::parts(&sbom::Sources { programs, kernel_package, stub: args.stub, workspace })?;
    let document = sbom::document(&args.name, &args.image_version, &banlieue_image::sha256_hex(&disk), &parts);
    write(&args.out, "sbom.cdx.json", &serde_json::to_vec_pretty(&document)?)?;
    println!("{} parts in {}", parts.len(), args.out.join("sbom.cdx.json").display());
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn spoil(args: &Tamper) -> Result<()> {
    let disk = read(&args.disk)?;
    let disk =
        if args.lay_credential { tamper::lay_credential(&disk)? } else { tamper::change_byte(&disk, &args.file)? };
    let folder = args.out.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = args.out.file_name().context("--out must name a file")?;
    write(folder, &name.to_string_lossy(), &disk)
}

fn record(args: &Light) -> Result<()> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("banlieue-guest"));
    let node = args.node.clone().map_or_else(beside, Ok)?;
    let light = light::light(&read(&args.evidence)?, &read(&args.measurements)?, &node)?;
    write(&args.out, light::EVENT_LOG, &light.event_log)?;
    write(&args.out, "measurements.yaml", light.measurements.as_bytes())?;
    // Last: a folder with it is complete.
    write(&args.out, "light.json", &serde_json::to_vec_pretty(&light.recording)?)
}

/// Writes by rename, so that nobody ever sees half an image.
fn write(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let to = folder.join(name);
    let part = folder.join(format!(".{name}.part"));
    std::fs::write(&part, content).with_context(|| format!("cannot write {}", part.display()))?;
    std::fs::rename(&part, &to).with_context(|| format!("cannot write {}", to.display()))
}
