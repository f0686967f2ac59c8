//! Writes the files that are generated from the types: `cargo run -p banlieue-crds --bin crdgen [REPOSITORY]`.
//! Without an argument it writes into the repository that it was built from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let root =
        std::env::args_os().nth(1).map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from);
    match write(&root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("crdgen: {message}");
            ExitCode::FAILURE
        }
    }
}

fn write(root: &Path) -> Result<(), String> {
    for file in banlieue_crds::generate::files().map_err(|error| error.to_string())? {
        let path = root.join(&file.path);
        let act = || -> std::io::Result<()> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&path, &file.content)
        };
        act().map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        println!("{}", file.path);
    }
    Ok(())
}
