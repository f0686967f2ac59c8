//! Everything CI runs, cheapest first, so that a fault shows early.

mod lanes;

use std::path::Path;

use crate::packages::{self, Purpose};
use crate::stages::Stages;
use crate::{charts, check, demo, image, product, tools};

/// Stages in order; the first failure ends the run.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let mut stages = Stages::default();
    stages.run("Debian packages", || packages::ensure(&[Purpose::Build, Purpose::Machines]))?;
    stages.run("checks", || check::run(root))?;
    stages.run("product binaries", || product::build(root))?;
    stages.run("test binaries", || product::cargo(root, &["test", "--workspace", "--no-run", "--quiet"]))?;
    stages.run("unit and property tests", || {
        product::cargo(root, &["test", "--workspace", "--lib", "--bins", "--quiet"])
    })?;
    stages.run("pinned programs", || tools::ensure(root, tools::EVERYTHING).map(drop))?;
    stages.run("Helm charts", || charts::check(root))?;
    stages.run("guest image and golden boot", || image::ensure(root).map(drop))?;
    stages.run("the demo, as a person runs it", || demo::run(root, false))?;
    stages.run("simulation, and tests on real components", || lanes::run(root))?;
    stages.print();
    Ok(())
}
