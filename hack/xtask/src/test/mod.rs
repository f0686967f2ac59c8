//! Everything CI runs, cheapest first, so that a fault shows early; and the part of it that needs no cluster.

mod lanes;

use std::path::Path;

use crate::packages::{self, Purpose};
use crate::stages::Stages;
use crate::{charts, check, demo, image, product, tools};

/// Stages in order; the first failure ends the run.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let mut stages = Stages::default();
    stages.run_kept("Debian packages and compilers", || {
        let packages = packages::ensure(&[Purpose::Build, Purpose::Machines, Purpose::Tests, Purpose::Npm])?;
        tools::compilers(root, tools::EVERYTHING)?;
        Ok(packages)
    })?;
    without_a_cluster(root, &mut stages)?;
    stages.run_kept("pinned programs", || tools::build(root, tools::EVERYTHING))?;
    stages.run("Helm charts", || charts::check(root))?;
    stages.run_kept("guest image and golden boot", || image::ensure(root))?;
    stages.run("the demo, as a person runs it", || demo::run(root, false))?;
    stages.run("simulation, and tests on real components", || lanes::run(root))?;
    stages.print();
    Ok(())
}

/// What a developer runs between two edits.
pub fn quick(root: &Path) -> anyhow::Result<()> {
    let mut stages = Stages::default();
    stages.run_kept("Debian packages", || packages::ensure(&[Purpose::Build]))?;
    without_a_cluster(root, &mut stages)?;
    stages.print();
    println!("'make test' runs these and all that needs a cluster");
    Ok(())
}

fn without_a_cluster(root: &Path, stages: &mut Stages) -> anyhow::Result<()> {
    stages.run_kept("checks and lints", || check::run(root))?;
    stages.run_kept("product binaries", || product::build(root))?;
    stages.run_kept("test binaries", || product::compile(root, &["test", "--workspace", "--no-run", "--quiet"]))?;
    stages.run("unit and property tests", || {
        product::cargo(root, &["test", "--workspace", "--lib", "--bins", "--quiet"])
    })?;
    stages.run("examples in the documentation of the code", || {
        product::cargo(root, &["test", "--workspace", "--doc", "--quiet"])
    })
}
