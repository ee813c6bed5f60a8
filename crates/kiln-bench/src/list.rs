//! `kiln-bench list`: what there is to measure.

use anyhow::Result;
use clap::ValueEnum;

use crate::engines::catalog::{Name, Shape};
use crate::workloads::spec;

/// Prints the engines and the workloads.
pub(crate) fn run() -> Result<()> {
    println!("Engines:");
    for name in Name::value_variants() {
        let description = name.description();
        let version = (description.version)();
        println!("  {:<14} {}", name.text(), description.what);
        match version {
            Ok(version) if version.is_empty() => {}
            Ok(version) => println!("  {:<14} version {version}", ""),
            Err(error) => println!("  {:<14} NOT HERE: {error:#}", ""),
        }
        let mut lacks = Vec::new();
        if !description.shapes.contains(&Shape::Table) {
            lacks.push("no ordered keys");
        }
        if !description.transactions {
            lacks.push("no transactions");
        }
        if !lacks.is_empty() {
            println!("  {:<14} {}", "", lacks.join(", "));
        }
        for &mode in description.modes {
            println!("  {:<14} {:<7} {}", "", mode.text(), (description.settings)(mode));
        }
    }
    println!(
        "\nWorkloads (transactions of their own unless told otherwise; keys are chosen uniformly unless told otherwise):"
    );
    for workload in spec::list() {
        let dataset = format!("{:?}", workload.dataset).to_lowercase();
        let distribution = workload.distribution.to_string();
        println!("  {:<17} {dataset:<6} {distribution:<8} {}", workload.name, workload.what);
    }
    Ok(())
}
