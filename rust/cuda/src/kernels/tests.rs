use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;

#[test]
fn every_kernel_has_a_place_and_a_name_of_its_own() {
    for (place, kernel) in Kernel::ALL.iter().enumerate() {
        assert_eq!(kernel.index(), place, "{kernel:?}");
    }
    let symbols: BTreeSet<_> = Kernel::ALL.iter().map(|kernel| kernel.symbol()).collect();
    assert_eq!(symbols.len(), Kernel::ALL.len());
}

#[test]
fn every_architecture_holds_exactly_the_kernels_of_the_registry() {
    let expected: BTreeSet<_> = Kernel::ALL.iter().map(|kernel| kernel.symbol()).collect();
    let mut compiled = BTreeMap::<_, BTreeSet<_>>::new();
    for entry in resources() {
        compiled.entry(entry.architecture).or_default().insert(entry.kernel);
    }
    assert_eq!(compiled.is_empty(), !EMBEDDED);
    for (architecture, found) in compiled {
        assert_eq!(found, expected, "{architecture}");
    }
}

#[test]
fn no_kernel_spills_registers_or_needs_a_stack() {
    let wasteful: Vec<_> = resources()
        .iter()
        .filter(|entry| entry.stack_bytes + entry.spill_store_bytes + entry.spill_load_bytes > 0)
        .collect();
    assert!(wasteful.is_empty(), "{wasteful:#?}");
}

#[test]
fn every_kernel_keeps_to_the_registers_that_its_blocks_leave_it() {
    for entry in resources() {
        let kernel = Kernel::ALL.iter().find(|kernel| kernel.symbol() == entry.kernel).unwrap();
        assert!(entry.registers <= kernel.max_registers(), "more than {}: {entry:?}", kernel.max_registers());
    }
}

#[test]
fn no_kernel_has_static_shared_memory_that_its_launch_does_not_count() {
    for entry in resources() {
        assert_eq!(entry.shared_bytes, 0, "{entry:?}");
    }
}

#[test]
fn the_sources_declare_the_blocks_that_the_registry_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let mut declared = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("KERNEL(")) {
            let fields: Vec<_> = line.split(')').next().unwrap().split(',').map(str::trim).collect();
            declared.insert(fields[0].to_owned(), (fields[2].parse().unwrap(), fields[3].parse().unwrap()));
        }
    }
    let registered: BTreeMap<_, (u32, u32)> = Kernel::ALL
        .iter()
        .map(|kernel| (kernel.symbol().to_owned(), (kernel.max_threads(), kernel.min_blocks())))
        .collect();
    assert_eq!(declared, registered);
}

#[test]
fn register_budgets_follow_from_the_blocks_that_must_fit() {
    assert_eq!(Kernel::Upload.max_registers(), 128);
    assert_eq!(Kernel::NormRows(FloatType::Float32).max_registers(), 64);
}
